"""Law: a read with a predicate, whatever was pruned, merged or compacted, equals filtering the rows of a model."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakebed.objects.open import open_store
from lakebed.table.table import Table
from worlds.nasty import NASTY, random_predicate, truth

Row = dict[str, Any]

SCHEMA = pa.schema([
    ("p", pa.string()), ("k", pa.int64()), ("v", pa.int32()), ("s", pa.string()), ("f", pa.float64())
])  # fmt: skip

PREDICATES: dict[str, Callable[[Row], bool]] = {
    "v > 3": lambda r: r["v"] is not None and r["v"] > 3,
    "not (v > 3)": lambda r: r["v"] is not None and r["v"] <= 3,
    "v is null": lambda r: r["v"] is None,
    "v in (1, 2)": lambda r: r["v"] in (1, 2),
    "v between 2 and 4": lambda r: r["v"] is not None and 2 <= r["v"] <= 4,
    "s <> 'b'": lambda r: r["s"] is not None and r["s"] != "b",
    "s like 'b%'": lambda r: r["s"] is not None and r["s"].startswith("b"),
    "f > 0.5": lambda r: r["f"] is not None and r["f"] > 0.5,
    "not (f > 0.5)": lambda r: r["f"] is not None and not r["f"] > 0.5,
    "p is null": lambda r: r["p"] is None,
    "p <> 'x'": lambda r: r["p"] is not None and r["p"] != "x",
    "p = 'x' and k = 3": lambda r: r["p"] == "x" and r["k"] == 3,
    "k > 5 and v < 4": lambda r: r["k"] > 5 and r["v"] is not None and r["v"] < 4,
    "k = 3 or v = 2": lambda r: r["k"] == 3 or r["v"] == 2,
}


def some_rows(rng: random.Random) -> list[Row]:
    """A few rows of few keys, with nulls in every other column and NaN."""
    return [
        {
            "p": rng.choice([None, "x", "y"]),
            "k": rng.randint(0, 12),
            "v": rng.choice([None, 1, 2, 3, 4, 5]),
            "s": rng.choice([None, "a", "b", "bc"]),
            "f": rng.choice([None, float("nan"), 0.1, 0.9]),
        }
        for _ in range(rng.randint(1, 8))
    ]


def as_texts(rows: list[Row]) -> list[str]:
    """Rows in an order of their own, comparable although NaN is not equal to itself."""
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
@pytest.mark.parametrize("keyed", [True, False])
def test_predicates_equal_a_filter_of_the_model(seed: int, keyed: bool) -> None:
    """After any writes, deletes and compactions; `count` and streams agree with what is read at once."""
    rng = random.Random(f"{seed} {keyed}")
    shape: dict[str, Any] = {"primary_keys": ["k"], "options": {"bucket": "2"}} if keyed else {"partition_keys": ["p"]}
    table = Table.create(open_store(f"memory://where-{uuid.uuid4()}"), name="t", schema=SCHEMA, **shape)
    items: list[Row] = []
    for _ in range(rng.randint(1, 7)):
        new = some_rows(rng)
        if keyed:
            items = [row for row in items if row["k"] not in {item["k"] for item in new}]
        if keyed and rng.random() < 0.3:
            table.delete(keys=pa.table({"k": [row["k"] for row in new]}))
        else:
            table.write(pa.Table.from_pylist(new, schema=SCHEMA))
            items += list({row["k"]: row for row in new}.values()) if keyed else new
        if rng.random() < 0.3:
            table.compact(full=rng.random() < 0.5)
        if rng.random() < 0.2:
            text, matches = rng.choice(list(PREDICATES.items()))
            table.delete(text)
            items = [row for row in items if not matches(row)]
    for text, matches in PREDICATES.items():
        expected = [row for row in items if matches(row)]
        assert as_texts(table.read(where=text).to_pylist()) == as_texts(expected), text
        assert table.scan(where=text).count() == len(expected), text
        assert sum(batch.num_rows for batch in table.scan(where=text, columns=["s"]).to_batches()) == len(expected)


# ---- nasty values

NASTY_SCHEMA = pa.schema([("id", pa.int64()), *((name, column.kind) for name, column in NASTY.items())])


def nasty_table(rng: random.Random, *, keyed: bool) -> tuple[Table, list[Row]]:
    """A table of nasty rows in several files, some of several row groups, and its rows."""
    shape: dict[str, Any] = {"primary_keys": ["id"], "options": {"bucket": "1"}} if keyed else {}
    table = Table.create(open_store(f"memory://nasty-{uuid.uuid4()}"), name="t", schema=NASTY_SCHEMA, **shape)
    items: list[Row] = []
    for _ in range(5):
        new = [
            {"id": len(items) + number, **{name: rng.choice(column.values) for name, column in NASTY.items()}}
            for number in range(rng.randint(1, 6))
        ]
        columns = [column.array([row[name] for row in new]) for name, column in NASTY.items()]
        table.write(pa.table([pa.array([row["id"] for row in new]), *columns], schema=NASTY_SCHEMA))
        items += new
        if rng.random() < 0.4:
            table.compact(full=True)
    return table, items


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
@pytest.mark.parametrize("keyed", [True, False])
def test_nasty_values_equal_plain_python(seed: int, keyed: bool) -> None:
    """Extremes, NaN, both zeros, empty and unbounded texts, nanoseconds: every filter finds what plain Python finds."""
    rng = random.Random(f"nasty {seed} {keyed}")
    table, present = nasty_table(rng, keyed=keyed)
    for _ in range(80):
        where = random_predicate(rng)
        expected = sorted(row["id"] for row in present if truth(where, row) is True)
        assert sorted(table.read(where=where).column("id").to_pylist()) == expected, repr(where)


@pytest.mark.parametrize("seed", range(3))
def test_nasty_deletes_equal_plain_python(seed: int) -> None:
    """A delete takes exactly the rows for which the filter is true."""
    rng = random.Random(f"nasty delete {seed}")
    table, rows = nasty_table(rng, keyed=False)
    for _ in range(6):
        where = random_predicate(rng)
        table.delete(where)
        rows = [row for row in rows if truth(where, row) is not True]
        assert sorted(table.read().column("id").to_pylist()) == [row["id"] for row in rows], repr(where)
