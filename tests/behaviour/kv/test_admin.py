"""`DatabaseAdmin`: versions, pins, why, and the verbs by place and by URL."""

from __future__ import annotations

import random
import re
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.kv import admin as verbs
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import (
    BOUNDARY_FOLDER,
    LEASE_PATH,
    MANIFEST_FOLDER,
    manifest_path,
    parse_manifest,
    sst_path,
    wal_path,
)
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase, key_of, value_of

HOUR = timedelta(hours=1)


def version_ids(manual: ManualDatabase) -> list[str]:
    """Ids of all readable versions."""
    return [version.id for version in manual.admin.versions()]


# ---- versions and pins


def test_it_knows_its_name_and_whether_it_exists(manual: ManualDatabase) -> None:
    """The name is the last part of its URL, or what its lake calls it."""
    assert manual.admin.name == "manual"
    assert DatabaseAdmin(manual.place(), name="db.manual").name == "db.manual"
    assert not manual.admin.exists()
    manual.write(1)
    assert manual.admin.exists()
    manual.admin.destroy(soft=True)
    assert not manual.admin.exists()


def test_checkpoints_and_epochs_make_no_versions(manual: ManualDatabase) -> None:
    """A version is what was written: opening, closing, pinning and refreshing leave its id as it is."""
    manual.write(1)
    before = version_ids(manual)
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.admin.refresh_checkpoint(made.id)
    with manual.reader():
        assert version_ids(manual) == before
    assert version_ids(manual) == before
    assert manual.admin.pin("again").version == before[-1]
    assert manual.admin.show_manifest(made.manifest_id).manifest_id > int(before[-1])


def test_a_version_keeps_its_id_when_its_first_manifest_is_collected(manual: ManualDatabase) -> None:
    """Any manifest of the same content can replace the first one."""
    manual.write(1)
    version = version_ids(manual)[-1]
    manual.admin.create_checkpoint(CheckpointOptions(name="late"))
    manual.collect()
    with pytest.raises(NotFound):
        manual.admin.show_manifest(int(version))
    assert version_ids(manual) == [version]
    for way in (version, "late"):
        with manual.admin.at(way) as view:
            assert manual.numbers(view) == [1]
    assert manual.admin.pin("again", version=version).version == version
    manual.write(2)
    manual.collect()
    with manual.admin.at(version) as view:
        assert manual.numbers(view) == [1]
    with pytest.raises(NotFound):
        manual.admin.at("9" * 5000)


def test_pins_tell_whose_they_are_and_what_they_hold(manual: ManualDatabase) -> None:
    """Users', readers', clones' and the writer's, with owner, end, and the bytes that each alone holds."""
    manual.write(1)
    first = manual.admin.show_manifest().l0[0]
    manual.clock.advance(1)
    manual.admin.pin("early", lifetime_ms=5_000)
    manual.write(2)
    manual.admin.compact(full=True)
    manual.clock.advance(1)
    clone = manual.admin.create_branch("clone")
    with manual.open(), manual.reader():
        pins = {pin.kind: pin for pin in manual.admin.pins()}
    assert set(pins) == {"checkpoint", "clone", "writer", "reader"}
    assert pins["checkpoint"].name == "early"
    assert pins["checkpoint"].owner == "user"
    assert pins["checkpoint"].expires_ms == (pins["checkpoint"].created_ms or 0) + 5_000
    assert pins["checkpoint"].bytes_alone == first.size_bytes
    assert clone.url in pins["clone"].owner
    assert [pins[kind].bytes_alone for kind in ("clone", "writer", "reader")] == [0, 0, 0]
    assert {pin.kind for pin in manual.admin.pins()} == {"checkpoint", "clone"}
    assert all(pin.store == "manual" for pin in pins.values())
    manual.admin.unpin("early")
    manual.collect()
    assert sst_path(first.id) not in [meta.path for meta in manual.store.list("sst")]


def test_what_unpin_does_not_touch(manual: ManualDatabase) -> None:
    """A clone's pin is not a user's to remove by accident; what is not there is NotFound; an id works as a name."""
    manual.write(1)
    manual.admin.create_branch("clone")
    (pin,) = manual.admin.pins()
    with raises(InvalidRequest, "checkpoint_owned"):
        manual.admin.unpin(pin.name)
    with pytest.raises(NotFound):
        manual.admin.unpin("nobody")
    made = manual.admin.create_checkpoint()
    manual.admin.unpin(made.id)
    assert manual.admin.pins() == [pin]


# ---- fork and restore


