"""Three-way merges of committed states: the common part of merges, reverts, cherry-picks and rebases.

Invariants: `lakebed.repo.committed.merge` decides each path from base, source and destination; a table inside a branch
is decided as one unit.
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import Conflict
from lakebed.repo.committed.merge import Strategy, merge_metaranges
from lakebed.repo.model.model import MetarangeRef
from lakebed.repo.records.context import RepositoryContext

CONFLICT_COUNT_SHOWN: Final = 5
"""Most paths that the error message of a conflict lists; its fact ``paths`` has more."""


def merge_states(
    context: RepositoryContext,
    *,
    base: MetarangeRef,
    source: MetarangeRef,
    destination: MetarangeRef,
    strategy: Strategy | None,
    what: str,
    prefix: str = "",
) -> MetarangeRef:
    """Apply the changes from base to source to the destination, and return the result.

    Args:
        prefix: only changes of paths that begin with it.

    Raises:
        Conflict: ``merge_conflict``.
    Cost: none if the source changed nothing, or, without a prefix, if the destination changed nothing. Else reads the
    ranges in which at least two of the three differ, and writes those that change.
    """
    outcome = merge_metaranges(
        context.committed,
        base=base,
        source=source,
        destination=destination,
        strategy=strategy,
        prefix=prefix.encode(),
    )
    if outcome.ref is None:
        raise _conflict(context, what, outcome.conflicts, outcome.conflict_count)
    return outcome.ref


def _conflict(context: RepositoryContext, what: str, paths: list[str], count: int) -> Conflict:
    shown_paths = ", ".join(paths[:CONFLICT_COUNT_SHOWN])
    more_text = f" and {count - CONFLICT_COUNT_SHOWN:,} more" if count > CONFLICT_COUNT_SHOWN else ""
    return Conflict(
        f"The {what} in repository {context.name} has {count:,} conflict{'s' if count > 1 else ''}, where both sides "
        f"changed the same path differently: {shown_paths}{more_text}. Nothing was changed; change one side, or "
        "give a strategy: source-wins or dest-wins.",
        kind="merge_conflict",
        repository=context.name,
        paths=paths,
        count=count,
    )
