"""Verbs over whole databases at their edges: versions at every boundary, destruction, jobs of others, counts."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest

from lakebed.errors import Conflict, Fenced, InvalidRequest, NotFound
from lakebed.kv.clone import create_clone
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Job, Manifest, Owner
from lakebed.kv.options import CheckpointOptions, CollectorOptions, ReaderOptions
from lakebed.kv.publisher import CompactorPublisher, newest_file_id
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.versions import find_version, version_of
from lakebed.lsm.model import Run
from lakebed.lsm.plan import CompactionTask
from lakebed.objects import ObjectStore, open_store
from lakebed.testing import Call, ManualClock, StoreWrapper
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase, key_of, value_of

R = TypeVar("R")


def change(manual: ManualDatabase, **fields: Any) -> Manifest:
    """Another process writes a manifest with these fields."""
    log = ManifestLog(manual.place())
    return log.update(lambda manifest: msgspec.structs.replace(manifest, **fields), fresh=True)


def newest(manual: ManualDatabase) -> Manifest:
    """The newest manifest."""
    return ManifestLog(manual.place()).latest()


def checkpoint_of(manual: ManualDatabase, manifest_id: int, number: int, **fields: Any) -> Checkpoint:
    """A checkpoint of a manifest, without an end."""
    return Checkpoint(f"{number:08}", manifest_id, manual.clock.now_ms(), Owner("user"), **fields)


# ---- versions


def test_versions_are_those_that_no_collection_has_passed_or_that_are_pinned(manual: ManualDatabase) -> None:
    """For every boundary and every pin: each once, by the first manifest with its content, oldest first."""
    for number in range(4):
        manual.write(number)
    log = ManifestLog(manual.place())
    stored = {id: log.load(id) for id in log.ids()}
    for since in (1, 3, max(stored) - 1, max(stored), max(stored) + 1):
        for pinned in (None, min(stored), max(stored) // 2):
            pins = () if pinned is None else (checkpoint_of(manual, pinned, 1),)
            latest = change(manual, readable_since=since, checkpoints=pins)
            stored[latest.manifest_id] = latest
            readable = [
                manifest
                for id, manifest in sorted(stored.items())
                if manifest.initialized and (id == pinned or since <= id <= latest.manifest_id)
            ]
            ids = list(dict.fromkeys(manifest.content_since for manifest in readable))
            assert [int(version.id) for version in manual.admin.versions()] == ids
            for id in range(1, latest.manifest_id + 2):
                is_readable = id == pinned or since <= id <= latest.manifest_id
                above = min((other for other in {pinned, since} - {None} if other > id), default=None)  # type: ignore[operator,type-var]
                stand_in = stored.get(above or 0)
                has_stand_in = stand_in is not None and stand_in.content_since <= id
                if is_readable or has_stand_in:
                    assert find_version(manual.place(), latest, f"{id}") == (id if is_readable else above)
                else:
                    with raises(NotFound, "version_not_found", version=f"{id}"):
                        find_version(manual.place(), latest, f"{id}")


@pytest.mark.parametrize("text", ["", " 1", "+1", "１", "1" * 21, "x", "-1"])
def test_what_is_no_number_is_no_version(manual: ManualDatabase, text: str) -> None:
    """But for a checkpoint's name; a number has at most twenty digits."""
    manual.write(1)
    with raises(NotFound, "version_not_found"):
        find_version(manual.place(), newest(manual), text)
    latest = newest(manual)
    assert find_version(manual.place(), latest, f"{latest.manifest_id:020}") == latest.manifest_id
    named = checkpoint_of(manual, latest.manifest_id, 1, name=text or "named")
    assert find_version(manual.place(), change(manual, checkpoints=(named,)), text or "named") == named


