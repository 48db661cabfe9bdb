"""Blame: which commit a path's entry comes from.

Owns: the walk. Invariants: a path is followed into the first parent that has the same entry, by identity; the commit
where no parent has it is the answer, so a merge is blamed only for what it decided itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.model import MetarangeRef
from lakebed.repo.model.names import check_path
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.references.refs import resolve_commit


def blame(context: RepositoryContext, ref: str, *, paths: Sequence[str]) -> dict[str, CommitWithId]:
    """For each path the commit that made it what it is at a reference.

    What is staged does not matter.

    Returns:
        By path, in the order asked.

    Raises:
        NotFound: kind ``path_not_found``: a path is not in the commit; ``reference_not_found``.
        InvalidRequest: kind ``invalid_path``, ``invalid_reference``.
        Corruption: a record or range is damaged.
    Cost: for each commit back to the oldest answer 1 read of the key-value store, its metarange, the parents', and of
    their ranges those that differ between the smallest path and the largest.
    """
    keys = {check_path(path): path for path in paths}
    commits: dict[bytes, CommitWithId] = {}
    with context.key_value.snapshot() as snapshot:
        start, head = resolve_commit(context, ref, snapshot=snapshot)
        _check_there(context, head.metarange, keys, ref=ref)
        pending = {start: set(keys)}
        known = {start: head}
        waiting = [(-head.generation, start)] if keys else []
        while waiting:
            _, id = heapq.heappop(waiting)  # by falling generation: all that leads to it was met before
            commit, left = known.pop(id), pending.pop(id)
            for parent_id in commit.parents:
                if not left:
                    break
                parent = known.get(parent_id) or load_commit(context, parent_id, snapshot=snapshot)
                changed = _find_changed(context, parent.metarange, commit.metarange, left)
                unchanged = left - changed
                if unchanged:
                    if parent_id not in known:
                        known[parent_id], pending[parent_id] = parent, set()
                        heapq.heappush(waiting, (-parent.generation, parent_id))
                    pending[parent_id] |= unchanged
                left = left & changed
            commits.update((key, CommitWithId(id, commit)) for key in left)
    return {path: commits[key] for key, path in keys.items()}


def _check_there(context: RepositoryContext, metarange: MetarangeRef, keys: dict[bytes, str], *, ref: str) -> None:
    ordered = sorted(keys)
    with explaining_missing(context, metarange):
        values = context.committed.open(metarange).get_many(ordered)
    for key, value in zip(ordered, values, strict=True):
        if value is None:
            raise NotFound(
                f"There is no {keys[key]!r} in the commit at {ref!r} of repository {context.name}.",
                kind="path_not_found",
                path=keys[key],
            )


def _find_changed(
    context: RepositoryContext, before: MetarangeRef, after: MetarangeRef, keys: set[bytes]
) -> set[bytes]:
    """Which of some paths differ between two metaranges."""
    if before.id == after.id:
        return set()
    wanted = pa.array(sorted(keys), pa.binary())
    start, end = wanted[0].as_py(), wanted[-1].as_py() + b"\0"
    changed: set[bytes] = set()
    with explaining_missing(context, before, after):
        for batch in diff_metaranges(context.committed, before, after, start=start, end=end):
            paths = batch.column(0)
            changed.update(paths.filter(pc.is_in(paths, value_set=wanted)).to_pylist())
    return changed
