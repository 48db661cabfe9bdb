"""What Iceberg's clients read of a table: written once and incrementally, kept and deleted with its source."""

from __future__ import annotations

import io
import itertools
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import fastavro
import pyarrow as pa
import pytest

from lakebed.errors import NotFound, OutcomeUnknown, Unavailable
from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.iceberg import derived, lines, published
from lakebed.table.iceberg.entries import FileRecords
from lakebed.table.iceberg.published import Metadata, PublishedTable
from lakebed.table.model.layout import Layout, parse_derived
from lakebed.table.table import Table
from lakebed.testing import Call, Crashed, Fault, FaultyStore
from lakebed.testing.clock import ManualClock
from lakebed.testing.wrapper import StoreWrapper
from worlds.meanwhile import Meanwhile, is_put_below

ROWS = pa.schema([("id", pa.int64()), ("v", pa.float64())])
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
OTHER = pa.schema([("other", pa.string())])
FOLDER = Layout.iceberg_folder
R = TypeVar("R")


def rows_of(first: int, count: int = 1) -> pa.Table:
    """Rows of consecutive ids."""
    return pa.table({"id": range(first, first + count), "v": [0.5] * count}, ROWS)


def paths(table: Table) -> set[str]:
    """What there is for Iceberg's clients."""
    return {meta.path for meta in table.store.list(FOLDER)}


def read_avro(table: Table, url: str) -> list[Any]:
    """The records of a file, by an independent reader."""
    return list(fastavro.reader(io.BytesIO(bytes(table.store.get(url.removeprefix(f"{table.url}/"))))))


def live_files(table: Table, metadata: Metadata) -> dict[int, set[str]]:
    """The names of the live data files of each snapshot, found as a reader of Iceberg finds them."""
    files: dict[int, set[str]] = {}
    for snapshot in json.loads(metadata.body)["snapshots"]:
        entries = [
            entry
            for manifest in read_avro(table, snapshot["manifest-list"])
            if manifest["content"] == 0
            for entry in read_avro(table, manifest["manifest_path"])
        ]
        files[snapshot["snapshot-id"]] = {entry["data_file"]["file_path"].rpartition("/")[2] for entry in entries}
    return files


def check_files(table: Table, metadata: Metadata) -> None:
    """Every snapshot has the files that it has for lakebed."""
    for number, names in live_files(table, metadata).items():
        ours = table.context.manifests.live_entries(table.resolve(version=number)).column("file_name").to_pylist()
        assert names == set(ours), number


@pytest.fixture
def lake() -> Lake:
    """An empty lake in memory."""
    return Lake.open(open_store(f"memory://{uuid.uuid4().hex}"))


@pytest.fixture
def table(lake: Lake) -> Table:
    """An append table with three snapshots."""
    made = lake.create_table("t", ROWS)
    for number in range(3):
        made.append(rows_of(number))
    return made


def test_a_commit_costs_what_it_changed(table: Table) -> None:
    """The first load writes all versions; after one more commit only its list, its manifest and the metadata."""
    published = PublishedTable(table.context)
    first = published.load()
    assert published.written_count == 3 + 3 + 1
    assert published.load() is first
    table.append(rows_of(3))
    second = published.load()
    assert published.written_count == 7 + 3
    check_files(table, second)
    table.delete("id = 1")  # the manifest of that file is left out, and no other one is written
    third = published.load()
    assert published.written_count == 10 + 2
    check_files(table, third)
    again = PublishedTable(table.context)
    assert again.load() == third
    assert again.written_count == 0


def test_every_kind_of_store(store: ObjectStore) -> None:
    """What is written is found again by name in a listing, whatever the store."""
    table = Lake.open(store).create_table("db.t", ROWS)
    table.append(rows_of(0))
    first = PublishedTable(table.context)
    check_files(table, first.load())
    table.append(rows_of(1))
    second = PublishedTable(table.context)
    assert second.load() == first.load()
    assert (first.written_count, second.written_count) == (3, 3)


def test_manifests_that_a_commit_merged(lake: Lake) -> None:
    """Where the table merges its manifests, and deletes files of merged ones, every version keeps its files."""
    table = lake.create_table("t", ROWS, options={"manifest.merge-min-count": "3"})
    published = PublishedTable(table.context)
    for number in range(12):
        table.append(rows_of(number))
        if number % 4 == 3:
            table.delete(f"id = {number - 2}")
        if number % 5 == 0:
            published.load()
    metadata = published.load()
    check_files(table, metadata)
    assert json.loads(PublishedTable(table.context).load().body) == json.loads(metadata.body)
    numbers = {
        entry["data_file"]["file_path"]: entry["sequence_number"]
        for snapshot in json.loads(metadata.body)["snapshots"]
        for manifest in read_avro(table, snapshot["manifest-list"])
        for entry in read_avro(table, manifest["manifest_path"])
    }
    assert sorted(numbers.values()) == [row.id for row in table.snapshots() if row.commit_kind == "APPEND"]


