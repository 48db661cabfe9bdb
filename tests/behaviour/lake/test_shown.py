"""What objects say of themselves at a prompt and in a notebook, and which of them travel to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidRequest
from lakebed.fsck.check import check_url
from lakebed.fsck.model import CheckReport, Finding
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable, Version
from lakebed.texts import utc
from worlds.scripts import run_script

EVIL = "<script>alert('1')</script>&\"x\""
REPR_CHARACTERS_MAX = 250


class Cells(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def lake(tmp_path: Path) -> lakebed.Lake:
    """A lake with one table of two versions and a tag."""
    lake = lakebed.open(str(tmp_path / "lake"))
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field(EVIL, pa.string())]
    table = lake.create_table("db.t", pa.schema(fields), primary_keys=["id"])
    table.upsert(pa.table({"id": [1, 2], EVIL: [EVIL, "b"]}))
    table.create_tag("first")
    table.upsert(pa.table({"id": [2, 3], EVIL: ["changed", "new"]}))
    return lake


def test_objects_show_what_they_are(lake: lakebed.Lake) -> None:
    """A repr is one short line with the name and the numbers that matter, and no address in memory."""
    table = lake.table("db.t")
    trial = table.create_branch("trial")
    difference = table.diff("first", 2)
    newest = table.latest()
    assert newest is not None
    assert repr(lake) == f"Lake({lake.url!r})"
    assert repr(table) == f"Table('db.t', url={table.url!r})"
    assert repr(trial) == f"Table('db.t', url={table.url!r}, branch='trial')"
    assert repr(newest) == f"Snapshot(2, APPEND, stored=4, change=+2, {utc(newest.time_ms)!r})"
    assert repr(table.tag("first")) == "Tag('first', snapshot=1, stored=2)"
    assert repr(difference) == "TableDiff(added=1, removed=0, changed=1, keys=('id',))"
    assert repr(table.at("first")) == f"TableView({table!r}, version='tag.first')"
    assert repr(table.expire(dry_run=True)) == "CollectionReport('db.t', versions=0, files=0, bytes=0, dry_run=True)"
    with lakebed.repo.open(f"{lake.url}/files.repo") as repository, lakebed.kv.open(f"{lake.url}/d.kv") as database:
        repository.branch("main").put("a", b"1")
        made = repository.branch("main").commit("why", committer="ann")
        (change,) = repository.diff("main~1", "main")
        every: list[Any] = [lake, table, newest, difference, table.scan(), table.compact(full=True), repository]
        every += [database, made, change, table.at(1), check_url(lake.url, store="db.t"), table.plan_collection()]
        for item in every:
            text = repr(item)
            assert len(text) <= REPR_CHARACTERS_MAX, text
            assert " object at 0x" not in text
            assert "\n" not in text
        assert repr(made).startswith(f"Commit('{made.id[:12]}', 'why', by 'ann', ")
        assert repr(change) == "Difference(ADDED, 'a')"


def test_a_notebook_shows_tables_and_runs_nothing_of_their_content(lake: lakebed.Lake) -> None:
    """Names, values and messages appear as text, for any characters in them."""
    table = lake.table("db.t")
    plan = CollectionPlan("t", (EVIL,), (Deletable(EVIL, 3, EVIL),))
    report = CollectionReport("t", 1, 1, 3, {EVIL: 2}, (EVIL,), True, plan)
    check = CheckReport(EVIL, False, [Finding("error", "missing", EVIL, EVIL, EVIL)])
    for shown in (table, table.diff("first", 2), plan, report, check):
        cells = Cells(shown._repr_html_())
        assert cells.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert any(EVIL in text for text in cells.texts) or shown is report
    versions = lake.history("db.t")
    versions.append(Version("t", EVIL, 0))
    shown_as: Any = versions
    cells = Cells(shown_as._repr_html_())
    assert cells.tags <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert {"store", "id", "created_ms", EVIL} <= set(cells.texts)
    empty: Any = lakebed.open("memory://shown-empty").ls()
    assert empty == []
    assert Cells(empty._repr_html_()).texts == []


def test_what_can_be_opened_elsewhere_is_pickled(lake: lakebed.Lake) -> None:
    """A lake, a table, a branch and a view of a folder read the same rows in another process."""
    table = lake.table("db.t")
    table.create_branch("trial").upsert(pa.table({"id": [9], EVIL: ["x"]}))
    parts: list[Any] = [lake, table, lake.table("db.t", branch="trial"), table.at("first")]
    read = (
        "import pickle, sys; lake, table, trial, view = pickle.loads(sys.stdin.buffer.read()); "
        "print(lake.tables(), table.read().num_rows, trial.read().num_rows, view.read().num_rows, repr(table))"
    )
    done = subprocess.run([sys.executable, "-c", read], input=pickle.dumps(parts), capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"['db.t'] 3 4 2 {table!r}"


def test_what_is_in_one_process_only_is_not_pickled() -> None:
    """A table in memory, and an open repository, are refused with a sentence."""
    lake = lakebed.open("memory://shown-pickles")
    table = lake.create_table("t", pa.schema([("a", pa.int64())]))
    for item in (lake, table):
        with pytest.raises(InvalidRequest, match="exists in this process only"):
            pickle.dumps(item)
    with (
        lakebed.repo.open("memory://shown-pickles/files.repo") as repository,
        pytest.raises(InvalidRequest, match="cannot be copied or sent to another process"),
    ):
        pickle.dumps(repository)


def test_types_are_shipped_and_names_are_known() -> None:
    """The marker of PEP 561 is in the package, one import loads the subpackages, and a typo is an AttributeError."""
    assert (files("lakebed") / "py.typed").is_file()
    code = "import lakebed; print(lakebed.kv.__name__, lakebed.repo.open.__name__)"
    assert run_script(code) == "lakebed.kv open_repository\n"
    assert {"kv", "repo"} <= set(dir(lakebed))
    with pytest.raises(AttributeError, match="opne"):
        _ = lakebed.opne  # type: ignore[attr-defined]
