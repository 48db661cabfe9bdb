"""Snapshots that another client has prepared: which are committed, which are refused, and what a repetition does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, OutcomeUnknown
from lakebed.repo.transport.local_objects import local_store
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.index_manifest import IndexEntry, encode_index_manifest
from lakebed.table.codec.manifest import encode_manifest, encode_manifest_list, entries_of_changes, manifest_meta
from lakebed.table.commit.prepared import commit_prepared
from lakebed.table.files.dynamic_bucket import encode_hashes
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, BucketChange, DataFile, ManifestMeta, Snapshot
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, open_context
from worlds.repo.operations import commit, reset
from worlds.table import made_up

if TYPE_CHECKING:
    from conftest import Bench


WARM_REQUESTS = 9
"""To commit: the newest snapshot, schemas, two lists, a manifest, a file that states no time; then the put, the
boundary, the schema again."""


def named_file(name: str) -> DataFile:
    """A data file of ten rows that exists in manifests only."""
    return made_up.data_file(name, file_size=100, row_count=10, value_stats_cols=())


class Client:
    """Another client: it writes manifests and lists into the table's folder, and makes a snapshot of them."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def put_list(self, metas: Sequence[ManifestMeta]) -> str:
        """A manifest list; its name."""
        name = f"manifest-list-{uuid.uuid4()}-0"
        self.table.store.put(f"manifest/{name}", encode_manifest_list(metas))
        return name

    def prepare(self, *changes: BucketChange, base: Snapshot | None, puts: bool = True, **members: Any) -> Snapshot:
        """A snapshot on top of `base`; `members` differ from what a client would write. `puts`: the files too."""
        metas = [] if base is None else self.table.context.manifests.all_metas(base)
        delta = []
        for change in changes:
            for file in (file for file in change.added if puts and "/" not in file.file_name):
                self.table.store.put(f"bucket-{change.bucket}/{file.file_name}", b"x")
        if changes:
            entries = entries_of_changes(changes)
            name, body = f"manifest-{uuid.uuid4()}", encode_manifest(entries)
            self.table.store.put(f"manifest/{name}", body)
            delta = [manifest_meta(entries, file_name=name, file_size=len(body), schema=self.table.schema)]
        snapshot = Snapshot(
            id=1 if base is None else base.id + 1,
            schema_id=self.table.schema.id,
            base_manifest_list=self.put_list([replace(meta, added_snapshot=None) for meta in metas]),
            delta_manifest_list=self.put_list(delta),
            commit_user=str(uuid.uuid4()),
            commit_identifier=BATCH_COMMIT_IDENTIFIER,
            commit_kind="APPEND",
            time_ms=1,
            total_record_count=12345,
            delta_record_count=-7,
            index_manifest=None if base is None else base.index_manifest,
        )
        return replace(snapshot, **members)


@pytest.fixture
def client(bench: Bench) -> Client:
    """Another client of the bench's table."""
    return Client(bench.table)


def refuse(bench: Bench, snapshot: Snapshot, kind: str) -> str:
    """The sentence of a refusal of that kind, after which nothing is changed."""
    before = bench.live(), bench.table.context.snapshots.ids()
    with pytest.raises((Conflict, InvalidRequest)) as caught:
        commit_prepared(bench.table.context, snapshot)
    assert caught.value.kind == kind, caught.value
    assert (bench.live(), bench.table.context.snapshots.ids()) == before
    return caught.value.message


def test_a_prepared_snapshot_is_committed_with_lakebeds_counts(bench: Bench, client: Client) -> None:
    """A prepared append becomes the newest snapshot; rows are counted from its manifests, time never goes back."""
    first = commit_prepared(bench.table.context, client.prepare(bench.change("a", "b"), base=None))
    assert first is not None
    second = commit_prepared(bench.table.context, client.prepare(bench.change("c"), base=first), base_uuid=first.uuid)
    assert second == bench.table.latest()
    assert second is not None
    assert (second.id, second.total_record_count, second.delta_record_count) == (2, 30, 10)
    assert second.time_ms >= first.time_ms
    assert bench.live() == ["a", "b", "c"]
    bench.commit("d")
    assert bench.live(bench.reopen()) == ["a", "b", "c", "d"]


