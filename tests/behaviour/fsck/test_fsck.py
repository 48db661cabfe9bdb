"""fsck finds what is broken, by kind and path, distinguishes orphans, and changes nothing."""

from __future__ import annotations

import dataclasses
import json
import random
import uuid
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import NotFound
from lakebed.fsck.check import check_lake, check_url
from lakebed.fsck.model import CheckReport
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.unfinished import Deletion, store_deletion
from lakebed.table.model.layout import Layout
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing.recording import RecordingStore

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
    ]
)


def rows(*keys: int, value: float = 0.0) -> pa.Table:
    """Rows in two partitions."""
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "day": [f"d{key % 2}" for key in keys],
            "value": pa.array([value + key for key in keys], pa.float64()),
        },
        schema=SCHEMA,
    )


@pytest.fixture
def lake() -> Lake:
    """``t``: keyed and partitioned, compacted, tagged, forked, rolled back once; ``plain``: appended twice."""
    made = Lake.open(open_store(f"memory://{uuid.uuid4().hex}"))
    table = made.create_table("t", SCHEMA, primary_keys=["day", "id"], partition_keys=["day"], options={"bucket": "2"})
    for start in range(0, 40, 10):
        table.upsert(rows(*range(start, start + 15)))
        table.create_tag(f"at{start}")
    table.compact(full=True)
    table.delete("id = 3")
    table.create_branch("dev", tag="at10").upsert(rows(900, 901))
    table.rollback_to_as_latest("at30")
    plain = made.create_table("plain", SCHEMA)
    plain.append(rows(1, 2, 3))
    plain.append(rows(4))
    return made


def found(lake: Lake, *, deep: bool = False) -> dict[str, list[str]]:
    """Paths of errors and warnings by kind; orphans too."""
    kinds: dict[str, list[str]] = {}
    for finding in check_lake(lake, deep=deep).findings:
        kinds.setdefault(finding.kind, []).append(finding.path)
    return kinds


def paths(table: Table, part: str) -> list[str]:
    """Objects of a table whose path holds `part`, sorted."""
    return [meta.path for meta in table.store.list("") if part in meta.path]


def live_files(table: Table) -> list[str]:
    """Paths of the newest version's data files."""
    return [f"{split.folder}/{file.file_name}" for split in table.scan().splits() for file in split.files]


def test_a_sound_lake_has_no_finding(lake: Lake) -> None:
    """Tags, branches, compaction, deletes, rollbacks and partitions: everything agrees, also when files are read."""
    report = check_lake(lake, deep=True)
    assert report.findings == []
    assert report.table_count == 2
    assert report.version_count > 10
    assert report.file_count > 10


def test_nothing_is_changed() -> None:
    """A check makes no call that could change anything."""
    store = RecordingStore(open_store(f"memory://{uuid.uuid4().hex}"))
    lake = Lake.open(store)
    lake.create_table("t", SCHEMA).append(rows(1))
    before = len(store.changes())
    check_lake(lake, deep=True)
    assert len(store.changes()) == before


def test_expired_and_cleaned_tables_stay_sound(lake: Lake) -> None:
    """What expiry and tag deletion leave behind is sound and holds no orphan."""
    table = lake.table("t")
    table.delete_branch("dev")
    table.delete_tag("at0", "at20")
    table.expire(retain_max=1, retain_min=1)
    table.collect(grace_ms=0)
    assert found(lake, deep=True) == {}


