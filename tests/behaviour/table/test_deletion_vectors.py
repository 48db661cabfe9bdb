"""Deletion vectors: marked rows are gone for every reader, and none returns or is lost in a race."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Conflict, Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.open import open_store
from lakebed.table.changes.stream import StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry, encode_index_manifest
from lakebed.table.codec.manifest import files_of
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.commit.commit import Basis
from lakebed.table.model.model import BucketChange, Snapshot
from lakebed.table.read.vectors import encode_vectors
from lakebed.table.rows.position_deletes import delete_positions
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from lakebed.testing.between import Between
from lakebed.testing.wrapper import CallKind
from worlds.table.values import SCHEMA, Rows, environment, files_in, opened, rows, sound, values_of

EVER = 2**60


def new_table(*, partition_keys: tuple[str, ...] = (), **options: str) -> Table:
    """An empty append table with deletion vectors."""
    options = {"deletion-vectors.enabled": "true", **{name.replace("_", "-"): value for name, value in options.items()}}
    return Table.create(
        open_store(f"memory://{uuid.uuid4()}"),
        name="t",
        schema=SCHEMA,
        partition_keys=partition_keys,
        options=options,
        environment=environment(),
    )


def data_file(table: Table) -> str:
    """The name of the only data file."""
    (name,) = table.context.manifests.live_entries(table.latest() or pytest.fail("empty"))["file_name"].to_pylist()
    return str(name)


# ---- reading


def test_rows_are_marked_and_no_file_is_written_again() -> None:
    """A delete adds one index file; older versions keep the rows; a file without a live row goes."""
    table = new_table()
    table.append(rows({n: n for n in range(100)}))
    table.append(rows({n: n for n in range(100, 110)}))
    data = files_in(table, "bucket-0")
    assert table.delete("v in (0, 3, 50, 99)") is not None
    assert files_in(table, "bucket-0") == data
    assert len(files_in(table, "index")) == 1
    expected = {n: n for n in range(110) if n not in (0, 3, 50, 99)}
    assert values_of(table) == expected
    assert values_of(table, version=2) == {n: n for n in range(110)}
    assert table.delete("v = 50") is None
    table.delete("id >= 100 or id = 1")
    live = table.context.manifests.live_entries(table.latest() or pytest.fail("empty"))
    assert live.num_rows == 1
    assert values_of(table) == {n: v for n, v in expected.items() if 1 < n < 100}
    sound(table)


@pytest.mark.parametrize("threshold", [0, 2**40])
def test_every_way_of_reading(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, predicates on one or other columns, row groups, batches, limits, counts and differences agree."""
    monkeypatch.setattr("lakebed.table.files.data_file.WHOLE_FILE_BYTES_MAX", threshold)
    table = new_table(**{"file.block-size": "1 kb"})
    count = 6_000
    table.append(rows({n: n % 7 for n in range(count)}))
    table.append(rows({count: 1}))
    gone = {n for n in range(count) if n % 1000 < 10 or 2_000 <= n < 3_500}
    ranges = " or ".join(f"(id >= {n} and id < {n + 10})" for n in range(0, count, 1000))
    table.delete(f"{ranges} or (id >= 2000 and id < 3500)")
    expected = {n: n % 7 for n in range(count) if n not in gone} | {count: 1}
    assert values_of(table) == expected
    assert table.read(columns=["v"]).num_rows == len(expected) == table.read(columns=[]).num_rows
    for where, result in (
        ("id < 1005", {n for n in expected if n < 1005}),
        ("id >= 1995 and v = 3", {n for n, v in expected.items() if n >= 1995 and v == 3}),
        ("v = 6", {n for n, v in expected.items() if v == 6}),
    ):
        assert set(values_of(table, where=where)) == result
    batches = list(table.scan().to_batches(batch_rows=7))
    assert sorted(n for batch in batches for n in batch.column("id").to_pylist()) == sorted(expected)
    assert table.scan(limit=3_000).to_arrow().num_rows == table.scan(limit=3_000).count() == 3_000
    assert set(table.scan(limit=4_400).to_arrow()["id"].to_pylist()) <= set(expected)
    compared = table.diff(2)
    assert set(compared.removed["id"].to_pylist()) == gone
    assert compared.counts == {"added": 0, "removed": len(gone), "changed": 0}
    whole = [split for split in table.scan().splits() if split.is_whole]
    assert [split.row_count for split in whole] == [1]


