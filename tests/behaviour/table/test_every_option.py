"""Every option of a table has a proof: what it changes, or that it is refused. A new option needs one here.

A proof is a function under ``@proves("name", ...)``. It is called with the name, and must fail when the option has no
effect. An option without proof must be refused: one of other clients (`refused`), or with the value in `UNSUPPORTED`.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Conflict, InvalidRequest, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.spark.tasks.write_tasks import write_task
from lakebed.table.model.options import OPTIONS
from lakebed.table.table import Table
from lakebed.table.versions.auto_tags import AutomaticTagging
from lakebed.testing.clock import ManualClock

Proof = Callable[[str], None]
PROOFS: dict[str, Proof] = {}

UNSUPPORTED = {
    "bucket": "-2",
    "file.format": "orc",
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "type": "view",
    "manifest.format": "orc",
    "manifest.compression": "snappy",
    "snapshot.expire.execution-mode": "async",
    "tag.period-formatter": "without_dashes",
    "consumer.mode": "at-least-once",
    "scan.mode": "latest",
    "snapshot.ignore-empty-commit": "false",
}
"""A value that is refused; for options that are not here, one that fits their parser is found."""
SAMPLES = ["true", "false", "7", "7 d", "x"]


def proves(*names: str) -> Callable[[Proof], Proof]:
    """Register a proof of some options."""

    def register(proof: Proof) -> Proof:
        PROOFS.update(dict.fromkeys(names, proof))
        return proof

    return register


SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def make(
    options: dict[str, str] | None = None, *, keyed: bool = False, schema: pa.Schema = SCHEMA, **shape: Any
) -> Table:
    """A table in memory, with a clock that is set."""
    if keyed:
        shape, options = {"primary_keys": ["k"], **shape}, {"bucket": "1", **(options or {})}
    return Table.create(
        open_store(f"memory://every-{uuid.uuid4()}"), name="t", schema=schema, options=options or {}, **shape
    )


def rows(count: int, *, start: int = 0, text: str = "") -> pa.Table:
    """Some rows of `SCHEMA`."""
    numbers = range(start, start + count)
    return pa.table({"k": numbers, "s": [text or f"a longer text {number}" for number in numbers]}, schema=SCHEMA)


def files(table: Table) -> list[dict[str, Any]]:
    """The live files."""
    return list(table.system("files").to_pylist())


def footer(table: Table) -> pq.FileMetaData:
    """The footer of the only data file."""
    (file,) = files(table)
    return pq.ParquetFile(pa.BufferReader(pa.py_buffer(table.store.get(file["file_path"])))).metadata


def manifest_count(table: Table) -> int:
    """Manifests of the newest snapshot."""
    head = table.latest()
    assert head is not None
    return len(table.context.manifests.all_metas(head))


# ---- every option has a proof


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_has_an_effect(name: str) -> None:
    """An option changes what its proof says, or it is refused; one without proof fails."""
    option = OPTIONS[name]
    if name in PROOFS:
        PROOFS[name](name)
    else:
        assert option.refused or name in UNSUPPORTED, f"option {name!r} needs a proof in this file"
        value = UNSUPPORTED.get(name) or next(text for text in SAMPLES if _is_another(option, text))
        with pytest.raises(InvalidRequest, match=name) as refused:
            make({name: value})
        assert refused.value.facts["option"] == name
        with pytest.raises(InvalidRequest, match=name):
            make().set_options({name: value})


def _is_another(option: Any, text: str) -> bool:
    try:
        return bool(option.parse(text) != option.default)
    except InvalidRequest:
        return False


# ---- layout and merging


@proves("bucket")
def _(name: str) -> None:
    table = make({name: "3", "bucket-key": "k"})
    table.write(rows(40))
    assert {file["bucket"] for file in files(table)} == {0, 1, 2}
    with pytest.raises(InvalidRequest, match="bucket"):
        make({name: "-2"})


@proves("bucket-key")
def _(name: str) -> None:
    table = make({"bucket": "4", name: "s"})
    table.write(rows(40, text="one"))
    assert len(files(table)) == 1


@proves("bucket-function.type")
def _(name: str) -> None:
    table = make({"bucket": "4", name: "mod"}, keyed=True)
    table.upsert(rows(3, start=4))
    assert sorted(file["bucket"] for file in files(table)) == [0, 1, 2]
    with pytest.raises(InvalidRequest, match=name):
        make({name: "hive"})


@proves("dynamic-bucket.target-row-num", "dynamic-bucket.initial-buckets", "dynamic-bucket.max-buckets")
def _(name: str) -> None:
    dynamic = {"bucket": "-1", "dynamic-bucket.target-row-num": "10"}
    dynamic[name] = {"target-row-num": "6", "initial-buckets": "2", "max-buckets": "1"}[name.partition(".")[2]]
    table = make(dynamic, keyed=True)
    table.upsert(rows(12))
    assert {file["bucket"] for file in files(table)} == ({0} if name.endswith("max-buckets") else {0, 1})
    if name.endswith("initial-buckets"):
        table = make(dynamic, keyed=True)
        table.upsert(rows(8))
        assert {file["bucket"] for file in files(table)} == {0, 1}
    with pytest.raises(InvalidRequest, match=name):
        make({**dynamic, name: "x"}, keyed=True)


@proves("dynamic-bucket.assigner-parallelism")
def _(name: str) -> None:
    assert write_task(make({"bucket": "-1"}, keyed=True)).settings.share_count == 1
    assert write_task(make({"bucket": "-1", name: "3"}, keyed=True)).settings.share_count == 3


@proves("sequence.field", "sequence.field.sort-order")
def _(name: str) -> None:
    order = "descending" if name.endswith("sort-order") else "ascending"
    table = make({"sequence.field": "s", "sequence.field.sort-order": order}, keyed=True)
    table.upsert(pa.table({"k": [1], "s": ["b"]}))
    table.upsert(pa.table({"k": [1], "s": ["a"]}))
    assert table.read().column("s").to_pylist() == ["a" if order == "descending" else "b"]


@proves("merge-engine", "partial-update.remove-record-on-delete", "aggregation.remove-record-on-delete")
def _(name: str) -> None:
    engine = "partial-update" if name == "merge-engine" else name.partition(".")[0]
    table = make(
        {"merge-engine": engine} if name == "merge-engine" else {"merge-engine": engine, name: "true"}, keyed=True
    )
    table.upsert(pa.table({"k": [1], "s": ["a"]}))
    table.upsert(pa.table({"k": [1], "s": pa.nulls(1, pa.string())}))
    assert table.read().to_pylist() == [{"k": 1, "s": "a"}]
    if name == "merge-engine":
        with pytest.raises(InvalidRequest, match="takes no deletes"):
            table.delete("k = 1")
    else:
        table.delete("k = 1")
        assert table.read().num_rows == 0


@proves("ignore-delete", "rowkind.field")
def _(name: str) -> None:
    table = make({name: "true" if name == "ignore-delete" else "s"}, keyed=True)
    with pytest.raises((InvalidRequest, UnsupportedFormat), match=name):
        table.upsert(rows(1))


@proves("partition.default-name", "partition.legacy-name", "data-file.path-directory")
def _(name: str) -> None:
    schema = pa.schema([("day", pa.date32()), ("k", pa.int64())])
    value = {"partition.default-name": "none", "partition.legacy-name": "true", "data-file.path-directory": "here"}
    day = None if name == "partition.default-name" else datetime.date(2013, 1, 1)
    paths = []
    for options in ({}, {name: value[name]}):
        table = make(options, schema=schema, partition_keys=["day"])
        table.write(pa.table({"day": [day], "k": [1]}, schema=schema))
        (file,) = files(table)
        paths.append(file["file_path"].rpartition("/")[0])
        assert table.read().num_rows == 1
    assert paths[0] != paths[1]


# ---- data files


@proves("file.compression")
def _(name: str) -> None:
    table = make({name: "snappy"})
    table.write(rows(10))
    assert footer(table).row_group(0).column(0).compression == "SNAPPY"


@proves("file.compression.zstd-level")
def _(name: str) -> None:
    sizes = []
    for level in ("1", "19"):
        table = make({name: level})
        table.write(rows(3000))
        sizes.append(files(table)[0]["file_size_in_bytes"])
    assert sizes[0] != sizes[1]


@proves("file.block-size")
def _(name: str) -> None:
    table = make({name: "10 kb"})
    table.write(rows(5000))
    assert footer(table).num_row_groups > 5


@proves("target-file-size")
def _(name: str) -> None:
    table = make({name: "10 kb"})
    table.write(rows(20_000))
    assert len(files(table)) > 1


@proves("data-file.prefix")
def _(name: str) -> None:
    table = make({name: "part-"})
    table.write(rows(1))
    assert files(table)[0]["file_path"].startswith("bucket-0/part-")
    assert table.collect(grace_ms=0, dry_run=True).deleted_count == 0


@proves("changelog-producer", "changelog-file.prefix")
def _(name: str) -> None:
    for producer in ("input", "full-compaction"):
        table = make({"changelog-producer": producer, "changelog-file.prefix": "log-"}, keyed=True)
        table.write(rows(1))
        table.compact(full=True)
        assert len([meta for meta in table.store.list("bucket-0") if "/log-" in meta.path]) == 1
        assert table.changes(None).num_rows == 1
    with pytest.raises(InvalidRequest, match="changelog-producer"):
        make({"changelog-producer": "lookup"}, keyed=True)


@proves("data-file.external-paths", "data-file.external-paths.strategy")
def _(name: str) -> None:
    root = f"memory://every-outside-{uuid.uuid4()}/a"
    table = make({"data-file.external-paths": root, "data-file.external-paths.strategy": "round-robin"})
    table.write(rows(1))
    assert files(table)[0]["file_path"].startswith(f"{root}/bucket-0/data-")
    for other in ({"data-file.external-paths.strategy": "none"}, {"data-file.external-paths": ""}):
        table.set_options(other)
        table.write(rows(1))
        assert sum(file["file_path"].startswith(root) for file in files(table)) == 1
    with pytest.raises(InvalidRequest, match=r"data-file\.external-paths'.*not a URL"):
        make({"data-file.external-paths": "/a/folder", "data-file.external-paths.strategy": "round-robin"})


@proves("data-file.external-paths.specific-fs", "data-file.external-paths.weights")
def _(name: str) -> None:
    root = f"memory://every-outside-{uuid.uuid4()}"
    choice = {
        "data-file.external-paths": f"s3://nowhere/a,{root}/b,{root}/c",
        "data-file.external-paths.strategy": "specific-fs",
        "data-file.external-paths.specific-fs": "memory",
    }
    weighted = {
        "data-file.external-paths": f"{root}/b,{root}/c",
        "data-file.external-paths.strategy": "weight-robin",
        "data-file.external-paths.weights": "1,999999999",
    }
    table = make(choice if name.endswith("fs") else weighted)
    for _ in range(32):  # each write begins anywhere
        table.write(rows(1))
    partitions = {file["file_path"].partition("/bucket-0/")[0] for file in files(table)}
    assert partitions == ({f"{root}/b", f"{root}/c"} if name.endswith("fs") else {f"{root}/c"})
    with pytest.raises(InvalidRequest, match=name):
        make(choice | {name: "hdfs"} if name.endswith("fs") else weighted | {name: "1,2,3"})


@proves("metadata.stats-mode")
def _(name: str) -> None:
    long = "x" * 40
    result = {}
    for mode in ("none", "counts", "full", "truncate(3)"):
        table = make({name: mode})
        table.write(rows(1, text=long))
        table.write(rows(1, text=long))
        table.compact(full=True)
        (file,) = files(table)
        result[mode] = (file["min_value_stats"], file["null_value_counts"])
        assert table.read(where=f"s = '{long}'").num_rows == 2
        assert table.read(where="s = 'y'").num_rows == 0
    assert ('"s":null' in result["counts"][0], '"s":0' in result["counts"][1]) == (True, True)
    assert f'"s":"{long}"' in result["full"][0]
    assert '"s":"xxx"' in result["truncate(3)"][0]
    assert (long[:3] in result["none"][0], '"s"' in (result["none"][1] or "")) == (False, False)


@proves("read.batch-size")
def _(name: str) -> None:
    table = make({name: "7"})
    table.write(rows(30))
    assert max(batch.num_rows for batch in table.scan().to_batches()) == 7


@proves("write-buffer-size")
def _(name: str) -> None:
    counts = []
    for size in ("1 kb", "100 mb"):
        table = make({name: size}, keyed=True)
        batches = [batch for start in range(0, 900, 300) for batch in rows(300, start=start).to_batches()]
        table.write(pa.RecordBatchReader.from_batches(SCHEMA, batches))
        counts.append(len(files(table)))
    assert counts[0] > counts[1] == 1


@proves("write-only")
def _(name: str) -> None:
    table = make({name: "true"}, keyed=True)
    for number in range(7):
        table.upsert(rows(1, start=number))
    assert (len(files(table)), len(table.context.snapshots.ids())) == (7, 7)


@proves("deletion-vectors.enabled")
def _(name: str) -> None:
    table = make({name: "true"})
    table.append(rows(10))
    before = files(table)
    table.delete("k < 5")
    assert files(table) == before
    assert table.read()["k"].to_pylist() == [5, 6, 7, 8, 9]
    for refused in (
        lambda: make({name: "true", "merge-engine": "first-row"}, keyed=True),
        lambda: make(keyed=True).set_options({name: "true"}),
        lambda: table.set_options({name: "false"}),
        lambda: table.remove_options([name]),
    ):
        with pytest.raises(InvalidRequest, match=name):
            refused()
    late = make()
    late.append(rows(10))
    late.set_options({name: "true"})
    late.delete("k < 5")
    assert late.read()["k"].to_pylist() == [5, 6, 7, 8, 9]


@proves("deletion-vectors.merge-on-read")
def _(name: str) -> None:
    for text, count in (("true", 10), ("false", 0)):
        table = make({name: text, "deletion-vectors.enabled": "true"}, keyed=True)
        table.upsert(rows(10))
        assert table.read().num_rows == count


# ---- manifests and commits


@proves("manifest.target-file-size")
def _(name: str) -> None:
    counts = []
    for size in ("600 b", "8 mb"):
        table = make({name: size, "bucket": "16", "bucket-key": "k"})
        table.write(rows(200))
        counts.append(manifest_count(table))
    assert counts[0] > counts[1] == 1


@proves("manifest.merge-min-count", "manifest.full-compaction-threshold-size")
def _(name: str) -> None:
    counts = []
    for options in ({}, {name: "3" if name.endswith("count") else "4 kb"}):
        table = make(options)
        for number in range(9):
            table.write(rows(1, start=number))
        counts.append(manifest_count(table))
    assert counts[1] < counts[0] == 9


class _Pauses(ManualClock):
    """A clock that remembers what it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)


