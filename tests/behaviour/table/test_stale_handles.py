"""Handles that have not seen the newest schema: every verb looks, so nothing of what others added is lost or hidden."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed import Lake
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.branches import every_branch
from lakebed.table.compaction.compact import compact, run_task
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table, branch_of
from worlds.meanwhile import Meanwhile, is_put_below

Values = list[tuple[Any, ...]]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int32())])
READ_AT_ONCE = {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "append with vectors": {"options": {"deletion-vectors.enabled": "true"}},
    "keyed": {"primary_keys": "k"},
    "keyed with vectors": {"primary_keys": "k", "options": READ_AT_ONCE},
    "dynamic buckets": {"primary_keys": "k", "options": {"bucket": "-1"}},
}
OLD: Values = [(1, 10, None), (2, 20, None)]
NEW = (3, 30, "three")
EVER = 2**60


def rows_of(table: Table, **version: Any) -> Values:
    """The rows of a version as tuples, in the order of their keys."""
    read = table.read(**version)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True), key=lambda row: row[0])


@dataclass
class Two:
    """A table, a handle of it that is never refreshed, and one that changes the schema."""

    store: ObjectStore
    stale: Table
    other: Table

    @classmethod
    def of(cls, store: ObjectStore | None = None, **table: Any) -> Two:
        """A table of two rows."""
        store = store or open_store(f"memory://stale-{uuid.uuid4()}")
        other = Table.create(store, name="t", schema=SCHEMA, **table)
        other.write(pa.table({"k": [1, 2], "v": [10, 20]}, SCHEMA))
        return cls(store, Table.open(store, name="t"), other)

    def rows(self, **version: Any) -> Values:
        """What a new handle reads."""
        return rows_of(Table.open(self.store, name="t"), **version)

    def add_column(self) -> None:
        """The other handle adds column x and writes a row with it."""
        self.other.add_column("x", "STRING")
        self.other.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))

    def schema_ids(self) -> list[int]:
        """Of all snapshots, oldest first."""
        return [snapshot.schema_id for snapshot in self.other.snapshots()]


@pytest.fixture(params=KINDS)
def two(request: pytest.FixtureRequest) -> Two:
    """A table of each kind, and its two handles."""
    return Two.of(**KINDS[request.param])


def test_a_compaction_keeps_columns_that_its_handle_has_not_seen(two: Two) -> None:
    """A full compaction by a handle older than a column keeps its values, also after expiry."""
    two.add_column()
    two.stale.compact(full=True)
    two.stale.expire(retain_max=1, retain_min=1, older_than_ms=EVER)
    assert two.rows() == [*OLD, NEW]
    assert two.schema_ids() == [1]


def test_a_compaction_by_an_old_handle_keeps_widened_values(two: Two) -> None:
    """After a widening by another handle, values beyond the old type survive the compaction."""
    two.other.widen_column("v", "BIGINT")
    two.other.write(pa.table({"k": [3], "v": [2**40]}))
    two.stale.compact(full=True)
    assert two.rows() == [(1, 10), (2, 20), (3, 2**40)]


def test_versions_and_tags_have_the_columns_of_their_rows(two: Two) -> None:
    """What an old handle commits, by any verb, has the newest columns, and so has a tag of it."""
    verbs: list[tuple[Callable[[Table], object], Values]] = [
        (lambda table: table.delete("k = 1"), [OLD[1], NEW]),
        (lambda table: table.update("k = 2", {"v": 21}), [(2, 21, None), NEW]),
        (lambda table: table.update("k = 3", {"x": "tres"}), [(2, 21, None), (3, 30, "tres")]),
        (lambda table: table.compact(full=True), [(2, 21, None), (3, 30, "tres")]),
        (lambda table: commit_changes(table.context, []), [(2, 21, None), (3, 30, "tres")]),
        (lambda table: table.overwrite(pa.table({"k": [4], "v": [4], "x": ["four"]})), [(4, 4, "four")]),
        (lambda table: table.write(pa.table({"k": [5], "v": [5], "x": ["five"]})), [(4, 4, "four"), (5, 5, "five")]),
        (lambda table: table.rollback_to_as_latest(2), [*OLD, NEW]),
        (lambda table: table.rollback_to(1), OLD),
    ]
    handles = [Table.open(two.store, name="t") for _ in verbs]
    two.add_column()
    for number, ((verb, expected), handle) in enumerate(zip(verbs, handles, strict=True)):
        verb(handle)
        handle.create_tag(f"t{number}")
        assert two.rows() == expected
        assert two.rows(tag=f"t{number}") == expected
    ids = two.schema_ids()
    assert ids == sorted(ids)


def test_a_pickled_handle_looks_too(tmp_path: Path) -> None:
    """A handle that was pickled before a column was added keeps the column when it compacts and deletes."""
    two = Two.of(open_store(str(tmp_path), durable=False))
    kept = pickle.dumps(two.stale)
    two.add_column()
    pickle.loads(kept).compact(full=True)
    pickle.loads(kept).delete("x is null")
    assert two.rows() == [NEW]
    assert rows_of(pickle.loads(kept)) == [NEW]


def test_a_handle_of_a_branch_looks_at_the_schemas_of_the_branch() -> None:
    """An old handle of a branch keeps the branch's columns, and main's handle publishes them."""
    two = Two.of()
    stale, other = two.stale.create_branch("dev"), branch_of(two.other, "dev")
    other.add_column("x", "STRING")
    other.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))
    stale.compact(full=True)
    stale.delete("k = 1")
    assert rows_of(stale) == [OLD[1], NEW]
    assert rows_of(two.stale) == [(1, 10), (2, 20)]
    two.stale.fast_forward("dev")
    assert rows_of(two.other) == [OLD[1], NEW]
    two.stale.compact(full=True)
    assert two.rows() == [OLD[1], NEW]


def test_a_handle_of_a_branch_does_not_take_mains_schema() -> None:
    """Main and a branch that both changed their columns have other schemas of one id: each is read by its own."""
    two = Two.of()
    two.stale.create_branch("dev")
    dev = branch_of(two.other, "dev")
    dev.add_column("x", "STRING")
    dev.write(pa.table({"k": [3], "v": [30], "x": ["three"]}))
    two.other.add_column("y", "INT")
    two.other.write(pa.table({"k": [4], "v": [40], "y": [4]}))
    assert rows_of(two.stale) == [*OLD, (4, 40, 4)]
    assert rows_of(two.stale, version="branch.dev") == [*OLD, NEW]
    assert two.stale.system("options", version="branch.dev").num_rows == 0
    assert [field.name for field in every_branch(two.stale.context)[1].schema.fields] == ["k", "v", "x"]


def test_reading_verbs_show_the_newest_columns(two: Two) -> None:
    """Reads, changes, differences and system tables of an old handle are those of a new one."""
    two.add_column()
    assert rows_of(two.stale) == [*OLD, NEW]
    old = Table.open(two.store, name="t")
    two.other.rename_column("x", "y")
    two.other.write(pa.table({"k": [4], "v": [4], "y": ["four"]}))
    fresh = Table.open(two.store, name="t")
    assert old.changes(1).equals(fresh.changes(1))
    assert old.diff(1).counts == fresh.diff(1).counts
    for name in ("snapshots", "schemas", "options", "files", "audit_log", "manifests", "partitions"):
        assert old.system(name).equals(fresh.system(name)), name
    assert old.read(where="y = 'four'").num_rows == 1


def test_a_dropped_column_is_refused_by_old_handles_too(two: Two) -> None:
    """Rows, predicates and assignments with a column that another handle dropped are refused; nothing is changed."""
    handles = [Table.open(two.store, name="t") for _ in range(5)]
    two.other.drop_column("v")
    rows = pa.table({"k": [3], "v": pa.array([30], pa.int32())})
    assert two.stale.schema.field_by_name("v") is not None
    with pytest.raises(InvalidRequest, match="'v' does not exist"):
        two.stale.write(rows)
    two.other.add_column("w", "INT")
    verbs: list[Callable[[Table], object]] = [
        lambda table: table.write(rows.to_reader()),
        lambda table: table.delete("v = 10"),
        lambda table: table.update("k = 1", {"v": 1}),
        lambda table: table.overwrite(rows),
        lambda table: table.read(where="v = 10"),
    ]
    for handle, verb in zip(handles, verbs, strict=True):
        with pytest.raises(InvalidRequest, match="'v' does not exist"):
            verb(handle)
    assert two.rows() == [(1, None), (2, None)]


def test_an_old_name_that_is_another_column_now_is_that_column(two: Two) -> None:
    """After a drop and an addition of the same name, an old handle finds and changes the new column alone."""
    two.other.drop_column("v")
    two.other.add_column("v", "INT")
    assert two.stale.delete("v = 10") is None
    two.stale.update("k = 1", {"v": 7})
    assert two.rows() == [(1, 7), (2, None)]


def test_an_option_that_a_handle_has_not_seen_counts() -> None:
    """A write by an old handle logs what changelog-producer asks for, and tags live as long as the newest default."""
    two = Two.of(primary_keys="k")
    stale = [Table.open(two.store, name="t") for _ in range(5)]
    two.other.set_options({"changelog-producer": "input", "tag.default-time-retained": "1 d"})
    rows = pa.table({"k": [1], "v": [11]}, SCHEMA)
    logged = [stale[0].write(rows), stale[1].delete("k = 2"), stale[2].update("k = 1", {"v": 12})]
    logged.append(commit_changes(stale[3].context, []))
    assert [snapshot is not None and snapshot.changelog_record_count for snapshot in logged[:3]] == [1, 1, 1]
    assert two.stale.changes(1)["_row_kind"].to_pylist()[0] == "+I"
    assert stale[4].create_tag("kept").lifetime_ms == 86_400_000


def test_vectors_that_another_handle_turned_on_count() -> None:
    """A row that vectors delete stays deleted for a handle that has not seen the option, and in what it writes."""
    two = Two.of()
    old = Table.open(two.store, name="t")
    two.other.set_options({"deletion-vectors.enabled": "true"})
    two.other.delete("k = 1")
    assert rows_of(two.stale) == [(2, 20)]
    old.compact(full=True)
    assert two.rows() == [(2, 20)]


# ---- rows that were made under an older schema


def held(two: Two) -> list[BucketChange]:
    """Rows that a writer made before the schema changed."""
    writer = new_writer(two.stale.context.look())
    writer.write(pa.table({"k": [2, 4], "v": [21, 40]}, SCHEMA))
    return writer.finish()


def test_rows_of_an_older_schema_are_carried_into_an_append_table() -> None:
    """As readers read them: null in what was added, renamed and widened with their column."""
    two = Two.of()
    changes = held(two)
    two.add_column()
    two.other.rename_column("v", "w")
    two.other.widen_column("w", "BIGINT")
    snapshot = commit_changes(two.stale.context, changes)
    assert snapshot.schema_id == 3
    assert two.rows(tag=two.stale.create_tag("t").name) == [OLD[0], OLD[1], (2, 21, None), NEW, (4, 40, None)]


def test_rows_without_a_column_do_not_erase_it_in_an_upsert() -> None:
    """In a primary-key table they are refused, as new rows without it are; with partial-update they change the rest."""
    two = Two.of(primary_keys="k")
    changes = held(two)
    two.add_column()
    two.other.write(pa.table({"k": [2], "v": [22], "x": ["two"]}))
    with pytest.raises(Conflict, match=r"made under schema 0.* schema 1.* open the table again") as refused:
        commit_changes(two.stale.context, changes)
    assert refused.value.kind == "schema_changed"
    assert two.rows() == [OLD[0], (2, 22, "two"), NEW]
    partial = Two.of(primary_keys="k", options={"merge-engine": "partial-update"})
    changes = held(partial)
    partial.add_column()
    partial.other.write(pa.table({"k": [2], "x": ["two"]}))
    commit_changes(partial.stale.context, changes)
    assert partial.rows() == [OLD[0], (2, 21, "two"), NEW, (4, 40, None)]


def test_rows_that_were_not_logged_are_refused_where_they_must_be() -> None:
    """A writer from before changelog-producer was set: its commit is a conflict, not a snapshot without a log."""
    two = Two.of(primary_keys="k")
    changes = held(two)
    two.other.set_options({"changelog-producer": "input"})
    with pytest.raises(Conflict) as refused:
        commit_changes(two.stale.context, changes)
    assert refused.value.kind == "schema_changed"
    two.other.remove_options(["changelog-producer"])
    assert commit_changes(two.stale.context, changes).schema_id == 2


def test_a_rewrite_does_not_go_back_behind_the_columns_that_it_read() -> None:
    """Files that were written under an older schema than those they replace are a conflict."""
    two = Two.of()
    behind = held(two)
    two.add_column()
    live = [file for split in two.other.scan().splits() for file in split.files]
    with pytest.raises(Conflict) as refused:
        commit_changes(two.stale.context, [replace(behind[0], deleted=tuple(live))], kind="OVERWRITE")
    assert refused.value.kind == "schema_changed"
    assert two.rows() == [*OLD, NEW]


# ---- changes while a verb runs


@pytest.fixture
def interrupted() -> tuple[Two, Meanwhile]:
    """A keyed table whose old handle is interrupted."""
    two = Two.of(primary_keys="k")
    two.other.write(pa.table({"k": [2], "v": [20]}, SCHEMA))
    store = Meanwhile(two.store)
    two.stale = Table.open(store, name="t")
    return two, store


def test_a_column_that_is_added_during_a_compaction_is_kept_and_shown() -> None:
    """While tasks run, another writer adds a column and a row: the compaction's version and its tag have both."""
    two = Two.of()
    two.other.write(pa.table({"k": [4], "v": [40]}, SCHEMA))

    def tasks_and_column(tasks: Any, plan: Any) -> list[BucketChange]:
        two.add_column()
        return [run_task(two.store, task, plan=plan, environment=two.stale.context.environment) for task in tasks]

    report = compact(two.stale.context, full=True, run_tasks=tasks_and_column)
    assert report.snapshot is not None
    assert report.snapshot.schema_id == 1
    assert two.rows(tag=two.stale.create_tag("t").name) == [*OLD, NEW, (4, 40, None)]


