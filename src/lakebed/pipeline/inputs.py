"""The identity of an increment: it recognises the same increment under another name, in another run or pipeline.

Owns: `Inputs`. The identity of an increment is the content of its input files (SHA-256 of their bytes, whatever their
names), with the SQL that selects from them (`where`, `query`, `version`, `select`). An increment without files is
identified by the snapshots of the tables that it reads.

Invariants: a call reads each file once, in pieces. A missing file has no identity. For a URL, `Inputs.of` uses sizes
and times that Spark reports.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from lakebed.pipeline.model import PlannedStep, StepIdentity

_PIECE_BYTES = 1 << 20


class Inputs:
    """Identities of increments. Caches the digests of files for one call.

    Args:
        remote: returns path, size and time of change of the files that a URL names, sorted; None: such increments have
            no identity.
    """

    def __init__(self, remote: Callable[[str], list[tuple[str, int, int]]] | None = None) -> None:
        self._remote = remote
        self._digests: dict[tuple[str, int, int], str] = {}

    def of(self, identity: StepIdentity, *, tables: Callable[[], list[tuple[str, int]]] | None = None) -> str | None:
        """Return the identity of what a step reads; None when it is unknown.

        Args:
            identity: of the step.
            tables: returns the tables that the step reads, with their snapshots; called only when it reads no file.

        Cost: reads the local files of the step's views once, at about 1 GB/s.
        """
        settings = identity.step.settings
        words = [settings.get(name) for name in ("where", "query", "version")]
        if not identity.views:
            tables_read = tables() if tables is not None else []
            return digest(["tables", words, sorted(tables_read)]) if tables_read else None
        contents = []
        for view in identity.views:
            content = self._content(view)
            if content is None:
                return None
            contents.append([content, view.settings["select"]])
        return digest(["files", words, sorted(contents, key=digest)])

    def was_touched(self, identity: StepIdentity, since_ms: int) -> bool:
        """Return whether a local file of a step's views was written since.

        Reads no file: its bytes may be unchanged.
        """
        return any(
            file.stat().st_ctime_ns > since_ms * 1_000_000 for view in identity.views for file in _find_files(view)
        )

    def _content(self, view: PlannedStep) -> str | None:
        pattern = view.settings["from"]
        if "://" in pattern:
            return None if self._remote is None else digest(self._remote(pattern))
        files = _find_files(view)
        return digest(sorted(self._digest(file) for file in files)) if files else None

    def _digest(self, file: Path) -> str:
        facts = file.stat()
        key = (str(file.absolute()), facts.st_size, facts.st_mtime_ns)
        if key not in self._digests:
            digest = hashlib.sha256()
            with file.open("rb") as body:
                while piece := body.read(_PIECE_BYTES):
                    digest.update(piece)
            self._digests[key] = digest.hexdigest()
        return self._digests[key]


def digest(value: object) -> str:
    """Return the hex digest of plain data, which is the same on every machine."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()


def _find_files(view: PlannedStep) -> list[Path]:
    pattern = view.settings["from"]
    paths = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    return [file for path in paths for file in _files(Path(path))]


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that Spark reads below a path: none that are hidden or begin with ``_``."""
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(("_", ".")):
                yield from _files(entry)
    elif path.is_file():
        yield path
