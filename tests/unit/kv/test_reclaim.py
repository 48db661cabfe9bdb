"""The plan of a collection, rule by rule: listings and manifests in, a plan out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lakebed.kv.layout import manifest_path, sst_path, wal_path
from lakebed.kv.model import Checkpoint, ExternalDatabase, Job, Manifest, Owner
from lakebed.kv.reclaim import (
    Found,
    detachable,
    ids_of_pins,
    is_over,
    is_taken_apart,
    needs_sealing,
    plan_collection,
    plan_taking_apart,
    with_versions_sealed,
)
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.lsm.file_id import file_id_at
from lakebed.lsm.model import FileMeta, Run
from lakebed.objects.port import ObjectMeta

HOUR = 3_600_000
NOW = 1_000 * HOUR


def file_id(hours: float) -> str:
    """The id of a file that was minted so many hours after the beginning."""
    return file_id_at(round(hours * HOUR))


def meta(path: str, *, hours: float = 0.0, size_bytes: int = 1000) -> ObjectMeta:
    """An object as a listing shows it."""
    return ObjectMeta(path, size_bytes, round(hours * HOUR))


def file(hours: float) -> FileMeta:
    """A sorted file in a manifest."""
    return FileMeta(file_id(hours), 1000, 900, 1, b"a", b"b", 1, 1)


def manifest(manifest_id: int = 10, **fields: Any) -> Manifest:
    """A manifest of which only the given matters."""
    defaults: dict[str, Any] = {
        "write_id": "w",
        "created_at_ms": 0,
        "initialized": True,
        "writer_epoch": 1,
        "compactor_epoch": 1,
        "replay_after_wal_id": 20,
        "wal_id_last_seen": 25,
        "last_sequence": 1,
        "newest_l0_id": file_id(900),
        "readable_since": manifest_id,
    }
    return Manifest(manifest_id=manifest_id, **{**defaults, **fields})


def checkpoint(manifest_id: int, *, hours: float = 0.0, expires_at_ms: int | None = None, pin: str = "p") -> Checkpoint:
    """A checkpoint made so many hours after the beginning."""
    return Checkpoint(pin, manifest_id, round(hours * HOUR), Owner("user"), expires_at_ms)


def plan(
    current: Manifest,
    *paths: ObjectMeta,
    pinned: dict[int, Manifest | None] | None = None,
    min_age_hours: float = 0.0,
) -> dict[str, str]:
    """What happens to each object: ``gone``, or why it stays when it is the only one."""
    result = Found(
        tuple(path for path in paths if path.path.startswith("sst/")),
        tuple(path for path in paths if path.path.startswith("wal/")),
        tuple(path for path in paths if path.path.startswith("manifest/")),
    )
    made = plan_collection(
        result, manifest=current, pinned=pinned or {}, now_ms=NOW, grace_ms=round(min_age_hours * HOUR), store="db"
    )
    gone = {target.path for target in made.doomed}
    assert len(gone) + sum(made.kept.values()) == len(paths)
    assert all(target.why for target in made.doomed)
    if len(paths) == 1 and not gone:
        return {paths[0].path: next(iter(made.kept))}
    return {path.path: "gone" if path.path in gone else "kept" for path in paths}


def fate(current: Manifest, one: ObjectMeta, **settings: Any) -> str:
    """What happens to one object."""
    return plan(current, one, **settings)[one.path]


def test_a_file_stays_while_a_version_names_it() -> None:
    """Files of the newest version, of its runs, and of every pinned one stay; any other goes."""
    current = manifest(l0=(file(1),), runs=(Run("r", (file(2),)),))
    pinned = {5: manifest(5, l0=(file(3),))}
    assert fate(current, meta(sst_path(file_id(1))), pinned=pinned) == "in the newest version"
    assert fate(current, meta(sst_path(file_id(2))), pinned=pinned) == "in the newest version"
    assert fate(current, meta(sst_path(file_id(3))), pinned=pinned) == "in a pinned version"
    assert fate(current, meta(sst_path(file_id(4))), pinned=pinned) == "gone"


def test_a_file_that_may_be_published_yet_stays() -> None:
    """Above the newest published id, and from the start of any job on; the newest published id itself may go."""
    current = manifest(jobs=(Job("j", "compaction", file_id(500), 1, 0), Job("k", "load", file_id(600), 1, 0)))
    assert fate(current, meta(sst_path(file_id(499)))) == "gone"
    for hours in (500, 550, 700):
        assert fate(current, meta(sst_path(file_id(hours)))) == "may be published yet"
    without = manifest()
    assert fate(without, meta(sst_path(file_id(900)))) == "gone"
    assert fate(without, meta(sst_path(file_id(901)))) == "may be published yet"


def test_a_log_object_goes_when_its_rows_are_in_files_and_no_pin_replays_it() -> None:
    """Above replay_after it stays; in a pinned (replay_after, last_seen] it stays; at their lower end it goes."""
    pinned = {5: manifest(5, replay_after_wal_id=10, wal_id_last_seen=12)}
    fates = {wal_id: fate(manifest(), meta(wal_path(wal_id)), pinned=pinned) for wal_id in (9, 10, 11, 12, 13, 20, 21)}
    assert fates == {
        9: "gone",
        10: "gone",
        11: "in a pinned version",
        12: "in a pinned version",
        13: "gone",
        20: "gone",
        21: "not in files yet",
    }


def test_fences_stay_for_ever() -> None:
    """A log object of a fence's size stays however old it is."""
    assert fate(manifest(), meta(wal_path(3), size_bytes=FENCE_BYTES)) == "fence"
    assert fate(manifest(), meta(wal_path(3), size_bytes=FENCE_BYTES + 1)) == "gone"


