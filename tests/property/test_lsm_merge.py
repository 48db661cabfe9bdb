"""Laws of merging, reading and compacting rows, against a model that is a few lines of plain Python."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.lsm import merge as merging
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.merge import merge_windows
from lakebed.lsm.model import ROW_SCHEMA, FileSet, Kind, Row, Run
from lakebed.lsm.operators import MergeOperator, find_operator
from lakebed.lsm.resolve import compact_rows, visible
from lakebed.lsm.row_merge import merge_rows
from lakebed.lsm.view import View
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import seed_count
from lakebed.testing.clock import ManualClock
from worlds.rows import resolve_rows

NOW_MS = 1_000
LATER_MS = (NOW_MS, NOW_MS + 4, NOW_MS + 50)
"""Times at which reads happen after a compaction at `NOW_MS`."""


def brackets(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """One pair of brackets an operand."""
    value = b"-" if base is None else base
    for operand in operands:
        value = b"(" + value + b" " + operand + b")"
    return value


BRACKETS = MergeOperator("brackets", brackets)
"""Distinguishes every order, and operands with a base from those without: not associative."""

OPERATORS = [BRACKETS, find_operator("append"), find_operator("max"), find_operator("last")]

KEYS = st.sampled_from([b"a", b"a\0", b"long key number 1", b"long key number 2"])


@st.composite
def histories(draw: st.DrawFn, *, size_max: int = 24) -> list[Row]:
    """Rows with ascending sequences, of every kind, some with an end before, at or after `NOW_MS`."""
    rows = []
    for sequence in range(1, draw(st.integers(0, size_max)) + 1):
        kind = draw(st.sampled_from([Kind.PUT, Kind.PUT, Kind.MERGE, Kind.MERGE, Kind.DELETE]))
        can_end = kind == Kind.PUT or (kind == Kind.MERGE and draw(st.integers(0, 9)) == 0)
        expires = draw(st.sampled_from([None, None, NOW_MS - 1, NOW_MS, NOW_MS + 3])) if can_end else None
        value = b"" if kind == Kind.DELETE else b"%d" % sequence
        rows.append(Row(draw(KEYS), sequence, int(kind), value, expires))
    return rows


def split(rows: Sequence[Row], cuts: Sequence[int]) -> list[list[Row]]:
    """The history in pieces, oldest first; some may be empty."""
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [list(rows[low:high]) for low, high in pairwise(places)]


def ordered(rows: Sequence[Row]) -> list[Row]:
    """By key, newest first."""
    return sorted(rows, key=lambda row: (row.key, -row.sequence))


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """A batch of `ROW_SCHEMA` in the given order."""
    return pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=ROW_SCHEMA)


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a table."""
    return [Row(**row) for row in table.to_pylist()]


def source(rows: Sequence[Row], size: int, *, reverse: bool = False) -> Iterator[pa.RecordBatch]:
    """Sorted batches of `size` rows, in the order in which a file would give them."""
    inside = ordered(rows)
    batches = [batch(inside[at : at + size]) for at in range(0, len(inside), size)]
    return iter(batches[::-1] if reverse else batches)


def merged(sources: Sequence[Iterator[pa.RecordBatch]], *, reverse: bool = False) -> pa.Table:
    """All windows as one table, ascending."""
    tables = list(merge_windows(sources, reverse=reverse))
    return pa.concat_tables([ROW_SCHEMA.empty_table(), *(tables[::-1] if reverse else tables)])