def add_and_commit(two: Two) -> None:
    """The other handle adds one more column, and commits."""
    two.other.add_column("y", "INT")
    two.other.write(pa.table({"k": [3], "v": [30], "x": ["three"], "y": [3]}))


@pytest.mark.parametrize("folder", ["bucket-0", "manifest", "snapshot"])
def test_a_schema_that_is_added_during_a_commit_does_not_go_back(
    interrupted: tuple[Two, Meanwhile], folder: str
) -> None:
    """Another writer adds a column and commits before the files, the manifests or the snapshot are put."""
    two, store = interrupted
    store.expect(two.add_column, counts=is_put_below(folder))
    two.stale.compact(full=True)
    assert store.happened is not None
    store.expect(partial(add_and_commit, two), counts=is_put_below(folder))
    two.stale.delete("k = 1")
    ids = two.schema_ids()
    assert ids == sorted(ids)
    assert ids[-1] == 2
    assert two.rows() == [(*OLD[1], None), (*NEW, 3)]


def set_producer(two: Two) -> None:
    """The other handle sets an option."""
    two.other.set_options({"changelog-producer": "input"})


def test_an_option_that_is_set_while_rows_are_written_counts(interrupted: tuple[Two, Meanwhile]) -> None:
    """changelog-producer is set while data files are put: the write is repeated, and logs; no file is left."""
    two, store = interrupted
    store.expect(partial(set_producer, two), counts=is_put_below("bucket-0"))
    snapshot = two.stale.write(pa.table({"k": [3], "v": [30]}, SCHEMA))
    assert (snapshot.changelog_record_count, snapshot.schema_id) == (1, 1)
    report = two.other.collect(grace_ms=0, dry_run=True)
    assert report.plan is not None
    assert not report.plan.doomed