def test_expiry_takes_what_it_made_unneeded(table: Table) -> None:
    """An expiry deletes the objects of expired versions and no other; a dry run names them; fsck agrees."""
    published = PublishedTable(table.context)
    table.create_tag("kept", snapshot_id=1)
    before = json.loads(published.load().body)
    table.append(rows_of(3))
    table.compact(full=True)
    published.load()
    plan = table.expire(retain_max=1, retain_min=1, older_than_ms=2**60, dry_run=True).plan
    assert plan is not None
    planned = {doomed.path for doomed in plan.doomed if doomed.path.startswith(FOLDER)}
    all_paths = paths(table)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    assert all_paths - paths(table) == planned
    assert planned
    for path in paths(table):
        table.store.head(parse_derived(path) or "")
    tagged = next(row for row in before["snapshots"] if row["snapshot-id"] == 1)
    for manifest in read_avro(table, tagged["manifest-list"]):  # a reader of older metadata goes on
        assert read_avro(table, manifest["manifest_path"])
    check_files(table, published.load())
    assert {path for path in paths(table) if "~list-" in path} >= {
        row["manifest-list"].removeprefix(f"{table.url}/") for row in json.loads(published.load().body)["snapshots"]
    }
    table.delete_tag("kept")
    published.load()
    assert all("~list-1-" not in path for path in paths(table))


def test_orphans_and_fsck(lake: Lake, table: Table) -> None:
    """What was made of an object that is gone is an orphan: fsck says so, and cleaning deletes it when it is old."""
    published = PublishedTable(table.context)
    published.load()
    table.append(rows_of(3))
    path = next(path for path in sorted(paths(table)) if "~list-1-" in path)
    left = path.replace("manifest-list-", "manifest-list-0")
    table.store.put(left, b"of a list that expired while it was made")
    found = [finding for finding in check_lake(lake, deep=True).findings if finding.kind == "orphan"]
    assert [finding.path for finding in found] == [left]
    assert table.collect().deleted_count == 0  # too young
    assert table.collect(grace_ms=0, dry_run=True).deleted_count == 1
    table.collect(grace_ms=0)
    assert left not in paths(table)
    assert path in paths(table)
    assert "goes with manifest/manifest-list-" in table.why(path).sentence
    manifest = next(path for path in sorted(paths(table)) if "~data-" in path)
    table.store.delete([manifest])
    missing = check_lake(lake, deep=True).findings
    assert {(finding.severity, finding.path) for finding in missing} == {("error", manifest)}


def test_the_location_that_clients_see(lake: Lake, table: Table) -> None:
    """No file of the table is in it, so a client that cleans it deletes none; what clients leave there is collected."""
    metadata = json.loads(PublishedTable(table.context).load().body)
    assert metadata["properties"]["gc.enabled"] == "false"
    place = metadata["location"].removeprefix(f"{table.url}/")
    assert place != metadata["location"]
    table.create_branch("dev").append(rows_of(9))
    PublishedTable(table.context).load()
    names = [meta.path for meta in table.store.list(place)]
    assert len(names) == 2
    for name in names:  # the names that ClickHouse reads; a client that cleans the location may delete an older one
        assert re.fullmatch(r"[0-9]+(-[0-9a-f]{4,12}){5}\.metadata\.json", name.rpartition("/")[2])
    published = PublishedTable(table.context)
    state = published.load()
    table.create_tag("passing")
    published.load()
    table.store.delete(names)
    table.delete_tag("passing")
    assert published.load() == state
    assert state.location is not None
    assert bytes(table.store.get(state.location.removeprefix(f"{table.url}/"))) == state.body
    before = {meta.path for meta in table.store.list("")}
    left = f"{place}/data/id=1/rows-of-an-insert-that-was-refused.parquet"
    table.store.put(left, b"rows")
    assert [finding.path for finding in check_lake(lake).findings if finding.kind == "orphan"] == [left]
    assert "a collection deletes it" in table.why(left).sentence
    assert table.collect().deleted_count == 0  # too young
    assert table.collect(grace_ms=0).deleted_count == 1
    assert {meta.path for meta in table.store.list("")} - {"lakebed/tag-index"} == before


