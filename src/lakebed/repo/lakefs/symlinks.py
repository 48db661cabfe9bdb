"""Lists of physical addresses for engines that know no lakeFS: Hive's ``SymlinkTextInputFormat`` reads them.

Owns: where they are, which is where lakeFS puts them: ``symlinks/<repository>/<reference>/<folder>/symlink.txt`` in the
namespace, with the URL of an object on each line. A list is as the reference was when it was written, is replaced by
the next one, and pins nothing. Collections leave lists alone.
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
        InvalidRequest: a folder's name that no object of the store can have, such as ``a//b``.
    Cost: a listing, and 1 PUT a folder. Memory: the entries of a folder and of those above it.
    """
    with at_reference(context, ref) as view:
        rows = ((listed.path, listed.entry) for listed in view.list(prefix) if listed.entry is not None)
        for folder, entries in _folders_of(rows):
            _write(context, ref, folder, entries)
    return context.store.url(SYMLINK_FOLDER)


def _folders_of(rows: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, list[Entry]]]:
    """Folders and the entries directly in them, each folder once.

    Args:
        rows: in the order of paths. What is in folders below a folder comes between what is in itself, so a folder is
            open as long as paths begin with it.
    """
    above: list[tuple[str, list[Entry]]] = []
    for path, entry in rows:
        folder = path.rpartition("/")[0]
        while above and above[-1][0] and not f"{folder}/".startswith(f"{above[-1][0]}/"):
            yield above.pop()
        if not above or above[-1][0] != folder:
            above.append((folder, []))
        above[-1][1].append(entry)
    yield from reversed(above)


def _write(context: RepositoryContext, ref: str, folder: str, entries: list[Entry]) -> None:
    place = "/".join(part for part in (SYMLINK_FOLDER, context.name, ref, folder) if part)
    text = "\n".join(physical_url(context, entry) for entry in entries)
    context.store.put(f"{place}/symlink.txt", text.encode())
