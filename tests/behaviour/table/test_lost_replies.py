"""Replies that are lost at each change of each verb: OutcomeUnknown and Unavailable leave a table that is right.

For every put and delete of a verb, as a recorded run shows them, the reply is lost: once, or for good for that object;
with the effect, or without it. Then the rows are those from before or from after the verb (after, if it returned), and
every version can be read, which shows that nothing live was discarded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.commit.commit import CommitOptions
from lakebed.table.model.model import Snapshot
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Call, Fault, FaultyStore, RecordingStore, seed_count
from worlds.table.values import SCHEMA, Rows, environment, opened, rows

BEFORE: Rows = {1: 1, 2: 20, 3: 3, 4: 4}


@cache
def base(keyed: bool, marked: bool) -> dict[str, bytes]:
    """Commits, tags on the first two, and a branch with a commit of its own.

    With keys and vectors, the newest rows are not visible before the next compaction.
    """
    store = open_store(f"memory://{uuid.uuid4()}")
    options = {"deletion-vectors.enabled": str(marked).lower()}
    keys = ["id"] if keyed else []
    if keyed:
        options |= {"bucket": "1", "compaction.size-ratio": "0"}
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys=keys, options=options, environment=environment())
    if keyed and marked:
        for values in ({n: n for n in (1, 2, 3, *range(100, 1000))}, {2: 20, 4: 4}):
            table.upsert(rows(values))
            table.compact()
        table.delete(keys=pa.table({"id": range(100, 1000)}))
        table.compact()
        table.upsert(rows({2: 21, 9: 9}))
        table.delete(keys=pa.table({"id": [3]}))
    elif marked:
        table.write(rows({1: 1, 2: 20}))
        table.write(rows({3: 3}))
        table.write(rows({4: 4, 5: 5, 6: 6}))
        table.delete("id = 5")
        table.delete("id = 6")
    else:
        table.write(rows({1: 1, 2: 20}))
        table.write(rows({3: 3}))
        table.write(rows({4: 4}))
    table.create_tag("one", snapshot_id=1)
    table.create_tag("two", snapshot_id=2)
    table.create_branch("b", tag="two").write(rows({50: 50}))
    return {meta.path: bytes(store.get(meta.path)) for meta in store.list("")}


@dataclass(frozen=True)
class Verb:
    """A verb, and the rows that the table has after it."""

    run: Callable[[Table], object]
    after: Rows
    keyed: bool = False
    marked: bool = False
    """Whether the table has deletion vectors, of which the newest deletes a row of the first file."""


VERBS = {
    "append": Verb(lambda table: table.append(rows({9: 9})), {**BEFORE, 9: 9}),
    "delete": Verb(lambda table: table.delete("v = 20"), {1: 1, 3: 3, 4: 4}),
    "mark": Verb(lambda table: table.delete("id = 1 or id = 4"), {2: 20, 3: 3}, marked=True),
    "compact_marked": Verb(lambda table: table.compact(full=True), BEFORE, marked=True),
    "expire_marked": Verb(lambda table: table.expire(retain_max=1, retain_min=1, older_than_ms=0), BEFORE, marked=True),
    "delete_tag_marked": Verb(lambda table: table.delete_tag("one", "two"), BEFORE, marked=True),
    "rollback_marked": Verb(lambda table: table.rollback_to(4), {**BEFORE, 6: 6}, marked=True),
    "upsert_unseen": Verb(lambda table: table.upsert(rows({1: 11})), BEFORE, keyed=True, marked=True),
    "look_up": Verb(lambda table: table.compact(), {1: 1, 2: 21, 4: 4, 9: 9}, keyed=True, marked=True),
    "overwrite": Verb(lambda table: table.overwrite(rows({7: 7})), {7: 7}),
    "compact": Verb(lambda table: table.compact(full=True), BEFORE),
    "upsert": Verb(lambda table: table.upsert(rows({2: 21, 9: 9})), {1: 1, 2: 21, 3: 3, 4: 4, 9: 9}, keyed=True),
    "delete_keys": Verb(lambda table: table.delete(keys=pa.table({"id": [3]})), {1: 1, 2: 20, 4: 4}, keyed=True),
    "delete_where": Verb(lambda table: table.delete("v < 4"), {2: 20, 4: 4}, keyed=True),
    "compact_keyed": Verb(lambda table: table.compact(full=True), BEFORE, keyed=True),
    "create_tag": Verb(lambda table: table.create_tag("new"), BEFORE),
    "replace_tag": Verb(lambda table: table.replace_tag("one", snapshot_id=3), BEFORE),
    "rename_tag": Verb(lambda table: table.rename_tag("one", "uno"), BEFORE),
    "delete_tag": Verb(lambda table: table.delete_tag("one", "two"), BEFORE),
    "create_branch": Verb(lambda table: table.create_branch("new", tag="one"), BEFORE),
    "delete_branch": Verb(lambda table: table.delete_branch("b"), BEFORE),
    "commit_in_branch": Verb(lambda table: opened(table.store, "b").append(rows({9: 9})), BEFORE),
    "rollback_to": Verb(lambda table: table.rollback_to("tag.two"), {1: 1, 2: 20, 3: 3}),
    "rollback_to_as_latest": Verb(lambda table: table.rollback_to_as_latest(1), {1: 1, 2: 20}),
    "expire": Verb(lambda table: table.expire(retain_max=1, retain_min=1, older_than_ms=0), BEFORE),
    "add_column": Verb(lambda table: table.add_column("w", "STRING"), BEFORE),
}
MODES = [(fault, for_good) for fault in (Fault.LOST_REPLY, Fault.LOST_REQUEST) for for_good in (False, True)]


def modes_of(call: Call, number: int) -> list[tuple[Fault, bool]]:
    """The modes of a call. Of files with names of their own one by turns, in a long run all.

    Until something names such a file it does not matter whether it is there.
    """
    is_named_by_nothing = call.kind == "put" and call.path.startswith(("manifest/", "bucket-"))
    if not is_named_by_nothing or seed_count(1) > 1:
        return MODES
    return [MODES[number % len(MODES)]]


def copied(verb: Verb) -> ObjectStore:
    """A store of its own with the objects of `base`."""
    store = open_store(f"memory://{uuid.uuid4()}")
    for path, body in base(verb.keyed, verb.marked).items():
        store.put(path, body)
    return store


def rows_of(table: Table, version: int | str | None = None) -> Rows:
    """What a version has, as a dictionary; every row once."""
    rows = table.read(version=version)
    values = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(values) == rows.num_rows, "a row is there twice"
    return values


def check(store: ObjectStore, verb: Verb, *, acknowledged: bool, deep: bool = True) -> None:
    """The rows are right, all versions of all branches can be read, and (if `deep`) the check finds no error."""
    table = opened(store)
    assert rows_of(table) in ([verb.after] if acknowledged else [BEFORE, verb.after])
    lines = [table, *(opened(store, branch.name) for branch in table.branches())]
    for line in lines:
        for version in [*(snapshot.id for snapshot in line.snapshots()), *(f"tag.{tag.name}" for tag in line.tags())]:
            rows_of(line, version)
    if not deep:
        return
    report = CheckReport(table.url, deep=False)
    check_table(table, Findings(report, store="t"))
    assert not report.error_count, [finding.sentence for finding in report.findings if finding.severity == "error"]


def losing(store: ObjectStore, index: int, fault: Fault, *, for_good: bool) -> FaultyStore:
    """A store that loses the reply to one call, and for good also those to all later calls on the same object."""
    lost: set[str] = set()

    def decide(at: int, call: Call) -> Fault | None:
        if at == index:
            lost.add(call.path)
            return fault
        return fault if for_good and call.path in lost else None

    return FaultyStore(store, faults=decide)


LONG = (
    *("upsert_unseen", "look_up", "rollback_to"),
    *("compact_marked", "expire_marked", "delete_tag_marked", "rollback_marked"),
    *("replace_tag", "rename_tag", "delete_tag", "expire", "create_branch", "delete_branch"),
)
"""Verbs whose run without deletion vectors, with crashes, or with lost replies of every call is in every test run.

