"""Files in a table's folder that nobody names: left by crashed writers, by other clients, or in the hole of a rollback.

Owns: `remove_orphan_files`, and its two halves as functions of their own: `list_candidates` (what lies there, old
enough) and `used_paths` (what anything names). An engine with many workers may list both and run the anti-join itself
(`reclaim.unused`).

Invariants:
- Candidates are listed **before** the used set is computed: what is committed in between is in the used set, what is
  written in between is no candidate.
- A file younger than the limit is never touched: a writer that has not committed yet may own it. Whoever writes for
  longer than that before committing must be given a larger limit.
- Only the format's own folders are looked at (data, manifest, index, statistics), and lakebed's unfinished work by age;
  snapshots, tags, schemas, branches, consumers and whatever else lies there are never candidates.
- When anything that might name a file cannot be read, nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakebed.errors import Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectMeta
from lakebed.reclaim.model import Doomed, ReclaimPlan, ReclaimReport
from lakebed.reclaim.sweep import Sweep, Sweeper, notes_on, report_of
from lakebed.table.deletion import ProgressCall, merge_reports
from lakebed.table.expire import release
from lakebed.table.holders import Line, read_holders
from lakebed.table.judge import Unreadable, used_names
from lakebed.table.layout import Layout, parse_bucket_folder, parse_changelog
from lakebed.table.names import Names
from lakebed.table.reclaim import unused
from lakebed.table.recovery import forget, recover
from lakebed.table.snapshot_json import decode_snapshot
from lakebed.table.tags import HIDDEN_PREFIX
from lakebed.table.unfinished import Deletion, load_deletions, path_of

__all__ = [
    "ORPHAN_AGE_MS",
    "FindUnused",
    "Found",
    "find_unused",
    "list_candidates",
    "may_be_orphan",
    "remove_orphan_files",
    "used_paths",
]

ORPHAN_AGE_MS: Final = 86_400_000
"""Files younger than this may belong to a writer that has not committed yet."""

_TRANSIENT_PINS: Final = (f"{HIDDEN_PREFIX}rollback.", f"{HIDDEN_PREFIX}replace.", f"{HIDDEN_PREFIX}branch.")
_OTHER_FOLDERS: Final = ("snapshot", "schema", "tag", "branch", "consumer", "changelog", "lakebed", "service")


@dataclass(frozen=True, slots=True)
class Found:
    """Files that might be orphans, as two columns of the same length."""

    paths: pa.Array
    size_bytes: pa.Array


def list_candidates(line: Line, *, older_than_ms: int) -> Found:
    """Data files, manifests, index files and statistics last written before a time (Unix ms, UTC; exclusive).

    Cost: 1 LIST a thousand files.
    """
    paths: list[str] = []
    sizes: list[int] = []
    for meta in line.store.list(""):
        if meta.modified_ms < older_than_ms and may_be_orphan(line.layout, meta):
            paths.append(meta.path)
            sizes.append(meta.size_bytes)
    return Found(pa.array(paths, pa.string()), pa.array(sizes, pa.int64()))


def may_be_orphan(layout: Layout, meta: ObjectMeta) -> bool:
    """Whether an object lies where only files that versions name belong, whatever its age."""
    folder, _, _ = meta.path.rpartition("/")
    if folder in (layout.manifest_folder, layout.index_folder, layout.statistics_folder):
        return True
    return folder.partition("/")[0] not in _OTHER_FOLDERS and parse_bucket_folder(folder) is not None


def used_paths(lines: Sequence[Line]) -> Iterator[pa.Array]:
    """Paths of every file that a version or changelog of any branch names, one version after the other.

    Args:
        lines: main and every branch.

    Raises:
        Corruption, UnsupportedFormat, NotFound: something cannot be read, so nobody knows what is used.
    Cost: all manifests of the table.
    """
    for line in lines:
        names = Names(line)
        yield from used_names(line, read_holders(line), names)
        for meta in line.store.list(line.layout.changelog_folder):
            if parse_changelog(meta.path) is not None:
                yield names.of(decode_snapshot(line.store.get(meta.path), path=meta.path))


FindUnused = Callable[[Sequence[Line], int], tuple[pa.Table, int]]
"""Given the lines and the age limit: what nothing names (``path``, ``size_bytes``), and the others' count."""


