"""A table that is dropped, or dropped and created again, while another process changes it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import AlreadyExists, Conflict, NotFound
from lakebed.lake.lake import Lake
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Between, Call, StoreWrapper
from worlds.errors import raises
from worlds.meanwhile import Meanwhile

R = TypeVar("R")
COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
EVER_MS = 2**60
VERBS: dict[str, Callable[[Table], Any]] = {
    "append": lambda table: table.append(rows(9)),
    "delete": lambda table: table.delete("k = 2"),
    "overwrite": lambda table: table.overwrite(rows(5)),
    "compact": lambda table: table.compact(full=True),
    "add_column": lambda table: table.add_column("x", "INT"),
}


EACH_VERB = pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[] if verb == "append" else [pytest.mark.long]) for verb in VERBS]
)


def rows(*keys: int) -> pa.Table:
    """Rows with these keys."""
    return pa.table({"k": list(keys), "v": [1] * len(keys)}, schema=COLUMNS)


def keys_of(table: Table) -> list[int]:
    """The keys that a new process reads, sorted."""
    PROCESS_CACHE.clear()
    return sorted(table.read()["k"].to_pylist())


class AroundSnapshot(StoreWrapper):
    """Lets something happen before and after the first put of a snapshot."""

    def __init__(self, inner: ObjectStore, *, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__(inner)
        self._before = before
        self._after = after
        self._is_over = False

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Surround the put."""
        if self._is_over or call.kind != "put" or not call.path.startswith("snapshot/snapshot-"):
            return perform()
        self._is_over = True
        self._before()
        result = perform()
        self._after()
        return result


def meet(verb: str, call: int, happens: Callable[[Lake], object]) -> tuple[Lake, Call | None, object]:
    """Run a verb on a table of three commits; before its call of a number something happens.

    Returns the lake, that call (None: the verb has fewer), and what the verb returned, or the error that it raised.
    """
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    made = lake.create_table("t", COLUMNS)
    for key in range(3):
        made.append(rows(key))
    store = Meanwhile(made.store)
    PROCESS_CACHE.clear()
    table = Table.open(store, name="t")
    store.expect(lambda: happens(lake), at=call)
    try:
        answer: object = VERBS[verb](table)
    except (NotFound, Conflict) as refused:
        answer = refused
    return lake, store.happened, answer


def drop(lake: Lake) -> None:
    """Drop the table."""
    lake.drop_table("t", force=True)


def create_again(lake: Lake) -> None:
    """Drop the table, and create and write it again."""
    drop(lake)
    lake.create_table("t", COLUMNS).append(rows(100))


@EACH_VERB
def test_a_verb_on_a_table_that_is_dropped_meanwhile(verb: str) -> None:
    """It is refused, or was done before the drop; the name can be used again, with force at worst."""
    refused = 0
    for call in itertools.count(step=3 if verb == "append" else 1):
        lake, happened, answer = meet(verb, call, drop)
        if happened is None:
            break
        refused += isinstance(answer, NotFound)
        if not isinstance(answer, NotFound):
            assert happened.path == "schema/schema-0", f"{verb} was answered after the drop before {happened}"
        assert not lake.has_table("t")
        if list(lake.store.list("default.db/t")):
            with pytest.raises(AlreadyExists, match="with force"):
                lake.create_table("t", COLUMNS)
            lake.drop_table("t", force=True)
        lake.create_table("t", COLUMNS)
        assert keys_of(lake.table("t")) == []
    assert refused >= 3


