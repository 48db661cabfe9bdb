"""Commits: their ids, loading them, and their descent.

Owns: `commit_id`, and every walk over parents. Invariants: a commit never changes. Its generation is greater than that
of each of its parents, so a walk by falling generation meets a commit after all its descendants.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec

from lakebed.errors import Corruption, NotFound
from lakebed.repo.model.model import Commit
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, not_unicode

COMMIT_ID_CHARACTERS: Final = 64
"""Length of an id, which is a SHA-256 in hexadecimal."""
SHOWN_CHARACTERS: Final = 12
"""Characters of an id that are shown to people."""

HEXADECIMAL: Final = frozenset("0123456789abcdef")
"""The characters of ids."""


class Records(Protocol):
    """A source of records: a key-value store, or a snapshot of it."""

    def get(self, key: bytes) -> bytes | None:
        """Return a record's bytes; None: there is no such record."""


def commit_id(commit: Commit) -> str:
    """The id of a commit: SHA-256 over its contents. It does not depend on which objects hold the metarange.

    Raises:
        InvalidRequest: kind ``invalid_text``: its message, committer or metadata is not valid Unicode.
    """
    content = (
        "lakebed commit 1",  # what is hashed is stored in every id: DO NOT CHANGE it or what follows
        commit.parents,
        commit.metarange.id,
        commit.message,
        commit.committer,
        sorted(commit.metadata.items()),
        commit.created_at_ms,
        commit.generation,
    )
    try:
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    except UnicodeEncodeError as error:
        raise not_unicode("The message, committer or metadata of a commit", error) from error


def is_commit_id(text: str) -> bool:
    """Whether a text has the form of a whole commit id."""
    return len(text) == COMMIT_ID_CHARACTERS and HEXADECIMAL.issuperset(text)


def find_commit(context: RepositoryContext, id: str, *, snapshot: Records | None = None) -> Commit | None:
    """Load a commit by its whole id; None: there is no such commit.

    Raises:
        Corruption: its record is damaged.
    Cost: 1 read of the key-value store. Without `snapshot`, a record that this process already has is used: commits
    never change.
    """
    key = context.keys.commit(id)
    if snapshot is not None:
        raw = snapshot.get(key)
    else:
        raw = context.key_value.peek(key)
        if raw is None:
            raw = context.key_value.get(key)
    return None if raw is None else decode_record(raw, Commit, key=key)


def load_commit(context: RepositoryContext, id: str, *, snapshot: Records | None = None) -> Commit:
    """Load a commit by its whole id.

    Raises:
        NotFound: kind ``commit_not_found``.
        Corruption: its record is damaged.
    Cost: 1 read of the key-value store.
    """
    commit = find_commit(context, id, snapshot=snapshot)
    if commit is None:
        raise NotFound(
            f"There is no commit {id!r} in repository {context.name}.",
            kind="commit_not_found",
            repository=context.name,
            commit=id,
        )
    return commit


def load_parent(context: RepositoryContext, id: str, *, child: str, snapshot: Records | None) -> Commit:
    """Load a commit that `child` names as a parent. Raises `Corruption` if it is missing."""
    commit = find_commit(context, id, snapshot=snapshot)
    if commit is None:
        raise Corruption(
            f"Commit {child} of repository {context.name} names a parent {id} that is not there: restore the database "
            "of records.",
            path=context.keys.commit(id).decode(),
        )
    return commit


