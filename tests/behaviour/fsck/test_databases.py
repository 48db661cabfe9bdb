"""fsck of databases: a sound one has no finding, and each kind of damage is named with its object."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from lakebed.fsck.database import check_database
from lakebed.fsck.model import CheckReport, Findings
from lakebed.kv import CheckpointOptions, CollectorOptions, Database, DatabaseAdmin, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.manifest import encode_manifest
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

OPTIONS = DatabaseOptions(background=False, compaction=False)


@pytest.fixture
def place() -> DatabaseLocation:
    """The location of the parent; clones are its siblings."""
    environment = Environment(clock=ManualClock(), rng=random.Random(1))
    world = open_store(f"memory://{uuid.uuid4()}", environment=environment)

    def open_url(url: str) -> Any:
        return world.sub(url.removeprefix(world.root_url + "/"))

    return DatabaseLocation(world.sub("parent"), environment, open_url)


@pytest.fixture
def database(place: DatabaseLocation) -> DatabaseLocation:
    """Two files of level 0, a run, a checkpoint, and a tail of the log."""
    with Database.open(place, options=OPTIONS) as opened:
        for part in range(3):
            for number in range(50):
                opened.put(b"key %03d" % (number * 3 + part), b"value" * 5, await_durable=False)
            opened.flush(memtable=True)
            if part == 0:
                opened.compact(full=True)
        opened.create_checkpoint(CheckpointOptions(name="kept"))
        opened.put(b"key 000", b"newer")
        opened.delete(b"key 001")
    DatabaseAdmin(place).collect(CollectorOptions(grace=timedelta(0)))
    return place


def checked(place: DatabaseLocation, *, deep: bool = True) -> CheckReport:
    """The report of a check."""
    report = CheckReport(place.url, deep)
    check_database(place, Findings(report, store="orders"))
    return report


def kinds(place: DatabaseLocation, *, deep: bool = True) -> set[str]:
    """What is wrong, by name."""
    return {finding.kind for finding in checked(place, deep=deep).findings if finding.severity != "info"}


def test_a_sound_database(database: DatabaseLocation) -> None:
    """Nothing is found, and everything is counted."""
    report = checked(database)
    assert report.findings == []
    assert (report.version_count, report.file_count) == (2, 3)
    assert report.size_bytes > 0


def test_a_sound_family(database: DatabaseLocation) -> None:
    """Clones, restored and compacted databases are sound too, and so are their parents."""
    clone = database.other(database.url.replace("parent", "clone"))
    DatabaseAdmin(clone).create_clone(database.url, "kept")
    with Database.open(clone, options=OPTIONS) as opened:
        opened.put(b"own", b"1")
        opened.flush(memtable=True)
    DatabaseAdmin(database).restore("kept")
    with Database.open(database, options=OPTIONS) as opened:
        opened.put(b"after", b"1")
        opened.flush(memtable=True)
        opened.compact(full=True)
    DatabaseAdmin(database).collect(CollectorOptions(grace=timedelta(0)))
    assert kinds(database) == set()
    assert kinds(clone) == set()


def first_file(place: DatabaseLocation) -> str:
    """Path of some sorted file that the newest version needs."""
    return f"sst/{ManifestLog(place).latest().file_set.files()[0].id}.sst"


def cut(place: DatabaseLocation) -> str:
    """Cut a file short."""
    path = first_file(place)
    place.store.put(path, bytes(place.store.get(path))[:-1])
    return path


def flip(place: DatabaseLocation) -> str:
    """Change one byte in the middle of a file."""
    path = first_file(place)
    body = bytearray(place.store.get(path))
    body[len(body) // 3] ^= 1
    place.store.put(path, bytes(body))
    return path


def lose_file(place: DatabaseLocation) -> str:
    """Lose a file."""
    path = first_file(place)
    place.store.delete([path])
    return path


def lose_log(place: DatabaseLocation) -> str:
    """Lose a record of the log."""
    manifest = ManifestLog(place).latest()
    paths = [meta.path for meta in place.store.list("wal")]
    path = next(path for path in paths if int(path[4:24]) > manifest.replay_after_wal_id)
    place.store.delete([path])
    return path


def lose_pinned(place: DatabaseLocation) -> str:
    """Lose the manifest that a checkpoint pins."""
    checkpoint = ManifestLog(place).latest().checkpoint("kept")
    assert checkpoint is not None
    path = f"manifest/{checkpoint.manifest_id:020d}.manifest"
    place.store.delete([path])
    return path


def spoil_manifest(place: DatabaseLocation) -> str:
    """Change one byte of the newest manifest."""
    path = [meta.path for meta in place.store.list("manifest")][-1]
    body = bytearray(place.store.get(path))
    body[len(body) // 2] ^= 1
    place.store.put(path, bytes(body))
    return path


def rewrite(place: DatabaseLocation, change: Callable[[Manifest], Manifest]) -> str:
    """Put a newest manifest that says something wrong, with a right checksum."""
    manifest = ManifestLog(place).latest()
    path = f"manifest/{manifest.manifest_id:020d}.manifest"
    place.store.put(path, encode_manifest(change(manifest)))
    return path


def overlap(place: DatabaseLocation) -> str:
    """Let two files of one run overlap."""

    def change(manifest: Manifest) -> Manifest:
        run = msgspec.structs.replace(manifest.runs[0], files=(*manifest.runs[0].files, manifest.l0[0]))
        return msgspec.structs.replace(manifest, runs=(run,), l0=manifest.l0[1:])

    return rewrite(place, change)


def miscount(place: DatabaseLocation) -> str:
    """Let the manifest end before a sequence that its files hold."""
    rewrite(place, lambda manifest: msgspec.structs.replace(manifest, last_sequence=1))
    return first_file(place)


def lose_manifests(place: DatabaseLocation) -> str:
    """Delete all that says what belongs to the database."""
    place.store.delete([meta.path for meta in place.store.list("manifest")])
    return "manifest"


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lose_manifests, "missing"),
        (cut, "wrong_size"),
        (flip, "corruption"),
        (lose_file, "missing"),
        (lose_log, "missing"),
        (lose_pinned, "missing"),
        (spoil_manifest, "corruption"),
        (overlap, "overlap"),
        (miscount, "wrong_sequence"),
    ],
)
def test_damage_is_named(database: DatabaseLocation, damage: Callable[[DatabaseLocation], str], kind: str) -> None:
    """Each damage is an error of its kind, at its object."""
    path = damage(database)
    pairs = [(finding.kind, finding.path) for finding in checked(database).findings if finding.severity == "error"]
    assert (kind, path) in pairs


def test_only_deep_reads_files(database: DatabaseLocation) -> None:
    """A changed byte inside a file is found by a deep check alone."""
    flip(database)
    assert kinds(database, deep=False) == set()
    assert kinds(database) == {"corruption"}


def test_a_pin_that_was_forced_away(database: DatabaseLocation) -> None:
    """A clone whose parent holds no pin for it is in danger; the pin of a clone that is gone holds files in vain."""
    clone = database.other(database.url.replace("parent", "clone"))
    DatabaseAdmin(clone).create_clone(database.url)
    pin = next(
        checkpoint for checkpoint in DatabaseAdmin(database).list_checkpoints() if checkpoint.owner.kind == "clone"
    )
    for meta in list(clone.store.list("")):
        if meta.path.startswith("manifest/"):
            clone.store.delete([meta.path])
    assert kinds(database) == {"pin_of_nobody"}
    other = database.other(database.url.replace("parent", "other"))
    DatabaseAdmin(other).create_clone(database.url)
    checkpoints = [
        checkpoint
        for checkpoint in DatabaseAdmin(database).list_checkpoints()
        if checkpoint.owner.kind == "clone" and checkpoint.id != pin.id
    ]
    DatabaseAdmin(database).delete_checkpoint(checkpoints[0].id, force=True)
    assert "pin_lost" in kinds(other)
    assert [finding.sentence for finding in checked(other).findings if finding.kind == "pin_lost"] == [
        f"shares files with {database.url}, which has no pin for it any more."
    ]
    with Database.open(other, options=OPTIONS) as opened:
        opened.compact(full=True)
    [finding] = [finding for finding in checked(other).findings if finding.kind == "pin_lost"]
    assert (finding.severity, finding.sentence) == (
        "info",
        f"needs no file any more of {database.url}, which has no pin for it any more.",
    )


def test_orphans_are_told_apart(database: DatabaseLocation) -> None:
    """A file that no version names is reported with its size; it is not a fault."""
    stray = "sst/01K00000000000000000000000.sst"
    database.store.put(stray, b"x" * 10)
    report = checked(database)
    assert [(finding.kind, finding.path) for finding in report.findings] == [("orphan", stray)]
    assert (report.error_count, report.orphan_bytes) == (0, 10)


def test_a_destroyed_database_is_no_fault(database: DatabaseLocation) -> None:
    """What is left of it waits for the collector."""
    DatabaseAdmin(database).destroy(soft=True)
    assert {finding.severity for finding in checked(database).findings} <= {"info"}


def test_what_a_destroyed_database_still_pins_is_checked(database: DatabaseLocation) -> None:
    """Its checkpoints can be read until they end: a file that one of them needs is missed."""
    DatabaseAdmin(database).destroy(soft=True)
    pinned = ManifestLog(database).latest().checkpoints[0].manifest_id
    missing = sst_path(ManifestLog(database).load(pinned).file_set.files()[0].id)
    database.store.delete([missing])
    assert [(finding.kind, finding.path) for finding in checked(database).findings if finding.severity == "error"] == [
        ("missing", missing)
    ]
