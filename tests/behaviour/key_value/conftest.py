"""Every implementation of the key-value port, behind one fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from worlds.memory_key_value import MemoryKeyValue, MemorySpace

IMPLEMENTATIONS = ["memory", "database in a folder", "PostgreSQL"]

Opener = Callable[[], KeyValue]


def opener(kind: str, request: pytest.FixtureRequest) -> Opener:
    """What opens a fresh, empty store; every call opens the same one again."""
    if kind == "memory":
        space = MemorySpace()
        return lambda: MemoryKeyValue(space)
    if kind == "PostgreSQL":
        url = request.getfixturevalue("postgresql").make_database()
    else:
        folder: Path = request.getfixturevalue("tmp_path")
        url = str(folder / "records")
    return lambda: open_key_value(url)


@pytest.fixture(params=IMPLEMENTATIONS)
def kind(request: pytest.FixtureRequest) -> str:
    """The name of an implementation."""
    return str(request.param)


@pytest.fixture
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens a fresh store; every call opens the same one again. All are closed at the end."""
    open_it = opener(kind, request)
    with ExitStack() as handles:

        def open_once_more() -> KeyValue:
            handle = open_it()
            handles.callback(handle.close)
            return handle

        yield open_once_more


@pytest.fixture
def key_value(opened: Opener) -> KeyValue:
    """A fresh store of each kind."""
    return opened()
