"""`Snapshot`: one version of an open database, read as often as one likes.

Owns: a view, whose memtables and files it keeps, and the hold of the checkpoint under those files.

Invariants: reads are the same beside flushes, compactions in this process and in others, and collections; but a value
with an end of its own ends here too. Lost with the process; what must outlive it is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from lakebed.errors import Closed, LakebedError
from lakebed.kv.holds import Hold
from lakebed.kv.reading import Reading
from lakebed.lsm.model import check_key
from lakebed.lsm.view import View

__all__ = ["Snapshot"]


class Snapshot(Reading):
    """Made by `Database.snapshot`; close it, or use it in a ``with``, so that its files may go. Thread-safe."""

    def __init__(self, view: View, hold: Hold, *, explain: Callable[[LakebedError], LakebedError]) -> None:
        self._standing: tuple[View, Hold] | None = (view, hold)
        self._why = explain
        self.sequence = view.sequence
        """The last write that it sees."""

    def _stand(self) -> tuple[View, Hold]:
        standing = self._standing
        if standing is None:
            raise Closed("The snapshot was closed: take a new one.")
        return standing

    def _explain(self, error: LakebedError) -> LakebedError:
        return self._why(error)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when there is none. Raises `InvalidRequest`, `Closed`."""
        check_key(key)
        view, _ = self._stand()
        try:
            found: bytes | None = view.get(key)
        except LakebedError as error:
            self._raise_better(error)
        return found

    def close(self) -> None:
        """Let its version go; again is fine. Scans that have begun go on."""
        self._standing = None

    def __repr__(self) -> str:
        return f"Snapshot(sequence={self.sequence}{', closed' if self._standing is None else ''})"

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
