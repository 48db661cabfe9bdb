"""Law: reading a split whole and reading it in windows of any size both equal a dictionary fed with its rows.

The files are as any client might write them: a key may stand in one several times, sequence numbers are in no order.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.files.splits import merge_rank, sort_into_runs
from lakebed.table.model.model import DataFile, Split, Stats
from lakebed.table.model.row_kinds import ADD_KINDS
from lakebed.table.read.read import ReadPlan, merge_windows, read_split, read_split_table
from lakebed.table.schema.schema import new_schema
from lakebed.testing import seed_count
from worlds.binary_rows import encode_row

Row = tuple[str, int, int]
"""Key, sequence number, row kind. The value of a row is its sequence number and file."""

SCHEMA = new_schema(
    pa.schema([("k", pa.string()), ("v", pa.string())]), primary_keys=["k"], options={"bucket": "1"}, time_ms=0
)

row = st.tuples(st.sampled_from("abcdefgé"), st.integers(0, 30), st.sampled_from([0, 0, 2, 3]))
files_of_rows = st.lists(
    st.tuples(
        st.lists(row, min_size=1, max_size=12).map(lambda rows: sorted(rows, key=lambda row: row[0].encode())),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def written(store: ObjectStore, name: str, rows: list[Row], *, level: int, row_group_rows: int) -> DataFile:
    """A data file with these rows, as they stand."""
    table = pa.table({
        "_SEQUENCE_NUMBER": pa.array([number for _, number, _ in rows], pa.int64()),
        "_VALUE_KIND": pa.array([kind for _, _, kind in rows], pa.int8()),
        "k": [key for key, _, _ in rows],
        "v": [f"{name}.{position}" for position in range(len(rows))],
    })  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=row_group_rows)
    body = sink.getvalue()
    store.put(f"bucket-0/{name}", body)
    ends = [encode_row([key], ["STRING"]) for key in (rows[0][0], rows[-1][0])]
    return DataFile(
        file_name=name,
        file_size=body.size,
        row_count=len(rows),
        min_key=ends[0],
        max_key=ends[1],
        key_stats=Stats(*ends, (0,)),
        value_stats=Stats(EMPTY_ROW, EMPTY_ROW, ()),
        min_sequence_number=min(number for _, number, _ in rows),
        max_sequence_number=max(number for _, number, _ in rows),
        schema_id=0,
        level=level,
        delete_row_count=0,
        commit_snapshot=-1,
    )


@settings(deadline=None, max_examples=seed_count(15))
@given(files_of_rows, st.integers(1, 5), st.sampled_from([1, 40, 300, 2**20]))
@example([([("a", 9, 0), ("a", 1, 0)], False)], 1, 1)
@example([([("a", 1, 0), ("a", 9, 3), ("b", 2, 0)], False), ([("a", 5, 0), ("b", 1, 0)], False)], 1, 1)
def test_whole_and_windowed_merges_equal_a_dictionary(
    files: list[tuple[list[Row], bool]], row_group_rows: int, window_bytes: int
) -> None:
    """Of each key the row with the highest sequence number survives, of equal ones the later; deletes do not show."""
    store = open_store(f"memory://merge-paths-{random.getrandbits(64)}")
    bottom = next((position for position, (_, is_low) in enumerate(files) if is_low), None)
    described = [
        written(store, f"f{i}", rows, level=5 if i == bottom else 0, row_group_rows=row_group_rows)
        for i, (rows, _) in enumerate(files)
    ]
    rows_of = {file.file_name: rows for file, (rows, _) in zip(described, files, strict=True)}
    ordered = tuple(sorted(described, key=merge_rank))
    split = Split(EMPTY_ROW, {}, 0, "bucket-0", ordered, needs_merge=True, schema_id=0, row_count=0)
    newest: dict[str, tuple[int, int, str]] = {}
    for run in sort_into_runs(ordered, schema=SCHEMA):
        for file in run:
            for position, (key, number, kind) in enumerate(rows_of[file.file_name]):
                if number >= newest.get(key, (-1, 0, ""))[0]:
                    newest[key] = (number, kind, f"{file.file_name}.{position}")
    expected = {key: value for key, (_, kind, value) in newest.items() if kind in ADD_KINDS}

    plan = ReadPlan(schema=SCHEMA, schemas={0: SCHEMA}, columns=("k", "v"), window_bytes=window_bytes)
    whole = read_split_table(store, split, plan=plan)
    windowed = pa.Table.from_batches(read_split(store, split, plan=plan), schema=whole.schema)
    in_order = sorted(expected.items(), key=lambda item: item[0].encode())
    assert sorted(pairs(whole), key=lambda item: item[0].encode()) == in_order
    assert pairs(windowed) == in_order
    kept = merge_windows(store, split, plan=plan, fields=SCHEMA.fields, keep_deletes=True)
    assert sum(window.num_rows for window in kept) == len(newest)


def pairs(rows: pa.Table) -> list[tuple[str, str]]:
    """(key, value) of each row, in order."""
    return list(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
