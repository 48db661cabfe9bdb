"""Mark what a repository still needs: commits that keep their objects, commits that are remembered, live tokens.

Owns: the rules. Pure over one snapshot of the records; reads no object.

- The head of a branch or a tag keeps its objects. So does every head that the reference log names, for
  `RepositoryOptions.undelete_days`.
- A commit behind a branch's head keeps its objects while a commit that follows it is younger than the branch's rule:
  until that commit was made, readers of the branch saw this one. Without rules, every reachable commit keeps its
  objects.
- The age of a commit counts from `Commit.stored_at_ms`, never from the date that a client gave it. A commit of an older
  version has no such time and counts as young, so its parents keep their objects. It keeps its own objects only until
  each commit that follows it has a time and is older than the rule.
- A state that a branch or tag has given up is needed for the collection's grace after that, by readers that began
  before (`lakebed.repo.records.superseded`). So is the commit that an expired tag named.
- A reachable commit is remembered, with its ranges, whether or not its objects are kept: logs, differences and merge
  bases need it. An unreachable commit is remembered, and keeps its objects, while it is younger than
  `RepositoryOptions.undelete_days`.
- What is unknown here may need anything: a record of an unknown kind, an unknown setting, an unknown field of a record.
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
    """What is needed at one moment."""

    commits: dict[str, Commit] = field(default_factory=dict)
    """Every commit with a record, by id."""
    active: set[str] = field(default_factory=set)
    """Commits that keep their objects."""
    remembered: set[str] = field(default_factory=set)
    """Commits whose records and ranges stay, the active ones included."""
    compacted: list[MetarangeRef] = field(default_factory=list)
    """The compacted state of every branch."""
    superseded: list[MetarangeRef] = field(default_factory=list)
    """Compacted states that were replaced within the grace. A collection with a shorter grace may have deleted them."""
    tokens: list[StagingToken] = field(default_factory=list)
    """The staging tokens of every branch."""

    @property
    def expired(self) -> set[str]:
        """Commits that lose their objects."""
        return set(self.commits) - self.active

    def metaranges_to_keep(self) -> list[MetarangeRef]:
        """Metaranges whose files stay."""
        return [self.commits[commit_id].metarange for commit_id in sorted(self.remembered)] + self.compacted

    def metaranges_with_objects(self) -> list[MetarangeRef]:
        """Metaranges whose entries' objects stay, too."""
        return [self.commits[commit_id].metarange for commit_id in sorted(self.active)] + self.compacted


def mark(context: RepositoryContext, snapshot: KeyValueSnapshot, *, now_ms: int, grace_ms: int = 0) -> Marked:
    """Mark what is needed at the moment of a snapshot.

    Args:
        now_ms: Unix time in milliseconds, UTC: the collector's or the store's, whichever is earlier.
        grace_ms: how long a state is still needed after it was replaced.

    Raises:
        Corruption: a record is damaged, or a named commit is missing: then nothing may be deleted.
        UnsupportedFormat: a newer lakebed has written something unknown: nothing may be deleted either.
    Cost: 1 scan of branches, tags, reference log and commits, 1 seek for each kind of record; 2 us a commit.
    """
    refuse_unknown(snapshot, context.keys, name=context.name)
    marks = Marked(commits=dict(read_records(snapshot, context.keys.commit(), Commit, whole=True)))
    rules = load_retention(context, snapshot=snapshot)
    undelete_ms = now_ms - context.options.undelete_days * DAY_MS
    heads: list[str] = []
    tagged_ids: list[str] = []
    untagged: list[str] = []
    horizons: dict[str, int | None] = {}  # by head: the time back to which commits behind it are kept; None: no limit
    for name, branch in read_records(snapshot, context.keys.branch(), Branch):
        heads.append(branch.commit_id)
        marks.tokens += [branch.staging, *branch.sealed]
        if branch.compacted is not None:
            marks.compacted.append(branch.compacted)
        until_ms = None if rules is None else now_ms - rules.days_of(name) * DAY_MS
        _keep_longest(horizons, branch.commit_id, until_ms)
    for _, tag in read_records(snapshot, context.keys.tag(), Tag, whole=True):
        if is_live(tag, now_ms):
            tagged_ids.append(tag.commit_id)
        elif is_live(tag, now_ms - grace_ms):
            untagged.append(tag.commit_id)
    for state in list_superseded(context, snapshot, since_ms=now_ms - grace_ms):
        if state.metarange is not None:
            marks.superseded.append(state.metarange)
        if state.commit_id is not None:
            untagged.append(state.commit_id)
    # A collection with a shorter grace may have begun to delete such a commit's objects; then it has marked it before.
    tagged_ids += [id for id in untagged if id in marks.commits and snapshot.get(context.keys.expired(id)) is None]
    heads += tagged_ids
    if rules is None:
        for commit_id in tagged_ids:
            _keep_longest(horizons, commit_id, None)
    for line in reflog(context, since_ms=undelete_ms, snapshot=snapshot):
        heads += [id for id in (line.before, line.after) if id is not None]
    marks.remembered.update(id for id, _ in _walk(marks, heads))
    # For a commit without a stored time, its date is good enough: recent moves of branches are in the reference log.
    young = {
        id
        for id, commit in marks.commits.items()
        if (commit.created_at_ms if commit.stored_at_ms is None else commit.stored_at_ms) >= undelete_ms
    }
    marks.remembered |= young - marks.remembered
    # The ancestors of a young unreachable commit are remembered with it, or its log would end at a missing commit.
    marks.remembered.update(id for id, _ in _walk(marks, sorted(young)))
    marks.active.update(heads)
    marks.active |= young - {id for id, _ in _walk(marks, heads)}
    for head, until_ms in horizons.items():
        marks.active |= _retain_behind(marks, head, until_ms=until_ms)
    return marks


