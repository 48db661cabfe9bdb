"""Objects outside of a repository's namespace, to which imported entries point.

Owns: the stores from which such addresses are read. Invariants: an address is a URL. Objects that are read through it
are never written or deleted. A server that must not read every URL that a client names lists the allowed folders
(`lakebed.repo.outside.import_policy`). A URL is checked when an entry is made, and again when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.objects.path import Scheme, StoreUrl, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.layout import LAKEFS_FOLDER
from lakebed.repo.outside.import_policy import (
    ImportPolicy,
    Use,
    parse_allowed_folders,
    path_inside,
    real_url,
    refusal_error,
)
from lakebed.repo.outside.namespace import is_of_lakefs
from lakebed.runtime import Environment

STORE_COUNT_MAX = 64
"""Most stores that are kept open. If there are more, the least recently used one is dropped."""


def is_foreign(address: str) -> bool:
    """Whether an address is a URL, and not a path in the repository's namespace."""
    return "://" in address


class _Opened:
    """The open stores, by the URL of their root; shared by all views."""

    def __init__(
        self, scheme: Scheme | None, storage_options: Mapping[str, str] | None, environment: Environment | None
    ) -> None:
        self.scheme = scheme
        self.storage_options = dict(storage_options or {})
        self._environment = environment or Environment()
        self._stores = BoundedCache(0, count_max=STORE_COUNT_MAX, runtime=self._environment.runtime)

    def __len__(self) -> int:
        return self._stores.count

    def get(self, url: StoreUrl) -> ObjectStore:
        key = (url.scheme, url.place, url.prefix)
        store: ObjectStore | None = self._stores.get(key)
        if store is not None:
            return store
        options = self.storage_options if url.scheme == self.scheme and url.scheme not in ("file", "memory") else None
        store = open_store(str(url), storage_options=options, environment=self._environment)
        self._stores.put(key, store, size_bytes=0)
        return store