def find_unused(lines: Sequence[Line], older_than_ms: int) -> tuple[pa.Table, int]:
    """The files of a table that nothing names, and the number of old enough files that something does.

    Raises: as `used_paths`.
    """
    found = list_candidates(lines[0], older_than_ms=older_than_ms)
    candidates = pa.table({"path": found.paths, "size_bytes": found.size_bytes})
    orphans = unused(candidates, used_paths(lines))
    return orphans, candidates.num_rows - orphans.num_rows


def remove_orphan_files(
    lines: Sequence[Line],
    *,
    older_than_ms: int,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
    find: FindUnused = find_unused,
) -> ReclaimReport:
    """Delete files that nothing names, written before a time; also rollbacks abandoned before it.

    Args:
        lines: main and every branch of one table.
        older_than_ms: Unix ms, UTC, exclusive; by default of the facade, a day ago.
        dry_run: say what would go; delete nothing.
        progress: called after each batch of deletions.
        find: how orphans are found; an engine with many workers brings its own.

    Returns:
        The report; when anything was unreadable, nothing was deleted and the warning says what.
    """
    if not lines:
        raise InvalidRequest("a table without a line of versions has no orphans.")
    main = lines[0]
    reports: list[ReclaimReport] = []
    if not dry_run:
        for line in lines:
            reports += recover(line)
            reports += _abandoned(line, lines, older_than_ms=older_than_ms, progress=progress)
    try:
        orphans, used_count = find(lines, older_than_ms)
    except Unreadable as error:
        warning = f"no orphan was deleted, for what is used is unknown: {error}"
        plan = ReclaimPlan(main.name, (), (), {}, (warning,))
        reports.append(report_of(plan, Sweep(), hidden_count=0, dry_run=dry_run))
        return merge_reports(reports, store=main.name)
    doomed = tuple(
        Doomed(path, size, "no snapshot, tag or branch names it")
        for path, size in zip(orphans["path"].to_pylist(), orphans["size_bytes"].to_pylist(), strict=True)
    )
    plan = ReclaimPlan(main.name, (), doomed, {"used": used_count}, notes=notes_on(main.store, doomed))
    reports.append(Sweeper(main.store, main.environment, progress).sweep(plan, dry_run=dry_run))
    return merge_reports(reports, store=main.name)


def _abandoned(
    line: Line, lines: Sequence[Line], *, older_than_ms: int, progress: ProgressCall | None
) -> list[ReclaimReport]:
    """Forget rollbacks that never committed, and hidden pins of verbs that never finished or of branches never made."""
    kept = tuple(f"{HIDDEN_PREFIX}branch.{other.layout.branch}" for other in lines)
    for deletion in load_deletions(line.store, line.layout):
        if isinstance(deletion, Corruption | UnsupportedFormat) or deletion.rollback is None:
            continue
        if _is_older(line, deletion, older_than_ms):
            forget(line, deletion)
    pins: list[str] = []
    for meta in list(line.store.list(line.layout.tag_folder)):
        name = meta.path.rpartition("/")[2].removeprefix("tag-")
        if name.startswith(_TRANSIENT_PINS) and name not in kept and meta.modified_ms < older_than_ms:
            pins.append(name)
    return [release(line, pins, progress=progress)] if pins else []


def _is_older(line: Line, deletion: Deletion, older_than_ms: int) -> bool:
    try:
        return line.store.head(path_of(line.layout, deletion)).modified_ms < older_than_ms
    except NotFound:
        return False
