"""Staging compaction: apply the staged rows of a branch to its compacted metarange.

This keeps reads as fast as those of a commit, however many rows were staged, deleted or sealed. Owns: the compactor
(`compact_once`), the search for branches that need it by their counts (`lakebed.repo.records.counters`), the step that
compacts these branches (`run_compactor_once`), and the metrics. Invariants:

- A compaction changes no read. It drops exactly the tokens that it has applied.
- If the branch moved other than by gaining tokens, the compactor gives up, and leaves only collectable ranges.
- Two compactions of a branch begin at least the cooldown apart, in any processes.
- A branch that this process has not counted since its start is counted once, from the store, up to the threshold.
- A compacted metarange that equals the head is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from lakebed.errors import LakebedError, NotFound
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.block import offsets_of
from lakebed.metrics import default_registry
from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.heads.heads import (
    Overtaken,
    SealedBranch,
    beginning_again,
    compaction_move,
    open_sealed_rows,
    publish,
    seal_for_compaction,
)
from lakebed.repo.model.model import TOMBSTONE, Branch, MetarangeRef
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.counters import BranchCounts
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.records import read_records
from lakebed.repo.staging.changes import changes_of

SHOWN_BRANCHES_MAX: Final = 100
"""Most branches of a repository that have gauges: those with the most staged rows. A limit is needed because there may
be any number of branches."""

DURATION: Final = default_registry.histogram(
    "lakebed_repo_compaction_seconds",
    help_text="How long compactions of staged changes took.",
    label_names=("outcome",),
)
ROWS: Final = default_registry.counter(
    "lakebed_repo_compacted_rows_total", help_text="Staged rows that compactions applied.", label_names=("kind",)
)
"""``kind`` is ``entry`` or ``tombstone``."""
GAUGES: Final = tuple(
    default_registry.gauge(f"lakebed_repo_{name}", help_text=help_text, label_names=("repository", "branch"))
    for name, help_text in (
        ("staged_entries", "Entries staged on a branch, as far as this process has counted."),
        ("staged_tombstones", "Tombstones staged on a branch, as far as this process has counted."),
        ("sealed_tokens", "Sealed tokens of a branch."),
    )
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of one compaction."""

    branch: str
    outcome: Literal["published", "idle", "gave_up"]
    """``idle``: nothing was staged, or another compaction began within the cooldown. ``gave_up``: the branch moved."""
    entry_count: int = 0
    """Staged entries that were applied."""
    tombstone_count: int = 0
    """Staged tombstones that were applied."""


def compact_once(context: RepositoryContext, branch: str, *, force: bool = False) -> Compaction:
    """Apply the staged rows of a branch to its compacted metarange, or to its head's, and publish the result.

    Args:
        force: compact even within the cooldown.

    Raises:
        NotFound: ``branch_not_found``.
        InvalidRequest: ``read_only_repository``.
    Cost: 2 durable writes of the key-value store; reads and writes the ranges that changed.
    """
    check_not_read_only(context)
    begun_s = context.environment.clock.monotonic_s()
    outcome = "failed"
    try:
        compaction = _compact(context, branch, cooldown_ms=0 if force else context.options.compaction_cooldown_ms)
        outcome = compaction.outcome
    finally:
        DURATION.observe(context.environment.clock.monotonic_s() - begun_s, outcome)
    ROWS.add(compaction.entry_count, "entry")
    ROWS.add(compaction.tombstone_count, "tombstone")
    return compaction


def _compact(context: RepositoryContext, branch: str, *, cooldown_ms: int) -> Compaction:
    sealed_branch = seal_for_compaction(context, branch, cooldown_ms=cooldown_ms)
    if sealed_branch is None:
        return Compaction(branch, "idle")
    with suppress(Overtaken), beginning_again(context, sealed_branch):
        state, entry_count, tombstone_count = _apply(context, sealed_branch)
        if publish(context, sealed_branch, move=compaction_move(context, sealed_branch, state), operation="compaction"):
            return Compaction(branch, "published", entry_count, tombstone_count)
    return Compaction(branch, "gave_up")


