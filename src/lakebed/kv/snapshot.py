"""`Snapshot`: one version of an open database, read any number of times.

Invariants: flushes, compactions in this process and in others, and collections change no read; but a value with a TTL
expires here too. A snapshot ends with the process; use a checkpoint for what must outlive it.
"""

from __future__ import annotations

from lakebed.closing import Closing
from lakebed.kv.checkpoint_refs import CheckpointRef
from lakebed.kv.read_core import FixedView, ReadVerbs, ViewSource
from lakebed.lsm.model import check_key
from lakebed.lsm.view import View


class Snapshot(ReadVerbs, Closing):
    """A version of a database, made by `Database.snapshot`. It keeps its files until it is closed. Thread-safe.

    Close it, or use it in a ``with`` statement.
    """

    def __init__(self, view: View, pin: CheckpointRef, *, writer: ViewSource) -> None:
        self._fixed = FixedView(view, pin, writer=writer, closed="The snapshot was closed: take a new one.")
        super().__init__(self._fixed)
        self.sequence = view.sequence
        """The last write that it sees."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if the key has no value. Raises `InvalidRequest`, `Closed`."""
        return self._fixed.get(check_key(key))

    def close(self) -> None:
        """Release the version. Scans that have begun continue. A second call does nothing."""
        self._fixed.close()

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}{'' if self._fixed.is_open else ', closed'})"
