"""`open_log`: open a log by its URL. Owns which implementation serves which URL. Does not know their internals."""

from __future__ import annotations

import os
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.fleet.log.port import Log
from lakebed.objects.path import parse_url
from lakebed.runtime import Environment

POSTGRES_PREFIX: Final = b"_log/"
"""Prefix of all keys of a log in PostgreSQL, because the ledger may be in the same database."""
TOKEN_VARIABLE: Final = "LAKEBED_LOG_TOKEN"
"""The environment variable with the token of a log behind HTTP, used if no token is given."""

_SERVERS: Final = ("http", "https", "nats", "postgresql", "postgres")


def open_log(
    url: str | os.PathLike[str],
    *,
    token: str | None = None,
    shards: int | None = None,
    replicas: int = 3,
    environment: Environment | None = None,
    retry_s: float | None = None,
) -> Log:
    """Open the log of a fleet.

    Args:
        url: ``http://host:port``, the processes of `lakebed fleet log`, several with commas between them;
            ``nats://host:port,host:port/name``; ``postgresql://user:password@host:port/database``; or a folder or the
            URL of a bucket, for an embedded log that this process owns.
        token: the token of a log behind HTTP; None: from the environment (`TOKEN_VARIABLE`).
        shards: number of databases of an embedded log that is created, or of streams of one on NATS; None: the existing
            number.
        replicas: number of replicas of each stream on NATS.
        environment: clock, randomness and threads.
        retry_s: how long a call to a log behind HTTP or on NATS is retried. A caller that retries its calls itself
            gives a short time, so that its own limit applies. None: longer than a log is without an owner or leader.

    Raises:
        InvalidRequest: ``unknown_log``: no log has such a URL. Otherwise as the implementation's opening.
    """
    environment = environment or Environment()
    text = os.fspath(url)
    scheme, mark, _ = text.partition("://")
    if mark and scheme in ("http", "https"):
        from lakebed.fleet.log.client import RETRY_S, HttpLog  # here, because it loads urllib3

        endpoints = [endpoint if "://" in endpoint else f"{scheme}://{endpoint}" for endpoint in text.split(",")]
        return HttpLog(
            endpoints,
            token=token or os.environ.get(TOKEN_VARIABLE),
            retry_s=RETRY_S if retry_s is None else retry_s,
            environment=environment,
        )
    if mark and scheme == "nats":
        from lakebed.fleet.log.jetstream_log import open_jetstream

        return open_jetstream(text, environment=environment, streams=shards, replicas=replicas, retry_s=retry_s)
    if mark and scheme in ("postgresql", "postgres"):
        from lakebed.fleet.log.key_value_log import KeyValueLog
        from lakebed.key_value.open import open_key_value

        store = open_key_value(text, environment=environment)
        return KeyValueLog([store], environment=environment, prefix=POSTGRES_PREFIX, is_shared=True)
    check_log_url(text)
    from lakebed.fleet.log.embedded import open_embedded

    return open_embedded(text, shards=shards, environment=environment)


def check_log_url(url: str) -> None:
    """Check that a log can have such a URL. Raises `InvalidRequest` (``unknown_log``). Connects to nothing."""
    scheme, mark, _ = url.partition("://")
    if mark and scheme in _SERVERS:
        return
    try:
        parse_url(url)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"No log has the URL {scheme}{mark}...: use http://, nats://, postgresql://, a folder or a bucket's URL.",
            kind="unknown_log",
        ) from error