def test_columns_that_a_file_lacks() -> None:
    """A column that was added after the file was written is null in its live rows only."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    table.add_column("w", "STRING")
    table.delete("id < 4")
    assert table.read(columns=["w"])["w"].to_pylist() == [None] * 6
    assert table.delete("w is not null") is None
    table.delete("w is null and id = 9")
    assert table.scan(where="w is null").count() == 5


def test_vectors_of_64_bits_and_damage() -> None:
    """A 64-bit vector is read; damage is an error that names the file, and never returns a deleted row."""
    table = new_table()
    table.append(rows({n: n for n in range(100)}))
    table.delete("id < 10")
    head = table.latest() or pytest.fail("empty")
    (entry,) = table.context.manifests.index_entries(head.index_manifest or "")
    (item,) = entry.ranges
    body = bytes(table.store.get(f"index/{entry.file_name}"))
    bitmap = body[item.offset + 8 : item.offset + 4 + item.length]
    wide = struct.pack("<I", 1_681_511_377) + struct.pack("<QI", 1, 0) + bitmap
    file64 = b"\x01" + struct.pack(">I", len(wide)) + wide + struct.pack(">I", zlib.crc32(wide))
    table.store.put("index/wide", file64)
    ranges = (replace(item, length=len(wide) + 8, cardinality=None),)
    entries = [IndexEntry(entry.partition, 0, "wide", len(file64), 1, DELETION_VECTORS, ranges)]
    table.store.put(f"manifest/{head.index_manifest}", encode_index_manifest(entries))
    assert values_of(opened(table.store)) == {n: n for n in range(10, 100)}
    for at in range(1, len(file64), 3):
        table.store.put("index/wide", file64[:at] + bytes([file64[at] ^ 0x11]) + file64[at + 1 :])
        with pytest.raises(Corruption, match="index/wide"):
            opened(table.store).read()
        if at % 7 == 1:
            table.store.put("index/wide", file64[:at])
            with pytest.raises((Corruption, InvalidRequest)):
                opened(table.store).read()
    table.store.delete(["index/wide"])
    with pytest.raises(NotFound):
        opened(table.store).read()


def test_a_stream_of_changes() -> None:
    """A stream that starts at a version leaves its deleted rows out, and follows later deletes and updates."""
    table = new_table()
    table.append(rows({n: n for n in range(20)}))
    table.delete("id < 5")
    following = TableStream(table.context, StreamSettings(changes=True), schema=table.schema)
    counter: Counter[tuple[int, int]] = Counter()
    offset = following.first()
    steps: list[Race] = [
        lambda one: None,
        lambda one: one.append(rows({30: 1})),
        lambda one: one.delete("id = 7 or id = 30"),
        lambda one: update_some(one, {9: 900}),
        lambda one: one.compact(full=True),
        lambda one: one.rollback_to_as_latest(2),
        lambda one: one.rollback_to_as_latest(1),  # rows come back, though no file does
    ]
    for step in steps:
        step(table)
        while (end := following.advance(offset, Limits())) != offset:
            batch = following.plan(offset, end)
            for unit in batch.units:
                for part in unit.rows(table.store, batch.plan):
                    for row in part.to_pylist():
                        counter[row["id"], row["v"]] += 1 if row["_row_kind"] in ("+I", "+U") else -1
            offset = end
        assert dict(+counter) == dict.fromkeys(values_of(table).items(), 1)
        assert not -counter
    plain = TableStream(table.context, StreamSettings(start="from-snapshot", version=1), schema=table.schema)
    with pytest.raises(InvalidRequest, match="replaced or deleted rows"):
        plain.advance(plain.first(), Limits())


def test_the_check_of_vectors() -> None:
    """A vector that does not decode, marks rows that do not exist or another number of rows is an error."""
    table = new_table()
    table.append(rows({n: n for n in range(100)}))
    table.delete("id < 10")
    sound(table)
    head = table.latest() or pytest.fail("empty")
    (entry,) = table.context.manifests.index_entries(head.index_manifest or "")
    (item,) = entry.ranges
    path = f"index/{entry.file_name}"
    whole, manifest = bytes(table.store.get(path)), bytes(table.store.get(f"manifest/{head.index_manifest}"))

    def kinds() -> set[tuple[str, str]]:
        report = CheckReport(table.url, deep=True)
        check_table(opened(table.store), Findings(report, store="t"))
        return {(finding.severity, finding.kind) for finding in report.findings if finding.path == path}

    table.store.put(path, whole[:-1] + b"x")
    assert kinds() == {("error", "corruption")}
    for vector, cardinality, name, result in (
        ([5, 100], 2, item.data_file, {("error", "wrong_vector")}),
        ([5, 99], 3, item.data_file, {("error", "wrong_vector")}),
        ([5, 99], 2, "data-gone.parquet", {("warning", "stale_vector")}),
        ([5, 99], None, item.data_file, set()),
    ):
        body, ranges = encode_vectors({name: np.array(vector)})
        table.store.put(path, body)
        stated = (replace(ranges[0], cardinality=cardinality),)
        changed = replace(entry, file_size=len(body), ranges=stated)
        table.store.put(f"manifest/{head.index_manifest}", encode_index_manifest([changed]))
        assert kinds() == result
    table.store.put(path, whole)
    table.store.put(f"manifest/{head.index_manifest}", manifest)
    assert kinds() == set()


# ---- positions


def update(table: Table, basis: Basis, changed: Rows, name: str | None = None) -> Snapshot | None:
    """Rows that a version has in its only file are replaced: old ones by position, new ones added."""
    before = values_of(table, version=basis.snapshot.id) if basis.snapshot else {}
    writer = new_writer(table.context)
    writer.write(rows(changed))
    positions = [number for number, key in enumerate(sorted(before)) if key in changed]
    return delete_positions(
        table.context, {name or data_file(table): positions}, basis=basis, added=writer.finish(), options={}
    )


def test_an_update_is_one_commit() -> None:
    """Old rows by position and new rows come in one snapshot; a repeated position is no error."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    basis = Basis(table.latest())
    update(table, basis, {2: 20, 5: 50})
    assert table.context.snapshots.ids() == [1, 2]
    assert values_of(table) == {n: n for n in range(10)} | {2: 20, 5: 50}
    now = Basis(table.latest())
    (first,) = [file.file_name for split in table.scan().splits() for file in split.files if split.vectors]
    assert delete_positions(table.context, {first: [2, 5]}, basis=now, options={}) is None
    delete_positions(table.context, {first: pa.array([9, 5, 9])}, basis=now, options={})
    assert set(values_of(table)) == set(range(9))