@pytest.mark.parametrize(
    ("file_count", "files"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1_000, "1,000 files")]
)
@pytest.mark.parametrize(
    ("seen", "log"), [(4, ""), (5, ""), (6, ", 1 log object"), (7, ", 2 log objects"), (1_005, ", 1,000 log objects")]
)
def test_a_version_says_what_it_has(manual: ManualDatabase, file_count: int, files: str, seen: int, log: str) -> None:
    """Files, their bytes, and the log objects that are not in files."""
    manual.write(1)
    (file,) = newest(manual).l0
    manifest = msgspec.structs.replace(
        newest(manual),
        l0=tuple(msgspec.structs.replace(file, id=f"{number:026}", size_bytes=7) for number in range(file_count)),
        replay_after_wal_id=5,
        wal_id_last_seen=seen,
    )
    version = version_of(manifest, store="s")
    assert version.summary == f"{files}, {7 * file_count:,} bytes{log}"
    assert (version.facts["file_count"], version.facts["size_bytes"]) == (file_count, 7 * file_count)
    assert (version.store, version.id) == ("s", f"{manifest.content_since}")


def test_content_is_files_and_the_end_of_the_log() -> None:
    """Where files are ahead of the log that was seen, they are its end."""
    manifest = Manifest(
        1, "w", 0, initialized=True, writer_epoch=1, compactor_epoch=1, replay_after_wal_id=3, wal_id_last_seen=5,
        last_sequence=0, newest_l0_id="",
    )  # fmt: skip
    for fields, is_same in (
        ({"replay_after_wal_id": 5}, True), ({"replay_after_wal_id": 6}, False), ({"wal_id_last_seen": 6}, False),
        ({"wal_id_last_seen": 4}, False), ({"writer_epoch": 2, "manifest_id": 9}, True),
        ({"runs": (Run("r", ()),)}, False),
    ):  # fmt: skip
        other = msgspec.structs.replace(manifest, **fields)  # type: ignore[arg-type]
        assert manifest.has_content_of(other) is is_same, fields
        assert other.has_content_of(manifest) is is_same, fields


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", ""])
def test_why_is_asked_of_a_path(manual: ManualDatabase, path: str) -> None:
    """Not of what leaves the folder."""
    manual.write(1)
    with pytest.raises(InvalidRequest):
        manual.admin.why(path)


# ---- jobs


@pytest.mark.parametrize("act", ["claim", "begin", "publish", "abandon"])
def test_jobs_of_others_stay(manual: ManualDatabase, act: str) -> None:
    """A compactor takes away its own and earlier compactions; a load is the writer's."""
    for number in range(3):
        manual.write(number)
    loads = tuple(Job(id, "load", f"{number:026}", 1, 0) for number, id in enumerate(("0", "z")))
    change(manual, jobs=(loads[0], Job("old", "compaction", f"{9:026}", 0, 0), loads[1]))
    log = ManifestLog(manual.place())
    publisher = CompactorPublisher(manual.place(), log=log)
    publisher.claim()
    if act == "claim":
        assert newest(manual).jobs == loads
        return
    latest = log.latest()
    task = CompactionTask(tuple(file.id for file in latest.l0), (), bottom=True)
    job = publisher.begin_compaction(task)
    (own,) = (other for other in newest(manual).jobs if other not in loads)
    assert (own.id, own.kind, own.epoch) == (job.id, "compaction", latest.compactor_epoch)  # type: ignore[attr-defined]
    assert own.start_id > newest_file_id(msgspec.structs.replace(newest(manual), jobs=loads))
    if act == "begin":
        again = publisher.begin_compaction(task)
        assert {other.id for other in newest(manual).jobs} == {"0", "z", again.id}  # type: ignore[attr-defined]
    elif act == "publish":
        publisher.publish_compaction(job, task, None)
        assert newest(manual).jobs == loads
    else:
        CompactorPublisher(manual.place(), log=log).abandon(job)
        assert own in newest(manual).jobs, "another compactor's"
        publisher.abandon(job)
        assert newest(manual).jobs == loads
        before = newest(manual)
        publisher.abandon(job)
        assert newest(manual) == before


