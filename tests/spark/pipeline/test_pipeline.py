"""A small pipeline on three days: what it does, that it can be killed anywhere, and what it refuses."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound, Rejected
from lakebed.lake.lake import Lake, open_lake
from lakebed.pipeline import Check, Pipeline, RunSummary, console_progress, status, write_report
from lakebed.pipeline.execute import RunCall, execute
from lakebed.pipeline.ledger import Ledger
from lakebed.pipeline.model import Plan, PlannedStep, StepRecord
from lakebed.pipeline.progress import SilentProgress
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment
from lakebed.table.table import Table

DAYS = {
    "2013-01-01": "id,delay,gone\n1,5,false\n2,70,false\n3,NA,false\n",
    "2013-01-02": "id,delay,gone\n4,1,false\n2,95,false\n",
    "2013-01-03": "id,delay,gone\n5,9,false\n3,NA,true\n4,2,false\n",
}
AFTER = {
    "2013-01-01": {1: 5, 2: 70, 3: None},
    "2013-01-02": {1: 5, 2: 95, 3: None, 4: 1},
    "2013-01-03": {1: 5, 2: 95, 4: 2, 5: 9},
}
TEXT = """\
name: small
lake: ${root}/lake
vars:
  root:
tables:
  flights:
    primary_key: [id]
    options: {bucket: 1}
    schema: {id: BIGINT, delay: INT}
steps:
  - for_each: {day: {from: 2013-01-01, to: 2013-01-03}}
    steps:
      - step: ingest
        name: read ${day}
        from: ${root}/${day}.csv
        as: delivery
        options: {nullValue: NA}
        schema: {id: bigint, delay: int, gone: boolean}
      - step: audit
        name: audit ${day}
        from: delivery
        every_row:
          a delay that can be: delay IS NULL OR delay < 1440
        overall:
          something came: count(*) > 0
      - step: merge
        name: merge ${day}
        into: flights
        from: delivery
        deletes: gone
      - step: tag
        name: tag ${day}
        table: flights
        tag: ${day}
        fingerprint: true
  - step: compact
    table: flights
    full: true
  - step: expire
    table: flights
    keep: 1
  - step: report
    to: ${root}/report.html
    title: Three small days
"""


def write_deliveries(folder: Path) -> None:
    """Write the deliveries of three days."""
    for day, text in DAYS.items():
        (folder / f"{day}.csv").write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with three deliveries."""
    write_deliveries(tmp_path)
    return tmp_path


def run(spark: SparkSession, root: Path, text: str = TEXT, **options: object) -> RunSummary:
    """Run a pipeline whose only variable is the folder."""
    return Pipeline.parse(text, file="small.yaml").run(spark, variables={"root": str(root)}, **options)


def flights(root: Path) -> Table:
    """The table, opened anew."""
    return open_lake(str(root / "lake"), create=False).table("flights")


def rows(table: Table, version: str | None = None) -> dict[int, int | None]:
    """Delays by id."""
    return {row["id"]: row["delay"] for row in table.read(version=version).to_pylist()}