def test_properties_of_the_snapshot_before_may_be_repeated(bench: Bench, client: Client) -> None:
    """Java's client copies them when it compacts manifests: the new snapshot has lakebed's own, and the client's."""
    prepared = client.prepare(bench.change("a"), base=None, properties={"mine": "1"})
    first = commit_prepared(bench.table.context, prepared, committer="ann")
    assert first is not None
    assert first.properties["lakebed.committer"] == "ann"
    again = client.prepare(base=first, commit_kind="COMPACT", properties=dict(first.properties))
    second = commit_prepared(bench.table.context, again)
    assert second is not None
    assert bench.live() == ["a"]
    assert second.properties["mine"] == "1"
    assert "lakebed.committer" not in second.properties
    assert "begins with lakebed." in refuse(
        bench, client.prepare(base=second, properties={**first.properties}), "invalid_snapshot"
    )


@pytest.mark.parametrize("given", [None, "the-clients-own"])
def test_a_repeated_request_is_answered_as_the_first(bench: Bench, client: Client, given: str | None) -> None:
    """After a lost reply the same snapshot is sent again: it is there once, also when others committed since."""
    prepared = client.prepare(bench.change("a"), base=None, uuid=given)
    committed = commit_prepared(bench.table.context, prepared)
    bench.commit("b")
    assert commit_prepared(bench.table.context, prepared) == committed
    assert (
        commit_prepared(Table.open(bench.store, name="t", environment=bench.environment).context, prepared) == committed
    )
    assert bench.live() == ["a", "b"]


def test_a_repeated_request_is_recognised_after_its_snapshot_expired(bench: Bench, client: Client) -> None:
    """The boundary remembers who won an id, so an expired commit is not made twice, and a lost one is not claimed."""
    mine, other = (client.prepare(bench.change(name), base=None) for name in ("mine", "other"))
    assert commit_prepared(bench.table.context, mine) is not None
    for name in ("b", "c"):
        bench.commit(name)
    bench.table.expire(retain_max=1, older_than_ms=2**50)
    assert commit_prepared(bench.table.context, mine) is not None
    assert commit_prepared(bench.table.context, other) is None
    assert bench.live() == ["b", "c", "mine"]


def test_the_hint_is_written_by_itself_and_not_into_the_folder_of_a_table_that_is_gone(
    bench: Bench, client: Client
) -> None:
    """A commit leaves the hint for clients of the files alone; written later, it does not outlive its table."""
    head = bench.commit("a")
    committed = commit_prepared(bench.table.context, client.prepare(bench.change("b"), base=head))
    assert committed is not None
    context = bench.table.context
    confirm = partial(context.schemas.confirm, context.schema, context.schemas.listed)
    assert bytes(bench.store.get("snapshot/LATEST")) == b"1"
    context.snapshots.store_latest_hint(confirm=confirm)
    assert bytes(bench.store.get("snapshot/LATEST")) == b"2"
    bench.store.delete([meta.path for meta in bench.store.list()])
    context.snapshots.store_latest_hint(confirm=confirm)
    assert list(bench.store.list()) == []


def test_a_base_behind_a_gap_is_met(bench: Bench, client: Client) -> None:
    """A server whose hint is behind numbers that expired sees the version that its client is based on."""
    for name in ("a", "b", "c"):
        bench.commit(name)
    first = bench.table.context.snapshots.body(1)
    bench.table.expire(retain_max=1, older_than_ms=2**50)
    bench.store.put("snapshot/snapshot-1", first)
    bench.store.put("snapshot/LATEST", b"1")
    prepared = client.prepare(bench.change("d"), base=bench.table.latest())
    table = bench.reopen()
    stale = table.context.snapshots.latest(exact=False)
    assert stale is not None
    assert stale.id == 1, "or this is no test of a gap"
    committed = commit_prepared(bench.reopen().context, prepared)
    assert committed is not None
    assert committed.id == 4
    assert commit_prepared(bench.reopen().context, prepared) == committed
    assert bench.live(bench.reopen()) == ["a", "b", "c", "d"]


def test_a_server_that_saw_only_the_base_leaves_the_decision_to_the_put(bench: Bench, client: Client) -> None:
    """A server does not look for a version behind the base: one that another put is not overwritten."""
    base = bench.commit("a")
    other = bench.reopen()
    assert other.latest() == base
    mine, late = (client.prepare(bench.change(name), base=base) for name in ("mine", "late"))
    with bench.store.count() as requests:
        assert commit_prepared(other.context, mine) is not None
    assert requests.total == WARM_REQUESTS
    assert bench.table.context.snapshots.seen_id == base.id, "or this is no test of an old view"
    assert commit_prepared(bench.table.context, late) is None
    assert bench.live(bench.reopen()) == ["a", "mine"]


