"""Entries to be staged, as columns: from pairs to an Arrow stream, and from a request's body back to a table.

Owns: the schema of a staging message and its two forms, an Arrow IPC stream or a list of JSON rows. Invariants: a
message is checked as a whole before any of it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import pyarrow as pa

from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest
from lakebed.repo.model.model import Entry
from lakebed.texts import format_value

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"

_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("address", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("checksum", pa.string()),
        pa.field("modified_ms", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("metadata", pa.map_(pa.string(), pa.string())),
    ]
)


class StageRow(msgspec.Struct, frozen=True):
    """One object to be staged, as a row of JSON."""

    path: str
    address: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
    checksum: str
    modified_ms: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
    content_type: str = "application/octet-stream"
    metadata: dict[str, str] = {}


def check_pairs(entries: Iterable[tuple[str, Entry]]) -> list[tuple[str, Entry]]:
    """The entries as a list, if all are pairs of path and entry. Raises `InvalidRequest` (``wrong_type``)."""
    pairs = list(entries) if isinstance(entries, Iterable) else [entries]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(
                "Pairs of path and Entry are staged, or an Arrow table with a column for each of their fields, and "
                f"{format_value(pair)} is no pair.",
                kind="wrong_type",
            )
    return pairs


def columns_of(entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> pa.Table:
    """Pairs of path and entry as a table; a table unchanged.

    Raises:
        InvalidRequest: kind ``wrong_type``, ``invalid_entry``.
    Cost: 1 us an entry.
    """
    if isinstance(entries, pa.Table):
        return entries
    if isinstance(entries, pa.RecordBatch):
        return pa.Table.from_batches([entries])
    columns: tuple[list[object], ...] = tuple([] for _ in _SCHEMA)
    for path, entry in check_pairs(entries):
        if not isinstance(entry, Entry):
            raise InvalidRequest(
                f"An Entry is staged, and {type(entry).__name__} was given for {path!r}.", kind="wrong_type"
            )
        row = (path, entry.address, entry.size_bytes, entry.checksum, entry.modified_ms, entry.content_type)
        for column, value in zip(columns, (*row, list(entry.metadata.items())), strict=True):
            column.append(value)
    try:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"The entries cannot be sent: use Unicode text and 64-bit numbers ({error}).",
            kind="invalid_entry",
        ) from error
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def stream_of(table: pa.Table) -> bytes:
    """A table as an Arrow stream. Cost: a copy."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def table_of(body: bytes, *, content_type: str) -> pa.Table:
    """The table in a body.

    Args:
        content_type: `ARROW_STREAM`; anything else: a JSON list of `StageRow`.

    Raises:
        InvalidRequest: kind ``invalid_body``.
    Cost: for Arrow almost none; for JSON 2 us a row.
    """
    if content_type.partition(";")[0].strip().lower() == ARROW_STREAM:
        return _from_arrow(body)
    try:
        rows = decode_json(body, list[StageRow])
        pairs = ((row.path, Entry(*(getattr(row, name) for name in _SCHEMA.names[1:]))) for row in rows)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"The body is neither an Arrow stream nor a JSON list of objects to stage: {error}.", kind="invalid_body"
        ) from error
    return columns_of(pairs)


def _from_arrow(body: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise InvalidRequest(f"The body is not an Arrow stream: {error}.", kind="invalid_body") from error
    return table
