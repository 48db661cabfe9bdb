"""The index of a repository's history: the commit graph in the records, how it grows, and walks through it.

Owns: `index_history`, which adds commits, and `open_graph`, which reads the graph. Invariants:

- Segments are only appended to. Each write expects the segment as it was read, so two processes that index at once
  never mix their commits.
- A commit's position is behind those of its parents.
- A walk through the graph returns the same as a walk through the records. Filters only avoid reading commits that have
  certainly not changed a path.
- A damaged segment counts as missing, and is written again.

Reasons and alternatives: docs/design/0060-history-index.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from lakebed.errors import Conflict, Corruption, LakebedError, OutcomeUnknown, Unavailable
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.model.commit_graph import (
    KEY_COUNT_MAX,
    NO_PARENT,
    UNKNOWN_LENGTH,
    CommitGraph,
    Flags,
    Segment,
    build_filter,
    decode_segment,
    encode_segment,
    path_keys,
)
from lakebed.repo.model.model import Branch, Commit, Tag
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import read_records
from lakebed.repo.references.commits import TooFar, find_commit, load_commit, load_parent, walk_to_merge_base

SEGMENT_COMMITS_MAX: Final = 1_024
SEGMENT_FILTER_BYTES_MAX: Final = 512 << 10
"""A segment with this many commits, or this many bytes of filters, is full. The next commits begin a new segment."""

TAIL_COUNT_MAX: Final = 1_000
"""Most commits of one walk that may be missing in the index; with more, the records are walked."""

WALKED_COUNT_MAX: Final = 256
"""Commits that a search for a merge base meets before it uses the index: most merge bases are near."""

_BATCH_COUNT: Final = 64
"""Commits whose filters are made between two calls of `pause`."""


# ---- reading


def load_graph(context: RepositoryContext, *, snapshot: KeyValueSnapshot) -> CommitGraph:
    """Load the graph as it is stored, up to the first damaged segment.

    Cost: 1 scan of the last segment. If the graph has grown since this process read it, all of it: about 1 us a commit.
    """
    cached = context.graph.get()
    first = 0 if cached is None else cached[0] - 1
    rows = _scan_segments(context, snapshot, first)
    if cached is not None:
        if len(rows) == 1 and rows[0][:8] == cached[1]:
            return cached[2]
        rows = _scan_segments(context, snapshot, 0)
    segments = list(_decode_segments(rows))
    graph = CommitGraph(segments)
    if segments and len(segments) == len(rows):
        context.graph.put(len(rows), rows[-1][:8], graph)
    return graph


def _scan_segments(context: RepositoryContext, snapshot: KeyValueSnapshot, first: int) -> list[bytes]:
    _, end = prefix_range(context.keys.history())
    rows: list[bytes] = []
    for key, raw in snapshot.scan(context.keys.history(first), end):
        if key != context.keys.history(first + len(rows)):
            break  # a segment is missing, and those behind it are useless without it
        rows.append(raw)
    return rows


def _decode_segments(rows: Iterable[bytes]) -> Iterator[Segment]:
    count = 0
    for raw in rows:
        try:
            segment = decode_segment(raw, first=count)
        except Corruption:
            return
        yield segment
        count += segment.count


def open_graph(context: RepositoryContext, starts: Sequence[str], *, snapshot: KeyValueSnapshot) -> CommitGraph | None:
    """Load the graph, extended so that it has some commits and all their ancestors.

    Returns None if the index is empty, or lacks more than `TAIL_COUNT_MAX` of them. Raises as
    `lakebed.repo.references.commits.Walk`. Cost: as `load_graph`, and 1 read a commit that is not indexed.
    """
    graph = load_graph(context, snapshot=snapshot)
    if not len(graph):
        return None
    missing: dict[str, Commit] = {}
    for id, commit in _walk_missing(context, graph, starts, snapshot=snapshot):
        missing[id] = commit
        if len(missing) > TAIL_COUNT_MAX:
            return None
    return graph.extend(sorted(missing.items(), key=lambda item: item[1].generation))


def _walk_missing(
    context: RepositoryContext, graph: CommitGraph, starts: Iterable[str], *, snapshot: KeyValueSnapshot
) -> Iterator[tuple[str, Commit]]:
    """Iterate over the starts and their ancestors that are not in the graph, each once, in no particular order."""
    queue = [(id, id) for id in sorted(starts)]
    seen_ids: set[str] = set()
    while queue:
        id, child = queue.pop()
        if id in seen_ids or graph.find(id) is not None:
            continue
        seen_ids.add(id)
        if id == child:
            commit = load_commit(context, id, snapshot=snapshot)
        else:
            commit = load_parent(context, id, child=child, snapshot=snapshot)
        yield id, commit
        queue += [(parent, id) for parent in commit.parents]


class GraphWalk(Iterator[tuple[str, Commit]]):
    """As `lakebed.repo.references.commits.Walk`, without commits that are certainly not wanted.

    Args:
        graph: must have the starts.
        starts: ids.
        keys: leave out commits that have certainly changed none of them (`CommitGraph.may_change`), and merges unless
            `first_parent` is set.
        since_ms: leave out commits that were created before this time.
        met: ids of commits that are returned in any case if the walk reaches them.

    Cost: about 0.3 us for each ancestor of the starts; 1 read for each commit that is returned.
    """

    def __init__(
        self,
        context: RepositoryContext,
        graph: CommitGraph,
        starts: Sequence[str],
        *,
        keys: Sequence[bytes],
        first_parent: bool,
        since_ms: int | None,
        met: Iterable[str | None],
        snapshot: KeyValueSnapshot,
    ) -> None:
        self._context, self._graph, self._snapshot = context, graph, snapshot
        self._first_parent = first_parent
        self._starts = [graph.position_of(id) for id in starts]
        self._reached = graph.reach(self._starts, first_parent=first_parent)
        is_wanted = self._reached & np.logical_or.reduce([graph.may_change(key) for key in keys])
        if not first_parent:
            is_wanted[list(graph.other_parents)] = False
        if since_ms is not None:
            is_wanted &= graph.times >= since_ms
        for id in met:
            position = None if id is None else graph.find(id)
            if position is not None and self._reached[position]:
                is_wanted[position] = True
        self._given = NO_PARENT
        self._left = sorted(np.flatnonzero(is_wanted).tolist(), key=graph.order_of, reverse=True)

    def __next__(self) -> tuple[str, Commit]:
        if not self._left:
            raise StopIteration
        self._given = self._left.pop()
        id = self._graph.id_at(self._given)
        return id, load_commit(self._context, id, snapshot=self._snapshot)

    @property
    def waiting(self) -> list[str]:
        """As `Walk.waiting`: commits behind the last returned one that are a start, or a parent of one before it."""
        graph = self._graph
        before: Flags = np.zeros(len(graph), np.bool_) if self._given == NO_PARENT else graph.up_to(self._given)
        starts_met = {start for start in self._starts if not before[start]}
        for position in np.flatnonzero(before & self._reached).tolist():
            parents = [graph.first_parents[position]]
            if not self._first_parent:
                parents += graph.other_parents.get(position, ())
            starts_met.update(parent for parent in parents if parent >= 0 and not before[parent])
        return [graph.id_at(position) for position in starts_met]


def merge_base(
    context: RepositoryContext, left: str, right: str, *, snapshot: KeyValueSnapshot | None = None
) -> str | None:
    """Find the best common ancestor of two commits: one that no other common ancestor descends from.

    After merges crosswise there may be several. Then the greatest generation decides, then the later time, then the
    smaller id. So the answer is the same in either order of the arguments, and in every process.

    Returns:
        A commit id, which may be one of the two; None: they have no common ancestor.

    Raises as `lakebed.repo.references.commits.Walk`. Cost: 1 read of the key-value store for each commit that is newer
    than the answer. Beyond `WALKED_COUNT_MAX`, if the history is indexed, 0.2 us for each commit of it instead.
    """
    if snapshot is None:
        with context.key_value.snapshot() as new_snapshot:
            return merge_base(context, left, right, snapshot=new_snapshot)
    try:
        return walk_to_merge_base(context, left, right, count_max=WALKED_COUNT_MAX, snapshot=snapshot)
    except TooFar:
        graph = open_graph(context, [left, right], snapshot=snapshot)
    if graph is None:
        return walk_to_merge_base(context, left, right, count_max=None, snapshot=snapshot)
    common = graph.reach([graph.position_of(left)]) & graph.reach([graph.position_of(right)])
    if not common.any():
        return None
    # A descendant has a greater generation, so no common ancestor descends from one of the greatest generation.
    best = np.flatnonzero(common & (graph.generations == graph.generations[common].max())).tolist()
    return graph.id_at(min(best, key=graph.order_of))


# ---- writing


def index_history(context: RepositoryContext, *, count_min: int = 1, pause: Callable[[], None] = lambda: None) -> int:
    """Add the commits that can be reached from branches and tags and that the index lacks.

    Args:
        count_min: if fewer commits are missing, nothing is done.
        pause: called before each `_BATCH_COUNT` commits. An error that it raises ends the work; what was written stays.

    Returns:
        The number of added commits. Another process that indexes at the same time may have added the others.

    Raises:
        Corruption: a commit's parent is missing, or a record is damaged. Unavailable, OutcomeUnknown.
    Cost: without work 1 scan of branches and tags, and if one has moved, that of `open_graph`. Each added commit costs
    2 reads, and the ranges that it does not share with its first parent. There is 1 write for each thousand commits.
    """
    with context.key_value.snapshot() as snapshot:
        heads = {branch.commit_id for _, branch in read_records(snapshot, context.keys.branch(), Branch)}
        heads |= {tag.commit_id for _, tag in read_records(snapshot, context.keys.tag(), Tag)}
        if context.graph.indexed_heads == (count_min, heads):
            return 0  # no branch or tag has moved since this process found nothing to do
        graph = load_graph(context, snapshot=snapshot)
        missing = _list_missing(context, graph, heads, snapshot=snapshot)
        if len(missing) < count_min:
            context.graph.indexed_heads = (count_min, heads)
            return 0
        rows = _scan_segments(context, snapshot, 0)
        segments = list(_decode_segments(rows))
        if sum(segment.count for segment in segments) != len(graph):  # a segment was damaged after this process read it
            graph = CommitGraph(segments)
            missing = _list_missing(context, graph, heads, snapshot=snapshot)
    missing.sort()
    writer = _Writer(context, graph, segments, rows)
    for number, (_, id) in enumerate(missing):
        if number % _BATCH_COUNT == 0:
            pause()
        if not writer.add(id):
            break
    writer.write()
    return writer.added_count


def _list_missing(
    context: RepositoryContext, graph: CommitGraph, heads: Iterable[str], *, snapshot: KeyValueSnapshot
) -> list[tuple[int, str]]:
    """Generations and ids of the commits to add."""
    return [(commit.generation, id) for id, commit in _walk_missing(context, graph, heads, snapshot=snapshot)]


class _Writer:
    """Appends commits to the last segment, or to a new one behind it."""

    def __init__(
        self, context: RepositoryContext, graph: CommitGraph, segments: Sequence[Segment], rows: Sequence[bytes]
    ) -> None:
        self._context, self._graph = context, graph
        self._new: dict[str, int] = {}
        is_open = bool(segments) and not _is_full(segments[-1])
        self._number = len(segments) - is_open
        self._damaged = range(self._number + 1, len(rows))
        self._stored = rows[self._number] if self._number < len(rows) else None
        self._segment = segments[-1] if is_open else _empty_segment(len(graph))
        self._written = self._segment
        self._has_lost = False
        self.added_count = 0

    def add(self, id: str) -> bool:
        """Add a commit, behind its parents. Returns False if it is useless to add more."""
        commit = find_commit(self._context, id)
        if commit is None or self._has_lost:
            return False  # a collection deleted its record meanwhile, or another process indexes the same commits
        parents = [self._position_of(parent) for parent in commit.parents]
        changes = _build_changes(self._context, id, commit)
        old_segment = self._segment
        self._new[id] = old_segment.first + old_segment.count
        self._segment = Segment(
            old_segment.first,
            old_segment.ids + bytes.fromhex(id),
            old_segment.parent_counts + bytes([len(parents)]),
            old_segment.parents + np.array(parents, "<u4").tobytes(),
            old_segment.generations + commit.generation.to_bytes(4, "little"),
            old_segment.times + commit.created_at_ms.to_bytes(8, "little", signed=True),
            old_segment.filter_lengths + (UNKNOWN_LENGTH if changes is None else len(changes)).to_bytes(4, "little"),
            old_segment.filters + (changes or b""),
        )
        if _is_full(self._segment):
            self.write()
        return True

    def _position_of(self, id: str) -> int:
        position = self._new.get(id)
        return self._graph.position_of(id) if position is None else position

    def write(self) -> None:
        """Store what was added since the last write."""
        segment, added_count = self._segment, self._segment.count - self._written.count
        if not added_count or self._has_lost:
            return
        keys, raw = self._context.keys, encode_segment(segment)
        key = keys.history(self._number)
        try:
            self._context.key_value.write(
                [(key, raw)], [keys.history(number) for number in self._damaged], expected={key: self._stored}
            )
        except Conflict:
            self._has_lost = True
            return
        self.added_count += added_count
        self._damaged = range(0)
        self._stored, self._written = raw, segment
        if _is_full(segment):
            self._number, self._stored = self._number + 1, None
            self._segment = self._written = _empty_segment(segment.first + segment.count)


def _empty_segment(first: int) -> Segment:
    return Segment(first, b"", b"", b"", b"", b"", b"", b"")


def _is_full(segment: Segment) -> bool:
    return segment.count >= SEGMENT_COMMITS_MAX or len(segment.filters) >= SEGMENT_FILTER_BYTES_MAX


def _build_changes(context: RepositoryContext, id: str, commit: Commit) -> bytes | None:
    """Build the filter of a commit's changes against its first parent; None: they are unreadable, or too many."""
    committed = context.committed
    before = committed.empty
    if commit.parents:
        before = load_parent(context, commit.parents[0], child=id, snapshot=None).metarange
    keys: set[bytes] = set()
    try:
        # With a bound, because a difference without bounds would be cached, and displace one that is needed again.
        for batch in diff_metaranges(committed, before, commit.metarange, start=b""):
            for path in batch.column(0).to_pylist():
                keys.update(path_keys(path))
            if len(keys) > KEY_COUNT_MAX:
                return None
    except (Unavailable, OutcomeUnknown):
        raise
    except LakebedError:
        return None  # its ranges were collected, or are damaged; a log that reads them reports it
    return build_filter(keys)
