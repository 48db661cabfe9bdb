"""Bodies of the log's HTTP interface, which the service and its client exchange. Pure data.

Appends and records are sent as MessagePack, because they contain bytes. The rows of an append are a log record of a
database (docs/format/wal.md) with the sequences 1, 2, .... Its checksums protect the rows on the whole way from the
client to the service.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from typing_extensions import Buffer

from lakebed.decoding import msgpack_decoder
from lakebed.errors import Corruption, InvalidRequest, LakebedError
from lakebed.fleet.log.port import APPEND_BYTES_MAX, check_append
from lakebed.fleet.log.record import rows_numbered
from lakebed.fleet.model import Natural
from lakebed.kv.wal_record import decode_record, encode_record

API: Final = "/log/v1"
APPENDS_MAX: Final = 1_024
"""Most appends in one request."""
BODY_BYTES_MAX: Final = 4 * APPEND_BYTES_MAX
"""Largest body of a request."""
WAIT_TIMELINES_MAX: Final = 65_536
"""Most timelines in one request to wait."""
WAIT_S_MAX: Final = 10.0
"""Longest wait of one request, so that waiting requests do not delay the end of a service."""


class AppendItem(msgspec.Struct, frozen=True, array_like=True):
    """One append of a request."""

    timeline: str
    record: bytes
    """The rows and the write id, from `encode_rows`."""
    expected: Natural | None = None


class AppendResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one append: an LSN, or an error."""

    lsn: int = 0
    error: str = ""
    """Class of the error; empty: no error."""
    kind: str = ""
    message: str = ""
    facts: dict[str, Any] = {}


class WaitBody(msgspec.Struct, frozen=True):
    """Timelines, each with the last LSN that the caller knows."""

    after: dict[str, Natural]
    timeout_s: Annotated[float, msgspec.Meta(ge=0)] = WAIT_S_MAX


class SealedBody(msgspec.Struct, frozen=True):
    """The last LSN of a sealed timeline."""

    last: int


class BoundsBody(msgspec.Struct, frozen=True):
    """The LSNs that a timeline has."""

    first: int
    last: int


def encode_rows(rows: pa.RecordBatch, *, write_id: str) -> bytes:
    """Encode rows to append, with their write id."""
    return encode_record(rows_numbered(rows, 1), id=rows.num_rows, epoch=0, write_id=write_id)


def decode_rows(body: Buffer) -> tuple[pa.RecordBatch, str]:
    """Decode rows and write id. Raises `InvalidRequest`."""
    try:
        record = decode_record(body, path="the append")
    except LakebedError as error:
        raise InvalidRequest(f"The rows of the append cannot be read: {error}", kind="invalid_body") from error
    if record.rows is None:
        raise InvalidRequest("The append has no rows: it has at least one.", kind="empty_append")
    try:
        record.rows.validate(full=True)  # the offsets that a client sends may be arbitrary
    except pa.ArrowException as error:
        raise InvalidRequest(f"The rows of the append cannot be read: {error}", kind="invalid_body") from error
    return record.rows, record.write_id


_APPENDS: Final = msgpack_decoder(list[AppendItem])
_BODIES: Final = msgpack_decoder(list[bytes])


def decode_appends(body: bytes) -> list[AppendItem]:
    """Decode the appends of a request. Raises `InvalidRequest`."""
    try:
        items = _APPENDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not a list of appends: {error}.", kind="invalid_body") from error
    if not 0 < len(items) <= APPENDS_MAX:
        raise InvalidRequest(
            f"The request has {len(items):,} appends, and 1 to {APPENDS_MAX:,} are possible.", kind="invalid_body"
        )
    return items


def decode_item(item: AppendItem) -> tuple[pa.RecordBatch, str]:
    """Decode and check the rows and the write id of one append. Raises `InvalidRequest`."""
    rows, write_id = decode_rows(item.record)
    check_append(item.timeline, rows, write_id=write_id, expected=item.expected)
    return rows, write_id


def encode_bodies(bodies: list[bytes]) -> bytes:
    """Encode records in their stored form."""
    return msgspec.msgpack.encode(bodies)


def decode_bodies(body: bytes) -> list[bytes]:
    """Decode records in their stored form. Raises `Corruption`."""
    try:
        return _BODIES.decode(body)
    except msgspec.MsgspecError as error:
        raise Corruption(f"The reply of the log is not a list of records: {error}.", path="the reply") from error
