"""The memtable: a log of columns, an index, and sorted pieces that grow."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

from lakebed.errors import InternalError
from lakebed.lsm import memtable as module
from lakebed.lsm.memtable import ROW_OVERHEAD_BYTES, Memtable
from lakebed.lsm.model import ROW_SCHEMA, Kind, Row


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    """All rows of some batches, by key and newest first."""
    rows = [Row(**row) for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row.key, -row.sequence))


def filled() -> Memtable:
    """One row of each kind, and two versions of a key; sequences 10 to 15."""
    memtable = Memtable(10)
    memtable.put(b"b", b"1")
    memtable.put(b"a", b"2", 99)
    memtable.delete(b"c")
    memtable.merge(b"b", b"3")
    memtable.put(b"d", b"")
    memtable.merge(b"b", b"4")
    return memtable


def test_an_empty_memtable() -> None:
    """It has no rows, and its last sequence is the one before its first."""
    memtable = Memtable(7)
    assert memtable.is_empty
    assert (memtable.row_count, memtable.size_bytes, memtable.last_sequence) == (0, 0, 6)
    assert memtable.sorted() == []
    assert memtable.log(0, 0).num_rows == 0
    assert memtable.rows_of(b"a") == []
    assert memtable.newest_sequence(b"a") is None


def test_rows_of_a_key() -> None:
    """Newest first, down to the first that is not an operand, and none above the sequence asked for."""
    memtable = filled()
    put = Row(b"b", 10, Kind.PUT, b"1", None)
    third = Row(b"b", 13, Kind.MERGE, b"3", None)
    fourth = Row(b"b", 15, Kind.MERGE, b"4", None)
    assert memtable.rows_of(b"b") == [fourth, third, put]
    assert memtable.rows_of(b"b", 14) == [third, put]
    assert memtable.rows_of(b"b", 12) == [put]
    assert memtable.rows_of(b"b", 9) == []
    assert memtable.rows_of(b"a") == [Row(b"a", 11, Kind.PUT, b"2", 99)]
    assert memtable.rows_of(b"c") == [Row(b"c", 12, Kind.DELETE, b"", None)]
    assert memtable.rows_of(b"d") == [Row(b"d", 14, Kind.PUT, b"", None)]
    assert memtable.newest_sequence(b"b") == 15
    assert list(memtable.written_since(12)) == [b"b", b"d", b"b"]
    assert list(memtable.written_since(3)) == memtable.keys


def test_the_log_is_what_was_written() -> None:
    """Rows by position, in the order of writing, in the shape of the log on the store."""
    batch = filled().log(1, 4)
    assert batch.schema.equals(ROW_SCHEMA)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (b"a", 11, 0, b"2", 99),
        (b"c", 12, 1, b"", None),
        (b"b", 13, 2, b"3", None),
    ]


def test_writing_in_bulk_is_writing_one_by_one() -> None:
    """`extend` leaves the same memtable as single calls, with and without repeated keys, kinds and ends."""
    rng = random.Random(5)
    for keys_known in (3, 10_000):
        single, bulk = Memtable(1), Memtable(1)
        for _ in range(30):
            count = rng.randrange(12)
            keys = [b"%d" % rng.randrange(keys_known) for _ in range(count)]
            kinds = [rng.choice([Kind.PUT, Kind.PUT, Kind.DELETE, Kind.MERGE]) for _ in keys]
            ends = [rng.choice([None, 5]) if kind == Kind.PUT else None for kind in kinds]
            values = [b"" if kind == Kind.DELETE else b"v%d" % rng.randrange(99) for kind in kinds]
            for key, kind, value, end in zip(keys, kinds, values, ends, strict=True):
                if kind == Kind.PUT:
                    single.put(key, value, end)
                elif kind == Kind.MERGE:
                    single.merge(key, value)
                else:
                    single.delete(key)
            bulk.extend(keys, values, [int(kind) for kind in kinds], ends)
        for name in ("keys", "values", "index", "older", "special", "payload_bytes"):
            assert getattr(bulk, name) == getattr(single, name), name
        assert bulk.size_bytes == bulk.payload_bytes + ROW_OVERHEAD_BYTES * bulk.row_count


def test_bulk_tombstones_without_kinds() -> None:
    """None as a value is a tombstone."""
    memtable = Memtable(1)
    memtable.extend([b"a", b"b"], [b"1", None])
    assert [row.kind for key in (b"a", b"b") for row in memtable.rows_of(key)] == [Kind.PUT, Kind.DELETE]
    with pytest.raises(InternalError):
        memtable.extend([b"a"], [])


def test_sorted_pieces_are_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever scans and writes alternate: pieces are sorted, complete, cut to range and sequence, and few."""
    monkeypatch.setattr(module, "TAIL_ROW_COUNT_MAX", 8)
    rng = random.Random(3)
    memtable = Memtable(100)
    written: list[Row] = []
    for _ in range(600):
        key, value = b"%03d" % rng.randrange(200), b"%d" % rng.randrange(9)
        written.append(Row(key, 100 + len(written), Kind.PUT, value, None))
        memtable.put(key, value)
        if rng.random() < 0.3:
            sequence = rng.choice([None, rng.randrange(90, 100 + len(written))])
            start, end = (
                rng.choice([None, b"%03d" % rng.randrange(200)]),
                rng.choice([None, b"%03d" % rng.randrange(200)]),
            )
            pieces = memtable.sorted(start, end, sequence=sequence)
            assert len(pieces) <= 12
            for piece in pieces:
                assert piece.num_rows
                assert [Row(**row) for row in piece.to_pylist()] == rows_of([piece])
            expected = [
                row
                for row in written
                if (sequence is None or row.sequence <= sequence)
                and (start is None or row.key >= start)
                and (end is None or row.key < end)
            ]
            assert rows_of(pieces) == sorted(expected, key=lambda row: (row.key, -row.sequence))


