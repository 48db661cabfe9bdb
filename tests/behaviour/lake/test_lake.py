"""A lake over every kind of store: opening, naming, dropping, cleaning, and what may not happen."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import lakebed
from lakebed import kv, repo
from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound, UnsupportedFormat
from lakebed.lake.lake import Lake
from lakebed.lake.marker import MARKER_PATH
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.options import RepositoryOptions
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.testing.faulty import Crashed, Fault, FaultyStore
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def rows(*keys: int) -> pa.Table:
    """Some rows."""
    return pa.table({"id": pa.array(keys, pa.int64()), "name": [f"n{key}" for key in keys]})


def memory() -> ObjectStore:
    """A fresh store."""
    return open_store(f"memory://{uuid.uuid4().hex}")


def paths(store: ObjectStore) -> list[str]:
    """Every object."""
    return [meta.path for meta in store.list("")]


def test_a_lake_holds_tables(opened: Callable[..., Any]) -> None:
    """On every kind of store: made, found again, listed, written, dropped."""
    lake = Lake.open(opened())
    lake.create_table("flights", SCHEMA, primary_keys=["id"]).upsert(rows(1, 2))
    lake.create_table("db.events", SCHEMA)
    again = Lake.open(opened(), create=False)
    assert again.tables() == ["db.events", "flights"]
    assert again.table("flights").read().num_rows == 2
    assert [(store.name, store.row_count) for store in again.ls()] == [("db.events", 0), ("flights", 2)]
    assert [version.id for version in again.history("flights")] == ["1"]
    assert not again.drop_table("flights").warnings
    assert again.tables() == ["db.events"]
    assert not [path for path in paths(opened()) if "flights" in path]


def test_no_lake_is_made_in_the_folder_of_a_table(tmp_path: Path) -> None:
    """There a collection and a drop of the table would delete what the lake has; what is there already is opened."""
    above = tmp_path / "x.db" / "a %20 folder"  # no table, though it is where one could be
    outer = lakebed.open(above / "outer")
    table = outer.create_table("flights", SCHEMA)
    table.append(rows(1))
    for place in ("inner", "bucket-0/inner"):
        inside = Path(table.url.removeprefix("file://"), place)
        Lake.open(open_store(inside)).create_table("kept", SCHEMA).append(rows(2))
        outer.collect(grace_ms=0)
        assert lakebed.open(inside, create=False).table("kept").read().num_rows == 1
        with pytest.raises(
            InvalidRequest, match=r"is inside the folder of the table .*/flights, whose collections"
        ) as refused:
            lakebed.open(f"{inside}-2")
        assert refused.value.kind == "not_a_lake"
        assert not Path(f"{inside}-2").exists()
    assert lakebed.open(above / "outer" / "inner").tables() == []


def test_opening_costs_one_request() -> None:
    """A lake with its marker is opened by one GET."""
    store = memory()
    Lake.open(store)
    with store.count() as requests:
        Lake.open(store, create=False)
    assert (requests.get, requests.total) == (1, 1)


def test_nothing_is_made_unless_asked() -> None:
    """create=False neither finds nor makes a lake in an empty place."""
    store = memory()
    with pytest.raises(NotFound) as missing:
        Lake.open(store, create=False)
    assert missing.value.kind == "lake_not_found"
    assert paths(store) == []


def test_a_folder_with_other_things_is_no_lake() -> None:
    """Foreign files are never taken for a lake, nor is a table; nothing is written among them."""
    store = memory()
    store.put("notes.txt", b"mine")
    with pytest.raises(InvalidRequest, match=r"notes\.txt"):
        Lake.open(store)
    assert paths(store) == ["notes.txt"]
    lake = Lake.open(memory())
    lake.create_table("t", SCHEMA).append(rows(1))
    with pytest.raises(InvalidRequest, match="is a table"):
        Lake.open(lake.store.sub("default.db/t"))


def test_a_warehouse_of_another_client_is_opened_as_it_is() -> None:
    """Without a marker the folders decide; the first table made by lakebed adds the marker."""
    store = memory()
    made = Lake.open(store)
    made.create_table("t", SCHEMA)
    store.delete(["lakebed.json"])
    lake = Lake.open(store, create=False)
    assert lake.tables() == ["t"]
    assert "lakebed.json" not in paths(store)
    lake.create_table("u", SCHEMA)
    assert "lakebed.json" in paths(store)


class ForgetfulStore(StoreWrapper):
    """Ignores the condition of create-only puts, as some servers do."""

    def put(self, path: str, body: Any, *, create_only: bool = False, durable: bool = True) -> None:
        """Overwrite the object, or create it."""
        super().put(path, body, durable=durable)

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Pass everything on."""
        return perform()