class _Rival:
    """A snapshot log in which another writer comes first, a number of times."""

    def __init__(self, table: Table, clock: ManualClock, count: int) -> None:
        self._log = table.context.snapshots
        self._other = Table.open(table.store, name="t")
        self._clock = clock
        self._left = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, snapshot: Any, **options: Any) -> Any:
        """Let the other writer win first, while some are left."""
        if self._left:
            self._left -= 1
            self._other.write(rows(1))
            ManualClock.sleep(self._clock, 1.0)
        return self._log.append(snapshot, **options)


def _losing(options: dict[str, str], count: int) -> tuple[Table, list[float]]:
    """A table of which a commit loses `count` races, and the pauses that its clock is asked for."""
    clock = _Pauses()
    table = Table.open(make(options).store, name="t", environment=Environment(clock=clock))
    table.context = replace(table.context, snapshots=_Rival(table, clock, count))  # type: ignore[arg-type]
    return table, clock.pauses


@proves("commit.max-retries", "commit.timeout")
def _(name: str) -> None:
    table, _ = _losing({name: "2" if name.endswith("retries") else "1 s"}, 20)
    with pytest.raises(Conflict, match=name):
        table.write(rows(1))


@proves("commit.min-retry-wait", "commit.max-retry-wait")
def _(name: str) -> None:
    table, pauses = _losing({"commit.min-retry-wait": "1 h", "commit.max-retry-wait": "2 h"}, 4)
    table.write(rows(1))
    table, shorter = _losing({"commit.max-retry-wait": "1 ms"}, 4)
    table.write(rows(1))
    assert max(pauses) > 60
    assert max(shorter) <= 0.001


