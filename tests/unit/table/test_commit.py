"""The pure rules of a commit: what fits, what is carried on, which manifests are merged."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.table.branch.inherited import (
    USERS_MAX,
    InheritedState,
    UserCommit,
    encode_inherited,
    inheritance_of,
    is_ours,
    load_inherited,
)
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import ADD, DELETE, ENTRY_SCHEMA, entries_of_changes, fold
from lakebed.table.codec.manifest_merge import fold_run, plan_merge
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.commit.conflicts import check_fits, rests_on_state, touches
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, BucketChange, DataFile, ManifestMeta, Snapshot
from worlds.binary_rows import encode_row
from worlds.table import made_up


def data_file(
    name: str,
    *,
    level: int = 0,
    least: float = 0,
    greatest: float = 0,
    commit_snapshot: int | None = None,
    key_type: str = "BIGINT",
) -> DataFile:
    return made_up.data_file(
        name,
        file_size=100,
        row_count=10,
        min_key=encode_row([least], [key_type]),
        max_key=encode_row([greatest], [key_type]),
        max_sequence_number=9,
        level=level,
        commit_snapshot=commit_snapshot,
    )


def entries(*steps: tuple[int, DataFile], bucket: int = 0) -> pa.Table:
    """Entries in the given order."""
    parts = [
        entries_of_changes(
            [
                BucketChange(
                    EMPTY_ROW,
                    bucket,
                    1,
                    added=(file,) if kind == ADD else (),
                    deleted=(file,) if kind == DELETE else (),
                )
            ]
        )
        for kind, file in steps
    ]
    return pa.concat_tables(parts) if parts else ENTRY_SCHEMA.empty_table()


def meta(name: str, size: int, *, deleted: int = 0) -> ManifestMeta:
    return ManifestMeta(name, size, 1, deleted, EMPTY_STATS, 0)


def snapshot(
    snapshot_id: int, *, user: str = "u", identifier: int = BATCH_COMMIT_IDENTIFIER, **properties: str
) -> Snapshot:
    return Snapshot(
        id=snapshot_id,
        schema_id=0,
        base_manifest_list="b",
        delta_manifest_list="d",
        commit_user=user,
        commit_identifier=identifier,
        commit_kind="APPEND",
        time_ms=snapshot_id,
        total_record_count=0,
        delta_record_count=0,
        properties=properties,
    )


def test_appends_never_conflict() -> None:
    """A change that only adds files at level 0 rests on no state."""
    assert not rests_on_state(entries((ADD, data_file("a"))))
    assert rests_on_state(entries((DELETE, data_file("a"))))
    assert rests_on_state(entries((ADD, data_file("a", level=1))))


def test_another_bucket_does_not_touch_ours() -> None:
    """Only a delta that changes settled files of one of our buckets makes us look again."""
    ours = entries((DELETE, data_file("a")))
    assert touches(ours, entries((DELETE, data_file("b"))))
    assert not touches(ours, entries((DELETE, data_file("b")), bucket=1))
    assert not touches(ours, entries((ADD, data_file("b"))))


def test_a_deleted_file_must_still_be_live() -> None:
    """Replacing a file that another writer replaced is a conflict that names the file and the snapshot."""
    live = entries((ADD, data_file("a")), (ADD, data_file("b")))
    check_fits(entries((DELETE, data_file("a"))), live=live, key_types=[], snapshot_id=7)
    with pytest.raises(Conflict, match=r"1 of 2 files .* snapshot 7 \(gone is one\)") as raised:
        check_fits(
            entries((DELETE, data_file("a")), (DELETE, data_file("gone"))), live=live, key_types=[], snapshot_id=7
        )
    assert raised.value.kind == "file_gone"


def test_a_file_at_another_level_is_another_file() -> None:
    """A delete names the level, so an upgrade by another writer is noticed."""
    live = entries((ADD, data_file("a", level=2)))
    with pytest.raises(Conflict):
        check_fits(entries((DELETE, data_file("a", level=1))), live=live, key_types=[], snapshot_id=1)


@pytest.mark.parametrize(
    ("least", "greatest", "overlaps"),
    [(1.0, math.nan, True), (math.nan, math.nan, True), (-5.0, -0.0, False), (-5.0, 0.0, True), (3.0, math.inf, False)],
)
def test_float_keys_overlap_by_the_order_of_their_rows(least: float, greatest: float, overlaps: bool) -> None:
    """0.0 is above -0.0, and NaN above every number: two compactions that share one of them cannot both win."""

    def at_level(name: str, least: float, greatest: float) -> tuple[int, DataFile]:
        return (ADD, data_file(name, level=1, least=least, greatest=greatest, key_type="DOUBLE"))

    live = entries(at_level("zero", 0.0, 2.5), at_level("nan", math.nan, math.nan))
    new = entries(at_level("new", least, greatest))
    with pytest.raises(Conflict, match="would overlap") if overlaps else nullcontext():
        check_fits(new, live=live, key_types=["DOUBLE"], snapshot_id=1)


def test_levels_above_zero_may_not_overlap() -> None:
    """Two compactions of one bucket cannot both win, whichever rows they saw."""
    live = entries(
        (ADD, data_file("old", level=1, least=0, greatest=10)), (ADD, data_file("other", level=2, least=0, greatest=99))
    )
    check_fits(
        entries((ADD, data_file("new", level=1, least=11, greatest=20))), live=live, key_types=["BIGINT"], snapshot_id=1
    )
    with pytest.raises(Conflict) as raised:
        check_fits(
            entries((ADD, data_file("new", level=1, least=10, greatest=20))),
            live=live,
            key_types=["BIGINT"],
            snapshot_id=1,
        )
    assert raised.value.kind == "keys_overlap"
    check_fits(
        entries(
            (DELETE, data_file("old", level=1, least=0, greatest=10)),
            (ADD, data_file("new", level=1, least=0, greatest=20)),
        ),
        live=live,
        key_types=["BIGINT"],
        snapshot_id=1,
    )
    check_fits(
        entries((ADD, data_file("new", level=1, least=0, greatest=20)), bucket=1),
        live=live,
        key_types=["BIGINT"],
        snapshot_id=1,
    )


def test_an_upgrade_does_not_overlap_itself() -> None:
    """Moving a file to another level unchanged is accepted where the level is free, and only there."""
    live = entries(
        (ADD, data_file("a", level=0, least=5, greatest=6)), (ADD, data_file("b", level=3, least=0, greatest=9))
    )
    move = (DELETE, data_file("a", level=0, least=5, greatest=6))
    check_fits(
        entries(move, (ADD, data_file("a", level=2, least=5, greatest=6))),
        live=live,
        key_types=["BIGINT"],
        snapshot_id=1,
    )
    with pytest.raises(Conflict):
        check_fits(
            entries(move, (ADD, data_file("a", level=3, least=5, greatest=6))),
            live=live,
            key_types=["BIGINT"],
            snapshot_id=1,
        )


def test_small_manifests_are_merged_from_the_given_count_on() -> None:
    """The tail of small manifests becomes one when there are as many as the option says, not before."""
    few = [meta(str(index), 10) for index in range(29)]
    assert plan_merge(few, count_min=30, target_bytes=1000, full_threshold_bytes=10**6).runs == ()
    assert plan_merge([*few, meta("x", 10)], count_min=30, target_bytes=1000, full_threshold_bytes=10**6).runs == (
        (0, 30),
    )


def test_a_run_ends_when_it_reached_the_target_size() -> None:
    """Large manifests are left alone, and merged ones do not grow without end."""
    metas = [meta("big", 2000), meta("a", 600), meta("b", 600), meta("c", 10)]
    assert plan_merge(metas, count_min=30, target_bytes=1000, full_threshold_bytes=10**6).runs == ((1, 3),)


def test_enough_deletes_fold_everything() -> None:
    """When manifests that are small or hold deletes sum up to the threshold, all are folded."""
    metas = [meta("a", 5000, deleted=3), meta("b", 5000, deleted=1)]
    plan = plan_merge(metas, count_min=30, target_bytes=1000, full_threshold_bytes=10_000)
    assert plan.full
    assert plan.runs == ((0, 2),)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ("A", "A"),
        ("D", "D"),
        ("AD", ""),
        ("DA", "DA"),
        ("ADA", "A"),
        ("DAD", "D"),
        ("DADA", "DA"),
    ],
)
def test_folding_a_run_keeps_what_older_manifests_need(steps: str, kept: str) -> None:
    """Whatever came before the run, folding before and after the merge leaves the same files."""
    file = data_file("f", commit_snapshot=3)
    run = entries(*((ADD if step == "A" else DELETE, file) for step in steps))
    folded = fold_run(run)
    assert "".join("AD"[kind] for kind in folded["kind"].to_pylist()) == kept
    before = entries((ADD, file)) if steps[0] == "D" else entries()
    assert fold(pa.concat_tables([before, folded])).equals(fold(pa.concat_tables([before, run])))


def test_folding_keeps_other_files_and_their_order() -> None:
    """Only the vanished file goes; commit snapshots stay."""
    run = entries(
        (ADD, data_file("a", commit_snapshot=1)),
        (ADD, data_file("b", commit_snapshot=-1)),
        (DELETE, data_file("a", commit_snapshot=1)),
        (ADD, data_file("c", commit_snapshot=2)),
    )
    folded = fold_run(run)
    assert folded["file_name"].to_pylist() == ["b", "c"]
    assert folded["commit_snapshot"].to_pylist() == [-1, 2]


def test_carried_facts_survive_their_encoding() -> None:
    """What a snapshot's properties say is what the next commit reads."""
    carried = InheritedState(restored=True, users={"job@x.1": UserCommit(identifier=-5, snapshot_id=9)})
    assert inheritance_of(snapshot(10, **encode_inherited(carried))) == carried
    assert is_ours(snapshot(10, **encode_inherited(InheritedState())))
    assert not is_ours(snapshot(10))