def test_full_compactions_log_over_a_change_of_columns() -> None:
    """With changelog-producer = full-compaction, files of several schemas are moved, merged and logged."""
    two = Two.of(primary_keys="k", options={"changelog-producer": "full-compaction"})
    two.add_column()
    two.stale.compact(full=True)
    two.other.add_column("y", "INT")
    two.stale.compact(full=True)
    two.other.write(pa.table({"k": [1], "v": [11], "x": ["one"], "y": [1]}))
    two.stale.compact(full=True)
    assert two.rows() == [(1, 11, "one", 1), (2, 20, None, None), (3, 30, "three", None)]
    kinds = two.stale.changes(0 + 1)["_row_kind"].to_pylist()
    assert sorted(kinds) == ["+I", "+I", "+I", "+U", "-U"]


def test_a_moved_file_of_an_older_schema_is_logged() -> None:
    """A file that only moves to the highest level after a change of columns is logged with the new column as null."""
    two = Two.of(primary_keys="k", options={"changelog-producer": "full-compaction"})
    two.other.add_column("x", "STRING")
    snapshot = two.other.compact(full=True).snapshot
    assert snapshot is not None
    assert snapshot.changelog_record_count == 2


# ---- what it costs, and what is gone


def test_a_verb_looks_with_one_request() -> None:
    """A read lists schemas once, an append once (in its commit), and both read no schema again."""
    two = Two.of()
    two.stale.read()
    with two.store.count() as requests:
        two.stale.read(limit=0)
    assert requests.list == 2, "the boundary and the schemas"
    two.stale.append(pa.table({"k": [3], "v": [3]}, SCHEMA))
    with two.store.count() as requests:
        two.stale.append(pa.table({"k": [4], "v": [4]}, SCHEMA))
    assert (requests.list, requests.get, requests.head) == (2, 1, 2)


