"""Commits: what a snapshot says, what a race costs, what a replay is, and what a commit leaves behind."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import entries_of_changes, files_of
from lakebed.table.commit.commit import Basis, CommitRequest, StagedChange, commit
from lakebed.table.model.model import BucketChange, CommitKind, Snapshot
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing import Call, ManualClock, PowerLossStore, RecordingStore

R = TypeVar("R")


def lose_races(bench: Any, rival: Any, count: int) -> None:
    """Let a rival commit right before each of the next `count` snapshot puts."""
    original = bench.table.context.snapshots.append
    left = [count]

    def append(snapshot: Snapshot, **options: Any) -> None:
        if left[0]:
            left[0] -= 1
            rival()
        original(snapshot, **options)

    bench.table.context.snapshots.append = append


def manifests(store: ObjectStore) -> set[str]:
    return {meta.path for meta in store.list("manifest")}


def referenced(bench: Any) -> set[str]:
    """Every manifest and list that some snapshot names."""
    names = set()
    for snapshot in bench.table.snapshots():
        names |= {snapshot.base_manifest_list, snapshot.delta_manifest_list}
        names |= {meta.file_name for meta in bench.table.context.manifests.all_metas(snapshot)}
    return {f"manifest/{name}" for name in names}


def test_the_first_commit_is_snapshot_one(bench: Any) -> None:
    """Ids start at 1, counts add up, and the hints are there for other clients."""
    snapshot = bench.commit("a", "b")
    assert (snapshot.id, snapshot.total_record_count, snapshot.delta_record_count) == (1, 20, 20)
    assert bench.commit("c").total_record_count == 30
    assert bytes(bench.store.get("snapshot/LATEST")) == b"2"
    assert bytes(bench.store.get("snapshot/EARLIEST")) == b"1"


def test_an_append_costs_ten_requests_whatever_came_before(bench: Any) -> None:
    """1 GET, 2 HEADs, 5 PUTs and 2 LISTs: constant over fifty snapshots, but for a merge's one manifest."""
    bench.commit("first")
    for number in range(50):
        with bench.store.count() as requests:
            bench.commit(f"f{number}")
        merged = requests.put - 5
        assert (requests.get, requests.head, requests.list, requests.delete) == (1, 2, 2, 0)
        assert merged in (0, 1)
    metas = bench.table.context.manifests.all_metas(bench.table.latest())
    assert len(metas) < 32


def test_what_a_snapshot_names_is_durable_before_it() -> None:
    """Whatever the power takes at the moment of its put: data files, changelogs, manifests, lists, and the index."""
    volatile: list[list[str]] = []

    class Watched(PowerLossStore):
        def intercept(self, call: Call, perform: Callable[[], R]) -> R:
            if call.kind == "put" and call.path.startswith("snapshot/snapshot-"):
                volatile.append([path for path in self.volatile_paths if not path.startswith("snapshot/")])
            return super().intercept(call, perform)

    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    options = {"bucket": "-1", "changelog-producer": "input", "manifest.merge-min-count": "3"}
    store = Watched(open_store(f"memory://{uuid.uuid4()}"))
    table = Table.create(store, name="t", schema=rows.schema, primary_keys="id", options=options)
    for _ in range(5):
        table.upsert(rows)
    stored = [meta.path for meta in store.list("")]
    assert all(any(word in path for path in stored) for word in ("/changelog-", "index/", "manifest/index-manifest-"))
    assert volatile == [[]] * 5


def test_another_writer_reads_only_the_lists_it_lacks(bench: Any) -> None:
    """A commit on top of another process's costs its snapshot and two lists more, not its manifests."""
    other = bench.reopen()
    bench.commit("a")
    commit_changes(other.context, [bench.change("b")])
    with bench.store.count() as requests:
        bench.commit("c")
    assert requests.get <= 3
    assert requests.head == 3 + bench.store.is_versioned  # after the put it looks for its manifests


def test_new_files_inherit_the_snapshot_that_won(bench: Any) -> None:
    """A file's commit snapshot is the id under which it became visible, also after a lost race and a merge."""
    rival = bench.reopen()
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("rival")]), 1)
    assert bench.commit("ours").id == 2
    for number in range(60):
        bench.commit(f"f{number}")
    entries = bench.table.context.manifests.live_entries(bench.table.latest())
    result = dict(zip(entries["file_name"].to_pylist(), entries["commit_snapshot"].to_pylist(), strict=True))
    assert result["rival"] == 1
    assert result["ours"] == 2
    assert all(result[f"f{number}"] == number + 3 for number in range(60))