def test_what_changes_between_two_loads(table: Table) -> None:
    """Commits, rollbacks, expiries, tags and another table in the same place: each load shows what there is."""
    published = PublishedTable(table.context)

    def shown() -> list[int]:
        metadata = published.load()
        check_files(table, metadata)
        return [row["snapshot-id"] for row in json.loads(metadata.body)["snapshots"]]

    assert shown() == [1, 2, 3]
    table.rollback_to(2)
    assert shown() == [1, 2, 4]  # the rollback is a snapshot
    newest = table.append(rows_of(7)).id
    assert shown() == [1, 2, 4, newest]
    table.append(rows_of(8))
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    assert shown() == [newest + 1]
    table.create_tag("kept")
    assert json.loads(published.load().body)["refs"]["kept"] == {"snapshot-id": newest + 1, "type": "tag"}
    for meta in list(table.store.list("")):
        table.store.delete([meta.path])
    Table.create(table.store, name="t", schema=KEYED)
    with pytest.raises(NotFound):
        published.load()


def test_what_changes_within_the_resolution_of_the_store(table: Table) -> None:
    """A tag that moves to a version of the same length is seen although times of objects are equal, as on S3."""
    clock = ManualClock()
    store = open_store(f"memory://{uuid.uuid4().hex}", environment=Environment(clock=clock))
    still = Table.create(store, name="t", schema=ROWS, environment=Environment(clock=clock))
    published = PublishedTable(still.context)
    for number in range(2):
        still.append(rows_of(number))
    for number in (1, 2, 1):
        still.create_tag("moves", snapshot_id=number)
        assert json.loads(published.load().body)["refs"]["moves"]["snapshot-id"] == number
        still.delete_tag("moves")


def test_a_branch_of_the_name_of_another_one(table: Table) -> None:
    """A branch that was deleted and made again, from the same version and with other columns, has its own."""
    published = PublishedTable(table.context)
    for name, kind in (("first", "INT"), ("second", "BIGINT")):
        branch = table.create_branch("dev")
        branch.add_column(name, kind)
        branch.append(rows_of(9))
        metadata = json.loads(published.load().body)
        columns = {row["schema-id"]: [field["name"] for field in row["fields"]] for row in metadata["schemas"]}
        tip = metadata["refs"]["dev"]["snapshot-id"]
        [schema_id] = [row["schema-id"] for row in metadata["snapshots"] if row["snapshot-id"] == tip]
        assert columns[schema_id] == ["id", "v", name]
        table.delete_branch("dev")


def test_an_id_has_one_schema(lake: Lake) -> None:
    """Manifests and metadata never have two schemas of one id, which ClickHouse refuses, whatever is left out."""
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("d", pa.date32())]))
    table.append(pa.table({"id": [1], "d": pa.array([5], pa.date32())}))
    branch = table.create_branch("dev")
    branch.add_column("only_there", "INT")
    branch.append(
        pa.table({"id": [2], "only_there": [3]})
        .select(["id", "only_there"])
        .cast(pa.schema([branch.arrow_schema.field("id"), branch.arrow_schema.field("only_there")]))
    )
    table.widen_column("d", "TIMESTAMP(6)")
    table.append(pa.table({"id": [4], "d": pa.array([6], pa.timestamp("us"))}))
    metadata = json.loads(PublishedTable(table.context).load().body)
    assert "'d'" in metadata["properties"]["lakebed.left-out"]
    assert {snapshot["schema-id"] for snapshot in metadata["snapshots"]} <= {
        row["schema-id"] for row in metadata["schemas"]
    }
    schemas = {row["schema-id"]: row["fields"] for row in metadata["schemas"]}
    assert len(schemas) == len(metadata["schemas"])
    seen = 0
    for snapshot in metadata["snapshots"]:
        for manifest in read_avro(table, snapshot["manifest-list"]):
            path = manifest["manifest_path"].removeprefix(f"{table.url}/")
            header = fastavro.reader(io.BytesIO(bytes(table.store.get(path)))).metadata
            fields = json.loads(header["schema"])["fields"]
            assert schemas.setdefault(int(header["schema-id"]), fields) == fields
            seen += 1
    assert seen == 5


