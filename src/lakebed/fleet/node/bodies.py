"""Bodies of a node's HTTP interface, which the service and its client exchange. Pure data.

Keys and values are bytes, so requests with several of them are MessagePack. A single value is the body of its reply. A
scan is an Arrow IPC stream. All other bodies are JSON of the types in `lakebed.fleet.ports`.
"""

from __future__ import annotations

from typing import Final

import msgspec

API: Final = "/node/v1"

LSN_HEADER: Final = "x-lakebed-lsn"
"""Header of a reply with a value: the LSN of the state that was read."""

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"

BODY_BYTES_MAX: Final = 64 << 20
"""Largest request: the keys of one `get_many`."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of an Arrow IPC stream. A reply without them was cut off."""


class KeysBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keys to read at one LSN."""

    keys: list[bytes]
    lsn: int | None = None
    at_least: int = 0


URL_KEY_BYTES_MAX: Final = 8 << 10
"""Longest key in a URL, which every proxy passes. Longer keys are in a body."""


class RangeBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A range of keys to read at one LSN."""

    start: bytes | None = None
    end: bytes | None = None
    lsn: int | None = None
    at_least: int = 0


class CheckpointBody(msgspec.Struct, frozen=True):
    """The transaction that was committed."""

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
    """Rows in the log that are not ingested, for all tenants, as far as is known."""
    problems: dict[str, str]
    """The error of each tenant whose last step failed; at most a hundred tenants."""