@EACH_VERB
def test_a_verb_on_a_table_that_is_created_again_meanwhile(verb: str) -> None:
    """The new table has its own rows, and the verb's when that was done on it; nothing makes it unreadable."""
    struck = 0
    for call in itertools.count(step=3 if verb == "append" else 1):
        lake, happened, answer = meet(verb, call, create_again)
        if happened is None:
            break
        struck += 1
        table = lake.table("t")
        is_done = not isinstance(answer, NotFound | Conflict)
        expected = {"append": [9, 100], "overwrite": [5]}.get(verb, [100]) if is_done else [100]
        if verb in ("append", "overwrite") and is_done and happened.path == "schema/schema-0":
            expected = keys_of(table)  # done on the old table, before its last look
        assert keys_of(table) == expected, f"{verb}, before {happened}"
        assert table.arrow_schema.names == (["k", "v", "x"] if verb == "add_column" and is_done else ["k", "v"])
        table.append(rows(7))
        table.expire(retain_max=1, retain_min=1, older_than_ms=EVER_MS)
        assert keys_of(table) == sorted([*expected, 7])
    assert struck >= 3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_commit_is_made_on_a_snapshot_of_the_dropped_table(count: int) -> None:
    """A late snapshot has the new table's next id: who reads it as the newest is refused, and both writers go on."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    made = lake.create_table("t", COLUMNS)
    for key in range(count):
        made.append(rows(key))
    answers: list[object] = []

    def replace_table() -> None:
        lake.drop_table("t", force=True)
        again = lake.create_table("t", COLUMNS)
        for key in range(count):
            again.append(rows(100 + key))

    def append_on_top() -> None:
        PROCESS_CACHE.clear()
        with pytest.raises(NotFound) as refused:
            lake.table("t").append(rows(500))
        answers.append(refused.value)

    store = AroundSnapshot(made.store, before=replace_table, after=append_on_top)
    Table.open(store, name="t").append(rows(9))
    assert len(answers) == 1
    assert keys_of(lake.table("t")) == [9, *range(100, 100 + count)]
    lake.table("t").append(rows(500))
    assert keys_of(lake.table("t")) == [9, *range(100, 100 + count), 500]


def test_an_expiry_hides_nothing_of_a_table_that_was_created_again() -> None:
    """An expiry that raised the boundary of a dropped table finds another table's snapshots under the same ids."""
    for prefix in ("lakebed/reclaim", "lakebed/boundary"):
        lake = lakebed.open(f"memory://{uuid.uuid4()}")
        made = lake.create_table("t", COLUMNS)
        for key in range(3):
            made.append(rows(key))
        between = Between(made.store, kind="put", prefix=prefix, happens=lambda lake=lake: create_again(lake))
        PROCESS_CACHE.clear()
        report = Table.open(between, name="t").expire(retain_max=1, retain_min=1, older_than_ms=EVER_MS)
        assert between.happened
        assert report.hidden_count == 0
        assert keys_of(lake.table("t")) == [100]


def test_what_a_dead_writer_left_in_a_dropped_table_is_dropped_with_force() -> None:
    """Without force it is no table; with force only files that tables have are deleted."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    made = lake.create_table("t", COLUMNS, partition_keys=["v"])
    made.append(rows(1))
    snapshot = bytes(made.store.get("snapshot/snapshot-1"))
    lake.drop_table("t")
    for path in ("snapshot/snapshot-1", "snapshot/LATEST", "v=1/bucket-0/data-1.parquet"):
        made.store.put(path, snapshot)
    with pytest.raises(NotFound):
        lake.drop_table("t")
    made.store.put("notes.txt", b"mine")
    with pytest.raises(NotFound):
        lake.drop_table("t", force=True)
    made.store.delete(["notes.txt"])
    lake.drop_table("t", force=True)
    assert not list(made.store.list(""))
    lake.create_table("t", COLUMNS).append(rows(2))
    assert keys_of(lake.table("t")) == [2]


def test_rows_written_before_the_table_was_created_again_are_refused() -> None:
    """Files that a writer made for the dropped table are not committed to the new one."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    table = lake.create_table("t", COLUMNS)
    writer = new_writer(table.context.look())
    writer.write(rows(1))
    changes = writer.finish()
    create_again(lake)
    with pytest.raises(Conflict, match="created again") as refused:
        commit_changes(table.context, changes)
    assert refused.value.kind == "schema_changed"
    assert keys_of(lake.table("t")) == [100]
    table.append(rows(3))
    assert keys_of(lake.table("t")) == [3, 100]


def test_a_dropped_table_is_not_taken_for_an_empty_one() -> None:
    """What needs a version of a dropped table says that it was dropped, not that nothing was ever written."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    table = lake.create_table("t", pa.schema([("id", pa.int64())]))
    for verb in (lambda: table.create_tag("a"), lambda: table.create_branch("b"), lambda: table.read(timestamp_ms=1)):
        with raises(NotFound, "table_empty"):
            verb()
    lake.drop_table("t")
    gone: list[Callable[[], object]] = [
        *(lambda: table.create_tag("a"), lambda: table.create_branch("b"), lambda: table.read(timestamp_ms=1)),
        *(lambda: table.read(version=1), lambda: table.diff("a", 2), lambda: table.rollback_to(1)),
    ]
    for verb in gone:
        with raises(NotFound, "table_not_found", match="it was dropped"):
            verb()
