"""What every side of the benchmark of Spark SQL asks: statements and filters, the same for lakebed and its peers.

Imports nothing, for peers run in environments of their own.
"""

from __future__ import annotations

COLUMNS = "id BIGINT NOT NULL, a INT, v DOUBLE, s STRING"
AGGREGATES = ("count(*)", "sum(a)", "sum(v)", "max(s)")
LOOKUP_COUNT = 10
"""Statements of one sample of look-ups."""

FILTERS = {
    "key": "id >= 1000 AND id < 11000",
    "other": "a < 10 AND v < 0.5",
    "absent": "a < 0",
}
"""Filters of a read that merges: a range of the key, two other columns (about 0.5 % of the rows), and a value that no
row has."""


def merge_into(table: str, updates: str) -> str:
    """An upsert of the rows of a view, as a MERGE."""
    return (
        f"MERGE INTO {table} AS t USING {updates} AS u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def spread(row_count: int, count: int) -> list[int]:
    """So many ids of rows, far apart and in no order."""
    return [(number * 7_368_787 + 13) % row_count for number in range(count)]
