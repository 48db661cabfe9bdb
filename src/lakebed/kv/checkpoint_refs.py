"""Which checkpoints open scans, snapshots and transactions still need.

Owns: `CheckpointRef`, and for a writer the link from a file set, as the tree shows it, to the checkpoint that pins it.

A scan, snapshot or transaction keeps the `CheckpointRef` of the files it reads as long as it lives; Python's references
to that object are the count. Nothing is released by a call: a scan that ends, is closed, or is abandoned drops its
reference, in whichever thread that happens, and the next update of the manifest leaves the checkpoint out. So no lock
is taken while an abandoned generator is torn down, which may happen in the middle of anything.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from lakebed.lsm.model import FileSet
from lakebed.runtime import Runtime


class CheckpointRef:
    """Keeps a checkpoint as long as it is referenced. Shared by all who read the files that the checkpoint pins."""

    __slots__ = ("__weakref__", "checkpoint_id")

    def __init__(self, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id


class CheckpointRefs:
    """The checkpoints of one open database. Thread-safe.

    Invariants: the set that the tree shows, and every set published after it, is kept, because a scan may begin on it
    at any moment; the reference of an older set is never handed out again.

    Args:
        shown: the file set that new scans would read now (the tree's); called without any lock of ours.
    """

    def __init__(self, *, shown: Callable[[], FileSet], runtime: Runtime) -> None:
        self._shown = shown
        self._lock = runtime.lock()
        self._recent: list[tuple[FileSet, CheckpointRef]] = []
        """Also keeps the sets alive, so that their identities are not used again."""
        self._older: list[weakref.ref[CheckpointRef]] = []

    def publish(self, file_set: FileSet, checkpoint_id: str) -> None:
        """From now on this very set may be shown, and this checkpoint pins it.

        Call it before the tree shows the set; the same set again, under a newer checkpoint, gets a new reference.
        """
        with self._lock:
            self._recent.append((file_set, CheckpointRef(checkpoint_id)))

    def of(self, file_set: FileSet) -> CheckpointRef | None:
        """The reference for a set, by identity; None if it is no longer shown: take the newest view and ask again."""
        with self._lock:
            for published, ref in reversed(self._recent):
                if published is file_set:
                    return ref
        return None

    def ids_in_use(self) -> frozenset[str]:
        """Checkpoints that must stay in the manifest: of the set shown, of newer ones, and all that are referenced.

        Ask while deciding on an update; that update may remove all others.
        """
        shown = self._shown()
        with self._lock:
            position = max((i for i, (file_set, _) in enumerate(self._recent) if file_set is shown), default=0)
            self._older += [weakref.ref(ref) for _, ref in self._recent[:position]]
            del self._recent[:position]
            alive = [ref for ref in (reference() for reference in self._older) if ref is not None]
            self._older = [weakref.ref(ref) for ref in alive]
            return frozenset(ref.checkpoint_id for ref in (*alive, *(ref for _, ref in self._recent)))
