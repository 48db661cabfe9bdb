"""Options that decide where rows and files lie: implemented, or refused by every verb that writes or deletes."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, LakebedError, UnsupportedFormat
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.codec.manifest import decode_manifest_list
from lakebed.table.files.bucket import bucket_of
from lakebed.table.model.layout import Layout
from lakebed.table.read.read import read_split_table
from lakebed.table.rows.rows import new_writer
from lakebed.table.schema.schema import encode_schema
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock

EVER_MS = 2**60


def make(columns: dict[str, pa.DataType], **members: object) -> Table:
    """A new table in memory."""
    environment = Environment(clock=ManualClock(), rng=random.Random(5))
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    schema = pa.schema(list(columns.items()))
    return Table.create(store, name="t", schema=schema, environment=environment, **members)  # type: ignore[arg-type]


def with_options(table: Table, options: dict[str, str], **members: object) -> Table:
    """The table after another client gave it options: a schema that lakebed itself would not write."""
    old = table.schema
    changed = replace(old, id=old.id + 1, options={**old.options, **options}, **members)  # type: ignore[arg-type]
    table.store.put(Layout().schema(changed.id), encode_schema(changed))
    return Table.open(table.store, name="t", environment=table.context.environment)


def stored(table: Table) -> set[str]:
    """Everything in the table's folder."""
    return {meta.path for meta in table.store.list("")}


ONE = pa.table({"p": ["x"], "id": pa.array([1], pa.int64())})

VERBS: dict[str, Callable[[Table], object]] = {
    "write": lambda table: table.write(ONE),
    "writer": lambda table: new_writer(table.context.look()),
    "overwrite": lambda table: table.overwrite(ONE),
    "delete": lambda table: table.delete("id = 1"),
    "compact": lambda table: table.compact(full=True),
    "expire": lambda table: table.expire(retain_max=1, retain_min=1),
    "expire_tags": lambda table: table.expire_tags(older_than_ms=EVER_MS),
    "delete_tag": lambda table: table.delete_tag("kept", if_exists=True),
    "rollback_to": lambda table: table.rollback_to(min(table.context.snapshots.ids())),
    "remove_orphan_files": lambda table: table.collect(grace_ms=0),
}
WRITING = ("write", "writer", "overwrite", "delete", "compact")

NOT_IMPLEMENTED = {
    "data-file.external-paths.strategy": "by-the-moon",
    "index-file-in-data-file-dir": "true",
    "global-index.external-path": "s3://elsewhere/index",
    "chain-table.enabled": "true",
    "pk-clustering-override": "true",
    "blob-field": "id",
    "bucket-function.class": "an option of the future",
    "data-file.sharding": "an option of the future",
    "partition.legacy-name": "sometimes",
    "data-file.path-directory": "../elsewhere",
    "type": "format-table",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("option", NOT_IMPLEMENTED)
def test_other_placements_are_refused_before_anything_happens(option: str, verb: str) -> None:
    """A table with an option that decides where rows or files lie, and is not implemented, stays as it is."""
    table = make({"p": pa.string(), "id": pa.int64()}, partition_keys=["p"])
    table.write(ONE)
    table.create_tag("kept")
    table.write(ONE)
    table.store.put("p=x/bucket-0/data-stray.parquet", b"x")
    foreign = with_options(table, {option: NOT_IMPLEMENTED[option]})
    before = stored(foreign)
    with pytest.raises(InvalidRequest, match=option) as refused:
        VERBS[verb](foreign)
    assert refused.value.kind in ("unsupported_option", "invalid_option")
    assert stored(foreign) == before


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("data-file.external-paths", "s3://elsewhere"),
        ("data-file.external-paths.strategy", "none"),
        ("data-file.external-paths.strategy", "round-robin"),
        ("bucket-append-ordered", "false"),
        ("index-file-in-data-file-dir", "false"),
        ("an.option.of.the.future", "harmless"),
    ],
)
def test_options_that_decide_nothing_are_let_through(option: str, text: str) -> None:
    """Unknown options that do not say where anything lies, and values that change nothing, hinder no verb."""
    table = make({"p": pa.string(), "id": pa.int64()}, partition_keys=["p"])
    table.write(ONE)
    table.create_tag("kept")
    table.write(ONE)
    foreign = with_options(table, {option: text})
    for verb in VERBS.values():
        verb(foreign)


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize(
    ("option", "text", "error"),
    [
        ("row-tracking.enabled", "true", InvalidRequest),
        ("manifest.format", "orc", UnsupportedFormat),
        ("manifest.format", "parquet", UnsupportedFormat),
        ("file.format", "orc", InvalidRequest),
        ("file.format", "avro", InvalidRequest),
        ("bucket-function.type", "hive", InvalidRequest),
    ],
)
def test_what_lakebed_cannot_write_leaves_nothing_behind(
    option: str, text: str, error: type[LakebedError], verb: str
) -> None:
    """Every writing verb, deletes by predicate too, refuses options it cannot keep before it writes a file."""
    table = make({"p": pa.string(), "id": pa.int64()}, partition_keys=["p"])
    table.write(ONE)
    foreign = with_options(table, {option: text})
    before = stored(foreign)
    with pytest.raises(error):
        VERBS[verb](foreign)
    assert stored(foreign) == before


