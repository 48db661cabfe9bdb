"""The audit log: every change that a server made, by which access key, and when.

Owns: the records below ``audit/`` of the key-value store and their limit. A line is written after the change and before
the reply, so a client that received the reply finds the line. A crash between change and line loses the line. Staged
objects have no lines (the access log has them); the commit has one. The lines of commits to tables are written after
the reply, several in one write: the snapshot names the committer, so a lost line loses no information.

Invariants: no line holds a secret; lines are read newest first; at most about `ServerOptions.audit_lines_max` are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from lakebed.key_value.port import KeyValue
from lakebed.kv.ranges import prefix_end
from lakebed.lsm.file_id import mint_file_id
from lakebed.repo.model.layout import audit_key
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.runtime import Environment

_PREFIX: Final = audit_key("")
_TRIM_EVERY: Final = 1_000
"""Lines written between two checks of the limit."""
_DELETED_AT_ONCE: Final = 10_000


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. Field names are stored: DO NOT CHANGE them."""

    at_ms: int
    access_key: str
    action: str
    """The operation's id in the OpenAPI description, such as ``deleteBranch``."""
    repository: str = ""
    subject: str = ""
    """The changed object: a branch, a tag, an access key."""
    status: int = 200
    request_id: str = ""


class AuditLog:
    """The audit log of a server. Thread-safe."""

    def __init__(self, key_value: KeyValue, *, environment: Environment, lines_max: int) -> None:
        self._key_value = key_value
        self._environment = environment
        self._lines_max = lines_max
        self._until_trim = 0  # check at the first line: a process that restarts often must trim too
        self._lock = environment.runtime.lock()
        self._last_id: str | None = None
        self._deferred: dict[bytes, bytes] = {}
        self._flushing = environment.runtime.lock()

    def append(self, line: AuditLine) -> None:
        """Write a line. Raises what a write of the store raises. Cost: 1 write."""
        with self._lock:
            key = self._mint_key()
        self._write({key: encode_record(line)})

    def defer(self, line: AuditLine) -> bool:
        """Keep a line, at its place in the log, for the next `flush`. Cost: nothing.

        Returns:
            Whether no other line waits: then the caller has to make sure that `flush` is called.
        """
        record = encode_record(line)
        with self._lock:
            self._deferred[self._mint_key()] = record
            return len(self._deferred) == 1

    def _mint_key(self) -> bytes:
        """Return the key of the next line. It sorts after the last line's, even in the same millisecond."""
        self._last_id = mint_file_id(self._last_id, environment=self._environment)
        return audit_key(self._last_id)

    def flush(self) -> None:
        """Write the waiting lines, and wait for those of a concurrent call. Raises as `append`. Cost: 1 write."""
        with self._flushing:
            with self._lock:
                lines, self._deferred = self._deferred, {}
            if lines:
                self._write(lines)

    def _write(self, lines: Mapping[bytes, bytes]) -> None:
        self._key_value.write(list(lines.items()))
        with self._lock:
            self._until_trim -= len(lines)
            due = self._until_trim < 0
            if due:
                self._until_trim = _TRIM_EVERY
        if due:
            self.trim()

    def read(self, *, before: str | None = None, amount: int) -> list[tuple[str, AuditLine]]:
        """Lines with their ids, newest first.

        Args:
            before: only lines older than the one with this id; None: from the newest.

        Cost: 1 scan of the log's keys, after a `flush`. Raises `Corruption`.
        """
        self.flush()
        end = prefix_end(_PREFIX) if before is None else audit_key(before)
        with self._key_value.snapshot() as snapshot:
            newest = list(snapshot.scan(_PREFIX, end))[-amount:]
        return [(key[len(_PREFIX) :].decode(), decode_record(raw, AuditLine, key=key)) for key, raw in newest[::-1]]

    def trim(self) -> int:
        """Delete the oldest lines beyond the limit; return their number. Cost: 1 scan, 1 write."""
        with self._key_value.snapshot() as snapshot:
            surplus = sum(1 for _ in snapshot.scan(_PREFIX, prefix_end(_PREFIX))) - self._lines_max
            if surplus <= 0:
                return 0
            keys: Iterator[bytes] = (key for key, _ in snapshot.scan(_PREFIX, prefix_end(_PREFIX)))
            oldest = list(islice(keys, min(surplus, _DELETED_AT_ONCE)))
        self._key_value.write(deletes=oldest)
        return len(oldest)
