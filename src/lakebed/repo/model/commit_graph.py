"""The commit graph: descent, order and changed paths of commits, as columns. Pure.

Owns: the bytes of a segment (docs/format/repository.md: DO NOT CHANGE), and queries over all commits at once. The graph
is derived from commits, which never change. So it may be incomplete or missing, but it is never wrong.

Invariants: a commit has one position, and its parents have smaller ones. A commit's filter says for a path either that
the commit may have changed it against its first parent, or that it certainly did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from lakebed.decoding import msgpack_decoder
from lakebed.errors import Corruption
from lakebed.repo.model.model import Commit

ID_BYTES: Final = 32
NO_PARENT: Final = -1

KEY_COUNT_MAX: Final = 8_192
"""Most keys of a filter. A commit with more has no filter, and may have changed any path: a filter would cost more than
it saves."""
_BITS_PER_KEY: Final = 10
_PROBE_COUNT: Final = 7
"""Bits that a key sets. With ten bits a key, one in a hundred unchanged paths passes. Stored: DO NOT CHANGE."""
UNKNOWN_LENGTH: Final = 0xFFFF_FFFF
"""Stands for the length of a missing filter: the commit may have changed any path. Stored: DO NOT CHANGE."""
_CHECK_BYTES: Final = 8

Flags = npt.NDArray[np.bool_]


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Commits of consecutive positions. Numbers are little-endian."""

    first: int
    """The position of the first commit."""
    ids: bytes
    """32 bytes a commit."""
    parent_counts: bytes
    """u8 a commit."""
    parents: bytes
    """u32: the positions of the parents of all commits, in order."""
    generations: bytes
    """u32 a commit."""
    times: bytes
    """i64 a commit: `Commit.created_at_ms`."""
    filter_lengths: bytes
    """u32 a commit, in bytes; `UNKNOWN_LENGTH`: it has no filter; 0: it changed nothing."""
    filters: bytes
    """The filters of all commits, in order."""

    @property
    def count(self) -> int:
        """Number of commits in the segment."""
        return len(self.ids) // ID_BYTES

    def is_sound(self) -> bool:
        """Whether the columns fit together."""
        count, lengths = self.count, np.frombuffer(self.filter_lengths, "<u4").astype(np.int64)
        parents = np.frombuffer(self.parents, "<u4").astype(np.int64)
        parent_counts = np.frombuffer(self.parent_counts, np.uint8)
        if (
            len(self.ids) != count * ID_BYTES
            or len(parent_counts) != count
            or len(parents) != int(parent_counts.sum())
            or len(self.generations) != 4 * count
            or len(self.times) != 8 * count
            or len(lengths) != count
            or len(self.filters) != int(lengths[lengths != UNKNOWN_LENGTH].sum())
        ):
            return False
        return bool((parents < self.first + np.repeat(np.arange(count), parent_counts)).all())


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgpack_decoder(Segment).decode


def encode_segment(segment: Segment) -> bytes:
    """The bytes to store: xxh3-64 (seed 0) of the rest, then MessagePack."""
    body = _encode(segment)
    return xxh3_64_intdigest(body).to_bytes(_CHECK_BYTES, "little") + body


def decode_segment(raw: bytes, *, first: int) -> Segment:
    """Decode a segment.

    Args:
        first: the position at which it must begin.

    Raises `Corruption`.
    """
    body = raw[_CHECK_BYTES:]
    try:
        segment = _decode(body)
        is_whole = xxh3_64_intdigest(body).to_bytes(_CHECK_BYTES, "little") == raw[:_CHECK_BYTES]
        if is_whole and segment.first == first and segment.is_sound():
            return segment
    except (msgspec.DecodeError, ValueError) as error:
        raise Corruption(f"A segment of the commit graph is damaged: {error}.") from error
    raise Corruption("A segment of the commit graph is damaged.")


def path_keys(path: bytes) -> list[bytes]:
    """The keys of a path in a filter: the path, and every folder that contains it."""
    keys = [path]
    position = path.find(b"/")
    while position >= 0:
        keys.append(path[: position + 1])
        position = path.find(b"/", position + 1)
    return keys


def prefix_key(prefix: bytes) -> bytes | None:
    """The key of a prefix in filters: the folder that contains it; None: it is in no folder, so filters do not help."""
    return prefix[: prefix.rfind(b"/") + 1] or None