def test_a_fork_from_a_version_leaves_no_pin_but_its_own(manual: ManualDatabase) -> None:
    """From a number, a name or the latest; as a sibling folder; the checkpoint that held the number is gone."""
    manual.write(1)
    version = version_ids(manual)[-1]
    manual.admin.pin("one")
    manual.write(2)
    result = {}
    for name, asked in (("a", version), ("b", "one"), ("c", None)):
        fork = manual.admin.create_branch(name, version=asked)
        assert fork.url == manual.store.root_url.rpartition("/")[0] + "/" + name
        with fork.reader(options=ReaderOptions(background=False)) as reader:
            result[name] = manual.numbers(reader)
    assert result == {"a": [1], "b": [1], "c": [1, 2]}
    assert sorted(pin.kind for pin in manual.admin.pins()) == ["checkpoint", "clone", "clone", "clone"]
    for name in ("a", "b", "c", "manual"):
        with pytest.raises(AlreadyExists):
            manual.admin.create_branch(name)
    for name in ("", "x/y", "..", "a/../b"):
        with pytest.raises(InvalidRequest):
            manual.admin.create_branch(name)
    with pytest.raises(NotFound):
        manual.admin.create_branch("d", version="nobody")


def test_no_fork_beside_a_bucket() -> None:
    """Where there is no folder above, a clone needs a URL of its own."""
    environment = Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int))
    database = DatabaseAdmin(DatabaseLocation.at(f"memory://{uuid.uuid4()}", environment=environment))
    with database.open(options=DatabaseOptions(background=False)) as opened:
        opened.put(b"k", b"v")
    with pytest.raises(InvalidRequest, match="URL of its own"):
        database.create_branch("beside")


def test_restore_by_number_or_name(manual: ManualDatabase) -> None:
    """The present stays under a checkpoint with an end; a living writer is not fenced without being asked for."""
    manual.write(1)
    version = version_ids(manual)[-1]
    manual.write(2)
    present = version_ids(manual)[-1]
    manual.open()
    with raises(Conflict, "owned"):
        manual.admin.restore(version)
    assert [pin.kind for pin in manual.admin.pins()] == ["writer"]
    restored = manual.admin.restore(version, take_over=True, lifetime=HOUR)
    assert restored.id == version_ids(manual)[-1]
    assert restored.id not in (version, present)
    with manual.reader() as reader:
        assert manual.numbers(reader) == [1]
    with manual.admin.at(present) as view:
        assert manual.numbers(view) == [1, 2]
    kept = [checkpoint for checkpoint in manual.admin.list_checkpoints() if checkpoint.owner.kind == "user"]
    assert [item.expires_at_ms for item in kept] == [manual.clock.now_ms() + 3_600_000]
    manual.admin.restore(kept[0].id, take_over=True)
    with manual.reader() as reader:
        assert manual.numbers(reader) == [1, 2]


# ---- why


def test_why_answers_for_every_object(manual: ManualDatabase) -> None:
    """Each object of a database is referred to, kept for a reason, or waits for a collection."""
    manual.write(1)
    pinned = manual.admin.show_manifest()
    manual.admin.create_checkpoint(CheckpointOptions(name="early"))
    early = pinned.manifest_id
    manual.write(2)
    manual.admin.compact(full=True)
    manual.write(3, files=False)
    manual.store.put("notes.txt", b"")
    newest = manual.admin.show_manifest()
    garbage = next(
        meta.path
        for meta in manual.store.list("sst")
        if meta.path not in {sst_path(file.id) for item in (pinned, newest) for file in item.file_set.files()}
    )

    def why(path: str) -> tuple[list[str], str]:
        verdict = manual.admin.why(path)
        assert verdict.path == path
        assert path in verdict.sentence
        return [pin.name for pin in verdict.pins], verdict.sentence

    version = str(newest.content_since)
    assert why(sst_path(newest.runs[0].files[0].id))[0] == [version]
    assert why(sst_path(pinned.l0[0].id))[0] == ["early"]
    assert why(manifest_path(early))[0] == ["early"]
    assert why(manifest_path(newest.manifest_id))[0] == [version]
    assert why(wal_path(newest.replay_after_wal_id + 1))[0] == [version]
    for path, words in (
        (garbage, "neither the newest version nor a pinned one"),
        (manifest_path(1), "can be read and pinned until then"),
        (wal_path(1), "is a fence"),
        (wal_path(2), "rows are in files"),
        (LEASE_PATH, "who writes"),
        ("notes.txt", "not part of the database"),
    ):
        names, sentence = why(path)
        assert names == []
        assert words in sentence
    with pytest.raises(NotFound):
        manual.admin.why(manifest_path(newest.manifest_id + 1))
    manual.collect()
    marker = next(meta.path for meta in manual.store.list(BOUNDARY_FOLDER))
    assert "numbers were used" in why(marker)[1]
    with pytest.raises(NotFound):
        manual.admin.why(garbage)
    with pytest.raises(NotFound):
        manual.admin.why("nothing/here")
    with pytest.raises(InvalidRequest):
        manual.admin.why("../elsewhere")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_why_names_the_first_checkpoints_and_counts_the_others(manual: ManualDatabase, count: int) -> None:
    """Four by name, as a sentence lists them."""
    manual.write(1)
    path = sst_path(manual.admin.show_manifest().l0[0].id)
    names = [f"name-{number}" for number in range(count)]
    for name in names:
        manual.admin.create_checkpoint(CheckpointOptions(name=name))
    verdict = manual.admin.why(path)
    assert [pin.name for pin in verdict.pins[1:]] == names
    sentence = verdict.sentence.removeprefix(f"{path} is needed by ").removesuffix(".")
    *listed, last = re.split(", | and ", re.sub(r"\(.*?\)|checkpoint |[0-9a-f-]{36} ?|'", "", sentence))
    words = ["the newest version", *names[:4], *([f"{count - 4} more"] if count > 4 else [])]
    assert [word.strip() for word in (*listed, last)] == words
    assert sentence.count(" and ") == 1


