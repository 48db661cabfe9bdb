"""Opening by URL: a database to write and read, a clone of another, a reader.

Owns: the way from a URL to a location, and `open_database`, `open_from_checkpoint`, `open_reader`, which `lakebed.kv`
has as ``open``, ``open_from_checkpoint`` and ``open_reader``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from lakebed.kv.clone import create_clone
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment


def open_database(
    url: str | os.PathLike[str] | ObjectStore,
    *,
    options: DatabaseOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    create: bool = True,
    take_over: bool = False,
    durable: bool = True,
    after_destroy: bool = False,
) -> Database:
    """Open a database for writing and reading: become its one writer.

    Args:
        url: a path, a URL such as ``s3://bucket/folder``, or an open store: ``repo.branch("main").store().sub("db")``.
        storage_options: credentials and endpoints, as `lakebed.objects.open_store` takes them.
        environment: clock, randomness and threads; for tests.
        create: make it when nothing is there.
        take_over: also if another owner's lease is live; that writer is fenced, and loses nothing that it
            acknowledged.
        durable: False does not wait for the disk, on local folders: after a power loss writes may be missing.
        after_destroy: make a new database where one was destroyed.

    Raises:
        Conflict: kind ``owned``; another process owns it; the message names it.
        NotFound: kind ``database_not_found``; nothing is there, and not `create`.
        InvalidRequest: kind ``not_a_database``: something else is there; ``invalid_db_state``: it was destroyed, or is
            a clone that is not finished; ``merge_operator_mismatch``, ``unknown_operator``, ``invalid_option``.
        Fenced: another process opened it at the same time.
        Unavailable, OutcomeUnknown: the store failed; try again.
    Cost: about 12 requests, and 1 GET an object of the log that is not in files yet; no matter how many rows there are.
    """
    location = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, durable=durable)
    return Database.open(location, options=options, create=create, take_over=take_over, after_destroy=after_destroy)


def open_from_checkpoint(
    url: str | os.PathLike[str],
    parent_url: str | os.PathLike[str],
    parent_checkpoint: str | None = None,
    *,
    options: DatabaseOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    take_over: bool = False,
    durable: bool = True,
) -> Database:
    """Open a database that starts from another's checkpoint, or (None) its latest; make that clone when there is none.

    Raises as `lakebed.kv.clone.create_clone` and `open_database`.
    """
    location = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, durable=durable)
    create_clone(location, parent_url, parent_checkpoint)
    return Database.open(location, options=options, create=False, take_over=take_over)


def open_reader(
    url: str | os.PathLike[str] | ObjectStore,
    checkpoint: str | None = None,
    *,
    options: ReaderOptions | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    durable: bool = True,
) -> DatabaseReader:
    """Open a database to read it, while another process may write it; any number of readers may.

    Args:
        url: as for `open_database`.
        checkpoint, version: what to read instead of the latest; as `DatabaseReader.open`.

    Raises, cost: as `DatabaseReader.open`. Source: "Readers".
    """
    location = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, durable=durable)
    return DatabaseReader.open(location, checkpoint, options=options, version=version)
