"""The checkpoints that open scans, snapshots and transactions still need.

Owns: `CheckpointRef`, and for a writer the link from a file set that the tree shows to the checkpoint that pins it.

A scan, snapshot or transaction references the `CheckpointRef` of the files it reads as long as it lives. Python's
references to that object are the count. No call releases a checkpoint: a scan that ends, is closed or is abandoned
drops its reference, in whichever thread that happens, and the next update of the manifest removes the checkpoint. So no
lock is taken while an abandoned generator is torn down, which may happen at any point of a program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from lakebed.lsm.model import FileSet
from lakebed.runtime import Runtime


class CheckpointRef:
    """Keeps a checkpoint as long as it is referenced. All readers of the checkpoint's files share it."""

    __slots__ = ("__weakref__", "checkpoint_id")

    def __init__(self, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id


class CheckpointRefs:
    """The checkpoints of one open database. Thread-safe.

    Invariants: the set that the tree shows, and every set published after it, is kept, because a scan may begin on it
    at any moment. The reference of an older set is never handed out again.

    Args:
        shown: returns the file set of the tree, which new scans would read now. Called without any lock of this class.
    """

    def __init__(self, *, shown: Callable[[], FileSet], runtime: Runtime) -> None:
        self._shown = shown
        self._lock = runtime.lock()
        self._recent: list[tuple[FileSet, CheckpointRef]] = []
        """References by set. The list also keeps the sets alive, so that their identities are not used again."""
        self._older: list[weakref.ref[CheckpointRef]] = []

    def publish(self, file_set: FileSet, checkpoint_id: str) -> None:
        """Register the checkpoint that pins a set. Call it before the tree shows this set.

        The same set with a newer checkpoint gets a new reference.
        """
        with self._lock:
            self._recent.append((file_set, CheckpointRef(checkpoint_id)))

    def of(self, file_set: FileSet) -> CheckpointRef | None:
        """Return the reference for a set, by identity; None if it is no longer shown: retry with the newest view."""
        with self._lock:
            for published, ref in reversed(self._recent):
                if published is file_set:
                    return ref
        return None

    def ids_in_use(self) -> frozenset[str]:
        """Return the checkpoints that must stay: those of the set shown, of newer sets, and all that are referenced.

        Call it while deciding on an update of the manifest. That update may remove all others.
        """
        shown_ids = self._shown()
        with self._lock:
            position = max((i for i, (file_set, _) in enumerate(self._recent) if file_set is shown_ids), default=0)
            self._older += [weakref.ref(ref) for _, ref in self._recent[:position]]
            del self._recent[:position]
            alive = [ref for ref in (reference() for reference in self._older) if ref is not None]
            self._older = [weakref.ref(ref) for ref in alive]
            return frozenset(ref.checkpoint_id for ref in (*alive, *(ref for _, ref in self._recent)))