@pytest.mark.parametrize("part_count_max", [0, 6, 1000])
def test_rows_whose_keys_lie_together_are_not_sorted_again(
    monkeypatch: pytest.MonkeyPatch, part_count_max: int
) -> None:
    """They go between the others in a few parts, the newest row of a key first; in too many parts all are sorted."""
    monkeypatch.setattr(module, "TAIL_ROW_COUNT_MAX", 8)
    monkeypatch.setattr(module, "_PARTS_MAX", part_count_max)
    sorted_counts: list[int] = []
    sort_rows = module.sort_rows

    def count_sorted(rows: pa.RecordBatch, *, log: Sequence[bytes] = ()) -> object:
        sorted_counts.append(rows.num_rows)
        return sort_rows(rows, log=log)

    monkeypatch.setattr(module, "sort_rows", count_sorted)
    rng = random.Random(5)
    memtable = Memtable(1)
    written: list[Row] = []
    for number in range(12):
        keys = [b"%c/%03d" % (rng.choice(b"acegz"), rng.randrange(40)) for _ in range(2)]
        keys += [b"%c/%03d" % (b"bdfbdfacegza"[number], rng.randrange(40)) for _ in range(30)]
        for key in keys:
            written.append(Row(key, 1 + len(written), Kind.PUT, b"%d" % number, None))
        memtable.extend(keys, [b"%d" % number] * len(keys))
        for piece in memtable.sorted():
            assert [Row(**row) for row in piece.to_pylist()] == rows_of([piece])
        assert rows_of(memtable.sorted()) == sorted(written, key=lambda row: (row.key, -row.sequence))
    assert (max(sorted_counts) > 32) == (part_count_max < 1000)


def test_pieces_stay_below_arrows_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than one column can hold become several pieces."""
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", 5_000)
    memtable = Memtable(1)
    for number in range(600):
        memtable.put(b"%04d" % (number * 7 % 600), b"x" * 96)
    pieces = memtable.sorted()
    assert len(pieces) >= 12
    assert len(rows_of(pieces)) == 600


def test_a_reader_without_the_lock_sees_whole_rows() -> None:
    """While one thread writes, another finds by index and by scan only rows that are complete."""
    memtable = Memtable(1)
    total, wrong = 30_000, []

    def read() -> None:
        while memtable.row_count < total:
            sequence = memtable.last_sequence
            rows = [row for batch in memtable.sorted(b"5", b"6", sequence=sequence) for row in batch.to_pylist()]
            wrong.extend(row for row in rows if row["value"] != row["key"] * 2 or row["sequence"] > sequence)
            for key in list(memtable.keys[-3:]):
                wrong.extend(row for row in memtable.rows_of(key) if row.value != key * 2)

    reader = threading.Thread(target=read)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        reader.start()
        for number in range(total):
            key = b"%d" % (number % 9_000)
            memtable.put(key, key * 2)
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_were_taken_back_are_as_never_written(seed: int) -> None:
    """Lookups and sorted forms have all other rows and no more, whatever was sorted before; the log's rows stay put."""
    rng = random.Random(seed)
    memtable, rows = Memtable(5), dict[int, Row]()
    for _ in range(6):
        for _ in range(rng.choice([3, 40, 700])):
            position = memtable.row_count
            key = b"%03d" % rng.randrange(90)
            kind = rng.choice([Kind.PUT, Kind.PUT, Kind.DELETE, Kind.MERGE])
            value = b"" if kind is Kind.DELETE else b"%d" % position
            memtable.extend([key], [value], [kind], [None])
            rows[position] = Row(key, 5 + position, int(kind), value, None)
        if rng.random() < 0.6:
            memtable.sorted()
        start = rng.randrange(memtable.row_count)
        end = min(memtable.row_count, start + rng.choice([1, 7, 300, 2_000]))
        memtable.take_back(start, end)
        rows = {position: row for position, row in rows.items() if not start <= position < end}
        assert rows_of(memtable.sorted()) == sorted(rows.values(), key=lambda row: (row.key, -row.sequence))
        limit = 5 + rng.randrange(memtable.row_count)
        for key in (b"%03d" % number for number in range(90)):
            versions = [row for row in reversed(rows.values()) if row.key == key]
            assert memtable.newest_sequence(key) == (versions[0].sequence if versions else None)
            wanted: list[Row] = []
            for row in (row for row in versions if row.sequence <= limit):
                wanted.append(row)
                if row.kind != Kind.MERGE:
                    break
            assert memtable.rows_of(key, limit) == wanted
            within = [row for row in rows.values() if row.key >= key and row.sequence <= limit]
            if key[-1:] == b"0":
                result = rows_of(memtable.sorted(key, sequence=limit))
                assert result == sorted(within, key=lambda row: (row.key, -row.sequence))
    assert memtable.last_sequence == 4 + memtable.row_count
    memtable.take_back(0, memtable.row_count)
    assert rows_of(memtable.sorted()) == []
    assert memtable.index == {}


def test_ordered_keys_are_every_key_once() -> None:
    """After any count of new rows, few or many, repeated ones included."""
    rng, memtable, count = random.Random(3), Memtable(1), 0
    for size in (1, 0, 200, 300, 5000, 3, 40, 900, 1):
        some = [b"%05d" % rng.randrange(9000) for _ in range(size)]
        memtable.extend(some, [b"v"] * size)
        keys, late = memtable.order_keys()
        count += size
        assert memtable.row_count == count
        assert keys == sorted(keys)
        assert late == sorted(late)
        assert sorted(keys + late) == sorted(memtable.index)