@proves("commit.user-prefix")
def _(name: str) -> None:
    table = make({name: "nightly"})
    table.write(rows(1))
    head = table.latest()
    assert head is not None
    assert head.commit_user.startswith("nightly_")


# ---- versions


@proves("snapshot.num-retained.min", "snapshot.num-retained.max", "snapshot.time-retained", "snapshot.expire.limit")
def _(name: str) -> None:
    base = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    value = {
        "snapshot.num-retained.min": ("1", "6", 2, 6),
        "snapshot.num-retained.max": ("3", "5", 3, 5),
        "snapshot.time-retained": ("1 ms", "9 d", 1, 8),
        "snapshot.expire.limit": ("2", "4", 6, 4),
    }[name]
    if name == "snapshot.time-retained":
        base.pop("snapshot.num-retained.max")
    for text, left in zip(value[:2], value[2:], strict=True):
        clock = ManualClock()
        options = {**base, name: text}
        if name == "snapshot.num-retained.min":
            options["snapshot.num-retained.max"] = str(max(2, int(text)))
        table = make(options)
        table = Table.open(table.store, name="t", environment=Environment(clock=clock))
        for number in range(8):
            table.write(rows(1, start=number))
            clock.sleep(60.0)
        table.expire()
        assert len(table.context.snapshots.ids()) == left, (text, table.context.snapshots.ids())