class ReplacedTable(StoreWrapper):
    """A store whose table is dropped and created again before the n-th listing; None: never."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.listings_left: int | None = None

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind == "list" and self.listings_left is not None:
            self.listings_left -= 1
            if self.listings_left < 0:
                self.listings_left = None
                self.inner.delete([meta.path for meta in self.inner.list("")])
                other = Table.create(self.inner, name="t", schema=OTHER)
                other.append(pa.table({"other": ["a"]}, OTHER))
                other.create_tag("kept")
        return perform()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_branch_that_is_renamed_while_its_table_is_loaded(table: Table, is_known: bool) -> None:
    """A reference is the branch by one of its names, with all its files; from the next load on by the new one."""
    names = ("old", "new")
    for index in itertools.count():
        old, new = names[index % 2], names[(index + 1) % 2]
        if index == 0:
            table.create_branch(old).append(rows_of(10))
        store = Meanwhile(table.store, after=True)
        published = PublishedTable(Table.open(store, name="t").context)
        if is_known:
            published.load()
        store.expect(lambda: table.rename_branch(old, new), at=index)  # noqa: B023 (called in this round)
        loaded = published.load()
        if store.happened is None:
            break
        for metadata in (loaded, published.load(), PublishedTable(table.context).load()):
            references = json.loads(metadata.body)["refs"]
            branches = references.keys() - {"main"}
            assert branches <= ({old, new} if metadata is loaded else {new}), f"call {index}: {branches}"
            files = live_files(table, metadata)
            for name in branches:
                assert len(files[references[name]["snapshot-id"]]) == 4, f"call {index}, {name}"
        assert branches == {new}
    assert index > 4


def test_a_table_that_is_replaced_while_it_is_loaded(table: Table) -> None:
    """Whatever had been looked at when another table got the name: the reply is of one of both, or there is none."""
    table.create_tag("kept", snapshot_id=1)
    table.append(rows_of(3))
    contents = {meta.path: bytes(table.store.get(meta.path)) for meta in table.store.list("")}
    refused = 0
    for listing in range(7):
        inner = open_store(f"memory://{uuid.uuid4().hex}")
        for path, body in contents.items():
            inner.put(path, body)
        store = ReplacedTable(inner)
        published = PublishedTable(Table.open(store, name="t").context)
        expected = published.load() if listing % 2 else PublishedTable(Table.open(inner, name="t").context).load()
        if listing % 2:
            Table.open(inner, name="t").append(rows_of(4))
        store.listings_left = listing
        try:
            metadata = json.loads(published.load().body)
        except NotFound:
            refused += 1
            continue
        is_first = metadata["table-uuid"] == json.loads(expected.body)["table-uuid"]
        names = [field["name"] for field in metadata["schemas"][-1]["fields"]]
        assert names == (["id", "v"] if is_first else ["other"])
        assert len(metadata["snapshots"]) == (4 + listing % 2 if is_first else 1)
    assert refused


def test_what_is_gone_is_not_kept_in_memory(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loads a table after each commit keeps as much of it as there is, and shows it rightly."""
    for module in (published, lines, derived):
        monkeypatch.setattr(module, "_SPARE_COUNT", 2)
    server = PublishedTable(table.context)
    for number in range(12):
        table.append(rows_of(number))
        table.expire(retain_max=2, retain_min=1, older_than_ms=2**60)
        table.create_branch("dev")
        metadata = server.load()
        table.delete_branch("dev")
    check_files(table, metadata)
    line = server._lines["main"]
    assert len(server._snapshots) + len(server._rendered) + len(line._shown) < 30
    assert len(server._lines) <= 2
    assert len(server._objects._sizes or ()) < 40


def test_an_unreadable_version_is_left_out(table: Table) -> None:
    """A damaged snapshot file hides its own version alone, and the metadata says so."""
    table.store.put("snapshot/snapshot-2", b"{")
    shown = json.loads(PublishedTable(table.context).load().body)
    assert [row["snapshot-id"] for row in shown["snapshots"]] == [1, 3]
    assert "snapshot 2: " in shown["properties"]["lakebed.left-out"]


def test_an_unreadable_version_hides_no_file_of_another(table: Table) -> None:
    """What a damaged version says before the damage, such as which files it deletes, is not said of a tag before it."""
    published = PublishedTable(table.context)
    published.load()
    table.append(rows_of(10))
    table.create_tag("kept")
    table.delete("id = 1")
    newest = table.append(rows_of(20))
    table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    (damaged,) = table.context.manifests.metas(newest.delta_manifest_list)
    table.store.put(f"manifest/{damaged.file_name}", b"{")
    PROCESS_CACHE.clear()
    shown = published.load()
    assert f"snapshot {newest.id}: " in json.loads(shown.body)["properties"]["lakebed.left-out"]
    assert list(live_files(table, shown)) == [4]
    check_files(table, shown)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY])