def objects(root: Path) -> dict[str, int]:
    """Every object of the table with the time it was last written."""
    return {str(path): path.stat().st_mtime_ns for path in (root / "lake" / "default.db").rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Finished:
    """What one run has left; several tests look at it."""

    root: Path
    summary: RunSummary
    printed: str


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of the three days, whose progress goes to a log."""
    root = tmp_path_factory.mktemp("finished")
    write_deliveries(root)
    console = Console(force_terminal=False, width=100)
    with console.capture() as captured:
        summary = run(spark, root, progress=console_progress(console))
    return Finished(root, summary, captured.get())


def test_three_days_are_merged_tagged_and_reported(finished: Finished) -> None:
    """Inserts, late corrections and deletes; every tag reads its day, though its snapshot has expired."""
    root, summary = finished.root, finished.summary
    table = flights(root)
    assert rows(table) == AFTER["2013-01-03"]
    assert {tag.name: rows(table, tag.name) for tag in table.tags()} == AFTER
    assert [snapshot.id for snapshot in table.snapshots()] == [4]
    assert (summary.steps_run, summary.steps_skipped, summary.steps_total) == (15, 0, 15)
    merges = [record.metrics for record in summary.records if record.verb == "merge"]
    assert [merge["rows"] for merge in merges] == [3, 2, 3]
    assert [merge["files_total"] for merge in merges] == [1, 2, 3]
    expiry = next(record.metrics for record in summary.records if record.verb == "expire")
    assert expiry["snapshots_expired"] == 3
    assert expiry["disk_bytes_after"] < expiry["disk_bytes_before"]
    assert summary.report_path == str(root / "report.html")


def test_a_second_run_changes_nothing(spark: SparkSession, root: Path) -> None:
    """Not one object of the table is written or removed, and no step runs."""
    run(spark, root)
    before = objects(root)
    again = run(spark, root)
    assert (again.steps_run, again.steps_skipped) == (0, 15)
    assert objects(root) == before


def test_another_run_of_the_same_days_merges_nothing_unasked(spark: SparkSession, root: Path) -> None:
    """Increments that were merged are refused under another run id; all of them replayed in order end right."""
    without_tags = TEXT[: TEXT.index("      - step: tag")]
    run(spark, root, without_tags)
    before = objects(root)
    with pytest.raises(Rejected, match="merge 2013-01-01 stopped the run"):
        run(spark, root, without_tags, run_id="once-more")
    assert objects(root) == before
    run(spark, root, without_tags, run_id="once-more", replay=["merge *"])
    assert rows(flights(root)) == AFTER["2013-01-03"]


# ---- killed


class Killed(BaseException):
    """The process is gone: nothing after this runs, and nothing is written."""


class KilledBefore(SilentProgress):
    """Killed when the step of this ordinal is about to start: at the boundary after the one before it."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def step_started(self, step: PlannedStep) -> None:
        """Kill, when it is that step."""
        if step.ordinal == self.ordinal:
            raise Killed


class KilledLedger(Ledger):
    """Killed between what a step did and its record."""

    ordinal = 0

    def record(self, record: StepRecord) -> None:
        """Kill, when it is that step."""
        if record.ordinal == self.ordinal:
            raise Killed
        super().record(record)


def attempt(spark: SparkSession, lake: Lake, plan: Plan, *, unrecorded: int = 0, before: int = 0) -> RunSummary | None:
    """One call of run, killed at one point; None when it was."""
    environment = Environment()
    ledger = KilledLedger(lake.store, run_id="killed", environment=environment)
    ledger.ordinal = unrecorded
    try:
        return execute(RunCall(plan, Workspace(lake), ledger, environment, spark=spark, progress=KilledBefore(before)))
    except Killed:
        return None


def test_a_run_killed_at_every_point_ends_as_if_it_had_not_been(spark: SparkSession, root: Path) -> None:
    """Killed after every step's commit and before its record, then at every boundary: each commit is there once."""
    plan = Pipeline.parse(TEXT, file="small.yaml").plan(variables={"root": str(root)})
    lake = open_lake(plan.lake)
    visited = []
    for step in plan.steps:
        assert attempt(spark, lake, plan, unrecorded=step.ordinal) is None
        latest_before = flights(root).latest() if lake.has_table("flights") else None
        if step.ordinal < len(plan.steps):
            assert attempt(spark, lake, plan, before=step.ordinal + 1) is None
            latest_after = flights(root).latest() if lake.has_table("flights") else None
            # The repetition of an unrecorded step found what it had done.
            assert latest_after == latest_before, step.name
        visited.append(step.ordinal)
    assert visited == list(range(1, 16))
    summary = attempt(spark, lake, plan)
    assert summary is not None
    assert summary.steps_run == 1
    table = flights(root)
    assert rows(table) == AFTER["2013-01-03"]
    assert {tag.name: (tag.snapshot.id, rows(table, tag.name)) for tag in table.tags()} == {
        "2013-01-01": (1, AFTER["2013-01-01"]),
        "2013-01-02": (2, AFTER["2013-01-02"]),
        "2013-01-03": (3, AFTER["2013-01-03"]),
    }
    assert [snapshot.id for snapshot in table.snapshots()] == [4]
    assert status(str(root / "lake"))[0].state == "complete"
    assert status(str(root / "lake"))[0].attempts == 30


# ---- stopped


def test_a_bad_day_is_stopped_by_its_audit_and_nothing_is_published(spark: SparkSession, root: Path) -> None:
    """Which expectation, how many rows, an example; the table stays; after a repair the same run goes on."""
    (root / "2013-01-02.csv").write_text("id,delay,gone\n4,1,false\n2,5000,false\n6,9999,false\n")
    with pytest.raises(Rejected) as caught:
        run(spark, root)
    error = caught.value
    assert error.kind == "audit_failed"
    assert error.message == (
        "small.yaml, line 19: audit 2013-01-02 stopped the run: 'a delay that can be' (delay IS NULL OR delay < 1440) "
        "does not hold for 2 of 3 rows, such as delay = 5000. Nothing after it was done."
    )
    broken = error.facts["broken"][0]
    assert (broken.name, broken.rows_broken, broken.sample[0]) == (
        "a delay that can be",
        2,
        {"id": 2, "delay": 5000, "gone": False},
    )
    assert rows(flights(root)) == AFTER["2013-01-01"]
    result = status(str(root / "lake"))[0]
    assert (result.state, result.failed_step, result.error) == ("failed", "audit 2013-01-02", error.message)
    (root / "2013-01-02.csv").write_text(DAYS["2013-01-02"])
    summary = run(spark, root)
    assert summary.steps_skipped == 5
    assert rows(flights(root)) == AFTER["2013-01-03"]


def audit(expectation: str) -> str:
    """A pipeline that only audits the first day."""
    return (
        "name: audit\nlake: ${root}/lake\nvars: {root: }\nsteps:\n"
        "  - {step: ingest, from: '${root}/2013-01-01.csv', as: delivery, options: {nullValue: NA}}\n"
        f"  - {{step: audit, from: delivery, {expectation}}}\n"
    )


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        ("overall: {more: count(*) > 9}", "'more' (count(*) > 9) does not hold for its 3 rows"),
        ("overall: {unknown: max(delay) > NULL}", "'unknown'"),
        ("every_row: {known: delay >= 0}", "does not hold for 1 of 3 rows, such as delay = None"),
        ("where: id = 9, overall: {some: count(*) > 0}", "'some' (count(*) > 0) does not hold for its 0 rows"),
    ],
)
def test_what_is_not_true_does_not_hold(spark: SparkSession, root: Path, expectation: str, words: str) -> None:
    """Neither false nor NULL passes, for rows and for all rows together."""
    with pytest.raises(Rejected) as caught:
        run(spark, root, audit(expectation))
    assert words in caught.value.message


