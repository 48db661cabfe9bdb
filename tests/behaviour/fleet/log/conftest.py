"""Every log, behind one fixture."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import Log
from lakebed.key_value.memory import MemoryKeyValue, MemorySpace
from lakebed.key_value.open import open_key_value
from lakebed.runtime import Environment
from worlds.fleet_log import TIMELINE

LOGS = ["memory", "shared memory", "database in memory", "database in a folder", "PostgreSQL"]

Opener = Callable[[], Log]


def opener(kind: str, request: pytest.FixtureRequest) -> Opener:
    """What opens a fresh, empty log. Of a shared one every call opens the same one again."""
    environment = Environment()
    space = MemorySpace()
    if kind == "memory":
        return lambda: KeyValueLog([MemoryKeyValue(space)], environment=environment)
    if kind == "shared memory":
        return lambda: KeyValueLog([MemoryKeyValue(space)], environment=environment, is_shared=True)
    if kind == "PostgreSQL":
        url = request.getfixturevalue("postgresql").make_database()
        return lambda: KeyValueLog([open_key_value(url)], environment=environment, is_shared=True, prefix=b"_log/")
    if kind == "database in memory":
        url = f"memory://{uuid.uuid4().hex}/fleet"
        return lambda: open_embedded(url, shards=3)
    folder: Path = request.getfixturevalue("tmp_path")
    return lambda: open_embedded(str(folder / "fleet"))


SHARED: Sequence[str] = ("shared memory", "PostgreSQL")
"""Logs that several processes open at the same time."""


@pytest.fixture(params=LOGS)
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a log."""
    return str(request.param)


@pytest.fixture
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens a fresh log; all handles are closed at the end."""
    open_it = opener(kind, request)
    with ExitStack() as handles:

        def open_once_more() -> Log:
            handle = open_it()
            handles.callback(handle.close)
            return handle

        yield open_once_more


@pytest.fixture
def log(opened: Opener) -> Log:
    """A fresh log of each kind with one timeline."""
    log = opened()
    log.create(TIMELINE)
    return log
