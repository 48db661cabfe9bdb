"""What a repository still needs: commits that keep their objects, commits that are remembered, live tokens.

Owns: the rules. Pure over one snapshot of the records; reads no object.

- A head, of a branch or a tag, keeps its objects; so does every head that the reference log names, for
  `RepositoryOptions.undelete_days`.
- Behind the head of a branch a commit keeps its objects as long as one that follows it is younger than the branch's
  rule: so long it was what a reader of the branch saw. Without rules every commit that can be reached does.
- The age of a commit counts from `Commit.stored_at_ms`, never from the date that a client gave it. A commit of an older
  version has no such time and counts as young, so it keeps what it follows. It is kept itself only until a commit that
  has a time and follows it is older than the rule.
- What a branch or tag named last is needed for the collection's minimum age after that, by readers that began before
  (`lakebed.repo.records.superseded`); so is what an expired tag named.
- A commit that can be reached is remembered, with its ranges, whether or not its objects are kept: logs, differences
  and merge bases need it. One that cannot is remembered, and keeps its objects, while it is younger than the
  reference log goes back.
- What is not known here may need anything: a record of another kind, another setting, or another field of a record.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakebed.errors import Conflict, Corruption
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.model import Branch, Commit, MetarangeRef, StagingToken, Tag
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import read_records, refuse_unknown
from lakebed.repo.records.reflog import reflog
from lakebed.repo.records.retention import load_retention
from lakebed.repo.records.superseded import list_superseded
from lakebed.repo.references.tags import is_live


@dataclass(slots=True)
class Marked:
    """What one moment needs."""

    commits: dict[str, Commit] = field(default_factory=dict)
    """Every commit with a record, by id."""
    active: set[str] = field(default_factory=set)
    """Commits that keep their objects."""
    remembered: set[str] = field(default_factory=set)
    """Commits whose records and ranges stay; the active ones are among them."""
    compacted: list[MetarangeRef] = field(default_factory=list)
    """What staging compactions have made, of every branch."""
    superseded: list[MetarangeRef] = field(default_factory=list)
    """Of those, what was replaced within the grace: another collection, with a shorter grace, may have deleted it."""
    tokens: list[StagingToken] = field(default_factory=list)
    """Of every branch."""

    @property
    def expired(self) -> set[str]:
        """Commits that lose their objects."""
        return set(self.commits) - self.active

    def metaranges_to_keep(self) -> list[MetarangeRef]:
        """Whose files stay."""
        return [self.commits[commit_id].metarange for commit_id in sorted(self.remembered)] + self.compacted

    def metaranges_with_objects(self) -> list[MetarangeRef]:
        """Whose entries' objects stay too."""
        return [self.commits[commit_id].metarange for commit_id in sorted(self.active)] + self.compacted


def mark(context: RepositoryContext, snapshot: KeyValueSnapshot, *, now_ms: int, grace_ms: int = 0) -> Marked:
    """What is needed at the moment of a snapshot.

    Args:
        now_ms: Unix time in milliseconds, UTC: the collector's or the store's, whichever is earlier.
        grace_ms: for how long what was replaced is needed.

    Raises:
        Corruption: a record is damaged, or a commit that something names is not there: then nothing may be deleted.
        UnsupportedFormat: nor where a newer lakebed has written what this one does not know.
    Cost: 1 scan of branches, tags, reference log and commits, 1 seek for each kind of record; 2 us a commit.
    """
    refuse_unknown(snapshot, context.keys, name=context.name)
    marked = Marked(commits=dict(read_records(snapshot, context.keys.commit(), Commit, whole=True)))
    rules = load_retention(context, snapshot=snapshot)
    undelete_ms = now_ms - context.options.undelete_days * DAY_MS
    heads: list[str] = []
    tagged: list[str] = []
    untagged: list[str] = []
    horizons: dict[str, int | None] = {}  # by head: until when commits behind it are kept; None: without a limit
    for name, branch in read_records(snapshot, context.keys.branch(), Branch):
        heads.append(branch.commit_id)
        marked.tokens += [branch.staging, *branch.sealed]
        if branch.compacted is not None:
            marked.compacted.append(branch.compacted)
        until_ms = None if rules is None else now_ms - rules.days_of(name) * DAY_MS
        _keep_longest(horizons, branch.commit_id, until_ms)
    for _, tag in read_records(snapshot, context.keys.tag(), Tag, whole=True):
        if is_live(tag, now_ms):
            tagged.append(tag.commit_id)
        elif is_live(tag, now_ms - grace_ms):
            untagged.append(tag.commit_id)
    for state in list_superseded(context, snapshot, since_ms=now_ms - grace_ms):
        if state.metarange is not None:
            marked.superseded.append(state.metarange)
        if state.commit_id is not None:
            untagged.append(state.commit_id)
    # Another collection, with a shorter grace, may have begun to delete it, and has marked it before.
    tagged += [id for id in untagged if id in marked.commits and snapshot.get(context.keys.expired(id)) is None]
    heads += tagged
    if rules is None:
        for commit_id in tagged:
            _keep_longest(horizons, commit_id, None)
    for line in reflog(context, since_ms=undelete_ms, snapshot=snapshot):
        heads += [id for id in (line.before, line.after) if id is not None]
    marked.remembered.update(id for id, _ in _walk(marked, heads))
    # A commit without a time of its own has its date here: what moved a branch lately is in the reference log anyway.
    young = {
        id
        for id, commit in marked.commits.items()
        if (commit.created_at_ms if commit.stored_at_ms is None else commit.stored_at_ms) >= undelete_ms
    }
    marked.remembered |= young - marked.remembered
    # What a young commit without a name descends from is remembered with it, or its log would end in nothing.
    marked.remembered.update(id for id, _ in _walk(marked, sorted(young)))
    marked.active.update(heads)
    marked.active |= young - {id for id, _ in _walk(marked, heads)}
    for head, until_ms in horizons.items():
        marked.active |= _retain_behind(marked, head, until_ms=until_ms)
    return marked


