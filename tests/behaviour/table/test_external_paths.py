"""Tables whose data files lie outside their folder: written, read, compacted, cleaned and dropped; other files stay."""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import lakebed
import lakebed.repo
from lakebed.errors import Corruption, InvalidRequest, LakebedError, UnsupportedFormat
from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.candidates import candidates_of
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.branch.unfinished import Deletion, decode_deletion, encode_deletion
from lakebed.table.codec.manifest import files_of
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Call, Crashed, Fault, FaultyStore
from worlds.table.world import inline_environment

EVER_MS = 2**60
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.string(), nullable=False), ("v", pa.int64())]
)
STRATEGIES = ("round-robin", "weight-robin", "entropy-inject", "specific-fs")
STRAYS = (
    "one/p=x/bucket-0/data-2b3c0c1e-5d0e-4d3c-9d0a-000000000000-0.parquet",
    "one/p=x/bucket-0/0101/0101/0101/01010101/data-2b3c0c1e-5d0e-4d3c-9d0a-000000000000-1.parquet",
    "one/p=x/bucket-0/_SUCCESS",
    "one/p=other/bucket-7/data-x-0.parquet",
    "one/other.db/t/snapshot/snapshot-1",
    "two/readme",
)
"""What other tables and other programs have below the same roots."""


def environment(seed: object) -> Environment:
    """Names by a seed, a clock that is set, and pools that run in their caller."""
    return inline_environment(str(seed))


@dataclass
class World:
    """A lake in memory, and a separate bucket with two external roots."""

    name: str
    store: ObjectStore
    outside: ObjectStore
    environment: Environment

    @property
    def lake(self) -> Lake:
        """The lake, opened anew."""
        return Lake.open(self.store, environment=self.environment)

    def options(self, strategy: str, *roots: str) -> dict[str, str]:
        """The options of a table with external paths."""
        choice = roots or ("one", "two")
        options = {
            "data-file.external-paths": ", ".join(f"memory://{self.name}-outside/{root}//" for root in choice),
            "data-file.external-paths.strategy": strategy,
        }
        if strategy == "specific-fs":
            options["data-file.external-paths.specific-fs"] = "MEMORY"
        if strategy == "weight-robin":
            options["data-file.external-paths.weights"] = "1, 3"
        return options

    def make(self, name: str = "t", strategy: str = "round-robin") -> Table:
        """A table of two buckets, partitioned by `p`."""
        options = {"bucket": "2", **self.options(strategy)}
        return self.lake.create_table(name, SCHEMA, primary_keys=["id", "p"], partition_keys=["p"], options=options)

    def urls(self) -> set[str]:
        """Everything outside, by URL."""
        return {f"memory://{self.name}-outside/{meta.path}" for meta in self.outside.list("")}


@pytest.fixture
def world() -> Iterator[World]:
    """A new world."""
    return new_world()


def new_world(seed: object = 7) -> World:
    """A lake and its bucket."""
    name, made = uuid.uuid4().hex, environment(seed)
    store, outside = (open_store(f"memory://{name}{end}", environment=made) for end in ("", "-outside"))
    return World(name, store, outside, made)


def rows(value: int, count: int = 8) -> pa.Table:
    """Rows of two partitions, one of which needs escapes."""
    return pa.table(
        {"id": range(count), "p": [["x", "a/b=c"][i % 2] for i in range(count)], "v": [value] * count}, schema=SCHEMA
    )


def values(table: Table) -> dict[int, int]:
    """The rows by key."""
    rows = table.read()
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def live(table: Table) -> set[str]:
    """Live data files, as the entries name them."""
    return set(table.system("files")["file_path"].to_pylist())


