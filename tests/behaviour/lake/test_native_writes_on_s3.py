"""Files that Spark's tasks wrote into a bucket, as the driver finds them there; no Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import open_lake
from lakebed.spark.tasks.native_writes import WrittenFile, take_over_files
from lakebed.table.rows.rows import commit_changes


def test_files_in_another_store_are_not_committed(s3_server: Any) -> None:
    """Hadoop's settings may name another endpoint, which has a bucket of the same name."""
    lake = open_lake(s3_server.url(), storage_options=s3_server.options)
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1]}), rows, store_schema=False)
    body = rows.getvalue().to_pybytes()
    footer = body[-8 - int.from_bytes(body[-8:-4], "little") : -8]
    path = "bucket-0/data-x-0.parquet"
    written = WrittenFile(path=path, bucket=0, size_bytes=len(body), closed_ms=7, footer=footer)
    with pytest.raises(InvalidRequest, match=r"wrote s3a://.*/bucket-0/data-x-0.parquet.*fs.s3a.endpoint"):
        take_over_files(table, [written], table.schema.id, starts_anew=False, partition={})
    table.store.put(path, body)
    commit_changes(table.context, take_over_files(table, [written], table.schema.id, starts_anew=False, partition={}))
    assert table.read()["id"].to_pylist() == [1]
