"""Open one repository, or all repositories of a storage, by URL.

Owns: the mapping from a URL to a storage, its records and a repository's name; `open_repository` and
`open_repositories`, which `lakebed.repo` exports as ``open`` and ``open_all``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote, urlsplit

from lakebed.arguments import check_function
from lakebed.backoff import Backoff, Pauses
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.key_value.database import DatabaseKeyValue
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.key_value.reader import ReadOnlyKeyValue
from lakebed.kv.database import explain_closed
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects.open import open_store
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.names import check_repository_name
from lakebed.repo.model.options import Access, RepositoryOptions
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.outside.namespace import METADATA_FOLDER, REPOSITORY_SUFFIX
from lakebed.repo.repositories import Repositories
from lakebed.repo.repository import Repository
from lakebed.repo.transport.catalog import Catalog, LocalCatalog
from lakebed.repo.transport.transport import transport_of
from lakebed.runtime import Environment

_OWNER_PAUSES: Final = Pauses(0.1, 0.1)
"""How often a waiting process tries again to become the owner."""


def is_server(url: str) -> bool:
    """Whether a URL is a server's."""
    return url.startswith(("http://", "https://"))


@check_function
def open_repositories(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    metadata: str | os.PathLike[str] | None = None,
    options: RepositoryOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    durable: bool = True,
    access: Access | None = None,
) -> Repositories:
    """Open all repositories of a storage as the owner of their records, or those of a running server.

    Args:
        url: of the storage: a path, or a URL such as ``s3://bucket/folder``. Of a server: ``http://host:port``.
        create: create the database of records if it is missing.
        metadata: where the records are: the folder or URL of a database, or ``postgresql://...``, which several servers
            may share. None: ``_repositories`` in the storage.
        options: settings of the repositories.
        storage_options: credentials and endpoints of the object store.
        environment: clock, randomness and threads; for tests.
        durable: False does not wait for the disk, on local folders.
        access: whether to only read, to take over from another owner, or to wait for one; and credentials for a server.
            A server takes no other arguments.

    Raises:
        Conflict: kind ``owned``: another process owns the records. The message names the endpoint at which it serves
            them.
        NotFound: kind ``repositories_not_found``: there are no repositories, and `create` is False.
        InvalidRequest: a URL or an option is not valid; kind ``no_credentials``.
        Unavailable, OutcomeUnknown, Fenced: as `lakebed.kv.open`.

    Cost: as `lakebed.kv.open`; of a server no request.
    """
    access = access or Access()
    if is_server(text := os.fspath(url)):
        return Repositories(_server_catalog(text, access))
    options, environment = options or RepositoryOptions(), environment or Environment()
    if access.read_only:
        options, create = replace(options, background=False), False
    store = open_store(url, storage_options=storage_options, environment=environment, durable=durable, create=create)
    records = f"{store.root_url}/{METADATA_FOLDER}" if metadata is None else os.fspath(metadata)
    # Credentials are for the storage. Records elsewhere are opened with the environment's credentials.
    credentials = storage_options if metadata is None else None

    open_once = partial(
        _open_records,
        records,
        credentials=credentials,
        access=access,
        create=create,
        environment=environment,
        durable=durable,
    )
    try:
        key_value = _after_owner(open_once, wait_ms=access.owner_wait_ms, environment=environment)
    except NotFound as missing:
        raise _no_repositories(store) from missing
    foreign = ForeignStores(
        like=store.root_url,
        storage_options=storage_options,
        allowed=options.import_from,
        records=records,
        environment=environment,
    )
    return Repositories(LocalCatalog(store, key_value, options=options, environment=environment, foreign=foreign))


def _open_records(
    url: str,
    *,
    credentials: Mapping[str, str] | None,
    access: Access,
    create: bool,
    environment: Environment,
    durable: bool,
) -> KeyValue:
    """Open the database of records at `url`, as its owner or only to read it."""
    if access.read_only:
        return ReadOnlyKeyValue(
            DatabaseLocation.at(url, storage_options=credentials, environment=environment, durable=durable)
        )
    key_value = open_key_value(
        url,
        storage_options=credentials,
        environment=environment,
        create=create,
        take_over=access.take_over,
        durable=durable,
        endpoint=access.endpoint,
    )
    if isinstance(key_value, DatabaseKeyValue):
        explain_closed(
            key_value.database,
            "was closed with the repositories whose records it has: open these again",
            in_fork="has the records of repositories that belong to the process that this one was forked from: "
            "open these here, with access=Access(read_only=True)",
        )
    return key_value