def test_positions_that_do_not_exist() -> None:
    """A file or a row that the version does not have, and a table without vectors, are refused; nothing is left."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    name, basis = data_file(table), Basis(table.latest())
    before = files_in(table, "")
    for positions, word in (
        ({name: [10]}, "none at position 10"),
        ({name: [-1]}, "none at"),
        ({"x": [0]}, "'x' is not"),
    ):
        writer = new_writer(table.context)
        writer.write(rows({1: 1}))
        with pytest.raises(InvalidRequest, match=word):
            delete_positions(table.context, positions, basis=basis, added=writer.finish(), options={})
    assert files_in(table, "") == before
    plain = Table.create(open_store(f"memory://{uuid.uuid4()}"), name="t", schema=SCHEMA, environment=environment())
    plain.append(rows({1: 1}))
    with pytest.raises(InvalidRequest, match=r"deletion-vectors\.enabled"):
        delete_positions(plain.context, {}, basis=Basis(plain.latest()), options={})


# ---- races

Race = Callable[[Table], object]
BASE = {n: n for n in range(20)}

OTHERS: dict[str, tuple[Race, Rows]] = {
    "delete the same rows": (lambda t: t.delete("id < 3"), {n: n for n in range(3, 20)}),
    "delete other rows": (lambda t: t.delete("id = 15"), {n: n for n in range(20) if n != 15}),
    "delete overlapping rows": (lambda t: t.delete("id >= 2 and id < 8"), {n: n for n in range(20) if not 2 <= n < 8}),
    "delete all": (lambda t: t.delete("id >= 0"), {}),
    "compact": (lambda t: t.compact(full=True), BASE),
    "overwrite": (lambda t: t.overwrite(rows({1: 100})), {1: 100}),
    "append": (lambda t: t.append(rows({77: 7})), BASE | {77: 7}),
    "roll back": (lambda t: t.rollback_to(1), {n: n for n in range(10)}),
    "roll back, keeping history": (lambda t: t.rollback_to_as_latest(2), BASE | {19: 1900}),
    "update": (
        lambda t: update_some(t, {3: 300, 4: 400}),
        BASE | {3: 300, 4: 400},
    ),
}


def update_some(table: Table, changed: Rows) -> object:
    """Replace rows of the newest version by id."""
    basis = Basis(table.latest())
    positions: dict[str, list[int]] = {}
    for split in table.scan().splits():
        for file in split.files:
            stored = opened_rows(table, f"{split.folder}/{file.file_name}")
            positions[file.file_name] = [at for at, key in enumerate(stored) if key in changed]
    writer = new_writer(table.context)
    writer.write(rows(changed))
    return delete_positions(table.context, positions, basis=basis, added=writer.finish(), options={})


def opened_rows(table: Table, path: str) -> list[int]:
    """The ids in a data file, deleted ones included."""
    import pyarrow.parquet as pq

    ids: list[int] = pq.read_table(pa.BufferReader(bytes(table.store.get(path))))["id"].to_pylist()
    return ids


def racing_table() -> Table:
    """`BASE` in two files, of which the second had a row 19 of another value that is deleted."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    table.append(rows({n: n for n in range(10, 19)} | {19: 1900}))
    basis = Basis(table.latest())
    assert basis
    update_some(table, {19: 19})
    return table