def test_a_manifest_stays_while_it_is_newest_or_pinned() -> None:
    """Older ones that nothing pins go; newer ones than the judged one stay."""
    pinned = {5: manifest(5)}
    assert fate(manifest(), meta(manifest_path(5)), pinned=pinned) == "in a pinned version"
    for manifest_id in (10, 11):
        assert fate(manifest(), meta(manifest_path(manifest_id)), pinned=pinned) == "in the newest version"
    assert fate(manifest(), meta(manifest_path(9)), pinned=pinned) == "gone"


@pytest.mark.parametrize(
    "path", ["sst/notes.txt", "sst/inner/manifest/00000000000000000001.manifest", "wal/x", "manifest/9"]
)
def test_what_bears_no_name_of_ours_is_left_alone(path: str) -> None:
    """Foreign files and nested databases in our folders are never candidates."""
    assert fate(manifest(), meta(path)) == "not ours"


def test_age_is_asked_in_addition() -> None:
    """Files by the time in their id, others by the store's time; nothing younger than the age goes."""
    current = manifest(newest_l0_id=file_id(2000))
    assert fate(current, meta(sst_path(file_id(989)), hours=999), min_age_hours=10) == "gone"
    assert fate(current, meta(sst_path(file_id(991))), min_age_hours=10) == "younger than the smallest age"
    for path in (wal_path(3), manifest_path(3)):
        assert fate(current, meta(path, hours=989), min_age_hours=10) == "gone"
        assert fate(current, meta(path, hours=991), min_age_hours=10) == "younger than the smallest age"
        assert fate(current, meta(path, hours=5000)) == "gone", "an age of zero asks no clock"


def test_a_missing_pinned_manifest_protects_what_is_older_than_its_checkpoint() -> None:
    """Nothing that was there when the checkpoint was made goes; what came later does; the report names both."""
    current = manifest(checkpoints=(checkpoint(5, hours=100),))
    older, newer = (
        [
            meta(sst_path(file_id(hours)), hours=hours),
            meta(wal_path(3), hours=hours),
            meta(manifest_path(3), hours=hours),
        ]
        for hours in (100, 101)
    )
    for item in older:
        assert fate(current, item, pinned={5: None}) == "older than a checkpoint whose version is missing"
    for item in newer:
        assert fate(current, item, pinned={5: None}) == "gone"
    made = plan_collection(Found((), (), ()), manifest=current, pinned={5: None}, now_ms=NOW, grace_ms=0, store="db")
    assert "checkpoint p" in made.warnings[0]


