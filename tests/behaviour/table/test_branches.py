"""Branches while others write, delete and die: a branch is there or it is not, and main never pays for it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import NotFound
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.reclaim import sweep
from lakebed.table.branch.branch_folder import fork_pin
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.table import Table
from lakebed.testing.between import Between
from lakebed.testing.wrapper import StoreWrapper
from worlds.meanwhile import Meanwhile
from worlds.table.world import TableWorld


def through(bench: Any, between: StoreWrapper, *, branch: str | None = None) -> Table:
    """The table as a process sees it whose calls are interposed."""
    return Table.open(between, name="t", branch=branch, environment=bench.environment)


def test_a_commit_to_a_deleted_branch_is_refused(bench: Any) -> None:
    """A writer that opened the branch before it was deleted gets an error, and does not recreate it."""
    bench.commit("a")
    fork = bench.table.create_branch("b")
    bench.commit("b1", table=fork)
    bench.table.delete_branch("b")
    with pytest.raises(NotFound, match="branch 'b' was deleted"):
        bench.commit("b2", table=fork)
    assert bench.table.branches() == []
    assert not [meta.path for meta in bench.store.list("branch") if "/snapshot/" in meta.path]


def test_a_commit_while_its_branch_is_deleted_is_not_acknowledged_and_not_left(bench: Any) -> None:
    """A snapshot that lands after the deletion listed the folder is taken back by its writer."""
    bench.commit("a")
    bench.table.create_branch("b")
    between = Between(bench.store, kind="put", prefix="manifest/", happens=lambda: bench.table.delete_branch("b"))
    with pytest.raises(NotFound, match="branch 'b' was deleted"):
        bench.commit("b1", table=through(bench, between, branch="b"))
    assert between.happened
    assert bench.table.branches() == []
    assert not [meta.path for meta in bench.store.list("branch") if "/snapshot/" in meta.path]


def test_a_branch_made_anew_starts_clean(bench: Any) -> None:
    """What a late verb left in the folder of a deleted branch says nothing about the next one of that name."""
    bench.commit("a")
    bench.table.create_branch("b")
    bench.table.delete_branch("b")
    bench.store.put("branch/branch-b/lakebed/expired-below", b"9")
    bench.store.put("branch/branch-b/snapshot/LATEST", b"7")
    assert bench.table.branches() == []
    fork = bench.table.create_branch("b")
    bench.commit("b1", table=fork)
    fork.expire(retain_max=2, retain_min=1)
    assert [snapshot.id for snapshot in fork.snapshots()] == [1, 2]


def test_a_late_deleter_leaves_the_pin_of_a_branch_made_anew(bench: Any) -> None:
    """A deletion that stood still while the branch was deleted and made again takes nothing of the new one's pin."""
    bench.commit("a")
    bench.table.create_branch("b")

    def meanwhile() -> None:
        bench.table.delete_branch("b")
        bench.commit("c")
        bench.table.create_branch("b")

    between = Between(bench.store, kind="delete", prefix="branch/branch-b/", happens=meanwhile)
    try:
        through(bench, between).delete_branch("b")
    finally:
        assert between.happened
    assert [branch.fork_snapshot_id for branch in bench.table.branches()] == [2]
    assert [snapshot.id for snapshot in bench.reopen(branch="b").snapshots()] == [2]
    assert bench.table.context.tags.find(fork_pin("b")) is not None