def find_descendants(marked: Marked, commit_id: str) -> dict[str, float]:
    """Find a commit and its descendants, and for each the time to which a branch's rule must reach to keep the commit.

    A branch whose head is a descendant keeps the commit's objects while its rule reaches back beyond the descendant's
    time. On a path from the descendant to the commit (excluded), the time of the oldest commit counts; of several
    paths, the one with the latest such time.

    Returns:
        Unix times in milliseconds by id. Infinite: the objects are kept for ever, for the commit itself and if all
        commits on a path count as young.

    Cost: no request; 2 us a commit.
    """
    children: dict[str, list[str]] = {}
    for child_id, commit in marked.commits.items():
        for parent_id in commit.parents:
            children.setdefault(parent_id, []).append(child_id)
    times: dict[str, float] = {}
    queue = [(-math.inf, commit_id)]
    while queue:
        negative, descendant = heapq.heappop(queue)
        if descendant in times:
            continue
        times[descendant] = -negative
        for child_id in children.get(descendant, ()):
            stored_ms = marked.commits[child_id].stored_at_ms
            heapq.heappush(queue, (max(negative, -math.inf if stored_ms is None else -stored_ms), child_id))
    return times


@contextmanager
def explaining_missing(context: RepositoryContext, *refs: MetarangeRef) -> Iterator[None]:
    """Raise `Conflict` (``version_went``) if a file of a metarange is missing because a collection may delete it.

    A reader that takes longer than a collection's grace may read a state that nothing names any more. A missing file
    that something needs stays `Corruption`.

    Args:
        refs: the metaranges that are read.

    Cost: none without an error; else a snapshot and the cost of `mark`.
    """
    try:
        yield
    except Corruption as error:
        if error.kind != "missing_range":
            raise
        with context.key_value.snapshot() as snapshot:
            marks = mark(context, snapshot, now_ms=context.now_ms())
        kept_files = {ref.file.id for ref in marks.metaranges_to_keep() if ref.file is not None}
        if all(ref.file is None or ref.file.id in kept_files for ref in refs):
            raise
        raise Conflict(
            f"What was being read of repository {context.name} was replaced since, and a collection has deleted it "
            f"({error.facts['path']} is gone): read it again.",
            kind="version_went",
            repository=context.name,
        ) from error


def _keep_longest(horizons: dict[str, int | None], head: str, until_ms: int | None) -> None:
    """Set the horizon of a head; of two branches at one commit, the longer rule counts."""
    horizon = horizons.get(head, until_ms)
    horizons[head] = None if horizon is None or until_ms is None else min(horizon, until_ms)


def _walk(marks: Marked, heads: list[str]) -> Iterator[tuple[str, Commit]]:
    """Iterate over heads and their ancestors, each once. Raises `Corruption` if a commit is missing."""
    seen_ids: set[str] = set()
    queue = list(heads)
    while queue:
        commit_id = queue.pop()
        if commit_id in seen_ids:
            continue
        seen_ids.add(commit_id)
        commit = marks.commits.get(commit_id)
        if commit is None:
            raise Corruption(
                f"The commit {commit_id} is not there, and something names it: restore the database of records. Until "
                "then nothing is deleted.",
                path=f"commits/{commit_id}",
            )
        yield commit_id, commit
        queue += commit.parents


def _retain_behind(marks: Marked, head: str, *, until_ms: int | None) -> set[str]:
    """The head, and the commits behind it that are the parents of a kept commit younger than the rule."""
    if until_ms is None:
        return {commit_id for commit_id, _ in _walk(marks, [head])}
    kept_ids: set[str] = set()
    queue = [head]
    while queue:
        commit_id = queue.pop()
        if commit_id in kept_ids:
            continue
        kept_ids.add(commit_id)
        commit = marks.commits[commit_id]
        if commit.stored_at_ms is None or commit.stored_at_ms > until_ms:
            queue += commit.parents
    return kept_ids