class Walk(Iterator[tuple[str, Commit]]):
    """Iterate over commits and all their ancestors, lazily, each once.

    Order: by falling generation, then by falling time, then by id. So a commit comes before its parents. The order does
    not depend on the starts, so a walk from `waiting` continues exactly where this one is.

    Args:
        starts: ids, at least one.
        first_parent: follow only the first parent of each.

    Raises:
        NotFound: kind ``commit_not_found``: one of the `starts` does not exist.
        Corruption: a record is damaged, or a parent is missing.
    Cost: 1 read of the key-value store a commit.
    """

    def __init__(
        self,
        context: RepositoryContext,
        starts: Iterable[str],
        *,
        first_parent: bool = False,
        snapshot: Records | None = None,
    ) -> None:
        self._context = context
        self._first_parent = first_parent
        self._snapshot = snapshot
        self._seen = set(starts)
        self._heap: list[tuple[int, int, str, Commit]] = []
        for id in self._seen:
            self._push(id, load_commit(context, id, snapshot=snapshot))

    def __next__(self) -> tuple[str, Commit]:
        if not self._heap:
            raise StopIteration
        _, _, here, commit = heapq.heappop(self._heap)
        for parent_id in commit.parents[:1] if self._first_parent else commit.parents:
            if parent_id not in self._seen:
                self._seen.add(parent_id)
                self._push(parent_id, load_parent(self._context, parent_id, child=here, snapshot=self._snapshot))
        return here, commit

    @property
    def waiting(self) -> list[str]:
        """The commits that were met and not yet returned, in no order. The rest of the walk are these and ancestors."""
        return [id for _, _, id, _ in self._heap]

    def _push(self, id: str, commit: Commit) -> None:
        heapq.heappush(self._heap, (-commit.generation, -commit.created_at_ms, id, commit))


_LEFT: Final = 1
_RIGHT: Final = 2


class TooFar(Exception):
    """Raised by a walk that has met more commits than its limit."""


def walk_to_merge_base(
    context: RepositoryContext, left: str, right: str, *, count_max: int | None, snapshot: Records | None
) -> str | None:
    """`lakebed.repo.references.history.merge_base`, from the records alone.

    Args:
        count_max: most commits to meet; None: no limit.

    Raises:
        TooFar: the walk met more than `count_max` commits.
        As `Walk`.
    Cost: 1 read of the key-value store for each commit that is newer than the answer.
    """
    if left == right:
        load_commit(context, left, snapshot=snapshot)
        return left
    sides = {left: _LEFT, right: _RIGHT}
    commits = {id: load_commit(context, id, snapshot=snapshot) for id in (left, right)}
    queue = [(-commit.generation, -commit.created_at_ms, id) for id, commit in commits.items()]
    heapq.heapify(queue)
    while queue:
        if count_max is not None and len(commits) > count_max:
            raise TooFar
        _, _, here = heapq.heappop(queue)
        if sides[here] == _LEFT | _RIGHT:
            return here  # its descendants were all met before, and none of them is common
        for parent_id in commits[here].parents:
            if parent_id not in commits:
                parent = commits[parent_id] = load_parent(context, parent_id, child=here, snapshot=snapshot)
                heapq.heappush(queue, (-parent.generation, -parent.created_at_ms, parent_id))
            sides[parent_id] = sides.get(parent_id, 0) | sides[here]
    return None


def difference(context: RepositoryContext, head: str, onto: str) -> Iterator[tuple[str, Commit]]:
    """Iterate over `head` and its ancestors, without `onto` and the ancestors of `onto`, in the order of `Walk`.

    Raises as `Walk`. Cost: 1 read of the key-value store for each commit that is newer than the common ones.
    """
    sides = {head: _LEFT}
    sides[onto] = sides.get(onto, 0) | _RIGHT
    commits = {id: load_commit(context, id) for id in sides}
    queue = [(-commit.generation, -commit.created_at_ms, id) for id, commit in commits.items()]
    heapq.heapify(queue)
    wanted_count = sum(side == _LEFT for side in sides.values())
    # Ends when no waiting commit is only `head`'s. A commit is taken after all its descendants: its side is final then.
    while wanted_count:
        _, _, here = heapq.heappop(queue)
        side = sides[here]
        if side == _LEFT:
            wanted_count -= 1
            yield here, commits[here]
        for parent_id in commits[here].parents:
            before = sides.get(parent_id, 0)
            if parent_id not in commits:
                parent = commits[parent_id] = load_parent(context, parent_id, child=here, snapshot=None)
                heapq.heappush(queue, (-parent.generation, -parent.created_at_ms, parent_id))
            after = sides[parent_id] = before | side
            wanted_count += (after == _LEFT) - (before == _LEFT)
