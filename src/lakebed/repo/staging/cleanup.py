"""Delete the staged rows of dropped tokens.

Owns: the deletion of staged rows. A publish drops tokens from a branch's record and writes the mark ``cleanup/<token>``
in the same change. A step of this module removes the rows of such a token, then the mark. Less often, a step looks for
tokens that have no mark and that no branch names: those left by an older process, and rows of late writers.

Why no needed row is deleted: a row is written under a token only while a branch's record names that token as its
staging token (`lakebed.repo.heads.write` expects the record in the same change). Once a token has left a record, it
never returns to any. So if a snapshot shows rows under a token, and no branch of the same snapshot names the token,
these rows stay unused forever, whatever branches are made, sealed or deleted meanwhile. Only keys that the snapshot
showed are deleted. A new token that is not published yet has no rows. If some way of importing ever fills a token
before publishing it, `FRESH_MS` protects tokens of that age.

Readers are not affected: they read snapshots.
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
"""Tokens without a mark that are younger than this, by their ULIDs, are not deleted."""

DELETE_ROW_COUNT: Final = 4_096
"""Rows that one write deletes."""

ROW_COUNT_MAX: Final = 100_000
"""Most rows that one step deletes."""

_CLEANED: Final = default_registry.counter(
    "lakebed_repo_cleaned_rows_total", help_text="Staged rows of dropped tokens that were removed."
)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a step."""

    token_count: int
    """Tokens whose rows are all removed now."""
    row_count: int
    """Rows removed."""
    is_done: bool
    """False: more is left than one step may remove."""


def clean_once(context: RepositoryContext, *, row_count_max: int = ROW_COUNT_MAX) -> Cleaned:
    """Remove the rows of tokens that were marked as dropped, and their marks.

    Cost: 1 snapshot, 1 scan each of the branches, the marks and the rows, and 1 write for every 4,096 rows. If it is
        stopped at any point, the next step continues.
    """
    marks = context.keys.cleanup()
    with context.key_value.snapshot() as snapshot:
        named_tokens = _find_tokens(context, snapshot)
        dropped_tokens = (key[len(marks) :].decode(errors="replace") for key, _ in snapshot.scan(*prefix_range(marks)))
        return _remove(
            context, snapshot, (token for token in dropped_tokens if token not in named_tokens), row_count_max
        )


def clean_orphans_once(context: RepositoryContext) -> Cleaned:
    """Remove the rows of tokens that no branch names and no mark covers, except fresh tokens (`FRESH_MS`).

    Raises `UnsupportedFormat` if there are records that this lakebed does not know: they may name tokens too.
    Cost: as `clean_once`, and 1 seek for each token that has rows and for each kind of record.
    """
    fresh_from = file_id_at(context.now_ms() - FRESH_MS)
    with context.key_value.snapshot() as snapshot:
        refuse_unknown(snapshot, context.keys, name=context.name)
        named_tokens = _find_tokens(context, snapshot)
        orphans = (
            token for token in _tokens_with_rows(context, snapshot) if token not in named_tokens and token < fresh_from
        )
        return _remove(context, snapshot, orphans, ROW_COUNT_MAX)


def _find_tokens(context: RepositoryContext, snapshot: KeyValueSnapshot) -> set[str]:
    """Every token of every branch."""
    return {
        token.id
        for _, record in read_records(snapshot, context.keys.branch(), Branch)
        for token in (record.staging, *record.sealed)
    }


def _tokens_with_rows(context: RepositoryContext, snapshot: KeyValueSnapshot) -> Iterator[str]:
    """Every token that has rows. Names that are not ULIDs are not tokens, and are skipped."""
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
    """Remove the rows of tokens, and a token's mark once all its rows are removed."""
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
