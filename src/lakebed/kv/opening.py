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
    """Open a database to write and read. This process becomes its only writer.

    Args:
        url: a path; a URL such as ``s3://bucket/folder``; or an open store, such as
            ``repo.branch("main").store().sub("db")``.
        options: settings of the writer.
        storage_options: credentials and endpoints of the object store.
        environment: clock, randomness and threads; for tests.
        create: create the database if nothing is there.
        take_over: open it even if another writer's lease is live. That writer is fenced; it loses nothing that it
            acknowledged.
        durable: False does not wait for the disk, on local folders. After a power loss writes may be missing.
        after_destroy: create a new database where one was destroyed.

    Raises:
        Conflict: kind ``owned``: another process owns the database. The message names it.
        NotFound: kind ``database_not_found``: nothing is there, and `create` is False.
        InvalidRequest: kind ``not_a_database``: something else is there; ``invalid_db_state``: it was destroyed, or is
            a clone that is not finished; ``merge_operator_mismatch``, ``unknown_operator`` or ``invalid_option``.
        Fenced: another process opened it at the same time.
        Unavailable, OutcomeUnknown: the store failed. Try again.

    Cost: about 12 requests, and 1 GET for each object of the log that is not in files yet, however many rows there are.
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
    """Open a database that began as a clone of another one. Create the clone if it is missing.

    Args:
        url: of the clone, as `lakebed.kv.open`.
        parent_url: of the database to clone.
        parent_checkpoint: id or name of a checkpoint of the parent; None: its latest version.
        options, storage_options, environment, take_over, durable: as `lakebed.kv.open`.

    Raises as `DatabaseAdmin.create_clone` and `lakebed.kv.open`.
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
    """Open a database to read it, while another process may write it. There may be any number of readers.

    Args:
        url: as `lakebed.kv.open`.
        checkpoint, version: what to read instead of the latest version, as `DatabaseReader.open`.
        options: settings of the reader.
        storage_options, environment, durable: as `lakebed.kv.open`.

    Errors and cost as `DatabaseReader.open`. Source: "Readers".
    """
    location = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, durable=durable)
    return DatabaseReader.open(location, checkpoint, options=options, version=version)