@pytest.mark.parametrize("change", ["schema", "rollback"])
def test_a_server_with_an_old_view_answers_as_the_one_that_committed(bench: Bench, client: Client, change: str) -> None:
    """A repeated request reaches a server that does not know the first: where it does not fit any more, it was made."""
    base = bench.commit("a")
    other = bench.reopen()
    assert other.latest() == base
    prepared = client.prepare(bench.change("b"), base=base)
    committed = commit_prepared(other.context, prepared)
    assert committed is not None
    if change == "schema":
        other.context.schemas.change(
            lambda schema: replace(schema, id=schema.id + 1, options={**schema.options, "ignore-delete": "true"}),
            time_ms=2,
        )
        assert commit_prepared(bench.table.context, prepared) == committed
    else:
        other.rollback_to(base.id)
        assert commit_prepared(bench.table.context, client.prepare(bench.change("c"), base=committed)) is None
    assert bench.live(bench.reopen()) == (["a", "b"] if change == "schema" else ["a"])


def test_a_table_of_another_time_is_refused_before_anything_is_decided(bench: Bench, client: Client) -> None:
    """Which table is meant is asked when its newest schema was looked for, and before a repetition is recognised."""
    prepared = client.prepare(bench.change("a"), base=None)
    assert commit_prepared(bench.table.context, prepared) is not None
    first = bench.table.schema
    seen = []

    def check() -> None:
        seen.append(bench.table.schema)
        raise InvalidRequest("another table", kind="table_replaced")

    bench.reopen().context.schemas.change(lambda schema: replace(schema, id=schema.id + 1, comment="x"), time_ms=2)
    with pytest.raises(InvalidRequest, match="another table"):
        commit_prepared(bench.table.context, prepared, check_table=check)
    assert [schema.id for schema in seen] == [first.id + 1]


def test_an_old_base_must_be_prepared_again(bench: Bench, client: Client) -> None:
    """A snapshot on a version that is not the newest is not committed, and says so without an error."""
    bench.commit("a")
    old = client.prepare(bench.change("b"), base=bench.table.latest())
    bench.commit("c")
    assert commit_prepared(bench.table.context, old) is None
    newest = bench.table.latest()
    foreign = client.prepare(bench.change("b"), base=newest)
    assert commit_prepared(bench.table.context, foreign, base_uuid="of another version") is None
    assert bench.live() == ["a", "c"]


def test_a_base_with_other_files_is_refused(bench: Bench, client: Client) -> None:
    """The number alone does not make a base: its list must have the live files of the newest version."""
    bench.commit("a")
    older = bench.table.latest()
    bench.commit("b")
    newest = bench.table.latest()
    assert older is not None
    assert newest is not None
    stale = client.prepare(bench.change("c"), base=older, id=newest.id + 1)
    assert "live files" in refuse(bench, stale, "invalid_snapshot")


def test_files_that_were_replaced_meanwhile_are_found(bench: Bench, client: Client) -> None:
    """A compaction by another client of files that lakebed replaced is a conflict, as for lakebed's own writers."""
    bench.commit("a", "b")
    commit_changes(bench.table.context, [bench.change("ab", deleted=("a", "b"))], kind="COMPACT")
    stale = client.prepare(bench.change("ab2", deleted=("a", "b")), base=bench.table.latest(), commit_kind="COMPACT")
    refuse(bench, stale, "file_gone")


def test_files_that_are_there_are_not_added_again(bench: Bench, client: Client) -> None:
    """Files of a commit whose reply was lost do not become part of the table a second time under other lists."""
    assert commit_prepared(bench.table.context, client.prepare(bench.change("a"), base=None)) is not None
    refuse(bench, client.prepare(bench.change("a"), base=bench.table.latest()), "file_twice")


