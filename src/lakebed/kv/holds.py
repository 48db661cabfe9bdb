"""Which checkpoints of the writer open scans and snapshots stand on.

Owns: the link from a file set, as the tree shows it, to the checkpoint that pins it, and the count of who stands on it.

A scan, snapshot or iterator keeps the `Hold` of its file set for as long as it lives; the references to that object are
the count. Nothing is released by a call: a scan that ends, is closed, or is abandoned drops its reference, whichever
thread that happens in, and the next update of the manifest leaves the checkpoint out. So no lock is taken while an
abandoned generator is torn down, which may happen in the middle of anything.

Invariants: the set that the tree shows, and every set published after it, is held, because a scan may begin on it at
any moment; a hold of an older set is never handed out again. Does not know: manifests, and what a checkpoint is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from lakebed.lsm.model import FileSet
from lakebed.runtime import Runtime

__all__ = ["Hold", "Holds"]


class Hold:
    """Whoever refers to it stands on its checkpoint. Shared by all that stand on one."""

    __slots__ = ("__weakref__", "checkpoint_id", "file_set")

    def __init__(self, file_set: FileSet, checkpoint_id: str) -> None:
        self.file_set = file_set
        """Also keeps the identity of the set from being used again while the hold is alive."""
        self.checkpoint_id = checkpoint_id


class Holds:
    """The holds of one open database. Thread-safe.

    Args:
        shown: the file set that new scans would stand on now (the tree's); called without any lock of ours.
        runtime: where the lock comes from.
    """

    def __init__(self, *, shown: Callable[[], FileSet], runtime: Runtime) -> None:
        self._shown = shown
        self._lock = runtime.lock()
        self._recent: list[Hold] = []
        self._older: list[weakref.ref[Hold]] = []

    def publish(self, file_set: FileSet, checkpoint_id: str) -> None:
        """From now on this very set may be shown, and this checkpoint pins it.

        Call it before the tree shows the set; the same set again, under a newer checkpoint, is a new hold.
        """
        with self._lock:
            self._recent.append(Hold(file_set, checkpoint_id))

    def of(self, file_set: FileSet) -> Hold | None:
        """The hold of a set by identity; None when it is no longer shown: take the newest view and ask again."""
        with self._lock:
            for hold in reversed(self._recent):
                if hold.file_set is file_set:
                    return hold
        return None

    def held_ids(self) -> frozenset[str]:
        """Checkpoints that must stay in the manifest: of the set shown, of newer ones, and of all that are stood on.

        Ask it while deciding on an update; what is not in it may go with that update.
        """
        shown = self._shown()
        with self._lock:
            position = max((i for i, hold in enumerate(self._recent) if hold.file_set is shown), default=0)
            self._older += [weakref.ref(hold) for hold in self._recent[:position]]
            del self._recent[:position]
            alive = [hold for hold in (reference() for reference in self._older) if hold is not None]
            self._older = [weakref.ref(hold) for hold in alive]
            return frozenset(hold.checkpoint_id for hold in (*alive, *self._recent))