def test_expectations_that_hold_are_counted(spark: SparkSession, root: Path) -> None:
    """Also over a query, and over no rows at all."""
    summary = run(spark, root, audit("every_row: {a: id > 0, b: gone = false}, overall: {c: count(*) = 3}"))
    assert summary.records[-1].metrics.items() >= {"rows": 3, "expectations": 3}.items()
    summary = run(spark, root, audit("where: id > 5, every_row: {a: id > 9}"))
    assert summary.records[-1].metrics.items() >= {"rows": 0, "expectations": 1}.items()


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        ("every_row: {a: dely > 0}", "`dely`"),
        ("every_row: {a: 'delay >'}", "does not accept this SQL"),
        ("overall: {a: count(delay}", "does not accept this SQL"),
        ("where: nope = 1, every_row: {a: id > 0}", "`nope`"),
    ],
)
def test_bad_sql_is_one_sentence_with_its_line(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str], expectation: str, words: str
) -> None:
    """Spark's own pages of text stay away."""
    with pytest.raises(InvalidRequest) as caught:
        run(spark, root, audit(expectation))
    assert caught.value.message.startswith("small.yaml, line 6: ")
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("  - {step: compact, table: flihgts}\n", InvalidRequest, "line 5: there is no table 'flihgts'"),
        ("  - {step: merge, into: t, from: nothing}\n", InvalidRequest, "line 5: there is no table 't'"),
        ("  - {step: ingest, from: '${root}/none.csv', as: x}\n", InvalidRequest, "line 5: there is no file"),
        ("  - {step: ingest, from: '${root}/x', as: x}\n", InvalidRequest, "line 5:"),
    ],
)
def test_what_is_not_there_is_found_before_spark_starts(
    root: Path, text: str, error: type[Exception], words: str
) -> None:
    """Tables are looked up before the first step; files when their step begins."""
    with pytest.raises(error) as caught:
        run(None, root, f"name: wrong\nlake: ${{root}}/lake\nvars: {{root: }}\nsteps:\n{text}")  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_metadata_steps_need_no_spark(spark: SparkSession, root: Path) -> None:
    """A pipeline that only tags, expires and cleans starts none; a file that no version names goes when it is old."""

    class NoSpark(SilentProgress):
        """Fails when a session is asked for."""

        def spark_starting(self) -> None:
            """It is not."""
            raise AssertionError("Spark was started")

    run(spark, root, TEXT[: TEXT.index("  - step: compact")])
    text = (
        "name: meta\nlake: ${root}/lake\nvars: {root: }\nsteps:\n  - {step: tag, table: flights, tag: now}\n"
        "  - {step: expire, table: flights, keep: 1}\n"
        "  - {step: collect, table: flights, grace: 0 s, dry_run: yes}\n"
        "  - {step: collect, name: young, table: flights}\n"
        "  - {step: collect, name: all, table: flights, grace: 0 s}\n"
    )
    orphan = root / "lake" / "default.db" / "flights" / "bucket-0" / "data-left-behind.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"1234")
    summary = run(None, root, text, progress=NoSpark())  # type: ignore[arg-type]
    assert summary.steps_run == 5
    cleaned = [record.metrics for record in summary.records if record.verb == "collect"]
    assert [(item["files_deleted"], item["bytes_freed"]) for item in cleaned] == [(1, 4), (0, 0), (1, 4)]
    assert not orphan.exists()
    assert flights(root).tag("now").snapshot.id == 3


