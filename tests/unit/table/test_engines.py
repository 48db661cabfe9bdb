"""Merge engines: what they give, which options and deletes they take. `tests/property` has random histories."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyroaring
import pytest

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.table.engines.aggregation import Aggregation
from lakebed.table.engines.deduplicate import Deduplicate
from lakebed.table.engines.merge import KeyGroups
from lakebed.table.engines.registry import check_mergeable
from lakebed.table.model.layout import Layout
from lakebed.table.model.row_kinds import KIND_COLUMN
from lakebed.table.read.read import read_split, read_split_table
from lakebed.table.schema.schema import encode_schema
from lakebed.table.table import Table
from lakebed.table.write.write_settings import check_writable

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])


SUMS = {"fields.v.aggregate-function": "last_value", "fields.w.aggregate-function": "sum"}


def make(engine: str, **options: str) -> Table:
    store = open_store(f"memory://engines-{uuid.uuid4()}")
    settings = {"bucket": "2", "merge-engine": engine} | (SUMS if engine == "aggregation" else {}) | options
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
    result = [{row["id"]: (row["v"], row["w"]) for row in rows} for rows in ways]
    assert result[0] == result[1] == result[2]
    assert {len(rows) for rows in ways} == {scan.count()} == {len(result[0])}
    narrow = table.read(columns=["w"])
    assert sorted(narrow["w"].to_pylist()) == sorted(w for _, w in result[0].values())
    return result[0]


@pytest.mark.parametrize("engine", ["first-row", "aggregation", "deduplicate"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 3))])
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
    table = make("aggregation")
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


@pytest.mark.parametrize(
    ("engine", "deletes"),
    [
        ("aggregation", "where a delete takes values back and leaves the row"),
        ("partial-update", "which takes no deletes"),
    ],
)
def test_deletes_by_key_of_engines_that_remove_no_row(engine: str, deletes: str) -> None:
    """A delete by key or predicate removes the row, or is refused."""
    table = make(engine)
    table.upsert(rows_of([(1, 1, 1)]))
    for delete in (lambda: table.delete("id = 1"), lambda: table.delete(keys=pa.table({"id": [1]}))):
        with pytest.raises(InvalidRequest, match=re.escape(deletes)):
            delete()
    assert state(table) == {1: (1, 1)}


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("aggregation", {"aggregation.remove-record-on-delete": "true"}),
        ("partial-update", {"partial-update.remove-record-on-delete": "true"}),
    ],
)
def test_deletes_that_remove_rows(engine: str, options: dict[str, str]) -> None:
    """By key and by predicate; a later row begins anew; a full compaction forgets the deletes."""
    table = make(engine, **options)
    table.upsert(rows_of([(1, 1, 1), (2, 2, 2), (3, 3, 3)]))
    table.delete("id = 1")
    table.delete(keys=pa.table({"id": [2]}))
    table.upsert(pa.table({"id": [2], "v": pa.nulls(1, pa.int64()), "w": [5]}))
    assert state(table) == {2: (None, 5), 3: (3, 3)}
    table.compact(full=True)
    assert state(table) == {2: (None, 5), 3: (3, 3)}
    assert sum(table.system("files")["record_count"].to_pylist()) == 2


def test_a_late_row_does_not_return_after_a_delete() -> None:
    """With a sequence a full compaction keeps the delete: a row that is older than it comes too late."""
    options = {"partial-update.remove-record-on-delete": "true", "sequence.field": "w"}
    table = make("partial-update", **options)
    table.upsert(rows_of([(1, 7, 3), (2, 7, 3)]))
    table.delete(keys=pa.table({"id": [1], "w": [9]}))
    table.compact(full=True)
    table.upsert(rows_of([(1, 8, 5), (2, 8, 5)]))
    for _ in range(2):
        assert state(table) == {2: (8, 5)}
        table.compact(full=True)
    table.upsert(rows_of([(1, 9, 10)]))
    assert state(table) == {1: (9, 10), 2: (8, 5)}


def test_a_delete_in_a_partial_compaction_meets_all_older_rows() -> None:
    """What a delete removed does not return when only the newer levels are compacted."""
    options = {"num-sorted-run.compaction-trigger": "2", "compaction.max-size-amplification-percent": "100000"}
    table = make("partial-update", **options, **{"partial-update.remove-record-on-delete": "true", "bucket": "1"})
    noise = random.Random(1)
    table.upsert(rows_of([(key, noise.getrandbits(60), 1) for key in range(5000)]))
    table.compact(full=True)
    table.delete(keys=pa.table({"id": [7]}))
    table.upsert(pa.table({"id": [7], "w": [5]}))
    assert table.compact().tasks
    assert state(table)[7] == (None, 5)


def test_a_key_of_a_first_row_table_is_in_one_level() -> None:
    """Other clients read the levels above 0 without a merge: after every compaction these hold a key once."""
    options = {"num-sorted-run.compaction-trigger": "2", "compaction.max-size-amplification-percent": "100000"}
    table = make("first-row", **options, bucket="1")
    table.upsert(rows_of([(key, 1, 1) for key in range(200)]))
    table.compact(full=True)
    for number in range(2, 5):
        for _ in range(2):
            table.upsert(rows_of([(key, number, number) for key in (7, 200 + number)]))
        assert table.compact().tasks
        files = [file for file in table.system("files").to_pylist() if file["level"] > 0]
        assert sum(file["record_count"] for file in files) == len(state(table)) == 199 + number


def test_rows_of_a_partial_update_may_lack_columns() -> None:
    """A missing column keeps its values; one of a sequence group only when the whole group is missing."""
    table = make("partial-update", **{"fields.v.sequence-group": "w"})
    table.upsert(rows_of([(1, 5, 1)]))
    table.upsert(pa.table({"id": [1, 2]}))
    assert table.read().sort_by("id").to_pylist() == [{"id": 1, "v": 5, "w": 1}, {"id": 2, "v": None, "w": None}]
    with pytest.raises(InvalidRequest, match="The rows have no column 'w'"):
        table.upsert(pa.table({"id": [1], "v": [6]}))


def test_a_sum_that_is_too_large() -> None:
    """It is an error, also in the middle of a batch where later rows would bring it back; the wider column has it."""
    table = make("aggregation")
    table.upsert(rows_of([(1, 0, 2**63 - 1)]))
    table.upsert(rows_of([(1, 0, 5), (1, 0, -5)]))
    assert state(table) == {1: (0, 2**63 - 1)}
    table.upsert(rows_of([(1, 0, 1)]))
    with pytest.raises(InvalidRequest, match="A sum of rows of one key does not fit in its column, which is int64"):
        table.read()
    small = Table.create(
        open_store(f"memory://engines-{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([("id", pa.int64()), ("w", pa.int8()), ("d", pa.decimal128(4, 2))]),
        primary_keys=["id"],
        options={
            "bucket": "1",
            "merge-engine": "aggregation",
            "fields.default-aggregate-function": "sum",
        },
    )
    rows = pa.table({"id": [1], "w": pa.array([100], pa.int8()), "d": pa.array(["50.25"]).cast(pa.decimal128(4, 2))})
    small.upsert(rows)
    small.upsert(rows)
    for name, kind in (("w", "SMALLINT"), ("d", "DECIMAL(10, 2)")):
        with pytest.raises(InvalidRequest, match="widen the column's type"):
            small.read(columns=[name])
        small.widen_column(name, kind)
    assert small.read().to_pylist() == [{"id": 1, "w": 200, "d": Decimal("100.50")}]


def test_products_of_decimals_are_rounded_one_by_one() -> None:
    """As other clients do it, half up and away from zero; compactions change nothing."""
    table = Table.create(
        open_store(f"memory://engines-{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([("id", pa.int64()), ("d", pa.decimal128(6, 2))]),
        primary_keys=["id"],
        options={
            "bucket": "1",
            "merge-engine": "aggregation",
            "fields.d.aggregate-function": "product",
            "num-sorted-run.compaction-trigger": "2",
            "compaction.max-size-amplification-percent": "100000",
        },
    )
    noise = random.Random(1)
    ids = [1, *(noise.getrandbits(60) for _ in range(5000))]
    factors, rewrites = ["-0.15"] * len(ids), list[int]()
    for factor in ("0.50", "0.50", "3.00", None):
        table.upsert(pa.table({"id": ids, "d": pa.array(factors).cast(pa.decimal128(6, 2))}))
        rewrites.append(len(table.compact(full=len(ids) > 1).tasks))
        ids, factors = [1], [factor]
    assert sum(rewrites) > 1
    # -0.075 is -0.08, and -0.04 is exact.
    assert table.read(where="id = 1")["d"].to_pylist() == [Decimal("-0.12")]


def test_bitmaps_are_united() -> None:
    """Two of a key are one with every number of both; one that is alone keeps its bytes; other bytes are an error."""
    table = Table.create(
        open_store(f"memory://engines-{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([("id", pa.int64()), ("b", pa.binary())]),
        primary_keys=["id"],
        options={"bucket": "1", "merge-engine": "aggregation", "fields.b.aggregate-function": "rbm32"},
    )
    alone = pyroaring.BitMap(range(100)).serialize()  # without runs, which a union would make
    table.upsert(pa.table({"id": [1, 2, 3], "b": [pyroaring.BitMap([1, 2**32 - 1]).serialize(), alone, b"none"]}))
    table.upsert(pa.table({"id": [1, 2], "b": [pyroaring.BitMap([7]).serialize(), None]}))
    for _ in range(2):
        bodies = table.read().sort_by("id")["b"].to_pylist()
        assert list(pyroaring.BitMap.deserialize(bodies[0])) == [1, 7, 2**32 - 1]
        assert bodies[1:] == [alone, b"none"]
        table.compact(full=True)
    table.upsert(pa.table({"id": [3], "b": [alone]}))
    with pytest.raises(InvalidRequest, match=r"rbm32 aggregates is not a 32-bit Roaring.*function to 'last_value'"):
        table.read()
    table.set_options({"fields.b.aggregate-function": "last_value"})
    assert table.read(where="id = 3")["b"].to_pylist() == [alone]


def nested(**options: str) -> Table:
    """A table with a column of rows in arrays, aggregated by ``nested_update``."""
    rows = pa.list_(pa.struct([("k", pa.int32()), ("v", pa.string()), ("tags", pa.list_(pa.string()))]))
    return Table.create(
        open_store(f"memory://engines-{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([("id", pa.int64()), ("n", rows)]),
        primary_keys=["id"],
        options={"bucket": "1", "merge-engine": "aggregation", "fields.n.aggregate-function": "nested_update"}
        | {f"fields.n.{name}": value for name, value in options.items()},
    )


def test_rows_in_arrays_are_updated_by_their_key() -> None:
    """A row in an array replaces the one with its nested key, and a delete takes it away."""
    table = nested(**{"nested-key": "k, v"})
    first, second = {"k": 1, "v": "a", "tags": ["x"]}, {"k": 1, "v": "b", "tags": None}
    table.upsert(pa.Table.from_pylist([{"id": 1, "n": [first, second]}], table.arrow_schema))
    newer = first | {"tags": []}
    table.upsert(pa.Table.from_pylist([{"id": 1, "n": [newer]}], table.arrow_schema))
    assert table.read()["n"].to_pylist() == [[second, newer]]
    gone = pa.Table.from_pylist([{"id": 1, "n": [second]}], table.arrow_schema)
    table.write(gone.append_column("gone", pa.array([True])), deletes="gone")
    table.compact(full=True)
    assert table.read()["n"].to_pylist() == [[newer]]
    with pytest.raises(InvalidRequest, match="nested-key"):
        table.rename_column(("n", "element", "v"), "w")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "by their field 'tags', which is ARRAY<STRING>"),
        ({"nested-key": "k,tags"}, "by their field 'tags', which is ARRAY<STRING>"),
        ({"nested-key": "k,x"}, "names 'x', which is not a field of ROW<"),
        ({"nested-key": "k", "count-limit": "9"}, "'fields.n.count-limit' of nested_update is not supported"),
        ({"nested-key": "k", "nested-sequence-field": "v"}, "nested-sequence-field' of nested_update is not supported"),
    ],
)
def test_options_of_rows_in_arrays(options: dict[str, str], sentence: str) -> None:
    """A nested key that cannot be compared, and an option that would change the result, are refused."""
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        nested(**options)


def test_a_retract_that_a_function_cannot_undo() -> None:
    """Writers refuse it where the table shows it, and merges where another client wrote it."""
    gone = pa.table({"id": [1], "v": [1], "w": [0], "gone": [True]})
    table = make("aggregation", **{"fields.w.aggregate-function": "max"})
    with pytest.raises(InvalidRequest, match="which takes no deletes"):
        table.write(gone, deletes="gone")
    ignoring = make("aggregation", **{"fields.w.aggregate-function": "max", "fields.w.ignore-retract": "true"})
    ignoring.upsert(rows_of([(1, 5, 9)]))
    ignoring.write(gone, deletes="gone")
    assert state(ignoring) == {1: (None, 9)}
    rows = pa.table({"w": [1, 2], KIND_COLUMN: pa.array([0, 3], pa.int8())})
    groups = KeyGroups(np.arange(2), np.array([False, True]))
    with pytest.raises(InvalidRequest, match=r"'fields\.w\.ignore-retract' = 'true'"):
        Aggregation.of(table.schema).merge(rows, groups)


REFUSED = [
    ("aggregation", {"fields.w.aggregate-function": "median"}, "'median', which this version of lakebed does not have"),
    ("aggregation", {"fields.w.aggregate-function": "count"}, "there are sum, product, max"),
    ("aggregation", {"fields.w.aggregate-function": "count"}, "sum a column of ones"),
    ("aggregation", {"fields.w.aggregate-function": "bool_or"}, "by bool_or, which does not take BIGINT"),
    ("aggregation", {"fields.w.aggregate-function": "rbm32"}, "by rbm32, which does not take BIGINT"),
    ("aggregation", {"fields.w.aggregate-function": "rbm64"}, "'rbm64', which this version of lakebed does not have"),
    ("aggregation", {"fields.w.aggregate-function": "nested_update"}, "by nested_update, which does not take BIGINT"),
    ("aggregation", {"fields.w.agregate-function": "sum"}, "of columns there are aggregate-function, ignore-retract"),
    ("aggregation", {"fields.x.aggregate-function": "sum"}, "names 'x', which is not a column"),
    ("aggregation", {"fields.w.sequence-group": "v"}, "needs option 'merge-engine' = 'partial-update'"),
    ("aggregation", {"fields.w.ignore-retract": "yes"}, "neither 'true' nor 'false'"),
    ("aggregation", {"aggregation.remove-record-on-delete": "true", "fields.w.ignore-retract": "true"}, "exclude each"),
    ("partial-update", {"fields.w.aggregate-function": "sum"}, "so the column must be in a sequence group"),
    ("partial-update", {"fields.default-aggregate-function": "max"}, "'fields.default-aggregate-function'"),
    ("partial-update", {"fields.w.sequence-group": "id"}, "names 'id', which is part of the primary key"),
    ("partial-update", {"fields.w.sequence-group": "x"}, "names 'x', which is not a column"),
    ("partial-update", {"fields.w.sequence-group": "v", "fields.v.sequence-group": "w"}, "both name the column"),
    ("partial-update", {"partial-update.remove-record-on-delete": "true", "ignore-delete": "true"}, "exclude each"),
    ("partial-update", {"partial-update.remove-record-on-delete": "true", "fields.w.sequence-group": "v"}, "exclude"),
    ("first-row", {"sequence.field": "v"}, "'sequence.field' has no meaning with first-row"),
    ("first-row", {"fields.w.aggregate-function": "sum"}, "not supported by this version of lakebed: columns have no"),
]


@pytest.mark.parametrize(("engine", "options", "sentence"), REFUSED)
def test_options_of_engines(engine: str, options: dict[str, str], sentence: str) -> None:
    """Options that an engine does not have, or that contradict each other, are refused when a table is made."""
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        make(engine, **options)


def test_options_are_checked_when_they_are_set() -> None:
    """A function that does not fit is refused then, and nothing changes; one that fits holds from then on."""
    table = make("aggregation")
    with pytest.raises(InvalidRequest, match="does not take BIGINT"):
        table.set_options({"fields.w.aggregate-function": "listagg"})
    with pytest.raises(InvalidRequest, match=r"option 'fields\.w\.aggregate-function' names it"):
        table.drop_column("w")
    table.upsert(rows_of([(1, 1, 5)]))
    table.rename_column("w", "x")
    table.upsert(pa.table({"id": [1], "v": [1], "x": [4]}))
    assert table.read().to_pylist() == [{"id": 1, "v": 1, "x": 9}]
    table.rename_column("x", "w")
    assert dict(table.schema.options)["fields.w.aggregate-function"] == "sum"
    table.set_options({"fields.w.aggregate-function": "max"})
    table.upsert(rows_of([(1, 1, 3)]))
    assert state(table) == {1: (1, 5)}
    groups = {"fields.v.sequence-group": "w"}
    renamed = make("partial-update", **groups)
    renamed.rename_column("w", "x")
    renamed.rename_column("v", "y")
    assert dict(renamed.schema.options)["fields.y.sequence-group"] == "x"


def test_options_of_other_engines() -> None:
    """Of another client's table the options are refused that would change rows and that the engine does not read."""
    foreign = replace(make("deduplicate").schema, options={"partial-update.ignore-delete": "true"})
    with pytest.raises(UnsupportedFormat, match=r"partial-update\.ignore-delete = true"):
        check_mergeable(foreign)
    options = {"merge-engine": "partial-update", "partial-update.remove-record-on-sequence-group": "v"}
    with pytest.raises(UnsupportedFormat, match="remove-record-on-sequence-group"):
        check_mergeable(replace(foreign, options=options))


