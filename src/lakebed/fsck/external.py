"""The files of a table outside its folder: which exist, and which other files are below its external roots.

Invariants: reads only. A root may be shared with other tables, so a file that no version of this table names is
reported with what is known of its owner, never as an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
from msgspec.structs import replace

from lakebed.errors import NotFound
from lakebed.fsck.model import Findings
from lakebed.objects.open import open_elsewhere, place_of
from lakebed.objects.port import ObjectMeta
from lakebed.table.files.external import bucket_folders_below, is_marked, owner_of, roots_of
from lakebed.table.files.placement import Placement
from lakebed.table.model.layout import Layout
from lakebed.table.table import Table


def list_external(table: Table, listed: Iterable[str], used: Collection[str]) -> dict[str, ObjectMeta]:
    """Return the files below the external roots of a table, and those of `used` elsewhere, by their URLs.

    Args:
        listed: paths of the table's folder.
        used: URLs that versions name.

    Raises: `LakebedError`, when a root cannot be listed.
    Cost: 1 GET a schema; for each root 1 LIST a folder of partitions and 1 a thousand files; 1 HEAD for each file of
    `used` that is elsewhere.
    """
    schema, metas = table.schema, dict[str, ObjectMeta]()
    for root in roots_of(table.store, listed).every:
        place = open_elsewhere(table.store, root)
        for folder in bucket_folders_below(place, Placement.of(schema).directory, depth=len(schema.partition_keys)):
            metas.update((f"{root}/{meta.path}", meta) for meta in place.list(folder))
    for url in used:
        if url not in metas:
            place, name = place_of(table.store, url)
            try:
                metas[url] = place.head(name)
            except NotFound:
                continue  # the check of sizes reports it
    return metas


def report_unnamed(table: Table, outside: dict[str, ObjectMeta], used: Collection[str], findings: Findings) -> None:
    """Report files below external roots that no version names: this table's as orphans, others in one line."""
    unnamed = sorted(set(outside) - set(used))
    if not unnamed:
        return
    owner = owner_of(table.store)
    is_ours = [False] * len(unnamed) if owner is None else is_marked(pa.array(unnamed), owner).tolist()
    for url in (url for url, ours in zip(unnamed, is_ours, strict=True) if ours):
        size_bytes = outside[url].size_bytes
        findings.orphan(
            replace(outside[url], path=url), f"is named by no version ({size_bytes:,} bytes).", bytes=size_bytes
        )
    others = [url for url, ours in zip(unnamed, is_ours, strict=True) if not ours]
    if others:
        total = sum(outside[url].size_bytes for url in others)
        sentence = (
            f"{len(others):,} files ({total:,} bytes) below the external paths are named by no version of this table, "
            f"such as {others[0]}. They may belong to other tables or another client, so lakebed never deletes them."
        )
        findings.add("info", "not_ours", Layout().schema_folder, sentence, count=len(others), bytes=total)
