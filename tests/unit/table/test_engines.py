"""The seam of merge engines: another engine is one class and one entry in the registry."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.table.engines.deduplicate import Deduplicate
from lakebed.table.engines.engine import Increments, MergeEngine
from lakebed.table.engines.registry import ENGINES, check_mergeable
from lakebed.table.merge import Codes, KeyGroups, Mask
from lakebed.table.model import TableSchema
from lakebed.table.read import read_split, read_split_table
from lakebed.table.sequence import SequenceOrder
from lakebed.table.table import Table
from lakebed.table.write_settings import check_writable

Numbers = npt.NDArray[np.int64]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])


@dataclass(frozen=True, slots=True)
class FirstRow(MergeEngine):
    """Of the rows of one key the oldest survives, as it is."""

    order: SequenceOrder | None = None
    accepts: ClassVar = frozenset[str]()
    takes_deletes: ClassVar = False
    drops_deletes: ClassVar = False
    ignores_repeats: ClassVar = True
    increments: ClassVar = Increments.COMPARED

    @classmethod
    def of(cls, schema: TableSchema) -> FirstRow:
        return cls()

    def columns(self, wanted: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        return rows.take(pa.array(groups.order[np.append(True, groups.is_last[:-1])]))

    def survivors(
        self, codes: Sequence[Codes], *, sequences: Sequence[Numbers] | None = None
    ) -> list[Mask | None] | None:
        turned = None if sequences is None else [-numbers for numbers in sequences[::-1]]
        masks = Deduplicate().survivors(codes[::-1], sequences=turned)
        return None if masks is None else masks[::-1]

    def wins(self, theirs: Numbers, ours: Numbers) -> Mask:
        return theirs < ours


@dataclass(frozen=True, slots=True)
class Sums(MergeEngine):
    """The rows of one key become one: ``w`` is their sum, everything else is the newest row's."""

    order: SequenceOrder | None = None
    accepts: ClassVar = frozenset(("fields.",))
    takes_deletes: ClassVar = False
    drops_deletes: ClassVar = True
    ignores_repeats: ClassVar = False
    increments: ClassVar = Increments.UNKNOWN

    @classmethod
    def of(cls, schema: TableSchema) -> Sums:
        if schema.options.get("fields.w.aggregate-function", "sum") != "sum":
            raise InvalidRequest("Only sums are known.", option="fields.w.aggregate-function")
        return cls()

    def columns(self, wanted: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        newest = rows.take(pa.array(groups.last))
        if "w" not in rows.column_names:
            return newest
        values = pc.fill_null(rows.column("w"), 0).to_numpy()[groups.order]
        starts = np.flatnonzero(np.append(True, groups.is_last[:-1]))
        return newest.set_column(newest.column_names.index("w"), rows.field("w"), [np.add.reduceat(values, starts)])

    def survivors(
        self, codes: Sequence[Codes], *, sequences: Sequence[Numbers] | None = None
    ) -> list[Mask | None] | None:
        return None

    def wins(self, theirs: Numbers, ours: Numbers) -> Mask:
        raise AssertionError("asked only where increments are compared")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "first-row", FirstRow)
    monkeypatch.setitem(ENGINES, "aggregation", Sums)


def make(engine: str, **options: str) -> Table:
    store = open_store(f"memory://engines-{uuid.uuid4()}")
    settings = {"bucket": "2", "merge-engine": engine} | options
    return Table.create(store, name="t", schema=SCHEMA, primary_keys=["id"], options=settings)


def rows_of(values: Sequence[tuple[int, int, int]]) -> pa.Table:
    columns = zip(*values, strict=True)
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)


def state(table: Table) -> dict[int, tuple[int, int]]:
    """Key to values, by every way of reading: at once, as a stream, in windows of a few rows, and counted."""
    scan = table.scan()
    tiny = replace(scan.plan, window_bytes=256)
    ways = [
        [row for split in scan.splits() for row in read_split_table(table.store, split, plan=scan.plan).to_pylist()],
        [row for batch in scan.to_batches() for row in batch.to_pylist()],
        [
            row
            for split in scan.splits()
            for batch in read_split(table.store, split, plan=tiny, batch_rows=3)
            for row in batch.to_pylist()
        ],
    ]
    found = [{row["id"]: (row["v"], row["w"]) for row in rows} for rows in ways]
    assert found[0] == found[1] == found[2]
    assert {len(rows) for rows in ways} == {scan.count()} == {len(found[0])}
    narrow = table.read(columns=["w"])
    assert sorted(narrow["w"].to_pylist()) == sorted(w for _, w in found[0].values())
    return found[0]


