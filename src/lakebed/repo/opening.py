"""Opening by URL: one repository, or all repositories of a storage.

Owns: the way from a URL to a storage, its records and a repository's name; `open_repository` and `open_repositories`,
which `lakebed.repo` has as ``open`` and ``open_all``. Does not know: what opening does; how a repository is reached
over HTTP (`lakebed.repo.remote`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.key_value.reader import ReadOnlyKeyValue
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects.open import open_store
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.repo.foreign import ForeignStores
from lakebed.repo.names import check_repository_name
from lakebed.repo.namespace import METADATA_FOLDER, REPOSITORY_SUFFIX
from lakebed.repo.options import RepositoryOptions
from lakebed.repo.repositories import Repositories
from lakebed.repo.repository import Repository
from lakebed.runtime import Environment

__all__ = ["open_repositories", "open_repository", "sole_repository"]

_REMOTE_SCHEMES: Final = ("http://", "https://")
_REMOTE: Final = "lakebed.repo.remote.opening"
_OWNER_LOOK_S: Final = 0.1
"""How often a waiting process looks whether the owner is gone."""


def open_repositories(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    metadata: str | os.PathLike[str] | None = None,
    options: RepositoryOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    take_over: bool = False,
    read_only: bool = False,
    durable: bool = True,
    endpoint: str | None = None,
    import_from: Sequence[str] | None = None,
    owner_wait_ms: int = 0,
    access_key: str | None = None,
    secret: str | None = None,
) -> Repositories:
    """Open all repositories of a storage: become the owner of their records. Or those of a running server.

    Args:
        url: of the storage: a path, or a URL such as ``s3://bucket/folder``; or a server's, ``http://host:port``.
        create: make the database of records when it is not there.
        metadata: where the records are: the folder or URL of a database, or ``postgresql://...``, which several servers
            may share; by default ``_repositories`` in the storage.
        options: settings of every repository.
        storage_options: credentials and endpoints, as `lakebed.objects.open_store` takes them.
        environment: clock, randomness and threads; for tests.
        take_over: also when another process owns the records; that one is over then.
        read_only: own nothing and write nothing, beside whoever owns the records; for questions, not for servers.
        durable: False does not wait for the disk, on local folders.
        endpoint: where this process serves others; whom its ownership turns away is told.
        import_from: URLs below which objects may be imported, or ``repository=URL`` for one repository; None:
            everywhere. With a list, nothing below the storage itself may be but what is in the list, and never the
            records, another repository or another store.
        owner_wait_ms: wait so long for another process that owns the records and is no server: a command, a job.
        access_key, secret: for a server, which takes nothing else but the URL.

    Raises:
        Conflict: kind ``owned``: another process owns the records, and at which endpoint it serves them.
        NotFound: kind ``repositories_not_found``: there are none, and not `create`.
        InvalidRequest: a URL or an option cannot be.
        Unavailable, OutcomeUnknown, Fenced: as `lakebed.kv.open`.
    Cost: as `lakebed.kv.open`.
    """
    if (text := os.fspath(url)).startswith(_REMOTE_SCHEMES):
        remote: Repositories = _remote().open_remote_repositories(text, access_key=access_key, secret=secret)
        return remote
    environment = environment or Environment()
    store = open_store(
        url, storage_options=storage_options, environment=environment, durable=durable, create=create and not read_only
    )
    place: str | os.PathLike[str] = f"{store.root_url}/{METADATA_FOLDER}" if metadata is None else metadata
    # Credentials are for the storage: records that are elsewhere are reached by what the environment says.
    credentials = storage_options if metadata is None else None
    try:
        key_value: KeyValue
        if read_only:
            key_value = ReadOnlyKeyValue(
                DatabaseLocation.at(place, storage_options=credentials, environment=environment, durable=durable)
            )
        else:
            key_value = _owned(
                lambda: open_key_value(
                    place,
                    storage_options=credentials,
                    environment=environment,
                    create=create,
                    take_over=take_over,
                    durable=durable,
                    endpoint=endpoint,
                ),
                wait_ms=owner_wait_ms,
                environment=environment,
            )
    except NotFound as missing:
        above, _, folder = store.root_url.rpartition("/")
        hint = f"name the lake, {above}" if folder.endswith(".repo") else "create one, or name another storage"
        raise NotFound(
            f"There are no repositories at {store.root_url}: {hint}.",
            kind="repositories_not_found",
            url=store.root_url,
        ) from missing
    options = options or RepositoryOptions()
    if read_only:
        options = replace(options, background=False)
    foreign = ForeignStores(
        like=store.root_url,
        storage_options=storage_options,
        allowed=import_from,
        records=place,
        environment=environment,
    )
    return Repositories(store, key_value, options=options, environment=environment, foreign=foreign)


def _remote() -> Any:
    """The client of a server, loaded by those who use it."""
    return importlib.import_module(_REMOTE)


def _owned(opening: Callable[[], KeyValue], *, wait_ms: int, environment: Environment) -> KeyValue:
    """What is opened, once a passing owner has let it go; a server stays, so nobody waits for one."""
    clock = environment.clock
    until_s = clock.monotonic_s() + wait_ms / 1000
    while True:
        try:
            return opening()
        except Conflict as error:
            if error.kind != "owned" or error.facts.get("endpoint") or clock.monotonic_s() >= until_s:
                raise
        clock.sleep(_OWNER_LOOK_S)


def open_repository(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    metadata: str | os.PathLike[str] | None = None,
    options: RepositoryOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    take_over: bool = False,
    durable: bool = True,
    access_key: str | None = None,
    secret: str | None = None,
) -> Repository:
    """Open one repository: ``/lake/analytics.repo``, or ``http://host:port/analytics`` of a running server.

    Args:
        url: of the repository: the storage's, then its name and ``.repo``; or a server's, then its name.
        create: make it when it is not there.
        access_key, secret: for a server.
        metadata, options, storage_options, environment, take_over, durable: as `open_repositories`; not for a server.

    Returns:
        A `Repository` that closes what was opened for it, or the same facade over HTTP.

    Raises:
        NotFound: kind ``repository_not_found``, ``repositories_not_found``: it is not there, and not `create`.
        InvalidRequest: kind ``not_a_repository``: the URL has no ``<name>.repo`` at its end.
        Conflict: kind ``owned``: as `open_repositories`.
    Cost: as `open_repositories`, and 1 read.
    """
    text = os.fspath(url)
    if text.startswith(_REMOTE_SCHEMES):
        remote: Repository = _remote().open_remote_repository(text, access_key=access_key, secret=secret, create=create)
        return remote
    storage, name = _split(text)
    if create:
        check_repository_name(name)  # before anything is made, or owned
    home = open_repositories(
        storage,
        create=create,
        metadata=metadata,
        options=options,
        storage_options=storage_options,
        environment=environment,
        take_over=take_over,
        durable=durable,
    )
    return sole_repository(home, name, create=create)


def sole_repository(repositories: Repositories, name: str, *, create: bool) -> Repository:
    """One repository, which closes all when it is closed; they are closed at once when it cannot be opened.

    Args:
        create: make it when it is not there.

    Raises as `Repositories.repository` and, with `create`, `Repositories.create`.
    """
    try:
        if create and not repositories.exists(name):
            try:
                repositories.create(name)
            except AlreadyExists as error:
                if error.kind != "repository_exists":  # somebody else made it at this moment
                    raise
        return Repository(repositories.repository(name).transport, close=repositories.close)
    except BaseException:
        with suppress(LakebedError):
            repositories.close()  # or the next try would find ourselves in the way
        raise


def _split(url: str) -> tuple[str, str]:
    """The URL of the storage, and the repository's name."""
    parsed = parse_url(url)
    folder, _, last = parsed.prefix.rpartition("/")
    name = last.removesuffix(REPOSITORY_SUFFIX)
    if name == last or not name:
        raise InvalidRequest(
            f"{url} is no repository's URL: write the storage's, then the name with {REPOSITORY_SUFFIX} behind it, "
            f"such as {url.rstrip('/')}/analytics{REPOSITORY_SUFFIX}; or open all of them with lakebed.repo.open_all.",
            kind="not_a_repository",
            url=url,
        )
    if parsed.scheme == "file":
        folder = folder or "/"
    return str(StoreUrl(parsed.scheme, parsed.place, folder)), name