def test_settling_drops_the_dead_and_closes_the_past() -> None:
    """The next manifest has the live checkpoints only, and no older version can be read without one."""
    dead, live = checkpoint(3, expires_at_ms=NOW, pin="dead"), checkpoint(4, expires_at_ms=NOW + 1, pin="live")
    after = with_versions_sealed(manifest(checkpoints=(dead, live), readable_since=1), now_ms=NOW)
    assert [item.id for item in after.checkpoints] == ["live"]
    assert after.readable_since == 11
    assert ids_of_pins(manifest(checkpoints=(dead, live)), now_ms=NOW) == {4}


def test_settling_is_needed_only_when_it_changes_what_may_be_pinned() -> None:
    """A dead checkpoint needs it; so does taking anything while an older version can still be pinned."""
    dead = checkpoint(3, expires_at_ms=NOW)
    assert needs_sealing(manifest(checkpoints=(dead,)), now_ms=NOW, takes=False)
    assert needs_sealing(manifest(readable_since=9), now_ms=NOW, takes=True)
    assert not needs_sealing(manifest(readable_since=9), now_ms=NOW, takes=False)
    assert not needs_sealing(manifest(readable_since=10), now_ms=NOW, takes=True)


def test_a_clone_detaches_from_ancestors_that_nothing_names() -> None:
    """An ancestor stays while the newest or a pinned version names one of its files, or a pinned one is missing."""
    entries = tuple(ExternalDatabase(f"db-{hours}", "s", f"pin-{hours}", (file_id(hours),)) for hours in (1, 2, 3))
    current = manifest(l0=(file(1),), external_databases=entries)
    pinned: dict[int, Manifest | None] = {5: manifest(5, l0=(file(2),))}
    assert [item.url for item in detachable(current, pinned)] == ["db-3"]
    assert [item.url for item in detachable(current, {})] == ["db-2", "db-3"]
    assert detachable(current, {**pinned, 6: None}) == ()
    assert detachable(msgspec.structs.replace(current, initialized=False), {}) == ()


def test_a_destroyed_database_is_over_after_its_grace_and_its_checkpoints() -> None:
    """Not before the grace ends, not while one checkpoint lives, and never when it was not destroyed."""
    gone = manifest(destroyed_at_ms=NOW - 10)
    assert is_over(gone, now_ms=NOW, grace_ms=10)
    assert not is_over(gone, now_ms=NOW, grace_ms=11)
    assert not is_over(manifest(), now_ms=NOW, grace_ms=0)
    assert not is_over(manifest(destroyed_at_ms=0, checkpoints=(checkpoint(3),)), now_ms=NOW, grace_ms=0)


def test_taking_apart_leaves_the_tombstone_and_names_strangers() -> None:
    """All but the newest manifest, later ones and the fences goes; what is not ours is named."""
    result = Found(
        (meta(sst_path(file_id(1))), meta("sst/inner/x")),
        (meta(wal_path(3)), meta(wal_path(4), size_bytes=FENCE_BYTES)),
        (meta(manifest_path(9)), meta(manifest_path(10)), meta(manifest_path(11))),
    )
    made = plan_taking_apart(result, manifest=manifest(destroyed_at_ms=1), store="db", foreign=["inner/"])
    assert [target.path for target in made.doomed] == [sst_path(file_id(1)), wal_path(3), manifest_path(9)]
    assert made.kept == {"tombstone": 3, "not ours": 2}
    assert [warning.partition(" ")[0] for warning in made.warnings] == ["inner/", "sst/inner/x"]


def test_only_a_tombstone_is_taken_apart() -> None:
    """Nothing but the tombstone is left, no ancestor is named, and no checkpoint lives: then no collector is needed."""
    tomb = Found((), (meta(wal_path(4), size_bytes=FENCE_BYTES),), (meta(manifest_path(10)),))
    gone = manifest(destroyed_at_ms=1)
    assert is_taken_apart(tomb, gone, now_ms=NOW)
    assert not is_taken_apart(tomb, manifest(), now_ms=NOW)
    assert not is_taken_apart(Found((), (meta(wal_path(4)),), ()), gone, now_ms=NOW)
    assert not is_taken_apart(tomb, msgspec.structs.replace(gone, checkpoints=(checkpoint(3),)), now_ms=NOW)
    entry = ExternalDatabase("db", "s", "p", ())
    assert not is_taken_apart(tomb, msgspec.structs.replace(gone, external_databases=(entry,)), now_ms=NOW)