def test_a_store_that_ignores_create_only_is_refused() -> None:
    """No lake is made where two writers could destroy each other's commits."""
    inner = memory()
    with pytest.raises(InvalidRequest) as refused:
        Lake.open(ForgetfulStore(inner))
    assert refused.value.kind == "create_only_ignored"
    assert paths(inner) == []


def test_a_newer_lake_is_refused() -> None:
    """A lake that needs a newer lakebed is neither read nor written."""
    store = memory()
    store.put("lakebed.json", b'{"format": 9, "min_reader": 9, "min_writer": 9, "features": []}')
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        Lake.open(store)


class ReadOnlyStore(StoreWrapper):
    """Refuses every change, as a folder without permission does."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Let only reads pass."""
        if call.changes:
            raise InvalidRequest(f"{call.path} may not be written", kind="read_only", path=call.path)
        return perform()


def test_a_read_only_folder() -> None:
    """A lake that may only be read is read; none is made where nothing may be written."""
    store = memory()
    Lake.open(store).create_table("t", SCHEMA).append(rows(1))
    lake = Lake.open(ReadOnlyStore(store))
    assert lake.table("t").read().num_rows == 1
    assert lake.collect(dry_run=True)
    with pytest.raises(InvalidRequest, match="may not be written"):
        lake.create_table("u", SCHEMA)
    empty = memory()
    with pytest.raises(InvalidRequest, match="may not be written"):
        Lake.open(ReadOnlyStore(empty))
    assert paths(empty) == []


