"""`Diff` and `Status`: the differences of two references, or of a branch and its head, in pages, with common prefixes.

Owns: which metaranges are compared, and folding. Invariants: consecutive pages of any size make up one listing. Many
paths below a common prefix are skipped by a seek, and not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.committed.windows import match_paths, same
from lakebed.repo.model.entry import decode_entry, identities
from lakebed.repo.model.model import DIFF_SCHEMA, Difference, DiffKind, Entry, MetarangeRef
from lakebed.repo.model.names import check_amount, check_branch_name, check_prefix
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.staging.listing import SEEK_ROW_COUNT, Page, RowsFrom, page_of, text_of
from lakebed.repo.staging.uncommitted import uncommitted
from lakebed.repo.staging.view import rows_of_moment
from lakebed.repo.verbs.message import ListVerb, verb

DiffScope = Literal["three_dot", "two_dot"]
"""``three_dot``: the changes that a merge would bring: those of the right side since the merge base, without changes
that the left side has made in the same way. A path that both changed differently is a conflict. ``two_dot``: the
differences from the left side to the right side."""

_CHUNK_ROW_COUNT: Final = 256


@verb("diff", role="read", effort="compute", gives=list[Difference])
class Diff(ListVerb[Difference], frozen=True, kw_only=True):
    """How two references differ, in the order of paths.

    Only what is committed counts. Paths are ordered by their bytes.

    Args:
        kind: ``three_dot``: what `right` changed since the merge base and `left` does not have; ``two_dot``: from
            `left` to `right`.
        after: only what sorts behind this; the last path of a page, to continue with the next.
        delimiter: fold paths that hold it behind the prefix into one common prefix, up to and with it.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: a reference, path or amount is invalid.
        Corruption: a stored record or file is damaged.
    Cost: the ranges in which the two differ, of three_dot also those in which `left` differs from the merge base
    between the same paths; about 3 us a path.
    """

    left: str
    right: str
    kind: str = "three_dot"
    prefix: str = ""
    after: str = ""
    delimiter: str = ""

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[Difference]:
        if self.kind not in get_args(DiffScope):
            raise InvalidRequest(
                f"A difference is three_dot or two_dot, and {self.kind!r} was asked for.", kind="invalid_diff_kind"
            )
        page = page_of(check_prefix(self.prefix), after=self.after, delimiter=self.delimiter, amount=amount)
        with context.key_value.snapshot() as snapshot:
            left_id, left_commit = resolve_commit(context, self.left, snapshot=snapshot)
            right_id, right_commit = resolve_commit(context, self.right, snapshot=snapshot)
            base = theirs = left_commit.metarange
            if self.kind == "three_dot":
                base_id = merge_base(context, left_id, right_id, snapshot=snapshot)
                base = context.committed.empty
                if base_id is not None:
                    base = load_commit(context, base_id, snapshot=snapshot).metarange
        own_metarange = right_commit.metarange

        def rows(first: bytes | None, last: bytes | None) -> Iterator[pa.RecordBatch]:
            differences = diff_metaranges(context.committed, base, own_metarange, start=first, end=last)
            with explaining_missing(context, base, theirs, own_metarange):
                yield from (
                    differences if base.id == theirs.id else _against_left(context, differences, base=base, left=theirs)
                )

        return _list_page(rows, page, prefix=self.prefix, amount=amount)


@verb("status", role="read", effort="compute", gives=list[Difference])
class Status(ListVerb[Difference], frozen=True, kw_only=True):
    """What is uncommitted on a branch, in the order of paths.

    How the branch differs from its head, at the moment at which the first difference is asked for. Arguments as `Diff`.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: a name, path or amount is invalid.
        Corruption: a stored record or file is damaged.
    Cost: 1 snapshot, 1 scan a token; see `lakebed.repo.staging.uncommitted.uncommitted`.
    """

    branch: str
    prefix: str = ""
    after: str = ""
    delimiter: str = ""

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[Difference]:
        check_branch_name(self.branch)
        page = page_of(check_prefix(self.prefix), after=self.after, delimiter=self.delimiter, amount=amount)

        def differences() -> Iterator[Difference]:
            with context.key_value.snapshot() as snapshot:
                record, _ = load_branch(context, self.branch, snapshot=snapshot)

                def rows(first: bytes | None, last: bytes | None) -> Iterator[pa.RecordBatch]:
                    return uncommitted(context, snapshot, record, start=first, end=last)

                yield from _list_page(rows, page, prefix=self.prefix, amount=amount)

        return rows_of_moment(differences)


def _against_left(
    context: RepositoryContext, differences: Iterator[pa.RecordBatch], *, base: MetarangeRef, left: MetarangeRef
) -> Iterator[pa.RecordBatch]:
    """Filter differences from the base to the right side: drop those that the left side has made in the same way.

    Paths that the left side has changed differently become conflicts.

    Cost: the ranges in which the left side differs from the base, between the first and last path of each batch.
    """
    for batch in differences:
        paths = batch.column("path")
        start, end = paths[0].as_py(), paths[-1].as_py() + b"\0"
        is_kept = np.ones(batch.num_rows, np.bool_)
        clashing = np.zeros(batch.num_rows, np.bool_)
        for difference in diff_metaranges(context.committed, base, left, start=start, end=end):
            places = match_paths(paths, difference.column("path"))
            mine, theirs = (identities(rows.column("right"), where="a difference") for rows in (batch, difference))
            equal = same(mine, theirs, places)
            is_kept &= ~equal
            clashing |= (places >= 0) & ~equal
        if clashing.any():
            kinds = np.where(clashing, np.uint8(DiffKind.CONFLICT), batch.column("kind").to_numpy())
            batch = batch.set_column(batch.schema.get_field_index("kind"), DIFF_SCHEMA.field("kind"), pa.array(kinds))
        if is_kept.any():
            yield batch if is_kept.all() else batch.filter(pa.array(is_kept))


def _list_page(rows: RowsFrom, page: Page | None, *, prefix: str, amount: int | None) -> Iterator[Difference]:
    if page is None:
        return iter(())
    return islice(_fold(rows, page, len(prefix.encode())), check_amount(amount))


def _fold(rows: RowsFrom, page: Page, prefix_bytes: int) -> Iterator[Difference]:
    """Iterate over differences, with paths folded to common prefixes.

    Paths below a prefix that was returned are read over. After `SEEK_ROW_COUNT` of them, the reading starts again
    behind the prefix.
    """
    position: bytes | None = page.start
    behind = b""
    while position is not None:
        reading, position, inside = rows(position or None, page.end), None, 0
        for key, kind, left, right in _rows_of(reading):
            if key < behind:
                inside += 1
                if inside < SEEK_ROW_COUNT:
                    continue
                position = behind
                break
            position_of_mark = key.find(page.mark, prefix_bytes) if page.mark else -1
            if position_of_mark < 0:
                path = text_of(key)
                yield Difference(DiffKind(kind), path, _entry(left, path), _entry(right, path))
                continue
            common = key[: position_of_mark + len(page.mark)]
            yield Difference(DiffKind.CHANGED, text_of(common), is_prefix=True)
            behind, inside = prefix_range(common)[1] or common, 0


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, int, bytes | None, bytes | None]]:
    """Iterate over rows of `DIFF_SCHEMA`, converted in chunks, so that a caller that stops early converts few."""
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROW_COUNT):
            columns = (column.to_pylist() for column in batch.slice(start, _CHUNK_ROW_COUNT).columns)
            yield from zip(*columns, strict=True)


def _entry(value: bytes | None, path: str) -> Entry | None:
    return None if value is None else decode_entry(value, where=path)
