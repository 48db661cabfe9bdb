"""Running a pipeline: plan it, skip what the ledger has, do the rest in order, record each step, tell the progress.

Owns: the order of things in a run. Invariants: everything that can be wrong in the file is found before the lake is
touched; a step is recorded only after what it did is durable; a failed step leaves every later one undone; a run that
was killed anywhere goes on where it was when it is called again with the same file and variables (or run id); an edited
file takes over what was finished, and nothing that changes rows or names runs again unless a person says so.
Knows no verb: they are in `steps`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import lakebed.spark
from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.pipeline.carry import changed_input, check_patterns, plan_carry, refuse_again
from lakebed.spark.pipeline.check import CheckReport, check_columns, check_inputs, check_sql
from lakebed.spark.pipeline.context import RunContext, query_names
from lakebed.spark.pipeline.identity import identities
from lakebed.spark.pipeline.inputs import Inputs
from lakebed.spark.pipeline.ledger import AttemptEnd, Ledger, RunStatus, run_statuses
from lakebed.spark.pipeline.model import Plan, PlannedStep, RunSummary, StepIdentity, StepRecord
from lakebed.spark.pipeline.parse import Document, load, parse
from lakebed.spark.pipeline.plan import make_plan
from lakebed.spark.pipeline.preflight import check_tables, check_tags, earlier_runs, which_run
from lakebed.spark.pipeline.progress import Progress, SilentProgress
from lakebed.spark.pipeline.steps import KINDS
from lakebed.spark.pipeline.workspace import Workspace, open_workspace

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
        replay: Sequence[str] = (),
        carry: Sequence[str] = (),
    ) -> RunSummary:
        """Run what is not done yet; see `run_file`. `spark` None: a session is started when a step needs one."""
        environment = environment or Environment()
        plan = self.plan(variables=variables)
        _check_without_lake(plan, storage_options=storage_options, environment=environment)
        if run_id is not None and carry:
            raise InvalidRequest(
                "A run with an id of its own takes nothing over from other runs, so --carry has no meaning in it; "
                "leave --run-id out.",
                kind="carry_with_run_id",
            )
        with open_workspace(
            plan.lake, branch=plan.branch, storage_options=storage_options, environment=environment
        ) as workspace:
            lake = workspace.lake
            chosen = which_run(plan, lake, replay=replay, environment=environment) if run_id is None else run_id
            return execute(
                plan,
                lake=lake,
                ledger=Ledger(lake.store, run_id=chosen, environment=environment),
                spark=spark,
                progress=progress or SilentProgress(),
                environment=environment,
                replay=replay,
                carry=carry,
                takes_over=run_id is None,
                workspace=workspace,
            )


def check_file(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> CheckReport:
    """Find what is wrong in a pipeline file as far as that can be told without running it; changes nothing.

    The lake is looked at (for its tables), when it is there, and the input files; Spark's parser reads the SQL.

    Raises:
        InvalidRequest: the first mistake, with file and line.
    """
    plan = Pipeline.load(path).plan(variables=variables)
    with ExitStack() as opened:
        try:
            workspace = opened.enter_context(
                open_workspace(
                    plan.lake,
                    branch=plan.branch,
                    create=False,
                    storage_options=storage_options,
                    environment=environment or Environment(),
                )
            )
            lake: Lake | None = workspace.lake
        except NotFound:
            lake = None
        check_tables(plan, lake)
        check_columns(plan, lake)
        tables = set() if lake is None else query_names(lake)
    check_inputs(plan)
    return CheckReport(plan, sql_unchecked=check_sql(plan, tables))


def run_file(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    replay: Sequence[str] = (),
    carry: Sequence[str] = (),
) -> RunSummary:
    """Run a pipeline file: every step that its run's ledger does not have yet.

    Args:
        path: the YAML file.
        variables: values for its ``vars``; they win over those in the file.
        run_id: which run this is; None: the one that belongs to this definition and these variables, so that calling
            again goes on after a crash and does nothing after success, and an edited definition takes over what earlier
            runs of the pipeline have finished.
        progress: told what happens; None: silence.
        spark: the session to use; None: one is started when a step first needs it.
        storage_options: for the lake's store.
        replay: steps (names, or patterns such as ``merge *``) that may run again although an earlier run finished them.
        carry: steps that differ from what an earlier run did, and count as done all the same.

    Raises:
        NotFound: no such file.
        InvalidRequest: something is wrong in it (with file and line), or the run id belongs to another plan; or
            finished steps would run again that neither `replay` nor `carry` names (``kind`` is ``replay_needed``).
        AlreadyExists: a tag that the run is to make is elsewhere. Nothing was done.
        Rejected: an audit failed (``kind`` is ``audit_failed``), or another run merged the same increment
            (``merged_already``); nothing after it was done.
        LakebedError: whatever else stopped a step. The run can be called again.
    """
    return Pipeline.load(path).run(
        spark,
        variables=variables,
        run_id=run_id,
        progress=progress,
        storage_options=storage_options,
        environment=environment,
        replay=replay,
        carry=carry,
    )


def status(
    lake_url: str,
    *,
    branch: str | None = None,
    run_id: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> list[RunStatus]:
    """Where the runs of a lake stand, newest first (with `run_id`: that one only; with `branch`: those inside of it).

    Of the one that `run_id` names, the steps are read too: `RunStatus.rows_dropped`.

    Raises:
        NotFound: no lake there, or no such run.
    """
    environment = environment or Environment()
    with open_workspace(
        lake_url, branch=branch, create=False, storage_options=storage_options, environment=environment
    ) as workspace:
        store = workspace.lake.store
        if run_id is None:
            return run_statuses(store, environment=environment)
        ledger = Ledger(store, run_id=run_id, environment=environment)
        found = ledger.status()
        counts = {record.name: int(record.metrics.get("rows_dropped", 0)) for record in ledger.records().values()}
        return [replace(found, rows_dropped={name: count for name, count in counts.items() if count})]


def execute(
    plan: Plan,
    *,
    lake: Lake,
    ledger: Ledger,
    spark: SparkSession | None,
    progress: Progress,
    environment: Environment,
    replay: Sequence[str] = (),
    carry: Sequence[str] = (),
    takes_over: bool = False,
    workspace: Workspace | None = None,
) -> RunSummary:
    """Run a plan against an open lake and a ledger.

    A kill (or Ctrl-C) writes no end of the call: the ledger then says "unfinished", which is what it is.

    A call that finds the run complete leaves its end and its number of calls as they are.

    Args:
        takes_over: what earlier runs of the pipeline did counts.
        workspace: the branch that the lake is in; None: the lake is no part of a branch.
    """
    began_s = environment.clock.monotonic_s()
    check_tables(plan, lake)
    check_patterns(plan, replay=replay, carry=carry)
    steps = identities(plan)
    replay = _asked_again(plan, ledger, replay)
    done = ledger.records()
    carried: Sequence[StepRecord] = ()
    if takes_over and len(done) < len(plan.steps):
        carried = _taken_over(plan, steps, lake, ledger, done, replay=replay, carry=carry, environment=environment)
        done |= {record.ordinal: record for record in carried}
    check_tags(plan, lake, done)
    is_over = len(done) == len(plan.steps) and not carried and ledger.is_complete()
    attempt = 0 if is_over else ledger.begin(plan, replay=replay)
    ledger.carry(attempt, carried)
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
            identities={one.step.ordinal: one for one in steps},
            replay=replay,
            is_resumed=attempt > 1,
            repository=None if workspace is None else workspace.repository,
            branch=None if workspace is None else workspace.branch,
        )
        try:
            for current in plan.steps:
                _advance(current, context, ledger, done, progress)
        except BaseException as error:
            progress.run_ended(None)
            if isinstance(error, LakebedError) and not is_over:
                ledger.end(attempt, _failure(error, current, environment))
            raise
        finally:
            context.close()
    if not is_over:
        ledger.end(attempt, AttemptEnd(ended_ms=environment.clock.now_ms(), outcome="complete"))
    summary = RunSummary(
        run_id=ledger.run_id,
        pipeline=plan.pipeline,
        lake=plan.lake,
        steps_total=len(plan.steps),
        steps_run=len(plan.steps) - len(done),
        steps_skipped=len(done),
        seconds=environment.clock.monotonic_s() - began_s,
        records=tuple(context.records),
        report_path=_report_path(context.records),
        inputs_changed=_changed_inputs(steps, done) if is_over else (),
        steps_carried=sum(bool(record.carried_from) for record in done.values()),
    )
    progress.run_ended(summary)
    return summary


def _check_without_lake(plan: Plan, *, storage_options: Mapping[str, str] | None, environment: Environment) -> None:
    """A table that only a lake can have is looked for before a missing lake is made.

    Raises:
        InvalidRequest: there is no lake, and a step names a table that the plan does not declare.

    Cost: nothing when the plan declares its tables.
    """
    try:
        check_tables(plan, None)
    except InvalidRequest as undeclared:
        if plan.branch is not None:  # a branch that is made has the tables of the one it is made from
            return
        try:
            with open_workspace(plan.lake, create=False, storage_options=storage_options, environment=environment):
                return
        except NotFound:
            raise undeclared from None


def _report_path(records: Sequence[StepRecord]) -> str | None:
    """The page that the last report step wrote."""
    return next((record.metrics.get("html") for record in reversed(records) if record.verb == "report"), None)


def _asked_again(plan: Plan, ledger: Ledger, replay: Sequence[str]) -> tuple[str, ...]:
    """What is to run again: what this call says, and what the call said that began the run.

    Raises:
        InvalidRequest: the run belongs to another plan.
    """
    try:
        ledger.check(plan)
    except NotFound:
        return tuple(dict.fromkeys(replay))
    return tuple(dict.fromkeys((*replay, *ledger.run().replay)))


def _taken_over(
    plan: Plan,
    steps: Sequence[StepIdentity],
    lake: Lake,
    ledger: Ledger,
    done: Mapping[int, StepRecord],
    *,
    replay: Sequence[str],
    carry: Sequence[str],
    environment: Environment,
) -> Sequence[StepRecord]:
    """The records of earlier runs that stand for steps of this plan.

    Raises:
        InvalidRequest: finished steps would run again, and nobody has said that they may.
    """
    found = plan_carry(
        plan,
        steps,
        run_id=ledger.run_id,
        done=done,
        earlier=earlier_runs(plan, lake, run_id=ledger.run_id, environment=environment),
        content=Inputs().of,
        replay=replay,
        carry=carry,
    )
    if found.again:
        raise refuse_again(plan, found.again)
    return found.records


def _changed_inputs(steps: Sequence[StepIdentity], done: Mapping[int, StepRecord]) -> tuple[str, ...]:
    """Done ingest steps whose files hold other bytes now. Cost: 1 stat a file; reads those that were written since."""
    inputs = Inputs()
    found: list[str] = []
    for one in steps:
        record = done[one.step.ordinal]
        with suppress(OSError):  # a file that cannot be read now is no reason to fail where nothing is to be done
            if (
                KINDS[one.step.verb].reads_files
                and inputs.was_touched(one, record.started_ms)
                and changed_input(record, one, inputs.of) is not None
            ):
                found.append(one.step.name)
    return tuple(found)


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
        identity=context.identities[step.ordinal].source,
    )
    ledger.record(record)
    context.records.append(record)
    progress.step_finished(step, record)


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
