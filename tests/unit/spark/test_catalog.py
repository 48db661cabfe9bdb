"""What Spark's catalog asks, asked without a JVM: requests and replies of `handle`."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.spark.catalog import VERBS, Session, handle
from lakebed.spark.plan.carried import show_instants
from lakebed.spark.plan.change_rows import change_fields
from lakebed.spark.plan.found_rows import FoundRows
from lakebed.table.rows.rows import new_writer
from lakebed.table.schema.schema import new_schema
from worlds.replies import Ask, rows_of


def columns(**types: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def planned(ask: Ask, loaded: dict[str, Any], *names: str, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    version = {"table": "db.t", "snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}
    plan = ask("plan", **version, columns=list(names), schemes=["file"], **more)["ok"]
    return plan, rows_of(plan["units"]).to_pylist()


def test_a_table_is_created_loaded_and_dropped(ask: Ask) -> None:
    """Spark's own properties are not options of the table."""
    made = {
        "schema": columns(id="long", day="date"),
        "partition_keys": ["day"],
        "properties": {"owner": "x", "comment": "c"},
    }
    assert ask("create_table", table="db.t", **made) == {"ok": {}}
    assert ask("create_table", table="db.t", **made)["error"]["kind"] == "table_exists"
    loaded = ask("load", table="db.t")["ok"]
    assert (loaded["partition_keys"], loaded["snapshot"], loaded["row_count"]) == (["day"], None, 0)
    assert loaded["properties"] == {"comment": "c", "partition.legacy-name": "false"}
    assert ask("list_tables", database="db") == {"ok": {"names": ["t"]}}
    assert ask("list_databases") == {"ok": {"names": ["db", "default"]}}
    assert ask("drop_table", table="db.t") == {"ok": {"dropped": True}}
    assert ask("drop_table", table="db.t") == {"ok": {"dropped": False}}


def test_few_rows_are_in_the_reply_and_many_in_a_file(tmp_path: Path) -> None:
    """The same rows either way, in the types that Spark's column vectors know."""
    at = pa.array([1_500, None, -1_500], pa.timestamp("ns"))
    for repeats in (1, 5000):
        rows = pa.table({"n": pa.array([1, None, 3] * repeats), "at": pa.chunked_array([at] * repeats)})
        reply = Session(tmp_path).store_rows(rows)
        assert (Path(reply).parent == tmp_path) == (repeats > 1)
        result = rows_of(reply)
        assert result["n"].to_pylist() == rows["n"].to_pylist()
        assert result["at"].type == pa.timestamp("us")
        assert result["at"].cast(pa.int64()).to_pylist() == [1, None, -1] * repeats


def test_comments_of_columns_are_kept_and_shown(ask: Ask, lake: Lake) -> None:
    """By CREATE, REPLACE and ALTER; rows with and without them are written by Spark's own writer."""
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {"comment": "the number"}},
        {"name": "v", "type": "string", "nullable": True, "metadata": {}},
    ]
    made = {"schema": json.dumps({"type": "struct", "fields": fields}), "partition_keys": []}
    assert ask("create_table", table="db.t", **made) == {"ok": {}}

    def shown() -> dict[str, str | None]:
        schema = json.loads(ask("load", table="db.t")["ok"]["schema"])
        return {field["name"]: field["metadata"].get("comment") for field in schema["fields"]}

    assert shown() == {"id": "the number", "v": None}
    stored = Path(lake.table("db.t").url.removeprefix("file://"), "schema", "schema-0")
    assert json.loads(stored.read_bytes())["fields"][0]["description"] == "the number"
    for schema in (made["schema"], columns(id="long", v="string")):
        assert "target" in ask("begin_write", table="db.t", schema=schema, native=True)["ok"]
    assert "ok" in ask("alter_table", table="db.t", changes=[{"kind": "comment", "name": "v", "value": "text"}])
    assert shown() == {"id": "the number", "v": "text"}
    fields[0]["metadata"] = {"comment": "another"}
    fields.append({"name": "n", "type": "long", "nullable": True, "metadata": {"comment": "new"}})
    replaced = ask("replace_table", table="db.t", schema=json.dumps({"type": "struct", "fields": fields}))["ok"]
    described = {item["name"]: item.get("description") for item in json.loads(replaced["staged"])["fields"]}
    assert described == {"id": "another", "v": "text", "n": "new"}


