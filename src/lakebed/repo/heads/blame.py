"""Blame: which commit a path's entry comes from.

Owns: the walk. Invariants: a path is followed into the first parent that has the same entry, by identity; the commit
where no parent has it is the answer, so a merge is blamed only for what it decided itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.model import Commit, MetarangeRef
from lakebed.repo.model.names import check_path
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.history import open_graph
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.references.refs import resolve_commit

_SKIPPED_KEYS_MAX: Final = 64
"""Paths of which the index is asked one by one; of more, the walk looks at every commit once for all."""


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
    their ranges those that differ between the smallest path and the largest. Of up to 64 paths indexed commits that
    have certainly not changed them cost 0.1 us each instead.
    """
    keys = {check_path(path): path for path in paths}
    commits: dict[bytes, CommitWithId] = {}
    with context.key_value.snapshot() as snapshot:
        start, head = resolve_commit(context, ref, snapshot=snapshot)
        _check_there(context, head.metarange, keys, ref=ref)
        skip = _Skip(context, start, keys, snapshot=snapshot)
        pending: dict[str, set[bytes]] = {}
        known: dict[str, Commit] = {}
        queue: list[tuple[int, str]] = []

        def follow(id: str, some: Iterable[bytes], commit: Commit | None = None) -> None:
            """Look at paths in a commit, or in the first before it that may have changed them."""
            for key in some:
                target = skip.target(id, key)
                if target not in known:
                    is_same = commit is not None and target == id
                    known[target] = commit if is_same and commit else load_commit(context, target, snapshot=snapshot)
                    pending[target] = set()
                    heapq.heappush(queue, (-known[target].generation, target))
                pending[target].add(key)

        follow(start, keys, head)
        while queue:
            _, id = heapq.heappop(queue)  # by falling generation: all that leads to it was met before
            commit, keys_left = known.pop(id), pending.pop(id)
            for parent_id in commit.parents:
                if not keys_left:
                    break
                parent = known.get(parent_id) or load_commit(context, parent_id, snapshot=snapshot)
                changed_keys = _find_changed(context, parent.metarange, commit.metarange, keys_left)
                follow(parent_id, keys_left - changed_keys, parent)
                keys_left = keys_left & changed_keys
            commits.update((key, CommitWithId(id, commit)) for key in keys_left)
    return {path: commits[key] for key, path in keys.items()}


class _Skip:
    """Where to look for a path next, by the index of the history."""

    def __init__(
        self, context: RepositoryContext, start: str, keys: Collection[bytes], *, snapshot: KeyValueSnapshot
    ) -> None:
        self._graph = open_graph(context, [start], snapshot=snapshot) if 0 < len(keys) <= _SKIPPED_KEYS_MAX else None
        self._may_change: dict[bytes, bytes] = {}
        if self._graph is not None:
            self._may_change = {key: self._graph.may_change(key).tobytes() for key in keys}

    def target(self, id: str, key: bytes) -> str:
        """The commit, or the first along first parents that may have changed a path which the commit has."""
        graph = self._graph
        position = None if graph is None else graph.find(id)
        if graph is None or position is None:
            return id
        may_change, first_parents = self._may_change[key], graph.first_parents
        begin = position
        while not may_change[position] and first_parents[position] >= 0:
            position = first_parents[position]
        return id if position == begin else graph.id_at(position)


def _check_there(context: RepositoryContext, metarange: MetarangeRef, keys: dict[bytes, str], *, ref: str) -> None:
    sorted_keys = sorted(keys)
    with explaining_missing(context, metarange):
        values = context.committed.open(metarange).get_many(sorted_keys)
    for key, value in zip(sorted_keys, values, strict=True):
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
    key_array = pa.array(sorted(keys), pa.binary())
    start, end = key_array[0].as_py(), key_array[-1].as_py() + b"\0"
    changed_keys: set[bytes] = set()
    with explaining_missing(context, before, after):
        for batch in diff_metaranges(context.committed, before, after, start=start, end=end):
            paths = batch.column(0)
            changed_keys.update(paths.filter(pc.is_in(paths, value_set=key_array)).to_pylist())
    return changed_keys
