"""Bodies of a node's HTTP interface: what the service and its client exchange. Pure data.

Keys and values are bytes, so requests with several of them are MessagePack; a single value is the body of its reply. A
scan is an Arrow IPC stream. Everything else is JSON, as `lakebed.fleet.ports` has it.
"""

from __future__ import annotations

from typing import Final

import msgspec

API: Final = "/node/v1"

LSN_HEADER: Final = "x-lakebed-lsn"
"""Of a reply with a value: as of which LSN it was read."""

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"

BODY_BYTES_MAX: Final = 64 << 20
"""Largest request: keys of one `get_many`."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of an Arrow IPC stream: without them a reply was cut off."""


class KeysBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keys to read at one LSN."""

    keys: list[bytes]
    lsn: int | None = None
    at_least: int = 0


URL_KEY_BYTES_MAX: Final = 8 << 10
"""Longest keys that a URL has, as every proxy passes them: longer ones are in a body."""


class RangeBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A range of keys to read at one LSN."""

    start: bytes | None = None
    end: bytes | None = None
    lsn: int | None = None
    at_least: int = 0


class CheckpointBody(msgspec.Struct, frozen=True):
    """The committed transaction."""

    txn: int


class Utilization(msgspec.Struct, frozen=True):
    """How much of its memory a node uses."""

    tenant_count: int
    loaded_count: int
    """Tenants with timelines whose trees are in memory."""
    unflushed_bytes: int
    memtable_bytes_max: int
    cached_bytes: int
    cache_bytes: int
    lag_rows: int
    """Over all tenants, as far as is known."""
    problems: dict[str, str]
    """Tenants whose last step failed, with the error; at most a hundred."""