def test_a_primary_key_is_not_a_property_that_changes(ask: Ask) -> None:
    """The sentence says which key there is."""
    made = {"schema": columns(id="long", v="string"), "partition_keys": []}
    ask("create_table", table="db.k", properties={"primary-key": "id"}, **made)
    ask("create_table", table="db.t", **made)
    for table, change, present in (("db.k", "set", "has (id)"), ("db.t", "set", "has none"), ("db.k", "unset", "(id)")):
        changes = [{"kind": change, "name": "primary-key", "value": "v"}]
        error = ask("alter_table", table=table, changes=changes)["error"]
        assert (error["kind"], present in error["message"]) == ("unsupported_change", True), error


def test_properties_of_declarative_pipelines_are_kept(ask: Ask, lake: Lake) -> None:
    """Spark looks for them when a flow continues; all other unknown ones are mistakes."""
    kept = {"pipelines.autocdc.scdType": "SCD1", "pipelines.reset.allowed": "false"}
    made = {"schema": columns(id="long"), "partition_keys": []}
    assert ask("create_table", table="db.t", properties=kept, **made) == {"ok": {}}
    assert ask("load", table="db.t")["ok"]["properties"].items() >= kept.items()
    lake.table("db.t").append(pa.table({"id": [1]}))
    for properties in ({"pipeline.x": "1"}, {"autocdc": "1"}):
        assert ask("create_table", table="db.u", properties=properties, **made)["error"]["kind"] == "unknown_option"


def test_a_plan_is_of_the_version_that_was_loaded(ask: Ask, lake: Lake) -> None:
    """Also after later commits: the request hands the snapshot back."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    table.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    loaded = ask("load", table="db.t")["ok"]
    table.append(pa.table({"id": [3], "v": ["c"]}))
    plan, units = planned(ask, loaded, "v")
    (unit,) = units
    assert unit["folder"] == f"{table.url}/bucket-0"
    path = Path(unit["folder"].removeprefix("file://"), unit["name"])
    assert (path.stat().st_size, pq.read_metadata(path).num_rows) == (unit["size_bytes"], 2)
    assert plan["reader"] == ""
    version = {"table": "db.t", "snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}
    counted = ask("aggregate", **version, functions=[{"function": "count_star"}])
    assert counted == {"ok": {"values": [[2]]}}


def test_versions_resolve_and_unknown_ones_are_sentences(ask: Ask, lake: Lake) -> None:
    """The errors are those of Python."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    table.create_tag("first")
    table.append(pa.table({"id": [2]}))
    assert ask("load", table="db.t", version="first")["ok"]["snapshot_id"] == 1
    assert ask("load", table="db.t", version="2")["ok"]["travels"]
    error = ask("load", table="db.t", version="frist")["error"]
    assert error["group"] == "NotFound"
    assert error["message"] == "The table has no tag or branch 'frist'; tags: first. Did you mean first?"
    assert ask("load", table="db.x")["error"]["kind"] == "table_not_found"


def test_what_is_said_of_versions_and_pins_is_true(ask: Ask, lake: Lake) -> None:
    """A branch that begins later has expired nothing; number 0 never was; SQL has no force to drop with."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    table.create_branch("b")
    later = ask("load", table="db.t", branch="b", version="1")["error"]["message"]
    assert later.endswith("it has only snapshot 3 (older ones are not the branch's: a tag may still pin it).")
    assert ask("load", table="db.t", version="0")["error"]["message"].endswith("it has snapshots 1 to 3.")
    for dropped in (ask("drop_table", table="db.t"), ask("check_database", database="db", to_drop=True)):
        assert dropped["error"]["message"] == (
            "The table db.t is pinned by branch b: delete these first, with ALTER TABLE ... DROP TAG and DROP BRANCH."
        )
    table.delete_branch("b")
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    assert "(older ones have expired" in ask("load", table="db.t", version="1")["error"]["message"]


def test_times_of_system_tables_are_instants(ask: Ask, lake: Lake) -> None:
    """A session shows them in its zone; the columns of ``$audit_log``, which are the user's, stay as they are."""
    table = lake.create_table("db.t", pa.schema([("at", pa.timestamp("us"))]))
    table.append(pa.table({"at": pa.array([0], pa.timestamp("us"))}))
    shown = rows_of(ask("load", table="db.t", system="snapshots")["ok"]["rows"])
    assert shown.schema.field("commit_time").type == pa.timestamp("us", tz="UTC")
    assert shown["commit_time"].cast(pa.int64()).to_pylist() == [table.latest().time_ms * 1000]
    assert table.system("snapshots").schema.field("commit_time").type == pa.timestamp("ms")
    audited = json.loads(ask("load", table="db.t", system="audit_log")["ok"]["audited"])
    assert [field["type"] for field in audited["fields"]] == ["string", "timestamp_ntz"]
    assert show_instants("$audit_log", table.read()).schema == table.read().schema


