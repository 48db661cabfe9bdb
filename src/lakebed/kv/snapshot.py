"""`Snapshot`: one version of an open database, read any number of times.

Invariants: flushes, compactions in this process and in others, and collections change no read; but a value with a TTL
expires here too. A snapshot ends with the process; use a checkpoint for what must outlive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

import pyarrow as pa

from lakebed.kv.checkpoint_refs import CheckpointRef
from lakebed.kv.read_core import FixedView, ReadCore, ViewSource
from lakebed.lsm.model import check_key
from lakebed.lsm.view import View


class Snapshot:
    """Made by `Database.snapshot`. Close it, or use it in a ``with``: it keeps its files until then. Thread-safe."""

    def __init__(self, view: View, pin: CheckpointRef, *, writer: ViewSource) -> None:
        self._fixed = FixedView(view, pin, writer=writer, closed="The snapshot was closed: take a new one.")
        self._reads = ReadCore(self._fixed)
        self.sequence = view.sequence
        """The last write that it sees."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it has none. Raises `InvalidRequest`, `Closed`."""
        return self._fixed.get(check_key(key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """As `Database.get_many`."""
        return self._reads.get_many(keys)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `Database.scan`."""
        return self._reads.scan(start, end, reverse=reverse)

    def scan_prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As `Database.scan_prefix`."""
        return self._reads.scan_prefix(prefix, reverse=reverse)

    def scan_arrow(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] = ("key", "value"),
    ) -> pa.RecordBatchReader:
        """As `Database.scan_arrow`."""
        return self._reads.scan_arrow(start, end, prefix=prefix, columns=columns)

    def close(self) -> None:
        """Release its version; scans that have begun continue. Closing twice is a no-op."""
        self._fixed.close()

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}{'' if self._fixed.is_open else ', closed'})"

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