`test_crash_points` loses a reply of every call of those that write no rows; here, `create_tag` stands for them.
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in VERBS]
)
def test_lost_replies(name: str) -> None:
    """With any replies of a verb's changes lost, the table has the rows from before or after it, all readable."""
    verb = VERBS[name]
    recorded = RecordingStore(copied(verb))
    table = opened(recorded)
    start = len(recorded.trace)
    verb.run(table)
    check(recorded.inner, verb, acknowledged=True)
    calls = [(item.index, item.call) for item in recorded.trace[start:] if item.call.changes]
    assert calls
    raised = set()
    for number, (index, call) in enumerate(calls):
        for fault, for_good in modes_of(call, number):
            store = copied(verb)
            faulty = losing(store, index, fault, for_good=for_good)
            acknowledged = False
            try:
                verb.run(opened(faulty))
                acknowledged = True
            except (OutcomeUnknown, Unavailable, Conflict) as error:
                raised.add(type(error))
            assert faulty.met, f"call {index} ({call}) was not met"
            try:
                if for_good:
                    opened(store).expire(retain_max=1, retain_min=1, older_than_ms=0)
                check(store, verb, acknowledged=acknowledged, deep=for_good)
            except (AssertionError, LakebedError) as error:
                raise AssertionError(f"{name}, call {index} ({call}), {fault.name}, {for_good=}: {error}") from error
    if name in ("append", "upsert", "delete", "mark", "overwrite", "create_tag", "commit_in_branch", "rollback_to"):
        assert OutcomeUnknown in raised