def test_predicates_leave_out_files_and_a_limit_does_too(ask: Ask, lake: Lake) -> None:
    """A predicate without a translation leaves out none."""
    one_file_a_split = {"source.split.open-file-cost": "128 mb"}
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]), options=one_file_a_split)
    for start in (0, 10, 20):
        table.append(pa.table({"id": list(range(start, start + 10))}))
    loaded = ask("load", table="db.t")["ok"]
    above = {"name": ">", "children": [{"column": ["id"]}, {"literal": 14, "type": "bigint"}]}
    assert len(planned(ask, loaded, "id", predicates=[above])[1]) == 2
    assert len(planned(ask, loaded, "id", predicates=[{"name": "RAND", "children": []}])[1]) == 3
    assert len(planned(ask, loaded, "id", limit=5)[1]) == 1


def test_a_limit_counts_no_rows_that_a_merge_may_replace(ask: Ask, lake: Lake) -> None:
    """Two splits of ten keys, each written twice, are both read for 15 rows."""
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    table = lake.create_table("db.t", schema, primary_keys=["p", "id"], partition_keys=["p"])
    for part in "aabb":
        table.upsert(pa.table({"p": [part] * 10, "id": list(range(10))}))
    _, units = planned(ask, ask("load", table="db.t")["ok"], "id", limit=15)
    splits = [split for unit in units for split in pickle.loads(unit["pack"]).splits]
    assert [len(split.files) for split in splits] == [2, 2]


def test_changes_may_lack_all_but_the_key() -> None:
    """Of a deleted row the table has the key alone, so no other column is NOT NULL there."""
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    for keys, expected in ((["id"], [False, True]), ([], [False, False])):
        schema = new_schema(columns, primary_keys=keys, time_ms=0)
        assert [field.nullable for field in change_fields(schema, ["id", "v"])] == expected


