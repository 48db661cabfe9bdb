"""Explain why an object of a repository still exists, and why a version keeps its objects.

The answer is what needs it, or when it may be deleted. Owns: the search and the sentence. Invariants: nothing is
written. The rules are those of a collection (`lakebed.repo.references.mark`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.reclaim.model import Explanation, Pin
from lakebed.repo.collect.addresses import addresses_of, addresses_of_ranges
from lakebed.repo.model.entry import address_ulid
from lakebed.repo.model.layout import (
    CLOCK_PATH,
    DERIVED_FOLDER,
    MARKER_PATH,
    METARANGE_FOLDER,
    RANGE_FOLDER,
    UPLOAD_FOLDER,
    made_ulid,
    metarange_path,
    range_path,
)
from lakebed.repo.model.model import Branch, MetarangeRef, Tag
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import read_records
from lakebed.repo.records.retention import load_retention
from lakebed.repo.references.commits import SHOWN_CHARACTERS
from lakebed.repo.references.mark import Marked, find_descendants, mark
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import list_tags

_NAMED_MAX: Final = 3
"""Most holders that a sentence names."""


def why(context: RepositoryContext, path: str) -> Explanation:
    """Explain what needs an object, or when it may be deleted.

    Args:
        path: relative to the repository's storage namespace: ``data/<ulid>``, a range, a metarange, an upload.

    Raises:
        Corruption: a record or a range that is needed for the answer is damaged.
    Cost: 1 snapshot; for a range every metarange, for an object every range of kept commits.
    """
    if path == MARKER_PATH:
        return Explanation(
            path, (), f"This is the marker of the repository {context.name}: it stays as long as that does."
        )
    if path == CLOCK_PATH:
        return Explanation(path, (), "Each collection puts this anew, to be told the store's time.")
    is_made = made_ulid(path) is not None
    if is_made and path.startswith(f"{DERIVED_FOLDER}/"):
        return Explanation(
            path,
            (),
            "It was made of a table in a branch, for Iceberg's clients, and is made again when they ask: a collection "
            "deletes it once its name is older than the grace.",
        )
    ulid = address_ulid(path)
    folders = (f"{RANGE_FOLDER}/", f"{METARANGE_FOLDER}/", f"{UPLOAD_FOLDER}/")
    is_file = is_made and path.startswith(folders)
    if ulid is None and not is_file:
        return Explanation(
            path, (), f"The repository {context.name} made no such object, so it neither needs nor deletes it."
        )
    with context.key_value.snapshot() as snapshot:
        search = _Search(context, snapshot)
        pins = tuple(search.holders_of_object(ulid) if ulid is not None else search.holders_of_file(path))
    if not pins:
        return Explanation(
            path,
            (),
            "No kept version and nothing staged needs it: a collection deletes it once its name is older than the "
            "grace, and what a branch or tag named with it was given up that long ago.",
        )
    return Explanation(path, pins, f"It is needed by {_name_some(pins)}.")


def why_version(context: RepositoryContext, version: str) -> Explanation:
    """Explain what keeps the objects of a version, or whether a collection may delete those that only it needs.

    Args:
        version: a commit, or another reference, resolved now.

    Returns:
        The commit's id as the path, and branches and tags as pins. `Pin.expires_ms` is when a branch's rule of
        retention or a tag's lifetime stops keeping the objects; None: never by itself. If a branch gets a commit before
        that, it keeps them longer.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: kind ``invalid_reference``.
        Corruption: a record that is needed for the answer is damaged.
    Cost: 1 snapshot; 4 us a commit of the repository. No object is read.
    """
    with context.key_value.snapshot() as snapshot:
        commit_id, _ = resolve_commit(context, version, snapshot=snapshot)
        search = _Search(context, snapshot)
        pins = tuple(search.holders_of_version(commit_id))
        is_expired = snapshot.get(context.keys.expired(commit_id)) is not None
    if pins:
        sentence = f"Its objects are kept by {_name_some(pins)}."
    elif search.is_active(commit_id):
        sentence = (
            "No branch or tag keeps its objects, but it was made, or one left it, within "
            f"{context.options.undelete_days} days: so long a deleted branch can be brought back, and they stay."
        )
    elif is_expired:
        sentence = "No branch or tag keeps its objects: a collection has deleted those that only it needed."
    else:
        sentence = "No branch or tag keeps its objects: a collection deletes those that only it needs."
    return Explanation(commit_id, pins, sentence)


def _name_some(pins: tuple[Pin, ...]) -> str:
    names = [f"{pin.kind} {pin.name}" for pin in pins[:_NAMED_MAX]]
    if len(pins) > _NAMED_MAX:
        names.append(f"{len(pins) - _NAMED_MAX:,} more")
    return ", ".join(names)


class _Search:
    def __init__(self, context: RepositoryContext, snapshot: KeyValueSnapshot) -> None:
        self._home = context
        self._snapshot = snapshot
        self._marked: Marked = mark(context, snapshot, now_ms=context.now_ms())
        self._branches = dict(read_records(snapshot, context.keys.branch(), Branch))

    def holders_of_object(self, ulid: str) -> list[Pin]:
        """Branches that have the object staged, and holders of the active commits that name it (`_pins_at`)."""
        ulids = pa.array([ulid])
        staging_tokens = [
            self._branch_pin(name, branch) for name, branch in self._branches.items() if self._is_staged(branch, ulids)
        ]
        ranges: dict[str, bool] = {}

        def holds(ref: MetarangeRef) -> bool:
            metarange = self._home.committed.open(ref)
            for meta in metarange.ranges():
                if meta.file.id not in ranges:
                    ranges[meta.file.id] = any(
                        pc.any(pc.is_in(batch.column(0), value_set=ulids)).as_py()
                        for batch in addresses_of_ranges(metarange, [meta])
                    )
                if ranges[meta.file.id]:
                    return True
            return False

        commits = [
            commit_id for commit_id in sorted(self._marked.active) if holds(self._marked.commits[commit_id].metarange)
        ]
        return _distinct([*self._pins_at(commits), *staging_tokens, *self._find_compacted(holds)])

    def holders_of_file(self, path: str) -> list[Pin]:
        """As `holders_of_object`, for a range or metarange, which every remembered commit keeps."""

        def holds(ref: MetarangeRef) -> bool:
            if ref.file is None:
                return False
            if metarange_path(ref.file.id) == path:
                return True
            return any(range_path(meta.file.id) == path for meta in self._home.committed.open(ref).ranges())

        commits = [
            commit_id
            for commit_id in sorted(self._marked.remembered)
            if holds(self._marked.commits[commit_id].metarange)
        ]
        return _distinct([*self._pins_at(commits), *self._find_compacted(holds)])

    def _find_compacted(self, holds: Callable[[MetarangeRef], bool]) -> Iterator[Pin]:
        """Branches for whose compacted metarange `holds` is true."""
        for name, branch in self._branches.items():
            if branch.compacted is not None and holds(branch.compacted):
                yield self._branch_pin(name, branch)

    def holders_of_version(self, commit_id: str) -> Iterator[Pin]:
        """Branches and tags that keep the objects of a commit, first those that name it."""
        rules = load_retention(self._home, snapshot=self._snapshot)
        times = find_descendants(self._marked, commit_id)
        now_ms = self._home.now_ms()
        later_pins: list[Pin] = []
        for name, branch in self._branches.items():
            time = times.get(branch.commit_id, -math.inf)
            rule_ms = 0 if rules is None else rules.days_of(name) * DAY_MS
            if rules is not None and time + rule_ms <= now_ms:
                continue
            ends = None if rules is None or time == math.inf else int(time) + rule_ms
            pin = self._branch_pin(name, branch, ends=ends)
            if branch.commit_id == commit_id:
                yield pin
            elif branch.commit_id in times:
                later_pins.append(pin)
        for name, tag in list_tags(self._home, snapshot=self._snapshot):
            pin = self._tag_pin(name, tag)
            if tag.commit_id == commit_id:
                yield pin
            elif rules is None and tag.commit_id in times:
                later_pins.append(pin)
        yield from later_pins

    def is_active(self, commit_id: str) -> bool:
        """Whether something keeps the objects of a commit."""
        return commit_id in self._marked.active

    def _branch_pin(self, name: str, branch: Branch, *, ends: int | None = None) -> Pin:
        return self._pin("branch", name, branch.commit_id, branch.created_at_ms, ends=ends)

    def _tag_pin(self, name: str, tag: Tag) -> Pin:
        return self._pin("tag", name, tag.commit_id, tag.created_at_ms, owner=tag.owner, ends=tag.expires_at_ms)

    def _is_staged(self, branch: Branch, ulids: pa.Array) -> bool:
        for token in (branch.staging, *branch.sealed):
            prefix = self._home.keys.token(token.id)
            for batch in self._snapshot.scan_arrow(*prefix_range(prefix)):
                addresses = addresses_of(batch.column(1), where=f"the staging token {token.id}").column(0)
                if pc.any(pc.is_in(addresses, value_set=ulids)).as_py():
                    return True
        return False

    def _pins_at(self, commits: list[str]) -> Iterator[Pin]:
        """Branches and tags at these commits, then the commits that are only in a history."""
        commits_left = set(commits)
        for name, branch in self._branches.items():
            if branch.commit_id in commits:
                commits_left.discard(branch.commit_id)
                yield self._branch_pin(name, branch)
        for name, tag in list_tags(self._home, snapshot=self._snapshot):
            if tag.commit_id in commits:
                commits_left.discard(tag.commit_id)
                yield self._tag_pin(name, tag)
        for commit_id in sorted(commits_left, key=lambda each: -self._marked.commits[each].created_at_ms):
            commit = self._marked.commits[commit_id]
            yield self._pin(
                "commit", commit_id[:SHOWN_CHARACTERS], commit_id, commit.created_at_ms, owner=commit.committer
            )

    def _pin(
        self, kind: str, name: str, commit_id: str, created_ms: int, *, owner: str = "", ends: int | None = None
    ) -> Pin:
        return Pin(self._home.name, kind, name, commit_id, owner, created_ms or None, ends)


def _distinct(pins: list[Pin]) -> list[Pin]:
    return list({(pin.kind, pin.name): pin for pin in pins}.values())