def test_why_says_of_a_manifest_whether_its_version_can_be_read(manual: ManualDatabase) -> None:
    """Until a collection has taken something, though it leaves what is young."""

    def readable() -> dict[int, bool]:
        *older, _ = (parse_manifest(meta.path) for meta in manual.store.list(MANIFEST_FOLDER))
        sentences = {number: manual.admin.why(manifest_path(number)).sentence for number in older if number}
        assert all("no checkpoint pins it" in sentence for sentence in sentences.values())
        return {number: "can be read" in sentence for number, sentence in sentences.items()}

    manual.write(1)
    manual.clock.advance(2 * 86_400)
    manual.write(2)
    assert len(readable()) > 4
    assert all(readable().values())
    assert manual.admin.collect(CollectorOptions(grace=timedelta(days=1))).deleted_count > 0
    assert len(readable()) > 1
    assert not any(readable().values())


def test_why_a_version_is_kept(manual: ManualDatabase) -> None:
    """By a checkpoint until it ends, as the newest, or by nothing; a version that no manifest has is not found."""
    manual.write(1)
    first = manual.admin.show_manifest().content_since
    manual.admin.create_checkpoint(CheckpointOptions(name="early", lifetime=timedelta(days=1)))
    (made,) = manual.admin.list_checkpoints("early")
    manual.write(2)
    between = manual.admin.show_manifest().content_since
    manual.write(3)
    newest = manual.admin.show_manifest().content_since
    for version in ("early", made.id, str(first)):
        verdict = manual.admin.why_version(version)
        assert (verdict.path, [(pin.name, pin.expires_ms) for pin in verdict.pins]) == (
            str(first),
            [("early", made.expires_at_ms)],
        )
        assert verdict.sentence.startswith(f"Version {first} is needed by checkpoint 'early'")
    verdict = manual.admin.why_version(str(newest))
    assert ([pin.kind for pin in verdict.pins], "is the newest" in verdict.sentence) == (["version"], True)
    manual.admin.create_checkpoint(CheckpointOptions(name="late"))
    verdict = manual.admin.why_version(str(newest))
    assert [pin.kind for pin in verdict.pins] == ["version", "checkpoint"]
    assert "is the newest" in verdict.sentence
    assert "needed by checkpoint 'late'" in verdict.sentence, "which keeps it when another follows"
    verdict = manual.admin.why_version(str(between))
    assert (verdict.pins, "No checkpoint pins" in verdict.sentence) == ((), True)
    manual.collect()
    with pytest.raises(NotFound, match="has no version"):
        manual.admin.why_version(str(between))


def test_why_agrees_with_the_collector(manual: ManualDatabase) -> None:
    """What a collection takes is what nothing needed, and the other way round."""
    for number in range(3):
        manual.write(number)
        manual.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    manual.clock.advance(3600)
    manual.admin.create_checkpoint(CheckpointOptions(name="kept"))
    manual.write(7)
    manual.admin.compact(full=True)
    manual.write(8, files=False)
    free = {meta.path for meta in manual.store.list() if "needed by nothing" in manual.admin.why(meta.path).sentence}
    before = {meta.path for meta in manual.store.list()}
    manual.collect()
    gone = before - {meta.path for meta in manual.store.list()}
    # The collection's own update takes the place of the manifest that was the newest.
    assert gone - free <= {max(path for path in before if path.startswith("manifest/"))}
    assert free <= gone
    assert len(free) > 10


