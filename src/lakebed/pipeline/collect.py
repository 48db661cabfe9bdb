"""Collect the facts of a report from the run ledgers and the tables of a lake.

Owns: `collect`. Invariants: reads only. No fact is guessed: an expired version is known from the ledger, and an
existing one from the table. What neither knows is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from typing_extensions import Unpack

from lakebed.lake.lake import Lake
from lakebed.pipeline.ledger import AttemptEnd, Ledger, run_statuses
from lakebed.pipeline.measure import commit_bytes, disk_use, snapshot_on_main, totals
from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.report_model import (
    BAD_LOAD_KINDS,
    Check,
    Fingerprint,
    ReportFacts,
    RunFacts,
    Stop,
    TableFacts,
    TagFacts,
    VersionFacts,
)
from lakebed.runtime import Environment
from lakebed.table.model.model import ROLLED_BACK_TO
from lakebed.table.table import Table


class ReportOptions(TypedDict, total=False):
    """What a report covers; every key has a default.

    Keys:
        title: the heading; empty or None: the names of the pipelines.
        run_id: only this run; None: every run of the lake.
        writing_run: the run that has this report as a step.
        checks: verifications from outside of the lake, shown with the tags that they are about, or in a list.
        fingerprints: the current readings of tags, by (table, tag), compared with the fingerprints from when they were
            tagged. Missing ones are taken from the last report step that read them, with the time of that step.
    """

    title: str | None
    run_id: str | None
    writing_run: str | None
    checks: Sequence[Check]
    fingerprints: Mapping[tuple[str, str], Fingerprint] | None


def collect(lake: Lake, *, environment: Environment, **options: Unpack[ReportOptions]) -> ReportFacts:
    """Collect all facts of a report. Raises `NotFound` if there is no such run."""
    run_id, checks = options.get("run_id"), options.get("checks", ())
    if run_id is None:
        ids = [status.run_id for status in reversed(run_statuses(lake.store, environment=environment))]
    else:
        ids = [run_id]
    runs = _runs([Ledger(lake.store, run_id=id, environment=environment) for id in ids], options.get("writing_run"))
    # A step that a run took over is shown in the run that did it.
    steps = [step for run in runs for step in run.steps if run_id is not None or not step.carried_from]
    read_again = {**read_fingerprints(steps), **(options.get("fingerprints") or {})}
    names = sorted({str(step.metrics["table"]) for step in steps if "table" in step.metrics})
    now_ms = environment.clock.now_ms()
    tables = tuple(
        _table_facts(lake.table(name), name, steps, checks=checks, fingerprints=read_again, now_ms=now_ms)
        for name in names
        if lake.has_table(name)
    )
    return ReportFacts(
        title=options.get("title") or _title(runs),
        lake=lake.store.root_url,
        generated_ms=now_ms,
        runs=tuple(runs),
        tables=tables,
        checks=tuple(checks),
    )


def _title(runs: Sequence[RunFacts]) -> str:
    names = list(dict.fromkeys(run.status.pipeline for run in runs))
    if not names:
        return "No pipeline has run yet"
    shown_names = names[:3] if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return (
        f"Pipeline {names[0]}" if len(names) == 1 else f"Pipelines {', '.join(shown_names[:-1])} and {shown_names[-1]}"
    )


def _runs(ledgers: Sequence[Ledger], writing_run: str | None) -> list[RunFacts]:
    """Return the runs in the order of their ledgers; incomplete runs with the run that continued them."""
    runs = []
    for ledger in ledgers:
        steps = tuple(ledger.records().values())
        stops = _stops(ledger.ends().values(), steps)
        runs.append(RunFacts(ledger.status(), steps, stops, is_writing=ledger.run_id == writing_run))
    for number, run in enumerate(runs):
        if run.status.state == "complete" or run.is_writing:
            continue
        later = zip(runs[number + 1 :], ledgers[number + 1 :], strict=True)
        continuing = (other for other, ledger in later if _continues(run, ledgers[number], other, ledger))
        runs[number] = replace(run, continued_by=next((other.status.run_id for other in continuing), None))
    return runs


def _continues(run: RunFacts, ledger: Ledger, later: RunFacts, later_ledger: Ledger) -> bool:
    """Return whether `later`, a run of the same pipeline, did the work of `run` in a call after its last one."""
    before, after = ledger.run(), later_ledger.run()
    if before.pipeline != after.pipeline or not before.variables.items() <= after.variables.items():
        return False
    if not (before.is_of_definition and after.is_of_definition):
        return False  # a run whose id a user gave is never continued by another
    failed_step = run.status.failed_step
    is_done = later.status.state == "complete"
    if later.is_writing and failed_step is not None:
        is_done = {failed_step, *(step.name for step in run.steps)} <= {step.name for step in later.steps}
    return is_done and later_ledger.last_began_ms() >= ledger.last_began_ms()


def _stops(ends: Iterable[AttemptEnd], steps: Sequence[StepRecord]) -> tuple[Stop, ...]:
    new_steps = (step for step in steps if not step.carried_from)
    done_ms = {step.name: step.started_ms + round(1000 * step.seconds) for step in new_steps}
    return tuple(
        Stop(
            ended_ms=end.ended_ms,
            step=end.step,
            kind=end.error_kind,
            sentence=end.error or "",
            bad_load=end.error_kind in BAD_LOAD_KINDS,
            repaired_ms=done_ms.get(end.step) if end.step is not None else None,
        )
        for end in ends
        if end.outcome == "failed"
    )


def fingerprints_of_tags(steps: Iterable[StepRecord]) -> dict[tuple[str, str], Fingerprint]:
    """Return the fingerprints that tag steps recorded, by (table, tag). Later steps take precedence."""
    return {
        (str(step.metrics["table"]), str(step.metrics["tag"])): Fingerprint(
            int(step.metrics["rows"]), str(step.metrics["checksum"]), step.started_ms
        )
        for step in sorted(steps, key=_start_ms)
        if step.verb == "tag" and "checksum" in step.metrics
    }


def read_fingerprints(steps: Iterable[StepRecord]) -> dict[tuple[str, str], Fingerprint]:
    """Return the fingerprints that report steps read again, by (table, tag). Later steps take precedence."""
    return {
        (str(tag["table"]), str(tag["tag"])): Fingerprint(int(tag["rows"]), str(tag["checksum"]), step.started_ms)
        for step in sorted(steps, key=_start_ms)
        if step.verb == "report"
        for tag in step.metrics["tags_read"]
    }


def _start_ms(step: StepRecord) -> int:
    return step.started_ms


def _last_reading(fingerprint: Fingerprint | None, read: Fingerprint | None) -> Fingerprint | None:
    """Return `read`, unless the tag was replaced after it."""
    if fingerprint is None or read is None or read.read_ms is None or fingerprint.read_ms is None:
        return read
    return read if read.read_ms >= fingerprint.read_ms else None


def _table_facts(
    table: Table,
    name: str,
    steps: Sequence[StepRecord],
    *,
    checks: Sequence[Check],
    fingerprints: Mapping[tuple[str, str], Fingerprint],
    now_ms: int,
) -> TableFacts:
    table_steps = [step for step in steps if step.metrics.get("table") == name]
    use = disk_use(table)
    alive = set(table.context.snapshots.ids())
    prints_by_tag = fingerprints_of_tags(table_steps)
    tags = []
    for tag in sorted(table.tags(), key=lambda tag: (tag.snapshot.id, tag.name)):
        before = prints_by_tag.get((name, tag.name))
        last_reading = _last_reading(before, fingerprints.get((name, tag.name)))
        reading, is_compared = last_reading or before, before is not None and last_reading is not None
        read_now = is_compared and last_reading is not None and last_reading.read_ms is None
        tags.append(
            TagFacts(
                tag=tag.name,
                snapshot=tag.snapshot.id,
                committed_ms=tag.snapshot.time_ms,
                rows=None if reading is None else reading.rows,
                checksum=None if reading is None else reading.checksum,
                data_bytes=totals(table, tag.snapshot)[1],
                alive=tag.snapshot.id in alive,
                reads_same=before == last_reading if is_compared else None,
                check=next((check for check in checks if (check.table, check.tag) == (name, tag.name)), None),
                read_ms=now_ms
                if read_now
                else last_reading.read_ms
                if is_compared and last_reading is not None
                else None,
                read_now=read_now,
                expires_ms=tag.expires_ms,
            )
        )
    return TableFacts(
        name=name,
        rows=table.scan().count() if alive else 0,
        data_bytes=use.data_bytes,
        metadata_bytes=use.metadata_bytes,
        versions=_versions(table, table_steps, alive, published=_publishing_steps(steps, name)),
        tags=tuple(tags),
        expiries=tuple(
            {**step.metrics, "started_ms": step.started_ms}
            for step in sorted(table_steps, key=_start_ms)
            if step.verb == "expire"
        ),
    )


def _publishing_steps(steps: Sequence[StepRecord], table: str) -> dict[int, StepRecord]:
    """Return the steps that published a table, by the snapshot of main; after a crash the step that found it there."""
    return {
        int(entry["snapshot"]): step
        for step in steps
        for entry in step.metrics.get("published", ())
        if entry["table"] == table
    }


def _versions(
    table: Table, steps: Sequence[StepRecord], alive: set[int], *, published: Mapping[int, StepRecord]
) -> tuple[VersionFacts, ...]:
    versions: list[VersionFacts] = []
    steps_by_snapshot = {number: step for step in steps if (number := snapshot_on_main(step)) is not None}
    undone_ids = _find_undone(table, alive)
    written_bytes = 0
    for snapshot_id in sorted({*steps_by_snapshot, *alive}):
        step = steps_by_snapshot.get(snapshot_id)
        if step is not None:
            label, verb, group, metrics = step.name, step.verb, step.group, step.metrics
        else:
            snapshot = table.snapshot(snapshot_id)
            files, size = totals(table, snapshot)
            by = published.get(snapshot_id)
            label, verb, group = ("", snapshot.commit_kind.lower(), "") if by is None else (by.name, by.verb, by.group)
            metrics = {
                "committed_ms": snapshot.time_ms,
                "rows": max(snapshot.delta_record_count, 0),
                "files_total": files,
                "bytes_total": size,
                "bytes_added": commit_bytes(table, snapshot),
            }
        written_bytes += int(metrics["bytes_added"])
        facts = {name: int(metrics[name]) for name in ("committed_ms", "rows", "files_total", "bytes_total")}
        versions.append(
            VersionFacts(
                snapshot=snapshot_id,
                step=label,
                verb=verb,
                group=group,
                bytes_written=written_bytes,
                alive=snapshot_id in alive,
                rolled_back=snapshot_id in undone_ids,
                **facts,
            )
        )
    return tuple(versions)


def _find_undone(table: Table, alive: set[int]) -> set[int]:
    """Return the ids between the target of a rollback and the rollback, as far as existing snapshots show."""
    undone_ids: set[int] = set()
    for snapshot_id in alive:
        target = table.snapshot(snapshot_id).properties.get(ROLLED_BACK_TO)
        if target is not None and target.isdecimal():
            undone_ids.update(range(int(target) + 1, snapshot_id))
    return undone_ids - alive