def test_threads_that_share_a_handle_do_not_move_each_others_schema() -> None:
    """A context that looked keeps its schema when the handle sees a newer one, and the handle sees what it saw."""
    two = Two.of()
    looked = two.stale.context.look()
    two.add_column()
    assert two.stale.refresh().id == 1
    assert (looked.schema.id, two.stale.schema.id) == (0, 1)
    looked.refresh()
    two.other.add_column("y", "INT")
    looked.refresh()
    assert two.stale.schema.id == 2


def test_a_table_that_was_dropped_is_not_written_to() -> None:
    """An old handle of a table that is gone says so, and puts nothing into its folder."""
    two = Two.of()
    two.store.delete([meta.path for meta in two.store.list("")])
    with pytest.raises(NotFound, match="no table at"):
        two.stale.write(pa.table({"k": [3], "v": [3]}, SCHEMA))
    assert not [meta.path for meta in two.store.list("") if "snapshot" in meta.path]


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_table_that_was_created_again_is_the_new_one_for_old_handles(is_changed: bool) -> None:
    """An old handle of a table that was dropped and created again takes the new table's columns.

    Also where the id of the new schema is that of an earlier, or of the newest schema of the old table.
    """
    two = Two.of()
    row: dict[str, list[object]] = {"k": [3], "v": [3]}
    if is_changed:
        two.other.add_column("x", "STRING")
        row["x"] = ["three"]
    two.stale.write(pa.table(row))
    two.store.delete([meta.path for meta in two.store.list("")])
    again = Table.create(two.store, name="t", schema=pa.schema([("z", pa.int64())]))
    with pytest.raises(InvalidRequest, match="does not exist"):
        two.stale.write(pa.table(row))
    two.stale.write(pa.table({"z": [1]}))
    assert rows_of(again) == [(1,)]