def test_a_tag_that_is_elsewhere_is_not_moved_silently(spark: SparkSession, root: Path) -> None:
    """It says where the tag is; `replace` moves it."""
    run(spark, root, TEXT[: TEXT.index("  - step: compact")])
    text = "name: again\nlake: ${root}/lake\nvars: {root: }\nsteps:\n  - {step: tag, table: flights, tag: 2013-01-01}\n"
    with pytest.raises(AlreadyExists, match="line 5: the tag '2013-01-01' of 'flights' is already on snapshot 1"):
        run(spark, root, text)
    run(spark, root, text.replace("01-01}", "01-01, replace: true}"))
    assert flights(root).tag("2013-01-01").snapshot.id == 3


def test_a_run_id_of_another_plan_is_refused(spark: SparkSession, root: Path) -> None:
    """Nothing of the lake changes."""
    short = TEXT[: TEXT.index("      - step: tag")]
    run(spark, root, short, run_id="mine")
    before = objects(root)
    with pytest.raises(InvalidRequest, match="begun with another version"):
        run(spark, root, TEXT, run_id="mine")
    assert objects(root) == before


# ---- files


def as_csv(root: Path) -> None:
    """Plain text."""
    (root / "in.csv").write_text("id,name\n1,a\n2,b\n")


def as_gz(root: Path) -> None:
    """Compressed text."""
    (root / "in.csv.gz").write_bytes(gzip.compress(b"id,name\n1,a\n2,b\n"))


def as_zip(root: Path) -> None:
    """An archive of two files, and clutter."""
    with zipfile.ZipFile(root / "in.csv.zip", "w") as archive:
        archive.writestr("one/in.csv", "id,name\n1,a\n")
        archive.writestr("two/in.csv", "id,name\n2,b\n")
        archive.writestr("__MACOSX/._in.csv", "clutter")


def as_json(root: Path) -> None:
    """One object a line."""
    (root / "in.json").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')


@pytest.mark.parametrize(
    ("write", "name"), [(as_csv, "in.csv"), (as_gz, "in.csv.gz"), (as_zip, "in.csv.zip"), (as_json, "in.json")]
)
def test_files_of_every_kind_become_rows(
    spark: SparkSession, tmp_path: Path, write: Callable[[Path], None], name: str
) -> None:
    """A table without declared columns takes those of the first rows."""
    write(tmp_path)
    text = (
        f"name: files\nlake: ${{root}}/lake\nvars: {{root: }}\ntables: {{names: }}\n"
        f"steps:\n  - {{step: ingest, from: '${{root}}/{name}', into: names}}\n"
    )
    summary = run(spark, tmp_path, text)
    table = open_lake(str(tmp_path / "lake")).table("names")
    assert sorted((row["id"], row["name"]) for row in table.read().to_pylist()) == [(1, "a"), (2, "b")]
    assert summary.records[0].metrics["rows"] == 2
    run(spark, tmp_path, text)
    assert len(list(table.snapshots())) == 1


