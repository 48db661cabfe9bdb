"""Lists of physical addresses for engines that do not know lakeFS. Hive's ``SymlinkTextInputFormat`` reads them.

Owns: their paths, which are lakeFS's: ``symlinks/<repository>/<reference>/<folder>/symlink.txt`` in the namespace, with
the URL of an object on each line. A list shows the reference at the time when it was written. The next list replaces
it. Lists pin nothing, and collections do not delete them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import physical_url
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.staging.view import at_reference

SYMLINK_FOLDER: Final = "symlinks"


def write_symlinks(context: RepositoryContext, ref: str, *, prefix: str = "") -> str:
    """Write a list for each folder below a prefix, and return the URL of the folder of all lists.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: the store can have no object in a folder of this name, such as ``a//b``.
    Cost: a listing, and 1 PUT a folder. Memory: the entries of a folder and of the folders above it.
    """
    with at_reference(context, ref) as view:
        rows = ((item.path, item.entry) for item in view.list(prefix) if item.entry is not None)
        for folder, entries in _folders_of(rows):
            _write(context, ref, folder, entries)
    return context.store.url(SYMLINK_FOLDER)


def _folders_of(rows: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, list[Entry]]]:
    """Iterate over folders and the entries directly in them, each folder once.

    Args:
        rows: in the order of paths. A folder's entries and those of its subfolders are mixed in this order, so a folder
            stays open while paths begin with it.
    """
    parents: list[tuple[str, list[Entry]]] = []
    for path, entry in rows:
        folder = path.rpartition("/")[0]
        while parents and parents[-1][0] and not f"{folder}/".startswith(f"{parents[-1][0]}/"):
            yield parents.pop()
        if not parents or parents[-1][0] != folder:
            parents.append((folder, []))
        parents[-1][1].append(entry)
    yield from reversed(parents)


def _write(context: RepositoryContext, ref: str, folder: str, entries: list[Entry]) -> None:
    place = "/".join(part for part in (SYMLINK_FOLDER, context.name, ref, folder) if part)
    text = "\n".join(physical_url(context, entry) for entry in entries)
    context.store.put(f"{place}/symlink.txt", text.encode())
