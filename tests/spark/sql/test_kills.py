"""The JVM or a worker is killed inside a statement: the table is as before or as after it, and no file stays."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.table.table import Table
from worlds.waiting import wait_until

Run = Callable[[str], list[tuple[Any, ...]]]
Rows = list[tuple[Any, ...]]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
BEFORE = [(id, -id) for id in range(20)]
OTHERS = "(SELECT id, id * 10 AS n FROM range(10, 30)) s"
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "vectors": {"options": {"deletion-vectors.enabled": "true"}},
    "keyed": {"primary_keys": "id", "options": {"bucket": "2"}},
}
STATEMENTS: dict[str, tuple[str, Rows]] = {
    "UPDATE": (
        "UPDATE lake.db.t SET n = n + 100 WHERE id % 2 = 0",
        [(id, n + 100 * (id % 2 == 0)) for id, n in BEFORE],
    ),
    "DELETE": ("DELETE FROM lake.db.t WHERE id < 5", BEFORE[5:]),
    "MERGE": (
        f"MERGE INTO lake.db.t t USING {OTHERS} ON t.id = s.id WHEN MATCHED AND s.id < 15 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *",
        [*BEFORE[:10], *((id, id * 10) for id in range(15, 30))],
    ),
    "INSERT OVERWRITE": (
        "INSERT OVERWRITE lake.db.t SELECT id, id FROM range(7)",
        [(id, id) for id in range(7)],
    ),
}
"""By name: the statement, and the rows after it."""


@dataclass(frozen=True)
class Victim:
    """A table in a lake, and an interpreter that ends processes at a moment of the first statement."""

    lake: Lake
    folder: Path

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.lake.table("db.t")

    def make_table(self, kind: str) -> None:
        """Twenty rows in two files; with a primary key, rows that need a merge."""
        table = self.lake.create_table("db.t", SCHEMA, **KINDS[kind])
        if kind == "keyed":
            table.write(pa.table({"id": range(20), "n": [5] * 20}, SCHEMA))
        for half in (BEFORE[:10], BEFORE[10:]):
            table.write(pa.Table.from_pylist([{"id": id, "n": n} for id, n in half], SCHEMA))

    def make_python(self, module: str, lines: str) -> str:
        """Write an interpreter whose processes of a module run some lines first."""
        program = self.folder / "program.py"
        program.write_text(
            "import os, signal, sys\n"
            f"module, folder = {module!r}, {str(self.folder)!r}\n"
            "def first():\n"
            "    try:\n"
            "        os.close(os.open(folder + '/happened', os.O_CREAT | os.O_EXCL))\n"
            "    except FileExistsError:\n"
            "        return False\n"
            "    return True\n"
            f"open(f'{{folder}}/process-{{os.getpid()}}', 'x').close()\n{lines}"
            "import importlib\n"
            "importlib.import_module(module).main()\n"
        )
        python = self.folder / "python"
        python.write_text(
            f'#!/bin/sh\nif [ "$2" = {module} ]; then exec {sys.executable} {program}; fi\n'
            f'echo $$ >> {self.folder}/others\nexec {sys.executable} "$@"\n'
        )
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        return str(python)

    def check(self, sql: Run, after: Rows) -> bool:
        """The table is whole and its folder clean; say whether the statement is in it."""
        assert (self.folder / "happened").exists()
        rows = sorted(sql("SELECT id, n FROM lake.db.t"))
        assert rows in (BEFORE, sorted(after))
        assert [finding for finding in check_lake(self.lake).findings if finding.kind != "orphan"] == []
        sql("CALL lake.sys.remove_orphan_files(table => 'db.t', older_than => '2200-01-01')")
        assert check_lake(self.lake).findings == []
        manifests = self.table.context.manifests
        named = {
            name
            for snapshot in self.table.snapshots()
            for name in manifests.live_entries(snapshot)["file_name"].to_pylist()
        }
        folder = Path(str(self.table.url).removeprefix("file://"))
        assert {path.name for path in folder.rglob("*.parquet")} == named
        assert sorted(sql("SELECT id, n FROM lake.db.t")) == rows
        return rows != BEFORE


def runs_lakebed(pid: int) -> bool:
    """Whether a process is there, and one of lakebed's."""
    try:
        return b"lakebed.spark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def victim(lake: Lake, tmp_path: Path) -> Iterator[Victim]:
    """A lake without tables. The bridge of the test's interpreter ends with it, so that later tests find their own."""
    yield Victim(lake, tmp_path)
    others = tmp_path / "others"
    for pid in map(int, others.read_text().split() if others.exists() else ()):
        if runs_lakebed(pid):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not runs_lakebed(pid))


# ---- workers

