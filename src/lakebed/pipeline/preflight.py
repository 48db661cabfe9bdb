"""The checks of the lake before the first step of a run: tables, tags, and what earlier runs finished.

Owns: `check_tables`, `check_tags`, `which_run` and `earlier_runs`. Invariants: reads only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakebed.errors import AlreadyExists
from lakebed.lake.lake import Lake
from lakebed.pipeline.carry import EarlierRun, matches
from lakebed.pipeline.context import newest_commit
from lakebed.pipeline.ledger import Ledger, run_ids
from lakebed.pipeline.model import Plan, PlannedStep, StepRecord
from lakebed.pipeline.nodes import nearest
from lakebed.pipeline.steps import KINDS
from lakebed.runtime import Environment, map_in_pool

OTHER_RUNS_MAX = 100
"""Most runs with other variables whose steps are searched. All runs with the same variables are."""

_READERS = 16


def check_tables(plan: Plan, lake: Lake | None) -> None:
    """Check that every table or view that a step names is declared, made by an earlier step, or in the lake.

    Args:
        lake: None: the lake does not exist yet.
    """
    known_tables = set(plan.tables)
    for step in plan.steps:
        for key in KINDS[step.kind].keys:
            name = step.settings.get(key.name)
            if key.kind in ("table", "rows") and name is not None and name not in known_tables:
                if lake is None or not lake.has_table(name):
                    similar = nearest(name, {*known_tables, *(lake.tables() if lake is not None else ())})
                    absence = "no table" if key.kind == "table" else "neither a table nor a view"
                    raise plan.location(step).error(
                        f"there is {absence} '{name}' in the lake, and `tables` declares none.{similar}"
                    )
                known_tables.add(name)
        if step.settings.get("as") is not None:
            known_tables.add(step.settings["as"])


def check_tags(plan: Plan, lake: Lake, done: Mapping[int, StepRecord]) -> None:
    """Check that every tag still to be created is free, or already on the snapshot that it will be on.

    Args:
        done: the steps that will not run.

    Raises `AlreadyExists`: a tag is on another snapshot, and its step does not say `replace`. Cost: 1 GET for each tag
    that will be created.
    """
    writes: set[str] = set()
    rewrites: set[str] = set()
    records: list[StepRecord] = []
    for step in plan.steps:
        if step.ordinal in done:
            records.append(done[step.ordinal])
            continue
        kind = KINDS[step.kind]
        if (table_name := kind.table_written(step.settings)) is not None:
            writes.add(table_name)
        elif kind.rewrites is not None:
            rewrites.add(step.settings[kind.rewrites])
        elif step.kind == "tag" and not step.settings["replace"]:
            table = step.settings["table"]
            if table in writes or table not in rewrites:
                _check_tag(plan, lake, step, newest_commit(records, table), is_written=table in writes)


def _check_tag(plan: Plan, lake: Lake, step: PlannedStep, committed_id: int | None, *, is_written: bool) -> None:
    """Refuse a tag that exists on another snapshot.

    Args:
        committed_id: the run's last commit to the table; None: there is none, and the tag belongs on the newest
            snapshot.
        is_written: the run commits to the table before the tag, so that no existing snapshot is the right one.
    """
    name, tag = step.settings["table"], step.settings["tag"]
    if not lake.has_table(name):
        return
    table = lake.table(name)
    if not table.tag_exists(tag):
        return
    current, newest = table.tag(tag).snapshot.id, table.latest()
    target = committed_id if committed_id is not None or newest is None else newest.id
    if is_written or current != target:
        raise AlreadyExists(
            f"{plan.location(step)}: the tag '{tag}' of '{name}' is already on snapshot {current}, and "
            f"{step.name} would put it elsewhere. Nothing was done: delete it, choose another name, or say "
            "`replace: true`.",
            tag=tag,
        )


def which_run(plan: Plan, lake: Lake, *, replay: Sequence[str], environment: Environment) -> str:
    """Return the run that a call without a run id continues or begins.

    It is the definition's own run. If a call replays steps that this run has finished or taken over, it begins another
    run, ``<run id>-r2``, and so on.
    """
    base = plan.default_run_id
    runs, number = set(run_ids(lake.store)), 1
    while f"{base}-r{number + 1}" in runs:
        number += 1
    newest = base if number == 1 else f"{base}-r{number}"
    if not replay or newest not in runs:
        return newest
    ledger = Ledger(lake.store, run_id=newest, environment=environment)
    is_unfinished = ledger.status().state != "complete"
    names = {step.ordinal: step.name for step in plan.steps}
    did = any(matches(names[ordinal], replay) for ordinal in ledger.records())
    if is_unfinished and (not did or set(ledger.run().replay) == set(replay)):
        return newest
    return f"{base}-r{number + 1}"


def earlier_runs(plan: Plan, lake: Lake, *, run_id: str, environment: Environment) -> list[EarlierRun]:
    """Return the other runs of the same pipeline, oldest first.

    Cost: 1 LIST, 1 GET for each run, then 2 LIST, and 1 GET for each step.
    """
    ledgers = [Ledger(lake.store, run_id=id, environment=environment) for id in run_ids(lake.store) if id != run_id]
    runs = map_in_pool(environment.runtime, Ledger.run, ledgers, worker_count_max=_READERS)
    mine = sorted(
        ((run, ledger) for run, ledger in zip(runs, ledgers, strict=True) if run.pipeline == plan.pipeline),
        key=lambda pair: (pair[0].started_ms, pair[0].run_id),
    )
    other_runs = [run.run_id for run, _ in mine if run.variables != plan.variables]
    passed_over = set(other_runs[:-OTHER_RUNS_MAX])
    return [
        EarlierRun(run.run_id, dict(run.variables), ledger.records())
        for run, ledger in mine
        if run.run_id not in passed_over
    ]
