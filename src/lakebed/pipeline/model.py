"""The plain data of pipelines: tables, planned steps, and the record of what each step did.

Invariants:
- A `Plan` is complete: variables are substituted, loops unrolled, values typed; it is made without Spark or Java.
- A step's `ordinal` is its position in the unrolled plan, from 1; (run id, ordinal) identifies its commit.
- The same file with the same variables gives the same `Plan.fingerprint`, on every machine.
Knows no store and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakebed.pipeline.nodes import SourceLocation


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One declared column."""

    name: str
    type: str
    """Paimon's type text without nullability, such as ``BIGINT`` or ``DECIMAL(10, 2)``."""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of the pipeline's lake, created when absent."""

    name: str
    columns: tuple[ColumnSpec, ...] = ()
    """Empty: the first rows that are written determine the columns, which the table then pins."""
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step, ready to run."""

    ordinal: int
    name: str
    """Unique in the plan."""
    kind: str
    """The name of its `StepKind`, such as ``merge``."""
    settings: Mapping[str, Any]
    """Every key of the kind, typed, with defaults filled in."""
    line: int
    group: str
    """The iteration that the step belongs to, such as ``month 2013-01``; empty outside of loops."""
    fingerprint: str
    """Hex digest of kind, name and settings."""


@dataclass(frozen=True, slots=True)
class StepIdentity:
    """One step of a plan, identified by what it does and what it needs."""

    step: PlannedStep
    source: str
    """Hex digest of what the step does and of the views it reads."""
    views: tuple[PlannedStep, ...]
    """The ingest steps whose views it reads; of an ingest step: itself."""
    reads: frozenset[str]
    """Tables that it reads, tags, compacts or expires."""
    writes: str | None
    """The table whose rows it changes."""
    depends_on_all: bool
    """Whether it depends on every step before it."""
    needs_consent: bool
    """Whether it changes rows or names of versions, so that it runs again only with a user's consent."""

    @property
    def touches(self) -> frozenset[str]:
        """Tables whose earlier writers must finish before this step."""
        return self.reads if self.writes is None else self.reads | {self.writes}


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline whose variables have values."""

    pipeline: str
    file: str
    lake: str
    """URL or local path of the lake; with `branch` also a server's URL."""
    variables: Mapping[str, str]
    tables: Mapping[str, TableSpec]
    steps: tuple[PlannedStep, ...]
    fingerprint: str
    branch: str | None = None
    """``repository/branch`` that the pipeline works in; None: the lake itself."""
    table_branch: str | None = None
    """The branch of each table that steps write to until it is published; None: they write to main."""

    @property
    def default_run_id(self) -> str:
        """The run id ``<pipeline>-<12 hex digits>``. The same definition and variables continue the same run."""
        return f"{self.pipeline}-{self.fingerprint[:12]}"

    def location(self, step: PlannedStep) -> SourceLocation:
        """Return where the file declares a step."""
        return SourceLocation(self.file, step.line)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of a finished step in the ledger."""

    ordinal: int
    name: str
    verb: str
    """The kind of the step. The ledger's files call it so."""
    group: str
    fingerprint: str
    started_ms: int
    """Unix time in milliseconds, UTC."""
    seconds: float
    metrics: Mapping[str, Any]
    """What the step recorded: ``table``, ``snapshot``, ``rows``, ``files``, ``bytes``, ...; see its kind's module."""
    identity: str = ""
    """`StepIdentity.source`; empty in records of older versions."""
    carried_from: str = ""
    """``<run>/<ordinal>`` of the earlier record that counts for this step; empty: this run did the step."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of one call of `run_file`."""

    run_id: str
    pipeline: str
    lake: str
    steps_total: int
    steps_run: int
    steps_skipped: int
    """Steps that were in the ledger when the call began, or were taken over from an earlier run."""
    seconds: float
    records: tuple[StepRecord, ...]
    """Every step's record, old and new, in order."""
    report_path: str | None = None
    """The HTML page, when a report step wrote one."""
    inputs_changed: tuple[str, ...] = ()
    """If there was nothing to do: the ingest steps whose local files have changed since the run read them."""
    steps_carried: int = 0
    """Number of skipped steps that earlier runs of another definition finished."""