@pytest.mark.parametrize("verb", ["append", "delete", "compact"])
@pytest.mark.parametrize("branch", [None, "b"])
def test_an_old_handle_commits_behind_the_newest_version_of_a_table_that_was_created_again(
    branch: str | None, verb: str
) -> None:
    """And not above ids that the old one's expiry had passed: others, who do not find it there, would commit below."""
    lake = Lake.open(open_store(f"memory://again-{uuid.uuid4()}"))

    def create() -> Table:
        table = lake.create_table("t", SCHEMA)
        table.append(pa.table({"k": [0], "v": [0]}, SCHEMA))
        if branch is not None:
            table.create_tag("start")
            table.create_branch(branch, tag="start")
        return lake.table("t", branch=branch)

    old = create()
    for number in range(1, 6):
        old.append(pa.table({"k": [number], "v": [number]}, SCHEMA))
    old.expire(retain_max=1, retain_min=1, older_than_ms=EVER)
    assert old.context.snapshots.log.boundary() > 4
    old.append(pa.table({"k": [6], "v": [6]}, SCHEMA))
    if branch is None:
        lake.drop_table("t")
        other = create()
    else:
        lake.table("t").delete_branch(branch)
        lake.table("t").create_branch(branch, tag="start")
        other = lake.table("t", branch=branch)
    other.append(pa.table({"k": [7], "v": [7]}, SCHEMA))
    expected = {0: 0, 7: 7, 8: 8}
    if verb == "append":
        old.append(pa.table({"k": [9], "v": [9]}, SCHEMA))
        expected[9] = 9
    elif verb == "delete":
        old.delete("k = 0")
        del expected[0]
    else:
        old.compact(full=True)
    other.append(pa.table({"k": [8], "v": [8]}, SCHEMA))
    for table in (lake.table("t", branch=branch), old, other):
        read = table.read()
        assert dict(zip(read["k"].to_pylist(), read["v"].to_pylist(), strict=True)) == expected
    ids = [snapshot.id for snapshot in other.snapshots()]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