def test_a_job_begins_behind_every_file(manual: ManualDatabase) -> None:
    """Of level 0, of runs and of other jobs, and behind what a writer may still publish."""
    manual.write(1)
    (file,) = newest(manual).l0
    ids = [f"{number:026}" for number in range(6)]
    manifest = msgspec.structs.replace(
        newest(manual), newest_l0_id=ids[0], l0=(msgspec.structs.replace(file, id=ids[1]),),
        runs=(Run(ids[2], (msgspec.structs.replace(file, id=ids[3]),)),), jobs=(Job("j", "load", ids[4], 1, 0),),
    )  # fmt: skip
    assert newest_file_id(manifest) == ids[4]
    last = ids[5]
    for fields in (
        {"newest_l0_id": last},
        {"l0": (msgspec.structs.replace(file, id=last),)},
        {"runs": (Run(last, ()),)},
        {"runs": (Run(ids[0], (msgspec.structs.replace(file, id=last),)),)},
        {"jobs": (Job("j", "compaction", last, 1, 0),)},
    ):
        assert newest_file_id(msgspec.structs.replace(manifest, **fields)) == last  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [-1, 1])
def test_a_compactor_of_another_epoch_is_fenced(manual: ManualDatabase, step: int) -> None:
    """A later one has taken over; an earlier one is one of a database that was restored from elsewhere."""
    manual.write(1)
    publisher = CompactorPublisher(manual.place(), log=ManifestLog(manual.place()))
    epoch = publisher.claim()
    publisher.check_epoch(newest(manual))
    change(manual, compactor_epoch=epoch + step)
    with raises(Fenced, "compactor_fenced", epoch=epoch + step, own_epoch=epoch):
        publisher.check_epoch(newest(manual))


# ---- destruction


@pytest.mark.parametrize("soft", [True, False])
def test_a_dry_destruction_refuses_what_the_real_one_refuses(manual: ManualDatabase, soft: bool) -> None:
    """Live checkpoints unless it is soft, a living writer unless it is taken over; and changes nothing."""
    manual.write(1)
    pin = manual.admin.create_checkpoint(CheckpointOptions(name="pin"))
    before = {meta.path for meta in manual.store.list()}
    for dry_run in (True, False):
        if not soft:
            with raises(InvalidRequest, "invalid_deletion", checkpoints=[pin.id]):
                destroy(manual.place(), soft=soft, dry_run=dry_run)
    manual.admin.delete_checkpoint(pin.id)
    with manual.open():
        for dry_run in (True, False):
            with raises(Conflict, "owned"):
                destroy(manual.place(), soft=soft, dry_run=dry_run)
        report = destroy(manual.place(), soft=soft, dry_run=True, take_over=True)
    assert (report.dry_run, report.hidden_count, report.deleted_count > 0) == (True, 0, not soft)
    assert newest(manual).destroyed_at_ms is None
    assert before <= {meta.path for meta in manual.store.list()}
    foretold = destroy(manual.place(), soft=soft, dry_run=True)
    done = destroy(manual.place(), soft=soft)
    assert (done.dry_run, done.hidden_count) == (False, 0)
    assert (done.deleted_count > 0, foretold.deleted_count > 0) == (not soft, not soft)
    stamped = newest(manual)
    assert (stamped.destroyed_at_ms, stamped.jobs, stamped.checkpoints) == (manual.clock.now_ms(), (), ())
    manual.clock.advance(1)
    for again in (destroy(manual.place(), soft=True), destroy(manual.place(), soft=True, dry_run=True)):
        assert again.deleted_count == 0
    assert newest(manual).destroyed_at_ms == stamped.destroyed_at_ms


