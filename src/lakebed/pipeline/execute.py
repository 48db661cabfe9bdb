"""The execution of a plan: skip what the ledger has, run the other steps in order, record each one.

Owns: the order of a run. Invariants:
- A step is recorded only after its effects are durable.
- After a failed step, no later step runs.
- A call after a kill continues where the killed call stopped.
- A step that changes rows or names of versions does not run again without a person's consent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import lakebed.spark
from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.pipeline.carry import check_patterns, input_change, matches, plan_carry, refuse_reruns
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.identity import identities
from lakebed.pipeline.inputs import Inputs
from lakebed.pipeline.ledger import RUNS_ELSEWHERE, AttemptEnd, Ledger
from lakebed.pipeline.model import Plan, PlannedStep, RunSummary, StepIdentity, StepRecord
from lakebed.pipeline.preflight import check_tables, check_tags, earlier_runs
from lakebed.pipeline.progress import Progress, SilentProgress
from lakebed.pipeline.steps import KINDS
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunCall:
    """One call of run: what runs, where, and how."""

    plan: Plan
    workspace: Workspace
    ledger: Ledger
    environment: Environment
    spark: SparkSession | None = None
    """None: a session is started when a step needs one."""
    progress: Progress = field(default_factory=SilentProgress)
    replay: Sequence[str] = ()
    """Names and patterns of steps that may run again."""
    carry: Sequence[str] = ()
    """Names and patterns of changed steps that count as done."""
    takes_over: bool = False
    """Steps that earlier runs of the pipeline finished count as done."""


@dataclass(frozen=True, slots=True)
class _Start:
    """The state in which a call finds its run."""

    steps: Sequence[StepIdentity]
    replay: Sequence[str]
    """Steps to run again: those of this call, and of the call that began the run."""
    done: Mapping[int, StepRecord]
    """Records by ordinal, with those of `carried`."""
    carried: Sequence[StepRecord]
    """Records that this call takes over from earlier runs."""
    is_over: bool
    """The run was complete before the call."""


def execute(call: RunCall) -> RunSummary:
    """Run a plan in an open workspace, with a ledger.

    A kill (or Ctrl-C) records no end of the call, so the ledger reports the run as unfinished; nor does a call that
    stops because another one runs the same steps. A call that finds the run complete changes neither its end nor its
    number of calls.

    Raises `InvalidRequest`, `AlreadyExists`, `Rejected`: see `run.run_file`.
    """
    plan, ledger, progress, clock = call.plan, call.ledger, call.progress, call.environment.clock
    began_s = clock.monotonic_s()
    start = _start(call)
    attempt = 0 if start.is_over else ledger.begin(plan, replay=start.replay)
    ledger.carry(attempt, start.carried)
    progress.run_began(plan, run_id=ledger.run_id, steps_done=len(start.done))
    current: PlannedStep | None = None
    with tempfile.TemporaryDirectory(prefix="lakebed-pipeline-") as scratch:
        context = RunContext(
            plan=plan,
            run_id=ledger.run_id,
            workspace=call.workspace,
            environment=call.environment,
            scratch_folder=Path(scratch),
            start_spark=_spark_starter(call.spark, progress),
            identities={identity.step.ordinal: identity for identity in start.steps},
            replay=start.replay,
            is_resumed=attempt > 1,
        )
        try:
            for current in plan.steps:
                _advance(current, context, call, start.done)
        except BaseException as error:
            progress.run_ended(None)
            if isinstance(error, LakebedError) and error.kind != RUNS_ELSEWHERE and not start.is_over:
                ledger.end(attempt, _failure(error, current, ended_ms=clock.now_ms()))
            raise
        finally:
            context.close()
    if not start.is_over:
        ledger.end(attempt, AttemptEnd(ended_ms=clock.now_ms(), outcome="complete"))
    summary = _summary(call, start, context.records, seconds=clock.monotonic_s() - began_s)
    progress.run_ended(summary)
    return summary


def _start(call: RunCall) -> _Start:
    """Check the plan against the lake, and decide which steps are done. Writes nothing."""
    plan, ledger, lake = call.plan, call.ledger, call.workspace.lake
    check_tables(plan, lake)
    check_patterns(plan, replay=call.replay, carry=call.carry)
    steps = identities(plan)
    replay = _replay_of_run(call)
    done_records = ledger.records()
    _check_replay(call, done_records)
    carried_records: Sequence[StepRecord] = ()
    if call.takes_over and len(done_records) < len(plan.steps):
        carried_records = _carry(call, steps, done_records, replay=replay)
        done_records |= {record.ordinal: record for record in carried_records}
    check_tags(plan, lake, done_records)
    is_over = len(done_records) == len(plan.steps) and not carried_records and ledger.is_complete()
    return _Start(steps, replay, done_records, carried_records, is_over)


def _replay_of_run(call: RunCall) -> tuple[str, ...]:
    """Return the patterns to replay: of this call, and of the call that began the run.

    Raises `InvalidRequest`: the run belongs to another plan.
    """
    try:
        call.ledger.check(call.plan)
    except NotFound:
        return tuple(dict.fromkeys(call.replay))
    return tuple(dict.fromkeys((*call.replay, *call.ledger.run().replay)))


def _check_replay(call: RunCall, done_records: Mapping[int, StepRecord]) -> None:
    """Refuse to replay a step that the run has done, unless the run began with that: it does each step once."""
    if not call.replay or not done_records:
        return
    begun_replay = call.ledger.run().replay
    patterns = [pattern for pattern in call.replay if pattern not in begun_replay]
    names = [step.name for step in call.plan.steps if step.ordinal in done_records and matches(step.name, patterns)]
    if names:
        raise InvalidRequest(
            f"{call.plan.file}: --replay names '{names[0]}', which the run {call.ledger.run_id} has done, and a run "
            "does each step once. Nothing was done: leave --replay out to continue the run, or give another --run-id.",
            kind="replay_of_done",
            step=names[0],
        )


def _carry(
    call: RunCall, steps: Sequence[StepIdentity], done_records: Mapping[int, StepRecord], *, replay: Sequence[str]
) -> Sequence[StepRecord]:
    """Return the records of earlier runs that stand for steps of this plan.

    Raises `InvalidRequest`: finished steps would run again without consent.
    """
    run_id = call.ledger.run_id
    carry = plan_carry(
        call.plan,
        steps,
        run_id=run_id,
        done=done_records,
        earlier=earlier_runs(call.plan, call.workspace.lake, run_id=run_id, environment=call.environment),
        content=Inputs().of,
        replay=replay,
        carry=call.carry,
    )
    if carry.reruns:
        raise refuse_reruns(call.plan, carry.reruns)
    return carry.records


def _advance(step: PlannedStep, context: RunContext, call: RunCall, done_records: Mapping[int, StepRecord]) -> None:
    kind = KINDS[step.kind]
    if step.ordinal in done_records:
        kind.recall(step, context)
        context.records.append(done_records[step.ordinal])
        return
    call.progress.step_started(step)
    clock = context.environment.clock
    started_ms, started_s = clock.now_ms(), clock.monotonic_s()
    metrics = context.mark_metrics(kind.run(step, context))
    record = StepRecord(
        ordinal=step.ordinal,
        name=step.name,
        verb=step.kind,
        group=step.group,
        fingerprint=step.fingerprint,
        started_ms=started_ms,
        seconds=round(clock.monotonic_s() - started_s, 4),
        metrics=metrics,
        identity=context.identities[step.ordinal].source,
    )
    call.ledger.record(record)
    context.records.append(record)
    call.progress.step_finished(step, record)


def _spark_starter(spark: SparkSession | None, progress: Progress) -> Callable[[], SparkSession]:
    def start() -> SparkSession:
        if spark is not None:
            return spark
        progress.spark_starting()
        return lakebed.spark.session("lakebed pipeline")

    return start


def _failure(error: LakebedError, step: PlannedStep | None, *, ended_ms: int) -> AttemptEnd:
    return AttemptEnd(
        ended_ms=ended_ms,
        outcome="failed",
        step=None if step is None else step.name,
        error_kind=error.kind,
        error=error.message,
    )


def _summary(call: RunCall, start: _Start, records: Sequence[StepRecord], *, seconds: float) -> RunSummary:
    plan, done_records = call.plan, start.done
    report_path = next((record.metrics.get("html") for record in reversed(records) if record.verb == "report"), None)
    return RunSummary(
        run_id=call.ledger.run_id,
        pipeline=plan.pipeline,
        lake=plan.lake,
        steps_total=len(plan.steps),
        steps_run=len(plan.steps) - len(done_records),
        steps_skipped=len(done_records),
        seconds=seconds,
        records=tuple(records),
        report_path=report_path,
        inputs_changed=_find_changed_inputs(start.steps, done_records) if start.is_over else (),
        steps_carried=sum(bool(record.carried_from) for record in done_records.values()),
    )


def _find_changed_inputs(steps: Sequence[StepIdentity], done_records: Mapping[int, StepRecord]) -> tuple[str, ...]:
    """Return the finished ingest steps whose local files changed. Cost: 1 stat a file; reads those written since."""
    inputs = Inputs()
    names: list[str] = []
    for identity in steps:
        record = done_records[identity.step.ordinal]
        with suppress(OSError):  # an unreadable file must not fail a call that has nothing to do
            if (
                KINDS[identity.step.kind].reads_files
                and inputs.was_touched(identity, record.started_ms)
                and input_change(record, identity, inputs.of) is not None
            ):
                names.append(identity.step.name)
    return tuple(names)