@pytest.mark.parametrize(
    "members",
    [
        {"delta_manifest_list": "manifest-list-none-0"},
        {"delta_manifest_list": "../../other.db/t/manifest/manifest-list-1"},
        {"base_manifest_list": "s3://elsewhere/list"},
        {"base_manifest_list_size": 1},
        {"index_manifest": "index-manifest-none"},
        {"statistics": "a/b"},
        {"changelog_manifest_list": "manifest-list-none-0"},
        {"id": 7},
        {"id": -1},
        {"uuid": ""},
        {"properties": {"lakebed.follows": "1"}},
    ],
)
def test_a_snapshot_whose_parts_are_missing_or_elsewhere_is_refused(
    bench: Bench, client: Client, members: dict[str, Any]
) -> None:
    """Lists and manifests exist, are whole and lie in the table's folders; ids follow each other."""
    bench.commit("a")
    prepared = client.prepare(bench.change("b"), base=bench.table.latest(), **members)
    assert "Nothing was changed" in refuse(bench, prepared, "invalid_snapshot")


@pytest.mark.parametrize(
    "file",
    [
        named_file("../../../etc/passwd"),
        replace(named_file("a"), extra_files=("../b",)),
        replace(named_file("a"), external_path="file:///etc/passwd"),
    ],
)
def test_files_outside_of_the_table_are_refused(bench: Bench, client: Client, file: Any) -> None:
    """No entry of a manifest makes a file of another place a part of the table."""
    change = BucketChange(EMPTY_ROW, 0, -1, (file,), ())
    refuse(bench, client.prepare(change, base=None), "invalid_snapshot")


def test_a_table_that_was_created_again_begins_at_its_first_id(bench: Bench) -> None:
    """A server that knows the boundary of the table before it takes commits to the new one as any other server does."""
    old = bench.table
    for name in ("a", "b", "c"):
        bench.commit(name)
    old.expire(retain_max=1, older_than_ms=2**50)
    assert old.context.snapshots.log.boundary() == 3
    bench.store.delete([meta.path for meta in bench.store.list()])
    client = Client(Table.create(bench.store, name="t", schema=old.arrow_schema, environment=bench.environment))
    first = commit_prepared(old.context, client.prepare(bench.change("d"), base=None))
    second = commit_prepared(old.context, client.prepare(bench.change("e"), base=first))
    assert [snapshot.id for snapshot in (first, second) if snapshot is not None] == [1, 2]
    assert bench.live(bench.reopen()) == ["d", "e"]


def test_ids_below_the_boundary_are_refused(bench: Bench, client: Client) -> None:
    """After another client's rollback on the files, no id is used twice; lakebed's next commit opens the way."""
    for name in ("a", "b", "c"):
        bench.commit(name)
    bench.table.expire(retain_max=1, older_than_ms=2**50)
    bench.store.put("snapshot/snapshot-1", bench.table.context.snapshots.body(3).replace(b'"id": 3', b'"id": 1'))
    bench.store.delete(["snapshot/snapshot-3"])
    bench.store.put("snapshot/LATEST", b"1")
    table = bench.reopen()
    prepared = Client(table).prepare(bench.change("d"), base=table.latest())
    with pytest.raises(Conflict, match="another client rolled the table back"):
        commit_prepared(table.context, prepared)
    assert bench.live(table) == ["a", "b", "c"]


def test_a_key_has_one_bucket(bench: Bench) -> None:
    """Two writers of dynamic buckets that place one new key in two buckets: the second is a conflict."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    store = bench.store.sub("dynamic")
    options = {"bucket": "-1"}
    table = Table.create(
        store, name="d", schema=schema, primary_keys="id", options=options, environment=bench.environment
    )
    table.upsert(pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
    head = table.latest()
    assert head is not None
    assert head.index_manifest is not None
    (entry,) = table.context.manifests.index_entries(head.index_manifest)
    store.put("index/index-other", encode_hashes(table.context.hash_index.hashes(entry)[:1].astype(np.int32)))
    other = IndexEntry(EMPTY_ROW, entry.bucket + 1, "index-other", 4, 1)
    store.put("manifest/index-manifest-other", encode_index_manifest([entry, other]))
    prepared = Client(table).prepare(base=head, index_manifest="index-manifest-other")
    with pytest.raises(Conflict) as caught:
        commit_prepared(table.context, prepared)
    assert caught.value.kind == "index_changed"
    assert table.latest() == head


def dynamic_table(bench: Bench) -> Table:
    """Five keys in two dynamic buckets."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}
    table = Table.create(
        bench.store.sub("dynamic"),
        name="d",
        schema=schema,
        primary_keys="id",
        options=options,
        environment=bench.environment,
    )
    table.upsert(pa.table({"id": pa.array(range(5), pa.int64()), "v": pa.array([1] * 5, pa.int64())}))
    return table


