"""Records of states that were replaced recently. A collection keeps their files for readers that began before.

When a branch gives up a compacted metarange, or a tag is deleted, the metarange or the tag's commit may lose its last
reference at once. Its files may be old enough for a collection, while a reader still reads them. Owns: `Superseded` and
its key. Invariants: a line is put in the same atomic change as the record that gives up the state. Its time is that of
the process's clock, but never before the state's own file was made. A pause between reading the clock and the write, or
a clock that is behind, shortens the grace by as much. A reader that is too late gets `Conflict`
(`lakebed.repo.references.mark.explaining_missing`).

A head that a branch leaves needs no line: the reference log names it for `RepositoryOptions.undelete_days`. A state
that an older version of lakebed has replaced has no line, and no grace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.file_id import FILE_ID_CHARACTERS, file_id_time_ms
from lakebed.repo.model.model import MetarangeRef, Tag
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record

KEPT_DAYS: Final = 7
"""Longest grace: older lines are deleted, whatever the grace of the next collection is."""


class Superseded(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A state that lost its name. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    name: str
    """The name of the branch or tag."""
    what: str
    """The verb, such as ``compaction``."""
    at_ms: int
    """When the state was replaced, Unix time in milliseconds, UTC."""
    metarange: MetarangeRef | None = None
    """The replaced compacted metarange of the branch; None: the line is of a tag."""
    commit_id: str | None = None
    """The commit of the tag; None: the line is of a branch."""


def supersede_compaction(
    context: RepositoryContext, before: MetarangeRef | None, *, after: MetarangeRef | None, branch: str, what: str
) -> list[tuple[bytes, bytes]]:
    """The rows to put in a write that changes the compacted metarange of a branch; none if no file is given up.

    Args:
        before, after: the compacted metarange; None: there is none.

    Cost: no request.
    """
    if before is None or before.file is None or before == after:
        return []
    made_ms = file_id_time_ms(before.file.id[-FILE_ID_CHARACTERS:])
    return [_line(context, Superseded(branch, what, max(context.now_ms(), made_ms), metarange=before))]


def supersede_tag(context: RepositoryContext, name: str, tag: Tag) -> tuple[bytes, bytes]:
    """The row to put in the write that deletes a tag. Cost: no request."""
    return _line(context, Superseded(name, "delete_tag", context.now_ms(), commit_id=tag.commit_id))


def _line(context: RepositoryContext, line: Superseded) -> tuple[bytes, bytes]:
    return context.keys.supersession(context.moves.mint()), encode_record(line)


def list_superseded(context: RepositoryContext, snapshot: KeyValueSnapshot, *, since_ms: int) -> Iterator[Superseded]:
    """Iterate over states replaced since a time (Unix milliseconds, UTC). Raises `Corruption`. Cost: 1 scan."""
    for key, raw in snapshot.scan(*prefix_range(context.keys.supersession())):
        line = decode_record(raw, Superseded, key=key)
        if line.at_ms > since_ms:
            yield line


def trim_superseded(context: RepositoryContext) -> int:
    """Delete lines older than `KEPT_DAYS`; a step of the background.

    Returns:
        The number of deleted lines, at most 10,000 a call.
    Cost: that of `RepositoryContext.trim_old`.
    """
    return context.trim_old(
        context.keys.supersession(),
        lambda key, raw: decode_record(raw, Superseded, key=key).at_ms,
        kept_ms=KEPT_DAYS * DAY_MS,
    )
