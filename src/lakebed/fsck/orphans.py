"""The objects of a table that no version names, those outside its folder, and those for Iceberg's clients.

Invariants: reads only. A root of external paths may be shared with other tables, so a file there that no version of
this table names is reported with what is known of its owner, never as an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import pyarrow as pa

from lakebed.errors import NotFound
from lakebed.fleet.layout import TENANT_SUFFIX
from lakebed.fsck.model import Findings
from lakebed.lake.names import DATABASE_SUFFIX, WAREHOUSE_SUFFIX
from lakebed.objects.open import place_of
from lakebed.objects.port import ObjectMeta
from lakebed.repo.outside.namespace import REPOSITORY_SUFFIX
from lakebed.table.files.external import is_marked, list_root, owner_of, roots_of
from lakebed.table.iceberg.avro_files import decode_list
from lakebed.table.model.layout import (
    Layout,
    is_left_by_client,
    parse_changelog,
    parse_derived,
    parse_schema,
    parse_snapshot,
    parse_tag,
)
from lakebed.table.table import Table

_STORE_SUFFIXES: Final = (WAREHOUSE_SUFFIX, DATABASE_SUFFIX, REPOSITORY_SUFFIX, TENANT_SUFFIX)
"""End the folders of stores and, of a lake, those of its tables."""


def report_orphans(
    table: Table, listed: Mapping[str, ObjectMeta], *, needed: Collection[str], urls: Iterable[str], findings: Findings
) -> None:
    """Report the objects of the table's folder that no version names, oldest first.

    Args:
        listed: all objects of the table.
        needed: their paths that versions name.
        urls: of files that versions name by a URL, which may be below the folder too.
    """
    external = set(map(_name_of, urls))
    now_ms = table.context.environment.clock.now_ms()
    unnamed = [
        meta
        for path, meta in listed.items()
        if path not in needed and not _is_own(path) and _name_of(path) not in external
    ]
    store_files = [meta for meta in unnamed if _is_of_store(meta.path)]
    orphans = [meta for meta in unnamed if not _is_of_store(meta.path)] if store_files else unnamed
    for meta in sorted(orphans, key=lambda meta: meta.modified_ms):
        age_s = max(0, now_ms - meta.modified_ms) // 1000
        sentence = f"is named by no version ({meta.size_bytes:,} bytes, {age_s:,} s old)."
        findings.orphan(meta, sentence, bytes=meta.size_bytes, modified_ms=meta.modified_ms)
    if store_files:
        total = sum(meta.size_bytes for meta in store_files)
        sentence = (
            f"{len(store_files):,} files ({total:,} bytes) in the table's folder are of another store, such as "
            f"{store_files[0].path}. A collection leaves them alone; to drop the table deletes them."
        )
        findings.add("info", "not_ours", Layout().schema_folder, sentence, count=len(store_files), bytes=total)


def _is_of_store(path: str) -> bool:
    """Return whether a path below a table's folder is inside of a store that lies in it, by the names of folders."""
    folders = path.split("/")[:-1]
    return any(folder.endswith(_STORE_SUFFIXES) and "=" not in folder for folder in folders)


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _is_own(path: str) -> bool:
    """Return whether a path belongs to the table although no version names it: versions, hints, lakebed's files."""
    relative = path.split("/", 2)[2] if path.startswith("branch/branch-") and path.count("/") > 1 else path
    if relative.startswith(("lakebed/", "consumer/")):
        return True
    if any(parse(path) is not None for parse in (parse_snapshot, parse_schema, parse_tag, parse_changelog)):
        return True
    return relative in {"snapshot/LATEST", "snapshot/EARLIEST", "changelog/LATEST", "changelog/EARLIEST"}


def list_external(table: Table, listed: Iterable[str], used: Collection[str]) -> dict[str, ObjectMeta]:
    """Return the files below the external roots of a table, and those of `used` elsewhere, by their URLs.

    Args:
        listed: paths of the table's folder.
        used: URLs that versions name.

    Raises: `LakebedError`, when a root cannot be listed.
    Cost: 1 GET a schema; for each root 1 LIST a folder of partitions and 1 a thousand files; 1 HEAD for each file of
    `used` that is elsewhere.
    """
    roots = roots_of(table.store, listed).every
    metas = {meta.path: meta for root in roots for meta in list_root(table.store, root, table.schema)}
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
    for url in (url for url, is_own in zip(unnamed, is_ours, strict=True) if is_own):
        size_bytes = outside[url].size_bytes
        findings.orphan(outside[url], f"is named by no version ({size_bytes:,} bytes).", bytes=size_bytes)
    others = [url for url, is_own in zip(unnamed, is_ours, strict=True) if not is_own]
    if others:
        total = sum(outside[url].size_bytes for url in others)
        sentence = (
            f"{len(others):,} files ({total:,} bytes) below the external paths are named by no version of this table, "
            f"such as {others[0]}. They may belong to other tables or another client, so lakebed never deletes them."
        )
        findings.add("info", "not_ours", Layout().schema_folder, sentence, count=len(others), bytes=total)


def check_iceberg(table: Table, listed: Mapping[str, ObjectMeta], findings: Findings) -> None:
    """Check the objects that Iceberg's clients read (`lakebed.table.iceberg`).

    One whose manifest, list or index file is gone is an orphan. With ``deep``, every manifest that a manifest list
    names must exist with the size that the list states: else a client fails, though no row is lost. To delete the
    folder repairs it: it is written again when a client asks. Cost: with ``deep`` 1 GET a manifest list, else nothing.

    Args:
        listed: all objects of the table.
    """
    for path, meta in listed.items():
        if is_left_by_client(path):
            findings.orphan(meta, "was written by an Iceberg client, which cannot commit here.")
            continue
        source = parse_derived(path)
        if source is None:
            continue
        if source not in listed:
            findings.orphan(meta, f"is for Iceberg's clients, and {source}, of which it was made, is gone.")
        elif findings.report.deep and "~list-" in path:
            with findings.reading(path, needed_by="Iceberg's clients"):
                for url, size_bytes in decode_list(table.store.get(path), path=path):
                    relative = url.removeprefix(f"{table.url}/")
                    if relative != url:  # a lake that was moved has lists of its old place too
                        findings.check_object(relative, listed.get(relative), size_bytes=size_bytes, needed_by=path)
