"""Differences as people page through them: of two references, or of a branch and its head; with common prefixes.

Owns: which two metaranges are compared, and folding. Invariants: pages of any size, one behind another, are one
listing; what lies below a common prefix is sought past, not read through. Does not know: how metaranges are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, get_args

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.repo.branches import load_branch
from lakebed.repo.commits import load_commit, merge_base
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.entry import decode_entry
from lakebed.repo.home import Home
from lakebed.repo.key_value.port import KeyValueSnapshot
from lakebed.repo.model import Difference, DiffKind, MetarangeRef
from lakebed.repo.names import check_prefix, parse_reference
from lakebed.repo.refs import resolve
from lakebed.repo.rows import prefix_range
from lakebed.repo.staging.uncommitted import uncommitted

__all__ = ["DiffScope", "diff_refs", "diff_uncommitted"]

DiffScope = Literal["three_dot", "two_dot"]
"""``three_dot``: what the right side changed since the merge base. ``two_dot``: how the right side differs from the
left."""

_Rows = Callable[[bytes | None, bytes | None], Iterator[pa.RecordBatch]]

_CHUNK_ROW_COUNT: Final = 256


def diff_refs(
    home: Home,
    left: str,
    right: str,
    *,
    kind: DiffScope = "three_dot",
    prefix: str = "",
    after: str = "",
    delimiter: str = "",
    amount: int | None = None,
) -> Iterator[Difference]:
    """How two references differ, in the order of paths' bytes, lazily; only what is committed counts.

    Args:
        kind: three_dot: what `right` changed since the merge base; two_dot: from `left` to `right`.
        prefix: only paths that begin so.
        after: only what sorts behind this; the last path of a page, to go on with the next.
        delimiter: fold paths that hold it behind the prefix into one common prefix, up to and with it.
        amount: at most so many; None: all.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: a reference, path or amount cannot be.
        Corruption: something stored is damaged.
    Cost: the ranges in which the two differ; about 3 us a path.
    """
    if kind not in get_args(DiffScope):
        raise InvalidRequest(
            f"A difference is three_dot or two_dot, and {kind!r} was asked for.", kind="invalid_diff_kind"
        )
    with home.key_value.snapshot() as snapshot:
        before = _committed(home, left, snapshot=snapshot)
        after_side = _committed(home, right, snapshot=snapshot)
        start, end = before[1], after_side[1]
        if kind == "three_dot":
            base = merge_base(home, before[0], after_side[0], snapshot=snapshot)
            start = home.committed.empty if base is None else load_commit(home, base, snapshot=snapshot).metarange

    def rows(first: bytes | None, last: bytes | None) -> Iterator[pa.RecordBatch]:
        return diff_metaranges(home.committed, start, end, start=first, end=last)

    return _listed(rows, prefix=prefix, after=after, delimiter=delimiter, amount=amount)


def _committed(home: Home, text: str, *, snapshot: KeyValueSnapshot) -> tuple[str, MetarangeRef]:
    if parse_reference(text).mode == "$":
        raise InvalidRequest(
            f"{text!r} asks for what is staged, and differences of references are of what is committed: leave out the "
            "$, or ask the branch for its uncommitted differences.",
            kind="invalid_reference",
            reference=text,
        )
    resolved = resolve(home, text, snapshot=snapshot)
    return resolved.commit_id, resolved.commit.metarange


def diff_uncommitted(
    home: Home, branch: str, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int | None = None
) -> Iterator[Difference]:
    """How what a branch shows differs from its head, in the order of paths' bytes, lazily, of one moment.

    Args: as `diff_refs`.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: a name, path or amount cannot be.
        Corruption: something stored is damaged.
    Cost: 1 snapshot, 1 scan a token; see `lakebed.repo.staging.uncommitted.uncommitted`.
    """
    check_prefix(prefix)
    snapshot = home.key_value.snapshot()
    try:
        record, _ = load_branch(home, branch, snapshot=snapshot)
    except BaseException:
        snapshot.close()
        raise

    def rows(first: bytes | None, last: bytes | None) -> Iterator[pa.RecordBatch]:
        return uncommitted(home, snapshot, record, start=first, end=last)

    def closing() -> Iterator[Difference]:
        with snapshot:
            yield from _listed(rows, prefix=prefix, after=after, delimiter=delimiter, amount=amount)

    return closing()


def _listed(rows: _Rows, *, prefix: str, after: str, delimiter: str, amount: int | None) -> Iterator[Difference]:
    if amount is not None and amount < 0:
        raise InvalidRequest(f"A page has 0 or more lines, and {amount} were asked for.", kind="invalid_amount")
    start, end = prefix_range(check_prefix(prefix))
    if after:
        behind = check_prefix(after)
        mark = after.find(delimiter, len(prefix)) if delimiter and after.startswith(prefix) else -1
        # A common prefix that `after` is, or lies in, was listed before.
        passed = behind + b"\0" if mark < 0 else prefix_range(check_prefix(after[: mark + len(delimiter)]))[1]
        if passed is None:
            return iter(())
        start = max(start, passed)
    if end is not None and start >= end:
        return iter(())
    found = _folded(rows, start, end, prefix=prefix, delimiter=delimiter)
    return found if amount is None else islice(found, amount)


def _folded(rows: _Rows, start: bytes, end: bytes | None, *, prefix: str, delimiter: str) -> Iterator[Difference]:
    position: bytes | None = start
    while position is not None:
        reading, position = rows(position or None, end), None
        for one in _decoded(reading):
            at = one.path.find(delimiter, len(prefix)) if delimiter else -1
            if at < 0:
                yield one
                continue
            folder = one.path[: at + len(delimiter)]
            yield Difference(DiffKind.CHANGED, folder, is_prefix=True)
            position = prefix_range(folder.encode())[1]
            break


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[Difference]:
    """Differences with entries, a chunk at a time: who stops early has decoded little."""
    for batch in batches:
        for at in range(0, batch.num_rows, _CHUNK_ROW_COUNT):
            columns = (column.to_pylist() for column in batch.slice(at, _CHUNK_ROW_COUNT).columns)
            for key, kind, left, right in zip(*columns, strict=True):
                path = key.decode()
                yield Difference(
                    DiffKind(kind),
                    path,
                    None if left is None else decode_entry(left, where=path),
                    None if right is None else decode_entry(right, where=path),
                )
