"""The content of a report as data: what the JSON file holds, and what the HTML page shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakebed.pipeline.ledger import RunStatus
from lakebed.pipeline.model import StepRecord

BAD_LOAD_KINDS = ("audit_failed", "bad_rows")
"""Kinds of errors that mean that the rows of a delivery were refused."""
REPEATED_KIND = "merged_already"


@dataclass(frozen=True, slots=True)
class Check:
    """A verification that was done outside of the lake, such as of a tag's rows against their source."""

    subject: str
    held: bool
    detail: str
    table: str | None = None
    tag: str | None = None
    """With `table`: the check is about this tag, and is shown in its row."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows and the checksum of a version."""

    rows: int
    checksum: str
    read_ms: int | None = field(default=None, compare=False)
    """When a step read it (the step's start), Unix time in milliseconds, UTC; None: read for this report."""


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """One commit to a table."""

    snapshot: int
    committed_ms: int
    step: str
    """Name of the step that made it; empty: it was made outside of pipelines."""
    verb: str
    group: str
    rows: int
    files_total: int
    bytes_total: int
    """Bytes of the data files of this version."""
    bytes_written: int
    """Bytes of the data files that the known commits up to this one wrote."""
    alive: bool
    """Whether the snapshot still exists."""
    rolled_back: bool = False
    """Whether a rollback undid it, and the rollback's own snapshot still exists."""


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
    """Whether its snapshot still exists. A tag does not need it."""
    reads_same: bool | None
    """Whether its content at `read_ms` was the same as when it was tagged; None: it was not read since."""
    check: Check | None
    read_ms: int | None = None
    """When it was last read and compared, Unix time in milliseconds, UTC; None: it was not read since it was tagged."""
    read_now: bool = False
    """Whether it was read for this report. If not, the current state of the tag's files is unknown."""
    expires_ms: int | None = None
    """The end of its lifetime, Unix time in milliseconds, UTC; None: it is kept until it is deleted."""


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
    """Metrics of the expire steps and ``started_ms``, in order of time."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One call of a run that an error ended."""

    ended_ms: int
    step: str | None
    kind: str | None
    """Kind of the error."""
    sentence: str
    bad_load: bool
    """Whether rows were refused, by an audit or because they do not fit their schema."""
    repaired_ms: int | None
    """When a later call of the run finished the step."""

    @property
    def is_repeated_increment(self) -> bool:
        """Whether an increment was refused because another run had merged it."""
        return self.kind == REPEATED_KIND


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run with its steps."""

    status: RunStatus
    steps: tuple[StepRecord, ...]
    stops: tuple[Stop, ...] = ()
    """In order of time, including those that a later call repaired."""
    is_writing: bool = False
    """Whether this report is a step of it, so that it cannot be complete yet."""
    continued_by: str | None = None
    """The later run of the pipeline that continued this incomplete run; None: none did."""


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
