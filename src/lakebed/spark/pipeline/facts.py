"""What a report says, as data: collected from the run ledgers and the tables of a lake. The HTML page only shows it.

Owns: `ReportFacts` (the JSON report; ``format`` 1) and `collect`. Invariants: reads only; nothing is guessed: a version
that has expired is known from the ledger, a living one from the table, and what neither knows is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.pipeline.ledger import Ledger, RunStatus, run_statuses
from lakebed.spark.pipeline.measure import disk_use, totals
from lakebed.spark.pipeline.model import StepRecord
from lakebed.table.rollback import ROLLED_BACK_TO
from lakebed.table.table import Table

__all__ = ["Check", "Fingerprint", "ReportFacts", "RunFacts", "TableFacts", "TagFacts", "VersionFacts", "collect"]

COMMITTING = ("ingest", "merge", "compact")


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was verified from outside, such as a tag's rows against their source."""

    subject: str
    held: bool
    detail: str
    table: str | None = None
    tag: str | None = None
    """With `table`: the check is about this tag and stands in its row."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Rows and checksum of a version, read now."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """One commit to a table."""

    snapshot: int
    committed_ms: int
    step: str
    """Name of the step that made it; empty when it was made outside of pipelines."""
    verb: str
    group: str
    rows: int
    files_total: int
    bytes_total: int
    """Data files of this version."""
    bytes_written: int
    """Data files written up to this commit, ever."""
    alive: bool
    """Whether the snapshot is still there."""
    rolled_back: bool = False
    """Whether a rollback, whose own snapshot is still there, took it back."""


@dataclass(frozen=True, slots=True)
class TagFacts:
    """One tag."""

    tag: str
    snapshot: int
    committed_ms: int
    rows: int | None
    checksum: str | None
    data_bytes: int
    alive: bool
    """Whether its snapshot is still there too; a tag does not need it."""
    reads_same: bool | None
    """Whether it reads as it did when it was tagged; None when nobody looked."""
    check: Check | None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table of the lake that pipelines wrote to."""

    name: str
    rows: int
    data_bytes: int
    metadata_bytes: int
    versions: tuple[VersionFacts, ...]
    """In order of commit."""
    tags: tuple[TagFacts, ...]
    """In order of snapshot."""
    expiries: tuple[Mapping[str, Any], ...]
    """Metrics of the expire steps."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run with its steps."""

    status: RunStatus
    steps: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """The whole report."""

    title: str
    lake: str
    generated_ms: int
    runs: tuple[RunFacts, ...]
    """Oldest first."""
    tables: tuple[TableFacts, ...]
    checks: tuple[Check, ...]
    format: int = 1


def collect(
    lake: Lake,
    *,
    environment: Environment,
    title: str,
    run_id: str | None = None,
    checks: Sequence[Check] = (),
    fingerprints: Mapping[tuple[str, str], Fingerprint] | None = None,
) -> ReportFacts:
    """Everything a report says.

    Args:
        run_id: only this run; None: every run of the lake.
        checks: what was verified from outside.
        fingerprints: tags as they read now, by (table, tag), compared with those taken when they were tagged; those
            that are not given are taken from the last report step that read them.
    """
    if run_id is None:
        ids = [status.run_id for status in reversed(run_statuses(lake.store, environment=environment))]
    else:
        ids = [run_id]
    runs = []
    for one in ids:
        ledger = Ledger(lake.store, run_id=one, environment=environment)
        runs.append(RunFacts(ledger.status(), tuple(ledger.records().values())))
    steps = [step for run in runs for step in run.steps]
    read_again = {**read_fingerprints(steps), **(fingerprints or {})}
    names = sorted({str(step.metrics["table"]) for step in steps if "table" in step.metrics})
    tables = tuple(
        _table_facts(lake.table(name), name, steps, checks=checks, fingerprints=read_again)
        for name in names
        if lake.has_table(name)
    )
    return ReportFacts(
        title=title,
        lake=lake.store.root_url,
        generated_ms=environment.clock.now_ms(),
        runs=tuple(runs),
        tables=tables,
        checks=tuple(checks),
    )


