"""What the sensor counts: staged rows of each branch, as far as this process knows.

Owns: in-process counts of staged entries, tombstones and sealed tokens, one triple a branch, fed by every write. They
only steer: a wrong count costs a compaction too early or too late, never data. So entries are counted as they are
written, also when they overwrite one another, which is more than there is.

Invariants: counts of tokens that a publish dropped are forgotten, those of newer tokens stay.
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
    """The uncommitted rows of a branch, which every read passes."""

    staged_entries: int = 0
    tombstones: int = 0
    sealed_tokens: int = 0

    def why(self, options: RepositoryOptions) -> str | None:
        """What calls for a compaction: ``tombstones``, ``staged_entries`` or ``sealed_tokens``; None: nothing does."""
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
        """By branch and token: staged entries and tombstones."""
        self._sealed: dict[str, int] = {}
        """Sealed tokens of the branches that were counted from the store, or reset, since the start."""
        self._moving: Counter[str] = Counter()
        """Operations that move the head of a branch just now."""
        self._changes = 0

    @property
    def changes(self) -> int:
        """How often anything was counted: unchanged while this process writes nothing. Cost: none."""
        return self._changes

    def count(self, branch: str, token: str, *, entries: int = 0, tombstones: int = 0) -> None:
        """Add what was written under a token; negative when it was taken away. Cost: 1 us."""
        with self._lock:
            self._changes += 1
            counts = self._tokens.setdefault(branch, {}).setdefault(token, [0, 0])
            counts[0] += entries
            counts[1] += tombstones

    def count_seal(self, branch: str) -> None:
        """A token of the branch was sealed."""
        with self._lock:
            self._changes += 1
            if branch in self._sealed:
                self._sealed[branch] += 1

    def reset(self, branch: str, *, sealed_count: int = 0, tokens: Collection[str] = ()) -> None:
        """Tokens of a branch were dropped: by a commit, a compaction, a reset.

        Args:
            sealed_count: how many sealed tokens it has left.
            tokens: those it still has, with staging; what was counted under others is forgotten.
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
        """While the block moves the head of a branch, and applies for that what is staged: see `is_moving`."""
        with self._lock:
            self._moving[branch] += 1
        try:
            yield
        finally:
            with self._lock:
                self._changes += 1  # what stayed staged, of a move that failed, is looked at again
                self._moving[branch] -= 1
                if not self._moving[branch]:
                    del self._moving[branch]

    def is_moving(self, branch: str) -> bool:
        """Whether an operation of this process moves the head: a compaction would do the same work once more."""
        with self._lock:
            return branch in self._moving

    def forget(self, branch: str) -> None:
        """The branch was deleted."""
        with self._lock:
            self._changes += 1
            self._tokens.pop(branch, None)
            self._sealed.pop(branch, None)

    def counts(self, branch: str) -> BranchCounts | None:
        """What was counted; None: the branch was never counted from the store, so nothing is known of what was before.

        Cost: a lock.
        """
        with self._lock:
            if branch not in self._sealed:
                return None
            return self._sum(branch)

    def all_counts(self) -> dict[str, BranchCounts]:
        """Of every branch that was counted, for metrics."""
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
        """What was counted in the store: by token, entries and tombstones. More of a token counted here stays."""
        with self._lock:
            self._changes += 1
            old_counts = self._tokens.get(branch, {})
            merged_counts = {
                token: list(map(max, counts, old_counts.get(token, (0, 0)))) for token, counts in counted.items()
            }
            self._tokens[branch] = {**old_counts, **merged_counts}
            self._sealed[branch] = sealed_count