def test_batch_users_are_not_carried() -> None:
    """Only users with identifiers of their own are remembered; the properties of batch tables stay small."""
    assert InheritedState().after(snapshot(3)).users == {}
    assert InheritedState().after(snapshot(3, user="s", identifier=4)).users == {"s": UserCommit(4, 3)}


def test_users_that_committed_last_are_remembered() -> None:
    """The memory is bounded; the user that committed longest ago is forgotten first."""
    carried = InheritedState()
    for snapshot_id in range(USERS_MAX + 1):
        carried = carried.after(snapshot(snapshot_id, user=f"u{snapshot_id}", identifier=1))
    assert len(carried.users) == USERS_MAX
    assert "u0" not in carried.users


def test_commits_of_other_clients_are_walked_over() -> None:
    """A foreign snapshot carries nothing on, so the newest of ours and every commit since count."""
    ours = snapshot(5, **encode_inherited(InheritedState(restored=True, users={"a": UserCommit(1, 2)})))
    foreign = [replace(snapshot(7, user="b", identifier=3)), snapshot(6, user="a", identifier=2)]
    carried = load_inherited([*foreign, ours, snapshot(4, user="never", identifier=1)])
    assert carried == InheritedState(restored=True, users={"a": UserCommit(2, 6), "b": UserCommit(3, 7)})