@pytest.mark.parametrize("engine", ["first-row", "aggregation", "deduplicate"])
@pytest.mark.parametrize("seed", range(3))
def test_every_engine_equals_a_dictionary(engine: str, seed: int) -> None:
    """Batches that repeat keys, partial and full compactions, and overwrites give what a dictionary gives."""
    rng = random.Random(f"{engine}-{seed}")
    table = make(engine, **{"num-sorted-run.compaction-trigger": "3", "target-file-size": "2 kb"})
    model: dict[int, tuple[int, int]] = {}
    for number in range(10):
        batch = [(rng.randrange(60), number, rng.randrange(9)) for _ in range(rng.choice((1, 20, 90)))]
        if number and rng.random() < 0.05:
            model = {}
            table.overwrite(rows_of(batch))
        else:
            table.upsert(rows_of(batch))
        for key, v, w in batch:
            if engine == "first-row":
                model.setdefault(key, (v, w))
            else:
                model[key] = (v, w + (model[key][1] if engine == "aggregation" and key in model else 0))
        if rng.random() < 0.5:
            table.compact(full=rng.random() < 0.3)
        assert state(table) == model
    table.compact(full=True)
    assert state(table) == model


def test_changes_of_first_rows() -> None:
    """Of what was written only those rows are changes that became rows of the table."""
    table = make("first-row")
    table.upsert(rows_of([(1, 1, 0), (2, 1, 0)]))
    table.upsert(rows_of([(2, 2, 0), (3, 2, 0), (3, 3, 0)]))
    assert sorted(table.changes(1, 2)["id"].to_pylist()) == [3]
    assert sorted(zip(*table.changes(None, 2).select(["id", "v"]).to_pydict().values(), strict=True)) == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]


def test_changes_that_written_rows_do_not_tell() -> None:
    """An engine whose rows depend on earlier ones has a diff of two versions, and no changes."""
    table = make("aggregation", **{"fields.w.aggregate-function": "sum"})
    table.upsert(rows_of([(1, 1, 5)]))
    table.upsert(rows_of([(1, 2, 7)]))
    with pytest.raises(InvalidRequest, match=r"'aggregation'.*compare the two versions with diff"):
        table.changes(1, 2)
    assert table.diff(1, 2).after.to_pylist() == [{"id": 1, "v": 2, "w": 12}]


def test_deletes_of_an_engine_that_takes_none() -> None:
    """A delete is refused by every way of deleting, and nothing is written."""
    table = make("first-row")
    table.upsert(rows_of([(1, 1, 0)]))
    gone = pa.table({"id": [1], "v": [1], "w": [0], "gone": [True]})
    for delete in (
        lambda: table.delete("id = 1"),
        lambda: table.delete(keys=pa.table({"id": [1]})),
        lambda: table.write(gone, deletes="gone"),
    ):
        with pytest.raises(InvalidRequest, match="engine 'first-row', which takes no deletes"):
            delete()
    assert state(table) == {1: (1, 0)}


def test_options_of_engines() -> None:
    """An engine takes the options that it names; other engines' options, and what it refuses itself, are refused."""
    with pytest.raises(InvalidRequest, match="Only sums"):
        make("aggregation", **{"fields.w.aggregate-function": "max"})
    with pytest.raises(InvalidRequest, match=r"fields\.w\.aggregate-function"):
        make("first-row", **{"fields.w.aggregate-function": "sum"})
    ordered = make("first-row", **{"sequence.field": "v"})
    with pytest.raises(InvalidRequest, match=r"'sequence\.field' = 'v' .* not supported"):
        ordered.upsert(rows_of([(1, 1, 1)]))
    with pytest.raises(UnsupportedFormat, match=r"sequence\.field = v"):
        ordered.read()


def test_an_engine_that_is_not_there() -> None:
    """A table of another engine can be neither made nor written nor read; the sentence names the engines there are."""
    sentence = "Option 'merge-engine' = 'partial-update' is not supported"
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        make("partial-update")
    assert refused.value.facts["option"] == "merge-engine"
    foreign = replace(make("deduplicate").schema, options={"merge-engine": "partial-update"})
    with pytest.raises(InvalidRequest, match=sentence):
        check_writable(foreign)
    with pytest.raises(UnsupportedFormat, match="engine 'partial-update'; this version reads deduplicate, first-row"):
        check_mergeable(foreign)


def test_survivors_by_age_and_by_sequence() -> None:
    """Without sequence numbers the newer run wins; with them the higher number; on a tie the later run."""
    codes = [np.array([1, 2, 3], np.int64), np.array([2, 3], np.int64)]
    by_age = Deduplicate().survivors(codes)
    assert by_age is not None
    assert by_age[1] is None
    assert by_age[0] is not None
    assert by_age[0].tolist() == [True, False, False]
    sequences = [np.array([0, 9, 4], np.int64), np.array([5, 4], np.int64)]
    old, new = Deduplicate().survivors(codes, sequences=sequences) or (None, None)
    assert old is not None
    assert old.tolist() == [True, True, False]
    assert new is not None
    assert new.tolist() == [False, True]


def test_disjoint_runs_need_no_masks() -> None:
    """Runs whose ranges do not touch are not looked into."""
    runs = [np.array([1, 2], np.int64), np.array([3], np.int64), np.array([], np.int64)]
    assert Deduplicate().survivors(runs) == [None] * 3
