"""Taking away what dropped tokens have left.

Owns: the deletion of staged rows. A publish drops tokens from a branch's record and writes ``cleanup/<token>`` in the
same change; a step here removes their rows, then the mark. More rarely a step looks for tokens without a mark that no
branch names: those of a repository that an older process has left, and rows of late writers.

Why no needed row is deleted. A row is under a token only because some record named it as its staging token when
the row was written (`lakebed.repo.heads.write` expects the record in the same change), and a token never returns to
any record once it has left. So rows that a snapshot shows under a token that no branch of the same snapshot names are
dead for good, whatever branches are made, sealed or deleted meanwhile. Only keys that the snapshot has shown are
deleted. A fresh token that is minted, but not published yet, has no rows, so none of them can be met; and should some
way of importing ever fill a token before it publishes it, `FRESH_MS` keeps tokens of that age out of reach.

Readers are not disturbed: they read snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.file_id import FILE_ID_CHARACTERS, file_id_at, is_file_id
from lakebed.metrics import default_registry
from lakebed.repo.model.model import Branch
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import read_records, refuse_unknown

FRESH_MS: Final = 24 * 3600 * 1000
"""Tokens without a mark that are younger than this, by their ULIDs, are left alone."""

DELETE_ROW_COUNT: Final = 4_096
"""Rows of one write."""

ROW_COUNT_MAX: Final = 100_000
"""Most rows of one step."""

_CLEANED: Final = default_registry.counter(
    "lakebed_repo_cleaned_rows_total", help_text="Staged rows of dropped tokens that were removed."
)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a step has done."""

    token_count: int
    """Tokens that are gone now."""
    row_count: int
    """Rows removed."""
    is_done: bool
    """False: there was more than one step may take."""


def clean_once(context: RepositoryContext, *, row_count_max: int = ROW_COUNT_MAX) -> Cleaned:
    """Remove the rows of tokens that were marked as dropped, and their marks.

    Cost: 1 snapshot, 1 scan of the branches and of the marks, and the rows; 1 write for every 4,096. When it is stopped
        at any point, the next step continues.
    """
    marks = context.keys.cleanup()
    with context.key_value.snapshot() as snapshot:
        named = _find_tokens(context, snapshot)
        dropped = (key[len(marks) :].decode(errors="replace") for key, _ in snapshot.scan(*prefix_range(marks)))
        return _remove(context, snapshot, (token for token in dropped if token not in named), row_count_max)


def clean_orphans_once(context: RepositoryContext) -> Cleaned:
    """Remove the rows of tokens that no branch names and no mark covers, but for fresh ones (`FRESH_MS`).

    Raises `UnsupportedFormat`: records that this lakebed does not know may name tokens too.
    Cost: as `clean_once`, and 1 seek a token that has rows, and for each kind of record.
    """
    fresh_from = file_id_at(context.now_ms() - FRESH_MS)
    with context.key_value.snapshot() as snapshot:
        refuse_unknown(snapshot, context.keys, name=context.name)
        named = _find_tokens(context, snapshot)
        orphans = (token for token in _tokens_with_rows(context, snapshot) if token not in named and token < fresh_from)
        return _remove(context, snapshot, orphans, ROW_COUNT_MAX)


def _find_tokens(context: RepositoryContext, snapshot: KeyValueSnapshot) -> set[str]:
    """Every token of every branch."""
    return {
        token.id
        for _, record in read_records(snapshot, context.keys.branch(), Branch)
        for token in (record.staging, *record.sealed)
    }


def _tokens_with_rows(context: RepositoryContext, snapshot: KeyValueSnapshot) -> Iterator[str]:
    """Every token that has rows; names that are not ULIDs are not tokens, and are left alone."""
    start, end = prefix_range(context.keys.staging())
    begin: bytes | None = start
    while begin is not None:
        first = next(iter(snapshot.scan(begin, end)), None)
        if first is None:
            return
        token = first[0].removeprefix(start)[:FILE_ID_CHARACTERS].decode(errors="replace")
        if is_file_id(token):
            yield token
            begin = prefix_range(context.keys.token(token))[1]
        else:
            begin = first[0] + b"\0"


def _remove(
    context: RepositoryContext, snapshot: KeyValueSnapshot, tokens: Iterable[str], row_count_max: int
) -> Cleaned:
    """Remove the rows of tokens, and their marks when all rows are gone."""
    row_count = token_count = 0
    for token in tokens:
        keys = (key for key, _ in snapshot.scan(*prefix_range(context.keys.token(token))))
        while batch := list(islice(keys, min(DELETE_ROW_COUNT, row_count_max - row_count))):
            context.key_value.write(deletes=batch)
            row_count += len(batch)
            _CLEANED.add(len(batch))
        if row_count >= row_count_max and next(keys, None) is not None:
            return Cleaned(token_count, row_count, is_done=False)
        context.key_value.delete(context.keys.cleanup(token))
        token_count += 1
    return Cleaned(token_count, row_count, is_done=True)
