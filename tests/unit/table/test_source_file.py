"""Filters on the key: few rows and bytes of a file are decoded and fetched, and no row that matches is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.files.data_file import FOOTER_BYTES
from lakebed.table.model.model import DataFile, Split, Stats, VectorPlace
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.model.types import arrow_schema
from lakebed.table.read import source_file
from lakebed.table.read.read import ReadPlan, read_split, read_split_table
from lakebed.table.read.vectors import encode_vectors
from lakebed.table.schema.schema import new_schema
from worlds.binary_rows import encode_row

ROW_COUNT = 9_000
GROUP_COUNT = 3
SCHEMA = new_schema(
    pa.schema([("k", pa.int64()), ("j", pa.string()), ("v", pa.string()), ("w", pa.int64())]),
    primary_keys=["k", "j"],
    options={"bucket": "1"},
    time_ms=0,
)
NEW_ROWS = range(5, ROW_COUNT, 701)
FILTERS = {
    "k = 4500": lambda k, j, v: k == 4_500,
    "k = 4501": lambda k, j, v: k == 4_501,
    "k >= 5990 and k < 6100": lambda k, j, v: 5_990 <= k < 6_100,
    "k >= 2900 and k < 12000": lambda k, j, v: 2_900 <= k < 12_000,
    "k in (2, 3610, 17998)": lambda k, j, v: k in (2, 3_610, 17_998),
    "j = 'a3' and k > 10000": lambda k, j, v: j == "a3" and k > 10_000,
    "k < 4000 and v = 'v7'": lambda k, j, v: k < 4_000 and v == "v7",
    "k < 70 and v = 'new'": lambda k, j, v: k < 70 and v == "new",
    "j = 'a9'": lambda k, j, v: False,
    "k < 0": lambda k, j, v: False,
}
"""Each filter, and what it means. Keys are even numbers."""

Rows = dict[tuple[int, str], tuple[str, int]]


def columns_of(numbers: range, *, value: str = "") -> pa.Table:
    """The rows with these numbers."""
    k = np.array(numbers) * 2
    return pa.table({
        "k": pa.array(k),
        "j": [f"a{number % 5}" for number in numbers],
        "v": [value or f"v{number % 11}" for number in numbers],
        "w": pa.array(k * 3),
    })  # fmt: skip


def put(store: ObjectStore, name: str, rows: pa.Table, *, first: int) -> DataFile:
    """A file of sorted rows."""
    numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
    stored = rows.append_column("_SEQUENCE_NUMBER", numbers)
    stored = stored.append_column("_VALUE_KIND", pa.array(np.zeros(rows.num_rows, np.int8)))
    sink = pa.BufferOutputStream()
    pq.write_table(stored, sink, row_group_size=-(-rows.num_rows // GROUP_COUNT))
    body = sink.getvalue()
    store.put(f"bucket-0/{name}", body)
    ends = [encode_row([rows["k"][at].as_py(), rows["j"][at].as_py()], ["BIGINT", "STRING"]) for at in (0, -1)]
    return DataFile(
        file_name=name,
        file_size=body.size,
        row_count=rows.num_rows,
        min_key=ends[0],
        max_key=ends[1],
        key_stats=Stats(*ends, (0, 0)),
        value_stats=Stats(EMPTY_ROW, EMPTY_ROW, ()),
        min_sequence_number=first,
        max_sequence_number=first + rows.num_rows - 1,
        schema_id=0,
        level=5,
        delete_row_count=0,
        commit_snapshot=-1,
    )


def split_of(store: ObjectStore, kind: str, *, row_count: int = ROW_COUNT) -> tuple[Split, Rows]:
    """A split that is merged, needs no merge, or has deleted rows; and its rows."""
    rows = columns_of(range(row_count))
    files = (put(store, "old", rows, first=0),)
    result = dict(zip(zip(*rows.select(["k", "j"]).to_pydict().values(), strict=True),
                     zip(*rows.select(["v", "w"]).to_pydict().values(), strict=True), strict=True))  # fmt: skip
    vectors = {}
    if kind == "merged":
        new = columns_of(NEW_ROWS, value="new")
        files = (files[0], replace(put(store, "new", new, first=row_count), level=0))
        result |= {(number * 2, f"a{number % 5}"): ("new", number * 6) for number in NEW_ROWS}
    if kind == "deleted":
        gone = np.arange(0, row_count, 3)
        body, (at,) = encode_vectors({"old": gone})
        store.put("index/vectors", body)
        vectors = {"old": VectorPlace("index/vectors", at.offset, at.length, at.cardinality, len(body))}
        for number in gone.tolist():
            del result[number * 2, f"a{number % 5}"]
    count = sum(file.row_count for file in files)
    split = Split(EMPTY_ROW, {}, 0, "bucket-0", files, needs_merge=kind == "merged", schema_id=0, row_count=count)
    return replace(split, vectors=vectors), result


def plan_of(where: str, columns: tuple[str, ...] = ("k", "j", "v", "w")) -> ReadPlan:
    return ReadPlan(
        schema=SCHEMA,
        schemas={0: SCHEMA},
        columns=columns,
        where=bind(parse_predicate(where), arrow_schema(SCHEMA.fields)),
    )


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("kind", ["merged", "alone", "deleted"])
def test_filters_on_the_key_equal_a_dictionary(
    kind: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whole, in windows and by two threads, from files that are held and from files that are fetched in pieces."""
    monkeypatch.setattr(source_file, "KEY_READ_ROWS", 500)
    if in_pieces:
        monkeypatch.setattr(source_file, "KEY_READ_BYTES_MAX", 1_000)
    store = open_store(f"memory://{request.node.name}")
    split, rows = split_of(store, kind)
    for where, is_true in FILTERS.items():
        expected = {key: value for key, value in rows.items() if is_true(*key, value[0])}
        for columns in (("k", "j", "v", "w"), ("w",), ("k", "j")):
            plan = plan_of(where, columns)
            answers = [read_split_table(store, split, plan=plan, threads=threads) for threads in (False, True)]
            answers.append(pa.Table.from_batches(read_split(store, split, plan=plan), answers[0].schema))
            wanted = sorted(
                tuple(dict(zip(("k", "j", "v", "w"), (*key, *value), strict=True))[name] for name in columns)
                for key, value in expected.items()
            )
            for answer in answers:
                got = list(zip(*(answer.column(name).to_pylist() for name in columns), strict=True))
                assert sorted(got) == wanted, (where, columns)