def inside(table: Table) -> list[str]:
    """Data files in the table's own folder."""
    return [meta.path for meta in table.store.list("") if meta.path.endswith(".parquet")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_files_are_written_outside_and_go_with_their_versions(world: World, strategy: str) -> None:
    """Every verb works; after expiry and cleaning exactly the live files are left, and what is of others."""
    table = world.make(strategy=strategy)
    strays = {f"memory://{world.name}-outside/{path}" for path in STRAYS}
    for path in STRAYS:
        world.outside.put(path, b"x")
    for value in range(6):
        world.environment.clock.advance(1)
        table.upsert(rows(value))
    assert not inside(table)
    roots = {url.removeprefix(f"memory://{world.name}-outside/").split("/")[0] for url in live(table)}
    assert roots == {"one", "two"}
    table.create_tag("kept")
    table.compact(full=True)
    table.delete("id = 3")
    table.overwrite(rows(9, 4))
    expected = dict.fromkeys(range(4), 9)
    assert values(table) == expected
    table.expire(retain_max=1, retain_min=1)
    assert values(table) == expected
    assert table.read(version="kept").num_rows == 8
    table.delete_tag("kept")
    report = table.collect(grace_ms=0)
    assert report.deleted_count == 0
    assert world.urls() == live(table) | strays
    report = check_lake(world.lake, deep=True)
    assert {(finding.severity, finding.kind) for finding in report.findings} == {("info", "not_ours")}
    assert values(table) == expected
    assert [pin.kind for pin in table.why(min(live(table))).pins] == ["snapshot"]


def test_orphans_of_this_table_alone_are_deleted(world: World) -> None:
    """Two tables of one root: neither's cleaning deletes files of the other, committed or not; its own orphans go."""
    item, two = world.make("one"), world.make("two")
    for table in (item, two):
        table.upsert(rows(1))
        writer = new_writer(table.context.look())
        writer.write(rows(2))
        writer.finish()  # and its process dies here
    before = world.urls()
    assert len(before) == 16
    assert item.collect(grace_ms=60_000).deleted_count == 0
    assert item.collect(grace_ms=0).deleted_count == 4
    assert len(world.urls()) == 12
    assert live(item) | live(two) <= world.urls()
    assert two.collect(grace_ms=0).deleted_count == 4
    assert world.urls() == live(item) | live(two)
    assert values(item) == values(two) == dict.fromkeys(range(8), 1)


def test_a_table_under_the_name_of_another_leaves_its_files_alone(world: World) -> None:
    """A table is moved away and a new one made under its name and URL: cleaning the new one keeps the other's files."""
    old = world.make()
    old.upsert(rows(1))
    written = world.urls()
    for meta in list(old.store.list("")):
        world.store.copy(f"default.db/t/{meta.path}", f"default.db/moved/{meta.path}")
        old.store.delete([meta.path])
    PROCESS_CACHE.clear()
    world.environment.clock.advance(1)
    new = world.make()
    new.upsert(rows(2))
    assert new.collect(grace_ms=0).deleted_count == 0
    assert world.urls() == written | live(new)
    assert values(world.lake.table("moved")) == dict.fromkeys(range(8), 1)


def test_options_may_change(world: World) -> None:
    """A table whose strategy and roots change is read, compacted and cleaned, also below roots of older schemas."""
    table = world.lake.create_table("t", SCHEMA, primary_keys=["id", "p"], options={"bucket": "1"})
    table.upsert(rows(0))
    for value, options in enumerate(
        (
            world.options("round-robin", "one"),
            world.options("entropy-inject", "two"),
            {"data-file.external-paths.strategy": "none"},
            world.options("round-robin", "three"),
        ),
        start=1,
    ):
        table.set_options(options)
        table.upsert(rows(value))
    assert values(table) == dict.fromkeys(range(8), 4)
    assert len(inside(table)) == 2
    assert {inside_of(url).split("/")[0] for url in world.urls()} == {"one", "two", "three"}
    written = world.urls()
    for options in (world.options("round-robin", "one"), world.options("entropy-inject", "two")):
        table.set_options(options)
        writer = new_writer(table.context.look())
        writer.write(rows(9))
        writer.finish()
    orphans = world.urls() - written
    table.set_options({"data-file.external-paths.strategy": "none"})
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert world.urls() == orphans
    table.collect(grace_ms=0)
    assert world.urls() == set()
    assert values(table) == dict.fromkeys(range(8), 4)


@pytest.mark.parametrize(
    "change",
    ["other-root", "other-bucket", "other-folder", "below-the-bucket", "wrong-hash"],
)
def test_files_that_are_elsewhere_are_never_deleted(world: World, change: str) -> None:
    """An external file that is not exactly where the options put it outlives its versions, as a clone's files do."""
    table = world.make(strategy="entropy-inject" if change == "wrong-hash" else "round-robin")
    table.upsert(rows(1))
    head = table.latest()
    assert head is not None
    entries = table.context.manifests.live_entries(head).slice(0, 1)
    (file,), partition = files_of(entries), entries["partition"][0].as_py()
    bucket = entries["bucket"][0].as_py()
    assert file.external_path is not None
    url = elsewhere(file.external_path, file.file_name, change)
    world.outside.copy(inside_of(file.external_path), inside_of(url))
    moved = replace(file, external_path=url, file_name=url.rpartition("/")[2])
    commit_changes(
        table.context, [BucketChange(partition, bucket, 2, added=(moved,), deleted=(file,))], kind="OVERWRITE"
    )
    assert values(table) == dict.fromkeys(range(8), 1)
    table.overwrite(rows(2))
    table.expire(retain_max=1, retain_min=1)
    assert world.urls() - live(table) == {url}
    table.collect(grace_ms=0)
    assert world.urls() - live(table) == {url}


def inside_of(url: str) -> str:
    """The path of a URL in its bucket."""
    return url.split("/", 3)[3]


def elsewhere(url: str, name: str, change: str) -> str:
    """A place near a file's own that the table's options do not give it."""
    folder = url.removesuffix(f"/{name}")
    match change:
        case "other-root":
            return url.replace("/one/", "/three/").replace("/two/", "/three/")
        case "other-bucket":
            return f"{folder.rpartition('/')[0]}/bucket-7/{name}"
        case "below-the-bucket":
            return f"{folder}/0101/{name}"
        case "wrong-hash":
            flipped = "".join({"0": "1", "1": "0"}[bit] for bit in folder[-8:])
            return f"{folder[:-8]}{flipped}/{name}"
        case _:
            return f"{folder}x/{name}"


def test_cleaning_stops_when_an_external_file_is_missing(world: World) -> None:
    """A live file that is not at its URL stops the search for orphans; the check names it."""
    table = world.make()
    table.upsert(rows(1))
    gone = min(live(table))
    world.outside.delete([inside_of(gone)])
    writer = new_writer(table.context.look())
    writer.write(rows(2))
    writer.finish()
    before = world.urls()
    with pytest.raises(Corruption, match="1 live data files") as stopped:
        table.collect(grace_ms=0)
    assert stopped.value.kind == "live_files_missing"
    assert world.urls() == before
    report = check_lake(world.lake)
    assert [(finding.kind, finding.path) for finding in report.findings if finding.severity == "error"] == [
        ("missing", gone)
    ]


def test_dropping_deletes_the_table_s_own_files(world: World) -> None:
    """Dropping deletes what versions name and the table's own orphans, and nothing else below the roots."""
    kept, table = world.make("kept"), world.make("t")
    for item in (kept, table):
        item.upsert(rows(1))
    for path in STRAYS:
        world.outside.put(path, b"x")
    table.create_branch("b").upsert(rows(2))
    table.create_tag("old")
    table.upsert(rows(3))
    writer = new_writer(table.context.look())
    writer.write(rows(4))
    writer.finish()
    strays = {f"memory://{world.name}-outside/{path}" for path in STRAYS}
    planned = world.lake.drop_table("t", force=True, dry_run=True).plan
    assert planned is not None
    doomed = {target.path for target in planned.doomed if target.path.startswith("memory:")}
    assert doomed == world.urls() - strays - live(kept)
    assert world.lake.drop_table("t", force=True).warnings == ()
    assert world.urls() == strays | live(kept)
    assert not list(table.store.list(""))


def test_another_bucket_is_reached_with_the_options_of_the_lake(s3_server: Any) -> None:
    """A table on S3 with a root in another bucket: written, read by a pickled table, expired, cleaned."""
    name = f"external-{uuid.uuid4().hex[:12]}"
    buckets = [f"{name}-{number}" for number in range(2)]
    for bucket in buckets:
        s3_server.make_place(bucket)
    options = s3_server.options
    lake = lakebed.open(f"s3://{buckets[0]}/lake", storage_options=options)
    outside = {
        "data-file.external-paths": f"s3://{buckets[1]}/a",
        "data-file.external-paths.strategy": "entropy-inject",
    }
    table = lake.create_table("t", SCHEMA, primary_keys=["id", "p"], options={"bucket": "1", **outside})
    for value in range(2):
        table.upsert(rows(value))
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert table.collect(grace_ms=0).deleted_count == 0
    assert values(pickle.loads(pickle.dumps(table))) == dict.fromkeys(range(8), 1)
    place = open_store(f"s3://{buckets[1]}", storage_options=options)
    assert {f"s3://{buckets[1]}/{meta.path}" for meta in place.list("")} == live(table)
    lake.drop_table("t")
    assert not list(place.list(""))


def test_in_a_branch_of_a_repository_nothing_outside_changes() -> None:
    """A repository keeps no versions of files outside: a table with external paths is not written, and none deleted."""
    world, other = prepared()
    (url,) = live(other)
    head = other.latest()
    assert head is not None
    entries = other.context.manifests.live_entries(head)
    (file,), partition = files_of(entries), entries["partition"][0].as_py()
    with lakebed.repo.open(f"memory://{world.name}/files.repo") as repo:
        table = Table.create(
            repo.branch().store("t"),
            name="t",
            schema=SCHEMA,
            primary_keys=["id", "p"],
            options=dict(other.schema.options),
            environment=world.environment,
        )
        with pytest.raises(InvalidRequest, match=r"external-paths\.strategy.*branch of a repository"):
            table.upsert(rows(1))
        table.set_options({"data-file.external-paths.strategy": "none"})
        commit_changes(table.context, [BucketChange(partition, 0, 1, added=(file,))])
        assert values(table) == dict.fromkeys(range(3), 1)
        table.overwrite(rows(2, 3))
        table.expire(retain_max=1, retain_min=1)
        table.collect(grace_ms=0)
        assert values(table) == dict.fromkeys(range(3), 2)
    assert world.urls() == {url}


def test_a_dropped_table_s_files_go_after_a_crash() -> None:
    """A drop is struck at every call: the table is whole, or dropping again deletes all of its files outside."""
    for index in range(100):
        world, table = prepared()
        world.outside.put(STRAYS[0], b"x")
        faulty = FaultyStore(world.store, faults={index: Fault.CRASH_BEFORE})
        with suppress(Crashed):
            Lake(faulty, environment=world.environment).drop_table("t")
        if world.lake.has_table("t"):
            assert live(world.lake.table("t")) <= world.urls()
            world.lake.drop_table("t")
        world.lake.collect()
        assert world.urls() == {f"memory://{world.name}-outside/{STRAYS[0]}"}
        assert not list(table.store.list(""))
        if not faulty.met:
            return
    raise AssertionError("the drop never came to its end")


def test_a_root_in_the_folder_of_another_table_is_safe(world: World) -> None:
    """One table's root is the other's folder: cleaning the other keeps its files, cleaning itself takes its orphans."""
    host = world.lake.create_table("host", SCHEMA, primary_keys=["id", "p"], options={"bucket": "1"})
    root = {"data-file.external-paths": f"memory://{world.name}/default.db/host"}
    guest = world.lake.create_table(
        "guest",
        SCHEMA,
        primary_keys=["id", "p"],
        options={"bucket": "1", **world.options("round-robin"), **root},
    )
    for table in (host, guest):
        table.upsert(rows(1))
        writer = new_writer(table.context.look())
        writer.write(rows(2))
        writer.finish()
    assert len(inside(host)) == 4
    assert host.collect(grace_ms=0).deleted_count == 1
    assert values(guest) == values(host) == dict.fromkeys(range(8), 1)
    assert guest.collect(grace_ms=0).deleted_count == 1
    assert len(inside(host)) == 2
    assert values(guest) == values(host) == dict.fromkeys(range(8), 1)


def test_an_older_lakebed_leaves_a_deletion_of_files_outside_alone() -> None:
    """An unfinished deletion with URLs says so as a feature, which versions that do not know it refuse."""
    for path, features in (("bucket-0/data-1.parquet", []), ("s3://b/bucket-0/data-1.parquet", ["outside"])):
        candidates = candidates_of("data", [path], born=1, dead=2)
        body = encode_deletion(Deletion(kind="expire", id="x", walk_end=2, candidates=candidates))
        assert msgspec.json.decode(body)["features"] == features
        assert decode_deletion(body, path="p").candidates["path"].to_pylist() == [path]
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode_deletion(body.replace(b'["outside"]', b'["another"]'), path="p")


# ---- faults


def program(store: ObjectStore) -> None:
    """A write, a compaction and an expiry by one process."""
    made = environment("the one that fails")
    made.clock.advance(10)
    table = Table.open(store, name="t", environment=made)
    table.upsert(rows(2, 3))
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)


