"""All files outside a table's folder that are its own: what dropping the table deletes.

Invariants: reads only. A file is listed when a version, a kept changelog or an unfinished deletion of the table
references it where the table's options put it, or when its name has the table's mark; see `external`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lakebed.objects.path import is_url
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.unfinished import Deletion, load_deletions
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.collect.orphans import list_outside
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.files.external import roots_of
from lakebed.table.model.layout import parse_changelog

_EVER_MS: Final = 2**62


def own_external_files(branches: Sequence[TableBranch]) -> dict[str, int]:
    """The URLs of a table's own external files, with their sizes in bytes (0: not known).

    Args:
        branches: main and every branch.

    Raises `Corruption`, `UnsupportedFormat`, `NotFound`: something that may name such files cannot be read. Cost: 1 GET
    a schema; with external roots also all manifests of the table, and the listing of the roots.
    """
    main = branches[0]
    roots = roots_of(main.store)
    if not roots.every or main.store.is_versioned:
        return {}
    listed = list_outside(main, roots, older_than_ms=_EVER_MS)
    sizes, own_sizes = (
        dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
        for files in (listed, listed.filter(listed["is_old"]))
    )
    for branch in branches:
        referenced, versions = ReferencedFiles(branch), read_live_versions(branch)
        snapshots = [versions.load(branch, snapshot_id) for snapshot_id in versions.ids.tolist()]
        for meta in branch.store.list(branch.layout.changelog_folder):
            if parse_changelog(meta.path) is not None:
                snapshots.append(decode_snapshot(branch.store.get(meta.path), path=meta.path))
        for snapshot in snapshots:
            own_sizes.update((url, sizes.get(url, 0)) for url in referenced.own_external(snapshot)["path"].to_pylist())
        for deletion in load_deletions(branch.store, branch.layout):
            if isinstance(deletion, Deletion):
                paths = deletion.candidates["path"].to_pylist()
                own_sizes.update((path, sizes.get(path, 0)) for path in paths if is_url(path))
    return own_sizes