def test_a_key_costs_few_bytes_of_a_large_file(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Of a file above the limit its end and one row group are fetched; of a key that no row has, its keys alone."""
    store = open_store(f"memory://{request.node.name}")
    split, _ = split_of(store, "alone", row_count=90_000)
    size = split.files[0].file_size
    with store.count() as whole:
        assert read_split_table(store, split, plan=plan_of("k = 12000")).num_rows == 1
    assert (whole.get, whole.bytes_read) == (1, size)
    monkeypatch.setattr(source_file, "KEY_READ_BYTES_MAX", size - 1)
    with store.count() as requests:
        assert read_split_table(store, split, plan=plan_of("k = 12000")).num_rows == 1
    with store.count() as absent:
        assert read_split_table(store, split, plan=plan_of("k = 12001")).num_rows == 0
    assert (requests.head, requests.get) == (1, 3)
    assert requests.bytes_read < size * 0.45 + FOOTER_BYTES
    assert (absent.head, absent.get) == (1, 2)
    assert absent.bytes_read < requests.bytes_read
    everything = plan_of("k >= 0")
    with store.count() as all_rows:
        assert sum(batch.num_rows for batch in read_split(store, split, plan=everything)) == 90_000
    assert (all_rows.head, all_rows.get) == (1, 2)


def test_the_key_of_a_large_row_group_is_read_in_the_window(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A row group above the limit, as other writers make them, is decoded in parts, its key too."""
    store = open_store(f"memory://{request.node.name}")
    split, rows = split_of(store, "alone")
    monkeypatch.setattr(source_file, "KEY_READ_ROWS", 500)
    decoded: list[int] = []
    read = source_file.OpenDataFile.read

    def noted(self: source_file.OpenDataFile, **arguments: Any) -> pa.Table:
        result = read(self, **arguments)
        decoded.append(result.num_rows)
        return result

    monkeypatch.setattr(source_file.OpenDataFile, "read", noted)
    plan = plan_of("k = 4500")
    assert sum(batch.num_rows for batch in read_split(store, split, plan=plan)) == 1
    assert decoded == [ROW_COUNT // GROUP_COUNT]
    monkeypatch.setattr(source_file, "KEY_READ_GROUP_ROWS_MAX", ROW_COUNT // GROUP_COUNT - 1)
    assert sum(batch.num_rows for batch in read_split(store, split, plan=plan)) == 1
    assert len(decoded) == 1, "its key was decoded at once"
    assert (4_500, "a0") in rows
