"""What a check finds: `Finding` and `CheckReport`. Pure data, but for `Findings`, which collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from lakebed.errors import Corruption, LakebedError, NotFound, UnsupportedFormat
from lakebed.reclaim.model import HTML_ROWS_MAX
from lakebed.texts import html_table

__all__ = ["CheckReport", "Finding", "Findings", "Progress", "Severity"]

Severity = Literal["error", "warning", "info"]
"""error: something promised is not so. warning: works, but look at it. info: for the curious, such as orphan files."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found."""

    severity: Severity
    kind: str
    """Stable name, for scripts: ``missing``, ``wrong_size``, ``undecodable``, ``orphan``, ..."""
    store: str
    path: str
    """Relative to the store's root."""
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a check is, in steps of unequal length."""

    done_count: int
    total_count: int


@dataclass(slots=True)
class CheckReport:
    """What was checked and what was found."""

    url: str
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    table_count: int = 0
    database_count: int = 0
    repository_count: int = 0
    version_count: int = 0
    """Distinct snapshots and tags, of all branches; manifests that are the newest or pinned; commits."""
    file_count: int = 0
    """Distinct data files that versions need."""
    size_bytes: int = 0
    orphan_bytes: int = 0

    def __repr__(self) -> str:
        return (
            f"CheckReport({self.url!r}, errors={self.error_count}, warnings={self.count('warning')}, "
            f"versions={self.version_count}, files={self.file_count}, deep={self.deep})"
        )

    def _repr_html_(self) -> str:
        """For a notebook: the findings."""
        rows = [(one.severity, one.store, one.path, one.sentence) for one in self.findings[:HTML_ROWS_MAX]]
        return html_table(("severity", "store", "path", "finding"), rows, title=repr(self))

    def count(self, severity: Severity) -> int:
        """How many findings are of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def error_count(self) -> int:
        """How many promises are broken; zero means that the lake is sound."""
        return self.count("error")

    def facts(self) -> dict[str, Any]:
        """The report for ``--json``."""
        return {
            "url": self.url,
            "deep": self.deep,
            "tables": self.table_count,
            "databases": self.database_count,
            "repositories": self.repository_count,
            "versions": self.version_count,
            "files": self.file_count,
            "bytes": self.size_bytes,
            "orphan_bytes": self.orphan_bytes,
            "errors": self.error_count,
            "warnings": self.count("warning"),
            "findings": [
                {
                    "severity": finding.severity,
                    "kind": finding.kind,
                    "store": finding.store,
                    "path": finding.path,
                    "sentence": finding.sentence,
                    "facts": finding.facts,
                }
                for finding in self.findings
            ],
        }


class Findings:
    """Collects what is found in one table. Each path is reported once for each kind of fault.

    Args:
        report: where findings go.
        store: the table's name.
        progress: called as the check goes on.
    """

    def __init__(self, report: CheckReport, *, store: str, progress: Callable[[Progress], None] | None = None) -> None:
        self.report = report
        self.store = store
        self._progress = progress
        self._seen: set[tuple[str, str]] = set()
        self._done_count = 0

    def add(self, severity: Severity, kind: str, path: str, sentence: str, **facts: Any) -> None:
        """Report something, unless the same was said of the path before."""
        if (kind, path) not in self._seen:
            self._seen.add((kind, path))
            self.report.findings.append(Finding(severity, kind, self.store, path, sentence, facts))

    def error(self, kind: str, path: str, sentence: str, **facts: Any) -> None:
        """Report a broken promise."""
        self.add("error", kind, path, sentence, **facts)

    @contextmanager
    def reading(self, path: str, *, needed_by: str) -> Iterator[None]:
        """Turn an error of reading an object into a finding and go on behind the block."""
        try:
            yield
        except NotFound:
            self.error("missing", path, f"is missing, but {needed_by} needs it.", needed_by=needed_by)
        except (Corruption, UnsupportedFormat) as problem:
            sentence = f"{problem.message.rstrip('.')} ({needed_by} needs it)."
            self.error(problem.kind, path, sentence, needed_by=needed_by)
        except LakebedError as problem:
            if problem.kind == "unavailable":
                raise  # the store is at fault, not what lies in it
            self.error(problem.kind, path, problem.message, needed_by=needed_by)

    def step(self, total_count: int) -> None:
        """Say that one more step is done, of about so many."""
        self._done_count += 1
        if self._progress is not None:
            self._progress(Progress(self._done_count, max(total_count, self._done_count)))