def test_parquet_goes_through_select(spark: SparkSession, tmp_path: Path) -> None:
    """A SELECT over `files` shapes the rows."""
    spark.range(5).write.parquet(str(tmp_path / "in.parquet"))
    text = (
        "name: files\nlake: ${root}/lake\nvars: {root: }\ntables: {big: {}}\nsteps:\n"
        "  - {step: ingest, from: '${root}/in.parquet', into: big,\n"
        "     select: 'SELECT id * 10 AS ten FROM files WHERE id > 2'}\n"
    )
    run(spark, tmp_path, text)
    table = open_lake(str(tmp_path / "lake")).table("big")
    assert sorted(table.read()["ten"].to_pylist()) == [30, 40]


def test_an_inferred_schema_is_pinned(spark: SparkSession, tmp_path: Path) -> None:
    """Tomorrow's file cannot turn numbers into text: it is refused, and the table keeps its rows."""
    (tmp_path / "1.csv").write_text("id,delay\n1,5\n")
    (tmp_path / "2.csv").write_text("id,delay\n2,late\n")
    text = (
        "name: pin\nlake: ${root}/lake\nvars: {root: , n: 1}\ntables: {delays: }\nsteps:\n"
        "  - {step: ingest, from: '${root}/${n}.csv', into: delays}\n"
    )
    pipeline = Pipeline.parse(text, file="pin.yaml")
    pipeline.run(spark, variables={"root": str(tmp_path)})
    with pytest.raises(InvalidRequest, match=r"^pin\.yaml, line 6: ") as caught:
        pipeline.run(spark, variables={"root": str(tmp_path), "n": "2"})
    assert "late" in caught.value.message or "MALFORMED" in caught.value.message
    assert open_lake(str(tmp_path / "lake")).table("delays").read().to_pylist() == [{"id": 1, "delay": 5}]


# ---- progress and report


def test_progress_in_a_log_is_short_plain_lines(finished: Finished) -> None:
    """One line a group, no control codes."""
    lines = finished.printed.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("pipeline small: run small-")
    assert lines[1].startswith("  day 2013-01-01: 1 ingest, 1 audit, 1 merge, 1 tag; 3 rows merged, ")
    assert lines[6].startswith("  report: ")
    assert "\x1b" not in finished.printed


def test_the_page_says_what_happened(finished: Finished) -> None:
    """Numbers of the run, tags with their verdict; nothing is fetched from anywhere; the JSON says the same."""
    root = finished.root
    page = (root / "report.html").read_text()
    assert "<h1>Three small days</h1>" in page
    assert "Every one of the 3 tags reads as it did when it was tagged." in page
    assert "3 snapshots expired" in page
    assert "this report is a step of it</small>" in page
    assert page.count("</span> unchanged</span>") == 3
    for forbidden in ("http://", "https://", "<script", "<link", "@import", "url("):
        assert forbidden not in page
    facts = json.loads((root / "report.json").read_text())
    table = facts["tables"][0]
    assert [tag["rows"] for tag in table["tags"]] == [3, 4, 4]
    assert [version["rows"] for version in table["versions"]][:3] == [3, 2, 3]
    assert [version["alive"] for version in table["versions"]] == [False, False, False, True]
    assert (facts["format"], table["rows"]) == (1, 4)


def test_a_check_from_outside_stands_in_its_tags_row(finished: Finished, root: Path) -> None:
    """And one that does not hold turns the verdict."""
    lake = str(finished.root / "lake")
    checks = [Check("Tag", True, "equals the source", table="flights", tag="2013-01-01")]
    files = write_report(lake, path=root / "checked.html", checks=checks)
    page = Path(files.html).read_text()
    assert "</span> equals the source</span>" in page
    assert page.count(">unchanged on ") == 3
    bad = [Check("The sum of delays", False, "is 7, not 8.")]
    page = Path(write_report(lake, path=root / "bad.html", checks=bad).html).read_text()
    assert "Something does not hold: The sum of delays." in page


def test_a_report_of_what_is_not_there_is_refused(spark: SparkSession, root: Path) -> None:
    """No lake, no such run, a file that cannot be written: one sentence each."""
    with pytest.raises(NotFound):
        write_report(str(root / "nowhere"), path=root / "x.html")
    run(spark, root, TEXT[: TEXT.index("      - step: tag")])
    with pytest.raises(NotFound, match="no run 'r9'"):
        write_report(str(root / "lake"), path=root / "x.html", run_id="r9")
    (root / "file").write_text("")
    with pytest.raises(InvalidRequest, match="The report cannot be written to"):
        write_report(str(root / "lake"), path=root / "file" / "x.html")
