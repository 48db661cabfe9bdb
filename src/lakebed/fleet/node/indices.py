"""Timelines of a manifest and what changes them: flushes, compactions, branches. Pure.

Owns: `TimelineIndex.origins`, which says where each file is, and the paths that follow from it. Invariants: the origins
of an index have exactly its files; a branch has the origins of its ancestor's files, so a path never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from lakebed.fleet.layout import ID_MARK, layer_path
from lakebed.fleet.model import LogMark, TimelineIndex
from lakebed.lsm.model import FileMeta, FileSet


def origin_of(txn: int, timeline: str) -> str:
    """Return the origin of the files that one transaction wrote for one timeline."""
    return f"{txn}/{timeline}"


def paths_of(tenant: str, index: TimelineIndex) -> dict[str, str]:
    """Return the path of each file of a timeline, by the file's id."""
    paths = {}
    for origin, ids in index.origins.items():
        txn, _, timeline = origin.partition("/")
        for id in ids:
            paths[id] = layer_path(tenant, int(txn), timeline, id)
    return paths


def all_paths(tenant: str, indices: Iterable[TimelineIndex]) -> dict[str, str]:
    """Return the path of each file of some timelines, by the file's id."""
    paths: dict[str, str] = {}
    for index in indices:
        paths |= paths_of(tenant, index)
    return paths


def with_file(index: TimelineIndex, file: FileMeta | None, *, txn: int, mark: LogMark, cutoff: int) -> TimelineIndex:
    """Return the timeline after a flush up to `mark`; `file` None: the flush kept no row."""
    files, origins = index.files, index.origins
    if file is not None:
        files = FileSet((file, *files.l0), files.runs)
        origin = origin_of(txn, index.id)
        origins = {**origins, origin: (*origins.get(origin, ()), file.id)}
    return replace(index, files=files, origins=origins, lsn=mark.lsn, mark=mark, cutoff=max(index.cutoff, cutoff))


def with_files(index: TimelineIndex, files: FileSet, *, txn: int, cutoff: int) -> TimelineIndex:
    """Return the timeline after a compaction. Files that it did not name before were written in `txn`."""
    ids = {file.id for file in files.files()}
    origins = {
        origin: kept_ids
        for origin, old_ids in index.origins.items()
        if (kept_ids := tuple(id for id in old_ids if id in ids))
    }
    foreign_ids = {id for kept_ids in origins.values() for id in kept_ids}
    new = tuple(file.id for file in files.files() if file.id not in foreign_ids)
    if new:
        origin = origin_of(txn, index.id)
        origins[origin] = (*origins.get(origin, ()), *new)
    return replace(index, files=files, origins=origins, cutoff=max(index.cutoff, cutoff))


def branch_index(
    parent: TimelineIndex, *, id: str, name: str, lsn: int, created_ms: int, is_read_only: bool
) -> TimelineIndex:
    """Return a branch of a timeline at an LSN in ``[parent.cutoff, parent.lsn]``, where its own log begins."""
    files = parent.files.through(lsn)
    ids = {file.id for file in files.files()}
    origins = {
        origin: kept_ids
        for origin, old_ids in parent.origins.items()
        if (kept_ids := tuple(id for id in old_ids if id in ids))
    }
    return TimelineIndex(
        id=id,
        name=name,
        created_ms=created_ms,
        lsn=lsn,
        cutoff=lsn if is_read_only else parent.cutoff,
        mark=LogMark(lsn=lsn),
        parent=parent.id,
        branch_lsn=lsn,
        is_read_only=is_read_only,
        files=files,
        origins=origins,
    )


def find(timelines: Mapping[str, TimelineIndex], name: str) -> TimelineIndex | None:
    """Return a timeline by its name, or by its id when none has that name; ``@<id>`` by its id only."""
    if name.startswith(ID_MARK):
        return timelines.get(name[1:])
    for index in timelines.values():
        if index.name == name:
            return index
    return timelines.get(name)