def test_a_pinned_version_that_is_missing_protects(manual: ManualDatabase) -> None:
    """What it needed is not known, so `why` names it for every file without another reference."""
    manual.write(1)
    made = manual.admin.create_checkpoint()
    manual.write(2)
    manual.admin.compact(full=True)
    manual.store.delete([manifest_path(made.manifest_id)])
    verdict = manual.admin.why(next(iter(manual.store.list("sst"))).path)
    assert "missing" in verdict.sentence
    assert [pin.name for pin in verdict.pins] == [made.id]
    (pin,) = manual.admin.pins()
    assert pin.bytes_alone is None
    assert pin.version == str(made.manifest_id)


# ---- manifests


def test_manifests_are_listed_with_what_pins_them(manual: ManualDatabase) -> None:
    """Ids, times, sizes, and whether each can still be read."""
    manual.write(1)
    made = manual.admin.create_checkpoint(CheckpointOptions(name="early"))
    manual.write(2)
    listed = manual.admin.list_manifests()
    newest = manual.admin.show_manifest()
    assert [entry.id for entry in listed] == list(range(1, newest.manifest_id + 1))
    assert all(entry.size_bytes > 100 and entry.created_ms == manual.clock.now_ms() for entry in listed)
    assert [entry.id for entry in listed if entry.is_newest] == [newest.manifest_id]
    assert {entry.id: entry.pinned_by for entry in listed if entry.pinned_by} == {made.manifest_id: ("early",)}
    assert all(entry.is_readable for entry in listed)
    manual.collect()
    assert [manifest.id for manifest in manual.admin.list_manifests()] == [made.manifest_id, newest.manifest_id + 1]
    assert manual.admin.show_manifest(made.manifest_id).manifest_id == made.manifest_id
    with pytest.raises(NotFound):
        manual.admin.show_manifest(1)


# ---- by URL


def test_every_verb_by_url(tmp_path: Path) -> None:
    """The functions of the module do on a folder what the methods do, with the names of the proposal."""
    url, clone_url = tmp_path / "manual", tmp_path / "clone"
    place = DatabaseLocation.at(url)
    with DatabaseAdmin(place).open(options=DatabaseOptions(background=False)) as database:
        database.put(key_of(1), value_of(1))
        made = verbs.create_checkpoint(url, CheckpointOptions(name="one", lifetime=HOUR))
        database.put(key_of(2), value_of(2))
        database.flush(memtable=True)
    assert [item.id for item in verbs.list_checkpoints(url, "one")] == [made.id]
    assert verbs.refresh_checkpoint(str(url), made.id).expires_at_ms is None
    assert verbs.create_clone(clone_url, url, "one").initialized
    assert verbs.compact(url, full=True) is True
    assert verbs.restore(url, "one", lifetime=timedelta(days=1)).store == "manual"
    with DatabaseAdmin(place).reader() as reader:
        assert reader.get(key_of(1)) == value_of(1)
        assert reader.get(key_of(2)) is None
    reports = verbs.collect(url, clone_url, options=CollectorOptions(grace=timedelta(0)))
    assert [report.store for report in reports] == ["manual", "clone"]
    assert verbs.show_manifest(url).manifest_id == verbs.list_manifests(url)[-1].id
    with raises(InvalidRequest, "invalid_deletion"):
        verbs.destroy(url, soft=False)
    verbs.destroy(clone_url, soft=False)
    for checkpoint in verbs.list_checkpoints(url):
        verbs.delete_checkpoint(url, checkpoint.id)
    verbs.destroy(url, soft=False)
    with pytest.raises(InvalidRequest):
        verbs.create_checkpoint(url)


def test_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    """A verb on a path without a database says so and leaves no folder behind."""
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for url in (missing, empty):
        for verb in (
            lambda url=url: verbs.create_checkpoint(url),
            lambda url=url: verbs.list_checkpoints(url),
            lambda url=url: verbs.collect(url),
            lambda url=url: verbs.compact(url),
            lambda url=url: verbs.show_manifest(url),
            lambda url=url: verbs.list_manifests(url),
            lambda url=url: verbs.destroy(url, soft=True),
            lambda url=url: verbs.restore(url, "x"),
        ):
            with pytest.raises(NotFound):
                verb()
    assert not missing.exists()
    assert list(empty.iterdir()) == []


def test_one_failing_database_does_not_keep_the_others(tmp_path: Path) -> None:
    """A collection of several goes through all of them, then raises what went wrong."""
    url = tmp_path / "manual"
    for _ in range(2):
        with DatabaseAdmin(DatabaseLocation.at(url)).open(options=DatabaseOptions(background=False)) as database:
            database.put(b"k", b"v")
            database.flush(memtable=True)
    before = len(verbs.list_manifests(url))
    with pytest.raises(NotFound):
        verbs.collect(tmp_path / "missing", url, options=CollectorOptions(grace=timedelta(0)))
    assert len(verbs.list_manifests(url)) < before
