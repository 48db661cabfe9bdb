"""Patterns of names in the Paimon interface: SQL's LIKE, judged by DuckDB."""

from __future__ import annotations

import random
import time

import duckdb
import pyarrow as pa

from lakebed.server.paimon.pages import pattern_of


def test_patterns_are_those_of_sql() -> None:
    """Random names and patterns match as in DuckDB."""
    rng = random.Random(7)
    names = ["".join(rng.choices("ab_%", k=rng.randrange(7))) for _ in range(3_000)]
    patterns = ["".join(rng.choices(["a", "b", "%", "_", r"\%", r"\_"], k=rng.randrange(1, 7))) for _ in names]
    rows = pa.table({"name": names, "pattern": patterns})
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        matches = connection.execute("SELECT name LIKE pattern ESCAPE '\\' FROM rows").fetchall()
    assert [pattern_of(pattern)(name) for name, pattern in zip(names, patterns, strict=True)] == [
        match for (match,) in matches
    ]
    assert pattern_of(None)("any")


def test_no_pattern_takes_long() -> None:
    """A pattern on which a backtracking search would hold the server for years costs a moment of its processor."""
    begin_s = time.process_time()
    assert not pattern_of("%a" * 1_000 + "%b")("a" * 2_000)
    assert time.process_time() - begin_s < 10