def data_files(store: ObjectStore) -> set[str]:
    """The data files that are stored."""
    return {meta.path for meta in store.list("") if "/data-" in meta.path}


def test_a_repeated_commit_leaves_no_file_of_its_own() -> None:
    """Under its own identifier, after any reply of the first commit was lost: one commit, and all its files are there.

    Without a lost reply, and wherever the repetition finds the first commit, no other data file is left of it.
    """
    pair: CommitOptions = {"commit_user": "job", "commit_identifier": 5}
    verbs: dict[str, Callable[[Table], object]] = {
        "append": lambda table: table.append(rows({9: 9}), **pair),
        "overwrite": lambda table: table.overwrite(rows({9: 9}), **pair),
        "upsert": lambda table: table.upsert(rows({9: 9}), **pair),
    }
    for name, run in verbs.items():
        verb = Verb(run, {9: 9} if name == "overwrite" else {**BEFORE, 9: 9}, keyed=name == "upsert")
        recorded = RecordingStore(copied(verb))
        table = opened(recorded)
        start = len(recorded.trace)
        run(table)
        calls = [call.index for call in recorded.trace[start:] if call.call.changes]
        before, newest = data_files(recorded.inner), opened(recorded.inner).latest()
        for _ in range(2):
            assert run(opened(recorded.inner)) == newest, name
            assert data_files(recorded.inner) == before, name
        found_count = 0
        for index in calls:
            store = copied(verb)
            with suppress(OutcomeUnknown, Unavailable):
                run(opened(losing(store, index, Fault.LOST_REPLY, for_good=True)))
            newest, files = opened(store).latest(), data_files(store)
            again = run(opened(store))
            check(store, verb, acknowledged=True, deep=False)
            if again == newest:
                found_count += 1
                assert data_files(store) == files, (name, index)
        assert found_count > 0, name


def test_files_that_the_caller_wrote_stay_when_their_commit_is_repeated() -> None:
    """`Table.commit` of the same changes: their files may be those of the first commit, and are."""
    store = copied(VERBS["append"])
    table = opened(store)
    writer = new_writer(table.context.look())
    writer.write(rows({9: 9}))
    changes = writer.finish()
    first = commit_changes(table.context, changes, options={"commit_user": "job", "commit_identifier": 5})
    assert (
        commit_changes(opened(store).context, changes, options={"commit_user": "job", "commit_identifier": 5}) == first
    )
    assert rows_of(opened(store)) == {**BEFORE, 9: 9}


def test_files_of_a_commit_that_was_tried_are_left_alone() -> None:
    """Another process commits under the pair between the look and the put: what was tried is left to the search."""
    store = copied(VERBS["append"])
    before = data_files(store)
    pair: CommitOptions = {"commit_user": "job", "commit_identifier": 5}
    first: list[Snapshot] = []

    def decide(_: int, call: Call) -> None:
        if call.kind == "put" and call.path.startswith("snapshot/snapshot-") and not first:
            first.append(opened(store).append(rows({9: 9}), **pair))

    assert opened(FaultyStore(store, faults=decide)).append(rows({9: 9}), **pair) == first[0]
    table = opened(store)
    assert rows_of(table) == {**BEFORE, 9: 9}
    assert len(data_files(store) - before) == 2
    table.collect(grace_ms=0)
    assert len(data_files(store) - before) == 1
    assert rows_of(opened(store)) == {**BEFORE, 9: 9}
