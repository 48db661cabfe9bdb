"""Engines with readers of their own over a server's Iceberg catalog: their rows are lakebed's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Table
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

pl = pytest.importorskip("polars")
catalogs = pytest.importorskip("pyiceberg.catalog")

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("v", pa.float64())])


def rows_of(first: int, count: int) -> pa.Table:
    """Rows of consecutive ids on two days and none."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [("a b", "ü", None)[i % 3] for i in ids], "v": [i / 4 for i in ids]}, ROWS)


def plain(rows: Any) -> list[Any]:
    """Rows without order."""
    return sorted((row["id"], row["day"], row["v"]) for row in rows.to_dicts())


def ours(table: Table, version: int | str | None = None) -> list[Any]:
    """Rows that lakebed reads."""
    return sorted((row["id"], row["day"], row["v"]) for row in table.read(version=version).to_pylist())


def test_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars reads with its own reader of Parquet: partitions, a rename, deleted files, a tag, a filter."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = lakebed.open(str(tmp_path / "lake")).create_table("db.t", ROWS, partition_keys=["day"])
    table.append(rows_of(0, 60))
    tag = table.create_tag("month-06")
    table.append(rows_of(60, 30))
    table.delete("day = 'ü'")
    table.rename_column("v", "w")
    table.append(rows_of(100, 6).rename_columns(["id", "day", "w"]))
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        token = f"{started.access_key}.{started.secret}"
        with catalogs.load_catalog(
            "lake", type="rest", uri=f"{started.endpoint}/iceberg", warehouse="lake", token=token
        ) as catalog:
            loaded = catalog.load_table("db.t")
        newest = pl.scan_iceberg(loaded, reader_override="native").rename({"w": "v"})
        renamed = table.read().rename_columns(["id", "day", "v"])
        assert plain(newest.collect()) == sorted((row["id"], row["day"], row["v"]) for row in renamed.to_pylist())
        assert plain(newest.filter(pl.col("id") >= 88).collect()) == [
            row for row in plain(newest.collect()) if row[0] >= 88
        ]
        tagged = pl.scan_iceberg(loaded, snapshot_id=tag.snapshot.id, reader_override="native")
        assert plain(tagged.collect()) == ours(table, "month-06")
