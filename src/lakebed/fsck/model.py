"""The frame of every check: `Finding`, `CheckReport`, and `Findings`, which collects the findings of one store.

A check reads; what it finds goes through `Findings`: a broken promise (`error`), an object that is missing or has
another size (`check_object`), an object that cannot be read (`reading`), an object that nothing names (`orphan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lakebed.errors import Corruption, LakebedError, NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectMeta
from lakebed.reclaim.model import HTML_ROWS_MAX
from lakebed.texts import html_table

Severity = Literal["error", "warning", "info"]
"""error: a promise is broken. warning: the store works, but look at it. info: no action needed (an orphan file)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

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
    """How far a check has got, in steps of unequal length."""

    done_count: int
    total_count: int


@dataclass(slots=True)
class CheckReport:
    """What was checked, and what was found."""

    url: str
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    table_count: int = 0
    database_count: int = 0
    repository_count: int = 0
    tenant_count: int = 0
    version_count: int = 0
    """Distinct snapshots and tags, of all branches; manifests that are the newest or pinned; commits;
    readable versions of tenants."""
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
        rows = [
            (finding.severity, finding.store, finding.path, finding.sentence)
            for finding in self.findings[:HTML_ROWS_MAX]
        ]
        return html_table(("severity", "store", "path", "finding"), rows, title=repr(self))

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def error_count(self) -> int:
        """The number of broken promises; zero means that the lake is sound."""
        return self.count("error")

    def facts(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        return {
            "url": self.url,
            "deep": self.deep,
            "tables": self.table_count,
            "databases": self.database_count,
            "repositories": self.repository_count,
            "tenants": self.tenant_count,
            "versions": self.version_count,
            "files": self.file_count,
            "bytes": self.size_bytes,
            "orphan_bytes": self.orphan_bytes,
            "errors": self.error_count,
            "warnings": self.count("warning"),
            "findings": [asdict(finding) for finding in self.findings],
        }


class Findings:
    """Collects the findings of one store. Each path is reported once for each kind of fault."""

    def __init__(self, report: CheckReport, *, store: str, progress: Callable[[Progress], None] | None = None) -> None:
        self.report = report
        self.store = store
        self._progress = progress
        self._seen: set[tuple[str, str]] = set()
        self._done_count = 0

    def add(self, severity: Severity, kind: str, path: str, sentence: str, **facts: Any) -> None:
        """Report a finding, unless one of this kind was reported for the path before."""
        if (kind, path) not in self._seen:
            self._seen.add((kind, path))
            self.report.findings.append(Finding(severity, kind, self.store, path, sentence, facts))

    def error(self, kind: str, path: str, sentence: str, **facts: Any) -> None:
        """Report a broken promise."""
        self.add("error", kind, path, sentence, **facts)

    def check_object(self, path: str, meta: ObjectMeta | None, *, size_bytes: int, needed_by: str) -> bool:
        """Report an object that is missing, or whose size differs from the stated one. Return whether it is intact.

        Args:
            meta: the object as the store lists it; None: it is not there.
            size_bytes: the size that `needed_by` states.
            needed_by: what refers to the object, such as ``snapshot 3``.
        """
        if meta is None:
            self.missing(path, needed_by)
            return False
        if meta.size_bytes != size_bytes:
            sentence = f"has {meta.size_bytes:,} bytes; {needed_by} says {size_bytes:,}."
            self.error("wrong_size", path, sentence, needed_by=needed_by)
            return False
        return True

    def orphan(self, meta: ObjectMeta, sentence: str = "is named by no version.", **facts: Any) -> None:
        """Report an object that nothing refers to, and count its bytes."""
        self.report.orphan_bytes += meta.size_bytes
        facts = facts or {"modified_ms": meta.modified_ms, "size_bytes": meta.size_bytes}
        self.add("info", "orphan", meta.path, sentence, **facts)

    def missing(self, path: str, needed_by: str) -> None:
        """Report an object that is not there."""
        self.error("missing", path, f"is missing, but {needed_by} needs it.", needed_by=needed_by)

    @contextmanager
    def reading(self, path: str, *, needed_by: str) -> Iterator[None]:
        """Turn an error of reading an object into a finding, and continue after the block."""
        try:
            yield
        except NotFound:
            self.missing(path, needed_by)
        except (Corruption, UnsupportedFormat) as problem:
            sentence = f"{problem.message.rstrip('.')} ({needed_by} needs it)."
            self.error(problem.kind, path, sentence, needed_by=needed_by)
        except LakebedError as problem:
            if problem.kind == "unavailable":
                raise  # the store is at fault, not its contents
            self.error(problem.kind, path, problem.message, needed_by=needed_by)

    @contextmanager
    def whole_store(self) -> Iterator[None]:
        """Turn an error that ends the check of a store into a finding, so that other stores are still checked."""
        try:
            yield
        except LakebedError as problem:
            if problem.kind == "unavailable":
                raise
            self.error(problem.kind, str(problem.facts.get("path", "")), problem.message)

    def step(self, total_count: int) -> None:
        """Report progress: one more step of about `total_count` is done."""
        self._done_count += 1
        if self._progress is not None:
            self._progress(Progress(self._done_count, max(total_count, self._done_count)))