@pytest.mark.parametrize("kind", ["APPEND", "COMPACT", "OVERWRITE"])
def test_the_index_of_keys_is_not_lost(bench: Bench, kind: Any) -> None:
    """A client that drops the index of dynamic buckets would give stored keys a second bucket: it is a conflict."""
    table = dynamic_table(bench)
    head = table.latest()
    assert head is not None
    lost = Client(table).prepare(base=head, index_manifest=None, commit_kind=kind)
    with pytest.raises(Conflict) as caught:
        commit_prepared(table.context, lost)
    assert caught.value.kind == "index_changed"
    for key in range(4, -1, -1):  # without the index each would go into the first bucket
        table.upsert(pa.table({"id": pa.array([key], pa.int64()), "v": pa.array([2], pa.int64())}))
    assert sorted(table.read()["id"].to_pylist()) == list(range(5))


def test_files_of_dynamic_buckets_have_their_keys_in_the_index(bench: Bench) -> None:
    """A new bucket whose keys are in no index file is a conflict; an overwrite of a whole bucket may drop its keys."""
    table = dynamic_table(bench)
    head = table.latest()
    assert head is not None
    assert head.index_manifest is not None
    live = table.context.manifests.live_entries(head)
    file = replace(named_file("new"), min_key=live["min_key"][0].as_py(), max_key=live["max_key"][0].as_py())
    with pytest.raises(Conflict) as caught:
        commit_prepared(table.context, Client(table).prepare(BucketChange(EMPTY_ROW, 7, -1, (file,), ()), base=head))
    assert caught.value.kind == "index_changed"
    first, *rest = table.context.manifests.index_entries(head.index_manifest)
    body = encode_index_manifest(rest)
    table.store.put("manifest/index-manifest-rest", body)
    gone = tuple(
        replace(named_file(name), row_count=rows)
        for name, rows, bucket in zip(
            *(live[column].to_pylist() for column in ("file_name", "row_count", "bucket")), strict=True
        )
        if bucket == first.bucket
    )
    emptied = Client(table).prepare(
        BucketChange(EMPTY_ROW, first.bucket, -1, (), gone),
        base=head,
        index_manifest="index-manifest-rest",
        commit_kind="OVERWRITE",
    )
    assert commit_prepared(table.context, emptied) is not None


def test_a_compaction_brings_no_deleted_row_back(bench: Bench) -> None:
    """A client that read a file before rows of it were deleted rewrites all its rows: it is a conflict."""
    options = {"deletion-vectors.enabled": "true"}
    schema = pa.schema([("id", pa.int64())])
    store = bench.store.sub("vectors")
    table = Table.create(store, name="v", schema=schema, options=options, environment=bench.environment)
    table.append(pa.table({"id": pa.array(range(100), pa.int64())}))
    table.delete("id = 5")
    head = table.latest()
    assert head is not None
    (name,) = table.context.manifests.live_entries(head)["file_name"].to_pylist()
    store.put("bucket-0/again", store.get(f"bucket-0/{name}"))
    old = replace(named_file(name), row_count=100)

    def compact(row_count: int) -> Snapshot | None:
        new = replace(named_file("again"), row_count=row_count)
        change = BucketChange(EMPTY_ROW, 0, -1, (new,), (old,))
        return commit_prepared(
            table.context, Client(table).prepare(change, base=head, index_manifest=None, commit_kind="COMPACT")
        )

    with pytest.raises(Conflict) as caught:
        compact(100)
    assert caught.value.kind == "rows_changed"
    assert 5 not in table.read()["id"].to_pylist()
    assert compact(99) is not None


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("age_h", [None, 10, -16, 1])
def test_files_that_a_collection_may_have_taken_are_looked_for(
    bench: Bench, client: Client, age_h: int | None, count: int
) -> None:
    """A writer that slept for a day names files that are gone: nothing is committed. Young files cost no request."""
    created_ms = None if age_h is None else bench.clock.now_ms() - age_h * 3_600_000
    names = [f"f{number}" for number in range(count)]
    files = tuple(replace(named_file(name), creation_time_ms=created_ms) for name in names)
    snapshot = client.prepare(BucketChange(EMPTY_ROW, 0, -1, files, ()), base=None)
    is_looked_for = age_h != 1
    if is_looked_for:
        bench.store.delete([f"bucket-0/{names[-1]}"])
        refuse(bench, snapshot, "invalid_snapshot")
        bench.store.put(f"bucket-0/{names[-1]}", b"x")
    with bench.store.count() as requests:
        assert commit_prepared(bench.table.context, snapshot) is not None
    assert bench.live() == names
    assert requests.head == 1 + (is_looked_for and count <= 3)


