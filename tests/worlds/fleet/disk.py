"""The disk of a simulated node: the local state of the code under test, over files that a power loss takes.

Owns: `Disk` and `PoweredState`. Invariants: a file that was written durably survives with its whole body; one that was
not, and one that was removed, is after a power loss what it was at any time since it was durable.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from lakebed.errors import NotFound
from lakebed.fleet.node import local


@dataclass(frozen=True)
class _Name:
    path: str


class Disk:
    """Files in a folder, with what of them is not durable."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._was: dict[str, list[bytes | None]] = {}
        """What each file was, from when it was durable last up to the change before the last one."""

    def put(self, path: str, body: bytes, *, durable: bool) -> None:
        """As `ObjectStore.put`."""
        self._changed(path)
        self.files[path] = bytes(body)
        if durable:
            del self._was[path]

    def get(self, path: str) -> bytes:
        """As `ObjectStore.get`."""
        if path not in self.files:
            raise NotFound(f"{path} is not on the disk", kind="object_not_found")
        return self.files[path]

    def list(self, prefix: str) -> Iterator[_Name]:
        """As `ObjectStore.list`."""
        return (_Name(path) for path in sorted(self.files) if path.startswith(prefix))

    def remove(self, path: str) -> None:
        """Remove a file, as ``unlink`` does: not durably."""
        self._changed(path)
        self.files.pop(path, None)

    def _changed(self, path: str) -> None:
        self._was.setdefault(path, []).append(self.files.get(path))

    def lose_power(self, rng: random.Random) -> None:
        """Cut the power."""
        for path, was in sorted(self._was.items()):
            choice = rng.choice([*was, self.files.get(path)])
            if choice is None:
                self.files.pop(path, None)
            else:
                self.files[path] = choice
        self._was.clear()


class _Files(local._Folder):
    """The folder of the code under test, on a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._store = disk  # type: ignore[assignment]
        self._disk = disk
        self._is_locked = False

    def remove(self, name: str) -> None:
        self._disk.remove(name)

    def lock(self) -> bool:
        taken, self._is_locked = not self._is_locked, True
        return taken

    def unlock(self) -> None:
        self._is_locked = False


class PoweredState(local.LocalState):
    """A local state on a disk of its own."""

    def __init__(self) -> None:
        self.disk = Disk()
        self._files = _Files(self.disk)
        self._is_held = False
        self._id = ""