class ForeignStores:
    """Stores by their root: a bucket, a container, a folder. Thread-safe.

    Args:
        like: the URL of the repository's own storage. Stores of its kind are opened with `storage_options`, stores of
            other kinds with the settings in environment variables.
        storage_options: the vendor's settings and credentials.
        allowed: folders below which objects may be named and read, such as ``s3://bucket/raw``, or for one repository
            only ``analytics=s3://bucket/raw``; None: everywhere. With a list, folders inside `like` must be listed
            themselves. The records, a repository's namespace and another store are never allowed.
        records: the URL of the records of repositories.
        environment: clock, randomness and concurrency of the stores.
    """

    def __init__(
        self,
        *,
        like: str = "",
        storage_options: Mapping[str, str] | None = None,
        allowed: Sequence[str] | None = None,
        records: str | os.PathLike[str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        root = parse_url(like) if like else None
        self._opened = _Opened(None if root is None else root.scheme, storage_options, environment)
        self._repository = ""
        self._is_limited = False
        self._namespace: StoreUrl | None = None
        self._policy: ImportPolicy | None = None
        if allowed is not None:
            self._policy = ImportPolicy(
                parse_allowed_folders(allowed),
                None if root is None else real_url(root),
                None if records is None or _is_service(records) else real_url(parse_url(records)),
            )

    def __repr__(self) -> str:
        return f"ForeignStores({len(self._opened)} open)"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle for tasks of a job, which open the stores again. Holds credentials, as a pickled store does."""
        policy = self._policy
        if policy is not None:
            policy = replace(policy, taken=_Known(tuple(policy.taken())))
        opening = self._opened
        arguments = (
            opening.scheme,
            opening.storage_options,
            policy,
            self._repository,
            self._is_limited,
            self._namespace,
        )
        return _reopen, arguments

    def of(self, repository: str, *, is_limited: bool = False, namespace: str | None = None) -> ForeignStores:
        """Return a view for one repository. The stores are shared.

        Args:
            is_limited: the view is for a key that is limited to some repositories. It may name only folders that are
                allowed for this repository. Existing entries of the repository can still be read.
            namespace: the URL of the repository's namespace if it shares that with lakeFS: lakeFS's objects there may
                be named and read in this repository. None: as in this view.
        """
        view = copy(self)
        view._repository, view._is_limited = repository, is_limited
        if namespace is not None:
            view._namespace = real_url(parse_url(namespace))
        return view

    def protecting(self, taken: Callable[[], Iterable[str]]) -> ForeignStores:
        """Return a view in which the folders of the storage that `taken` returns at each check are never allowed."""
        view = copy(self)
        if self._policy is not None:
            view._policy = replace(self._policy, taken=taken)
        return view

    def locate(self, address: str) -> tuple[ObjectStore, str]:
        """Return the store of an address and the path in it, to read an entry's bytes.

        Raises:
            InvalidRequest: kind ``invalid_url``: not the URL of an object; ``import_not_allowed``: it may not be read.
        Cost: no request.
        """
        return self._locate(address, use="read")

    def locate_new(self, address: str) -> tuple[ObjectStore, str]:
        """As `locate`, for an address that becomes an entry. Raises as `locate`. Cost: no request."""
        return self._locate(address, use="name")

    def folder(self, address: str) -> StoreUrl:
        """Return the real URL of a folder, to list what can be imported from it. Raises as `locate`."""
        return self._judge(parse_url(address), address, use="list")

    def open(self, address: str) -> ObjectStore:
        """Open the folder at an address as a store. Raises as `locate`."""
        return self.store(self.folder(address))

    def store(self, url: StoreUrl) -> ObjectStore:
        """Open the store of a folder, by the URL that `folder` returned."""
        if url.scheme == "file" or not url.prefix:
            return self._opened.get(url)
        return self._opened.get(StoreUrl(url.scheme, url.place, "")).sub(url.prefix)

    def check(self, addresses: Iterable[str]) -> None:
        """Refuse addresses of objects that may not become entries. Raises as `locate`.

        Cost: no request; a folder of this machine is examined once, however many of its objects are named.
        """
        if self._policy is None:
            return
        judged_folders: set[str] = set()
        for address in addresses:
            folder, _, name = address.rpartition("/")
            is_plain = name not in ("", ".", "..") and "\0" not in name
            if is_plain and folder in judged_folders:
                continue
            self.locate_new(address)
            if is_plain:
                judged_folders.add(folder)

    def _locate(self, address: str, *, use: Use) -> tuple[ObjectStore, str]:
        url = parse_url(address)
        folder, _, name = url.prefix.rpartition("/")
        if not name or (url.scheme == "file" and not folder):
            raise InvalidRequest(
                f"{address!r} names no object: write the URL of one, such as s3://bucket/folder/object.",
                kind="invalid_url",
                address=address,
            )
        if url.scheme != "file":
            self._judge(url, address, use=use)
            return self._opened.get(StoreUrl(url.scheme, url.place, "")), url.prefix
        # Open exactly the folder that was checked. The store refuses an object that is a link itself.
        place = StoreUrl("file", "", folder)
        if self._policy is None:
            return self._opened.get(place), name
        place = real_url(place)
        self._judge(StoreUrl("file", "", os.path.join(place.prefix, name)), address, use=use, is_real=True)
        return self._opened.get(place), name

    def _judge(self, url: StoreUrl, address: str, *, use: Use, is_real: bool = False) -> StoreUrl:
        """Return the real URL, with links followed, if it is allowed."""
        if self._policy is None:
            return url
        real = url if is_real else real_url(url)
        if use != "list" and self._namespace is not None:
            path = path_inside(real, self._namespace)
            if path and is_of_lakefs(path) and path.partition("/")[0] != LAKEFS_FOLDER:
                return real
        is_limited = self._is_limited and use != "read"
        reason = self._policy.refusal(real, use=use, repository=self._repository, is_limited=is_limited)
        if reason is not None:
            raise refusal_error(address, reason, repository=self._repository, is_limited=is_limited)
        return real


@dataclass(frozen=True, slots=True)
class _Known:
    """Returns the folders that were taken when the view was pickled for another process."""

    folders: tuple[str, ...]

    def __call__(self) -> tuple[str, ...]:
        return self.folders


def _is_service(records: str | os.PathLike[str]) -> bool:
    """Whether records are in a database server, not in a folder or bucket."""
    return os.fspath(records).startswith(("postgresql://", "postgres://"))


def _reopen(
    scheme: Scheme | None,
    storage_options: Mapping[str, str],
    policy: ImportPolicy | None,
    repository: str,
    is_limited: bool,
    namespace: StoreUrl | None,
) -> ForeignStores:
    stores = ForeignStores()
    stores._opened = _Opened(scheme, storage_options, None)
    stores._policy, stores._repository, stores._is_limited = policy, repository, is_limited
    stores._namespace = namespace
    return stores