WRITING = """
from lakebed.table.write import write
finish = write.TableWriter.finish
def dying(self):
    changes = finish(self)
    if first():
        os.kill(os.getpid(), signal.SIGKILL)
    return changes
write.TableWriter.finish = dying
"""
SCANNING = """
from lakebed.spark import worker
rows_of = worker._rows
def dying(*arguments):
    yield from rows_of(*arguments)
    if first():
        os.kill(os.getpid(), signal.SIGKILL)
worker._rows = dying
"""
WORKER = "lakebed.spark.worker"
DIES = [
    pytest.param("keyed", "UPDATE", "scans"),
    *(
        pytest.param(kind, statement, moment, marks=pytest.mark.long)
        for kind, statement, moment in (
            ("keyed", "MERGE", "writes"),
            ("keyed", "DELETE", "writes"),
            ("keyed", "INSERT OVERWRITE", "writes"),
            ("vectors", "UPDATE", "writes"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "statement", "moment"), DIES)
def test_a_killed_worker_changes_nothing(
    session: SparkSession, sql: Run, victim: Victim, kind: str, statement: str, moment: str
) -> None:
    """One that has read or written its rows and not said so; the statement fails, and succeeds when it runs again."""
    victim.make_table(kind)
    python = victim.make_python(WORKER, WRITING if moment == "writes" else SCANNING)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.catalog.lake.python", python)
    text, after = STATEMENTS[statement]
    with pytest.raises((PySparkException, Py4JJavaError), match="worker process ended before its task did"):
        sql(text)
    assert not victim.check(sql, after)
    sql(text)
    assert victim.check(sql, after)


# ---- the JVM

DRIVER = """
import sys
import lakebed.spark
url, python, statement = sys.argv[1:]
settings = {"spark.sql.catalog.lake.python": python, "spark.sql.shuffle.partitions": "2"}
session = lakebed.spark.session(catalogs={"lake": url}, cores=2, settings=settings)
session.sql(statement).collect()
print("the statement has ended")
"""
BRIDGE = "lakebed.spark.bridge"
KILL = "os.kill(os.getppid(), signal.SIGKILL)"


def around(verb: str, before: str, after: str) -> str:
    """Lines that make a verb of the bridge do more."""
    return (
        "from lakebed.spark.catalog import VERBS\n"
        f"run = VERBS[{verb!r}].run\n"
        "def dying(self, session, lake_url):\n"
        f"    first()\n    {before}\n    found = run(self, session, lake_url)\n    {after}\n    return found\n"
        f"VERBS[{verb!r}].run = dying\n"
    )


WORKER_KILLS = WRITING.replace("os.kill(os.getpid(), signal.SIGKILL)", KILL)
JVM_DIES = {
    "as tasks begin": ("keyed", "UPDATE", BRIDGE, around("begin_write", "pass", KILL)),
    "as tasks end": ("keyed", "INSERT OVERWRITE", WORKER, WORKER_KILLS),
    "before the commit": ("append", "MERGE", BRIDGE, around("commit", f"{KILL}; os._exit(1)", "pass")),
    "while the bridge commits": ("keyed", "MERGE", BRIDGE, around("commit", KILL, "pass")),
    "after the commit": ("vectors", "UPDATE", BRIDGE, around("commit", "pass", KILL)),
    "in a delete": ("append", "DELETE", BRIDGE, around("delete", KILL, "pass")),
}


def has_ended(process: int) -> bool:
    """Whether a process runs no more; its parent may not have asked for its result."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.long
@pytest.mark.parametrize("moment", JVM_DIES)
def test_a_killed_jvm_leaves_the_table_as_before_or_as_after(
    session: SparkSession, sql: Run, victim: Victim, moment: str
) -> None:
    """The next session sees one or the other, and its statement works."""
    kind, statement, module, lines = JVM_DIES[moment]
    victim.make_table(kind)
    python = victim.make_python(module, lines)
    text, after = STATEMENTS[statement]
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, victim.lake.url, python, text],
        capture_output=True, text=True, check=False, cwd=victim.folder, env=dict(os.environ),
    )  # fmt: skip
    assert driver.returncode != 0
    assert "the statement has ended" not in driver.stdout
    processes = [int(path.name.partition("-")[2]) for path in victim.folder.glob("process-*")]
    assert processes
    wait_until(lambda: all(map(has_ended, processes)), timeout_s=300)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    is_done = victim.check(sql, after)
    assert is_done or moment not in ("after the commit",)
    assert not is_done or moment not in ("as tasks begin", "as tasks end", "before the commit")
    sql("INSERT OVERWRITE lake.db.t SELECT id, -id FROM range(20)")
    sql(text)
    assert victim.check(sql, after)
