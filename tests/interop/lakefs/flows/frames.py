"""Data frames: pandas, polars, DuckDB and pyarrow through lakefs-spec."""

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from lakefs_spec import LakeFSFileSystem


def _options(lake):
    return {"host": lake.endpoint, "username": lake.access_key, "password": lake.secret}


def _open(lake):
    return LakeFSFileSystem(**_options(lake), skip_instance_cache=True, use_listings_cache=False)


def _frame(start=0, count=1_000):
    numbers = range(start, start + count)
    return pd.DataFrame({"number": list(numbers), "name": [f"flight {number}" for number in numbers]})


def pandas_reads_and_writes(lake):
    """CSV, Parquet and JSON, by URL; each read gives what was written; a version is read by its reference."""
    made, options = lake.repository(), _options(lake)
    root, frame = f"lakefs://{made.id}/main", _frame()
    frame.to_csv(f"{root}/a.csv", index=False, storage_options=options)
    frame.to_parquet(f"{root}/a.parquet", storage_options=options)
    frame.to_json(f"{root}/a.json", orient="records", lines=True, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_csv(f"{root}/a.csv", storage_options=options), frame)
    pd.testing.assert_frame_equal(pd.read_parquet(f"{root}/a.parquet", storage_options=options), frame)
    pd.testing.assert_frame_equal(pd.read_json(f"{root}/a.json", lines=True, storage_options=options), frame)
    commit = made.branch("main").commit("frames")
    _frame(5).to_parquet(f"{root}/a.parquet", storage_options=options)
    old = pd.read_parquet(f"lakefs://{made.id}/{commit.id}/a.parquet", storage_options=options)
    pd.testing.assert_frame_equal(old, frame)
    some = pd.read_parquet(f"{root}/a.parquet", columns=["number"], storage_options=options)
    assert some["number"].tolist() == list(range(5, 1_005))


def polars_reads_and_writes(lake):
    """Through files that fsspec opens."""
    made, fs = lake.repository(), _open(lake)
    frame = pl.from_pandas(_frame())
    path = f"{made.id}/main/a.parquet"
    with fs.open(path, "wb") as file:
        frame.write_parquet(file)
    with fs.open(path, "rb") as file:
        assert pl.read_parquet(file).equals(frame)
    with fs.open(path, "rb") as file:
        assert pl.read_parquet(file, columns=["number"]).equals(frame.select("number"))
    with fs.open(f"{made.id}/main/a.csv", "wb") as file:
        frame.write_csv(file)
    with fs.open(f"{made.id}/main/a.csv", "rb") as file:
        assert pl.read_csv(file).equals(frame)


def duckdb_queries(lake):
    """SQL over Parquet files of a branch, by a registered file system; patterns too; and writes."""
    made, fs = lake.repository(), _open(lake)
    root = f"lakefs://{made.id}/main"
    for number in range(3):
        with fs.open(f"{root}/parts/{number}.parquet", "wb") as file:
            pq.write_table(pa.Table.from_pandas(_frame(number * 1_000)), file)
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        result = connection.execute(f"SELECT count(*), sum(number) FROM '{root}/parts/*.parquet'").fetchall()
        assert result == [(3_000, sum(range(3_000)))]
        result = connection.execute(f"SELECT name FROM '{root}/parts/1.parquet' WHERE number = 1500").fetchall()
        assert result == [("flight 1500",)]
        connection.execute(f"COPY (SELECT 42 AS answer) TO '{root}/answer.parquet' (FORMAT parquet)")
    with fs.open(f"{root}/answer.parquet", "rb") as file:
        assert pq.read_table(file).to_pylist() == [{"answer": 42}]


def pyarrow_reads_datasets(lake):
    """A partitioned dataset is written and read as one table, with only the parts that a filter needs."""
    made, fs = lake.repository(), _open(lake)
    table = pa.table({"day": [1, 1, 2, 2, 3], "value": [10, 11, 20, 21, 30]})
    path = f"{made.id}/main/dataset"
    ds.write_dataset(
        table, path, filesystem=fs, format="parquet", partitioning=["day"], existing_data_behavior="overwrite_or_ignore"
    )
    made.branch("main").commit("a dataset")
    result = ds.dataset(path, filesystem=fs, format="parquet", partitioning=["day"])
    assert len(result.files) == 3
    assert result.to_table().num_rows == 5
    assert sorted(result.to_table(filter=ds.field("day") == 2)["value"].to_pylist()) == [20, 21]


def frames_are_written_in_a_transaction(lake):
    """A frame written in a transaction appears with its merge."""
    made, fs = lake.repository(), _open(lake)
    with fs.transaction(made.id, "main") as transaction:
        with fs.open(f"{made.id}/{transaction.branch.id}/a.parquet", "wb", autocommit=True) as file:
            _frame().to_parquet(file)
        transaction.commit("a frame")
    url = f"lakefs://{made.id}/main/a.parquet"
    with fsspec.open(url, "rb", **_options(lake)) as file:
        assert len(pd.read_parquet(file)) == 1_000
