"""The access log: one line of JSON for each request.

Owns: what a line holds and how lines are written. A thread of the pool writes them together, a few times a second, so
that no request waits for a terminal or a disk. Invariant: no line holds a header, a body, or a query string. Of the
query only the path of an object is logged, so the log has no signature and no secret.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.objects.path import local_path

_STANDARD_ERROR: Final = 2

_LINES_MAX: Final = 50_000
"""Most lines that are buffered for a slow reader of the log. Further lines are dropped, and counted."""


TRACE: Final = "lakebed.trace"
"""The key of the `RequestTrace` in the scope of a request."""


@dataclass(slots=True)
class RequestTrace:
    """What the access log records of a request, filled in as the request proceeds."""

    request_id: str
    route: str = ""
    access_key: str = ""
    error: str = ""
    status: int = 0
    bytes_out: int = 0

    def sent(self, status: int, size_bytes: int) -> None:
        """Note a reply that was sent in one piece, past the messages that are counted; else 0 bytes are added."""
        self.status = self.status or status
        self.bytes_out += size_bytes


class AccessLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request."""

    time: str
    """When it ended, UTC."""
    request_id: str
    client: str
    method: str
    path: str
    status: int
    ms: float
    bytes_in: int = 0
    bytes_out: int = 0
    access_key: str = ""
    object: str = ""
    """The value of ``path`` in the query."""
    error: str = ""
    """The kind of an error; for a bug, the whole traceback."""


class AccessLog:
    """A log that lines are appended to."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self._dropped = 0
        self._encode = msgspec.json.Encoder().encode

    def add(self, line: AccessLine) -> None:
        """Buffer a line. Cost: 1 us."""
        if len(self._lines) < _LINES_MAX:
            self._lines.append(self._encode(line))
        else:
            self._dropped += 1

    @property
    def waiting(self) -> bool:
        """Whether there are lines to write."""
        return bool(self._lines)

    def flush(self) -> None:
        """Write the buffered lines. Not thread-safe. A failed write drops them; it does not stop the server."""
        lines, self._lines = self._lines, []
        if self._dropped:
            lines.append(b'{"dropped_lines":%d}' % self._dropped)
            self._dropped = 0
        if not lines:
            return
        rest = memoryview(b"\n".join(lines) + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._dropped += len(lines)

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        self._file.close()


def open_access_log(target: str | os.PathLike[str] | None) -> AccessLog | None:
    """Open a log: ``"-"`` is standard error, a path is a file that is appended to; None: no log."""
    if target is None:
        return None
    # Without a buffer: lines that a closed pipe refused are dropped, and not written again at the end.
    if target == "-":
        return AccessLog(open(os.dup(_STANDARD_ERROR), "wb", buffering=0))
    return AccessLog(open(local_path(target), "ab", buffering=0))
