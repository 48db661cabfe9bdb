"""Counts of the staged rows of each branch, as far as this process knows. They decide when a branch is compacted.

Owns: in-process counts of staged entries, tombstones and sealed tokens for each branch, updated by every write. A wrong
count only makes a compaction too early or too late, and never costs data. So every written entry is counted, even if it
overwrites another: counts may be too large.

Invariants: counts of tokens that a publish dropped are forgotten; those of newer tokens stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from lakebed.repo.model.options import RepositoryOptions
from lakebed.runtime import Runtime, ThreadRuntime


@dataclass(frozen=True, slots=True)
class BranchCounts:
    """Counts of the uncommitted rows of a branch, which every read must search."""

    staged_entries: int = 0
    tombstones: int = 0
    sealed_tokens: int = 0

    def why(self, options: RepositoryOptions) -> str | None:
        """Why a compaction is needed: ``tombstones``, ``staged_entries`` or ``sealed_tokens``; None: it is not."""
        if self.tombstones >= options.compaction_tombstones_min:
            return "tombstones"
        if self.staged_entries >= options.compaction_staged_min:
            return "staged_entries"
        if self.sealed_tokens >= options.compaction_sealed_min:
            return "sealed_tokens"
        return None


class Counters:
    """The counts of one repository's branches. Thread-safe."""

    def __init__(self, *, runtime: Runtime | None = None) -> None:
        self._lock = (runtime or ThreadRuntime()).lock()
        self._tokens: dict[str, dict[str, list[int]]] = {}
        """Staged entries and tombstones, by branch and token."""
        self._sealed: dict[str, int] = {}
        """Sealed tokens, by branch, for branches that were counted from the store, or reset, since the start."""
        self._moving: Counter[str] = Counter()
        """Running operations that move a head, by branch."""
        self._changes = 0

    @property
    def changes(self) -> int:
        """The number of changes of the counts, which does not change while this process writes nothing. Cost: none."""
        return self._changes

    def count(self, branch: str, token: str, *, entries: int = 0, tombstones: int = 0) -> None:
        """Add rows that were written under a token; negative numbers for removed rows. Cost: 1 us."""
        with self._lock:
            self._changes += 1
            counts = self._tokens.setdefault(branch, {}).setdefault(token, [0, 0])
            counts[0] += entries
            counts[1] += tombstones

    def count_seal(self, branch: str) -> None:
        """Count a token of the branch that was sealed."""
        with self._lock:
            self._changes += 1
            if branch in self._sealed:
                self._sealed[branch] += 1

    def reset(self, branch: str, *, sealed_count: int = 0, tokens: Collection[str] = ()) -> None:
        """Forget the counts of tokens that a commit, a compaction or a reset has dropped.

        Args:
            sealed_count: number of sealed tokens that the branch still has.
            tokens: the tokens that it still has, the staging token included. The counts of all others are forgotten.
        """
        with self._lock:
            self._changes += 1
            counts_by_token = self._tokens.pop(branch, {})
            remaining = {token: counts for token, counts in counts_by_token.items() if token in tokens}
            if remaining:
                self._tokens[branch] = remaining
            self._sealed[branch] = sealed_count

    @contextmanager
    def note_move(self, branch: str) -> Iterator[None]:
        """Mark a branch as moving during the block, which applies its staged rows itself; see `is_moving`."""
        with self._lock:
            self._moving[branch] += 1
        try:
            yield
        finally:
            with self._lock:
                self._changes += 1  # after a failed move, rows are still staged: check the branch again
                self._moving[branch] -= 1
                if not self._moving[branch]:
                    del self._moving[branch]

    def is_moving(self, branch: str) -> bool:
        """Whether an operation of this process moves the head. A compaction would then do the same work again."""
        with self._lock:
            return branch in self._moving

    def forget(self, branch: str) -> None:
        """Forget the counts of a deleted branch."""
        with self._lock:
            self._changes += 1
            self._tokens.pop(branch, None)
            self._sealed.pop(branch, None)

    def counts(self, branch: str) -> BranchCounts | None:
        """The counts of a branch; None: it was never counted from the store, so its older rows are unknown.

        Cost: a lock.
        """
        with self._lock:
            if branch not in self._sealed:
                return None
            return self._sum(branch)

    def all_counts(self) -> dict[str, BranchCounts]:
        """The counts of every branch that was counted from the store, for metrics."""
        with self._lock:
            return {branch: self._sum(branch) for branch in self._sealed}

    def _sum(self, branch: str) -> BranchCounts:
        counts = self._tokens.get(branch, {}).values()
        return BranchCounts(
            staged_entries=max(0, sum(entries for entries, _ in counts)),
            tombstones=max(0, sum(tombstones for _, tombstones in counts)),
            sealed_tokens=self._sealed.get(branch, 0),
        )

    def set_counted(self, branch: str, counted: Mapping[str, tuple[int, int]], *, sealed_count: int) -> None:
        """Set the counts from the store: entries and tombstones, by token. A larger count of this process stays."""
        with self._lock:
            self._changes += 1
            old_counts = self._tokens.get(branch, {})
            merged_counts = {
                token: list(map(max, counts, old_counts.get(token, (0, 0)))) for token, counts in counted.items()
            }
            self._tokens[branch] = {**old_counts, **merged_counts}
            self._sealed[branch] = sealed_count
