"""Appending to a log and reading it, as tests of logs do it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.log.record import LogRecord, check_follows
from lakebed.fleet.model import LogMark
from lakebed.ids import new_uuid

TIMELINE: Final = "tenant/main"
_RNG: Final = random.Random()


def write_id() -> str:
    """A new write id."""
    return new_uuid(_RNG)


def append(log: Log, *values: bytes | None, timeline: str = TIMELINE, **settings: Any) -> int:
    """Append a row with the key ``k`` for each value."""
    return log.append(timeline, rows_of([b"k"] * len(values), values), **{"write_id": write_id(), **settings})


def values_of(log: Log, timeline: str = TIMELINE, after: int = 0, **settings: int) -> list[tuple[int, bytes | None]]:
    """LSN and value of each row that one read returns."""
    items: list[tuple[int, bytes | None]] = []
    for record in log.read(timeline, after, **settings):
        _, values = record.columns()
        items += zip(range(record.first_lsn, record.last_lsn + 1), values, strict=True)
    return items


def all_values(log: Log, timeline: str = TIMELINE, after: int = 0) -> list[tuple[int, bytes | None]]:
    """LSN and value of every row, in as many reads as are needed."""
    items: list[tuple[int, bytes | None]] = []
    while more := values_of(log, timeline, items[-1][0] if items else after):
        items += more
    return items


def check_chain(timeline: str, mark: LogMark, records: Iterable[LogRecord]) -> LogMark:
    """The position behind some records, if each continues the one before it. Raises `Corruption` (``log_forked``)."""
    for record in records:
        mark = check_follows(timeline, mark, record)
    return mark