def test_files_of_an_older_schema_name_their_columns(ask: Ask, lake: Lake) -> None:
    """A renamed column has its old name, a later one none, and a widened one is not for Spark's reader."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int32()), ("v", pa.string())]))
    table.append(pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    table.rename_column("v", "w")
    table.add_column("v", "STRING")
    loaded = ask("load", table="db.t")["ok"]
    plan, units = planned(ask, loaded, "v", "id", "w")
    names = [field["name"] for field in json.loads(plan["scans"][0])["fields"]]
    assert names == ["__lakebed_absent_2", "id", "v"]
    assert units[0]["pack"] is None
    table.widen_column("id", "BIGINT")
    plan, units = planned(ask, ask("load", table="db.t")["ok"], "id")
    assert units[0]["pack"] is not None
    assert plan["reader"]


def test_rows_that_need_a_merge_are_for_a_worker(ask: Ask, lake: Lake) -> None:
    """Their number is not known from manifests."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_keys="id")
    for value in ("a", "b"):
        table.upsert(pa.table({"id": [1], "v": [value]}))
    loaded = ask("load", table="db.t")["ok"]
    _, units = planned(ask, loaded, "v")
    assert [unit["scan"] for unit in units] == [None]
    version = {"table": "db.t", "snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}
    assert ask("aggregate", **version, functions=[{"function": "count_star"}]) == {"ok": {"values": None}}


def test_statements_that_change_rows_read_those_that_no_compaction_has_seen(ask: Ask, lake: Lake) -> None:
    """Ordinary reads leave them out in tables with deletion vectors; of a table the reply says whether they do."""
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("db.t", schema, primary_keys="id", options={"deletion-vectors.enabled": "true"})
    table.upsert(pa.table({"id": [1]}))
    loaded = ask("load", table="db.t")["ok"]
    assert loaded["hides_new"]
    assert planned(ask, loaded, "id")[1] == []
    assert len(planned(ask, loaded, "id", rewrites=True)[1]) == 1
    table.set_options({"deletion-vectors.merge-on-read": "true"})
    lake.create_table("db.a", schema, options={"deletion-vectors.enabled": "true"})
    lake.create_table("db.k", schema, primary_keys="id")
    assert [ask("load", table=f"db.{name}")["ok"]["hides_new"] for name in "tak"] == [False] * 3


def test_an_error_of_a_task_is_raised_by_the_commit(ask: Ask, lake: Lake) -> None:
    """Nothing is committed."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    mistake = base64.b64encode(pickle.dumps(InvalidRequest("A null key.", kind="null_key"))).decode()
    error = ask("commit", table="db.t", results=[mistake])["error"]
    assert (error["group"], error["message"]) == ("InvalidRequest", "A null key.")
    assert table.latest() is None


def test_procedures_describe_themselves_and_return_rows(ask: Ask, lake: Lake) -> None:
    """Optional arguments come last, as Spark demands."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    for name in ask("list_procedures")["ok"]["names"]:
        parameters = ask("describe_procedure", procedure=name)["ok"]["parameters"]
        assert parameters[0]["name"] == "table"
        optional = [parameter["optional"] for parameter in parameters]
        assert optional == sorted(optional)
    done = ask("call", procedure="create_tag", arguments={"table": "db.t", "tag": "x", "time_retained": "7 d"})["ok"]
    assert rows_of(done["rows"]).to_pylist() == [{"tag_name": "x", "snapshot_id": 1}]
    assert table.tag("x").lifetime_ms == 7 * 86_400_000
    table.append(pa.table({"id": [2]}))
    result = []
    for rule in ({}, {"if_not_exists": True}, {"or_replace": True}):
        reply = ask("call", procedure="create_tag", arguments={"table": "db.t", "tag": "x", **rule})
        result.append(reply["error"]["kind"] if "error" in reply else rows_of(reply["ok"]["rows"]).to_pylist())
    assert result == ["tag_exists", [{"tag_name": "x", "snapshot_id": 1}], [{"tag_name": "x", "snapshot_id": 2}]]
    deleted = ask("call", procedure="delete_tag", arguments={"table": "db.t", "tag": "y", "if_exists": True})["ok"]
    assert rows_of(deleted["rows"]).column("hidden_count").to_pylist() == [0]
    error = ask("call", procedure="rename_tag", arguments={"table": "db.t", "tag": "x"})["error"]
    assert error["message"] == "The argument target_tag of rename_tag is null: give a value."


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"nonsense", "invalid_message"),
        (b'{"id": 1, "verb": "nope", "lake": "x", "body": {}}', "unknown_verb"),
        (b'{"id": 1, "verb": "load", "lake": "x", "body": {"table": 3}}', "invalid_message"),
        (b'{"id": 1, "verb": "load", "lake": "x", "body": {"table": "t", "colour": 1}}', "invalid_message"),
    ],
)
def test_a_request_that_is_not_one_is_refused(tmp_path: Path, line: bytes, kind: str) -> None:
    """Unknown verbs, unknown fields and wrong types."""
    assert json.loads(handle(line, Session(tmp_path)))["error"]["kind"] == kind


def test_a_reply_holds_no_credential(tmp_path: Path, ask: Ask, lake: Lake) -> None:
    """The only place for them is the pickled store, which goes to tasks."""
    lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    assert set(VERBS) >= {"load", "plan", "aggregate", "begin_write", "commit", "abort", "call"}
    assert "storage_options" not in json.dumps(ask("load", table="db.t"))


def test_a_database_is_dropped_wholly_or_not_at_all(ask: Ask, lake: Lake) -> None:
    """A table that is pinned refuses before any other goes; names that are none are refused."""
    schema = pa.schema([("id", pa.int64())])
    for name in ("db.a", "db.b", "other.c"):
        lake.create_table(name, schema).append(pa.table({"id": [1]}))
    assert ask("check_database", database="db", to_drop=True) == {"ok": {}}
    lake.table("db.b").create_tag("x")
    lake.table("other.c").create_tag("y")
    assert ask("check_database", database="db", to_drop=True)["error"]["kind"] == "table_pinned"
    assert ask("check_database", database="db") == {"ok": {}}
    assert ask("check_database", database="a/b")["error"]["kind"] == "invalid_database_name"
    assert lake.tables() == ["db.a", "db.b", "other.c"]


