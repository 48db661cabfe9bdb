"""System tables: Paimon's names and types, aliases, and what an empty table shows."""

from __future__ import annotations

import json
import random
import uuid

import pyarrow as pa
import pytest

from lakebed.errors import Corruption, InvalidRequest
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.table import Table, branch_of
from lakebed.table.versions.system import SYSTEM_TABLES
from lakebed.testing.clock import ManualClock


@pytest.fixture
def table() -> Table:
    """A partitioned table with a primary key, still empty."""
    environment = Environment(clock=ManualClock(), rng=random.Random(5))
    return Table.create(
        open_store(f"memory://{uuid.uuid4()}", environment=environment),
        name="t",
        schema=pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())]),
        primary_keys=["day", "id"],
        partition_keys=["day"],
        options={"bucket": "2"},
        comment="flights",
        environment=environment,
    )


def fill(table: Table) -> None:
    """Two commits, three rows, two partitions, a tag with a lifetime."""
    first = pa.table({"day": [0, 1], "id": [1, 2], "name": ["a", None]})
    table.upsert(first.set_column(0, "day", first["day"].cast(pa.int32()).cast(pa.date32())))
    table.create_tag("v1", lifetime_ms=90_000)
    second = pa.table({"day": [1], "id": [3], "name": ["c"]})
    table.upsert(second.set_column(0, "day", second["day"].cast(pa.int32()).cast(pa.date32())))


@pytest.mark.parametrize("name", sorted(SYSTEM_TABLES))
def test_an_empty_table_has_every_column(table: Table, name: str) -> None:
    """Before the first write each system table has the same columns and types as afterwards."""
    before = table.system(name)
    fill(table)
    assert table.system("$" + name).schema == before.schema


def test_tags_have_paimons_columns_and_the_proposals_alias(table: Table) -> None:
    """snapshot_id can be asked for as tagged_snapshot_id; the lifetime is ISO 8601."""
    fill(table)
    assert table.system("tags").column_names == [
        "tag_name",
        "snapshot_id",
        "schema_id",
        "commit_time",
        "record_count",
        "create_time",
        "time_retained",
    ]
    rows = table.system("tags", columns=["tag_name", "tagged_snapshot_id", "record_count", "time_retained"]).to_pylist()
    assert rows == [{"tag_name": "v1", "tagged_snapshot_id": 1, "record_count": 2, "time_retained": "PT1M30S"}]


def test_snapshots_and_schemas_and_options(table: Table) -> None:
    """One row a snapshot, a schema and an option."""
    fill(table)
    assert table.system("snapshots")["total_record_count"].to_pylist() == [2, 3]
    (schema,) = table.system("schemas").to_pylist()
    assert json.loads(schema["primary_keys"]) == ["day", "id"]
    assert [field["name"] for field in json.loads(schema["fields"])] == ["day", "id", "name"]
    assert schema["comment"] == "flights"
    assert {"key": "bucket", "value": "2"} in table.system("options").to_pylist()


def test_files_show_keys_statistics_and_the_snapshot_that_brought_them(table: Table) -> None:
    """Each live file with its partition, key range, statistics by column name, and commit snapshot."""
    fill(table)
    files = table.system("files")
    assert sorted(files["commit_snapshot"].to_pylist()) == [1, 1, 2]
    row = next(row for row in files.to_pylist() if row["commit_snapshot"] == 2)
    assert row["partition"] == "day=1970-01-02"
    assert json.loads(row["min_key"]) == json.loads(row["max_key"]) == [3]
    assert json.loads(row["min_value_stats"])["name"] == "c"
    assert row["file_format"] == "parquet"
    assert len(table.system("files", version="v1").to_pylist()) == 2


def test_file_paths_are_those_of_the_objects(table: Table) -> None:
    """`file_path` names the object below the table's folder, which is what `why` accepts; an empty table has none."""
    assert table.system("files")["file_path"].to_pylist() == []
    fill(table)
    paths = table.system("files", columns=["file_path"])["file_path"].to_pylist()
    assert sorted(paths) == sorted(meta.path for meta in table.store.list("") if "/bucket-" in meta.path)
    assert all(table.why(path).pins for path in paths)


