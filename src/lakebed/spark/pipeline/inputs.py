"""What an increment is made of, as one number: to know it again under another name, run or pipeline.

Owns: `Inputs`. The identity of an increment is the content of its input files (SHA-256 of their bytes, whatever their
names), with the SQL that selects from them (`where`, `query`, `version`, `select`). An increment without files is known
by the snapshots of the tables it reads. Invariants: reads files once a call, in pieces; a file that is not there, or
lies behind a URL, has no identity here (`Inputs.of` then asks Spark, which knows sizes and times).
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from lakebed.spark.pipeline.model import PlannedStep, StepIdentity

__all__ = ["Inputs", "digest"]

_PIECE_BYTES = 1 << 20


class Inputs:
    """Identities of increments. Remembers the digests of files of one call.

    Args:
        remote: facts of what a URL names (path, size, time of change), sorted; None: such an increment is unknown.
    """

    def __init__(self, remote: Callable[[str], list[tuple[str, int, int]]] | None = None) -> None:
        self._remote = remote
        self._digests: dict[tuple[str, int, int], str] = {}

    def of(self, identity: StepIdentity, *, tables: Callable[[], list[tuple[str, int]]] | None = None) -> str | None:
        """The identity of what a step reads, or None when it cannot be told.

        Args:
            identity: of the step.
            tables: the tables it reads with their snapshots; asked for only when it reads no file.

        Cost: reads the local files of the step's views once, at about 1 GB/s.
        """
        settings = identity.step.settings
        words = [settings.get(name) for name in ("where", "query", "version")]
        if not identity.views:
            read = tables() if tables is not None else []
            return digest(["tables", words, sorted(read)]) if read else None
        contents = []
        for view in identity.views:
            content = self._content(view)
            if content is None:
                return None
            contents.append([content, view.settings["select"]])
        return digest(["files", words, sorted(contents, key=digest)])

    def was_touched(self, identity: StepIdentity, since_ms: int) -> bool:
        """Whether a local file that a step's views read was written since; reads no file, and says nothing of bytes."""
        return any(file.stat().st_ctime_ns > since_ms * 1_000_000 for view in identity.views for file in _found(view))

    def _content(self, view: PlannedStep) -> str | None:
        pattern = view.settings["from"]
        if "://" in pattern:
            return None if self._remote is None else digest(self._remote(pattern))
        files = _found(view)
        return digest(sorted(self._digest(file) for file in files)) if files else None

    def _digest(self, file: Path) -> str:
        facts = file.stat()
        key = (str(file.absolute()), facts.st_size, facts.st_mtime_ns)
        if key not in self._digests:
            whole = hashlib.sha256()
            with file.open("rb") as body:
                while piece := body.read(_PIECE_BYTES):
                    whole.update(piece)
            self._digests[key] = whole.hexdigest()
        return self._digests[key]


def digest(value: object) -> str:
    """Hex digest of plain data, the same on every machine."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()


def _found(view: PlannedStep) -> list[Path]:
    """The local files that a view reads."""
    pattern = view.settings["from"]
    found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    return [file for path in found for file in _files(Path(path))]


def _files(path: Path) -> Iterator[Path]:
    """The files that Spark reads below a path: hidden ones and those that begin with ``_`` are none."""
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(("_", ".")):
                yield from _files(entry)
    elif path.is_file():
        yield path