def test_a_read_refuses_contradictory_options() -> None:
    """A table of another client with options that no engine can follow is not read, also where no rows are merged."""
    table = make("aggregation")
    table.upsert(rows_of([(1, 1, 1)]))
    wrong = replace(table.schema, id=1, options=table.schema.options | {"fields.v.aggregate-function": "median"})
    table.store.put(Layout().schema(1), encode_schema(wrong))
    scan = Table.open(table.store, name="t").scan()
    assert [split.needs_merge for split in scan.splits()] == [False]
    with pytest.raises(InvalidRequest, match="median"):
        scan.to_arrow()


def test_an_engine_that_is_not_there() -> None:
    """A table of another engine can be neither written nor read; the sentence names the engines there are."""
    foreign = replace(make("deduplicate").schema, options={"merge-engine": "newest"})
    with pytest.raises(InvalidRequest, match="Option 'merge-engine' = 'newest' is not supported"):
        check_writable(foreign)
    with pytest.raises(UnsupportedFormat, match="engine 'newest'; this version reads deduplicate, partial-update"):
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


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("function", ["sum", "product"])
def test_floats_beyond_the_largest(kind: pa.DataType, function: str) -> None:
    """Infinity and NaN are results as others, as in Java: nothing warns, and no row is refused."""
    largest, inf, nan = float(np.finfo(kind.to_pandas_dtype()).max), float("inf"), float("nan")
    pairs = [(largest, largest), (inf, -inf), (nan, 1.0), (-largest, -inf), (inf, 0.0)]
    expected = {"sum": [inf, nan, nan, -inf, inf], "product": [inf, -inf, nan, inf, nan]}[function]
    store = open_store(f"memory://engines-{uuid.uuid4()}")
    settings = {"bucket": "1", "merge-engine": "aggregation", "fields.v.aggregate-function": function}
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    table = Table.create(store, name="t", schema=schema, primary_keys=["id"], options=settings)
    for position in range(2):
        values = pa.array([pair[position] for pair in pairs], pa.float64()).cast(kind)
        table.upsert(pa.table([pa.array(range(len(pairs)), pa.int64()), values], schema=schema))
    assert table.read().sort_by("id")["v"].to_pylist() == pytest.approx(expected, nan_ok=True)
    table.compact(full=True)
    assert table.read().sort_by("id")["v"].to_pylist() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("engine", ["aggregation", "partial-update"])