@proves("tag.default-time-retained")
def _(name: str) -> None:
    table = make({name: "3 d"})
    table.write(rows(1))
    assert table.create_tag("a").lifetime_ms == 3 * 86_400_000


@proves("tag.time-expire-enabled")
def _(name: str) -> None:
    for text, left in (("true", []), ("false", ["a"])):
        clock = ManualClock()
        table = Table.open(make({name: text}).store, name="t", environment=Environment(clock=clock))
        table.write(rows(1))
        table.create_tag("a", lifetime_ms=1000)
        clock.sleep(10.0)
        table.expire_tags()
        assert [tag.name for tag in table.tags()] == left


@proves(
    *("tag.automatic-creation", "tag.creation-period", "tag.creation-period-duration", "tag.creation-delay"),
    *("tag.create-time", "tag.create-interval", "tag.automatic-completion", "tag.num-retained-max"),
)
def _(name: str) -> None:
    value = {"tag.automatic-creation": "watermark", "tag.creation-period": "hourly", "tag.create-time": "06:30"}
    value |= {"tag.creation-period-duration": "2 h", "tag.creation-delay": "1 h", "tag.create-interval": "2 d"}
    value |= {"tag.automatic-completion": "true", "tag.num-retained-max": "3"}
    default = AutomaticTagging.of({})
    assert AutomaticTagging.of(make({name: value[name]}).schema.options) != default
    if name in ("tag.create-time", "tag.creation-period", "tag.creation-period-duration", "tag.num-retained-max"):
        with pytest.raises(InvalidRequest, match=name):
            make({name: "25:00"})