def test_a_branch_with_columns_of_its_own_is_sound(lake: Lake) -> None:
    """Files of a branch are read with the branch's schemas, also where main's has the same number."""
    table = lake.create_table("forked", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    for name in ("one", "two"):
        fork = table.create_branch(name)
        fork.add_column(name, "INT")
        fork.append(pa.table({"a": [2], name: pa.array([3], pa.int32())}))
    assert not [finding for finding in check_lake(lake, deep=True).findings if finding.store == "forked"]


def test_missing_data_file(lake: Lake) -> None:
    """A lost data file is named, with a version that needs it."""
    path = live_files(lake.table("t"))[0]
    lake.table("t").store.delete([path])
    report = check_lake(lake)
    (finding,) = report.findings
    assert (finding.severity, finding.kind, finding.path) == ("error", "missing", path)
    assert "needs it" in finding.sentence
    assert report.error_count == 1


def test_cut_data_file(lake: Lake) -> None:
    """A data file of another size is found without reading it."""
    table = lake.table("plain")
    path = live_files(table)[0]
    table.store.put(path, bytes(table.store.get(path))[:-7])
    assert found(lake) == {"wrong_size": [path]}


def test_flipped_bytes_need_a_deep_check(lake: Lake) -> None:
    """Bytes that changed at the same size are found by reading."""
    table = lake.table("plain")
    path = live_files(table)[0]
    body = bytearray(table.store.get(path))
    body[4:200] = random.Random(1).randbytes(196)
    table.store.put(path, bytes(body))
    assert found(lake) == {}
    assert found(lake, deep=True) == {"corruption": [path]}


def test_missing_list(lake: Lake) -> None:
    """A lost manifest list is named."""
    table = lake.table("plain")
    newest = table.latest()
    assert newest is not None
    path = table.context.layout.manifest(newest.delta_manifest_list)
    table.store.delete([path])
    assert path in found(lake)["missing"]


def test_missing_schema(lake: Lake) -> None:
    """A lost schema that versions were written with is named."""
    table = lake.table("plain")
    table.add_column("more", "INT")
    table.store.delete(["schema/schema-0"])
    assert "schema/schema-0" in found(lake)["missing"]


@pytest.mark.parametrize("part", ["snapshot/snapshot-1", "tag/tag-at0", "manifest/manifest-list", "manifest/manifest-"])
def test_damaged_metadata(lake: Lake, part: str) -> None:
    """A snapshot, tag, list or manifest that does not decode is named as damaged, and the rest is still checked."""
    table = lake.table("t")
    path = paths(table, part)[0]
    table.store.put(path, b"\x00broken")
    kinds = found(lake)
    assert path in [item for kind in ("corruption", "unsupported_format") for item in kinds.get(kind, [])]
    assert check_lake(lake).table_count == 2


def tamper(lake: Lake, change: Callable[[pa.Table], pa.Table]) -> tuple[Table, str]:
    """A keyed table of one file whose content is changed, and whose manifest then states the new size."""
    table = lake.create_table("v", SCHEMA, primary_keys=["id"], options={"bucket": "1"})
    writer = new_writer(table.context.look())
    writer.write(rows(1, 2, 3, 4))
    (written,) = writer.finish()
    file = written.added[0]
    path = f"bucket-0/{file.file_name}"
    body = pq.read_table(pa.BufferReader(bytes(table.store.get(path))))
    sink = pa.BufferOutputStream()
    pq.write_table(change(body), sink)
    table.store.put(path, sink.getvalue().to_pybytes())
    stated = dataclasses.replace(file, file_size=sink.getvalue().size)
    commit_changes(table.context, [dataclasses.replace(written, added=(stated,))])
    return table, path


def unsorted(body: pa.Table) -> pa.Table:
    """The same rows, backwards."""
    return body.take([3, 2, 1, 0])


def fewer(body: pa.Table) -> pa.Table:
    """A row less."""
    return body.slice(0, 3)


def other_values(body: pa.Table) -> pa.Table:
    """A value beyond the stated bounds."""
    return body.set_column(body.schema.get_field_index("value"), "value", pa.array([1.0, 2.0, 3.0, 999.0]))


def with_null(body: pa.Table) -> pa.Table:
    """A null that the manifest does not count."""
    return body.set_column(body.schema.get_field_index("value"), "value", pa.array([1.0, 2.0, 3.0, None]))


def without_column(body: pa.Table) -> pa.Table:
    """A column less."""
    return body.drop_columns(["value"])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (unsorted, "unsorted"),
        (fewer, "wrong_count"),
        (other_values, "wrong_statistics"),
        (with_null, "wrong_statistics"),
        (without_column, "missing_column"),
    ],
)
def test_files_that_lie(lake: Lake, change: Callable[[pa.Table], pa.Table], kind: str) -> None:
    """A file that decodes, but holds other than its manifest says, is found by a deep check."""
    _, path = tamper(lake, change)
    assert found(lake) == {}
    assert kind in found(lake, deep=True)
    assert {item for paths in found(lake, deep=True).values() for item in paths} == {path}


def test_field_ids_that_two_fields_have(lake: Lake) -> None:
    """Those of a nested column that an older version added: clients of the format cannot open such a table."""
    pair = pa.struct([("left", pa.int64()), ("right", pa.list_(pa.struct([("deep", pa.int64())])))])
    table = lake.create_table("nested", pa.schema([("id", pa.int64()), ("pair", pair)]))
    [path] = paths(table, "schema/")
    assert "field_id_twice" not in found(lake)
    schema = json.loads(bytes(table.store.get(path)))
    members = schema["fields"][1]["type"]["fields"]
    members[0]["id"] = 0
    table.store.put(path, json.dumps(schema).encode())
    [finding] = [finding for finding in check_lake(lake).findings if finding.kind == "field_id_twice"]
    assert (finding.severity, finding.facts["columns"]) == ("warning", ["id", "pair.left"])