def raced(table: Table, other: Race, prefix: str, *, kind: CallKind = "put", nth: int = 1) -> tuple[Table, Between]:
    """The table as a process sees it that is overtaken after its first put below a prefix, or after another call."""
    store = Between(table.store, kind=kind, prefix=prefix, nth=nth, happens=lambda: other(opened(table.store)))
    return Table.open(store, name="t", environment=environment()), store


@pytest.mark.parametrize("looks", [0, 2], ids=["before its snapshot", "behind its look at the newest snapshot"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_delete_that_loses_a_race(name: str, looks: int) -> None:
    """The result is that of the other writer's change and then the delete; no marked row returns.

    Args:
        looks: after which look at the newest snapshot it is overtaken; 0: after its first put of a manifest.
    """
    other, after = OTHERS[name]
    table = racing_table()
    if looks:
        deleter, store = raced(table, other, "snapshot/snapshot-3", kind="get", nth=looks)
    else:
        deleter, store = raced(table, other, "manifest/")
    deleter.delete("id < 5 and v < 100")
    assert store.happened
    expected = {n: v for n, v in after.items() if not (n < 5 and v < 100)}
    assert values_of(opened(table.store)) == expected
    sound(opened(table.store))


@pytest.mark.parametrize("name", OTHERS)
def test_an_update_that_loses_a_race(name: str) -> None:
    """It is refused whenever the other writer changed its rows or its buckets, and leaves nothing behind."""
    other, after = OTHERS[name]
    table = racing_table()
    updater, store = raced(table, other, "manifest/")
    with pytest.raises(Conflict) as lost:
        update_some(updater, {3: 333})
    assert lost.value.kind in ("rows_changed", "file_gone")
    assert store.happened
    left = opened(table.store)
    assert values_of(left) == after
    before = files_in(left, "")
    left.collect(grace_ms=0)
    assert files_in(left, "bucket-0") == {path for path in before if path.startswith("bucket-0")}


@pytest.mark.parametrize("name", OTHERS)
def test_a_compaction_that_loses_a_race(name: str) -> None:
    """A compaction that read a file before another writer deleted rows of it does not bring them back."""
    other, after = OTHERS[name]
    table = racing_table()
    compactor, store = raced(table, other, "bucket-0/")
    compactor.compact(full=True)
    assert store.happened
    assert values_of(opened(table.store)) == after
    sound(opened(table.store))


@pytest.mark.parametrize("name", OTHERS)
def test_a_rewrite_that_loses_a_race(name: str) -> None:
    """A writer that rewrites files, in a process that does not know the option, does not bring deleted rows back."""
    other, after = OTHERS[name]
    table = racing_table()
    basis = Basis(table.latest())
    scan = table.scan()
    entries, everything = scan.entries(), scan.to_arrow()
    other(opened(table.store))
    writer = new_writer(table.context)
    writer.write(everything)
    (written,) = writer.finish()
    change = BucketChange(written.partition, 0, written.total_buckets, written.added, tuple(files_of(entries)))
    with pytest.raises(Conflict) as lost:
        commit_changes(table.context, [change], kind="OVERWRITE", basis=basis)
    assert lost.value.kind in ("rows_changed", "file_gone")
    assert values_of(opened(table.store)) == after


def test_a_vector_that_was_only_written_again_is_no_conflict() -> None:
    """A commit that deletes rows of one file writes the vector of another again: that one's deleter goes on."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    table.append(rows({n: n for n in range(10, 20)}))
    table.delete("id = 1 or id = 11")
    tries = RecordingStore(table.store)
    store = Between(tries, kind="put", prefix="manifest/", happens=lambda: opened(table.store).delete("id = 12"))
    Table.open(store, name="t", environment=environment()).delete("id = 2")
    assert store.happened
    assert values_of(table) == {n: n for n in range(20) if n not in (1, 2, 11, 12)}
    data = [call for call in tries.trace if call.call.kind == "get" and call.call.path.startswith("bucket-0/")]
    assert len(data) == 1, "the delete began anew"


def test_rows_that_were_deleted_before_are_no_conflict() -> None:
    """An update is not refused because its table has marked rows, if another writer only appends elsewhere."""
    table = new_table(partition_keys=("v",))
    table.append(rows({**dict.fromkeys(range(10), 1), **dict.fromkeys(range(10, 20), 2)}))
    table.delete("id = 1 or id = 11")
    store = Between(
        table.store, kind="put", prefix="manifest/", happens=lambda: opened(table.store).append(rows({20: 2}))
    )
    updater = Table.open(store, name="t", environment=environment())
    positions = {file.file_name: [2] for split in updater.scan(where="v = 1").splits() for file in split.files}
    writer = new_writer(updater.context)
    writer.write(rows({99: 1}))
    basis = Basis(updater.latest())
    delete_positions(updater.context, positions, basis=basis, added=writer.finish(), options={})
    assert store.happened
    expected = {**dict.fromkeys(range(10), 1), **dict.fromkeys(range(10, 21), 2), 99: 1}
    assert values_of(opened(table.store)) == {n: v for n, v in expected.items() if n not in (1, 2, 11)}


# ---- lifetimes


def needed(table: Table) -> set[str]:
    """The index files of all versions of all branches, fork pins among them, from their manifests alone."""
    items: set[str] = set()
    for line in [opened(table.store), *(opened(table.store, branch.name) for branch in opened(table.store).branches())]:
        versions = read_live_versions(line.context)
        for snapshot_id in versions.ids.tolist():
            snapshot = versions.load(line.context, snapshot_id)
            if snapshot.index_manifest:
                entries = line.context.manifests.index_entries(snapshot.index_manifest)
                items |= {f"index/{entry.file_name}" for entry in entries}
    return items


def test_index_files_live_as_long_as_a_version() -> None:
    """Kept while a snapshot, tag or branch needs them, and deleted with the last one, verb by verb."""
    table = new_table()
    table.append(rows({n: n for n in range(100)}))
    for number in range(8):
        table.delete(f"id = {number}")
        if number in (1, 4):
            table.create_tag(f"at{number}")
    expected = {f"at{number}": {n: n for n in range(number + 1, 100)} for number in (1, 4)}
    forked = table.create_branch("b", tag="at4")
    forked.delete("id = 50")
    forked.delete("id = 51")
    steps: dict[str, Callable[[], object]] = {
        "expire": lambda: table.expire(retain_max=2, retain_min=1, older_than_ms=0),
        "expire the branch": lambda: forked.expire(retain_max=1, retain_min=1, older_than_ms=0),
        "delete a tag": lambda: table.delete_tag("at1"),
        "roll back": lambda: table.rollback_to(8),
        "delete the other tag": lambda: table.delete_tag("at4"),
        "delete the branch": lambda: table.delete_branch("b"),
        "compact": lambda: table.compact(full=True),
        "expire all": lambda: table.expire(retain_max=1, retain_min=1, older_than_ms=0),
    }
    for step, run in steps.items():
        before = files_in(table, "index")
        run()
        wanted = needed(table)
        if step == "delete the branch":  # its files become orphans
            assert files_in(table, "index") > wanted
            table.collect(grace_ms=0)
        assert files_in(table, "index") == wanted, step
        if step in ("expire", "expire the branch", "delete a tag", "delete the branch", "expire all", "roll back"):
            assert before - wanted, f"{step} deleted nothing: the test shows nothing"
        sound(opened(table.store))
        for tag in opened(table.store).tags():
            assert values_of(opened(table.store), tag=tag.name) == expected[tag.name], step
        if step != "delete the branch" and any(branch.name == "b" for branch in table.branches()):
            assert values_of(opened(table.store, "b")) == {n: n for n in range(5, 100) if n not in (50, 51)}, step
        table.collect(grace_ms=0)
        assert files_in(table, "index") == wanted, f"orphan files after {step}"
    assert not files_in(table, "index")


def test_an_expiry_reads_each_index_manifest_once() -> None:
    """Snapshots that carry an index manifest on cost no reads of it."""
    table = new_table()
    table.append(rows({n: n for n in range(100)}))
    table.delete("id = 0")
    for number in range(10):
        table.append(rows({1000 + number: 0}))
    table.delete("id = 1")
    recorded = RecordingStore(table.store)
    opened(recorded).expire(retain_max=1, retain_min=1, older_than_ms=0)
    reads = [call.call.path for call in recorded.trace if call.call.kind == "get" and "/index" in call.call.path]
    assert sorted(reads) == sorted(set(reads))
    assert len(reads) == 2


def test_a_published_branch_brings_its_vectors() -> None:
    """Main has the branch's rows after a fast-forward, and keeps them when the branch goes."""
    table = new_table()
    table.append(rows({n: n for n in range(10)}))
    branch = table.create_branch("b")
    branch.delete("id < 3")
    table.fast_forward("b")
    table.delete_branch("b")
    table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert values_of(opened(table.store)) == {n: n for n in range(3, 10)}
    sound(opened(table.store))


# ---- crashes


def faults_of(verb: Race, made: Callable[[], Table]) -> Iterator[tuple[int, Fault]]:
    """Every call of a verb that changes something, with the crash after it, which is also that before the next one."""
    recorded = RecordingStore(made().store)
    table = opened(recorded)
    start = len(recorded.trace)
    verb(table)
    for call in recorded.trace[start:]:
        if not call.call.changes:
            continue
        yield call.index, Fault.CRASH_AFTER


@pytest.mark.parametrize(
    ("verb", "after"),
    [
        (lambda table: table.delete("id < 5"), {n: n for n in range(5, 20)}),
        (lambda table: table.compact(full=True), BASE),
        pytest.param(lambda table: update_some(table, {3: 333}), BASE | {3: 333}, marks=pytest.mark.long),
    ],
    ids=["delete", "compact", "update"],
)
def test_a_crash_at_any_call(verb: Race, after: Rows) -> None:
    """The table has the rows from before or after, is sound, and cleaning leaves exactly what versions need."""
    results = set()
    for index, fault in faults_of(verb, racing_table):
        store = racing_table().store
        faulty = FaultyStore(store, faults={index: fault})
        with suppress(Crashed, LakebedError):
            verb(opened(faulty))
        values = values_of(opened(store))
        assert values in (BASE, after), (index, fault)
        results.add(values == after)
        opened(store).collect(grace_ms=0)
        assert values_of(opened(store)) == values
        left = opened(store)
        assert files_in(left, "index") == needed(left), (index, fault)
    assert results == ({True} if after == BASE else {True, False})


def test_partitions_have_index_files_of_their_own() -> None:
    """A delete writes index files for the partitions that it touches; an overwrite of one drops its vectors."""
    table = new_table(partition_keys=("v",))
    table.append(rows({n: n % 3 for n in range(30)}))
    table.delete("id < 6")
    first = files_in(table, "index")
    assert len(first) == 3
    table.delete("id < 9 and v = 1")
    assert len(files_in(table, "index") - first) == 1
    table.overwrite(rows({99: 2}), partition={"v": 2})
    head = table.latest() or pytest.fail("empty")
    assert len(table.context.manifests.index_entries(head.index_manifest or "")) == 2
    assert values_of(table) == {n: n % 3 for n in range(6, 30) if n != 7 and n % 3 != 2} | {99: 2}
    assert values_of(table, where="v = 1") == {n: 1 for n in range(10, 30) if n % 3 == 1}
    table.overwrite(rows({}))
    assert (table.latest() or pytest.fail("empty")).index_manifest is None
    assert np.array_equal(list(values_of(table)), [])
