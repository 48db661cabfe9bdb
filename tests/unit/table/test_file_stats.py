"""Pruning: False means no row matches, through nulls, shortened bounds and schema changes."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.codec.stats import EMPTY_STATS, compute_stats
from lakebed.table.model.model import BucketChange, DataFile, Stats, TableSchema
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.read.file_stats import may_match
from lakebed.table.schema.schema import add_column, drop_column, new_schema, rename_column, widen_column
from worlds.binary_rows import encode_row

SCHEMA = new_schema(
    pa.schema([("dt", pa.string()), ("n", pa.int32()), ("s", pa.string()), ("f", pa.float64())]),
    partition_keys=["dt"],
    time_ms=0,
)


def entry(rows: pa.Table, *, schema: TableSchema = SCHEMA, dt: str | None = "x") -> pa.Table:
    """One file of some rows, as an entry."""
    stats = compute_stats(rows, schema.fields)
    file = DataFile("f", 1, rows.num_rows, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, stats, 0, 0, schema.id, 0)
    return entries_of_changes([BucketChange(encode_row([dt], ["STRING"]), 0, 1, added=(file,))])


def rows(n: list[int | None], s: list[str | None] | None = None, f: list[float | None] | None = None) -> pa.Table:
    """Rows of `SCHEMA`."""
    texts = ["t"] * len(n) if s is None else s
    floats = [0.0] * len(n) if f is None else f
    return pa.table(
        {
            "dt": ["x"] * len(n),
            "n": pa.array(n, pa.int32()),
            "s": pa.array(texts, pa.string()),
            "f": pa.array(floats, pa.float64()),
        }
    )


def verdict(entries: pa.Table, text: str, **arguments: object) -> list[bool]:
    """What may match."""
    schema = arguments.pop("schema", SCHEMA)
    schemas = {SCHEMA.id: SCHEMA, schema.id: schema}  # type: ignore[attr-defined]
    outcome = may_match(entries, parse_predicate(text), schema=schema, schema_of=schemas.__getitem__, **arguments)  # type: ignore[arg-type]
    result: list[bool] = outcome.tolist()
    return result


def test_partitions_and_bounds() -> None:
    """Each file is judged by its partition and its own bounds."""
    entries = pa.concat_tables([entry(rows([1, 5])), entry(rows([6, 9]), dt="y"), entry(rows([None, None]), dt=None)])
    assert verdict(entries, "dt = 'x'") == [True, False, False]
    assert verdict(entries, "dt is null") == [False, False, True]
    assert verdict(entries, "n >= 6") == [False, True, False]
    assert verdict(entries, "n = 5 or dt = 'y'") == [True, True, False]
    assert verdict(entries, "n is null") == [False, False, True]
    assert verdict(entries, "not (n < 6)") == [False, True, False]
    assert verdict(entries, "n > 5.5") == [False, True, False]
    assert verdict(entries, "n = 99999999999") == [False, False, False]


def test_shortened_bounds_still_bound() -> None:
    """Texts longer than the statistics keep are not lost."""
    long = "a" * 16
    entries = entry(rows([1, 2], s=[long + "b", long + "z"]))
    assert verdict(entries, f"s = '{long}m'") == [True]
    assert verdict(entries, f"s > '{long}z'") == [True]
    assert verdict(entries, "s > 'b'") == [False]
    assert verdict(entries, f"s <> '{long}b'") == [True]
    top = entry(rows([1], s=["\U0010ffff" * 20]))
    assert verdict(top, "s > 'z'") == [True]


def test_nan_is_never_lost() -> None:
    """A file with NaN is not ruled out by the bounds of its other values."""
    entries = entry(rows([1, 2], f=[1.0, float("nan")]))
    assert verdict(entries, "f <> 1.0") == [True]
    assert verdict(entries, "not f > 0.5") == [True]


def test_schema_changes() -> None:
    """A renamed column keeps its bounds, a widened one compares in its new type, a new one is null in old files."""
    entries = entry(rows([1, 5]))
    schema = add_column(widen_column(rename_column(SCHEMA, "n", "number"), "number", "BIGINT"), "n", "INT")
    assert verdict(entries, "number > 5", schema=schema) == [False]
    assert verdict(entries, "number = 5", schema=schema) == [True]
    assert verdict(entries, "n = 5", schema=schema) == [False]
    assert verdict(entries, "n is null", schema=schema) == [True]
    again = add_column(drop_column(SCHEMA, "s"), "s", "STRING")
    assert verdict(entries, "s = 't'", schema=again) == [False]


def test_absent_statistics_prove_nothing() -> None:
    """Files without statistics, with some, or with statistics of another form are kept."""
    whole = entry(rows([1, 5]))

    def with_file(**members: object) -> pa.Table:
        file = DataFile("f", 1, 2, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0)
        changed = dataclasses.replace(file, **members)  # type: ignore[arg-type]
        return entries_of_changes([BucketChange(encode_row(["x"], ["STRING"]), 0, 1, added=(changed,))])

    some = Stats(encode_row([1], ["INT"]), encode_row([5], ["INT"]), (0,))
    entries = pa.concat_tables(
        [
            whole,
            with_file(),
            with_file(value_stats_cols=()),
            with_file(value_stats=some, value_stats_cols=("n",)),
            with_file(value_stats=dataclasses.replace(some, null_counts=None), value_stats_cols=("n",)),
        ]
    )
    assert verdict(entries, "n > 5") == [False, True, True, False, False]
    assert verdict(entries, "n is null") == [False, True, True, False, True]
    assert verdict(entries, "n > 5", stats_columns=["s"]) == [True] * 5
    assert verdict(entries, "dt = 'q'", stats_columns=[]) == [False] * 5


def test_key_statistics() -> None:
    """Files of primary-key tables are judged by their key statistics."""
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.int64())]), primary_keys=["k"], time_ms=0)
    low, high = encode_row([3], ["BIGINT"]), encode_row([7], ["BIGINT"])
    file = DataFile("f", 1, 5, low, high, Stats(low, high, (0,)), EMPTY_STATS, 0, 0, 0, 0, value_stats_cols=())
    entries = entries_of_changes([BucketChange(EMPTY_ROW, 0, 1, added=(file,))])
    assert verdict(entries, "k = 8", schema=schema) == [False]
    assert verdict(entries, "k = 7 and v = 1", schema=schema) == [True]