def test_hints_that_mislead(lake: Lake) -> None:
    """A hint beyond every snapshot, or one that is not a number, is a warning, not an error."""
    table = lake.table("plain")
    table.store.put("snapshot/LATEST", b"77")
    table.store.put("snapshot/EARLIEST", b"first")
    assert found(lake) == {"wrong_hint": ["snapshot/LATEST", "snapshot/EARLIEST"]}
    assert check_lake(lake).error_count == 0


def test_unfinished_and_damaged_deletions(lake: Lake) -> None:
    """A deletion on its way is a warning; one that does not decode is an error."""
    table = lake.table("plain")
    store_deletion(
        table.store, Layout(), Deletion(kind="expire", id="11111111-1111-4111-8111-111111111111", walk_end=1)
    )
    assert list(found(lake)) == ["unfinished_deletion"]
    table.store.put("lakebed/reclaim/expire-22222222-2222-4222-8222-222222222222.json", b"{")
    assert sorted(found(lake)) == ["corruption", "unfinished_deletion"]


@pytest.mark.parametrize("keys", [("id",), ("day", "id")])
def test_keys_at_the_ends_of_64_bits_are_in_order(lake: Lake, keys: tuple[str, ...]) -> None:
    """Files with such keys are sound, though the difference of two of them is no 64-bit number."""
    table = lake.create_table("far", SCHEMA, primary_keys=keys)
    table.upsert(rows(-(2**63), 2**63 - 2, value=0.5))
    table.upsert(rows(-(2**63) + 1, 1, 2**63 - 1))
    assert not check_lake(lake, deep=True).findings


@pytest.mark.parametrize("folder", ["serving.kv/sst", "files.repo/data", "orders.tenant/data", "shop.db/t/bucket-0"])
def test_files_of_a_store_in_the_folder_of_a_table_are_no_orphans(lake: Lake, folder: str) -> None:
    """A collection leaves them alone; of a partition of such a name they are orphans as everywhere."""
    store = lake.table("plain").store
    store.put(f"{folder}/one", b"12345678")
    store.put("day=shop.db/bucket-0/two", b"1234")
    report = check_lake(lake)
    assert report.orphan_bytes == 4
    assert [
        (finding.severity, finding.facts["count"]) for finding in report.findings if finding.kind == "not_ours"
    ] == [("info", 1)]
    plan = lake.table("plain").collect(grace_ms=0, dry_run=True).plan
    assert [item.path for item in plan.doomed] == ["day=shop.db/bucket-0/two"]


def test_orphans_are_information(lake: Lake) -> None:
    """Unreferenced files are reported with their bytes; they are not a fault."""
    table = lake.table("plain")
    table.store.put("bucket-0/data-lost-0.parquet", b"12345")
    table.store.put("manifest/manifest-lost-0", b"123")
    report = check_lake(lake)
    assert sorted(finding.path for finding in report.findings) == [
        "bucket-0/data-lost-0.parquet",
        "manifest/manifest-lost-0",
    ]
    assert (report.error_count, report.orphan_bytes) == (0, 8)
    assert {finding.severity for finding in report.findings} == {"info"}


def test_remains_of_a_dropped_table(lake: Lake) -> None:
    """A drop that did not finish is a warning."""
    store: ObjectStore = lake.table("plain").store
    store.put("lakebed/dropped", b"")
    store.delete(["schema/schema-0"])
    assert list(found(lake)) == ["dropped"]


def test_wrong_counts(lake: Lake) -> None:
    """A snapshot that states other rows than its files have is found."""
    table = lake.table("plain")
    body = bytes(table.store.get("snapshot/snapshot-2"))
    assert b'"totalRecordCount":4' in body.replace(b" ", b"")
    table.store.put(
        "snapshot/snapshot-2", body.replace(b" ", b"").replace(b'"totalRecordCount":4', b'"totalRecordCount":5')
    )
    assert found(lake) == {"wrong_count": ["snapshot/snapshot-2"]}


def test_by_url(lake: Lake) -> None:
    """A lake, one of its tables, or a table's own folder; nothing there is not found."""
    url = lake.url
    report: CheckReport = check_url(url)
    assert (report.table_count, report.error_count) == (2, 0)
    assert check_url(url, store="plain").table_count == 1
    assert check_url(f"{url}/default.db/plain").table_count == 1
    with pytest.raises(NotFound):
        check_url(url, store="nope")
    with pytest.raises(NotFound):
        check_url(f"memory://{uuid.uuid4().hex}")