def test_files_with_a_known_snapshot_keep_it(bench: Any) -> None:
    """An upgrade (DELETE + ADD of the same file) keeps the file's first snapshot, and unknown stays unknown."""
    bench.commit("a")
    live = bench.table.context.manifests.live_entries(bench.commit("b"))
    file = next(file for file in files_of(live) if file.file_name == "a")
    upgraded = replace(file, level=1)
    foreign = replace(file, file_name="foreign", commit_snapshot=-1)
    newest = commit_changes(
        bench.table.context, [BucketChange(EMPTY_ROW, 0, -1, (upgraded, foreign), (file,))], kind="COMPACT"
    )
    entries = bench.table.context.manifests.live_entries(newest)
    result = dict(zip(entries["file_name"].to_pylist(), entries["commit_snapshot"].to_pylist(), strict=True))
    assert result == {"a": 1, "b": 2, "foreign": -1}


def test_a_lost_race_rewrites_lists_only(bench: Any) -> None:
    """The loser of three races writes its manifest once, and what it no longer needs is gone."""
    rival = bench.reopen()
    bench.commit("first")
    numbers = iter(range(3))
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change(f"r{next(numbers)}")]), 3)
    with bench.store.count() as requests:
        snapshot = bench.commit("ours")
    assert snapshot.id == 5
    assert requests.put == 3 * 5 + 1 + 3 * (2 + 1) + (2 + 1 + 1)
    assert bench.live() == ["first", "ours", "r0", "r1", "r2"]
    assert manifests(bench.store) == referenced(bench)


def test_a_merge_of_manifests_is_postponed_while_races_are_lost(new_bench: Callable[..., Any]) -> None:
    """The loser of a race leaves the manifests as they are, so as not to be overtaken again; the next commit merges."""
    bench = new_bench({"manifest.merge-min-count": "4"})
    rival = bench.reopen()
    for number in range(3):
        bench.commit(f"f{number}")
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("rival")]), 1)
    context, counts = bench.table.context, []
    for name in ("lost", "next"):
        bench.commit(name)
        newest = bench.table.latest()
        counts.append(len(context.manifests.metas(newest.base_manifest_list)))
    assert counts == [4, 1]
    assert bench.live() == ["f0", "f1", "f2", "lost", "next", "rival"]


@pytest.mark.parametrize(("took_s", "unit_s"), [(0.0, 0.5), (2.0, 2.0)])
def test_the_wait_after_a_lost_race_stops_growing(new_bench: Callable[..., Any], took_s: float, unit_s: float) -> None:
    """At sixteen times its unit: the least wait of the options, or what a try takes, if that is longer."""
    bench = new_bench({"commit.min-retry-wait": "500 ms", "commit.max-retry-wait": "1 h"})
    rival = bench.reopen()
    times_s: list[float] = []

    def win() -> None:
        times_s.append(bench.clock.monotonic_s())
        bench.clock.advance(took_s)
        commit_changes(rival.context, [bench.change(f"r{len(times_s)}")])

    lose_races(bench, win, 24)
    bench.commit("ours")
    waits_s = [after - before - took_s for before, after in itertools.pairwise(times_s)]
    assert waits_s[0] <= 2 * unit_s
    assert 12 * unit_s < max(waits_s) <= 16 * unit_s


def test_contention_alone_fails_nobody(bench: Any) -> None:
    """Without a limit set, a commit outlasts any number of lost races."""
    rival = bench.reopen()
    numbers = iter(range(30))
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change(f"r{next(numbers)}")]), 30)
    assert bench.commit("ours").id == 31


def test_a_limit_on_races_is_kept_and_said(new_bench: Callable[..., Any]) -> None:
    """With commit.max-retries the commit gives up in one sentence and leaves nothing behind."""
    bench = new_bench({"commit.max-retries": "2"})
    rival = bench.reopen()
    numbers = iter(range(9))
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change(f"r{next(numbers)}")]), 9)
    with pytest.raises(Conflict, match=r"lost 3 races .* commit\.max-retries") as raised:
        bench.commit("ours")
    assert raised.value.kind == "commit_contention"
    assert "ours" not in bench.live()
    assert manifests(bench.store) == referenced(bench)