@pytest.mark.parametrize("start", [b"ORC", b"PAR1"])
def test_manifests_of_other_formats_are_not_called_corrupt(start: bytes) -> None:
    """A manifest that another client wrote as ORC or Parquet is an unsupported format, for readers and writers."""
    table = make({"p": pa.string(), "id": pa.int64()})
    table.write(ONE)
    head = table.context.snapshots.latest()
    assert head is not None
    path = table.context.layout.manifest(head.delta_manifest_list)
    table.store.put(path, start + bytes(table.store.get(path))[len(start) :])
    with pytest.raises(UnsupportedFormat, match="Avro only"):
        decode_manifest_list(table.store.get(path), path=path)


NUMBERS = [0, 1, -1, 7, -7, 2**31 - 1, -(2**31), None]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=["INT", "BIGINT"])
@pytest.mark.parametrize("count", [1, 3, 4, 1000])
def test_mod_is_the_remainder(kind: pa.DataType, count: int) -> None:
    """The bucket function mod is Java's floorMod of the key; null counts as 0."""
    values = [*NUMBERS, *([2**63 - 1, -(2**63)] if kind == pa.int64() else [])]
    text = "INT" if kind == pa.int32() else "BIGINT"
    bucket = bucket_of([pa.array(values, kind)], [text], bucket_count=count, function="mod")
    assert bucket.tolist() == [0 if value is None else value % count for value in values]
    assert bucket.dtype == np.int32


def test_a_table_with_mod_keeps_one_row_a_key() -> None:
    """Rows of a table with bucket-function.type=mod lie in the bucket of their remainder, and filters find them."""
    table = make(
        {"id": pa.int64(), "v": pa.int64()},
        primary_keys=["id"],
        options={"bucket": "4", "bucket-function.type": "mod"},
    )
    keys = [*range(-5, 5), 2**62]
    for version in (1, 2):
        table.upsert(pa.table({"id": pa.array(keys, pa.int64()), "v": pa.array([version] * len(keys), pa.int64())}))
    assert sorted(table.read().to_pydict()["id"]) == keys
    for key in keys:
        assert table.read(where=f"id = {key}").to_pylist() == [{"id": key, "v": 2}]
    head = table.context.snapshots.latest()
    assert head is not None
    entries = table.context.manifests.live_entries(head)
    assert set(entries["bucket"].to_pylist()) == {key % 4 for key in keys}


def test_filters_do_not_skip_buckets_of_an_unknown_function() -> None:
    """When rows are placed by a function that lakebed does not know, a filter on the key looks into every bucket."""
    table = make({"id": pa.int64(), "v": pa.int64()}, primary_keys=["id"], options={"bucket": "8"})
    table.upsert(pa.table({"id": pa.array(range(40), pa.int64()), "v": pa.array(range(40), pa.int64())}))
    mod = with_options(table, {"bucket-function.type": "mod"})
    assert len(mod.scan(where="id = 5").splits()) < len(mod.scan().splits())
    foreign = with_options(table, {"bucket-function.type": "hive"})
    assert foreign.read(where="id = 5").to_pylist() == [{"id": 5, "v": 5}]


