"""The demo: a year of real flights, delivered day by day, merged by Spark, tagged, compared, rolled back and verified.

The pipeline files in this folder do the work. This program makes the deliveries, shows the results, and does what a
pipeline does not: compare two versions, read older ones, roll back, verify every tag against the published CSV, and do
the same in SQL.
Writes to ``out/`` in the working folder. Exits with 1 when a check fails.

    python -m demo                      the whole year
    python -m demo --months 2           the first two months, for a quick look
"""

from __future__ import annotations

import argparse
import calendar
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

import lakebed.spark
from demo.in_sql import SqlStory, tell_in_sql
from demo.source import load_text
from demo.truth import Truth, checksum
from demo.upstream import deliver_year
from lakebed.clock import SystemClock
from lakebed.errors import InvalidRequest, LakebedError, Rejected
from lakebed.lake.lake import open_lake
from lakebed.pipeline import Check, RunSummary, console_progress, run_file, write_report
from lakebed.spark.jar import find_jar
from lakebed.table.table import Table

HERE = Path(os.path.relpath(Path(__file__).parent))
TABLE = "flights"
TITLE = "A year of flights from New York, merged day by day"

SPARK_SETTINGS = {
    # A delivery has a thousand rows: one task a job, planned once, is fastest.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # A thousand small jobs: compiling them further, and collecting garbage in parallel, costs more than it saves
    # (three months took 67 s of processor time in the JVM without these, 34 s with them).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(slots=True)
class Story:
    """The state of the demo, and the results of its checks."""

    out: Path
    months: tuple[str, ...]
    """``2013-01`` and so on."""
    console: Console
    clock: SystemClock
    spark: SparkSession
    truth: Truth
    checks: list[Check] = field(default_factory=list)

    @property
    def last_day(self) -> str:
        """The last day that was delivered."""
        return last_day_of(self.months[-1])

    @property
    def lake_url(self) -> str:
        """The lake's URL."""
        return str(self.out / "flights-lake")

    def table(self) -> Table:
        """Open the flights table again, as another program would."""
        return open_lake(self.lake_url, create=False).table(TABLE)

    def run(self, name: str, **variables: str) -> RunSummary:
        """Run one of the pipeline files in this folder."""
        return run_file(
            HERE / name,
            variables={"out": str(self.out), **variables},
            spark=self.spark,
            progress=console_progress(self.console),
        )

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(f"  {text}", highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Print a heading."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)

    def check(self, subject: str, held: bool, detail: str) -> None:
        """Check a condition, for the report and the exit code."""
        self.checks.append(Check(subject, held, detail))
        if not held:
            self.console.print(f"  [red]✗ {subject} {detail}[/]", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the whole demo; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="A year of real flights through lakebed and Spark."
    )
    parser.add_argument("--months", type=int, choices=range(2, 13), default=12, help="how much of the year")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where lake, deliveries and report go")
    asked = parser.parse_args(arguments)
    console, clock, out = Console(), SystemClock(), asked.out
    began_s = clock.monotonic_s()
    months = tuple(f"2013-{month:02d}" for month in range(1, asked.months + 1))
    shutil.rmtree(out / "flights-lake", ignore_errors=True)
    console.print("[bold]A year of flights from New York[/], as they were delivered: day by day.", highlight=False)
    deliver(out, months, console)
    missing = why_no_catalog()
    catalogs = {} if missing else {"lake": str(out / "flights-lake")}
    spark = lakebed.spark.session("lakebed demo", cores=2, memory="768m", catalogs=catalogs, settings=SPARK_SETTINGS)
    story = Story(out=out, months=months, console=console, clock=clock, spark=spark, truth=Truth.load())
    merge_the_year(story)
    look_back(story)
    stop_the_damaged(story)
    roll_back_the_careless(story)
    keep_what_is_needed(story)
    verify_every_tag(story)
    tell_it_in_sql(story, missing)
    files = write_report(story.lake_url, path=out / "report.html", title=TITLE, checks=story.checks)
    failed = [check for check in story.checks if not check.held]
    story.chapter("The end")
    story.say(
        f"{len(story.checks) - len(failed)} of {len(story.checks)} checks hold; "
        f"{clock.monotonic_s() - began_s:.0f} s in all."
    )
    story.say(f"The report: [bold]{files.html}[/]")
    return 1 if failed else 0


def deliver(out: Path, months: Sequence[str], console: Console) -> None:
    """Chapter 1: the deliveries."""
    console.print("\n[bold]1  What arrives[/]")
    flights = load_text()
    days = sum(calendar.monthrange(2013, int(month[5:]))[1] for month in months)
    rows = deliver_year(flights, out / "deliveries", days=days)
    console.print(
        f"  {flights.num_rows:,} flights of 2013; {days} daily files with {rows:,} rows, corrections included:\n"
        "  delays of more than an hour come as one hour and are corrected three days later; flights that never\n"
        "  left are withdrawn after a week.",
        highlight=False,
        soft_wrap=True,
    )


def merge_the_year(story: Story) -> None:
    """Chapter 2: 365 increments, each audited and merged by Spark, a tag a month."""
    story.chapter("2  The year")
    summary = story.run("year.yaml", last=story.months[-1])
    again = story.run("year.yaml", last=story.months[-1])
    story.check(
        "Running the year again did nothing:",
        again.steps_run == 0 and again.run_id == summary.run_id,
        f"all {summary.steps_total:,} steps were in the ledger.",
    )


def look_back(story: Story) -> None:
    """Chapter 3: read a tag, and compare two tags."""
    story.chapter("3  Looking back")
    middle = len(story.months) // 2
    earlier, later = story.months[middle - 1], story.months[middle]
    table = story.table()
    lakebed.spark.read(story.spark, table, version=earlier).createOrReplaceTempView("back_then")
    worst = story.spark.sql(
        "SELECT dest, avg(arr_delay) AS late FROM back_then "
        "GROUP BY dest HAVING count(arr_delay) >= 500 ORDER BY late DESC LIMIT 3"
    ).collect()
    known = story.truth.after(last_day_of(earlier)).groupby("dest")["arr_delay"].agg(["count", "mean"])
    expected = known[known["count"] >= 500]["mean"].sort_values(ascending=False).head(3)
    latest = ", ".join(f"{row.dest} {row.late:+.1f} min" for row in worst)
    story.check(
        f"Spark at the tag {earlier} sees what was known then:",
        len(worst) == 3
        and all(
            row.dest == dest and abs(row.late - late) < 1e-6
            for row, (dest, late) in zip(worst, expected.items(), strict=True)
        ),
        f"the latest arrivals were {latest}.",
    )
    story.say(f"At the tag {earlier}, the latest arrivals on average: {latest}")
    counts = tuple(table.diff(earlier, later).counts.values())
    words = "{:,} flights added, {:,} withdrawn, {:,} delays corrected".format(*counts)
    story.check(
        f"Comparing the tags {earlier} and {later}:",
        counts == story.truth.compare(last_day_of(earlier), last_day_of(later)),
        f"{words}.",
    )
    story.say(f"From the tag {earlier} to {later}: {words}")


def stop_the_damaged(story: Story) -> None:
    """Chapter 4: a delivery that the audit stops."""
    story.chapter("4  A damaged delivery")
    before = newest_id(story)
    try:
        story.run("delivery.yaml", file=str(story.out / "deliveries" / "damaged.csv"))
    except Rejected as error:
        story.say(f"[yellow]{error.message}[/]")
        stopped = error.kind == "audit_failed"
    else:
        stopped = False
    story.check(
        "A damaged delivery was stopped by its audit:",
        stopped and newest_id(story) == before,
        f"the newest snapshot is still {before}.",
    )


def roll_back_the_careless(story: Story) -> None:
    """Chapter 5: a delivery that passes every rule, found by a comparison, undone by a rollback."""
    story.chapter("5  A careless delivery")
    good = newest_id(story)
    story.run("delivery.yaml", file=str(story.out / "deliveries" / "careless.csv"))
    table = story.table()
    bad = newest_id(story)
    changed = table.diff(good, bad).counts["changed"]
    story.say(f"It passed every rule, but comparing snapshots {good} and {bad} shows {changed:,} flights changed.")
    table.rollback_to(good)
    now = newest_id(story)
    same = checksum(story.table().read()) == checksum(story.truth.after(story.last_day))
    story.check(
        "A careless delivery was rolled back:",
        same and changed > 0,
        f"it had put {changed:,} flights on time that were not; snapshot {now} is what snapshot {good} was.",
    )
    story.say(f"Rolled back: snapshot {now} is what snapshot {good} was.")


def keep_what_is_needed(story: Story) -> None:
    """Chapter 6: compact, expire, free the space."""
    story.chapter("6  Keeping what is needed")
    summary = story.run("keep.yaml")
    expiry = next(record.metrics for record in summary.records if record.verb == "expire")
    before, after = expiry["disk_bytes_before"], expiry["disk_bytes_after"]
    story.check(
        "Expiry gave space back:",
        after < before and expiry["snapshots_expired"] > 0,
        f"{expiry['snapshots_expired']:,} snapshots expired, {before / 1e6:.1f} MB became {after / 1e6:.1f} MB.",
    )
    try:
        story.table().snapshot(40)
    except LakebedError as error:
        story.say(f"Snapshot 40 is gone: {error.message}")


def verify_every_tag(story: Story) -> None:
    """Chapter 7: compare each tag, read by lakebed, with the published CSV, computed by pandas."""
    story.chapter("7  Verifying every tag against the published CSV")
    table = story.table()
    for month in story.months:
        expected = story.truth.after(last_day_of(month))
        rows = table.read(version=f"tag.{month}")
        sums = checksum(rows), checksum(expected)
        held = rows.num_rows == len(expected) and sums[0] == sums[1]
        detail = f"equals the CSV: {sums[0]}"
        if not held:
            detail = f"has {rows.num_rows:,} rows, the CSV gives {len(expected):,}"
        story.checks.append(Check(f"Tag {month}", held, detail, table=TABLE, tag=month))
        mark = "[green]✓[/]" if held else "[red]✗[/]"
        story.say(f"{mark} {month}  {rows.num_rows:>7,} flights  {detail}")


def why_no_catalog() -> str | None:
    """Why there is no catalog for SQL; None: there is one."""
    try:
        find_jar()
    except InvalidRequest as error:
        return error.message
    return None


def tell_it_in_sql(story: Story, missing: str | None) -> None:
    """Chapter 8: the lake as a catalog of Spark SQL."""
    story.chapter("8  The same in SQL")
    if missing is not None:
        story.say(f"Left out: {missing}")
        return
    tell_in_sql(SqlStory(story.spark, story.truth, story.months, story.say, story.check))


def last_day_of(month: str) -> str:
    """``2013-01-31`` of ``2013-01``."""
    return f"{month}-{calendar.monthrange(int(month[:4]), int(month[5:]))[1]:02d}"


def newest_id(story: Story) -> int:
    """Id of the newest snapshot."""
    newest = story.table().latest()
    return 0 if newest is None else newest.id


if __name__ == "__main__":
    sys.exit(main())
