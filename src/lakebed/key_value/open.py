"""`open_key_value`: open a key-value store from a URL or an object store.

Owns: which implementation serves which URL, and the error for a process that a living owner refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from lakebed.errors import Conflict, InvalidRequest
from lakebed.key_value.database import DATABASE_OPTIONS, DatabaseKeyValue
from lakebed.key_value.port import KeyValue
from lakebed.key_value.postgres import open_postgres
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import this_process
from lakebed.objects.open import open_store
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_POSTGRES: Final = ("postgresql://", "postgres://")
_RECORDS_END: Final = "/_repositories"
"""Suffix of the storage's URL: where the records are by default."""


def open_key_value(
    url: str | os.PathLike[str] | ObjectStore,
    *,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    create: bool = True,
    take_over: bool = False,
    durable: bool = True,
    endpoint: str | None = None,
    options: DatabaseOptions | None = None,
) -> KeyValue:
    """Open the key-value store of repositories: for one process on a folder or bucket, for many over PostgreSQL.

    Args:
        url: a database's folder: a path, a URL such as ``s3://bucket/folder``, or a store of objects; or
            ``postgresql://user:password@host:port/database``, for which only `environment` and `create` matter.
        storage_options: credentials and endpoints, as `lakebed.objects.open_store` takes them.
        environment: clock, randomness and threads; for tests.
        create: make it when nothing is there.
        take_over: open it even if another process owns it. That process is fenced, and nothing that it acknowledged is
            lost.
        durable: False does not wait for the disk, on local folders.
        endpoint: where this process serves others. The errors of processes that it refuses name it.
        options: settings of the database; None: those that suit repositories.

    Raises:
        Conflict: kind ``owned``; another process owns it. The error's facts have its ``host``, ``pid`` and
            ``endpoint``.
        NotFound, InvalidRequest, Fenced, Unavailable, OutcomeUnknown: as `lakebed.kv.open`, or `open_postgres`.
    Cost: as `lakebed.kv.open`, or `open_postgres`.
    """
    environment = environment or Environment()
    if isinstance(url, str) and url.startswith(_POSTGRES):
        if storage_options:
            raise InvalidRequest(
                "The URL of a PostgreSQL database has everything: give storage_options with a bucket's.",
                kind="two_credentials",
            )
        return open_postgres(url, environment=environment, create=create)
    if isinstance(url, str | os.PathLike):
        location = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, durable=durable)
    else:
        if storage_options:
            raise InvalidRequest(
                "A store has its credentials already: give storage_options with a URL.", kind="two_credentials"
            )
        location = DatabaseLocation(url, environment, partial(open_store, environment=environment, durable=durable))
    try:
        database = Database.open(
            location,
            options=replace(options or DATABASE_OPTIONS, endpoint=endpoint),
            create=create,
            take_over=take_over,
        )
    except Conflict as error:
        raise _explain(error, location.url) from error
    return DatabaseKeyValue(database, is_local=parse_url(location.url).scheme in ("file", "memory"))


def _explain(error: Conflict, url: str) -> Conflict:
    """Restate the error of an owned database in terms of repositories: which process owns them, and what to do."""
    if error.kind != "owned":
        return error
    facts, storage = error.facts, url.removesuffix(_RECORDS_END)
    owner = f"process {facts['pid']} on {facts['host']}"
    process = this_process()
    served_at = facts["endpoint"]
    if served_at:
        text = (
            f"The repositories at {storage} are served by {owner} at {served_at}: give commands of `lakebed repo` "
            f"{served_at} in place of the lake (in Python lakebed.repo.open({served_at + '/<repository>'!r}, ...)), "
            "stop that server, or end its ownership with `lakebed serve --take-over` (in Python take_over=True)."
        )
    elif (facts["host"], facts["pid"]) == (process.host, process.pid):
        text = (
            f"The repositories at {storage} are open in this process already, and one opening owns them all: open them "
            f"once with lakebed.repo.open_all({storage!r}) and take each with .repository(name), or close the first."
        )
    else:
        text = (
            f"The repositories at {storage} are owned by {owner}: wait until it ends, or share them through a server "
            "(`lakebed serve`), which takes over with --take-over (in Python take_over=True)."
        )
    return Conflict(text, kind=error.kind, **facts)