def _server_catalog(url: str, access: Access) -> Catalog:
    """The repositories of a server. No request is made."""
    from lakebed.repo.transport.http_catalog import HttpCatalog  # here, because it loads urllib3
    from lakebed.repo.transport.http_client import Client

    return HttpCatalog(Client(url, access_key=access.access_key, secret=access.secret))


def _no_repositories(store: ObjectStore) -> NotFound:
    parent, _, folder = store.root_url.rpartition("/")
    hint = f"name the lake, {parent}" if folder.endswith(".repo") else "create one, or name another storage"
    return NotFound(
        f"There are no repositories at {store.root_url}: {hint}.",
        kind="repositories_not_found",
        url=store.root_url,
    )


def _after_owner(opening: Callable[[], KeyValue], *, wait_ms: int, environment: Environment) -> KeyValue:
    """Open the records, and wait for another owner, up to `wait_ms`. Does not wait for an owner that is a server."""
    backoff = Backoff(environment, _OWNER_PAUSES, retry_s=wait_ms / 1000)
    for _ in backoff:
        try:
            return opening()
        except Conflict as error:
            if error.kind != "owned" or error.facts.get("endpoint"):
                raise
            backoff.note(error)
    raise backoff.reason


@check_function
def open_repository(
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    metadata: str | os.PathLike[str] | None = None,
    options: RepositoryOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    durable: bool = True,
    access: Access | None = None,
) -> Repository:
    """Open one repository: ``/lake/analytics.repo``, or ``http://host:port/analytics`` of a running server.

    Close it when it is no longer needed. That also closes what was opened for it.

    Args:
        url: the URL of the storage, then the repository's name and ``.repo``; or the URL of a server, then the name.
        create: create the repository if it is missing.
        metadata, options, storage_options, environment, durable, access: as `open_all`.

    Raises:
        NotFound: kind ``repository_not_found`` or ``repositories_not_found``: it is missing, and `create` is False.
        InvalidRequest: kind ``not_a_repository``: the URL names no repository.
        Conflict: kind ``owned``: another process owns the records, as `open_all`.

    Cost: as `open_all`, and 1 read.
    """
    storage, name = _split(os.fspath(url))
    if create:
        check_repository_name(name)  # before anything is created or owned
    repositories = open_repositories(
        storage,
        create=create,
        metadata=metadata,
        options=options,
        storage_options=storage_options,
        environment=environment,
        durable=durable,
        access=access,
    )
    return sole_repository(repositories, name, create=create)


def sole_repository(repositories: Repositories, name: str, *, create: bool) -> Repository:
    """Return one repository, whose `close` closes all. If it cannot be opened, close all at once.

    Raises as `Repositories.repository` and, with `create`, `Repositories.create`.
    """
    try:
        repository = _find_or_create(repositories, name) if create else repositories.repository(name)
        return Repository(transport_of(repository), close=repositories.close)
    except BaseException:
        with suppress(LakebedError):
            repositories.close()  # or this process would stay the owner, and the next attempt would fail
        raise


def _find_or_create(repositories: Repositories, name: str) -> Repository:
    try:
        return repositories.repository(name)
    except NotFound as missing:
        if missing.kind != "repository_not_found":
            raise
    try:
        return repositories.create(name)
    except AlreadyExists as error:
        if error.kind != "repository_exists":
            raise
    return repositories.repository(name)  # another process created it meanwhile


def _split(url: str) -> tuple[str, str]:
    """Split a URL into that of the storage or server, and the repository's name."""
    if is_server(url):
        endpoint, _, name = url.rstrip("/").rpartition("/")
        if urlsplit(url).path.strip("/") == "":
            raise InvalidRequest(
                f"{url} is a server's URL and names no repository: write {url.rstrip('/')}/NAME, or open all of them "
                "with lakebed.repo.open_all.",
                kind="not_a_repository",
                url=url,
            )
        return endpoint, unquote(name)
    location = parse_url(url)
    folder, _, last = location.prefix.rpartition("/")
    name = last.removesuffix(REPOSITORY_SUFFIX)
    if name == last or not name:
        raise InvalidRequest(
            f"{url} is not a repository's URL: write the storage's, then the name with {REPOSITORY_SUFFIX} behind it, "
            f"such as {url.rstrip('/')}/analytics{REPOSITORY_SUFFIX}; or open all of them with lakebed.repo.open_all.",
            kind="not_a_repository",
            url=url,
        )
    if location.scheme == "file":
        folder = folder or "/"
    return str(StoreUrl(location.scheme, location.place, folder)), name
