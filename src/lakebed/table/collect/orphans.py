"""Orphan files: what crashed writers, other clients and rollbacks leave in a table's folder, referenced by nothing.

Owns: `remove_orphan_files`, and its parts as functions: `list_files` (files that exist), `paths_in_use` (files that are
referenced) and `search_of` (the anti-join). An engine with many workers may list and join by itself.

Invariants:
- Candidates are listed **before** the used set is computed. What is committed in between is in the used set, and what
  is written in between is not a candidate.
- A file younger than the limit is never deleted: a writer that has not committed yet may own it. A writer that takes
  longer than the limit before its commit needs a larger limit. The store's clock dates the files; a clock of ours that
  is ahead of it makes no file older.
- Only these are candidates: the format's own folders of referenced files (data, manifest, index, statistics), what was
  derived from them for Iceberg clients, and lakebed's unfinished work by age. Snapshots, tags, schemas, branches,
  consumers and all other files are never candidates, nor are those of a lake that is in the table's folder.
- When anything that might reference a file cannot be read, nothing is deleted.
- A file is in use when its name is in use, in whichever folder, and nothing is deleted while a live data file is
  missing from the listing. So a wrongly computed folder never costs a live file.
- External roots are shared with other tables. A file there may be deleted only when its name has this table's mark
  (`external.owner_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.objects.open import place_of
from lakebed.objects.path import URL_PATTERN, is_url
from lakebed.objects.port import ObjectMeta, ObjectStore, has_object
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Sweep, Sweeper, notes_on, report_of
from lakebed.table.branch.branch_folder import branch_exists, with_fork_point
from lakebed.table.branch.branches import every_branch
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import Unreadable
from lakebed.table.branch.renames import branch_ids, finish_renames, load_renames
from lakebed.table.branch.tags import HIDDEN_PREFIX
from lakebed.table.branch.unfinished import Deletion, load_deletions, path_of
from lakebed.table.codec.ragged import one_array
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.collect.deletion import ProgressCall, derived_orphans, forget, merge_reports
from lakebed.table.collect.expire import ms_ahead, release
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.collect.reachability import names_in_use
from lakebed.table.collect.recovery import recover
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.files.external import MARKED_NAME, Roots, is_marked, list_root, names_of, owner_of, roots_of
from lakebed.table.files.placement import check_placement
from lakebed.table.model.external_paths import ExternalPaths
from lakebed.table.model.layout import Layout, parse_bucket_folder, parse_changelog, parse_schema
from lakebed.texts import LONG_MAX

ORPHAN_AGE_MS: Final = 86_400_000
"""Files younger than this may belong to a writer that has not committed yet."""

_TRANSIENT_PINS: Final = (f"{HIDDEN_PREFIX}rollback.", f"{HIDDEN_PREFIX}replace.", f"{HIDDEN_PREFIX}branch.")
_SEARCHES_MAX: Final = 10
_DATA_PATH: Final = r"(^|/)bucket-(-?[0-9]+|postpone)/[^/]+$"
FILES: Final = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("is_old", pa.bool_())])
"""Files in the folders that hold only referenced files. An old file may be deleted when nothing references it."""
_OTHER_FOLDERS: Final = ("snapshot", "schema", "tag", "branch", "consumer", "changelog", "lakebed", "service")
_OTHER_LAKE: Final = re.compile(r"(^|/)[^/=]+\.db/")
"""Part of the path of a file that belongs to another lake in the table's folder."""


@dataclass(frozen=True, slots=True)
class Used:
    """Paths that one version or changelog references. A file of a bucket with several folders has a path in each."""

    paths: pa.Array
    must_exist: bool
    """False for a kept changelog: the data files of its version may be gone."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found."""

    orphans: pa.Table
    """Old files whose name is not in use: ``path``, ``size_bytes``."""
    used_count: int
    """Count of old files whose name is in use."""
    missing: pa.Array
    """Paths of data files that a version needs and that were not listed in any of their folders. Distinct.

    They include URLs that no listing covers; see `_find_lost`.
    """


def list_files(branch: TableBranch, *, older_than_ms: int) -> pa.Table:
    """`FILES`: data files, manifests, index files and statistics; also the data files below the table's external roots.

    Args:
        older_than_ms: files last written before this time (Unix ms, UTC; exclusive) are old.
    Cost: 1 LIST a thousand files, 1 GET a schema when there are several; with external roots as `list_outside`.
    """
    metas = list(branch.store.list(""))
    inside = files_of_listing(metas, branch.layout, older_than_ms=older_than_ms)
    outside = outside_of(branch, (meta.path for meta in metas), older_than_ms=older_than_ms)
    return pa.concat_tables([inside, outside])


