"""The reference log: the earlier heads of each branch, so that deleted or moved branches can be brought back.

Owns: `ReflogLine` and its key. Invariants: a line is written in the same atomic change as the branch's record. The
lines of a branch sort by time; those of one process sort in the order of its moves, even within a millisecond. A head
that a line younger than `RepositoryOptions.undelete_days` names is never collected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.file_id import FILE_ID_CHARACTERS, file_id_at, file_id_time_ms, is_file_id
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record


class ReflogLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One move of one branch. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    branch: str
    before: str | None
    """The head before; None: the branch was created."""
    after: str | None
    """The head after; None: the branch was deleted."""
    what: str
    """The verb, such as ``commit``."""
    at_ms: int
    """Unix time in milliseconds, UTC."""
    committer: str = ""


def reflog_line(
    context: RepositoryContext, branch: str, *, before: str | None, after: str | None, what: str, committer: str = ""
) -> tuple[bytes, bytes]:
    """Key and value of a new line, to be put in the same write as the branch record. Cost: no request."""
    line = ReflogLine(branch, before, after, what, context.now_ms(), committer)
    return context.keys.reflog(branch, context.moves.mint()), encode_record(line)


def reflog(
    context: RepositoryContext,
    *,
    branch: str | None = None,
    since_ms: int | None = None,
    snapshot: KeyValueSnapshot | None = None,
) -> Iterator[ReflogLine]:
    """Iterate over lines, oldest first for each branch.

    Args:
        branch: only lines of this branch; None: of all branches, deleted ones included.
        since_ms: only lines from this time on, Unix milliseconds, UTC.
        snapshot: the state to read; None: the present state.

    Raises:
        Corruption: a line is damaged.
    Cost: 1 scan.
    """
    if snapshot is None:
        with context.key_value.snapshot() as new_snapshot:
            yield from _lines(context, new_snapshot, branch=branch, since_ms=since_ms)
    else:
        yield from _lines(context, snapshot, branch=branch, since_ms=since_ms)


def _lines(
    context: RepositoryContext, snapshot: KeyValueSnapshot, *, branch: str | None, since_ms: int | None
) -> Iterator[ReflogLine]:
    start, end = prefix_range(context.keys.reflog() if branch is None else context.keys.reflog(branch))
    if branch is not None and since_ms is not None:
        start = context.keys.reflog(branch, file_id_at(since_ms))
    for key, raw in snapshot.scan(start, end):
        line = decode_record(raw, ReflogLine, key=key)
        if since_ms is None or line.at_ms >= since_ms:
            yield line


def trim_reflog(context: RepositoryContext) -> int:
    """Delete lines older than `RepositoryOptions.undelete_days`; a step of the background.

    Returns:
        The number of deleted lines, at most 10,000 a call.
    Cost: that of `RepositoryContext.trim_old`.
    """

    def made_ms(key: bytes, _: bytes) -> int:
        id = key[-FILE_ID_CHARACTERS:].decode(errors="replace")
        return file_id_time_ms(id) if is_file_id(id) else sys.maxsize  # a key that is not a line stays

    return context.trim_old(context.keys.reflog(), made_ms, kept_ms=context.options.undelete_days * DAY_MS)
