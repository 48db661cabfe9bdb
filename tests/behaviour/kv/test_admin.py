"""`DatabaseAdmin`: versions, pins, why, and the verbs by place and by URL."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.kv import admin as verbs
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import BOUNDARY_FOLDER, LEASE_PATH, manifest_path, sst_path, wal_path
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.kv.manual_database import Shop, key_of, value_of

HOUR = timedelta(hours=1)


@pytest.fixture
def shop() -> Shop:
    """An empty place for a database."""
    return Shop.new()


def version_ids(shop: Shop) -> list[str]:
    """Ids of all readable versions."""
    return [version.id for version in shop.admin.versions()]


# ---- versions and pins


def test_it_knows_its_name_and_whether_it_exists(shop: Shop) -> None:
    """The name is the last part of its URL, or what its lake calls it."""
    assert shop.admin.name == "shop"
    assert DatabaseAdmin(shop.place(), name="db.shop").name == "db.shop"
    assert not shop.admin.exists()
    shop.write(1)
    assert shop.admin.exists()
    shop.admin.destroy(soft=True)
    assert not shop.admin.exists()


def test_checkpoints_and_epochs_make_no_versions(shop: Shop) -> None:
    """A version is what was written: opening, closing, pinning and refreshing leave its id as it is."""
    shop.write(1)
    before = version_ids(shop)
    made = shop.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    shop.admin.refresh_checkpoint(made.id)
    with shop.reader():
        assert version_ids(shop) == before
    assert version_ids(shop) == before
    assert shop.admin.pin("again").version == before[-1]
    assert shop.admin.show_manifest(made.manifest_id).manifest_id > int(before[-1])


def test_a_version_keeps_its_id_when_its_first_manifest_is_collected(shop: Shop) -> None:
    """Any manifest of the same content stands in for the first one."""
    shop.write(1)
    version = version_ids(shop)[-1]
    shop.admin.create_checkpoint(CheckpointOptions(name="late"))
    shop.collect()
    with pytest.raises(NotFound):
        shop.admin.show_manifest(int(version))
    assert version_ids(shop) == [version]
    for way in (version, "late"):
        with shop.admin.at(way) as view:
            assert shop.numbers(view) == [1]
    assert shop.admin.pin("again", version=version).version == version
    shop.write(2)
    shop.collect()
    with shop.admin.at(version) as view:
        assert shop.numbers(view) == [1]
    with pytest.raises(NotFound):
        shop.admin.at("9" * 5000)


def test_pins_tell_whose_they_are_and_what_they_hold(shop: Shop) -> None:
    """Users', readers', clones' and the writer's, with owner, end, and the bytes that each alone holds."""
    shop.write(1)
    first = shop.admin.show_manifest().l0[0]
    shop.clock.advance(1)
    shop.admin.pin("early", lifetime_ms=5_000)
    shop.write(2)
    shop.admin.compact(full=True)
    shop.clock.advance(1)
    clone = shop.admin.fork("clone")
    with shop.open(), shop.reader():
        pins = {pin.kind: pin for pin in shop.admin.pins()}
    assert set(pins) == {"checkpoint", "clone", "writer", "reader"}
    assert pins["checkpoint"].name == "early"
    assert pins["checkpoint"].owner == "user"
    assert pins["checkpoint"].expires_ms == (pins["checkpoint"].created_ms or 0) + 5_000
    assert pins["checkpoint"].bytes_alone == first.size_bytes
    assert clone.url in pins["clone"].owner
    assert [pins[kind].bytes_alone for kind in ("clone", "writer", "reader")] == [0, 0, 0]
    assert {pin.kind for pin in shop.admin.pins()} == {"checkpoint", "clone"}
    assert all(pin.store == "shop" for pin in pins.values())
    shop.admin.unpin("early")
    shop.collect()
    assert sst_path(first.id) not in [meta.path for meta in shop.store.list("sst")]


def test_what_unpin_does_not_touch(shop: Shop) -> None:
    """A clone's pin is not a user's to remove by accident; what is not there is NotFound; an id works as a name."""
    shop.write(1)
    shop.admin.fork("clone")
    (pin,) = shop.admin.pins()
    with pytest.raises(InvalidRequest) as error:
        shop.admin.unpin(pin.name)
    assert error.value.kind == "checkpoint_owned"
    with pytest.raises(NotFound):
        shop.admin.unpin("nobody")
    made = shop.admin.create_checkpoint()
    shop.admin.unpin(made.id)
    assert shop.admin.pins() == [pin]


# ---- fork and restore


def test_a_fork_from_a_version_leaves_no_pin_but_its_own(shop: Shop) -> None:
    """From a number, a name or the latest; beside the database; the checkpoint that held the number is gone."""
    shop.write(1)
    version = version_ids(shop)[-1]
    shop.admin.pin("one")
    shop.write(2)
    found = {}
    for name, asked in (("a", version), ("b", "one"), ("c", None)):
        fork = shop.admin.fork(name, version=asked)
        assert fork.url == shop.store.root_url.rpartition("/")[0] + "/" + name
        with fork.reader(options=ReaderOptions(background=False)) as reader:
            found[name] = shop.numbers(reader)
    assert found == {"a": [1], "b": [1], "c": [1, 2]}
    assert sorted(pin.kind for pin in shop.admin.pins()) == ["checkpoint", "clone", "clone", "clone"]
    for name in ("a", "b", "c", "shop"):
        with pytest.raises(AlreadyExists):
            shop.admin.fork(name)
    for name in ("", "x/y", "..", "a/../b"):
        with pytest.raises(InvalidRequest):
            shop.admin.fork(name)
    with pytest.raises(NotFound):
        shop.admin.fork("d", version="nobody")


def test_no_fork_beside_a_bucket() -> None:
    """Where there is no folder above, a clone needs a URL of its own."""
    environment = Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int))
    database = DatabaseAdmin(DatabaseLocation.at(f"memory://{uuid.uuid4()}", environment=environment))
    with database.open(options=DatabaseOptions(background=False)) as opened:
        opened.put(b"k", b"v")
    with pytest.raises(InvalidRequest, match="URL of its own"):
        database.fork("beside")


def test_restore_by_number_or_name(shop: Shop) -> None:
    """The present stays under a checkpoint with an end; a living writer is not fenced without being asked for."""
    shop.write(1)
    version = version_ids(shop)[-1]
    shop.write(2)
    present = version_ids(shop)[-1]
    shop.open()
    with pytest.raises(Conflict) as error:
        shop.admin.restore(version)
    assert error.value.kind == "owned"
    assert [pin.kind for pin in shop.admin.pins()] == ["writer"]
    restored = shop.admin.restore(version, take_over=True, keep_for=HOUR)
    assert restored.id == version_ids(shop)[-1]
    assert restored.id not in (version, present)
    with shop.reader() as reader:
        assert shop.numbers(reader) == [1]
    with shop.admin.at(present) as view:
        assert shop.numbers(view) == [1, 2]
    kept = [one for one in shop.admin.list_checkpoints() if one.owner.kind == "user"]
    assert [one.expires_at_ms for one in kept] == [shop.clock.now_ms() + 3_600_000]
    shop.admin.restore(kept[0].id, take_over=True)
    with shop.reader() as reader:
        assert shop.numbers(reader) == [1, 2]


# ---- why


def test_why_answers_for_every_object(shop: Shop) -> None:
    """Each object of a database is needed by somebody, kept for a reason, or waits for a collection."""
    shop.write(1)
    pinned = shop.admin.show_manifest()
    shop.admin.create_checkpoint(CheckpointOptions(name="early"))
    early = shop.admin.show_manifest().manifest_id
    shop.write(2)
    shop.admin.compact(full=True)
    shop.write(3, files=False)
    shop.store.put("notes.txt", b"")
    newest = shop.admin.show_manifest()
    garbage = next(
        meta.path
        for meta in shop.store.list("sst")
        if meta.path not in {sst_path(file.id) for one in (pinned, newest) for file in one.file_set.files()}
    )

    def why(path: str) -> tuple[list[str], str]:
        verdict = shop.admin.why(path)
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
    shop.collect()
    marker = next(meta.path for meta in shop.store.list(BOUNDARY_FOLDER))
    assert "numbers were used" in why(marker)[1]
    with pytest.raises(NotFound):
        shop.admin.why(garbage)
    with pytest.raises(NotFound):
        shop.admin.why("nothing/here")
    with pytest.raises(InvalidRequest):
        shop.admin.why("../elsewhere")


def test_why_agrees_with_the_collector(shop: Shop) -> None:
    """What a collection takes is what nothing needed, and the other way round."""
    for number in range(3):
        shop.write(number)
        shop.admin.create_checkpoint(CheckpointOptions(lifetime=HOUR))
    shop.clock.advance(3600)
    shop.admin.create_checkpoint(CheckpointOptions(name="kept"))
    shop.write(7)
    shop.admin.compact(full=True)
    shop.write(8, files=False)
    free = {meta.path for meta in shop.store.list() if "needed by nothing" in shop.admin.why(meta.path).sentence}
    before = {meta.path for meta in shop.store.list()}
    shop.collect()
    gone = before - {meta.path for meta in shop.store.list()}
    # The collection's own update takes the place of the manifest that was the newest.
    assert gone - free <= {max(path for path in before if path.startswith("manifest/"))}
    assert free <= gone
    assert len(free) > 10


def test_a_pinned_version_that_is_missing_protects(shop: Shop) -> None:
    """What it needed is not known, so why says so for whatever else nothing needs."""
    shop.write(1)
    made = shop.admin.create_checkpoint()
    shop.write(2)
    shop.admin.compact(full=True)
    shop.store.delete([manifest_path(made.manifest_id)])
    verdict = shop.admin.why(next(iter(shop.store.list("sst"))).path)
    assert "missing" in verdict.sentence
    assert [pin.name for pin in verdict.pins] == [made.id]
    (pin,) = shop.admin.pins()
    assert pin.bytes_alone is None
    assert pin.version == str(made.manifest_id)


# ---- manifests


def test_manifests_are_listed_with_what_pins_them(shop: Shop) -> None:
    """Ids, times, sizes, and whether each can still be read."""
    shop.write(1)
    made = shop.admin.create_checkpoint(CheckpointOptions(name="early"))
    shop.write(2)
    listed = shop.admin.list_manifests()
    newest = shop.admin.show_manifest()
    assert [one.id for one in listed] == list(range(1, newest.manifest_id + 1))
    assert all(one.size_bytes > 100 and one.created_ms == shop.clock.now_ms() for one in listed)
    assert [one.id for one in listed if one.is_newest] == [newest.manifest_id]
    assert {one.id: one.pinned_by for one in listed if one.pinned_by} == {made.manifest_id: ("early",)}
    assert all(one.is_readable for one in listed)
    shop.collect()
    assert [one.id for one in shop.admin.list_manifests()] == [made.manifest_id, newest.manifest_id + 1]
    assert shop.admin.show_manifest(made.manifest_id).manifest_id == made.manifest_id
    with pytest.raises(NotFound):
        shop.admin.show_manifest(1)


# ---- by URL


def test_every_verb_by_url(tmp_path: Path) -> None:
    """The functions of the module do on a folder what the methods do, with the names of the proposal."""
    url, clone_url = tmp_path / "shop", tmp_path / "clone"
    place = DatabaseLocation.at(url)
    with DatabaseAdmin(place).open(options=DatabaseOptions(background=False)) as database:
        database.put(key_of(1), value_of(1))
        made = verbs.create_checkpoint(url, CheckpointOptions(name="one", lifetime=HOUR))
        database.put(key_of(2), value_of(2))
        database.flush(memtable=True)
    assert [one.id for one in verbs.list_checkpoints(url, "one")] == [made.id]
    assert verbs.refresh_checkpoint(str(url), made.id).expires_at_ms is None
    assert verbs.create_clone(clone_url, url, "one").initialized
    assert verbs.compact(url, full=True) is True
    assert verbs.restore(url, "one", keep_for=timedelta(days=1)).store == "shop"
    with DatabaseAdmin(place).reader() as reader:
        assert reader.get(key_of(1)) == value_of(1)
        assert reader.get(key_of(2)) is None
    reports = verbs.collect_garbage(url, clone_url, options=CollectorOptions(min_age=timedelta(0)))
    assert [report.store for report in reports] == ["shop", "clone"]
    assert verbs.show_manifest(url).manifest_id == verbs.list_manifests(url)[-1].id
    with pytest.raises(InvalidRequest) as error:
        verbs.destroy(url, soft=False)
    assert error.value.kind == "invalid_deletion"
    verbs.destroy(clone_url, soft=False)
    for one in verbs.list_checkpoints(url):
        verbs.delete_checkpoint(url, one.id)
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
            lambda url=url: verbs.collect_garbage(url),
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
    url = tmp_path / "shop"
    for _ in range(2):
        with DatabaseAdmin(DatabaseLocation.at(url)).open(options=DatabaseOptions(background=False)) as database:
            database.put(b"k", b"v")
            database.flush(memtable=True)
    before = len(verbs.list_manifests(url))
    with pytest.raises(NotFound):
        verbs.collect_garbage(tmp_path / "missing", url, options=CollectorOptions(min_age=timedelta(0)))
    assert len(verbs.list_manifests(url)) < before
