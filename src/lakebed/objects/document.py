"""Checksummed JSON documents: an object on one line, which any tool can read. Pure.

Owns: the envelope; its users define the content and further members (DO NOT CHANGE)::

    {"checksum":"<16 hex digits>","format":1,"min_reader":1, ... ,"features":[],"<what>":{...}}

Invariants:
- The checksum is xxh3-64 of every byte after its closing quotation mark. The bytes up to there are compared with their
  expected values, so each byte is covered. The checksum will be at the same place in every future format, and is
  checked before anything else.
- A `min_reader` above the reader's format, or an unknown feature, field or value, raises `UnsupportedFormat`. Nothing
  unknown is ever dropped. Wrong bytes raise `Corruption` with the path.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec
import xxhash
from typing_extensions import Buffer

from lakebed.decoding import decode_json, find_unknown_part, json_decoder
from lakebed.errors import Corruption, InvalidRequest, UnsupportedFormat
from lakebed.texts import format_value

_BEFORE: Final = b'{"checksum":"'
_CHECKSUM_END: Final = len(_BEFORE) + 16


class _Header(msgspec.Struct):
    format: int
    min_reader: int
    features: list[str]


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """The members that every document has. A subclass adds the content, and further members before the content."""

    checksum: str
    format: int
    min_reader: int
    features: list[str]


E = TypeVar("E", bound=Envelope)
T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()
_headers: Final = json_decoder(_Header)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError)


class Document(Generic[E]):
    """One kind of document.

    Args:
        envelope: the type as which a document is decoded.
        what: the name of the content, such as ``manifest``, also for messages.
        header: the bytes between the checksum and the content, from the quotation mark on.
        format: the newest format that this lakebed reads.
    """

    def __init__(self, envelope: type[E], *, what: str, header: bytes, format: int) -> None:
        self._decoder = json_decoder(envelope)
        self._what = what
        self._start = _BEFORE + b"0" * 16 + header
        self._format = format

    def encode(self, content: msgspec.Struct) -> bytes:
        """Encode a document. Equal contents have equal bytes. Cost: that of encoding JSON.

        Raises `InvalidRequest` (``not_utf8``): a text in the content, such as a path, is not UTF-8.
        """
        body = bytearray(self._start)
        try:
            _encoder.encode_into(content, body, -1)
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{format_value(error.object)} has bytes that are not UTF-8, so no {self._what} can name it: rename "
                "it.",
                kind="not_utf8",
            ) from error
        body += b"}\n"
        body[len(_BEFORE) : _CHECKSUM_END] = _checksum(memoryview(body)[_CHECKSUM_END + 1 :])
        return bytes(body)

    def decode(self, body: Buffer, *, path: str) -> E:
        """Decode the document in the bytes of an object.

        Raises:
            Corruption: the bytes are not those that were written.
            UnsupportedFormat: written by a newer lakebed.
        """
        view = memoryview(body).cast("B")
        start, stated = bytes(view[: len(_BEFORE)]), bytes(view[len(_BEFORE) : _CHECKSUM_END])
        if start != _BEFORE or bytes(view[_CHECKSUM_END : _CHECKSUM_END + 1]) != b'"':
            raise Corruption(f"{path} is not a {self._what}: it does not begin with its checksum", path=path, offset=0)
        actual = _checksum(view[_CHECKSUM_END + 1 :])
        if stated != actual:
            raise Corruption(
                f"{path} is damaged: its checksum is {actual.decode()}, and it says {stated.decode('latin-1')!r}",
                path=path,
                offset=len(_BEFORE),
                expected=stated.decode("latin-1"),
                actual=actual.decode(),
            )
        try:
            envelope = self._decoder.decode(view)
        except _DECODE_ERRORS as error:
            self._check_header(view, path=path)
            unknown_part = find_unknown_part(error)
            if unknown_part is not None:
                raise _unknown_error(unknown_part, path=path) from error
            raise Corruption(f"{path} is not a {self._what}: {error}", path=path, offset=_CHECKSUM_END + 1) from error
        self._check_known(envelope, path=path)
        return envelope

    def _check_header(self, view: memoryview, *, path: str) -> None:
        """Raise `UnsupportedFormat` if the envelope requires it. The caller reports any other fault."""
        try:
            header = _headers.decode(view)
        except _DECODE_ERRORS:
            return
        self._check_known(header, path=path)

    def _check_known(self, header: _Header | Envelope, *, path: str) -> None:
        unknown_features = sorted(header.features)
        if header.min_reader > self._format or unknown_features:
            needs = f"the features {', '.join(unknown_features)}" if unknown_features else f"format {header.min_reader}"
            facts: dict[str, Any] = {"format": header.format, "features": unknown_features}
            raise UnsupportedFormat(
                f"{path} needs {needs}, which this lakebed (format {self._format}) does not know: upgrade lakebed.",
                path=path,
                **facts,
            )


def decode_object(body: Buffer, kind: type[T], *, path: str) -> T:
    """Decode a JSON object without an envelope.

    Args:
        kind: the type. It forbids unknown fields if these may change what the object means.

    Raises:
        Corruption: the bytes are not those that were written.
        UnsupportedFormat: written by a newer lakebed.
    """
    try:
        return decode_json(body, kind)
    except _DECODE_ERRORS as error:
        unknown_part = find_unknown_part(error)
        if unknown_part is None:
            raise Corruption(f"{path} is damaged: {error}.", path=path) from error
        raise _unknown_error(unknown_part, path=path) from error


def _unknown_error(unknown: tuple[str, str], *, path: str) -> UnsupportedFormat:
    part, name = unknown
    return UnsupportedFormat(
        f"{path} has a {part} {name!r} that this lakebed does not know: upgrade lakebed.", path=path, unknown=name
    )


def _checksum(view: memoryview) -> bytes:
    return b"%016x" % xxhash.xxh3_64_intdigest(view)
