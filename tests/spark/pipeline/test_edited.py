"""A pipeline over a month of days that is edited, killed and called again; increments that come late or twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebed.errors import AlreadyExists, InvalidRequest, Rejected
from lakebed.lake.lake import open_lake
from lakebed.objects.port import ObjectStore
from lakebed.pipeline import Pipeline, RunSummary, status
from lakebed.pipeline.execute import RunCall, execute
from lakebed.pipeline.ledger import Ledger
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment
from lakebed.table.table import Table

MONTH = 31
TEXT = """\
name: trips
lake: ${root}/lake
vars: {root: , last: 31}
tables:
  trips:
    primary_key: [id]
    options: {bucket: 1}
    schema: {id: BIGINT, fare: INT}
steps:
  - for_each: {day: {from: 1, to: "${last}"}}
    steps:
      - step: ingest
        name: read ${day}
        from: ${root}/${day}.csv
        as: delivery
        schema: {id: bigint, fare: int, gone: boolean}
      - {step: merge, name: "merge ${day}", into: trips, from: delivery, deletes: gone}
      - {step: tag, name: "tag ${day}", table: trips, tag: "day-${day}"}
  - {step: expire, table: trips, keep: 3}
"""


def deliveries(root: Path, days: int) -> list[dict[int, int]]:
    """A file a day with new trips, corrections and cancellations; what the table must hold after each day."""
    rng, expected, after = random.Random(7), dict[int, int](), []
    for day in range(1, days + 1):
        lines = ["id,fare,gone"]
        changes: dict[int, int | None] = {day * 100 + i: rng.randrange(1000) for i in range(12)}
        for known in rng.sample(sorted(expected), min(5, len(expected))):
            changes[known] = None if rng.random() < 0.3 else rng.randrange(1000)
        for key, fare in changes.items():
            lines.append(f"{key},{'' if fare is None else fare},{'true' if fare is None else 'false'}")
            if fare is None:
                expected.pop(key)
            else:
                expected[key] = fare
        (root / f"{day}.csv").write_text("\n".join(lines) + "\n")
        after.append(dict(expected))
    return after


def run(spark: SparkSession, root: Path, text: str = TEXT, *, last: int = MONTH, **options: object) -> RunSummary:
    variables = {"root": str(root), "last": str(last)}
    return Pipeline.parse(text, file="trips.yaml").run(spark, variables=variables, **options)  # type: ignore[arg-type]


def trips(root: Path) -> Table:
    return open_lake(str(root / "lake"), create=False).table("trips")


def fares(root: Path, version: str | None = None) -> dict[int, int]:
    rows = trips(root).read(version=version)
    result = dict(zip(rows["id"].to_pylist(), rows["fare"].to_pylist(), strict=True))
    assert len(result) == rows.num_rows
    return result


def names(summary: RunSummary) -> list[str]:
    """The steps that a call ran itself."""
    return [record.name for record in summary.records if not record.carried_from]


def test_an_edit_of_what_is_kept_runs_nothing_but_the_expiry(spark: SparkSession, tmp_path: Path) -> None:
    """A month with corrections and cancellations; `keep: 3` becomes `keep: 5`: the table and every tag stay right."""
    after = deliveries(tmp_path, MONTH)
    first = run(spark, tmp_path)
    assert fares(tmp_path) == after[-1]
    newest = trips(tmp_path).latest()
    assert newest is not None
    second = run(spark, tmp_path, TEXT.replace("keep: 3", "keep: 5"))
    assert names(second) == ["expire"]
    assert (second.steps_run, second.steps_carried) == (1, first.steps_total - 1)
    assert trips(tmp_path).latest() == newest
    assert fares(tmp_path) == after[-1]
    for day in (1, 17, MONTH):
        assert fares(tmp_path, f"day-{day}") == after[day - 1]
    assert names(run(spark, tmp_path, TEXT.replace("keep: 3", "keep: 5"))) == ["expire"]
    assert [(difference.state, difference.steps_done) for difference in status(str(tmp_path / "lake"))] == [
        ("complete", 94)
    ] * 2


def test_finished_steps_that_would_run_again_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """A changed merge is refused with the list, tags are looked at first, and a replay ends right."""
    after = deliveries(tmp_path, 3)
    run(spark, tmp_path, last=3)
    newest = trips(tmp_path).latest()
    edited = TEXT.replace("deletes: gone}", 'deletes: gone, where: "id > 0"}')
    with pytest.raises(InvalidRequest, match="6 steps that earlier runs finished would run again") as caught:
        run(spark, tmp_path, edited, last=3)
    assert caught.value.kind == "replay_needed"
    assert caught.value.facts["steps"] == ["merge 1", "tag 1", "merge 2", "tag 2", "merge 3", "tag 3"]
    with pytest.raises(AlreadyExists, match=r"line 18: the tag 'day-1'.*Nothing was done"):
        run(spark, tmp_path, edited, last=3, replay=["*"])
    assert trips(tmp_path).latest() == newest
    assert len(status(str(tmp_path / "lake"))) == 1
    for day in (1, 2, 3):
        trips(tmp_path).delete_tag(f"day-{day}")
    summary = run(spark, tmp_path, edited, last=3, replay=["merge *", "tag *"])
    assert names(summary) == ["merge 1", "tag 1", "merge 2", "tag 2", "merge 3", "tag 3", "expire"]
    assert fares(tmp_path) == after[-1]
    for day in (1, 2, 3):
        # Replayed over the later days, an early tag holds rows of those too: what it held before is gone with the tag.
        assert after[day - 1].items() <= {**after[-1], **fares(tmp_path, f"day-{day}")}.items()


def test_an_increment_of_another_run_is_known_by_its_content(spark: SparkSession, tmp_path: Path) -> None:
    """Under another run id, file name or selection of days nothing is merged twice unless a person says so."""
    after = deliveries(tmp_path, 2)
    run(spark, tmp_path, last=2)
    plain = TEXT.replace("      - {step: tag,", "      #")
    newest = trips(tmp_path).latest()
    with pytest.raises(
        Rejected, match=r"merge 1 stopped the run.*merged the same increment.*--replay 'merge 1'"
    ) as caught:
        run(spark, tmp_path, plain, last=2, run_id="again")
    assert caught.value.kind == "merged_already"
    assert trips(tmp_path).latest() == newest
    (failed,) = status(str(tmp_path / "lake"), run_id="again")
    assert failed.state == "failed"
    assert "merged the same increment" in str(failed.error)
    (tmp_path / "1.csv").rename(tmp_path / "moved.csv")
    moved = plain.replace("name: trips", "name: moved").replace("${root}/${day}.csv", "${root}/moved.csv")
    with pytest.raises(Rejected, match="merged the same increment"):
        run(spark, tmp_path, moved, last=1)
    (tmp_path / "moved.csv").rename(tmp_path / "1.csv")
    assert fares(tmp_path) == after[-1]
    run(spark, tmp_path, plain, last=2, run_id="again", replay=["merge *"])
    assert fares(tmp_path) == after[-1]


def test_with_a_sequence_late_and_repeated_increments_are_harmless(spark: SparkSession, tmp_path: Path) -> None:
    """Days in any order, again and again, deletes and compactions in between, end in the right table."""
    (tmp_path / "1.csv").write_text("id,fare,at,gone\n1,5,1,false\n2,6,1,false\n3,7,1,false\n")
    (tmp_path / "2.csv").write_text("id,fare,at,gone\n1,50,2,false\n2,0,2,true\n")
    (tmp_path / "3.csv").write_text("id,fare,at,gone\n3,70,3,false\n4,8,3,false\n1,51,3,true\n")
    text = TEXT.replace("fare: INT}", "fare: INT, at: INT}").replace("fare: int, gone", "fare: int, at: int, gone")
    text = text.replace("deletes: gone}", "deletes: gone, sequence: at}").replace(
        '{from: 1, to: "${last}"}', "[3, 1, 2]"
    )
    text = text.replace(
        "      - {step: tag,", '      - {step: compact, name: "c ${day}", table: trips, full: true}\n      #'
    )
    run(spark, tmp_path, text)
    assert fares(tmp_path) == {3: 70, 4: 8}
    run(spark, tmp_path, text, run_id="again")
    assert fares(tmp_path) == {3: 70, 4: 8}
    other = text.replace("name: trips", "name: other").replace("sequence: at", "sequence: fare")
    with pytest.raises(InvalidRequest, match=r"ordered by fare, but the table orders rows by at"):
        run(spark, tmp_path, other)


class Killed(BaseException):
    """The process is gone."""


class MortalLedger(Ledger):
    """A ledger whose process dies at its n-th write, before or after it."""

    def __init__(self, store: ObjectStore, *, run_id: str, environment: Environment, writes: int, after: bool) -> None:
        super().__init__(store, run_id=run_id, environment=environment)
        self._left, self._after = writes, after

    def _create(self, name: str, value: object) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        super()._create(name, value)
        if self._left == 0:
            raise Killed


def execute_with(spark: SparkSession, root: Path, text: str, variables: Mapping[str, str], **mortal: object) -> None:
    plan = Pipeline.parse(text, file="trips.yaml").plan(variables=variables)
    environment = Environment()
    lake = open_lake(plan.lake, environment=environment)
    ledger = MortalLedger(lake.store, run_id=plan.default_run_id, environment=environment, **mortal)  # type: ignore[arg-type]
    execute(RunCall(plan, Workspace(lake), ledger, environment, spark=spark, takes_over=True))


def test_a_kill_anywhere_while_steps_are_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    """Killed at each of its writes, before and after it, an edited definition ends as if it had not been."""
    after = deliveries(tmp_path, 2)
    variables = {"root": str(tmp_path), "last": "2"}
    with pytest.raises(Killed):  # the first run dies between the commit of day 2 and its record
        execute_with(spark, tmp_path, TEXT, variables, writes=7, after=False)
    merged = trips(tmp_path).latest()
    for number, (writes, is_after) in enumerate(itertools.product(range(1, 5), (False, True))):
        text = TEXT.replace("keep: 3", f"keep: {4 + number}")
        with pytest.raises(Killed):
            execute_with(spark, tmp_path, text, variables, writes=writes, after=is_after)
        assert trips(tmp_path).latest() == merged
        summary = run(spark, tmp_path, text, last=2)
        assert trips(tmp_path).latest() == merged
        assert fares(tmp_path) == after[-1]
        assert fares(tmp_path, "day-1") == after[0]
        assert [record.ordinal for record in summary.records] == list(range(1, 8))
    assert fares(tmp_path, "day-2") == after[1]
