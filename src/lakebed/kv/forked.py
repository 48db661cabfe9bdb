"""What a fork of the process does to open databases: in the child they are closed.

Lease, log ids and threads are the parent's, which continues to write. A child that wrote too would put records under
its parent's name, and the parent's next write would meet one of them and end.

Invariant: nothing here takes a lock or sends a request: a thread that the child does not have may hold that lock.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that is open in this process."""

    def abandon(self) -> None:
        """Be closed, in the child."""
        ...


_OPEN: weakref.WeakSet[Forkable] = weakref.WeakSet()


def close_in_forks(opened: Forkable) -> None:
    """Close it in every fork of this process; the registration does not keep it alive. Cost: only at a fork."""
    _OPEN.add(opened)


def _abandon_all() -> None:
    for opened in list(_OPEN):
        opened.abandon()
    _OPEN.clear()


os.register_at_fork(after_in_child=_abandon_all)
