"""`Closing`: objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lakebed.errors import LakebedError


class Closing:
    """A class with `close`. If the block raised an exception, an error of `close` becomes a note of that exception."""

    def close(self) -> None:
        """Release the resources. Closing twice is a no-op."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LakebedError as failure:
            if error is None:
                raise
            error.add_note(f"and closing {self!r} failed: {failure}")
