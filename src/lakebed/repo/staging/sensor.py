"""The sensor: which branches of a repository want to be compacted.

Owns: the look at the counts (`lakebed.repo.records.counters`). Invariants: a branch that this process has not counted
since its start is counted once, from the store, and no further than to the threshold.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.model import TOMBSTONE, Branch
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.counters import BranchCounts
from lakebed.repo.records.records import read_records

COUNTED_BRANCHES_MAX: Final = 64
"""Branches that one look counts from the store; the others wait for the next."""


def count_branch(
    context: RepositoryContext, branch: str, record: Branch, *, snapshot: KeyValueSnapshot
) -> BranchCounts:
    """Count a branch from the store, as far as it matters: up to the threshold of a compaction.

    Cost: 1 scan of at most `RepositoryOptions.compaction_staged_min` rows; nothing when it was counted before.
    """
    known = context.counters.counts(branch)
    if known is not None:
        return replace(known, sealed_tokens=len(record.sealed))
    left = context.options.compaction_staged_min
    counted: dict[str, tuple[int, int]] = {}
    for token in (record.staging, *record.sealed):
        rows = [value for _, value in islice(snapshot.scan(*prefix_range(context.keys.token(token.id))), left)]
        tombstones = rows.count(TOMBSTONE)
        counted[token.id] = (len(rows) - tombstones, tombstones + (token.clears is not None))
        left -= len(rows)
    context.counters.set_counted(branch, counted, sealed_count=len(record.sealed))
    return context.counters.counts(branch) or BranchCounts()


def find_compactions(context: RepositoryContext) -> list[tuple[str, str]]:
    """The branches that want to be compacted, each with the reason (`BranchCounts.why`).

    Cost: 1 scan of the branches' records; a branch that was not counted since the start is, some a call.
    """
    wanted = []
    fresh = 0
    with context.key_value.snapshot() as snapshot:
        for branch, record in read_records(snapshot, context.keys.branch(), Branch):
            if context.counters.counts(branch) is None:
                fresh += 1
                if fresh > COUNTED_BRANCHES_MAX:
                    continue
            why = count_branch(context, branch, record, snapshot=snapshot).why(context.options)
            if why is not None:
                wanted.append((branch, why))
    return wanted