def outside_of(branch: TableBranch, paths: Iterable[str] | None = None, *, older_than_ms: int) -> pa.Table:
    """The files below the external roots of a table, as `list_outside`; empty for a table that never had any.

    Args:
        paths: a listing of the table's folder, if the caller has one.
    Cost: 1 GET a schema, and without `paths` 2 LISTs or more; nothing with `paths` and one schema. Then `list_outside`.
    """
    schemas = None if paths is None else [path for path in paths if parse_schema(path) is not None]
    if schemas is not None and len(schemas) == 1 and not ExternalPaths.of(branch.schema.options).roots:
        return FILES.empty_table()
    roots = roots_of(branch.store, schemas)
    if not roots.every or branch.store.is_versioned:
        return FILES.empty_table()
    return list_outside(branch, roots, older_than_ms=older_than_ms)


def list_outside(branch: TableBranch, roots: Roots, *, older_than_ms: int) -> pa.Table:
    """`FILES` in the folders of buckets below external roots, by their URLs.

    A file is old when it was written before the time and has the table's mark: a file without the mark may belong to
    another table or client.

    Cost: 1 GET; for each root 1 LIST for each folder of partitions and 1 for each thousand files.
    """
    owner = owner_of(branch.store)
    metas = [meta for root in roots.every for meta in list_root(branch.store, root, branch.schema)]
    columns = ([meta.path for meta in metas], [meta.size_bytes for meta in metas])
    files = pa.table([*columns, [meta.modified_ms < older_than_ms for meta in metas]], schema=FILES)
    is_ours = np.zeros(files.num_rows, np.bool_) if owner is None else is_marked(one_array(files["path"]), owner)
    return files.set_column(2, "is_old", pc.and_(files["is_old"], pa.array(is_ours)))


def files_of_listing(metas: Sequence[ObjectMeta], layout: Layout, *, older_than_ms: int) -> pa.Table:
    """`FILES`: the objects of a listing that may be orphans or data files.

    A data file with a mark is not an orphan here, because another table may have its external root in this table's
    folder. The search below this table's own roots finds this table's files. The format has no paths that look like
    URLs.
    """
    rows = [
        (meta.path, meta.size_bytes, meta.modified_ms < older_than_ms and may_be_orphan(layout, meta))
        for meta in metas
        if (may_be_orphan(layout, meta) or is_in_bucket(meta.path)) and not is_url(meta.path)
    ]
    files = pa.table(list(zip(*rows, strict=True)) or [(), (), ()], schema=FILES)
    is_marked_here = pc.match_substring_regex(files["path"], MARKED_NAME)
    return files.set_column(2, "is_old", pc.and_not(files["is_old"], is_marked_here))


def is_in_bucket(path: str) -> bool:
    """Whether a path is directly in the folder of a bucket."""
    return parse_bucket_folder(path.rpartition("/")[0]) is not None


def may_be_orphan(layout: Layout, meta: ObjectMeta) -> bool:
    """Whether an object is in a folder that holds only referenced files, whatever its age."""
    folder, _, _ = meta.path.rpartition("/")
    if folder in (layout.manifest_folder, layout.index_folder, layout.statistics_folder):
        return True
    is_other = folder.partition("/")[0] in _OTHER_FOLDERS or _OTHER_LAKE.search(folder) is not None
    return not is_other and is_in_bucket(meta.path)


def paths_in_use(branches: Sequence[TableBranch]) -> Iterator[Used]:
    """Paths of every file that a version or changelog of any branch references, one version after the other.

    Args:
        branches: main and every branch.

    Raises `Corruption`, `UnsupportedFormat`, `NotFound`: something cannot be read, so what is used is unknown. Cost:
    all manifests of the table.
    """
    for branch in branches:
        referenced = ReferencedFiles(branch)
        for paths in names_in_use(branch, read_live_versions(branch), referenced):
            yield Used(paths, must_exist=True)
        for meta in branch.store.list(branch.layout.changelog_folder):
            if parse_changelog(meta.path) is not None:
                snapshot = decode_snapshot(branch.store.get(meta.path), path=meta.path)
                yield Used(referenced.of(snapshot), must_exist=False)


def data_paths(used: Used) -> pa.Array:
    """The paths of the data files that must exist, external ones by their URLs."""
    if not used.must_exist:
        return used.paths.slice(0, 0)
    is_data = pc.match_substring_regex(used.paths, _DATA_PATH)
    return used.paths.filter(pc.or_(is_data, pc.match_substring_regex(used.paths, URL_PATTERN)))