def test_a_commit_on_a_version_that_is_damaged_ends_at_once(bench: Any) -> None:
    """What is missing while its snapshot is there is no lost race, which another try could win."""
    head = bench.commit("a")
    path = bench.table.context.layout.manifest(head.delta_manifest_list)
    bench.store.delete([path])
    PROCESS_CACHE.clear()
    other = bench.reopen()
    with pytest.raises(NotFound) as raised:
        commit_changes(other.context, [bench.change("b")])
    assert raised.value.facts["path"] == path
    assert bench.table.context.snapshots.ids() == [1]


def test_files_that_are_gone_are_a_conflict(bench: Any) -> None:
    """Two compactions of the same files: the second gets an error, and changes nothing."""
    bench.commit("a", "b")
    other = bench.reopen()
    bench.commit("ab", deleted=("a", "b"))
    with pytest.raises(Conflict, match="no longer in snapshot 2"):
        commit_changes(other.context, [bench.change("ab2", deleted=("a", "b"))], kind="COMPACT")
    assert bench.live() == ["ab"]
    assert manifests(bench.store) == referenced(bench)


def test_a_conflict_that_appears_in_a_lost_race_is_found(bench: Any) -> None:
    """What was fine before the race is checked again against the winner's delta."""
    bench.commit("a", "b")
    rival = bench.reopen()
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("r", deleted=("a",))]), 1)
    with pytest.raises(Conflict, match="no longer in snapshot 2"):
        bench.commit("new", deleted=("a", "b"))
    assert bench.live() == ["b", "r"]


def test_an_append_in_between_does_not_disturb_a_compaction(bench: Any) -> None:
    """A rival that only adds files costs a retry, not the work."""
    bench.commit("a", "b")
    rival = bench.reopen()
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("r")]), 1)
    bench.commit("ab", deleted=("a", "b"))
    assert bench.live() == ["ab", "r"]


def test_a_compaction_that_many_commits_overtook_does_not_read_each(bench: Any) -> None:
    """After seventy lost ids the live files are compared, which the newest snapshot has."""
    bench.commit("a", "b")
    rival = bench.reopen()
    store = RecordingStore(bench.store)
    bench.table = Table.open(store, name="t", environment=bench.environment)
    lose_races(bench, lambda: [commit_changes(rival.context, [bench.change(f"r{row}")]) for row in range(70)], 1)
    assert bench.commit("ab", deleted=("a", "b"), kind="COMPACT").id == 72
    calls = [record.call for record in store.trace]
    assert sum(call.kind == "get" and call.path.startswith("snapshot/") for call in calls) < 10
    assert bench.live() == sorted(["ab", *(f"r{row}" for row in range(70))])


@pytest.mark.parametrize(("kind", "is_refused"), [("APPEND", True), ("OVERWRITE", True), ("COMPACT", False)])
def test_rows_that_another_writer_changed_are_not_taken_back(bench: Any, kind: CommitKind, is_refused: bool) -> None:
    """A change made from rows is refused after every commit to its bucket but a compaction's, which changes none."""
    bench.commit("a")
    basis = Basis(bench.table.latest())
    bench.commit("b", deleted=("a",), table=bench.reopen(), kind=kind)
    request = CommitRequest(kind="APPEND", changes=[bench.change("made from a")], basis=basis)
    if is_refused:
        with pytest.raises(Conflict, match="snapshot 1 was read") as refused:
            commit(bench.table.context, request)
        assert (refused.value.kind, refused.value.facts["snapshot"]) == ("rows_changed", 1)
    else:
        assert commit(bench.table.context, request).id == 3
    assert bench.live() == (["b"] if is_refused else ["b", "made from a"])


def test_deleting_from_an_empty_table_is_a_conflict(bench: Any) -> None:
    """A change that replaces files cannot be the first."""
    with pytest.raises(Conflict, match="no snapshot"):
        bench.commit("b", deleted=("a",))