def test_a_column_that_may_be_null_again(ask: Ask, lake: Lake) -> None:
    """Not one of the primary key; an option that is not set is unset without a change."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    lake.create_table("db.k", schema, primary_keys="id", comment="c")
    changes = [
        {"kind": "nullable", "name": "v"},
        {"kind": "unset", "name": "nope"},
        {"kind": "unset", "name": "comment"},
    ]
    assert "ok" in ask("alter_table", table="db.k", changes=changes)
    result = lake.table("db.k").schema
    assert ([field.nullable for field in result.fields], result.comment) == ([False, True], "")
    refused = ask("alter_table", table="db.k", changes=[{"kind": "nullable", "name": "id"}])["error"]
    assert "keep NOT NULL" in refused["message"]


@pytest.mark.parametrize(
    "properties",
    [
        {"external": "true"},
        {"hive.stored-as": "PARQUET"},
        {"collation": "UNICODE"},
        {"location": "/x"},
        {"provider": "csv"},
    ],
)
def test_clauses_that_a_lake_has_not_are_refused(ask: Ask, lake: Lake, properties: dict[str, str]) -> None:
    """By CREATE and by REPLACE; nothing is created or prepared."""
    made = {"schema": columns(id="long"), "properties": properties}
    assert ask("create_table", table="db.t", **made)["error"]["kind"].startswith("unsupported_")
    assert lake.tables() == []
    lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    assert ask("replace_table", table="db.t", **made)["error"]["kind"].startswith("unsupported_")


def test_procedures_change_the_branch_that_is_named(ask: Ask, lake: Lake) -> None:
    """A tag of the branch, and none of main; what creates a table takes no branch."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    branch = table.create_branch("dev", snapshot_id=1)
    arguments = {"table": "db.t", "tag": "x"}
    assert "ok" in ask("call", procedure="create_tag", arguments=arguments, branch="dev")
    assert ([tag.name for tag in branch.tags()], table.tags()) == (["x"], [])
    imported = {"table": "db.n", "source": "nowhere", "format": "parquet"}
    refused = ask("call", procedure="import_table", arguments=imported, branch="dev")["error"]
    assert refused["kind"] == "unsupported_branch"


def test_a_branch_is_renamed_by_a_procedure(ask: Ask, lake: Lake) -> None:
    """Its arguments have the names of Paimon's procedure; a missing branch and a missing name are sentences."""
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    table.create_branch("dev")
    arguments = {"table": "db.t", "from_branch": "dev", "to_branch": "other"}
    for _ in range(2):  # a repetition after a lost reply finds it done
        renamed = ask("call", procedure="rename_branch", arguments=arguments)["ok"]
        assert rows_of(renamed["rows"]).to_pylist() == [{"branch_name": "other"}]
        assert [branch.name for branch in table.branches()] == ["other"]
    missing = ask("call", procedure="rename_branch", arguments={**arguments, "to_branch": "third"})["error"]
    assert missing["message"] == "The table has no branch 'dev': it has other."
    unnamed = ask("call", procedure="rename_branch", arguments={"table": "db.t", "from_branch": "other"})["error"]
    assert unnamed["message"] == "The argument to_branch of rename_branch is null: give a value."


@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("keys", [(), ("id",)], ids=["append", "primary-key"])
def test_a_write_into_a_dropped_table_leaves_no_file(ask: Ask, lake: Lake, verb: str, keys: tuple[str, ...]) -> None:
    """Its files, which no version will name, are deleted with what it found, and a new table may have the name."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False)])
    partitioned = {"primary_keys": (*keys, "day") if keys else (), "partition_keys": ("day",)}
    table = lake.create_table("db.t", schema, **partitioned)
    writer = new_writer(table.context)
    writer.write(pa.table({"id": [1, 2], "day": ["a", "b"]}, schema=schema))
    changes = writer.finish()
    written = {file.file_name for change in changes for file in change.added}
    assert len(written) == 2
    result = base64.b64encode(pickle.dumps([*changes, FoundRows("data-x.parquet", b"")])).decode()
    failed = base64.b64encode(pickle.dumps(InvalidRequest("no"))).decode()
    bodies = {meta.path: bytes(table.store.get(meta.path)) for meta in table.store.list("") if "data-" in meta.path}
    lake.drop_table("db.t")
    for path, body in bodies.items():  # a task ends after the drop
        table.store.put(path, body)
    reply = ask(verb, table="db.t", results=[result, failed])
    assert ("error" in reply) == (verb == "commit")
    assert [meta.path for meta in table.store.list("")] == []
    assert "ok" in ask("create_table", table="db.t", schema=columns(id="long"), partition_keys=[])


def test_an_aborted_write_that_marks_rows_leaves_no_file(ask: Ask, lake: Lake) -> None:
    """The rows that its tasks found are not taken for files."""
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("db.t", schema)
    writer = new_writer(table.context)
    writer.write(pa.table({"id": [1]}))
    result = base64.b64encode(pickle.dumps([*writer.finish(), FoundRows("data-x.parquet", b"")])).decode()
    assert ask("abort", table="db.t", results=[result]) == {"ok": {"file_count": 1}}
    assert [meta.path for meta in table.store.list("bucket-0")] == []
