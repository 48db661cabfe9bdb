"""Running a pipeline: plan it, skip what the ledger has, do the rest in order, record each step, tell the progress.

Owns: the order of things in a run. Invariants: everything that can be wrong in the file is found before the lake is
touched; a step is recorded only after what it did is durable; a failed step leaves every later one undone; a run that
was killed anywhere goes on where it was when it is called again with the same file and variables (or run id).
Knows no verb: they are in `steps`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lakebed.spark
from lakebed.errors import LakebedError
from lakebed.lake.lake import Lake, open_lake
from lakebed.runtime import Environment
from lakebed.spark.pipeline.context import RunContext
from lakebed.spark.pipeline.ledger import AttemptEnd, Ledger, RunStatus, run_statuses
from lakebed.spark.pipeline.model import Plan, PlannedStep, RunSummary, StepRecord
from lakebed.spark.pipeline.nodes import Place, nearest
from lakebed.spark.pipeline.parse import Document, load, parse
from lakebed.spark.pipeline.plan import make_plan
from lakebed.spark.pipeline.progress import Progress, SilentProgress
from lakebed.spark.pipeline.steps import KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline", "check_file", "execute", "run_file", "status"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline that was read and understood as far as it goes without variables."""

    document: Document

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """Read a pipeline file. Raises `NotFound`, or `InvalidRequest` with file and line."""
        return cls(load(path))

    @classmethod
    def parse(cls, text: str, *, file: str = "pipeline") -> Pipeline:
        """Read the text of a pipeline file; `file` names it in errors."""
        return cls(parse(text, file=file))

    def plan(self, *, variables: Mapping[str, str] | None = None) -> Plan:
        """Apply variables: every step with every value. Raises `InvalidRequest` with file and line."""
        return make_plan(self.document, variables=variables)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        run_id: str | None = None,
        progress: Progress | None = None,
        storage_options: Mapping[str, str] | None = None,
        environment: Environment | None = None,
    ) -> RunSummary:
        """Run what is not done yet; see `run_file`. `spark` None: a session is started when a step needs one."""
        environment = environment or Environment()
        plan = self.plan(variables=variables)
        lake = open_lake(plan.lake, storage_options=storage_options, environment=environment)
        ledger = Ledger(lake.store, run_id=run_id or plan.default_run_id, environment=environment)
        return execute(
            plan,
            lake=lake,
            ledger=ledger,
            spark=spark,
            progress=progress or SilentProgress(),
            environment=environment,
        )


def check_file(path: str | Path, *, variables: Mapping[str, str] | None = None) -> Plan:
    """Find everything that can be wrong in a pipeline file; touches no lake and starts nothing."""
    return Pipeline.load(path).plan(variables=variables)


