"""A wrapper of a key-value store sees every call of the port, and of the snapshots that it hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue

R = TypeVar("R")


class Listening(KeyValueWrapper):
    """Notes what is asked."""

    def __init__(self, page_count: int | None) -> None:
        super().__init__(MemoryKeyValue(), page_count=page_count)
        self.asked: list[str] = []

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Note the call and make it."""
        self.asked.append(f"{call}{'!' if call.changes else ''}")
        return perform()


@pytest.mark.parametrize(("page_count", "pages"), [(None, 1), (2, 3)])
def test_every_call_is_seen(page_count: int | None, pages: int) -> None:
    """Reads, writes and scans go through one method, and answer as the store does; a scan is a call a page."""
    store = Listening(page_count)
    store.set(b"a", b"1")
    store.set_if(b"a", b"2", expected=b"1")
    store.write([(b"b", b"3"), (b"c", b"4")], [b"d"], expected={b"a": b"2"})
    store.put_columns([b"e", b"f"], [b"5", b"6"])
    store.delete(b"f")
    assert (store.get(b"a"), store.peek(b"b")) == (b"2", b"3")
    assert store.asked == [
        "set b'a'!", "set_if b'a'!", "write b'b' (+2)!", "put_columns!", "delete b'f'!", "get b'a'", "peek b'b'",
    ]  # fmt: skip
    store.asked.clear()
    with store.snapshot() as snapshot:
        assert snapshot.get(b"a") == b"2"
        assert snapshot.get_many([b"a", b"f"]) == [b"2", None]
        assert list(snapshot.scan()) == [(b"a", b"2"), (b"b", b"3"), (b"c", b"4"), (b"e", b"5")]
        assert sum(batch.num_rows for batch in snapshot.scan_arrow()) == 4
    assert store.asked[:3] == ["snapshot", "snapshot get b'a'", "snapshot get_many b'a' (+1)"]
    assert store.asked[3:].count("snapshot scan") == pages
    store.maintain()
    store.close()