def test_a_soft_destruction_keeps_checkpoints_that_live(manual: ManualDatabase) -> None:
    """Those of users; what has ended goes, and so do those of roles that are claimed."""
    manual.write(1)
    kept = manual.admin.create_checkpoint()
    ended = manual.admin.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=1)))
    lasting = manual.admin.create_checkpoint(CheckpointOptions(lifetime=timedelta(seconds=2)))
    manual.clock.advance(1)
    destroy(manual.place(), soft=True)
    assert {checkpoint.id for checkpoint in newest(manual).checkpoints} == {kept.id, lasting.id} - {ended.id}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_clone_that_is_not_finished_is_counted_and_left_alone(manual: ManualDatabase, dry_run: bool) -> None:
    """Every file, log object and manifest of it."""
    manual.write(1)
    manual.write(2)
    manual.write(3, files=False)
    change(manual, initialized=False)
    before = [meta.path for meta in manual.store.list()]
    count = sum(path.startswith(("sst/", "wal/", "manifest/")) for path in before)
    options = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
    report = manual.admin.collect(options, dry_run=dry_run)
    assert (report.kept, report.deleted_count, report.hidden_count) == ({"clone not finished": count}, 0, 0)
    assert (report.dry_run, len(report.warnings)) == (dry_run, 1)
    assert [meta.path for meta in manual.store.list()] == before


# ---- compaction


@pytest.mark.parametrize("rivals", range(4))
def test_a_compaction_that_lost_a_race_is_planned_again(manual: ManualDatabase, rivals: int) -> None:
    """A few times; and its job goes from the manifest, whatever ends it."""
    for number in range(3):
        manual.write(number)
    left = [rivals]

    def disturb(done: int, total: int) -> None:
        if left[0]:
            left[0] -= 1
            latest = newest(manual)
            change(manual, l0=latest.l0[:-1] if len(latest.l0) > 1 else latest.l0)

    with suppress(Conflict):
        manual.admin.compact(full=True, progress=disturb)
    assert newest(manual).jobs == ()
    with manual.reader() as reader:
        shown = manual.numbers(reader)
    assert set(shown) <= {0, 1, 2}
    assert 2 in shown


# ---- clones


class _Slow(StoreWrapper):
    """A store whose log objects take time to read: each as much of a clock."""

    def __init__(self, inner: ObjectStore, clock: ManualClock, object_s: float) -> None:
        super().__init__(inner)
        self._clock, self._object_s, self._turn = clock, object_s, threading.Lock()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, and let its time pass."""
        if call.kind == "get" and call.path.startswith("wal/"):
            with self._turn:
                self._clock.advance(self._object_s)
        return perform()


@pytest.mark.parametrize(("part", "renewals"), [(0.0, 0), (0.3, 1), (0.6, 2), (0.9, 2)])
def test_the_pins_of_a_clone_live_on_while_it_copies(manual: ManualDatabase, part: float, renewals: int) -> None:
    """When half of their lifetime is over, however long it takes; five times eight log objects here."""
    with manual.open() as database:
        for number in range(40):
            database.put(key_of(number), value_of(number))
        database.flush()
    lifetime = timedelta(seconds=80)
    object_s = part * 40 / 8
    slow = DatabaseLocation(
        open_store(f"memory://{uuid.uuid4()}/clone", environment=manual.environment),
        manual.environment,
        lambda url: _Slow(open_store(url, environment=manual.environment), manual.clock, object_s),
    )
    before = newest(manual).manifest_id
    create_clone(slow, manual.place().url, pin_lifetime=lifetime)
    with DatabaseReader.open(slow, options=ReaderOptions(background=False, cache_bytes=0)) as reader:
        assert manual.numbers(reader) == list(range(40))
    (pin,) = (pin for pin in newest(manual).checkpoints if pin.owner.kind == "clone")
    assert pin.expires_at_ms is None
    plain = 2  # its pin, which then has no end
    assert newest(manual).manifest_id - before == plain + renewals