def search_of(files: pa.Table, used: Iterable[Used]) -> Search:
    """Find the files that nothing uses, and check that the files in use are in their folders.

    A file is in use when its **name** is: its folder is not trusted, so that a wrongly computed folder never makes a
    live file an orphan.

    Args:
        files: `FILES`, listed before the paths in use were computed.
    """
    old_files, listed_paths = files.filter(files["is_old"]).drop_columns(["is_old"]), one_array(files["path"])
    remaining, names = old_files, names_of(old_files["path"])
    missing: list[pa.Array] = []
    for part in used:
        is_unused = pc.invert(pc.is_in(names, value_set=names_of(part.paths)))
        remaining, names = remaining.filter(is_unused), names.filter(is_unused)
        data = data_paths(part)
        unlisted = data.filter(pc.invert(pc.is_in(data, value_set=listed_paths)))
        if len(unlisted):
            present = names_of(data.filter(pc.is_in(data, value_set=listed_paths)))
            missing.append(unlisted.filter(pc.invert(pc.is_in(names_of(unlisted), value_set=present))))
    missing_paths = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *missing]))
    return Search(remaining, old_files.num_rows - remaining.num_rows, missing_paths)


FindUnused = Callable[[Sequence[TableBranch], int], Search]
"""Takes the branches and the age limit. Returns what nothing references, and what is missing."""


def find_unused(branches: Sequence[TableBranch], older_than_ms: int) -> Search:
    """Search the files of a table.

    Raises: as `paths_in_use`.
    """
    return search_of(list_files(branches[0], older_than_ms=older_than_ms), paths_in_use(branches))


def _search_all(main: TableBranch, older_than_ms: int, find: FindUnused, *, finishes: bool) -> Search:
    """As `_search`, of all branches.

    Repeats while a branch is renamed: part of it may have been read under neither name.

    Args:
        finishes: whether to finish renames that were begun.

    Raises `Conflict`: a rename is not finished, or branches are renamed faster than they can be searched.
    """
    for _ in range(_SEARCHES_MAX):
        if finishes:
            finish_renames(main)
        before = branch_ids(main)
        search = _search(every_branch(main), older_than_ms, find)
        if not load_renames(main) and branch_ids(main) <= before:
            return search
    raise Conflict(
        f"{main.name}: no orphan was deleted, because a branch is being renamed, or its rename was cut short: collect "
        "again, or list the branches, which finishes it.",
        kind="branch_renaming",
    )


def _search(branches: Sequence[TableBranch], older_than_ms: int, find: FindUnused) -> Search:
    """A search during which no live data file was missing.

    Raises `Corruption`: live data files are not in their folders: they are lost, or the table's layout is not that of
    its options. Files that were written or expired during the first search are not missing in the second.
    """
    search = find(branches, older_than_ms)
    if not len(_find_lost(branches[0].store, search.missing)):
        return search
    second_search = find(branches, older_than_ms)
    lost_paths = _find_lost(
        branches[0].store, second_search.missing.filter(pc.is_in(second_search.missing, value_set=search.missing))
    )
    if not len(lost_paths):
        return second_search
    count = len(pc.unique(names_of(lost_paths)))
    raise Corruption(
        f"{branches[0].name}: {count:,} live data files are not where lakebed looks for them, such as {lost_paths[0]}. "
        "Nothing was deleted. Files were lost, or another client of the format puts them elsewhere: run fsck to see "
        "which.",
        kind="live_files_missing",
        path=lost_paths[0].as_py(),
    )


def _find_lost(store: ObjectStore, missing: pa.Array) -> pa.Array:
    """The data files that do not exist, among those that were not listed.

    An external file below one of the table's roots is checked by its URL. A file elsewhere is not checked: another
    client put it there, and no listing can lead to its deletion.

    Cost: nothing without external files; else as `roots_of`, and 1 HEAD for each external file that was not listed.
    """
    is_outside = pc.match_substring_regex(missing, URL_PATTERN)
    inside, outside = missing.filter(pc.invert(is_outside)), missing.filter(is_outside)
    if not len(outside) or store.is_versioned:
        return inside
    roots = tuple(f"{root}/" for root in roots_of(store).every)
    lost_urls = [url for url in outside.to_pylist() if url.startswith(roots) and not has_object(*place_of(store, url))]
    return pa.concat_arrays([inside, pa.array(lost_urls, pa.string())])


def older_than(branch: TableBranch, grace_ms: int) -> int:
    """The time limit of a grace (Unix ms, UTC): only orphans that were written before it may be deleted.

    A grace of zero uses no clock: files from a writer whose clock is ahead are old too. Raises `InvalidRequest`
    (``invalid_grace``).
    """
    if grace_ms < 0:
        raise InvalidRequest(f"A grace of {grace_ms} ms lies in the future: give zero or more.", kind="invalid_grace")
    return LONG_MAX if grace_ms == 0 else branch.now_ms() - grace_ms