@pytest.mark.parametrize(
    ("keys", "columns"),
    [(["s"], {"s": pa.string()}), (["a", "b"], {"a": pa.int64(), "b": pa.int64()}), (["d"], {"d": pa.date32()})],
)
def test_mod_takes_a_single_number(keys: list[str], columns: dict[str, pa.DataType]) -> None:
    """The bucket function mod is refused for keys that the Java client refuses."""
    with pytest.raises(InvalidRequest, match="single bucket key of type INT or BIGINT"):
        make(columns, primary_keys=keys, options={"bucket": "4", "bucket-function.type": "mod"})


def test_partition_dates_outside_the_years_of_folders_are_refused() -> None:
    """Rows with a partition date before year 1 or after 9999 are refused, and nothing is written."""
    table = make({"p": pa.date32(), "id": pa.int64()}, partition_keys=["p"])
    for day in (-719_163, 2_932_897):
        days = pa.array([day], pa.int32()).cast(pa.date32())
        before = stored(table)
        with pytest.raises(InvalidRequest, match="outside the years 1 to 9999"):
            table.write(pa.table({"p": days, "id": pa.array([1], pa.int64())}))
        assert stored(table) == before
    table.write(pa.table({"p": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], "id": pa.array([1, 2])}))
    assert sorted(table.read().to_pydict()["id"]) == [1, 2]


def test_binary_partitions_are_refused() -> None:
    """A table cannot be partitioned by bytes; one that is cannot be written or cleaned."""
    with pytest.raises(InvalidRequest, match="partition by a text"):
        make({"p": pa.binary(), "id": pa.int64()}, partition_keys=["p"])
    table = make({"p": pa.binary(), "id": pa.int64()})
    foreign = with_options(table, {}, partition_keys=("p",))
    for verb in ("writer", "expire", "remove_orphan_files"):
        with pytest.raises(InvalidRequest, match="no client of the format"):
            VERBS[verb](foreign)


def test_a_lake_is_cleaned_around_a_table_that_cannot_be() -> None:
    """Cleaning a lake names the table whose layout is not understood, touches nothing of it, and cleans the others."""
    lake = Lake.open(open_store(f"memory://{uuid.uuid4().hex}"))
    tables = [lake.create_table(name, pa.schema([("id", pa.int64())])) for name in ("a", "b")]
    for table in tables:
        table.append(pa.table({"id": [1]}))
        table.store.put("bucket-0/data-stray.parquet", b"x")
    with_options(tables[0], {"data-file.external-paths.strategy": "by-the-moon"})
    reports = lake.collect(grace_ms=0)
    problems = [report.problem for report in reports if report.problem]
    assert len(problems) == 1
    assert "data-file.external-paths.strategy" in problems[0]
    assert ["bucket-0/data-stray.parquet" in stored(table) for table in tables] == [True, False]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("is_key", [True, False], ids=["primary-key", "bucket-key"])
def test_both_zeros_are_found_in_any_bucket(kind: pa.DataType, is_key: bool) -> None:
    """0.0 and -0.0 are equal, though they are in different buckets: a filter finds what Python's == finds."""
    schema = pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int32())])
    options = {"bucket": "7"} if is_key else {"bucket": "7", "bucket-key": "k"}
    store = open_store(f"memory://{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=schema, primary_keys=["k"] if is_key else [], options=options)
    values = [0.0, -0.0, 1.5, -1.5]
    table.write(pa.table([pa.array(values, kind), pa.array(range(4), pa.int32())], schema=schema))
    scan = table.scan()
    in_bucket = [read_split_table(table.store, split, plan=scan.plan)["v"].to_pylist() for split in scan.splits()]
    assert not any({0, 1} <= set(values) for values in in_bucket), "the zeros must be in two buckets"
    for asked in (0.0, -0.0, 1.5):
        expected = [number for number, value in enumerate(values) if value == asked]
        for where in (f"k = {asked}", f"k IN ({asked}, 99)"):
            assert sorted(table.read(where=where)["v"].to_pylist()) == expected
            assert table.scan(where=where).count() == len(expected)