def model_read(rows: Sequence[Row], sequence: int, now_ms: int, operator: MergeOperator) -> dict[bytes, bytes]:
    """What is visible, by the definition."""
    outcome: dict[bytes, bytes] = {}
    for key in sorted({row.key for row in rows}):
        value: bytes | None = None
        operands: list[bytes] = []
        # From the oldest to the newest: each row acts on what the ones before it have left.
        for row in sorted(
            (row for row in rows if row.key == key and row.sequence <= sequence), key=lambda r: r.sequence
        ):
            ended = row.expires_at_ms is not None and row.expires_at_ms <= now_ms
            if row.kind == Kind.MERGE:
                operands += [] if ended else [row.value]
            else:
                operands = []
                value = row.value if row.kind == Kind.PUT and not ended else None
        result = operator.combine(key, value, operands) if operands else value
        if result is not None:
            outcome[key] = result
    return outcome


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few rows, so that small examples have many of them."""
    monkeypatch.setattr(merging, "FIRST_ROW_COUNT", 1)
    monkeypatch.setattr(merging, "WINDOW_ROW_COUNT", 4)
    monkeypatch.setattr(merging, "WINDOW_GROWTH", 2)


LAW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=seed_count(10))


@LAW
@given(
    histories(size_max=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(1, 7),
    st.sampled_from([None, 1, 200, 1000]),
    st.booleans(),
)
def test_windows_are_all_rows_in_order(
    rows: list[Row], cuts: list[int], size: int, size_bytes: int | None, reverse: bool
) -> None:
    """Every row comes out once and sorted, in windows that share no key, for any sources and bound."""
    pieces = split(rows, cuts)
    sources = [source(piece, size, reverse=reverse) for piece in pieces]
    windows = list(merge_windows(sources, reverse=reverse, size_bytes=size_bytes))
    assert all(window.num_rows for window in windows)
    tables = [rows_of(window) for window in (windows[::-1] if reverse else windows)]
    assert [row for table in tables for row in table] == ordered(rows)
    for low, high in pairwise(tables):
        assert low[-1].key < high[0].key


@LAW
@given(histories(), st.integers(0, 24), st.integers(0, 24), st.integers(1, 5))
def test_merging_is_associative(rows: list[Row], first: int, second: int, size: int) -> None:
    """(a + b) + c = a + (b + c), and the row-by-row way says the same."""
    a, b, c = split(rows, [first, second])
    left = merged([iter(merged([source(a, size), source(b, size)]).to_batches()), source(c, size)])
    right = merged([source(a, size), iter(merged([source(b, size), source(c, size)]).to_batches())])
    assert rows_of(left) == rows_of(right) == ordered(rows)
    by_row = merge_rows([batch(ordered(piece)) for piece in (a, b, c) if piece])
    assert [row for _, versions in by_row for row in versions] == ordered(rows)


@LAW
@given(histories(), st.integers(0, 25), st.sampled_from(LATER_MS), st.sampled_from(OPERATORS), st.booleans())
def test_visible_is_what_the_definition_says(
    rows: list[Row], sequence: int, now_ms: int, operator: MergeOperator, doubled: bool
) -> None:
    """Columns and rows resolve as the definition does, at any sequence and time; a repeated row changes nothing."""
    window = merged([source(rows, 3), source(rows[::2] if doubled else [], 2)])
    expected = model_read(rows, sequence, now_ms, operator)
    table = visible(window, sequence=sequence, now_ms=now_ms, operator=operator)
    assert list(zip(*table.to_pydict().values(), strict=True)) == sorted(expected.items())
    for key, versions in merge_rows(window.to_batches()):
        seen = [row for row in versions if row.sequence <= sequence]
        assert resolve_rows(seen, now_ms=now_ms, operator=operator) == expected.get(key)


def random_history(rng: random.Random, size_max: int) -> list[Row]:
    """As `histories`, with every case about equally often."""
    rows = []
    kinds = [Kind.PUT, Kind.DELETE, *[Kind.MERGE] * rng.choice([1, 2, 20])]
    for sequence in range(1, rng.randint(1, size_max) + 1):
        kind = rng.choice(kinds)
        can_end = kind == Kind.PUT or (kind == Kind.MERGE and rng.random() < 0.05)
        expires = rng.choice([None, NOW_MS - 1, NOW_MS, NOW_MS + 3]) if can_end else None
        value = b"" if kind == Kind.DELETE else b"%d" % sequence
        rows.append(Row(rng.choice([b"a", b"a\0", b"b"]), sequence, int(kind), value, expires))
    return rows


@pytest.mark.parametrize("history_count", [1_000, pytest.param(5_000, marks=pytest.mark.long)])
def test_compaction_changes_no_read(history_count: int) -> None:
    """Compacting any neighbouring pieces leaves every read as it was that was promised, now and later."""
    met: Counter[str] = Counter()
    for seed in range(history_count):
        rng = random.Random(seed)
        rows = random_history(rng, 20)
        below, inside, above = split(rows, [rng.choice([0, rng.randint(0, len(rows))]), rng.randint(0, len(rows))])
        retain = rng.choice([None, rng.randint(0, len(rows))])
        operator = rng.choice([*OPERATORS, *[find_operator("append")] * 4])
        known = rng.choice([None, operator, operator])

        compact = partial(compact_rows, now_ms=NOW_MS, bottom=not below, retain_since_sequence=retain, operator=known)
        kept = rows_of(compact(merged([source(inside[::2], 3), source(inside[1::2], 2)])))
        assert kept == ordered(kept), seed
        assert len({(row.key, row.sequence) for row in kept}) == len(kept) <= len(inside), seed
        # Without history only the newest state of the inputs is promised, and what is written on top of it.
        last_inside = len(below) + len(inside)
        for sequence in range(last_inside if retain is None else retain, len(rows) + 1):
            for now_ms in LATER_MS:
                before = model_read(rows, sequence, now_ms, operator)
                after = model_read([*below, *kept, *above], sequence, now_ms, operator)
                assert after == before, (seed, sequence, now_ms)
        assert rows_of(compact(pa.Table.from_batches([batch(kept)]))) == kept, f"{seed}: again it changes something"
        made = [row for row in kept if row not in inside]
        met["dropped"] += len(inside) - len(kept)
        met["expired became a tombstone"] += sum(row.kind == Kind.DELETE for row in made)
        met["combined to a value"] += sum(row.kind == Kind.PUT for row in made)
        met["operands combined"] += sum(row.kind == Kind.MERGE for row in made)
        met["history kept"] += retain is not None and len(kept) > len({row.key for row in kept})
        met["operands waiting"] += sum(row.kind == Kind.MERGE for row in kept)
        met["tombstone gone"] += not below and any(row.kind == Kind.DELETE for row in inside)
    print(dict(met))
    assert min(met.values()) >= history_count // 40, met


def write(memtable: Memtable, rows: Sequence[Row]) -> None:
    """Write rows with their sequences; single calls and bulk take turns."""
    half = len(rows) // 2
    for row in rows[:half]:
        if row.kind == Kind.DELETE:
            memtable.delete(row.key)
        elif row.kind == Kind.MERGE and row.expires_at_ms is None:
            memtable.merge(row.key, row.value)
        elif row.kind == Kind.PUT:
            memtable.put(row.key, row.value, row.expires_at_ms)
        else:
            memtable.extend([row.key], [row.value], [row.kind], [row.expires_at_ms])
    rest = rows[half:]
    values = [None if row.kind == Kind.DELETE else row.value for row in rest]
    memtable.extend([row.key for row in rest], values, [row.kind for row in rest], [row.expires_at_ms for row in rest])


@pytest.fixture
def build() -> Callable[..., View]:
    """A view over a history: its pieces, oldest first, become a run of small files, level-0 files, memtables."""

    def build_view(pieces: Sequence[Sequence[Row]], *, sequence: int | None, operator: MergeOperator) -> View:
        clock = ManualClock(start_ms=NOW_MS)
        environment = Environment(clock=clock)
        files = FileStore(
            open_store(f"memory://lsm-merge-{uuid.uuid4().hex}"),
            path_of=lambda file_id: f"sst/{file_id}.sst",
            cache=BlockCache(1 << 20),
            options=FileOptions(block_bytes=64),
            environment=environment,
        )
        last_id = ""

        def write_file(rows: Sequence[Row]) -> object:
            nonlocal last_id
            last_id = mint_file_id(last_id or None, environment=environment)
            writer = files.writer(last_id)
            writer.write(batch(rows))
            return writer.finish()

        bottom, middle, *rest = [ordered(piece) for piece in pieces]
        half = next((i for i in range(len(bottom) // 2, len(bottom)) if i and bottom[i].key != bottom[i - 1].key), 0)
        halves = [rows for rows in (bottom[:half], bottom[half:]) if rows]
        run = Run("run", tuple(write_file(rows) for rows in halves))
        l0 = [write_file(rows) for rows in [middle, *rest[:-2]] if rows]
        memtables = []
        for piece in pieces[-2:]:
            memtable = Memtable(piece[0].sequence if piece else 1)
            write(memtable, piece)
            memtables.append(memtable)
        return View(
            memtables=memtables[::-1],
            file_set=FileSet(tuple(l0[::-1]), (run,) if halves else ()),
            sequence=sequence,
            operator=operator,
            environment=environment,
            files=files,
        )

    return build_view


@settings(LAW, max_examples=seed_count(20))
@given(
    histories(size_max=60),
    st.lists(st.integers(0, 60), min_size=4, max_size=6),
    st.one_of(st.none(), st.integers(0, 60)),
    st.sampled_from(OPERATORS),
    st.one_of(st.none(), KEYS),
    st.one_of(st.none(), KEYS),
    st.booleans(),
)
def test_a_view_reads_what_the_model_reads(
    build: Callable[..., View],
    rows: list[Row],
    cuts: list[int],
    sequence: int | None,
    operator: MergeOperator,
    start: bytes | None,
    end: bytes | None,
    columnar: bool,
) -> None:
    """Every way to read a view, over memtables, level 0 and runs, agrees with the model."""
    view = build(split(rows, cuts), sequence=sequence, operator=operator)
    limit = len(rows) if sequence is None else sequence
    everything = model_read(rows, limit, NOW_MS, operator)
    keys = sorted({row.key for row in rows} | {b"absent", b"a\0"})
    assert [view.get(key) for key in keys] == [everything.get(key) for key in keys]
    assert view.get_many([*keys, *keys[:1]]) == [everything.get(key) for key in [*keys, *keys[:1]]]
    inside = [
        (key, value)
        for key, value in sorted(everything.items())
        if (start is None or key >= start) and (end is None or key < end)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakebed.lsm.view.FEW_ROWS", 0 if columnar else 128)
        patch.setattr("lakebed.lsm.view.SHORT_SCAN_ROWS", 0 if columnar else 480)
        assert list(view.scan(start, end)) == inside
        assert list(view.scan(start, end, reverse=True)) == inside[::-1]
    table = view.scan_arrow(start, end, columns=("value", "key", "sequence", "expires_at_ms")).read_all()
    assert list(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)) == inside
    for key, newest in zip(table.column("key").to_pylist(), table.column("sequence").to_pylist(), strict=True):
        assert newest == max(row.sequence for row in rows if row.key == key and row.sequence <= limit)
        row = view.get_row(key)
        assert row is not None
        assert row.sequence == newest
