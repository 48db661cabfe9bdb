"""Logs on a cluster of NATS servers, each with streams of its own."""

from __future__ import annotations

import uuid
from typing import Any

from lakebed.fleet.log.jetstream import JetStream, parse_nats_url
from lakebed.fleet.log.jetstream_log import JetStreamLog
from lakebed.runtime import Environment
from worlds.nats_cluster import NatsCluster


def opened(url: str, *, streams: int = 2, replicas: int = 3, **settings: Any) -> JetStreamLog:
    """The log that a URL names, with few streams."""
    parts = parse_nats_url(url)
    jetstream = JetStream(parts.servers, name=parts.name)
    try:
        return JetStreamLog(jetstream, environment=Environment(), streams=streams, replicas=replicas, **settings)
    except BaseException:
        jetstream.close()
        raise


def own(cluster: NatsCluster) -> str:
    """The URL of a log that no other test uses."""
    return f"{cluster.url}/log-{uuid.uuid4().hex[:12]}"