def test_the_time_is_the_servers(bench: Bench, client: Client) -> None:
    """The clock of a client does not date a snapshot: one that is ages ahead would date all later ones too."""
    first = commit_prepared(bench.table.context, client.prepare(bench.change("a"), base=None, time_ms=2**63 - 1))
    assert first is not None
    assert first.time_ms == bench.environment.clock.now_ms()
    bench.commit("b")
    newest = bench.table.latest()
    assert newest is not None
    assert newest.time_ms <= bench.environment.clock.now_ms()


@pytest.mark.parametrize(
    "members",
    [
        {"watermark": 2**70},
        {"commit_identifier": -(2**70)},
        {"next_row_id": 2**63},
        {"changelog_record_count": -1},
        {"commit_user": "x" * 100_000},
    ],
    ids=lambda members: next(iter(members)),
)
def test_numbers_that_no_client_reads_back_are_refused(bench: Bench, client: Client, members: dict[str, Any]) -> None:
    """A snapshot with a number of more than 64 bits could be read by nobody, and so no later one committed."""
    refuse(bench, client.prepare(bench.change("a"), base=None, **members), "invalid_snapshot")


def test_a_commit_needs_no_user(bench: Bench, client: Client) -> None:
    """The Java implementation expires partitions without one; the snapshot is read back, and followed by others."""
    first = commit_prepared(bench.table.context, client.prepare(bench.change("a"), base=None, commit_user=""))
    assert first is not None
    second = commit_prepared(bench.table.context, client.prepare(bench.change("b"), base=first))
    assert second is not None
    assert bench.reopen().latest() == second
    assert len(bench.live()) == 2


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_stream_that_starts_again_commits_once(bench: Bench, client: Client, is_compacted: bool) -> None:
    """The snapshot of its last commit has expired, so it does not find it, and prepares the same files anew."""
    context = bench.table.context
    last = client.prepare(bench.change("a"), base=None, commit_user="job", commit_identifier=5)
    assert commit_prepared(context, last) is not None
    bench.table.create_tag("kept")
    bench.store.put("bucket-0/b", b"x")
    if is_compacted:
        bench.commit("b", deleted=("a",), kind="COMPACT")
    else:
        bench.commit("b")
    bench.hide(1)
    before, live = bench.table.latest(), bench.live()
    again = client.prepare(bench.change("a"), base=before, commit_user="job", commit_identifier=5)
    found = commit_prepared(context, again)
    assert found == bench.reopen().latest()
    assert found is not None
    assert before is not None
    assert (found.id, found.commit_user, found.commit_identifier) == (before.id + 1, "job", 5)
    assert (found.delta_record_count, found.total_record_count) == (0, before.total_record_count)
    assert bench.live() == live
    moved = replace(bench.change("b", level=5), deleted=(named_file("b"),))
    compaction = client.prepare(moved, base=found, commit_user="job", commit_identifier=5, commit_kind="COMPACT")
    committed = commit_prepared(context, compaction)
    assert committed is not None
    assert bench.table.context.manifests.delta_entries(committed).num_rows == 2


@pytest.mark.parametrize("identifier", [3, 5, 6])
def test_a_stream_that_is_set_back_loses_no_commit(bench: Bench, client: Client, identifier: int) -> None:
    """It continues with identifiers that it has used before, and with new files: they are committed."""
    context = bench.table.context
    first = client.prepare(bench.change("a"), base=None, commit_user="job", commit_identifier=5)
    assert commit_prepared(context, first) is not None
    bench.table.create_tag("kept")
    bench.store.put("bucket-0/b", b"x")
    bench.commit("b")
    bench.hide(1)
    new = client.prepare(bench.change("c"), base=bench.table.latest(), commit_user="job", commit_identifier=identifier)
    assert commit_prepared(context, new) is not None
    assert bench.live() == ["a", "b", "c"]