@pytest.mark.parametrize("was_keyed", [False, True])
def test_a_table_that_was_created_again_with_another_key_is_written_as_what_it_is(was_keyed: bool) -> None:
    """By an old handle no append replaces rows, and no upsert adds rows of a key that there is."""
    kinds: list[dict[str, Any]] = [{"primary_keys": "k"} if keyed else {} for keyed in (was_keyed, not was_keyed)]
    two = Two.of(**kinds[0])
    two.store.delete([meta.path for meta in two.store.list()])
    Table.create(two.store, name="t", schema=SCHEMA, **kinds[1]).write(pa.table({"k": [1, 2], "v": [10, 20]}, SCHEMA))
    rows = pa.table({"k": [2, 3], "v": [21, 30]}, SCHEMA)
    with pytest.raises(InvalidRequest, match="primary key"):
        two.stale.upsert(rows) if was_keyed else two.stale.append(rows)
    again = two.other  # which has not looked either
    again.append(rows) if was_keyed else again.upsert(rows)
    read = Table.open(two.store, name="t").read()
    expected = [(1, 10), (2, 20), (2, 21), (3, 30)] if was_keyed else [(1, 10), (2, 21), (3, 30)]
    assert sorted(zip(read["k"].to_pylist(), read["v"].to_pylist(), strict=True)) == expected


def test_a_schema_change_by_an_old_handle_is_one_of_the_new_table() -> None:
    """Of a table that was dropped and created again with as many schemas, an old handle changes the new columns."""
    two = Two.of()
    two.stale.add_column("x", "STRING")
    two.store.delete([meta.path for meta in two.store.list("")])
    again = Table.create(two.store, name="t", schema=pa.schema([("z", pa.int64())]))
    again.add_column("y", "INT")
    assert [field.name for field in two.stale.add_column("w", "INT").fields] == ["z", "y", "w"]


def test_a_branch_that_goes_while_all_are_listed_is_left_out() -> None:
    """A search for orphans does not end because a branch was deleted after it was listed."""
    two = Two.of()
    two.other.create_branch("dev")
    store = Meanwhile(
        two.store,
        partial(two.other.delete_branch, "dev"),
        counts=lambda call: call.kind == "list" and call.path.startswith("branch/branch-dev/schema"),
    )
    stale = Table.open(store, name="t")
    assert [item.branch for item in every_branch(stale.context)] == [None]
