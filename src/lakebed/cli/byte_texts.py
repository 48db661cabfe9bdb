"""Bytes on the command line: how keys and values are written and printed.

Invariants: keys and values are text, or hexadecimal or base64 with ``--encoding``. Other bytes are shown with escapes,
which are exact only in ``--format tsv``. JSON has no escape for such bytes, so it is refused without another encoding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from lakebed.cli import output, standard
from lakebed.cli.grammar import argument, option
from lakebed.errors import InvalidRequest, NotFound

_SHOWN_BYTES_MAX: Final = 40
"""Most bytes of a key or value that an error shows."""


Encoding = Literal["utf8", "hex", "base64"]
"""How bytes are spelled on the command line."""

Format = Literal["text", "tsv", "jsonl"]
"""How a scan prints rows."""

Key = Annotated[str, argument("KEY", help="The key.")]
Coding = Annotated[Encoding, option("--encoding", help="How keys and values are written here: utf8, hex or base64.")]


def print_value(key: str, value: bytes | None, *, encoding: Encoding, raw: bool, json: bool) -> None:
    """Print the value of a key. Raises `NotFound` (``key_not_found``) for None."""
    if value is None:
        raise NotFound(f"There is no key {quote(key)}.", kind="key_not_found", key=key)
    if raw:
        standard.binary_output().write(value)
    elif json:
        check_json(value, encoding)
        output.document({"key": key, "value": text_of(value, encoding)})
    else:
        output.lines([text_of(value, encoding)])  # unchanged, and not wrapped as a sentence


def print_rows(rows: Iterator[tuple[bytes, bytes]], *, format: Format, encoding: Encoding, json: bool) -> None:
    """Print keys and values as they arrive."""
    facts = ({"key": _json_text(key, encoding), "value": _json_text(value, encoding)} for key, value in rows)
    if json:
        output.document(list(facts))
    elif format == "jsonl":
        for row in facts:
            output.json_line(row)
    elif format == "tsv":
        for key, value in rows:
            line = f"{_escape(key, encoding, _FIELD)}\t{_escape(value, encoding, _FIELD)}\n"
            standard.binary_output().write(line.encode())  # exact, whatever the terminal's encoding
    else:
        cells = ((_escape(key, encoding, _CELL), _escape(value, encoding, _CELL)) for key, value in rows)
        output.grid(("key", "value"), cells, sentences=("value",), empty="No keys.")


def bytes_of(text: str, encoding: Encoding) -> bytes:
    """Parse a text as bytes. Raises `InvalidRequest`."""
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest(
            f"{quote(text)} is not written as {encoding}: write it so, or choose another --encoding.",
            kind="invalid_encoding",
        ) from error
    return text.encode("utf-8", "surrogateescape")


def text_of(body: bytes, encoding: Encoding) -> str:
    """Return bytes as text, in an encoding."""
    if encoding == "hex":
        return body.hex()
    if encoding == "base64":
        return base64.b64encode(body).decode()
    return body.decode("utf-8", "backslashreplace")


def check_json(body: bytes, encoding: Encoding) -> None:
    """Refuse bytes that JSON cannot represent, because an escape would read as the text of the escape itself."""
    if encoding != "utf8":
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        excerpt = body if len(body) <= _SHOWN_BYTES_MAX else body[:_SHOWN_BYTES_MAX] + b"..."
        raise InvalidRequest(
            f"JSON was asked for, and '{_escape(excerpt, encoding, _FIELD)}' is not UTF-8: add --encoding hex or "
            "--encoding base64.",
            kind="not_utf8",
        ) from error


def _json_text(body: bytes, encoding: Encoding) -> str:
    check_json(body, encoding)
    return text_of(body, encoding)


def quote(argument: str) -> str:
    """Return an argument in quotes, in printable form."""
    return f"'{output.printable(argument)}'"


# Control characters would move a terminal's cursor, or end a line of a file. Bytes that are not UTF-8 are decoded to
# the code points from 0xDC80 on, which no valid text contains.
_CELL: dict[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **{code: f"\\u{code:04x}" for code in range(0x80, 0xA0)},
    **{0xDC00 + code: f"\\x{code:02x}" for code in range(0x80, 0x100)},
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}


_FIELD: dict[int, str] = {**_CELL, ord("\\"): "\\\\"}


def _escape(body: bytes, encoding: Encoding, escapes: dict[int, str]) -> str:
    if encoding != "utf8":
        return text_of(body, encoding)
    return body.decode("utf-8", "surrogateescape").translate(escapes)
