"""`DatabaseAdmin`: a database by its location, with every verb; and the verbs that need no open database, by URL.

The module's functions have the names of the checkpoints-and-clones proposal. Each delegates to the method of
`DatabaseAdmin` with the same name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypedDict, Unpack

from lakebed.arguments import check_arguments
from lakebed.errors import InvalidRequest, LakebedError
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.model import Checkpoint, CheckpointCreateResult, Manifest
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions
from lakebed.kv.restore import RESTORABLE_FOR
from lakebed.kv.verbs import DatabaseVerbs
from lakebed.kv.versions import ManifestSummary
from lakebed.reclaim.model import CollectionReport, Version
from lakebed.reclaim.sweep import Progress
from lakebed.runtime import Environment

Url = str | os.PathLike[str]


@check_arguments
class DatabaseAdmin(DatabaseVerbs):
    """A database by its location. Open it, or use the verbs that need no open database. Thread-safe.

    Examples:
        >>> from lakebed.kv import DatabaseAdmin
        >>> from lakebed.kv.database_location import DatabaseLocation
        >>> orders = DatabaseAdmin(DatabaseLocation.at("memory://shop/orders"))
        >>> with orders.open() as database:
        ... database.put(b"17", b"tea")
        >>> yesterday = orders.pin("yesterday")
        >>> orders.at("yesterday").get(b"17")
        b'tea'
    """

    def open(
        self,
        *,
        options: DatabaseOptions | None = None,
        create: bool = True,
        take_over: bool = False,
        after_destroy: bool = False,
    ) -> Database:
        """Open the database to write and read. Create it if it is missing, unless `create` is False.

        Arguments, errors and cost as `lakebed.kv.open`.
        """
        return Database.open(
            self.location, options=options, create=create, take_over=take_over, after_destroy=after_destroy
        )


class Where(TypedDict, total=False):
    """How the store of a URL is reached."""

    storage_options: Mapping[str, str] | None
    """Credentials and endpoints, as `lakebed.objects.open_store` takes them."""
    environment: Environment | None
    """Clock, randomness and threads; for tests."""


def _at(url: Url, where: Where) -> DatabaseAdmin:
    return DatabaseAdmin(DatabaseLocation.at(url, **where))


def create_checkpoint(
    url: Url, options: CheckpointOptions | None = None, **where: Unpack[Where]
) -> CheckpointCreateResult:
    """Pin the latest version, with every durable write, or the version that another checkpoint pins.

    As `DatabaseAdmin.create_checkpoint`. Cost: 1 GET + 1 PUT + at most 3 LIST.
    """
    return _at(url, where).create_checkpoint(options)


def refresh_checkpoint(
    url: Url, id: str, lifetime: timedelta | None = None, *, force: bool = False, **where: Unpack[Where]
) -> Checkpoint:
    """Give a checkpoint a new lifetime, from now, or (None) no end. As `DatabaseAdmin.refresh_checkpoint`."""
    return _at(url, where).refresh_checkpoint(id, lifetime, force=force)


def delete_checkpoint(url: Url, id: str, *, force: bool = False, **where: Unpack[Where]) -> Checkpoint:
    """Delete a checkpoint. As `DatabaseAdmin.delete_checkpoint`."""
    return _at(url, where).delete_checkpoint(id, force=force)


def list_checkpoints(
    url: Url, name: str | None = None, *, expired: bool = False, **where: Unpack[Where]
) -> list[Checkpoint]:
    """Return the checkpoints, oldest first. As `DatabaseAdmin.list_checkpoints`."""
    return _at(url, where).list_checkpoints(name, expired=expired)


def create_clone(
    clone_url: Url, parent_url: Url, checkpoint: str | None = None, *, copy: bool = False, **where: Unpack[Where]
) -> Manifest:
    """Create a database at `clone_url` that begins with a version of another. As `DatabaseAdmin.create_clone`."""
    clone = _at(clone_url, where)
    return clone.create_clone(parent_url, checkpoint, copy=copy)


def restore(
    url: Url,
    checkpoint: str,
    *,
    lifetime: timedelta | None = RESTORABLE_FOR,
    take_over: bool = False,
    **where: Unpack[Where],
) -> Version:
    """Make an older version the newest. The present version stays for `lifetime`. As `DatabaseAdmin.restore`."""
    return _at(url, where).restore(checkpoint, lifetime=lifetime, take_over=take_over)


def destroy(
    url: Url,
    *,
    soft: bool = True,
    take_over: bool = False,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **where: Unpack[Where],
) -> CollectionReport:
    """Destroy a database, softly or at once. As `DatabaseAdmin.destroy`."""
    database = _at(url, where)
    return database.destroy(soft=soft, take_over=take_over, dry_run=dry_run, progress=progress)


def collect(
    *urls: Url,
    options: CollectorOptions | None = None,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **where: Unpack[Where],
) -> list[CollectionReport]:
    """Delete what nothing needs, in each of the databases.

    One that fails does not keep the others from being collected.

    Returns:
        The reports, in the order of `urls`.

    Raises:
        LakebedError: the first error, after all databases were tried.
    """
    for url in urls:
        if isinstance(url, CollectorOptions):
            raise InvalidRequest("Databases are named one after another, by URL; settings are given as options=...")
    reports: list[CollectionReport] = []
    errors: list[LakebedError] = []
    for url in urls:
        try:
            database = _at(url, where)
            reports.append(database.collect(options, dry_run=dry_run, progress=progress))
        except LakebedError as error:
            errors.append(error)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and another: {other}")
        raise errors[0]
    return reports


def compact(
    url: Url, *, full: bool = False, progress: Callable[[int, int], None] | None = None, **where: Unpack[Where]
) -> bool:
    """Merge files until nothing needs to be merged. Return whether anything was merged. As `DatabaseAdmin.compact`."""
    return _at(url, where).compact(full=full, progress=progress)


def show_manifest(url: Url, id: int | None = None, **where: Unpack[Where]) -> Manifest:
    """Return a manifest by number; None: the newest. Raises `NotFound`."""
    return _at(url, where).show_manifest(id)


def list_manifests(url: Url, **where: Unpack[Where]) -> list[ManifestSummary]:
    """Return every manifest with its time, its size and what pins it, oldest first."""
    return _at(url, where).list_manifests()