def test_a_column_that_no_function_takes_is_not_added(engine: str) -> None:
    """It is refused, for the table could not be read with it: its default function takes no texts."""
    options = {"merge-engine": engine, "fields.default-aggregate-function": "sum"}
    options |= {"fields.at.sequence-group": "v"} if engine == "partial-update" else {}
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("at", pa.int64())])
    store = open_store(f"memory://engines-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=columns, primary_keys=["id"], options=options)
    table.upsert(pa.table({"id": [1], "v": [2], "at": [3]}))
    with pytest.raises(InvalidRequest, match="Set the functions of the other columns"):
        table.add_column("text", "STRING")
    assert table.refresh().id == 0
    table.remove_options(["fields.default-aggregate-function"])
    table.add_column("text", "STRING")
    assert table.read().num_rows == 1


def test_a_delete_that_no_merge_could_take_back_is_not_written() -> None:
    """A delete of a group with such a function is refused, for the table could not be read any more; others are not."""
    options = {
        "merge-engine": "partial-update",
        "fields.at.sequence-group": "v",
        "fields.v.aggregate-function": "max",
        "fields.w.sequence-group": "x",
    }
    columns = pa.schema([(name, pa.int64()) for name in ("id", "at", "v", "w", "x")])
    store = open_store(f"memory://engines-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=columns, primary_keys=["id"], options=options)
    table.upsert(pa.table({"id": [1], "at": [1], "v": [5], "w": [1], "x": [7]}))
    with pytest.raises(InvalidRequest, match="aggregated by max"):
        table.write(pa.table({"id": [1], "at": [2], "v": [5], "gone": [True]}), deletes="gone")
    table.write(pa.table({"id": [1], "w": [2], "x": [7], "gone": [True]}), deletes="gone")
    assert table.read().to_pylist() == [{"id": 1, "at": 1, "v": 5, "w": 2, "x": None}]
