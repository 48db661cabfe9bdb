"""Many checkpoints of one database: each verb means one of them, and what each keeps is counted and explained."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from lakebed.kv.checkpoint import readable_versions
from lakebed.kv.layout import parse_sst, parse_wal
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import CheckpointScope
from lakebed.kv.options import CheckpointOptions
from lakebed.kv.wal_record import FENCE_BYTES
from worlds.kv.manual_database import ManualDatabase, key_of, value_of

VERSION_COUNT = 9
FLUSHED = (3, 6, 7, 9)
MERGED = (7, 9)


def write_history(manual: ManualDatabase) -> dict[str, list[int]]:
    """Nine versions, each under a checkpoint, in files and in the log: the numbers that each reads, by its id.

    Each writes one row more than the one before it. Some begin a file; what is there is merged twice.
    """
    numbers: list[int] = []
    expected: dict[str, list[int]] = {}
    with manual.open() as database:
        for number in range(1, VERSION_COUNT + 1):
            for part in range(10 * number, 11 * number):
                database.put(key_of(part), value_of(part))
                numbers.append(part)
            if number in FLUSHED:
                database.flush(memtable=True)
            options = CheckpointOptions(name=f"version-{number}")
            made = database.create_checkpoint(options, scope=CheckpointScope.ALL)
            expected[made.id] = list(numbers)
            manual.clock.advance(1)
            if number in MERGED:
                manual.admin.compact(full=True)
                database.poll_once()
    return expected


def sizes(manual: ManualDatabase) -> dict[str, int]:
    """The sizes of sorted files and log objects, by path."""
    return {meta.path: meta.size_bytes for folder in ("sst", "wal") for meta in manual.store.list(folder)}


def test_each_is_read_renewed_and_deleted_alone(manual: ManualDatabase) -> None:
    """One that is made, read, renewed or deleted is the one that was meant, and the others stay as they are."""
    expected = write_history(manual)
    assert len(expected) == VERSION_COUNT
    for id, numbers in expected.items():
        with manual.reader(id) as reader:
            assert manual.numbers(reader) == numbers
    for count in range(1, 6):
        before = {checkpoint.id: checkpoint for checkpoint in manual.admin.list_checkpoints()}
        made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=timedelta(hours=count)))
        after = {checkpoint.id: checkpoint for checkpoint in manual.admin.list_checkpoints()}
        assert after.keys() - before.keys() == {made.id}
        assert after.pop(made.id).manifest_id == made.manifest_id
        assert after == before
        with manual.reader(made.id) as reader:
            assert manual.numbers(reader) == numbers
    for id in expected:
        before = {checkpoint.id: checkpoint for checkpoint in manual.admin.list_checkpoints()}
        renewed = manual.admin.refresh_checkpoint(id, timedelta(days=2))
        after = {checkpoint.id: checkpoint for checkpoint in manual.admin.list_checkpoints()}
        assert after.pop(id).expires_at_ms == renewed.expires_at_ms == manual.clock.now_ms() + 2 * 86_400_000
        assert before.pop(id).expires_at_ms is None
        assert after == before
    left = dict(expected)
    for id in expected:
        manual.admin.delete_checkpoint(id)
        del left[id]
        manual.collect()
        for other, numbers in left.items():
            with manual.reader(other) as reader:
                assert manual.numbers(reader) == numbers


def test_readers_and_writers_find_their_own_among_many(manual: ManualDatabase) -> None:
    """What a reader or writer shows and releases is its own checkpoint, whatever the ids of the others."""
    expected = write_history(manual)
    newest = list(expected.values())[-1]
    for number in range(6):
        before = manual.admin.list_checkpoints()
        with manual.reader(checkpoint_lifetime=timedelta(hours=1)) as reader:
            (pin,) = manual.reader_pins()
            assert manual.numbers(reader) == newest
            with manual.open() as database:
                database.put(key_of(100 + number), value_of(100 + number))
                database.flush(memtable=number % 2 == 0)
                others = [other for other in manual.admin.list_checkpoints() if other not in before]
                assert {other.owner.kind for other in others} == {"reader", "writer"}
                newest = [*newest, 100 + number]
                reader.poll_once()
                assert manual.numbers(reader) == newest
                assert manual.numbers(database) == newest
            if number % 2 == 0:  # it shows other files, under another checkpoint
                manual.clock.advance(31 * 60)
                reader.poll_once()
                assert pin.id not in {checkpoint.id for checkpoint in manual.reader_pins()}
            manual.collect()
            assert manual.numbers(reader) == newest
        assert manual.admin.list_checkpoints() == before


@pytest.mark.parametrize("with_pins_twice", [False, True])
def test_bytes_alone_are_what_a_deletion_frees(manual: ManualDatabase, with_pins_twice: bool) -> None:
    """For every pin: as many bytes of files and log objects as a collection after its deletion deletes."""
    expected = write_history(manual)
    if with_pins_twice:
        for id in list(expected)[::4]:
            manual.admin.create_checkpoint(CheckpointOptions(source=id))
    manual.collect()
    freed: dict[str, int] = {}
    for pin in manual.admin.pins():
        (id,) = (item.id for item in manual.admin.list_checkpoints() if pin.name in (item.id, item.name))
        other = manual.copy()
        other.admin.delete_checkpoint(id)
        other.collect()
        freed[pin.name] = sum(sizes(manual).values()) - sum(sizes(other).values())
    assert {pin.name: pin.bytes_alone for pin in manual.admin.pins()} == freed
    assert len(set(freed.values())) > 3


def test_why_names_all_that_need_an_object(manual: ManualDatabase) -> None:
    """For each file and log object: those checkpoints, and no others, whose version names or replays it."""
    write_history(manual)
    pinned = {
        checkpoint.name: manual.admin.show_manifest(checkpoint.manifest_id)
        for checkpoint in manual.admin.list_checkpoints()
    }
    newest = manual.admin.show_manifest()
    needed_counts = set()
    for path, size_bytes in sizes(manual).items():
        file_id, log_id = parse_sst(path), parse_wal(path)
        versions = {**pinned, "newest": newest}
        needing = {
            name
            for name, version in versions.items()
            if file_id in {file.id for file in version.file_set.files()}
            or (log_id is not None and log_id in range(version.replay_after_wal_id + 1, version.wal_id_last_seen + 1))
        }
        pins = manual.admin.why(path).pins
        assert {"newest" if pin.kind == "version" else pin.name for pin in pins} == needing, path
        if size_bytes == FENCE_BYTES:
            assert "needed by nothing" not in manual.admin.why(path).sentence
        needed_counts.add(len(needing))
    assert len(needed_counts) > 3


def test_a_reader_of_a_checkpoint_reads_the_log_of_its_version_only(manual: ManualDatabase) -> None:
    """Rows that follow in the log, in other tables of the reader or of its own, are not shown."""
    expected = write_history(manual)
    for table_bytes in (1, 1000, 1 << 20):
        for id, numbers in expected.items():
            with manual.reader(id, max_memtable_bytes=table_bytes) as reader:
                assert manual.numbers(reader) == numbers
                assert reader.get(key_of(numbers[-1])) == value_of(numbers[-1])
                assert reader.get(key_of(numbers[-1] + 9)) is None


@pytest.mark.parametrize(
    ("since", "newest", "named"),
    [(5, 5, "version 5, the newest,"), (3, 5, "versions 3 to 5"), (7, 5, "version 5, the newest,")],
)
def test_what_can_be_read_is_said_by_its_numbers(manual: ManualDatabase, since: int, newest: int, named: str) -> None:
    """The newest alone, or all from the first one that a collection has left."""
    manual.write(1)
    manifest = ManifestLog(manual.place()).latest()
    assert readable_versions(msgspec.structs.replace(manifest, readable_since=since, content_since=newest)) == named