def test_a_path_below_a_file(tmp_path: Path) -> None:
    """A URL where no folder can be is one clear error."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(lakebed.LakebedError):
        lakebed.open(str(tmp_path / "file" / "lake"))


def test_a_missing_table_names_the_nearest() -> None:
    """The sentence says what is there."""
    lake = Lake.open(memory())
    with pytest.raises(NotFound, match="no table yet"):
        lake.table("flights")
    lake.create_table("flights", SCHEMA)
    with pytest.raises(NotFound, match="Did you mean flights"):
        lake.table("flihgts")
    with pytest.raises(NotFound, match="It has flights"):
        lake.table("zzz")
    with pytest.raises(NotFound, match="branch"):
        lake.table("flights", branch="nope")


def test_creating_twice() -> None:
    """A second table of the same name is refused, or opened when asked."""
    lake = Lake.open(memory())
    lake.create_table("t", SCHEMA).append(rows(1))
    with pytest.raises(AlreadyExists):
        lake.create_table("t", SCHEMA)
    assert lake.create_table("t", SCHEMA, if_not_exists=True).read().num_rows == 1


def test_pinned_tables_are_not_dropped() -> None:
    """Tags and branches hold a table; force drops it all the same."""
    lake = Lake.open(memory())
    table = lake.create_table("t", SCHEMA)
    table.append(rows(1))
    table.create_tag("jan")
    before = paths(lake.store)
    with pytest.raises(InvalidRequest, match="tag jan"):
        lake.drop_table("t")
    report = lake.drop_table("t", force=True, dry_run=True)
    assert report.dry_run
    assert [path for path in paths(lake.store) if "tag-index" not in path] == [
        path for path in before if "tag-index" not in path
    ]
    assert lake.drop_table("t", force=True).deleted_count > 0
    assert paths(lake.store) == ["lakebed.json"]


def test_a_table_with_a_store_in_its_folder_is_not_dropped(tmp_path: Path) -> None:
    """A database, a repository or a lake that someone put there would go with it; folders of its own are none."""
    lake = Lake.open(open_store(tmp_path))
    table = lake.create_table("flights", SCHEMA.append(pa.field("day", pa.string())), partition_keys="day")
    table.append(rows(1).append_column("day", pa.array(["x.kv"])))
    folder = Path(table.url.removeprefix("file://"))
    Lake.open(open_store(folder / "old.lake"))
    Lake.open(open_store(folder / "moved")).create_table("kept", SCHEMA)
    (folder / "moved" / MARKER_PATH).unlink()  # as lakes were before they had one
    with kv.open(folder / "serving") as database:
        database.put(b"key", b"value")
    repo.open(folder / "files.repo").close()
    inside = ("_repositories", "files.repo", "moved", "old.lake", "serving")
    for dry_run in (False, True):
        with pytest.raises(InvalidRequest, match="the store serving in its folder") as refused:
            lake.drop_table("flights", dry_run=dry_run)
        assert [name for name in inside if f"the store {name} in" not in str(refused.value)] == []
    with kv.open(folder / "serving") as database:
        assert database.get(b"key") == b"value"
    for name in inside:
        shutil.rmtree(folder / name)
    lake.drop_table("flights")
    assert not lake.has_table("flights")


@pytest.mark.parametrize("mark", [b'{"external":{},"kept":["snapshot/snapshot-1"]}', b'{"external":'])
def test_a_drop_that_cannot_be_read_is_not_finished(mark: bytes) -> None:
    """A newer lakebed may have begun it to keep something: neither a drop nor a cleaning goes on with it."""
    lake = Lake.open(memory())
    lake.create_table("t", SCHEMA).append(rows(1, 2))
    lake.store.put("default.db/t/lakebed/dropped", mark)
    hidden = [path for path in paths(lake.store) if "/schema/" in path]
    for has_schema in (True, False):
        if not has_schema:
            lake.store.delete(hidden)
        before = paths(lake.store)
        with pytest.raises(LakebedError, match=r"upgrade lakebed|is damaged"):
            lake.drop_table("t", force=True)
        reports = lake.collect(grace_ms=0)
        assert paths(lake.store) == before
    assert any("lakebed/dropped" in (report.problem or "") for report in reports)


def test_a_drop_that_crashed_is_finished_by_cleaning() -> None:
    """Crashed at any store call: the table is whole, or invisible and finished by the next cleaning or drop."""
    visited = 0
    for index in range(100):
        inner = memory()
        lake = Lake.open(inner)
        lake.create_table("t", SCHEMA).append(rows(1, 2))
        store = FaultyStore(inner, faults={index: Fault.CRASH_BEFORE})
        try:
            Lake(store, environment=lake.environment).drop_table("t")
        except Crashed:
            visited += 1
        else:
            assert visited == store.call_count
            return
        if lake.has_table("t"):
            assert lake.table("t").read().num_rows == 2
        else:
            if lake.list_dropped():
                with pytest.raises(AlreadyExists):
                    lake.create_table("t", SCHEMA)
                assert "collection" in lake.why("default.db/t/lakebed/dropped").sentence
            lake.collect()
            assert paths(inner) == ["lakebed.json"]
            lake.create_table("t", SCHEMA)
    raise AssertionError("the drop never came to its end")


def test_a_failed_batch_keeps_the_mark() -> None:
    """A drop whose deletes fail says so and can be repeated."""
    inner = memory()
    lake = Lake.open(inner)
    lake.create_table("t", SCHEMA).append(rows(1))

    def refuse(_: int, call: Call) -> Fault | None:
        return Fault.ERROR_BEFORE if call.kind == "delete" and "schema" not in call.path else None

    report = Lake(FaultyStore(inner, faults=refuse), environment=lake.environment).drop_table("t")
    assert report.warnings
    assert lake.list_dropped() == ["t"]
    lake.drop_table("t")
    assert paths(inner) == ["lakebed.json"]


def test_why_looks_through_the_whole_lake() -> None:
    """By path and by URL; the marker, foreign objects and other lakes are distinguished."""
    lake = Lake.open(memory())
    table = lake.create_table("t", SCHEMA)
    table.append(rows(1))
    path = next(path for path in paths(lake.store) if path.endswith(".parquet"))
    assert lake.why(path).pins or "needed" in lake.why(path).sentence
    assert lake.why(f"{lake.url}/{path}") == lake.why(path)
    assert "marker" in lake.why("lakebed.json").sentence
    lake.store.put("stranger/x", b"")
    assert "No store of the lake" in lake.why("stranger/x").sentence
    with pytest.raises(NotFound, match=r"There is no object stranger/y .* Did you mean stranger/x\?"):
        lake.why("stranger/y")
    with pytest.raises(InvalidRequest, match="is not in the lake"):
        lake.why("s3://elsewhere/x")


def test_pins_tell_what_each_holds_alone() -> None:
    """A tag holds nothing alone while its snapshot lives; afterwards it holds what was replaced."""
    lake = Lake.open(memory())
    table = lake.create_table("t", SCHEMA, primary_keys=["id"], options={"bucket": "1"})
    table.upsert(rows(1, 2))
    table.create_tag("jan")
    assert [(pin.name, pin.bytes_alone) for pin in lake.pins()] == [("jan", 0)]
    table.upsert(rows(2, 3))
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    (pin,) = lake.pins("t")
    sizes = {meta.path: meta.size_bytes for meta in table.store.list("")}
    report = table.delete_tag("jan")
    assert pin.bytes_alone is not None
    assert pin.bytes_alone > 0
    assert report.plan is not None
    gone = {doomed.path for doomed in report.plan.doomed}
    assert pin.bytes_alone <= sum(sizes[path] for path in gone)


def test_a_dry_collection_says_all_that_the_collection_deletes() -> None:
    """Also files that only a tag past its lifetime keeps from the expiry that follows."""
    lake = Lake.open(memory())
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    table = lake.create_table("t", SCHEMA, primary_keys="id", options=options)
    for key in range(3):
        table.upsert(rows(key))
        table.compact(full=True)
        table.create_tag(f"tag{key}", lifetime_ms=0 if key else None)
    table.compact(full=True)
    table.upsert(rows(3))
    planned = table.plan_collection()
    dry = lake.collect(dry_run=True)
    before = set(paths(lake.store))
    real = lake.collect()
    gone = {path.removeprefix("default.db/t/") for path in before - set(paths(lake.store))}
    said = [set(report.plan.hide) | {doomed.path for doomed in report.plan.doomed} for report in dry if report.plan]
    assert {path for paths_of_report in said for path in paths_of_report} == gone
    assert {*planned.hide, *(doomed.path for doomed in planned.doomed)} == gone
    assert [report.deleted_count for report in dry] == [report.deleted_count for report in real]
    assert any("parquet" in path for path in gone)
    assert table.read(version="tag0").num_rows == 1


def test_cleaning_keeps_what_is_pinned() -> None:
    """Cleaning goes by each table's own options, and a tag stays readable."""
    lake = Lake.open(memory())
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    table = lake.create_table("t", SCHEMA, options=options)
    for key in range(3):
        table.append(rows(key))
        if key == 0:
            table.create_tag("first")
    foretold = lake.collect(dry_run=True)
    assert [snapshot.id for snapshot in table.snapshots()] == [1, 2, 3]
    reports = lake.collect()
    assert len(foretold) == len(reports)
    assert [snapshot.id for snapshot in table.snapshots()] == [3]
    assert table.read(version="first").num_rows == 1


