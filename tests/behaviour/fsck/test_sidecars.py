"""The check of tables whose files have sidecars, indexes inside manifests, or lie outside the table."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.table.codec.manifest import ENTRY_SCHEMA, encode_manifest, entries_of_changes, files_of
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from worlds.table.foreign import without_fields

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def mixed_table(lake: Lake) -> Table:
    """Three commits: plain files, a file with a sidecar and one with an index in its manifest, plain files again."""
    table = lake.create_table("t", SCHEMA)
    table.append(pa.table({"id": [1]}))
    writer = new_writer(table.context.look())
    writer.write(pa.table({"id": [2, 3]}))
    (change,) = writer.finish()
    (file,) = change.added
    sidecar = f"{file.file_name}.index"
    table.store.put(f"bucket-0/{sidecar}", b"an index")
    commit_changes(table.context, [replace(change, added=(replace(file, extra_files=(sidecar,)),))])
    writer = new_writer(table.context.look())
    writer.write(pa.table({"id": [4]}))
    (change,) = writer.finish()
    commit_changes(table.context, [replace(change, added=(replace(change.added[0], embedded_index=b"small index"),))])
    table.append(pa.table({"id": [5]}))
    return table


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_table_with_sidecars_has_no_findings(deep: bool) -> None:
    """Versions with and without sidecars and embedded indexes are checked together; nothing is an orphan."""
    lake = Lake.open(open_store(f"memory://{uuid.uuid4().hex}"))
    table = mixed_table(lake)
    report = check_lake(lake, deep=deep)
    assert [(finding.kind, finding.path) for finding in report.findings] == []
    assert table.collect(grace_ms=0).deleted_count == 0
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert [meta.path for meta in table.store.list("") if ".index" in meta.path] == []
    assert [finding.kind for finding in check_lake(lake, deep=deep).findings] == []


@pytest.mark.parametrize("name", [field.name for field in ENTRY_SCHEMA if field.nullable])
def test_every_nullable_field_of_an_entry_may_be_null_or_absent(name: str) -> None:
    """A manifest of another client in which a nullable field is null, or which has no such field, is read."""
    lake = Lake.open(open_store(f"memory://{uuid.uuid4().hex}"))
    table = mixed_table(lake)
    head = table.context.snapshots.latest()
    assert head is not None
    entries = table.context.manifests.live_entries(head)
    place, kind = entries.schema.get_field_index(name), entries.schema.field(name)
    nulls = entries.set_column(place, kind, pa.nulls(entries.num_rows, kind.type))
    change = BucketChange(entries["partition"][0].as_py(), 0, -1, added=tuple(files_of(nulls)))
    assert entries_of_changes([change]).num_rows == entries.num_rows
    avro_name = {"key_stats_null_counts": "_NULL_COUNTS", "value_stats_null_counts": "_NULL_COUNTS"}.get(name)
    avro_name = avro_name or {"creation_time_ms": "_CREATION_TIME", "embedded_index": "_EMBEDDED_FILE_INDEX"}.get(
        name, "_" + name.upper()
    )
    meta = table.context.manifests.all_metas(head)[-1]
    for body in (encode_manifest(nulls), without_fields(encode_manifest(nulls), [avro_name])):
        path = table.context.layout.manifest(f"manifest-{uuid.uuid4().hex}")
        table.store.put(path, body)
        read = table.context.manifests.entries(
            replace(
                meta,
                file_name=path.rpartition("/")[2],
                file_size=len(body),
                added_file_count=entries.num_rows,
                deleted_file_count=0,
            )
        )
        assert read.num_rows == entries.num_rows
        assert read.schema == ENTRY_SCHEMA
        if name != "commit_snapshot":
            assert read[name].null_count == entries.num_rows
        assert [file.file_name for file in files_of(read)] == entries["file_name"].to_pylist()