def find_descendants(marked: Marked, commit_id: str) -> dict[str, float]:
    """A commit and those that descend from it, each with a time: a rule that reaches behind it, reaches the commit.

    A branch whose head is a descendant keeps the commit's objects while its rule keeps what is older than that time,
    Unix time in milliseconds: of the oldest commit on the way, on the way where that is youngest. Infinite: for ever,
    for the commit itself and where all commits on the way count as young.

    Cost: no request; 2 us a commit.
    """
    children: dict[str, list[str]] = {}
    for child_id, commit in marked.commits.items():
        for parent_id in commit.parents:
            children.setdefault(parent_id, []).append(child_id)
    times: dict[str, float] = {}
    waiting = [(-math.inf, commit_id)]
    while waiting:
        negative, descendant = heapq.heappop(waiting)
        if descendant in times:
            continue
        times[descendant] = -negative
        for child_id in children.get(descendant, ()):
            stored_ms = marked.commits[child_id].stored_at_ms
            heapq.heappush(waiting, (max(negative, -math.inf if stored_ms is None else -stored_ms), child_id))
    return times


@contextmanager
def explaining_missing(context: RepositoryContext, *refs: MetarangeRef) -> Iterator[None]:
    """Raise `Conflict` (``version_went``) when a file of a metarange is missing because a collection was to delete it.

    A reader that takes longer than the minimum age of a collection reads a state that nothing names any more. A file
    that is missing although something needs it is `Corruption`.

    Args:
        refs: what is read.

    Cost: none without an error; else a snapshot, and what `mark` costs.
    """
    try:
        yield
    except Corruption as error:
        if error.kind != "missing_range":
            raise
        with context.key_value.snapshot() as snapshot:
            marked = mark(context, snapshot, now_ms=context.now_ms())
        kept = {ref.file.id for ref in marked.metaranges_to_keep() if ref.file is not None}
        if all(ref.file is None or ref.file.id in kept for ref in refs):
            raise
        raise Conflict(
            f"What was being read of repository {context.name} was replaced since, and a collection has deleted it "
            f"({error.facts['path']} is gone): read it again.",
            kind="version_went",
            repository=context.name,
        ) from error


def _keep_longest(horizons: dict[str, int | None], head: str, until_ms: int | None) -> None:
    """Two branches at one commit: the longer rule counts."""
    known = horizons.get(head, until_ms)
    horizons[head] = None if known is None or until_ms is None else min(known, until_ms)


def _walk(marked: Marked, heads: list[str]) -> Iterator[tuple[str, Commit]]:
    """Heads and everything before them, each once."""
    seen: set[str] = set()
    waiting = list(heads)
    while waiting:
        commit_id = waiting.pop()
        if commit_id in seen:
            continue
        seen.add(commit_id)
        commit = marked.commits.get(commit_id)
        if commit is None:
            raise Corruption(
                f"The commit {commit_id} is not there, and something names it: restore the database of records. Until "
                "then nothing is deleted.",
                path=f"commits/{commit_id}",
            )
        yield commit_id, commit
        waiting += commit.parents


def _retain_behind(marked: Marked, head: str, *, until_ms: int | None) -> set[str]:
    """The head, and each commit behind it whose follower is younger than the rule."""
    if until_ms is None:
        return {commit_id for commit_id, _ in _walk(marked, [head])}
    kept: set[str] = set()
    waiting = [head]
    while waiting:
        commit_id = waiting.pop()
        if commit_id in kept:
            continue
        kept.add(commit_id)
        commit = marked.commits[commit_id]
        if commit.stored_at_ms is None or commit.stored_at_ms > until_ms:
            waiting += commit.parents
    return kept
