"""Uploads as forms: the bytes of the field ``content`` of a ``multipart/form-data`` body, as they arrive.

Other fields are skipped. Invariant: at most one piece of the body is in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from python_multipart.multipart import MultipartParser, parse_options_header

from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM: Final = "multipart/form-data"
_FIELD: Final = b"content"


class _Form:
    """The parser's callbacks: headers of the current part, bytes of the wanted part."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.seen = False
        self.ended = False
        self.content_type: str | None = None
        self._wanted = False
        self._name = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}

    def on_part_begin(self) -> None:
        self._headers = {}

    def on_header_field(self, piece: bytes, start: int, end: int) -> None:
        self._name += piece[start:end]

    def on_header_value(self, piece: bytes, start: int, end: int) -> None:
        self._value += piece[start:end]

    def on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._wanted = options.get(b"name") == _FIELD and not self.seen
        if self._wanted:
            self.seen = True
            value = self._headers.get(b"content-type")
            self.content_type = None if value is None else value.decode("latin-1")

    def on_part_data(self, piece: bytes, start: int, end: int) -> None:
        if self._wanted:
            self.taken.append(piece[start:end])

    def on_part_end(self) -> None:
        self._wanted = False

    def on_end(self) -> None:
        self.ended = True

    def take(self) -> bytes:
        """The bytes since the last call."""
        pieces, self.taken = self.taken, []
        return b"".join(pieces)


async def form_content(chunks: AsyncIterator[bytes], *, content_type: str) -> tuple[AsyncIterator[bytes], str | None]:
    """The bytes of the field ``content``, and the content type that the field names.

    Args:
        content_type: the header of the form, with the boundary.

    Raises:
        InvalidRequest: kind ``invalid_body``: the body is not a form, is truncated, or has no such field.
    """
    form = _Form()
    callbacks: MultipartCallbacks = {
        "on_part_begin": form.on_part_begin,
        "on_header_field": form.on_header_field,
        "on_header_value": form.on_header_value,
        "on_header_end": form.on_header_end,
        "on_headers_finished": form.on_headers_finished,
        "on_part_data": form.on_part_data,
        "on_part_end": form.on_part_end,
        "on_end": form.on_end,
    }
    parser = _parser(content_type, callbacks)
    source = aiter(chunks)

    async def advance() -> bool:
        chunk = await anext(source, None)
        try:
            if chunk is None:
                if not form.ended:
                    raise _invalid("it is truncated")
                return False
            parser.write(chunk)
        except ValueError as error:  # the base class of the parser's errors
            raise _invalid(str(error)) from error
        return True

    more = True
    while more and not form.seen:
        more = await advance()
    if not form.seen:
        raise _invalid("it has no field 'content'")

    async def content() -> AsyncIterator[bytes]:
        going = more
        while True:
            pieces = form.take()
            if pieces:
                yield pieces
            if not going:
                return
            going = await advance()

    return content(), form.content_type


def _parser(content_type: str, callbacks: MultipartCallbacks) -> MultipartParser:
    _, options = parse_options_header(content_type.encode("latin-1"))
    boundary = options.get(b"boundary")
    if not boundary:
        raise _invalid("its Content-Type names no boundary")
    try:
        return MultipartParser(boundary, callbacks)
    except ValueError as error:  # it is too long
        raise _invalid(str(error)) from error


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"The form cannot be read: {why}.", kind="invalid_body")