def taken_fingerprints(steps: Iterable[StepRecord]) -> dict[tuple[str, str], Fingerprint]:
    """What tag steps recorded, by (table, tag); a later step's wins."""
    return {
        (str(step.metrics["table"]), str(step.metrics["tag"])): Fingerprint(
            int(step.metrics["rows"]), str(step.metrics["checksum"])
        )
        for step in steps
        if step.verb == "tag" and "checksum" in step.metrics
    }


def read_fingerprints(steps: Iterable[StepRecord]) -> dict[tuple[str, str], Fingerprint]:
    """What report steps read again, by (table, tag); a later step's wins."""
    return {
        (str(one["table"]), str(one["tag"])): Fingerprint(int(one["rows"]), str(one["checksum"]))
        for step in steps
        if step.verb == "report"
        for one in step.metrics["tags_read"]
    }


def _table_facts(
    table: Table,
    name: str,
    steps: Sequence[StepRecord],
    *,
    checks: Sequence[Check],
    fingerprints: Mapping[tuple[str, str], Fingerprint],
) -> TableFacts:
    own = [step for step in steps if step.metrics.get("table") == name]
    use = disk_use(table)
    alive = set(table.log.ids())
    taken = taken_fingerprints(own)
    tags = []
    for tag in sorted(table.tags(), key=lambda tag: (tag.snapshot.id, tag.name)):
        before, now = taken.get((name, tag.name)), fingerprints.get((name, tag.name))
        known = now or before
        tags.append(
            TagFacts(
                tag=tag.name,
                snapshot=tag.snapshot.id,
                committed_ms=tag.snapshot.time_ms,
                rows=None if known is None else known.rows,
                checksum=None if known is None else known.checksum,
                data_bytes=totals(table, tag.snapshot)[1],
                alive=tag.snapshot.id in alive,
                reads_same=None if before is None or now is None else before == now,
                check=next((check for check in checks if (check.table, check.tag) == (name, tag.name)), None),
            )
        )
    return TableFacts(
        name=name,
        rows=table.scan().count() if alive else 0,
        data_bytes=use.data_bytes,
        metadata_bytes=use.metadata_bytes,
        versions=_versions(table, own, alive),
        tags=tuple(tags),
        expiries=tuple(step.metrics for step in own if step.verb == "expire"),
    )


def _versions(table: Table, steps: Sequence[StepRecord], alive: set[int]) -> tuple[VersionFacts, ...]:
    """Commits that the ledger knows, and those living snapshots that it does not."""
    versions: list[VersionFacts] = []
    recorded = {
        int(step.metrics["snapshot"]): step for step in steps if step.verb in COMMITTING and "snapshot" in step.metrics
    }
    undone = _rolled_back(table, alive)
    written = 0
    for snapshot_id in sorted({*recorded, *alive}):
        step = recorded.get(snapshot_id)
        if step is not None:
            metrics = step.metrics
            written += int(metrics["bytes_added"])
            versions.append(
                VersionFacts(
                    snapshot=snapshot_id,
                    committed_ms=int(metrics["committed_ms"]),
                    step=step.name,
                    verb=step.verb,
                    group=step.group,
                    rows=int(metrics["rows"]),
                    files_total=int(metrics["files_total"]),
                    bytes_total=int(metrics["bytes_total"]),
                    bytes_written=written,
                    alive=snapshot_id in alive,
                    rolled_back=snapshot_id in undone,
                )
            )
            continue
        snapshot = table.snapshot(snapshot_id)
        files, size = totals(table, snapshot)
        versions.append(
            VersionFacts(
                snapshot=snapshot_id,
                committed_ms=snapshot.time_ms,
                step="",
                verb=snapshot.commit_kind.lower(),
                group="",
                rows=max(snapshot.delta_record_count, 0),
                files_total=files,
                bytes_total=size,
                bytes_written=written,
                alive=True,
            )
        )
    return tuple(versions)


def _rolled_back(table: Table, alive: set[int]) -> set[int]:
    """Ids between the target of a rollback and the rollback itself, as far as living snapshots tell."""
    undone: set[int] = set()
    for snapshot_id in alive:
        target = table.snapshot(snapshot_id).properties.get(ROLLED_BACK_TO)
        if target is not None and target.isdecimal():
            undone.update(range(int(target) + 1, snapshot_id))
    return undone - alive
