"""The embedded log: each of its shards is a database in the fleet's storage. One process owns all shards.

Owns: the number of shards, which is stored at creation and never changes, because the shard of a timeline depends on
it; the settings of the databases.

Invariants: a process owns all shards or none. A process that ends without closing them is replaced when its leases
expire, or at once if it ran on the same machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from lakebed.errors import Conflict, Corruption, InvalidRequest
from lakebed.fleet.layout import LOG_FOLDER
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.key_value.database import DATABASE_OPTIONS, DatabaseKeyValue
from lakebed.key_value.port import KeyValue
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects.path import parse_url
from lakebed.runtime import Environment

SHARDS_MAX: Final = 256

LOG_OPTIONS: Final = replace(
    DATABASE_OPTIONS,
    lease_lifetime_ms=5_000,  # after a crash a standby on another machine waits this long
    row_cache_bytes=0,  # nothing is read twice: the newest records are already in memory
)
"""Settings of a shard's database."""

_SHARDS_KEY: Final = b"shards"


def open_embedded(
    url: str | os.PathLike[str],
    *,
    shards: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    durable: bool = True,
    take_over: bool = False,
    endpoint: str | None = None,
) -> KeyValueLog:
    """Open the embedded log of a storage as its owner. Create it if it does not exist.

    Args:
        url: the fleet's storage: a folder, or a URL such as ``s3://bucket/folder``.
        shards: number of databases; None: the existing number, or 1 when the log is created. More databases write
            concurrently, each with its own requests.
        storage_options: credentials and endpoints, as `lakebed.objects.open_store` takes them.
        environment: clock, randomness and threads.
        durable: False: do not wait for the disk, on local folders.
        take_over: open the log even if another process owns it. That process loses the ownership, and nothing that it
            acknowledged is lost.
        endpoint: where this process serves the log; the leases contain it.

    Raises:
        Conflict: ``owned``: another process owns it.
        InvalidRequest: ``shard_count``: it was created with another number of shards.
        Otherwise as `lakebed.kv.open`.
    Cost: as `lakebed.kv.open`, for each shard.
    """
    if shards is not None and not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(f"A log cannot have {shards} shards: use 1 to {SHARDS_MAX}.", kind="shard_count")
    environment = environment or Environment()
    root = parse_url(url)
    options = replace(LOG_OPTIONS, endpoint=endpoint)
    with ExitStack() as resources:

        def open_shard(number: int) -> KeyValue:
            location = DatabaseLocation.at(
                f"{root}/{LOG_FOLDER}/{number}",
                storage_options=storage_options,
                environment=environment,
                durable=durable,
            )
            store = _open_database(location, options=options, take_over=take_over)
            resources.callback(store.close)
            return store

        first = open_shard(0)
        count = _shard_count(first, 0, asked=shards, url=str(root))
        stores = [first]
        for number in range(1, count):
            stores.append(open_shard(number))
            _shard_count(stores[-1], number, asked=count, url=str(root))
        log = KeyValueLog(stores, environment=environment)
        resources.pop_all()
        return log


def _open_database(location: DatabaseLocation, *, options: DatabaseOptions, take_over: bool) -> KeyValue:
    try:
        database = Database.open(location, options=options, create=True, take_over=take_over)
    except Conflict as error:
        if error.kind != "owned":
            raise
        where = f" at {error.facts['endpoint']}" if error.facts.get("endpoint") else ""
        raise Conflict(
            f"The log at {location.url} is owned by process {error.facts['pid']} on {error.facts['host']}{where}: use "
            "it through `lakebed fleet log` by its http:// URL, or stop that process.",
            kind="owned",
            **error.facts,
        ) from error
    return DatabaseKeyValue(database, is_local=parse_url(location.url).scheme in ("file", "memory"))


def _shard_count(store: KeyValue, number: int, *, asked: int | None, url: str) -> int:
    """Return the number of shards. Store it if the shard is new."""
    value = store.get(_SHARDS_KEY)
    if value is None:
        count = asked or 1
        store.set_if(_SHARDS_KEY, b"%d of %d" % (number, count), expected=None)
        return count
    try:
        shard, count = map(int, value.split(b" of "))
    except ValueError as error:
        raise Corruption(f"The log at {url} has a damaged number of shards: {value!r}.", path=url) from error
    if shard != number:
        raise Corruption(f"Shard {number} of the log at {url} is shard {shard} of a log: it was copied.", path=url)
    if asked is not None and asked != count:
        raise InvalidRequest(
            f"The log at {url} has {count} shards, and {asked} were asked for: the number is fixed when the log is "
            f"created, so use --shards {count}.",
            kind="shard_count",
            shards=count,
        )
    return count
