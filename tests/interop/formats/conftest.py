"""Fixtures: the libraries of the other formats, a lake, and rows of every type that all formats have."""

from __future__ import annotations

import datetime
import decimal
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.lake.lake import Lake
from worlds.required import miss

MISSING = [name for name in ("deltalake", "pyiceberg", "sqlalchemy") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Skip where the libraries are not installed; continuous integration has them."""
    if MISSING:
        miss(f"{', '.join(MISSING)} not installed: run `make test`, which installs the extras delta and iceberg")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return lakebed.open(tmp_path / "lake")


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("p", pa.string()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("big", pa.decimal128(30, 4)),
        ("yes", pa.bool_()),
        ("raw", pa.binary()),
        ("s", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("i", pa.int32()),
    ]
)


@pytest.fixture
def rows() -> Callable[[int, int], pa.Table]:
    """Rows of a range of ids: nulls, NaN, both zeros, negative and large values, texts to escape, nested values."""
    started = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)

    def make(start: int, end: int) -> pa.Table:
        every = range(start, end)
        columns = {
            "id": list(every),
            "p": [("a", "b/c=ü %", None)[i % 3] for i in every],
            "d": [None if i % 5 == 0 else datetime.date(1900, 1, 1) + datetime.timedelta(days=997 * i) for i in every],
            "at": [(started + datetime.timedelta(hours=7 * i)).replace(tzinfo=datetime.UTC) for i in every],
            "local": [None if i % 7 == 0 else started + datetime.timedelta(seconds=i) for i in every],
            "x": [(1.5, float("nan"), None, -0.0, 0.0, float("-inf"), 1e300)[i % 7] for i in every],
            "f": [(float("nan"), -2.5, None)[i % 3] for i in every],
            "price": [None if i % 9 == 0 else decimal.Decimal(i - 50).scaleb(-2) for i in every],
            "big": [decimal.Decimal(10**25 + i).scaleb(-4) for i in every],
            "yes": [(True, False, None)[i % 3] for i in every],
            "raw": [None if i % 4 == 0 else bytes([i % 256, 0xFF, 0]) for i in every],
            "s": [None if i % 4 == 0 else {"a": i, "b": ["x", None][: i % 3]} for i in every],
            "m": [None if i % 6 == 0 else [("k", i), ("l", None)] for i in every],
            "i": [i - 2**31 for i in every],
        }
        return pa.table(columns, schema=SCHEMA)

    return make


@pytest.fixture
def plain() -> Callable[[pa.Table], list[str]]:
    """Rows as sorted texts: NaN equals itself, names of UTC do not matter."""

    def sorted_texts(found: pa.Table) -> list[str]:
        return sorted(repr(row).replace("Etc/UTC", "UTC") for row in found.to_pylist())

    return sorted_texts
