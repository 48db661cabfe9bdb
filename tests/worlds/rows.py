"""Rows of one key, as tests read them."""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.lsm.model import Row
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.resolve import resolve_row


def resolve_rows(rows: Sequence[Row], *, now_ms: int, operator: MergeOperator | None) -> bytes | None:
    """The value that one key reads as; None when it is absent. As `resolve_row`."""
    row = resolve_row(rows, now_ms=now_ms, operator=operator)
    return None if row is None else row.value