def run_file(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> RunSummary:
    """Run a pipeline file: every step that its run's ledger does not have yet.

    Args:
        path: the YAML file.
        variables: values for its ``vars``; they win over those in the file.
        run_id: which run this is; None: the one that belongs to this definition and these variables, so that calling
            again goes on after a crash and does nothing after success.
        progress: told what happens; None: silence.
        spark: the session to use; None: one is started when a step first needs it.
        storage_options: for the lake's store.

    Raises:
        NotFound: no such file.
        InvalidRequest: something is wrong in it (with file and line), or the run id belongs to another plan.
        Rejected: an audit failed (``kind`` is ``audit_failed``); nothing after it was done.
        LakebedError: whatever else stopped a step. The run can be called again.
    """
    return Pipeline.load(path).run(
        spark,
        variables=variables,
        run_id=run_id,
        progress=progress,
        storage_options=storage_options,
        environment=environment,
    )


def status(
    lake_url: str,
    *,
    run_id: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> list[RunStatus]:
    """Where the runs of a lake stand, newest first (with `run_id`: that one only).

    Raises:
        NotFound: no lake there, or no such run.
    """
    environment = environment or Environment()
    lake = open_lake(lake_url, create=False, storage_options=storage_options, environment=environment)
    if run_id is None:
        return run_statuses(lake.store, environment=environment)
    return [Ledger(lake.store, run_id=run_id, environment=environment).status()]


def execute(
    plan: Plan,
    *,
    lake: Lake,
    ledger: Ledger,
    spark: SparkSession | None,
    progress: Progress,
    environment: Environment,
) -> RunSummary:
    """Run a plan against an open lake and a ledger."""
    began_s = environment.clock.monotonic_s()
    _check_tables(plan, lake)
    attempt = ledger.begin(plan)
    done = ledger.records()
    progress.run_began(plan, run_id=ledger.run_id, steps_done=len(done))
    current: PlannedStep | None = None
    with tempfile.TemporaryDirectory(prefix="lakebed-pipeline-") as scratch:
        context = RunContext(
            plan=plan,
            run_id=ledger.run_id,
            lake=lake,
            environment=environment,
            scratch_folder=Path(scratch),
            start_spark=_starter(spark, progress),
        )
        try:
            for current in plan.steps:
                _advance(current, context, ledger, done, progress)
        except BaseException as error:
            progress.run_ended(None)
            # A kill (or Ctrl-C) writes nothing: the ledger then says "unfinished", which is what it is.
            if isinstance(error, LakebedError):
                ledger.end(attempt, _failure(error, current, environment))
            raise
        finally:
            context.close()
    ledger.end(attempt, AttemptEnd(ended_ms=environment.clock.now_ms(), outcome="complete"))
    reports = [record.metrics.get("html") for record in context.records if record.verb == "report"]
    summary = RunSummary(
        run_id=ledger.run_id,
        pipeline=plan.pipeline,
        lake=plan.lake,
        steps_total=len(plan.steps),
        steps_run=len(plan.steps) - len(done),
        steps_skipped=len(done),
        seconds=environment.clock.monotonic_s() - began_s,
        records=tuple(context.records),
        report_path=reports[-1] if reports else None,
    )
    progress.run_ended(summary)
    return summary


def _advance(
    step: PlannedStep, context: RunContext, ledger: Ledger, done: Mapping[int, StepRecord], progress: Progress
) -> None:
    """Do one step, or take its record from the ledger."""
    kind = KINDS[step.verb]
    if step.ordinal in done:
        kind.recall(step, context)
        context.records.append(done[step.ordinal])
        return
    progress.step_started(step)
    clock = context.environment.clock
    started_ms, started_s = clock.now_ms(), clock.monotonic_s()
    metrics = kind.run(step, context)
    record = StepRecord(
        ordinal=step.ordinal,
        name=step.name,
        verb=step.verb,
        group=step.group,
        fingerprint=step.fingerprint,
        started_ms=started_ms,
        seconds=round(clock.monotonic_s() - started_s, 4),
        metrics=metrics,
    )
    ledger.record(record)
    context.records.append(record)
    progress.step_finished(step, record)


def _check_tables(plan: Plan, lake: Lake) -> None:
    """Every table or view that a step names is declared, made by an earlier step, or there already."""
    known = set(plan.tables)
    for step in plan.steps:
        for key in KINDS[step.verb].keys:
            name = step.settings.get(key.name)
            if key.kind in ("table", "rows") and name is not None and name not in known:
                if not lake.has_table(name):
                    near = nearest(name, {*known, *lake.tables()})
                    what = "no table" if key.kind == "table" else "neither a table nor a view"
                    raise Place(plan.file, step.line).error(
                        f"there is {what} '{name}' in the lake, and `tables` declares none.{near}"
                    )
                known.add(name)
        if step.settings.get("as") is not None:
            known.add(step.settings["as"])


def _starter(spark: SparkSession | None, progress: Progress) -> Callable[[], SparkSession]:
    def start() -> SparkSession:
        if spark is not None:
            return spark
        progress.spark_starting()
        return lakebed.spark.session("lakebed pipeline")

    return start


def _failure(error: LakebedError, step: PlannedStep | None, environment: Environment) -> AttemptEnd:
    return AttemptEnd(
        ended_ms=environment.clock.now_ms(),
        outcome="failed",
        step=None if step is None else step.name,
        error_kind=error.kind,
        error=error.message,
    )