def prepared() -> tuple[World, Table]:
    """A table with one version."""
    world = new_world()
    options = {"bucket": "1", **world.options("entropy-inject", "one")}
    table = world.lake.create_table("t", SCHEMA, primary_keys=["id", "p"], options=options)
    table.upsert(rows(1, 3))
    return world, table


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.LOST_REPLY])
def test_a_fault_at_any_call_loses_no_row_and_leaves_no_file(fault: Fault) -> None:
    """Struck at every change of a write, a compaction and an expiry: no row and no file is lost or leaked.

    Lost replies of changes inside the table's folder are the matter of test_crash_points.py.
    """
    struck: set[str] = set()
    for index in range(100):
        world, table = prepared()
        changes = itertools.count()

        def decide(_: int, call: Call, strike: int = index, changes: Iterator[int] = changes) -> Fault | None:
            is_struck = call.changes and (fault is Fault.CRASH_BEFORE or "-outside" in call.path)
            return fault if is_struck and next(changes) == strike else None

        faulty = FaultyStore(table.store, faults=decide)
        PROCESS_CACHE.clear()
        with suppress(Crashed, LakebedError):
            program(faulty)
        if not faulty.met:
            break
        struck |= {f"{call.kind} {'outside' if '-outside' in call.path else 'inside'}" for _, call, _ in faulty.met}
        check_recovered(world, f"{fault.name} at call {index}: {faulty.met}")
    else:
        raise AssertionError("the program never came to its end")
    assert {"put outside", "delete outside"} <= struck


def check_recovered(world: World, where: str) -> None:
    """Another process goes on: rows of one version, all files there, and after cleaning no others."""
    PROCESS_CACHE.clear()
    table = world.lake.table("t")
    assert values(table) in (dict.fromkeys(range(3), 1), dict.fromkeys(range(3), 2)), where
    assert live(table) <= world.urls(), where
    table.upsert(rows(5, 3))  # expiry keeps what the hint names, which a crashed commit has not written
    assert not table.expire(retain_max=1, retain_min=1).warnings, where
    table.collect(grace_ms=0)
    assert world.urls() == live(table), where
    assert values(table) == dict.fromkeys(range(3), 5), where
