"""The option ``sequence.field``: rows of an older sequence never win, deletes included."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.read.read import read_split
from lakebed.table.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("v", pa.string())])


def make(schema: pa.Schema = SCHEMA, *, primary_keys: tuple[str, ...] = ("id",), **options: str) -> Table:
    named = {"sequence.field": "seq", "bucket": "1"} | options
    store = open_store(f"memory://sequence-{uuid.uuid4()}")
    return Table.create(store, name="t", schema=schema, primary_keys=primary_keys, options=named)


def rows(*values: tuple[int, Any, str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = zip(*values, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def keys(*values: tuple[int, Any]) -> pa.Table:
    return pa.table(
        [pa.array([i for i, _ in values], pa.int64()), pa.array([s for _, s in values], pa.int64())], ["id", "seq"]
    )


def state(table: Table, **version: Any) -> dict[int, str]:
    """Key to value, by every way of reading: at once, as a stream in small windows, and counted."""
    whole = table.read(**version)
    scan = table.scan(columns=["id", "v"], **version)
    streamed = [
        row
        for split in scan.splits()
        for batch in read_split(table.store, split, plan=scan.plan)
        for row in batch.to_pylist()
    ]
    result = dict(zip(whole["id"].to_pylist(), whole["v"].to_pylist(), strict=True))
    assert len(result) == whole.num_rows == table.scan(**version).count()
    assert {row["id"]: row["v"] for row in streamed} == result
    return result


def test_a_late_row_never_wins() -> None:
    """Of two rows of a key the one of the later sequence is read, in either order, before and after compaction."""
    table = make()
    table.upsert(rows((1, 10, "new"), (2, 5, "a")))
    table.upsert(rows((1, 9, "old"), (2, 6, "b")))
    assert state(table) == {1: "new", 2: "b"}
    assert state(table, version=1) == {1: "new", 2: "a"}
    table.compact(full=True)
    assert state(table) == {1: "new", 2: "b"}


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_null_is_older_than_every_value(order: str) -> None:
    """In both orders: it stays while its key has no other, and of two nulls the later one is there."""
    table = make(**{"sequence.field.sort-order": order})
    table.upsert(rows((1, 5, "five"), (2, None, "null"), (3, None, "first null"), (4, None, "alone")))
    table.upsert(rows((1, None, "null"), (2, 1, "one"), (3, None, "second null")))
    expected = {1: "five", 2: "one", 3: "second null", 4: "alone"}
    for _ in range(2):
        assert state(table) == expected
        table.compact(full=True)


def test_a_delete_is_ordered_as_rows_are() -> None:
    """A delete of sequence 10 holds against a row of sequence 9 that comes later, also after a full compaction."""
    table = make()
    table.upsert(rows((1, 5, "a"), (2, 5, "b")))
    table.delete(keys=keys((1, 10)))
    assert state(table) == {2: "b"}
    table.compact(full=True)
    table.upsert(rows((1, 9, "late")))
    assert state(table) == {2: "b"}
    table.compact(full=True)
    assert state(table) == {2: "b"}
    table.upsert(rows((1, 11, "again")))
    assert state(table) == {1: "again", 2: "b"}


def test_an_old_delete_deletes_nothing_newer() -> None:
    """A delete of an older sequence than the row's leaves the row."""
    table = make()
    table.upsert(rows((1, 10, "a")))
    table.delete(keys=keys((1, 9)))
    assert state(table) == {1: "a"}
    table.write(pa.table({"id": [1], "seq": [9], "v": ["x"], "gone": [True]}), deletes="gone")
    assert state(table) == {1: "a"}
    table.write(pa.table({"id": [1], "seq": [10], "v": ["x"], "gone": [True]}), deletes="gone")
    assert state(table) == {}


def test_within_one_batch() -> None:
    """In one batch the later sequence wins, and of equal ones the row that stands last."""
    table = make()
    table.upsert(rows((1, 3, "c"), (1, 9, "z"), (1, 4, "d"), (2, 1, "x"), (2, 1, "y"), (3, None, "n"), (3, 0, "m")))
    assert state(table) == {1: "z", 2: "y", 3: "m"}


def test_equal_sequences_are_ordered_by_arrival() -> None:
    """Of rows that are equal in the sequence the one that was committed last wins."""
    table = make()
    table.upsert(rows((1, 3, "a")))
    table.upsert(rows((1, 3, "b")))
    table.compact(full=True)
    assert state(table) == {1: "b"}
    table.delete(keys=keys((1, 3)))
    assert state(table) == {}