def test_partitions_are_summed(table: Table) -> None:
    """Rows, files and bytes of each partition, in order."""
    fill(table)
    rows = table.system("partitions").select(["partition", "record_count", "file_count"]).to_pylist()
    assert rows == [
        {"partition": "day=1970-01-01", "record_count": 1, "file_count": 1},
        {"partition": "day=1970-01-02", "record_count": 2, "file_count": 2},
    ]


def test_manifests_show_their_partition_range(table: Table) -> None:
    """The range of partitions by which a manifest is skipped."""
    fill(table)
    ranges = table.system("manifests").select(["min_partition_stats", "max_partition_stats"]).to_pylist()
    assert {"min_partition_stats": "{1970-01-01}", "max_partition_stats": "{1970-01-02}"} in ranges


def test_statistics_follow_a_renamed_column(table: Table) -> None:
    """Old files show their statistics under the column's new name."""
    fill(table)
    table.rename_column("name", "title")
    assert all("title" in json.loads(text) for text in table.system("files")["min_value_stats"].to_pylist())


def test_consumers_are_listed_and_damage_is_named(table: Table) -> None:
    """A consumer's progress is one row; an unreadable one is corruption with its path."""
    table.store.put("consumer/consumer-job", b'{"nextSnapshot": 7}')
    assert table.system("consumers").to_pylist() == [{"consumer_id": "job", "next_snapshot_id": 7}]
    table.store.put("consumer/consumer-bad", b"{}")
    with pytest.raises(Corruption) as raised:
        table.system("consumers")
    assert raised.value.facts["path"] == "consumer/consumer-bad"


def test_unknown_names_are_refused_with_the_nearest(table: Table) -> None:
    """A misspelt system table or column says what there is."""
    with pytest.raises(InvalidRequest, match=r"did you mean \$snapshots"):
        table.system("snapshot")
    with pytest.raises(InvalidRequest, match="has no column 'tag': it has tag_name"):
        table.system("tags", columns=["tag"])


def test_the_audit_log_shows_the_kind_of_each_row(table: Table) -> None:
    """The column rowkind, then the table's columns; deleted keys too, until a compaction drops them; of any version."""
    fill(table)
    table.delete("id = 2")
    result = table.system("$audit_log")
    assert result.column_names == ["rowkind", "day", "id", "name"]
    kinds = {row["id"]: row["rowkind"] for row in result.to_pylist()}
    assert kinds == {1: "+I", 2: "-D", 3: "+I"}
    assert table.system("audit_log", version="v1", columns=["rowkind", "id"]).num_rows == 2
    table.compact(full=True)
    assert sorted(table.system("audit_log", columns="id")["id"].to_pylist()) == [1, 3]


def test_versions_of_the_tables_about_history(table: Table) -> None:
    """Snapshots and schemas up to the version, its options and its names of columns; judged by what was committed."""
    fill(table)
    table.create_branch("dev", tag="v1")
    for _ in range(3):
        branch_of(table, "dev").upsert(table.read(version=1))
    table.set_options({"snapshot.num-retained.max": "99"})
    table.rename_column("name", "title")
    table.upsert(table.read(where="id = 3"))
    assert table.system("snapshots", version=1)["snapshot_id"].to_pylist() == [1]
    assert table.system("snapshots", version="v1")["snapshot_id"].to_pylist() == [1]
    assert table.system("snapshots")["snapshot_id"].to_pylist() == [1, 2, 3]
    assert table.system("snapshots", version="dev")["snapshot_id"].to_pylist() == [1, 2, 3, 4]
    assert table.system("schemas", version=2)["schema_id"].to_pylist() == [0]
    assert table.system("schemas", version=3)["schema_id"].to_pylist() == [0, 1, 2]
    keys = [set(table.system("options", version=version)["key"].to_pylist()) for version in (2, 3)]
    assert keys[1] - keys[0] == {"snapshot.num-retained.max"}
    for version, name in ((1, "name"), (3, "title")):
        stats = table.system("files", version=version)["min_value_stats"].to_pylist()
        assert all(name in json.loads(text) for text in stats)


@pytest.mark.parametrize("name", ["tags", "branches", "consumers"])
def test_what_snapshots_do_not_hold_has_no_version(table: Table, name: str) -> None:
    """A version of it is a mistake, and not what there is now."""
    fill(table)
    with pytest.raises(InvalidRequest, match=f"{name} of snapshot 1 cannot be shown: .* Leave the version out"):
        table.system(name, version=1)
