"""The pure rules of a commit: what fits, what is carried on, which manifests are merged."""

from __future__ import annotations

import itertools
import math
import random
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.table.branch.inherited import (
    FOLLOWS,
    USERS_MAX,
    InheritedState,
    UserCommit,
    encode_inherited,
    follows,
    inheritance_of,
    is_ours,
    load_inherited,
)
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import ADD, DELETE, ENTRY_SCHEMA, entries_of_changes, fold
from lakebed.table.codec.manifest_merge import fold_run, plan_merge
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.commit.conflicts import check_fits, check_written_schemas, rests_on_state, touches
from lakebed.table.model.model import (
    BATCH_COMMIT_IDENTIFIER,
    BucketChange,
    DataField,
    DataFile,
    ManifestMeta,
    Snapshot,
    TableSchema,
)
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


def test_keys_overlap_as_a_comparison_of_every_pair_says() -> None:
    """Of files in random buckets and levels, those that are added overlap no other; the error names two that do."""

    def entries_of(names: list[str]) -> pa.Table:
        files = [(places[name], data_file(name, level=places[name][1], **ranges[name])) for name in names]
        return pa.concat_tables([entries((ADD, file), bucket=place[0]) for place, file in files])

    rng, conflict_count, rounds = random.Random(5), 0, 40
    for _ in range(rounds):
        names = [f"f{number}" for number in range(rng.randint(2, 8))]
        places = {name: (rng.randrange(2), rng.randint(1, 2)) for name in names}
        ranges = {
            name: {"least": least, "greatest": least + rng.randrange(4)}
            for name in names
            for least in [rng.randrange(30)]
        }
        overlaps = [
            {first, second}
            for first, second in itertools.combinations(names, 2)
            if places[first] == places[second]
            and ranges[first]["least"] <= ranges[second]["greatest"]
            and ranges[second]["least"] <= ranges[first]["greatest"]
        ]
        live, added = names[:1], names[1:2]
        for name in names[2:]:
            is_apart = all({name, other} not in overlaps for other in live)
            (live if is_apart and rng.random() < 0.7 else added).append(name)
        expected = [pair for pair in overlaps if pair & set(added)]
        if not expected:
            check_fits(entries_of(added), live=entries_of(live), key_types=["BIGINT"], snapshot_id=1)
            continue
        conflict_count += 1
        with pytest.raises(Conflict, match="would overlap") as refused:
            check_fits(entries_of(added), live=entries_of(live), key_types=["BIGINT"], snapshot_id=1)
        assert set(refused.value.facts["files"]) in expected
    assert 5 < conflict_count < rounds - 5


@pytest.mark.parametrize(
    ("written", "least", "is_refused"),
    [
        ((), 0, False),
        ((2,), 2, False),
        ((1,), 0, False),
        ((1, 2), 1, False),
        ((0, 1, 2), 0, False),
        ((1,), 2, True),
        ((0, 2), 1, True),
        ((3,), 0, True),
        ((2, 3), 0, True),
    ],
)
def test_files_of_older_schemas_are_carried_from_the_one_that_was_read_on(
    written: tuple[int, ...], least: int, is_refused: bool
) -> None:
    """Nothing written under a schema before that of the rows it was made from, or after the table's newest."""
    columns = tuple(DataField(number, name, "INT") for number, name in enumerate("abc"))
    schemas = [TableSchema(number, columns[: number + 1], highest_field_id=number) for number in range(4)]
    with pytest.raises(Conflict, match="open the table again") if is_refused else nullcontext() as refused:
        check_written_schemas(written, newest=schemas[2], schema_of=schemas.__getitem__, upserts=False, least=least)
    if refused is not None:
        assert (refused.value.kind, refused.value.facts["newest"]) == ("schema_changed", 2)


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


def test_only_what_lakebed_wrote_about_users_is_carried() -> None:
    """A property of a caller's own, or one that is no pair of numbers, names no commit of a user."""
    properties = {
        "note": "5@7",
        "lakebed.user.text": "x@7",
        "lakebed.user.no id": "5@",
        "lakebed.user.no number": "@7",
        "lakebed.user.alone": "5",
        "lakebed.user.a@b": "-5@7",
    }
    assert inheritance_of(snapshot(10, **properties)) == InheritedState(users={"a@b": UserCommit(-5, 7)})


def test_a_snapshot_follows_the_one_before_it_unless_it_names_another() -> None:
    """Also the first one, which follows none; what is no number names none."""
    assert [follows(snapshot(snapshot_id)) for snapshot_id in (1, 2, 10)] == [0, 1, 9]
    assert [follows(snapshot(10, **{FOLLOWS: text})) for text in ("7", "0", "", "x")] == [7, 0, 9, 9]


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