@cache
def two_of_each() -> dict[str, bytes]:
    """The objects of a lake with two tables and two repositories, whose cleaning has something to do in each."""
    lake = Lake.open(memory())
    for name in ("a", "b"):
        lake.create_table(name, SCHEMA).append(rows(1))
    with lake.open_repositories(options=RepositoryOptions(background=False)) as repositories:
        for name in ("one", "two"):
            branch = repositories.create(name).branch("main")
            branch.put("path", b"content")
            branch.commit("a commit")
    return {path: bytes(lake.store.get(path)) for path in paths(lake.store)}


@pytest.mark.parametrize("is_gone", [False, True], ids=["rubbish", "gone"])
def test_no_damage_stops_the_cleaning_of_others(is_gone: bool) -> None:
    """With any object damaged: the cleaning ends, nothing live goes, and a sound table is cleaned."""
    folders = ("default.db/a/", "one.repo/", "_repositories/")
    orphan = "default.db/b/bucket-0/data-orphan.parquet"
    warned = 0
    for path in sorted(path for path in two_of_each() if path.startswith(folders)):
        if is_gone and "/snapshot/snapshot-" in path:
            continue  # to the format, a snapshot that was rolled back: its files are orphans
        lake = Lake.open(memory())
        for other, body in two_of_each().items():
            if other != path:
                lake.store.put(other, body)
        lake.store.put(orphan, b"an orphan")
        if not is_gone:
            lake.store.put(path, b"rubbish")
        before = {path for path in paths(lake.store) if "/wal/" not in path and "/manifest/" not in path}
        PROCESS_CACHE.clear()
        reports = lake.collect(grace_ms=0)
        assert before - set(paths(lake.store)) <= {orphan}, path
        assert orphan not in paths(lake.store), path
        warned += any(report.problem for report in reports)
    assert warned


def test_a_damaged_database_does_not_stop_the_cleaning_of_others() -> None:
    """Its report says why it was not collected; the databases and tables of the lake are cleaned all the same."""
    lake = Lake.open(memory())
    for name in ("damaged", "sound"):
        with kv.open(f"{lake.url}/{name}.kv", options=kv.DatabaseOptions(background=False)) as database:
            database.put(b"k", b"v")
    newest = max(meta.path for meta in lake.store.list("damaged.kv/manifest"))
    lake.store.put(newest, b"rubbish")
    lake.create_table("t", SCHEMA).append(rows(1))
    reports = {report.store: report for report in lake.collect()}
    assert {"damaged.kv", "sound.kv", "t"} <= reports.keys()
    assert reports["damaged.kv"].problem_kind == "corruption"
    assert reports["sound.kv"].warnings == ()