def test_an_overwrite_replaces_what_is_there_when_it_wins(bench: Any) -> None:
    """Files that a rival adds during an overwrite are replaced too: its deletes are derived again."""
    bench.commit("a")
    rival = bench.reopen()
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("r")]), 1)
    snapshot = bench.commit("new", overwrite=Overwrite())
    assert (snapshot.commit_kind, snapshot.total_record_count) == ("OVERWRITE", 10)
    assert bench.live() == ["new"]
    assert manifests(bench.store) == referenced(bench)


def test_overwriting_by_a_column_that_partitions_nothing_is_refused(bench: Any) -> None:
    """The sentence names the partition columns there are."""
    with pytest.raises(InvalidRequest, match=r"'id' is not a partition column .* none"):
        bench.commit("a", overwrite=Overwrite(partition={"id": 1}))


def test_a_replayed_identifier_is_recognised(bench: Any) -> None:
    """The same (user, identifier) is committed once, also from another process and after others committed."""
    first = bench.commit("a", commit_user="job", commit_identifier=5)
    bench.commit("b")
    again = bench.commit("a2", table=bench.reopen(), commit_user="job", commit_identifier=5)
    assert again == first
    assert bench.live() == ["a", "b"]
    assert bench.commit("c", commit_user="job", commit_identifier=6).id == 3
    assert bench.commit("x", commit_user="job", commit_identifier=5).id == 1


def test_a_replay_is_recognised_after_its_snapshot_expired(bench: Any) -> None:
    """The newest identifier of each user is carried on, so expiry does not make a replay commit twice."""
    bench.commit("a", commit_user="job", commit_identifier=5)
    bench.commit("b")
    newest = bench.commit("c")
    bench.table.context.snapshots.log.raise_boundary(3)
    bench.table.context.snapshots.log.delete([1, 2])
    assert bench.commit("a2", commit_user="job", commit_identifier=5) == newest
    assert bench.live() == ["a", "b", "c"]


def test_batch_writes_of_one_user_are_all_committed(bench: Any) -> None:
    """The batch identifier identifies nothing: two appends under one user name are two commits."""
    bench.commit("a", commit_user="etl")
    bench.commit("b", commit_user="etl")
    assert bench.live() == ["a", "b"]


def test_time_never_runs_backwards(bench: Any) -> None:
    """A writer whose clock is behind commits at its predecessor's time, so that search by time stays right."""
    bench.clock.advance(1000)
    ahead = bench.commit("a")
    behind = Table.open(bench.store, name="t", environment=replace(bench.environment, clock=ManualClock()))
    assert commit_changes(behind.context, [bench.change("b")]).time_ms == ahead.time_ms


def test_watermarks_only_rise(bench: Any) -> None:
    """A commit without a watermark, or with an older one, keeps the newest."""
    bench.commit("a", watermark=500)
    assert bench.commit("b").watermark == 500
    assert bench.commit("c", watermark=400).watermark == 500
    assert bench.commit("d", watermark=600).watermark == 600


def test_a_change_derived_from_the_state_is_derived_at_each_try(bench: Any) -> None:
    """What depends on the newest snapshot sees each newest snapshot."""
    seen: list[int | None] = []

    def derive(head: Snapshot | None) -> StagedChange:
        seen.append(head.id if head else None)
        return StagedChange(entries=entries_of_changes([bench.change("d")]), base=head)

    bench.commit("a")
    rival = bench.reopen()
    lose_races(bench, lambda: commit_changes(rival.context, [bench.change("r")]), 1)
    commit(bench.table.context, CommitRequest(kind="APPEND", derive=derive))
    assert seen == [1, 2]
    assert bench.live() == ["a", "d", "r"]


def test_an_error_while_deriving_leaves_nothing(bench: Any) -> None:
    """A change that cannot be made writes nothing that stays."""

    def derive(head: Snapshot | None) -> StagedChange:
        raise InvalidRequest("no")

    bench.commit("a")
    with pytest.raises(LakebedError):
        commit(bench.table.context, CommitRequest(kind="APPEND", derive=derive))
    assert manifests(bench.store) == referenced(bench)
    assert bench.table.latest().id == 1


def test_own_properties_are_kept(bench: Any) -> None:
    """What the caller notes on a snapshot is read back."""
    bench.commit("a", properties={"load": "2013-01-01"})
    assert bench.table.latest().properties["load"] == "2013-01-01"
