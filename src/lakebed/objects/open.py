"""`open_store`: from a URL to a store.

Owns: the driver of each scheme, the pickling of stores, and access to objects outside a store. A path that is a URL
(`is_url`) names an object of another root, which `place_of` opens with the settings of the store.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.driver import Driver
from lakebed.objects.limits import StoreLimits
from lakebed.objects.local import LocalDriver
from lakebed.objects.memory import MemoryDriver
from lakebed.objects.path import StoreUrl, is_url, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.texts import list_some


@runtime_checkable
class OpensElsewhere(Protocol):
    """A store that opens other roots with its own settings."""

    def elsewhere(self, url: str) -> ObjectStore:
        """Open another root, with this store's environment, limits and durability.

        A root of the same kind of storage is opened with this store's storage options, any other one with the vendor's
        environment variables. Raises as `open_store`. Cost: no request.
        """


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    limits: StoreLimits | None = None,
    durable: bool = True,
    create: bool = True,
) -> AccountedStore:
    """Open a folder of objects, without writing; for a bucket, without a request.

    Args:
        url: a folder's path, ``file:///path``, ``memory://name``, ``s3://bucket/prefix``, ``gs://...`` or
            ``az://container/prefix``. Taken literally, without percent-decoding.
        storage_options: the vendor's settings and credentials (``aws_access_key_id``, ``aws_endpoint``, ...); the
            vendor's environment variables supply the others. Never shown in messages.
        environment: clock, randomness and runtime; the machine's own by default.
        limits: bounds on concurrency, time and retries.
        durable: False never waits for a disk: for temporary stores, and benchmarks of other parts.
        create: False refuses a missing local folder. (With True the first put creates it.)

    Raises:
        InvalidRequest: the URL or an option is wrong, or the path is a file.
        NotFound: ``create=False`` and there is no such folder.
    Cost: no request.
    """
    location = parse_url(url)
    environment = environment or Environment()
    limits = limits or StoreLimits()
    options = {} if storage_options is None else dict(storage_options)
    driver = _driver(location, options, environment, limits, create)
    reopen = None if location.scheme == "memory" else _Reopen(str(location), options, limits, durable)
    elsewhere = _Elsewhere(location.scheme, options, environment, limits, durable)
    return AccountedStore(
        driver, environment=environment, limits=limits, durable=durable, reopen=reopen, elsewhere=elsewhere
    )


def place_of(store: ObjectStore, path: str) -> tuple[ObjectStore, str]:
    """Return the store of an object, and its path there: `store` itself unless the path is a URL.

    Args:
        store: the store that names the object.
        path: inside it, or a URL as other clients write it, such as ``s3://bucket/folder/name`` or
            ``file:/folder/name``; taken literally.

    Raises:
        InvalidRequest: a URL that names no object, or a kind of storage that lakebed does not know.
    Cost: no request. A bucket is opened once for a store, a local folder each time.
    """
    if not is_url(path):
        return store, path
    location = parse_url(path)
    folder, _, name = location.prefix.rpartition("/")
    if not name or path.endswith("/"):
        raise InvalidRequest(f"{path!r} is not the URL of an object.", kind="invalid_url", url=path)
    if location.scheme == "file":
        return open_elsewhere(store, f"file://{folder or '/'}"), name
    return open_elsewhere(store, f"{location.scheme}://{location.place}"), location.prefix


def open_elsewhere(store: ObjectStore, url: str) -> ObjectStore:
    """Open another root with the settings of `store`, if it has some. Raises as `open_store`. Cost: no request."""
    return store.elsewhere(url) if isinstance(store, OpensElsewhere) else open_store(url)


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Opens other roots with the settings of one store. Each bucket is opened once, as it has its own connections."""

    scheme: str
    storage_options: Mapping[str, str] = field(repr=False)
    environment: Environment
    limits: StoreLimits
    durable: bool
    opened: dict[str, AccountedStore] = field(default_factory=dict, repr=False)

    def __call__(self, url: str) -> ObjectStore:
        location = parse_url(url)
        existing_store = self.opened.get(str(location))
        if existing_store is not None:
            return existing_store
        store = open_store(
            str(location),
            storage_options=self.storage_options if location.scheme == self.scheme else {},
            environment=self.environment,
            limits=self.limits,
            durable=self.durable,
        )
        return store if location.scheme == "file" else self.opened.setdefault(str(location), store)


@dataclass(frozen=True, slots=True)
class _Reopen:
    """A picklable call that opens the same store in another process."""

    url: str
    storage_options: Mapping[str, str] = field(repr=False)
    limits: StoreLimits
    durable: bool

    def __call__(self) -> ObjectStore:
        return open_store(self.url, storage_options=self.storage_options, limits=self.limits, durable=self.durable)


def _driver(
    url: StoreUrl, options: Mapping[str, str], environment: Environment, limits: StoreLimits, create: bool
) -> Driver:
    if url.scheme in ("file", "memory") and options:
        raise InvalidRequest(
            f"{url} takes no storage options, but {', '.join(sorted(options))} was given: leave it out, also from the "
            "environment variable LAKEBED_STORAGE_OPTIONS of the command line.",
            kind="invalid_option",
        )
    if url.scheme == "memory":
        return MemoryDriver(url.place, prefix=url.prefix, clock=environment.clock)
    if url.scheme != "file":
        from lakebed.objects.vendor import VendorDriver  # the cloud clients, which a folder does not need

        return VendorDriver(url, options, limits)
    if os.path.exists(url.prefix):
        if not os.path.isdir(url.prefix):
            raise InvalidRequest(
                f"{url.prefix} is a file, and a folder is needed here: name the folder.",
                kind="not_a_folder",
                url=str(url),
            )
    elif not create:
        raise NotFound(f"There is no folder {url.prefix}.{_hint(url.prefix)}", kind="store_not_found", url=str(url))
    return LocalDriver(url.prefix, environment=environment, folder_memory_count_max=limits.folder_memory_count_max)


def _hint(folder: str) -> str:
    """Suggest the existing folder that may have been meant instead of a missing one; otherwise say what is there."""
    parent, name = os.path.split(folder)
    try:
        names = sorted(entry.name for entry in os.scandir(parent) if entry.is_dir())
    except OSError:
        return f" Nor is there {parent}." if not os.path.exists(parent) else ""
    if similar := difflib.get_close_matches(name, names, n=1):
        return f" Did you mean {os.path.join(parent, similar[0])}?"
    return f" {parent} has {list_some(names)}." if names else f" {parent} has no folders."