# ---- reading and compaction


@proves("source.split.target-size", "source.split.open-file-cost")
def _(name: str) -> None:
    counts = []
    for options in ({}, {name: "1 kb" if name.endswith("target-size") else "100 mb"}):
        table = make(options)
        for number in range(6):
            table.write(rows(20, start=number))
        counts.append(len(table.scan().splits()))
    assert counts[0] < counts[1]


@proves("compaction.min.file-num", "compaction.max.file-num")
def _(name: str) -> None:
    counts = []
    for options in ({"compaction.min.file-num": "3"}, {"compaction.min.file-num": "3", name: "4"}):
        table = make(options)
        for number in range(3 if "min" in name else 8):
            table.write(rows(1, start=number))
        table.compact()
        counts.append(len(files(table)))
    assert counts[0] < counts[1]


@proves(
    "num-sorted-run.compaction-trigger",
    "compaction.max-size-amplification-percent",
    "compaction.size-ratio",
    "num-levels",
)
def _(name: str) -> None:
    value = {"num-sorted-run.compaction-trigger": "3", "num-levels": "9", "compaction.size-ratio": "100000"}
    value |= {"compaction.max-size-amplification-percent": "1"}
    result = []
    fixed = {"compaction.max-size-amplification-percent": "1000000"} if name == "compaction.size-ratio" else {}
    for options in (fixed, {**fixed, name: value[name]}):
        table = make(options, keyed=True)
        table.upsert(rows(3000))
        table.compact(full=True)
        for number in range(3 if name.startswith("num-sorted") else 5):
            table.upsert(rows(1 + number, start=number))
        table.compact()
        result.append(sorted((file["level"], file["record_count"]) for file in files(table)))
    assert result[0] != result[1], result