def test_a_deleter_that_sleeps_between_two_batches_takes_nothing_of_a_branch_made_anew(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch of many files takes several requests; between them another process deletes it, and makes it again."""
    monkeypatch.setattr(sweep, "BATCH_COUNT_MAX", 1)
    bench.commit("a")

    def fill() -> None:
        fork = bench.table.create_branch("b")
        for name in ("b1", "b2"):
            bench.commit(name, table=fork)

    def meanwhile() -> None:
        with suppress(NotFound):  # its pin is gone
            bench.reopen().delete_branch("b")
        fill()

    remade = 0
    for index in range(100):
        fill()
        after = Meanwhile(bench.store, meanwhile, at=index, after=True, counts=lambda call: call.kind == "delete")
        through(bench, after).delete_branch("b")
        if after.happened is None:
            break
        assert [snapshot.id for snapshot in bench.reopen(branch="b").snapshots()] == [1, 2, 3], index
        assert bench.table.context.tags.find(fork_pin("b")) is not None, index
        bench.reopen().delete_branch("b")
        remade += 1
    assert remade > 4


@pytest.mark.parametrize("is_foreign", [False, True])
def test_an_expiry_of_a_branch_takes_its_own_files_and_none_of_main(is_foreign: bool) -> None:
    """What was added since the fork goes with its last version; what main has stays, though the branch deleted it."""
    made = TableWorld(3)
    for _ in range(4):
        made.foreign() if is_foreign else made.commit()
    made.branch_step()
    assert made.branch is not None
    table, model = made.branch
    for _ in range(6):
        made._commit_to(table, model)
    before = made.stored()
    assert made.main.head - model.head, "the branch deleted no file of main"
    report = table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    model.snapshots = {model.last_id: model.head}
    made.check(collected=True)
    made.check_versions()
    assert report.deleted_count == len(before - made.stored()) > 0
    assert not report.warnings


def test_main_keeps_what_a_branch_of_another_client_needs(bench: Any) -> None:
    """A branch without a pin in main keeps its files when main expires and drops tags; its reads stay whole."""
    bench.commit("a")
    bench.commit("b", deleted=("a",))
    for path, target in (
        ("schema/schema-0", "branch/branch-foreign/schema/schema-0"),
        ("snapshot/snapshot-1", "branch/branch-foreign/snapshot/snapshot-1"),
    ):
        bench.store.put(target, bench.store.get(path))
    for name in ("a", "b", "c"):
        bench.store.put(f"bucket-0/{name}", b"x")
    bench.table.create_tag("one", snapshot_id=1)
    fork = bench.reopen(branch="foreign")
    needed = set(ReferencedFiles(fork.context).of(fork.snapshot(1)).to_pylist())
    bench.commit("c", deleted=("b",))
    foretold = bench.table.expire(retain_max=1, retain_min=1, dry_run=True).plan
    assert not needed & {entry.path for entry in foretold.doomed}
    bench.table.expire(retain_max=1, retain_min=1)
    bench.table.delete_tag("one")
    assert needed <= {meta.path for meta in bench.store.list("")}
    assert bench.live(fork) == ["a"]
    bench.table.delete_branch("foreign")
    bench.table.collect(grace_ms=0)
    assert "bucket-0/a" not in {meta.path for meta in bench.store.list("")}


DIRECTORY = "data-file.path-directory"


@pytest.mark.parametrize(("of_main", "of_branch"), [({}, {DIRECTORY: "files"}), ({DIRECTORY: "files"}, {})])
def test_a_branch_with_a_placement_of_its_own_keeps_its_files(
    new_bench: Any, of_main: dict[str, str], of_branch: dict[str, str]
) -> None:
    """Main finds and keeps the files of a branch whose options, set by another client, differ from main's."""
    bench = new_bench(of_main)
    rows = pa.table({"id": pa.array([1], pa.int64())})
    bench.table.append(rows)
    bench.table.create_branch("b")
    schema = json.loads(bench.store.get("branch/branch-b/schema/schema-0"))
    bench.store.put("branch/branch-b/schema/schema-1", json.dumps({**schema, "id": 1, "options": of_branch}).encode())
    main_files = {meta.path for meta in bench.store.list("")}
    bench.reopen(branch="b").append(rows)
    (path,) = (meta.path for meta in bench.store.list("") if "/data-" in meta.path and meta.path not in main_files)
    strays = {"files/bucket-0/data-stray.parquet", "bucket-0/data-stray.parquet"}
    for stray in strays:
        bench.store.put(stray, b"x")
    before = {meta.path for meta in bench.store.list("")}
    for table in (bench.reopen(), bench.reopen(branch="b")):
        assert table.why(path).pins, f"{path} of the branch is in use"
        table.collect(grace_ms=0)
    assert before - {meta.path for meta in bench.store.list("")} == strays
    report = CheckReport("memory://t", False)
    check_table(bench.reopen(), Findings(report, store="t"))
    assert not report.findings, report.findings
    bench.reopen().delete_branch("b")
    bench.reopen().collect(grace_ms=0)
    assert path not in {meta.path for meta in bench.store.list("")}
    assert bench.reopen().read()["id"].to_pylist() == [1]
