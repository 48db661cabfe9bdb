"""Objects outside of a repository's namespace: where imported entries point.

Owns: the stores such addresses are read from. Invariants: an address is a URL, and what is read through it is never
written or deleted; a server that must not read whatever a client names says which places are allowed. Does not know:
entries, repositories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

__all__ = ["ForeignStores", "is_foreign"]

STORE_COUNT_MAX = 64
"""Stores that are kept open; the one opened first goes when there are more."""


def is_foreign(address: str) -> bool:
    """Whether an address is a URL, and not a path in the repository's namespace."""
    return "://" in address


class ForeignStores:
    """Stores by their root: a bucket, a container, a folder. Thread-safe.

    Args:
        like: the URL of the repository's own storage; `storage_options` are for stores of its kind, and those of other
            kinds are opened with what the environment variables say.
        storage_options: the vendor's settings and credentials.
        allowed: URLs below which objects may be read, such as ``s3://bucket/raw``; None: everywhere.
        environment: clock, randomness and concurrency of the stores.
    """

    def __init__(
        self,
        *,
        like: str = "",
        storage_options: Mapping[str, str] | None = None,
        allowed: Sequence[str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._scheme = parse_url(like).scheme if like else None
        self._storage_options = dict(storage_options or {})
        self._allowed = None if allowed is None else tuple(parse_url(url) for url in allowed)
        self._environment = environment or Environment()
        self._lock = self._environment.runtime.lock()
        self._stores: dict[tuple[str, str, str], ObjectStore] = {}

    def __repr__(self) -> str:
        return f"ForeignStores({len(self._stores)} open)"

    def locate(self, address: str) -> tuple[ObjectStore, str]:
        """The store and the path in it that an address names.

        Raises:
            InvalidRequest: kind ``invalid_url``: it is no URL of an object; ``import_not_allowed``: nothing may be read
                there.
        Cost: no request.
        """
        url = parse_url(address)
        folder, _, name = url.prefix.rpartition("/")
        if not name or (url.scheme == "file" and not folder):
            raise InvalidRequest(
                f"{address!r} names no object: write the URL of one, such as s3://bucket/folder/object.",
                kind="invalid_url",
                address=address,
            )
        self._check_allowed(url, address)
        if url.scheme == "file":
            return self._opened(StoreUrl(url.scheme, url.place, folder)), name
        return self._opened(StoreUrl(url.scheme, url.place, "")), url.prefix

    def open(self, address: str) -> ObjectStore:
        """The folder that an address names, to list what can be imported from it. Raises as `locate`."""
        url = parse_url(address)
        self._check_allowed(url, address)
        if url.scheme == "file" or not url.prefix:
            return self._opened(url)
        return self._opened(StoreUrl(url.scheme, url.place, "")).sub(url.prefix)

    def check(self, address: str) -> None:
        """Refuse what may not be read. Raises as `locate`, but for a folder's URL nothing. Cost: no request."""
        self._check_allowed(parse_url(address), address)

    def _check_allowed(self, url: StoreUrl, address: str) -> None:
        if self._allowed is None or any(_is_below(url, root) for root in self._allowed):
            return
        raise InvalidRequest(
            f"{address} is not among the places that objects may be imported from: ask whoever runs the server to "
            "allow it.",
            kind="import_not_allowed",
            address=address,
        )

    def _opened(self, url: StoreUrl) -> ObjectStore:
        key = (url.scheme, url.place, url.prefix)
        with self._lock:
            store = self._stores.get(key)
        if store is not None:
            return store
        options = self._storage_options if url.scheme == self._scheme and url.scheme not in ("file", "memory") else None
        opened = open_store(str(url), storage_options=options, environment=self._environment)
        with self._lock:
            if len(self._stores) >= STORE_COUNT_MAX:
                del self._stores[next(iter(self._stores))]
            return self._stores.setdefault(key, opened)


def _is_below(url: StoreUrl, root: StoreUrl) -> bool:
    if (url.scheme, url.place) != (root.scheme, root.place):
        return False
    return (
        not root.prefix or root.prefix == "/" or url.prefix == root.prefix or url.prefix.startswith(root.prefix + "/")
    )
