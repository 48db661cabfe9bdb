"""Where imported objects may be: the folders that an operator allows, and places that are never allowed.

Owns: `ImportPolicy`, which decides on a URL that a client names. Invariants:

- A folder of this machine is checked, and opened, at its real path, with links followed. So no spelling of a path
  reaches more than another.
- Below the storage of the repositories, only folders inside it that the operator allows are allowed.
- The records, the namespaces of repositories and the other stores of the storage are always refused.

docs/design/0030-limits-of-server-clients.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lakebed.errors import InvalidRequest
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.repo.outside.namespace import METADATA_FOLDER, STORE_SUFFIXES, overlaps

Use = Literal["read", "name", "list"]
"""The use of a URL: read the object of an existing entry, name an object in a new entry, or list a folder."""

_OF_REPOSITORY: Final = re.compile(r"([a-z0-9][a-z0-9-]{2,62})=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AllowedFolder:
    """A folder or bucket from which objects may be imported.

    Attributes:
        url: real URL of the folder, with links followed.
        repository: the only repository that may import from it; None: all, with keys that are not limited.
    """

    url: StoreUrl
    repository: str | None = None


def parse_allowed_folders(texts: Sequence[str | os.PathLike[str]]) -> tuple[AllowedFolder, ...]:
    """Parse the folders of a setting: each is a URL, or ``repository=URL`` for one repository only.

    Raises:
        InvalidRequest: kind ``invalid_url``.
    Cost: for a folder of this machine, 1 system call for each folder above it.
    """
    folders = []
    for given in texts:
        text = os.fspath(given)
        of_one = _OF_REPOSITORY.fullmatch(text)
        repository, url = of_one.groups() if of_one else (None, text)
        folders.append(AllowedFolder(real_url(parse_url(url)), repository))
    return tuple(folders)


def real_url(url: StoreUrl) -> StoreUrl:
    """A URL with the links of its path followed; a bucket's URL unchanged.

    Cost: 1 system call for each folder above it.
    """
    return StoreUrl("file", "", os.path.realpath(url.prefix)) if url.scheme == "file" else url


@dataclass(frozen=True, slots=True)
class ImportPolicy:
    """Decides which URLs may be imported, read or listed.

    Attributes:
        allowed: the folders that the operator allows.
        root: the storage of the repositories.
        records: the place of their records, if it is a folder or a bucket.
        taken: returns the namespaces of all repositories, relative to `root`; called for a URL inside `root`.
    """

    allowed: tuple[AllowedFolder, ...]
    root: StoreUrl | None = None
    records: StoreUrl | None = None
    taken: Callable[[], Iterable[str]] = tuple

    def refusal(self, url: StoreUrl, *, use: Use, repository: str, is_limited: bool) -> str | None:
        """The reason why a URL is refused; None: it is allowed.

        Args:
            url: the real URL of an object or a folder (`real_url`).
            repository: the repository whose entry it is, or becomes.
            is_limited: the caller's key is limited to some repositories, so folders that are allowed for all
                repositories do not count. Ignored for reads: a key that may read a repository may read all its entries.

        Cost: no request to a store; for a URL inside the storage, a scan of the records of repositories.
        """
        allowed_folders = [
            folder.url
            for folder in self.allowed
            if folder.repository == repository or (folder.repository is None and (use == "read" or not is_limited))
        ]
        relative = None if self.root is None else path_inside(url, self.root)
        if relative is None:
            if not any(path_inside(url, folder) is not None for folder in allowed_folders):
                return "it is not among the places that objects may be imported from"
            if self._holds(url, use=use):
                return "the storage of the repositories or their records are in it"
            return None
        assert self.root is not None
        own_folders = [folder for folder in allowed_folders if path_inside(folder, self.root) is not None]
        if not any(path_inside(url, folder) is not None for folder in own_folders):
            return "it is in the storage of the repositories, of which nothing is allowed but what is named"
        if self._holds(url, use=use) or self._is_taken(relative):
            return "it belongs to the records, to a repository or to another store, and copies are made of these"
        return None

    def _holds(self, url: StoreUrl, *, use: Use) -> bool:
        """Whether a URL is inside the records, or for a listing, whether the storage or the records are inside it."""
        if self.records is not None and path_inside(url, self.records) is not None:
            return True
        places = [place for place in (self.root, self.records) if place is not None]
        return use == "list" and any(path_inside(place, url) is not None for place in places)

    def _is_taken(self, inside: str) -> bool:
        """Whether a path of the storage is in a store, or has one in it. Ignores case, because disks may, too."""
        path = inside.casefold()
        first = path.partition("/")[0]
        if not path or first == METADATA_FOLDER or first.endswith(STORE_SUFFIXES):
            return True
        return any(overlaps(path, folder.casefold()) for folder in self.taken())


def path_inside(url: StoreUrl, root: StoreUrl) -> str | None:
    """The path of a URL relative to a folder, ``""`` for the folder itself; None: it is outside."""
    if (url.scheme, url.place) != (root.scheme, root.place):
        return None
    if url.scheme == "file":
        return _inside_folder(url.prefix, root.prefix)
    if not root.prefix or url.prefix == root.prefix:
        return url.prefix[len(root.prefix) :]
    return url.prefix[len(root.prefix) + 1 :] if url.prefix.startswith(root.prefix + "/") else None


def _inside_folder(path: str, folder: str) -> str | None:
    """As `path_inside`, for folders of this machine, which may have several names: in another case, through mounts."""
    if path == folder:
        return ""
    if path.startswith(folder.rstrip("/") + "/"):
        return path[len(folder.rstrip("/")) + 1 :]
    try:
        folder_stat = os.stat(folder)
    except OSError:
        return None
    for parent in _upwards(path):
        try:
            status = os.stat(parent)
        except OSError:
            continue
        if os.path.samestat(status, folder_stat):
            return path[len(parent) :].strip("/")
    return None


def _upwards(path: str) -> Iterator[str]:
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def refusal_error(address: str, reason: str, *, repository: str, is_limited: bool) -> InvalidRequest:
    """The error for a refused URL."""
    hint = (
        f"the access key is limited to some repositories, so a place must be allowed for {repository} itself "
        f"(--import-from {repository}=URL)"
        if is_limited
        else "ask the server's administrator to allow it (--import-from URL)"
    )
    return InvalidRequest(
        f"{address} cannot be imported or read: {reason}; {hint}.", kind="import_not_allowed", address=address
    )
