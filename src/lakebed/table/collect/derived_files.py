"""Objects for Iceberg clients (`layout.parse_derived`), which go with the manifest, list or index file they come from.

Invariant: such an object is needed as long as its source exists, and nothing else needs to be known: a version that is
live has its manifests, lists and index files. A server may make one while its source is being deleted; a search for
orphans finds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.reclaim.model import Deletable
from lakebed.table.branch.context import TableBranch
from lakebed.table.model.layout import Layout, parse_derived


def derived_from(branch: TableBranch, sources: Sequence[Deletable]) -> tuple[Deletable, ...]:
    """What is derived from objects that are about to be deleted. Cost: 1 LIST a thousand, when there is a source."""
    folders = (f"{Layout.manifest_folder}/", f"{Layout.index_folder}/")
    paths = {source.path for source in sources if source.path.startswith(folders)}
    if not paths or branch.store.is_versioned:
        return ()
    return tuple(
        Deletable(meta.path, meta.size_bytes, f"for Iceberg clients, made of {source}")
        for meta in branch.store.list(Layout.iceberg_folder)
        if (source := parse_derived(meta.path)) in paths
    )


def derived_orphans(branch: TableBranch, doomed: Sequence[Deletable], *, older_than_ms: int) -> tuple[Deletable, ...]:
    """What is derived from objects that are gone, or in `doomed`, and was written before a time (Unix ms, UTC).

    Cost: 1 LIST; where there is such an object 1 LIST a thousand of all of them, of manifests and of index files.
    """
    if branch.store.is_versioned:
        return ()
    old = [meta for meta in branch.store.list(Layout.iceberg_folder) if meta.modified_ms < older_than_ms]
    if not old:
        return ()
    folders = (Layout.manifest_folder, Layout.index_folder)
    sources = {meta.path for folder in folders for meta in branch.store.list(folder)}
    sources -= {each.path for each in doomed}
    return tuple(
        Deletable(meta.path, meta.size_bytes, f"{source}, of which it was made, is gone")
        for meta in old
        if (source := parse_derived(meta.path)) is not None and source not in sources
    )
