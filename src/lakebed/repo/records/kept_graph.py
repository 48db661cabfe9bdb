"""The commit graph that a process keeps of a repository."""

from __future__ import annotations

from lakebed.repo.model.commit_graph import CommitGraph
from lakebed.runtime import Runtime


class KeptGraph:
    """The graph that was read last, and what tells whether it is still all there is. Thread-safe.

    Attributes:
        indexed_heads: how many commits were to be missing at least, and the heads behind which fewer were; None: it was
            not looked yet.
    """

    def __init__(self, *, runtime: Runtime) -> None:
        self.indexed_heads: tuple[int, set[str]] | None = None
        self._lock = runtime.lock()
        self._kept: tuple[int, bytes, CommitGraph] | None = None

    def get(self) -> tuple[int, bytes, CommitGraph] | None:
        """How many segments were read, the checksum of the last, and the graph; None: there is none yet."""
        with self._lock:
            return self._kept

    def put(self, count: int, checksum: bytes, graph: CommitGraph) -> None:
        """Keep a graph in place of the one before."""
        with self._lock:
            self._kept = (count, checksum, graph)