def remove_orphan_files(
    branch: TableBranch,
    *,
    older_than_ms: int | None = None,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
    find: FindUnused = find_unused,
) -> CollectionReport:
    """Delete files that nothing references and that were written before a time. Forget rollbacks abandoned before it.

    Args:
        branch: any branch; the files of all branches of the table are searched.
        older_than_ms: Unix ms, UTC, exclusive, by our clock; default a day ago.
        dry_run: delete nothing; the report's `plan` says what would be deleted.
        progress: called after each batch of deletions.
        find: finds the orphans; an engine with many workers passes its own.

    Returns the report. If anything was unreadable, nothing was deleted and a warning names it. Raises `Corruption`:
    ``live_files_missing``: a live data file is not in its folder; nothing was deleted.
    """
    branch.refresh()
    check_placement(branch.schema)
    if older_than_ms is None:
        older_than_ms = branch.now_ms() - ORPHAN_AGE_MS
    main = branch.main
    if not dry_run:
        finish_renames(main)
    branches = every_branch(branch)
    if not dry_run and older_than_ms < LONG_MAX:  # reading the store's clock writes, and a dry run does not
        older_than_ms -= ms_ahead(main)
    reports: list[CollectionReport] = []
    if not dry_run:
        for table_branch in map(_with_fork_point, branches):
            try:
                reports += recover(table_branch)
                reports += _forget_abandoned(table_branch, branches, older_than_ms=older_than_ms, progress=progress)
            except NotFound:  # deleted or renamed since the listing
                if table_branch.branch is None or branch_exists(main.store, table_branch.branch):
                    raise
    try:
        search = _search_all(main, older_than_ms, find, finishes=not dry_run)
    except Unreadable as error:
        if error.kind == "live_files_missing":
            raise
        warning = f"no orphan was deleted, because what is used is unknown: {error}"
        plan = CollectionPlan(main.name, (), (), {}, (warning,))
        reports.append(report_of(plan, Sweep(), hidden_count=0, dry_run=dry_run))
        return merge_reports(reports, store=main.name)
    deletable = tuple(
        Deletable(path, size, "no snapshot, tag or branch names it")
        for path, size in zip(*(search.orphans[name].to_pylist() for name in ("path", "size_bytes")), strict=True)
    )
    deletable = (*derived_orphans(main, deletable, older_than_ms=older_than_ms), *deletable)
    plan = CollectionPlan(main.name, (), deletable, {"used": search.used_count}, notes=notes_on(main.store, deletable))
    sweeper = Sweeper(main.store, progress, reaches_outside=True)
    reports.append(sweeper.sweep(plan, dry_run=dry_run))
    return merge_reports(reports, store=main.name)


def _with_fork_point(branch: TableBranch) -> TableBranch:
    """A branch with its fork snapshot if that is known. Without it no deletion in the branch is finished."""
    try:
        return with_fork_point(branch)
    except (NotFound, InvalidRequest):  # deleted since the listing, or made by another client
        return branch


def _forget_abandoned(
    branch: TableBranch, branches: Sequence[TableBranch], *, older_than_ms: int, progress: ProgressCall | None
) -> list[CollectionReport]:
    """Forget rollbacks without a commit, and hidden pins of unfinished verbs and of incomplete branches."""
    kept_names = tuple(f"{HIDDEN_PREFIX}branch.{other_branch.layout.branch}" for other_branch in branches)
    for deletion in load_deletions(branch.store, branch.layout):
        if isinstance(deletion, Corruption | UnsupportedFormat) or deletion.rollback is None:
            continue
        if _is_older(branch, deletion, older_than_ms):
            forget(branch, deletion)
    pins: list[str] = []
    for meta in list(branch.store.list(branch.layout.tag_folder)):
        name = meta.path.rpartition("/")[2].removeprefix("tag-")
        if name.startswith(_TRANSIENT_PINS) and name not in kept_names and meta.modified_ms < older_than_ms:
            pins.append(name)
    return [release(branch, pins, progress=progress)] if pins else []


def _is_older(branch: TableBranch, deletion: Deletion, older_than_ms: int) -> bool:
    try:
        return branch.store.head(path_of(branch.layout, deletion)).modified_ms < older_than_ms
    except NotFound:
        return False


def own_external_files(branches: Sequence[TableBranch]) -> dict[str, int]:
    """The URLs of a table's own files outside its folder, which a drop deletes, with sizes in bytes (0: not known).

    A file is included when a version, a kept changelog or an unfinished deletion references it where the table's
    options put it, or when its name has the table's mark; see `external`. Reads only.

    Args:
        branches: main and every branch.

    Raises `Corruption`, `UnsupportedFormat`, `NotFound`: something that may name such files cannot be read. Cost: 1 GET
    a schema; with external roots also all manifests of the table, and the listing of the roots.
    """
    main = branches[0]
    roots = roots_of(main.store)
    if not roots.every or main.store.is_versioned:
        return {}
    external_files = list_outside(main, roots, older_than_ms=LONG_MAX)
    sizes, own_sizes = (
        dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
        for files in (external_files, external_files.filter(external_files["is_old"]))
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
