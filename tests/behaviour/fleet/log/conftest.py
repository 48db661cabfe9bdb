"""Every log, behind one fixture."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lakebed.fleet.log.client import HttpLog
from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.jetstream import JetStream, parse_nats_url
from lakebed.fleet.log.jetstream_log import JetStreamLog
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import Log
from lakebed.fleet.log.serve import LogSettings, start_log
from lakebed.key_value.open import open_key_value
from lakebed.runtime import Environment
from worlds.fleet_log import TIMELINE
from worlds.memory_key_value import MemoryKeyValue, MemorySpace

LOGS = ["memory", "shared memory", "database in a folder", "PostgreSQL", "HTTP", "JetStream"]

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
    if kind == "HTTP":
        server = request.getfixturevalue("served_log")
        return lambda: HttpLog([server.endpoint], token=TOKEN, environment=environment)
    if kind == "JetStream":
        cluster = request.getfixturevalue("nats_cluster")
        name = f"log-{uuid.uuid4().hex[:12]}"

        def open_it() -> Log:
            url = parse_nats_url(f"{cluster.url}/{name}")
            jetstream = JetStream(url.servers, name=url.name)
            return JetStreamLog(jetstream, environment=environment, streams=2, stale_s=0.3)

        return open_it
    folder: Path = request.getfixturevalue("tmp_path")
    return lambda: open_embedded(str(folder / "fleet"), shards=3)


TOKEN = "a token of the log"


@pytest.fixture
def served_log(tmp_path: Path) -> Iterator[Any]:
    """The embedded log over HTTP."""
    with start_log(LogSettings(storage_url=str(tmp_path / "fleet"), shards=2, token=TOKEN)) as server:
        yield server


SHARED: Sequence[str] = ("shared memory", "PostgreSQL", "HTTP", "JetStream")
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
