"""A store that records every call, so that a test can repeat a run for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lakebed.errors import LakebedError
from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call and how it ended: ``ok``, or the kind of its error."""

    index: int
    call: Call
    outcome: str

    def __str__(self) -> str:
        """Such as ``12 put! tag/tag-a: object_exists``."""
        return f"{self.index} {self.call}: {self.outcome}"


class RecordingStore(StoreWrapper):
    """Keeps the trace of all calls made through it and its views.

    Examples:
        >>> from lakebed.objects import open_store
        >>> store = RecordingStore(open_store("memory://recorded"))
        >>> store.put("a", b"1", create_only=True)
        >>> [str(one) for one in store.trace]
        ['0 put! a: ok']
    """

    def __init__(self, inner: ObjectStore, *, page_count: int = 1000) -> None:
        super().__init__(inner, page_count=page_count)
        self.trace: list[Recorded] = []

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        outcome = "crashed"
        try:
            result = perform()
            outcome = "ok"
            return result
        except LakebedError as error:
            outcome = error.kind
            raise
        finally:
            self.trace.append(Recorded(len(self.trace), call, outcome))

    def changes(self) -> list[Recorded]:
        """Return the calls that may have changed what is stored."""
        return [record for record in self.trace if record.call.changes]