def test_a_commit_that_a_rollback_took_away_is_made_again(bench: Bench, client: Client) -> None:
    """A stream that starts again after a rollback adds its files anew, though a tag has them too."""
    context = bench.table.context
    bench.store.put("bucket-0/before", b"x")
    before = bench.commit("before")
    last = client.prepare(bench.change("a"), base=before, commit_user="job", commit_identifier=5)
    assert commit_prepared(context, last) is not None
    bench.table.create_tag("kept")
    bench.table.rollback_to_as_latest(before.id)
    again = client.prepare(bench.change("a"), base=bench.table.latest(), commit_user="job", commit_identifier=5)
    assert commit_prepared(context, again) is not None
    assert bench.live() == ["a", "before"]


def test_deleted_rows_stay_deleted(bench: Bench) -> None:
    """A snapshot without the deletion vectors of the newest one would bring rows back: it is a conflict."""
    store = bench.store.sub("vectors")
    options = {"deletion-vectors.enabled": "true"}
    schema = pa.schema([("id", pa.int64())])
    table = Table.create(store, name="v", schema=schema, options=options, environment=bench.environment)
    table.append(pa.table({"id": pa.array(range(100), pa.int64())}))
    table.delete("id = 5")
    head = table.latest()
    assert head is not None
    assert head.index_manifest is not None, "the deletion rewrote the file: the test needs a vector"
    with pytest.raises(Conflict) as caught:
        commit_prepared(table.context, Client(table).prepare(base=head, index_manifest=None))
    assert caught.value.kind == "rows_changed"
    assert commit_prepared(table.context, Client(table).prepare(bench.change("more"), base=head)) is not None


def test_an_upsert_under_an_older_schema_is_a_conflict(bench: Bench) -> None:
    """Rows that lack a column of the newest schema would erase its stored values: the client opens the table again."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(
        bench.store.sub("keyed"), name="k", schema=schema, primary_keys="id", environment=bench.environment
    )
    table.upsert(pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())}))
    key = table.context.manifests.live_entries(table.resolve())
    file = replace(named_file("new"), min_key=key["min_key"][0].as_py(), max_key=key["max_key"][0].as_py())
    prepared = Client(table).prepare(BucketChange(EMPTY_ROW, 0, 1, (file,), ()), base=table.latest())
    table.add_column("w", "INT")
    with pytest.raises(Conflict) as caught:
        commit_prepared(table.context, prepared)
    assert caught.value.kind == "schema_changed"


def test_an_outcome_that_is_not_known_any_more_is_said(bench: Bench, client: Client) -> None:
    """An id that went without a record of its winner is neither claimed nor committed again."""
    prepared = client.prepare(bench.change("a"), base=None)
    commit_prepared(bench.table.context, prepared)
    bench.commit("b")
    bench.store.delete(["snapshot/snapshot-1"])
    with pytest.raises(OutcomeUnknown):
        commit_prepared(bench.table.context, prepared)


@pytest.mark.parametrize(
    ("before", "after"),
    [(("a", "BIGINT"), ("b", "BIGINT")), (("a", "STRING"), ("a", "BIGINT")), (("a", "INT"), ("a", "BIGINT"))],
)
@pytest.mark.parametrize("keys", [(), ("id",)])
def test_rows_under_columns_that_a_reset_took_back_are_refused(
    before: tuple[str, str], after: tuple[str, str], keys: tuple[str, ...]
) -> None:
    """Another schema has the id of theirs since: they would be shown in its columns, or in none."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with open_context(MemoryRepository()) as home:
        store = local_store(home, "main", "t")
        Table.create(store, name="t", schema=schema, primary_keys=keys, options={"bucket": "1"} if keys else {})
        commit(home, "main", message="a table")
        stale, other = (Table.open(store, name="t") for _ in range(2))
        stale.add_column(*before)
        reset(home, "main")
        other.add_column(*after)
        kind = stale.arrow_schema.field(1).type
        rows = pa.table(
            {"id": pa.array([1], pa.int64()), before[0]: pa.array([None if before[1] == "STRING" else 7], kind)}
        )
        writer = new_writer(stale.context)
        writer.write(rows)
        changes = writer.finish()
        client = Client(Table.open(store, name="t"))
        prepared = client.prepare(*changes, base=None, puts=False)
        if before == ("a", "INT"):  # a number of its own column, whatever its width
            assert commit_prepared(client.table.context, prepared) is not None
            assert other.read().to_pylist() == [{"id": 1, "a": 7}]
            return
        with raises(Conflict, "schema_changed") as refusal:
            commit_prepared(client.table.context, prepared)
        assert repr(before[0]) in str(refusal.value)
        assert other.read().num_rows == 0
