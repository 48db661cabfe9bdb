"""An object's content type and metadata as headers of S3.

Owns: which headers of an upload are kept, and which headers of a reply the metadata of an object may set: those of
the user's own metadata, and six that S3 keeps. Text that is not ASCII is sent in the form of RFC 2047
(``=?utf-8?q?...?=``), as S3 does. It is read in this form and as plain UTF-8. Invariant: no value can end its header.
"""

from __future__ import annotations

import re
from email.errors import HeaderParseError
from email.header import decode_header
from typing import Final

from lakebed.http.call import header_text
from lakebed.http.replies import format_date
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.server.s3.call import S3Call
from lakebed.server.s3.errors import s3_error
from lakebed.texts import clamp_to_calendar

META: Final = "x-amz-meta-"
"""Prefix of the headers of the user's own metadata."""
_META_KEY: Final = "X-Amz-Meta-"
"""Prefix of the metadata keys for those headers, the same as in lakeFS, so each can read the other's objects.

Stored: DO NOT CHANGE. Metadata from the REST interface has keys of any form.
"""
_SYSTEM_KEY: Final = "::s3::"
"""Prefix of the metadata key of a header that S3 keeps with an object. Stored: DO NOT CHANGE."""
_SYSTEM_HEADERS: Final = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
_META_RAW: Final = META.encode()
_SYSTEM_HEADERS_RAW: Final = frozenset(name.encode() for name in _SYSTEM_HEADERS)
_OVERRIDES: Final = {f"response-{name}": name for name in ("content-type", *_SYSTEM_HEADERS)}
"""Headers of a reply that a query may set."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SYSTEM_META_MAX: Final = 2_048
"""Largest user metadata that S3 allows, in bytes."""


def describe(call: S3Call) -> tuple[str, dict[str, str]]:
    """Return content type and metadata from the headers of an upload."""
    metadata: dict[str, str] = {}
    for name, value in call.scope["headers"]:
        if name.startswith(_META_RAW):
            key, text = _META_KEY + header_text(name)[len(META) :], decode_words(header_text(value))
            metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
        elif name in _SYSTEM_HEADERS_RAW:
            label, text = header_text(name), header_text(value)
            if label == "content-encoding":  # ``aws-chunked`` tells how it was sent, and is not part of the object
                text = ", ".join(word for word in map(str.strip, text.split(",")) if word and word != "aws-chunked")
            if text:
                metadata[_SYSTEM_KEY + label] = text
    if metadata and _user_bytes(metadata) > _SYSTEM_META_MAX:
        raise s3_error("MetadataTooLarge", f"Your metadata headers exceed {_SYSTEM_META_MAX} bytes.")
    return call.headers.get("content-type") or "binary/octet-stream", metadata


def _user_bytes(metadata: dict[str, str]) -> int:
    """Return the size of the user's own metadata, as S3 counts it."""
    pairs = [(key[len(_META_KEY) :], value) for key, value in metadata.items() if key.startswith(_META_KEY)]
    return sum(len(key) + len(value.encode()) for key, value in pairs)


def headers_of(entry: Entry, call: S3Call) -> dict[str, str]:
    """Return the headers of an object."""
    headers = {
        "content-type": _header_value(entry.content_type or data.CONTENT_TYPE),
        "etag": _header_value(f'"{entry.checksum}"'),
        "last-modified": format_date(clamp_to_calendar(entry.modified_ms) // 1000),
        "accept-ranges": "bytes",
        # Stored bytes are data, not pages of this server: no browser may guess their type or execute them.
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
    }
    for key, value in entry.metadata.items():
        if key.startswith(_SYSTEM_KEY):
            if _is_system_header(key[len(_SYSTEM_KEY) :]):
                headers[key[len(_SYSTEM_KEY) :]] = _header_value(value)
        elif _TOKEN.fullmatch(key) is not None:
            is_header = key.lower().startswith(META)
            name = key.lower() if is_header else META + key
            if is_header or name not in headers:
                headers[name] = encode_words(_CONTROL.sub("", value))
    for name, header in _OVERRIDES.items():
        if name in call.pairs:
            headers[header] = _header_value(call.pairs[name])
    return headers


def _is_system_header(name: str) -> bool:
    """Whether metadata may set a header. Metadata from the REST interface may have any key."""
    return name in _SYSTEM_HEADERS


def _header_value(value: str) -> str:
    """Return a user's value as UTF-8, without characters that would end a header."""
    return _CONTROL.sub("", value).encode().decode("latin-1")


_WORD_BEGIN: Final = "=?utf-8?q?"
_WORD_END: Final = "?="
_WORD_CHARACTERS_MAX: Final = 75
_PLAIN: Final = frozenset(
    "!\"#$%&'()*+,-./0123456789:;<>@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^`abcdefghijklmnopqrstuvwxyz{|}~"
)
"""Characters that stand for themselves in an encoded word."""


def encode_words(value: str) -> str:
    """Encode a header's value: as is, or as encoded words of at most 75 characters that split no character."""
    if value.isascii():
        return value
    words, word, room = [], "", _WORD_CHARACTERS_MAX - len(_WORD_BEGIN) - len(_WORD_END)
    for character in value:
        code = "_" if character == " " else character
        if character not in _PLAIN and character != " ":
            code = "".join(f"={byte:02X}" for byte in character.encode())
        if len(word) + len(code) > room:
            words.append(word)
            word = ""
        word += code
    return " ".join(_WORD_BEGIN + word + _WORD_END for word in [*words, word])


def decode_words(text: str) -> str:
    """Decode a header's value. A text without encoded words, or with broken ones, is returned as is."""
    if "=?" not in text:
        return text
    try:
        parts = decode_header(text)
        decoded = "".join(part if isinstance(part, str) else part.decode(charset or "ascii") for part, charset in parts)
        decoded.encode()  # a charset such as utf-7 may give unpaired surrogates, which could not be sent to any client
        return decoded
    except (HeaderParseError, LookupError, ValueError):
        return text
