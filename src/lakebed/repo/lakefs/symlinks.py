"""Lists of physical addresses for engines that know no lakeFS: Hive's ``SymlinkTextInputFormat`` reads them.

Owns: where they are, which is where lakeFS puts them: ``symlinks/<repository>/<reference>/<folder>/symlink.txt`` in the
namespace, with the URL of an object on each line. A list is as the reference was when it was written, is replaced by
the next one, and pins nothing. Collections leave lists alone.
"""

from __future__ import annotations

from itertools import groupby
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
    Cost: a listing, and 1 PUT a folder.
    """
    with at_reference(context, ref) as view:
        rows = ((listed.path, listed.entry) for listed in view.list(prefix) if listed.entry is not None)
        for folder, group in groupby(rows, key=lambda row: row[0].rpartition("/")[0]):
            _write(context, ref, folder, [entry for _, entry in group])
    return context.store.url(SYMLINK_FOLDER)


def _write(context: RepositoryContext, ref: str, folder: str, entries: list[Entry]) -> None:
    place = "/".join(part for part in (SYMLINK_FOLDER, context.name, ref, folder) if part)
    text = "\n".join(physical_url(context, entry) for entry in entries)
    context.store.put(f"{place}/symlink.txt", text.encode())