def test_two_servers_at_once_and_crashes(table: Table, fault: Fault) -> None:
    """A server that dies at any put, while another one works, leaves what the next one completes."""
    table.compact(full=True)
    for struck in range(4 + 4 + 1):
        puts = itertools.count()

        def decide(_: int, call: Call, puts: itertools.count[int] = puts, struck: int = struck) -> Fault | None:
            return fault if call.kind == "put" and next(puts) == struck else None

        late = PublishedTable(table.context)
        late._objects.size_of("")  # has listed what there was before the other one began
        faulty = FaultyStore(table.store, faults=decide)
        dying = PublishedTable(Table.open(faulty, name="t", environment=table.context.environment).context)
        with pytest.raises((Crashed, OutcomeUnknown)):
            dying.load()
        metadata = late.load()
        check_files(table, metadata)
        assert PublishedTable(table.context).load() == metadata
        assert len(paths(table)) == 4 + 4 + 1
        table.store.delete(paths(table))


def test_a_list_is_written_after_the_manifests_that_it_names(table: Table) -> None:
    """Many objects are written at once, but a list whose name is there needs no look at what it names."""
    store = Meanwhile(table.store, at=None, after=True, counts=is_put_below(FOLDER))
    PublishedTable(Table.open(store, name="t", environment=table.context.environment).context).load()
    written = [call.path for call in store.calls]
    lists = [path for path in written if "~list-" in path]
    assert len(lists) == 3
    for path in lists:
        named = [row["manifest_path"].removeprefix(f"{table.url}/") for row in read_avro(table, path)]
        assert named
        assert max(map(written.index, named)) < written.index(path)
    assert written[-1].endswith(".metadata.json")


@pytest.mark.parametrize("struck", range(7))
def test_a_load_whose_put_failed_is_completed_by_the_next(table: Table, struck: int) -> None:
    """A server whose store was away for a moment names no object that it could not write."""
    puts = itertools.count()

    def decide(_: int, call: Call) -> Fault | None:
        return Fault.ERROR_BEFORE if call.kind == "put" and next(puts) == struck else None

    store = FaultyStore(table.store, faults=decide)
    server = PublishedTable(Table.open(store, name="t", environment=table.context.environment).context)
    with pytest.raises(Unavailable):
        server.load()
    metadata = server.load()
    check_files(table, metadata)
    assert metadata.location is not None
    assert bytes(table.store.get(metadata.location.removeprefix(f"{table.url}/"))) == metadata.body
    assert PublishedTable(table.context).load() == metadata


def test_a_file_that_is_described_anew_is_written_anew(table: Table) -> None:
    """What one load knows of a file is used again only where the table says the same of it."""
    newest = table.latest()
    assert newest is not None
    entries = table.context.manifests.live_entries(newest)
    records = FileRecords()

    def encode(unknown: pa.Table) -> list[bytes]:
        return [
            f"{name} {rows}".encode()
            for name, rows in zip(unknown["file_name"].to_pylist(), unknown["row_count"].to_pylist(), strict=True)
        ]

    part = entries.slice(1, 1)
    assert records.encode(part, encode) == encode(part)
    assert records.encode(entries, encode) == encode(entries)
    assert records.encode(entries, lambda unknown: []) == encode(entries)
    at = entries.schema.get_field_index("row_count")
    other = entries.set_column(at, entries.schema.field(at), pa.array([7] * entries.num_rows, entries.schema.types[at]))
    assert records.encode(other, encode) == encode(other)


def test_primary_keys_show_what_is_compacted(lake: Lake) -> None:
    """Versions whose rows must be merged are not shown, tags of them neither; main stays at the newest that can be."""
    table = lake.create_table("t", KEYED, primary_keys=["id"], options={"bucket": "1"})
    table.upsert(rows_of(0, 4).cast(KEYED))
    published = PublishedTable(table.context)
    shown = json.loads(published.load().body)
    assert (shown["current-snapshot-id"], shown["properties"]["lakebed.visible-through"]) == (1, "1")
    assert shown["schemas"][0]["identifier-field-ids"] == [0]
    table.upsert(rows_of(2, 4).cast(KEYED))
    table.create_tag("merging")
    shown = json.loads(published.load().body)
    assert [row["snapshot-id"] for row in shown["snapshots"]] == [1]
    assert set(shown["refs"]) == {"main"}
    assert "the tag 'merging': its version was not fully compacted" in shown["properties"]["lakebed.left-out"]
    assert "1 snapshot: rows of the same key" in shown["properties"]["lakebed.left-out"]
    table.compact(full=True)
    table.create_tag("merged")
    shown = json.loads(published.load().body)
    assert shown["refs"]["merged"]["snapshot-id"] == shown["current-snapshot-id"] == table.latest().id
    assert shown["properties"]["lakebed.visible-through"] == str(table.latest().id)
    check_files(table, published.load())
