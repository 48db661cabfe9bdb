"""States of a repository as dictionaries, and as metaranges of many small ranges.

Owns: the conversion between both. For tests of committed data, whose promises are stated of dictionaries and kept by
ranges and windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from lakebed.lsm.cache import BlockCache
from lakebed.lsm.columns import keys_of
from lakebed.objects import open_store
from lakebed.repo.committed.merge import MergeOutcome, merge_metaranges
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import encode_entry
from lakebed.repo.model.model import Entry, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.runtime import Environment

SMALL_RANGES: Final = RangeOptions(entry_count_min=2, raggedness=6, entry_count_max=24, block_bytes=512)
"""Some six entries a range."""
TINY_RANGES: Final = RangeOptions(entry_count_min=1, raggedness=1, entry_count_max=1)
"""One entry a range."""

_numbers: Final = itertools.count()

State = Mapping[bytes, bytes]


@contextmanager
def open_committed(ranges: RangeOptions = SMALL_RANGES) -> Iterator[Committed]:
    """The committed data of a new repository in memory."""
    store = open_store(f"memory://repository-state-{next(_numbers)}")
    committed = Committed(store, options=ranges, cache=BlockCache(8 << 20), environment=Environment())
    try:
        yield committed
    finally:
        committed.close()


def entry_value(content: object, *, place: object = "") -> bytes:
    """The value of an entry that is the same as others of the same content, wherever its bytes are."""
    return encode_entry(Entry(f"data/{content}-{place}", 1, f"checksum of {content}", 0))


def write_state(committed: Committed, state: Mapping[bytes, bytes]) -> MetarangeRef:
    """The metarange of paths and values."""
    writer = committed.writer()
    paths = sorted(state)
    if paths:
        writer.write_rows(rows_of(paths, [state[path] for path in paths]))
    return writer.finish()


def read_state(committed: Committed, ref: MetarangeRef) -> dict[bytes, bytes]:
    """Paths and values of a metarange."""
    return {
        path: value
        for batch in committed.open(ref).rows()
        for path, value in zip(keys_of(batch.column(0)), keys_of(batch.column(1)), strict=True)
    }


def many(count: int, value: bytes = entry_value("x")) -> dict[bytes, bytes]:
    """So many paths with the same entry."""
    return {f"f/{number:06}".encode(): value for number in range(count)}


def merge(committed: Committed, base: State, source: State, destination: State, **options: Any) -> MergeOutcome:
    """Merge three dictionaries."""
    return merge_metaranges(
        committed,
        base=write_state(committed, base),
        source=write_state(committed, source),
        destination=write_state(committed, destination),
        **options,
    )


def merged(committed: Committed, outcome: MergeOutcome) -> dict[bytes, bytes]:
    """The dictionary that came of a merge without conflicts."""
    assert outcome.ref is not None
    return read_state(committed, outcome.ref)