def _apply(context: RepositoryContext, sealed_branch: SealedBranch) -> tuple[MetarangeRef, int, int]:
    """Apply the sealed tokens to the layers below. Returns the result, and the tokens' entry and tombstone counts."""
    counts = [0, 0]
    with open_sealed_rows(context, sealed_branch) as snapshot:
        changes = changes_of(context, snapshot, sealed_branch.record.sealed)

        def count_changes() -> Iterator[pa.RecordBatch]:
            counts[:] = [0, 0]
            for batch in changes.rows():
                entry_count = int(np.count_nonzero(np.diff(offsets_of(batch.column(1)))))
                counts[0] += entry_count
                counts[1] += batch.num_rows - entry_count
                yield batch

        application = apply_changes(
            context.committed, sealed_branch.base, Changes(clears=changes.clears, rows=count_changes)
        )
    return application.ref, counts[0], counts[1]


def run_compactor_once(context: RepositoryContext) -> list[Compaction]:
    """Compact every branch of a repository that needs it; a step of the background.

    A branch whose head is being moved waits for the next step, because a commit applies the staged rows itself. If a
    branch fails, because it was deleted or its store does not answer, the others are compacted, and the next step tries
    it again.

    Returns:
        The results for the branches that were tried; none in a read-only repository.

    Raises:
        The first error, after all branches were tried.
    Cost: 1 scan of the branches' records, and a compaction for each branch that needs one and is not cooling down.
    """
    if context.record.read_only:
        return []
    compactions: list[Compaction] = []
    failure: LakebedError | None = None
    for branch, _ in find_compactions(context):
        if context.counters.is_moving(branch):
            continue
        try:
            compactions.append(compact_once(context, branch))
        except NotFound:
            context.counters.forget(branch)
        except LakebedError as error:
            failure = failure or error
    show_counts(context)
    if failure is not None:
        raise failure
    return compactions


_shown: dict[str, set[str]] = {}
"""The branches that have gauges, by repository. Global, as the metrics are."""


def show_counts(context: RepositoryContext) -> None:
    """Set the gauges of the branches with the most staged rows, and remove those of all others."""
    pairs = context.counters.all_counts().items()
    most = nlargest(
        SHOWN_BRANCHES_MAX,
        pairs,
        key=lambda pair: (pair[1].staged_entries + pair[1].tombstones, pair[1].sealed_tokens),
    )
    for branch, counts in most:
        numbers = (counts.staged_entries, counts.tombstones, counts.sealed_tokens)
        for gauge, number in zip(GAUGES, numbers, strict=True):
            gauge.set(number, context.name, branch)
    shown_branches = {branch for branch, _ in most}
    for branch in _shown.get(context.name, set()) - shown_branches:
        for gauge in GAUGES:
            gauge.remove(context.name, branch)
    _shown[context.name] = shown_branches


COUNTED_BRANCHES_MAX: Final = 64
"""Most branches that one search counts from the store; others wait for the next search."""


def count_branch(
    context: RepositoryContext, branch: str, record: Branch, *, snapshot: KeyValueSnapshot
) -> BranchCounts:
    """Count the staged rows of a branch from the store, up to the threshold of a compaction.

    Cost: 1 scan of at most `RepositoryOptions.compaction_staged_min` rows; none if it was counted before.
    """
    known_counts = context.counters.counts(branch)
    if known_counts is not None:
        return replace(known_counts, sealed_tokens=len(record.sealed))
    rows_left = context.options.compaction_staged_min
    counts_by_token: dict[str, tuple[int, int]] = {}
    for token in (record.staging, *record.sealed):
        rows = [value for _, value in islice(snapshot.scan(*prefix_range(context.keys.token(token.id))), rows_left)]
        tombstones = rows.count(TOMBSTONE)
        counts_by_token[token.id] = (len(rows) - tombstones, tombstones + (token.clears is not None))
        rows_left -= len(rows)
    context.counters.set_counted(branch, counts_by_token, sealed_count=len(record.sealed))
    return context.counters.counts(branch) or BranchCounts()


def find_compactions(context: RepositoryContext) -> list[tuple[str, str]]:
    """Find the branches that need a compaction, each with the reason (`BranchCounts.why`).

    Cost: 1 scan of the branches' records. Also counts branches that were not counted since the start of the process, up
    to `COUNTED_BRANCHES_MAX` a call.
    """
    due_branches = []
    new_count = 0
    with context.key_value.snapshot() as snapshot:
        for branch, record in read_records(snapshot, context.keys.branch(), Branch):
            if context.counters.counts(branch) is None:
                new_count += 1
                if new_count > COUNTED_BRANCHES_MAX:
                    continue
            why = count_branch(context, branch, record, snapshot=snapshot).why(context.options)
            if why is not None:
                due_branches.append((branch, why))
    return due_branches
