"""Reading and writing many ranges: what happens at the same time, and what is counted."""

from __future__ import annotations

import gc
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from lakebed.errors import Corruption
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.format import decode_tail
from lakebed.lsm.model import FileMeta
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.committed.range_files import AHEAD_COUNT
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import encode_entries
from lakebed.repo.model.layout import range_path
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RangeOptions
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")

WAIT_S_MAX = 30.0
"""Longest wait for a second call; it never passes where calls are made at the same time."""


class MeetingStore(StoreWrapper):
    """Holds each call of a kind on ranges until another one is there too, once; counts those at the same time."""

    def __init__(self, inner: ObjectStore, *, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind
        self._lock = threading.Lock()
        self._inside = 0
        self.inside_max = 0
        self.have_met = threading.Event()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Wait for company."""
        if call.kind != self._kind or not call.path.startswith("ranges/"):
            return perform()
        with self._lock:
            self._inside += 1
            self.inside_max = max(self.inside_max, self._inside)
            if self._inside > 1:
                self.have_met.set()
        self.have_met.wait(WAIT_S_MAX)
        try:
            return perform()
        finally:
            with self._lock:
                self._inside -= 1


def test_handles_of_older_ranges_are_not_kept_for_ever(opened_on: Callable[..., Committed]) -> None:
    """However many ranges a process has read, it holds handles of a few thousand."""
    files = opened_on(open_store("memory://handles")).files
    for number in range(10_000):
        file = FileMeta(f"range-{number}", 1, 0, 1, b"a", b"b", 0, 0)
        assert files.ranges.reader(file).meta is file
        assert files.metaranges.reader(file).meta is file
    gc.collect()
    assert 0 < sum(isinstance(each, FileReader) for each in gc.get_objects()) < 5_000


def test_ranges_are_put_at_the_same_time(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """While one range is put the next is, too."""
    store = MeetingStore(repository_store, kind="put")
    ref = rows.write(opened_on(store), rows.values(range(500)))
    assert store.have_met.is_set()
    assert len(rows.read(opened_on(repository_store).open(ref))) == 500


def test_many_ranges_are_read_ahead(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """Who reads many ranges has the next ones read meanwhile, though no more than `AHEAD_COUNT`."""
    ref = rows.write(opened_on(repository_store), rows.values(range(1000)))
    committed, store = opened_on(repository_store), MeetingStore(repository_store, kind="get")
    ranges = committed.open(ref).ranges()
    result = [batch for batches in opened_on(store).files.each_whole(ranges) for batch in batches]
    assert sum(batch.num_rows for batch in result) == 1000
    assert store.have_met.is_set()
    assert store.inside_max <= AHEAD_COUNT + 1


def test_ranges_that_change_are_read_ahead(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """While changes are made to one range the next ones that change are read."""
    values = rows.values(range(3000))
    base = rows.write(opened_on(repository_store), values)
    store = MeetingStore(repository_store, kind="get")
    changes = rows.values(range(0, 3000, 200), tag=1)
    result = apply_changes(opened_on(store), base, Changes((), lambda: rows.batches(changes)))
    assert store.have_met.is_set()
    assert rows.read(opened_on(repository_store).open(result.ref)) == {**values, **changes}


def test_reading_ahead_takes_items_as_they_are_needed(committed: Committed) -> None:
    """Of endless work only what is next is begun, and results come in its order."""
    begun: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            begun.append(number)
            yield number
            number += 1

    results = committed.files.ahead(lambda number: number * number, endless())
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(begun) <= 5 + AHEAD_COUNT + 1


def test_counts_are_of_distinct_ranges_inside_the_block(rows: Any, committed: Committed) -> None:
    """Blocks may overlap; a range that is read twice counts once, and one that is read behind the block does not."""
    ref = rows.write(committed, rows.values(range(300)))
    metarange = committed.open(ref)
    item, other = metarange.ranges()[:2]
    with committed.count() as outer:
        list(metarange.rows_of(item))
        with committed.count() as inner:
            list(metarange.rows_of(item))
            metarange.get(other.file.first_key)
            metarange.get_many([item.file.first_key])
        rows.write(committed, rows.values(range(10)))
    metarange.get(metarange.ranges()[3].file.first_key)
    assert (inner.ranges_read, inner.ranges_written) == (2, 0)
    assert outer.ranges_read == 2
    assert outer.ranges_written >= 1


def test_damage_of_any_block_is_told_where_it_is(rows: Any, opened_on: Callable[..., Committed]) -> None:
    """A whole range is read in runs of blocks, some stored as they are: its rows are all there, or a block is named."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    options = RangeOptions(entry_count_min=4_000, entry_count_max=4_000, raggedness=1 << 40, block_bytes=512)
    values = rows.values(range(4_000))
    chance = random.Random(1)
    texts = [chance.randbytes(1_000).hex() if number % 900 < 50 else "" for number in range(4_000)]
    entries = [Entry(f"s3://a/{number}", 1, "c", 0, metadata={"of": text}) for number, text in enumerate(texts)]
    values = dict(zip(values, encode_entries(entries), strict=True))
    committed = opened_on(store, options=options)
    [meta] = committed.open(rows.write(committed, values)).ranges()
    path = range_path(meta.file.id)
    stored = bytes(store.get(path))
    tail = decode_tail(memoryview(stored)[meta.file.tail_offset :], meta=meta.file, path=path)
    offsets, lengths = tail.offsets.tolist(), tail.lengths.tolist()
    assert len(offsets) > 150

    read = {}
    for batch in committed.files.whole(meta):
        read.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    assert read == values, "other rows"
    for offset, length in zip(offsets, lengths, strict=True):
        damaged = bytearray(stored)
        damaged[offset + chance.randrange(length)] ^= 1
        store.put(path, damaged)
        with pytest.raises(Corruption) as caught:
            committed.files.whole(meta)
        assert (caught.value.facts["path"], caught.value.facts["offset"]) == (path, offset)


def test_a_batch_of_a_large_range_is_small(rows: Any, opened_on: Callable[..., Committed]) -> None:
    """Of ranges with long metadata many are read ahead, and a window of a merge has a batch of each side."""
    committed = opened_on(open_store(f"memory://{uuid.uuid4().hex}"), options=RangeOptions())
    entry = Entry("s3://a/b", 1, "c", 0, metadata={"of": "x" * 4_000})
    values = dict.fromkeys(rows.values(range(4_000)), encode_entries([entry])[0])
    [meta] = committed.open(rows.write(committed, values)).ranges()
    batches = committed.files.whole(meta)
    assert sum(batch.num_rows for batch in batches) == 4_000
    assert max(batch.get_total_buffer_size() for batch in batches) < 4 << 20
    assert len(batches) < 10