def test_a_delete_by_predicate_takes_the_rows_own_sequence() -> None:
    """It deletes what it found and what is older; a row that is newer than the one found stays."""
    table = make()
    table.upsert(rows((1, 10, "a"), (2, 10, "b")))
    table.delete("id = 1")
    table.compact(full=True)
    table.upsert(rows((1, 9, "late"), (2, 9, "late")))
    assert state(table) == {2: "b"}
    table.upsert(rows((1, 11, "new")))
    assert state(table) == {1: "new", 2: "b"}


def test_compacted_deletes_are_kept_once() -> None:
    """A full compaction of what is compact does nothing, although the file holds deletes; overwriting forgets them."""
    table = make()
    table.upsert(rows((1, 5, "a"), (2, 5, "b")))
    table.delete(keys=keys((1, 10), (7, 3)))
    assert table.compact(full=True).snapshot is not None
    (file,) = [file for split in table.scan().splits() for file in split.files]
    assert (file.row_count, file.delete_row_count) == (3, 2)
    assert table.compact(full=True).snapshot is None
    table.overwrite(rows((2, 1, "fresh")))
    table.upsert(rows((1, 1, "first")))
    assert state(table) == {1: "first", 2: "fresh"}


def test_without_the_option_full_compaction_drops_deletes() -> None:
    """What nothing can lie below is dropped, as before."""
    store = open_store(f"memory://sequence-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys=["id"], options={"bucket": "1"})
    table.upsert(rows((1, 5, "a"), (2, 5, "b")))
    table.delete(keys=pa.table({"id": [1]}))
    table.compact(full=True)
    (file,) = [file for split in table.scan().splits() for file in split.files]
    assert (file.row_count, file.delete_row_count) == (1, 0)


DESCENDING = [(1, "one"), (None, "null"), (5, "five")]


@pytest.mark.parametrize(("order", "winner"), [("ascending", "five"), ("descending", "one")])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_sort_order(order: str, winner: str, first: int) -> None:
    """Descending, the least sequence wins; a null is the oldest in both orders."""
    table = make(**{"sequence.field.sort-order": order})
    turned = DESCENDING[first:] + DESCENDING[:first]
    for number, text in turned:
        table.upsert(rows((1, number, text)))
    assert state(table) == {1: winner}
    table.compact(full=True)
    assert state(table) == {1: winner}


ASCENDING_VALUES: dict[pa.DataType, list[Any]] = {
    pa.float64(): [None, -math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan],
    pa.float32(): [None, -1.5, -0.0, 0.0, math.inf, math.nan],
    pa.int64(): [None, -(2**63), -1, 0, 2**63 - 1],
    pa.string(): [None, "", "Z", "a", "é", "\U0001f600"],
    pa.binary(): [None, b"", b"\x00", b"\xff"],
    pa.bool_(): [None, False, True],
    pa.decimal128(38, 2): [None, decimal.Decimal("-" + "9" * 36), decimal.Decimal("0.01"), decimal.Decimal("9" * 36)],
    pa.date32(): [None, datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    pa.timestamp("us"): [None, datetime.datetime(1, 1, 1), datetime.datetime(2013, 1, 1, 0, 0, 0, 1)],
}


@pytest.mark.parametrize("kind", ASCENDING_VALUES, ids=str)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_every_comparable_type_orders_rows(kind: pa.DataType, order: str) -> None:
    """For each pair of values the later one wins from either side: null first, NaN last, -0.0 before 0.0."""
    schema = pa.schema([("id", pa.int64()), ("seq", kind), ("v", pa.int64())])
    store = open_store(f"memory://sequence-{uuid.uuid4()}")
    options = {"sequence.field": "seq", "sequence.field.sort-order": order, "bucket": "1"}
    table = Table.create(store, name="t", schema=schema, primary_keys=["id"], options=options)
    values = ASCENDING_VALUES[kind]
    if order == "descending":
        values = [None, *reversed(values[1:])]
    pairs = [(a, b) for a in range(len(values)) for b in range(len(values))]
    for side in (0, 1):
        table.upsert(rows(*[(key, values[pair[side]], pair[side]) for key, pair in enumerate(pairs)], schema=schema))
    expected = {key: max(pair) for key, pair in enumerate(pairs)}
    assert state(table) == expected
    table.compact(full=True)
    assert state(table) == expected


def test_several_columns_from_left_to_right() -> None:
    """The second column decides where the first is equal."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("n", pa.int32()), ("v", pa.string())])
    store = open_store(f"memory://sequence-{uuid.uuid4()}")
    options = {"sequence.field": "day, n", "bucket": "1"}
    table = Table.create(store, name="t", schema=schema, primary_keys=["id"], options=options)
    day = datetime.date(2013, 1, 1)
    for offset, number, text in [(1, 0, "b"), (0, 9, "a"), (1, 2, "winner"), (1, 1, "c")]:
        made = [[1], [day + datetime.timedelta(days=offset)], [number], [text]]
        table.upsert(pa.table([pa.array(c, f.type) for c, f in zip(made, schema, strict=True)], schema=schema))
    assert state(table) == {1: "winner"}


def test_changes_leave_out_what_lost() -> None:
    """Applied in turn to a copy, the changes between versions give the table, without comparing sequences."""
    table = make()
    table.upsert(rows((1, 10, "a"), (2, 10, "b"), (4, 1, "d")))
    table.delete(keys=keys((2, 20)))
    table.upsert(rows((1, 9, "late"), (2, 15, "late"), (3, 1, "c")))
    table.compact(full=True)
    table.delete(keys=keys((1, 3), (3, 1)))
    table.upsert(rows((2, 21, "back"), (4, 0, "late")))
    copy: dict[int, str] = {}
    newest = table.latest()
    assert newest is not None
    for start in range(newest.id):
        for change in table.changes(start or None, start + 1).to_pylist():
            copy.pop(change["id"], None)
            if change["_row_kind"] != "-D":
                copy[change["id"]] = change["v"]
        assert copy == state(table, version=start + 1)
    assert copy == {1: "a", 2: "back", 4: "d"}
    assert table.changes(2, 3)["id"].to_pylist() == [3]


def test_a_difference_shows_rows_only() -> None:
    """A delete that is kept is a row of no version."""
    table = make()
    table.upsert(rows((1, 10, "a"), (2, 10, "b")))
    table.delete(keys=keys((1, 20)))
    table.compact(full=True)
    table.upsert(rows((1, 11, "late"), (2, 11, "c")))
    difference = table.diff(1, 4)
    assert difference.removed["id"].to_pylist() == [1]
    assert difference.after["v"].to_pylist() == ["c"]
    assert difference.added.num_rows == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sequence.field": "sq"}, "did you mean 'seq'"),
        ({"sequence.field": "id"}, "part of the primary key"),
        ({"sequence.field": "seq,seq"}, "twice"),
        ({"sequence.field": "tags"}, "have no order"),
        ({"sequence.field.sort-order": "descending"}, "needs option 'sequence.field'"),
        ({"sequence.field": "seq", "sequence.field.sort-order": "sideways"}, "sideways"),
    ],
)
def test_bad_definitions_are_refused(options: dict[str, str], words: str) -> None:
    """What could not be kept is refused when the table is created, in one sentence."""
    schema = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))
    store = open_store(f"memory://sequence-{uuid.uuid4()}")
    with pytest.raises(InvalidRequest, match=words):
        Table.create(store, name="t", schema=schema, primary_keys=["id"], options={"bucket": "1"} | options)


def test_an_append_table_has_no_rows_to_order() -> None:
    """The option is refused without a primary key."""
    with pytest.raises(InvalidRequest, match="no primary key"):
        make(primary_keys=(), bucket="-1")


def test_the_option_and_its_columns_are_fixed() -> None:
    """Neither the option nor a column that it names can be changed, because files are merged by them."""
    table = make()
    for change in (
        lambda: table.set_options({"sequence.field": "v"}),
        lambda: table.remove_options(["sequence.field"]),
        lambda: table.drop_column("seq"),
        lambda: table.rename_column("seq", "other"),
    ):
        with pytest.raises(InvalidRequest):
            change()


def test_a_delete_by_key_says_its_sequence() -> None:
    """A delete without the sequence would be older than every row; it is refused and says what to do."""
    table = make()
    table.upsert(rows((1, 10, "a")))
    with pytest.raises(InvalidRequest, match=r"needs the column 'seq'.*predicate"):
        table.delete(keys=pa.table({"id": [1]}))
    with pytest.raises(InvalidRequest, match="no column 'seq'"):
        table.write(pa.table({"id": [1], "gone": [True]}), deletes="gone")
    assert state(table) == {1: "a"}