def build_filter(keys: Iterable[bytes]) -> bytes:
    """Build the filter of distinct keys. Cost: about 2 us a key."""
    hashes = [xxh3_64_intdigest(key) for key in keys]
    if not hashes:
        return b""
    bits = bytearray(-(-len(hashes) * _BITS_PER_KEY // 8))
    bit_count = 8 * len(bits)
    for key_hash in hashes:
        start, step = key_hash & 0xFFFF_FFFF, key_hash >> 32 | 1
        for number in range(_PROBE_COUNT):
            bit = (start + number * step) % bit_count
            bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


class CommitGraph:
    """Commits by position. Immutable.

    Args:
        segments: sound, consecutive, from position 0.

    Attributes:
        first_parents: the position of the first parent, by position; `NO_PARENT`: it has none.
        other_parents: the positions of a merge's other parents, by position.

    Cost: about 1 us a commit. Memory: 150 bytes a commit, and its filter.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._ids = b"".join(segment.ids for segment in segments)
        self.generations = _column(segments, lambda segment: segment.generations, "<u4").astype(np.int64)
        self.times = _column(segments, lambda segment: segment.times, "<i8")
        counts = _column(segments, lambda segment: segment.parent_counts, "|u1").astype(np.int64)
        parents = _column(segments, lambda segment: segment.parents, "<u4").astype(np.int64)
        starts = np.cumsum(counts) - counts
        firsts = np.full(len(counts), NO_PARENT, np.int64)
        firsts[counts > 0] = parents[starts[counts > 0]]
        self.first_parents: list[int] = firsts.tolist()
        self.other_parents: dict[int, list[int]] = {
            int(at): parents[starts[at] + 1 : starts[at] + counts[at]].tolist() for at in np.flatnonzero(counts > 1)
        }
        self._filter_lengths = _column(segments, lambda segment: segment.filter_lengths, "<u4").astype(np.int64)
        self._filters = np.frombuffer(b"".join(segment.filters for segment in segments), np.uint8)
        prefixes = np.frombuffer(self._ids, "<u8")[:: ID_BYTES // 8]
        self._by_prefix = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[self._by_prefix]
        self._tail: dict[str, int] = {}
        self._tail_ids: list[str] = []

    def __len__(self) -> int:
        return len(self.first_parents)

    def extend(self, commits: Sequence[tuple[str, Commit]]) -> CommitGraph:
        """A graph with further commits, without filters. Each commit must come after its parents."""
        if not commits:
            return self
        graph = copy(self)
        graph._tail = {id: len(self) + number for number, (id, _) in enumerate(commits)}
        graph._tail_ids = [id for id, _ in commits]
        graph.first_parents, graph.other_parents = list(self.first_parents), dict(self.other_parents)
        for id, commit in commits:
            parents = [graph.position_of(parent) for parent in commit.parents]
            graph.first_parents.append(parents[0] if parents else NO_PARENT)
            if len(parents) > 1:
                graph.other_parents[graph._tail[id]] = parents[1:]
        generations = [commit.generation for _, commit in commits]
        times = [commit.created_at_ms for _, commit in commits]
        graph.generations = np.concatenate([self.generations, np.array(generations, np.int64)])
        graph.times = np.concatenate([self.times, np.array(times, np.int64)])
        return graph

    def find(self, id: str) -> int | None:
        """The position of a commit by its whole id; None: it is not in the graph. Cost: about 3 us."""
        position = self._tail.get(id)
        if position is not None:
            return position
        try:
            raw = bytes.fromhex(id)
        except ValueError:
            return None
        if len(raw) != ID_BYTES:
            return None
        prefix = np.frombuffer(raw, "<u8", 1)[0]
        place = int(np.searchsorted(self._prefixes, prefix))
        while place < len(self._prefixes) and self._prefixes[place] == prefix:
            position = int(self._by_prefix[place])
            if self._ids[position * ID_BYTES : (position + 1) * ID_BYTES] == raw:
                return position
            place += 1
        return None

    def position_of(self, id: str) -> int:
        """The position of a commit that is in the graph."""
        position = self.find(id)
        assert position is not None, f"{id} is not in the graph"
        return position

    def id_at(self, position: int) -> str:
        """The id of the commit at a position."""
        indexed_count = len(self._prefixes)
        if position >= indexed_count:
            return self._tail_ids[position - indexed_count]
        return self._ids[position * ID_BYTES : (position + 1) * ID_BYTES].hex()

    def order_of(self, position: int) -> tuple[int, int, str]:
        """The key that sorts commits in the order of `lakebed.repo.references.commits.Walk`."""
        return -int(self.generations[position]), -int(self.times[position]), self.id_at(position)

    def may_change(self, key: bytes) -> Flags:
        """For each commit, whether it may have changed a path, or a path in a folder (`path_keys`).

        Cost: about 50 ns a commit.
        """
        flags = np.ones(len(self), np.bool_)
        lengths = self._filter_lengths
        sizes = np.where(lengths == UNKNOWN_LENGTH, 0, lengths)
        offsets = np.cumsum(sizes) - sizes
        flags[: len(lengths)] = lengths == UNKNOWN_LENGTH
        left = np.flatnonzero(sizes)
        key_hash = xxh3_64_intdigest(key)
        start, step = key_hash & 0xFFFF_FFFF, key_hash >> 32 | 1
        for number in range(_PROBE_COUNT):
            bits = (start + number * step) % (8 * sizes[left])
            left = left[(self._filters[offsets[left] + (bits >> 3)] >> (bits & 7).astype(np.uint8)) & 1 == 1]
        flags[left] = True
        return flags

    def reach(self, starts: Iterable[int], *, first_parent: bool = False) -> Flags:
        """For each commit, whether it is a start or an ancestor of one. Cost: about 0.1 us a commit."""
        marks = bytearray(len(self))
        last = NO_PARENT
        for start in starts:
            marks[start] = 1
            last = max(last, start)
        first_parents, other_parents = self.first_parents, self.other_parents
        for position in range(last, -1, -1):
            if marks[position]:
                parent = first_parents[position]
                if parent >= 0:
                    marks[parent] = 1
                    if not first_parent and position in other_parents:
                        for other in other_parents[position]:
                            marks[other] = 1
        return np.frombuffer(marks, np.bool_)

    def up_to(self, position: int) -> Flags:
        """For each commit, whether it is the one at `position`, or before it in the order of a walk (`order_of`)."""
        generation, time = self.generations[position], self.times[position]
        is_same_generation = self.generations == generation
        flags: Flags = (self.generations > generation) | (is_same_generation & (self.times > time))
        id = self.id_at(position)
        for tie in np.flatnonzero(is_same_generation & (self.times == time)).tolist():
            flags[tie] = self.id_at(tie) <= id
        return flags


def _column(segments: Sequence[Segment], column: Any, kind: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(map(column, segments)), kind)
