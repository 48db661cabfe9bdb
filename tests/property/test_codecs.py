"""Every codec gives back what it was given, for any input."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.table.codec.binary_row import decode_rows, encode_plain_rows, encode_rows
from lakebed.table.codec.manifest import (
    decode_manifest,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
    entries_of_changes,
    files_of,
    fold,
)
from lakebed.table.codec.snapshot_json import decode_snapshot, decode_tag, encode_snapshot, encode_tag
from lakebed.table.codec.stats import EMPTY_STATS, compute_stats
from lakebed.table.files.bucket import bucket_of
from lakebed.table.model.model import BucketChange, DataField, DataFile, ManifestMeta, Snapshot, Stats
from lakebed.table.model.predicate import to_arrow
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.model.predicate_tree import And, Compare, In, IsNull, Not, Or, Predicate, StartsWith
from lakebed.table.model.types import arrow_type, json_of_type, parse_type, type_of_json
from lakebed.table.read.file_stats import may_match
from lakebed.table.schema.schema import decode_schema, encode_schema, new_schema
from lakebed.testing import seed_count
from worlds.binary_rows import encode_row

BRIEF = settings(max_examples=seed_count(12), deadline=None)
THOROUGH = settings(max_examples=seed_count(30), deadline=None)
INT64 = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, 2**62)
TEXT = st.text(max_size=30)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
MOMENT = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Decimals of a type."""
    bound = 10**digits - 1
    return st.integers(-bound, bound).map(lambda unscaled: Decimal(unscaled).scaleb(-scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-128, 127),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": INT64,
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "DECIMAL(18, 4)": decimals(18, 4),
    "DECIMAL(28, 6)": decimals(28, 6),
    "STRING": TEXT,
    "BYTES": st.binary(max_size=30),
    "DATE": st.dates(),
    "TIME(3)": st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
    "TIMESTAMP(3)": MOMENT.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    "TIMESTAMP(6)": MOMENT,
    "TIMESTAMP(9)": MOMENT,
}


@st.composite
def columns(draw: st.DrawFn, kinds: Sequence[str] = tuple(VALUES)) -> tuple[list[str], list[pa.Array]]:
    """Some columns of some rows, with nulls."""
    types = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=70 if draw(st.booleans()) else 4))
    count = draw(st.integers(1, 5))
    row = st.lists
    return types, [
        pa.array(draw(row(st.none() | VALUES[kind], min_size=count, max_size=count)), arrow_type(kind))
        for kind in types
    ]


@BRIEF
@given(columns())
def test_rows(drawn: tuple[list[str], list[pa.Array]]) -> None:
    """Rows of any columns decode to them, one row at a time encodes the same, and their buckets agree."""
    types, arrays = drawn
    rows = encode_rows(arrays, types)
    assert all(result.equals(array) for result, array in zip(decode_rows(rows, types), arrays, strict=True))
    for index in range(len(rows)):
        single = [array.slice(index, 1) for array in arrays]
        assert encode_rows(single, types)[0] == rows[index]
    buckets = bucket_of(arrays, types, bucket_count=7)
    alone = [
        int(bucket_of([array.slice(row, 1) for array in arrays], types, bucket_count=7)[0]) for row in range(len(rows))
    ]
    assert buckets.tolist() == alone
    assert ((buckets >= 0) & (buckets < 7)).all()


PLAIN = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES")


@BRIEF
@given(columns(PLAIN), st.sampled_from(sorted(VALUES.keys() - set(PLAIN))))
def test_rows_of_plain_values(drawn: tuple[list[str], list[pa.Array]], other: str) -> None:
    """Rows that are encoded from Python's values have the bytes of those that are encoded from columns."""
    types, arrays = drawn
    count = len(arrays[0])
    rows = list(zip(*(array.to_pylist() for array in arrays), strict=True))
    assert encode_plain_rows(rows, types) == encode_rows(arrays, types).to_pylist()
    unknown = [(*row, None) for row in rows]
    nulls = pa.nulls(count, arrow_type(other))
    assert encode_plain_rows(unknown, [*types, other]) == encode_rows([*arrays, nulls], [*types, other]).to_pylist()
    assert encode_plain_rows([*unknown, (*rows[0], object())], [*types, other]) is None


STATS = st.builds(
    Stats,
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.none() | st.lists(st.none() | INT64, max_size=4).map(tuple),
)
NAMES = st.lists(TEXT, max_size=3).map(tuple)
FILES = st.builds(
    DataFile,
    file_name=TEXT,
    file_size=INT64,
    row_count=INT64,
    min_key=st.binary(max_size=20),
    max_key=st.binary(max_size=20),
    key_stats=STATS,
    value_stats=STATS,
    min_sequence_number=INT64,
    max_sequence_number=INT64,
    schema_id=INT64,
    level=st.integers(-(2**31), 2**31 - 1),
    extra_files=NAMES,
    creation_time_ms=st.none() | INT64,
    delete_row_count=st.none() | INT64,
    embedded_index=st.none() | st.binary(max_size=10),
    file_source=st.none() | st.sampled_from([0, 1]),
    value_stats_cols=st.none() | NAMES,
    external_path=st.none() | TEXT,
    first_row_id=st.none() | INT64,
    write_cols=st.none() | NAMES,
    commit_snapshot=st.none() | NATURAL,
)


@BRIEF
@given(st.lists(st.tuples(st.booleans(), FILES), max_size=6), st.none() | NATURAL)
def test_manifests(drawn: list[tuple[bool, DataFile]], added_snapshot: int | None) -> None:
    """A manifest gives back every entry; only the commit snapshot is filled in, by its rules."""
    changes = [
        BucketChange(b"p", 0, 1, added=(file,) if is_add else (), deleted=() if is_add else (file,))
        for is_add, file in drawn
    ]
    entries = entries_of_changes(changes)
    result = decode_manifest(encode_manifest(entries), path="m", added_snapshot=added_snapshot)
    assert result.drop(["commit_snapshot"]).equals(entries.drop(["commit_snapshot"]))
    inherited = -1 if added_snapshot is None else added_snapshot
    expected = [
        (inherited if is_add else -1) if file.commit_snapshot is None else file.commit_snapshot
        for is_add, file in drawn
    ]
    assert [file.commit_snapshot for file in files_of(result)] == expected


METAS = st.builds(ManifestMeta, TEXT, NATURAL, NATURAL, NATURAL, STATS, NATURAL, added_snapshot=st.none() | NATURAL)


@BRIEF
@given(st.lists(METAS, max_size=5))
def test_manifest_lists(metas: list[ManifestMeta]) -> None:
    """A manifest list gives back every manifest in order."""
    assert decode_manifest_list(encode_manifest_list(metas), path="l") == metas


@BRIEF
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.booleans()), max_size=12))
def test_fold(events: list[tuple[str, int, bool]]) -> None:
    """Folding agrees with a dictionary that gets the same changes."""
    template = DataFile("", 1, 1, b"", b"", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0, commit_snapshot=1)
    changes, alive, first = [], {}, {}
    for order, (name, level, is_add) in enumerate(events):
        values = {field: getattr(template, field) for field in template.__dataclass_fields__}
        file = DataFile(**(values | {"file_name": name, "level": level}))
        changes.append(BucketChange(b"", 0, 1, added=(file,) if is_add else (), deleted=() if is_add else (file,)))
        first.setdefault((name, level), is_add)
        alive[name, level] = (order, is_add)
    expected = sorted((order, key, is_add) for key, (order, is_add) in alive.items() if is_add or not first[key])
    folded = fold(entries_of_changes(changes))
    kinds, names, levels = (folded.column(name).to_pylist() for name in ("kind", "file_name", "level"))
    assert [((name, level), kind == 0) for kind, name, level in zip(kinds, names, levels, strict=True)] == [
        (key, is_add) for _, key, is_add in expected
    ]


SNAPSHOTS = st.builds(
    Snapshot,
    id=NATURAL,
    schema_id=NATURAL,
    base_manifest_list=TEXT,
    delta_manifest_list=TEXT,
    commit_user=TEXT,
    commit_identifier=INT64,
    commit_kind=st.sampled_from(["APPEND", "COMPACT", "OVERWRITE", "ANALYZE"]),
    time_ms=NATURAL,
    total_record_count=INT64,
    delta_record_count=INT64,
    uuid=st.none() | TEXT,
    base_manifest_list_size=st.none() | NATURAL,
    index_manifest=st.none() | TEXT,
    watermark=st.none() | INT64,
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
    next_row_id=st.none() | NATURAL,
)


@BRIEF
@given(SNAPSHOTS, st.integers(0, 4_102_444_800_000), st.integers(0, 10**12))
def test_snapshots_and_tags(snapshot: Snapshot, created_ms: int, retained_ms: int) -> None:
    """Snapshots and tags give back every member, lifetimes to the millisecond."""
    body = encode_snapshot(snapshot)
    assert decode_snapshot(body, path="p") == snapshot
    tag = decode_tag(encode_tag(body, create_time_ms=created_ms, lifetime_ms=retained_ms), name="t", path="p")
    assert (tag.snapshot, tag.create_time_ms, tag.lifetime_ms) == (snapshot, created_ms, retained_ms)


@BRIEF
@given(
    st.lists(st.sampled_from([*VALUES, "ARRAY<INT>", "MAP<STRING, DOUBLE>", "ROW<a@90: INT>"]), min_size=1, max_size=6)
)
def test_schemas(types: list[str]) -> None:
    """A schema gives back every column."""
    fields = [DataField(index, f"c{index}", kind.replace("@90", f"@{index + 90}")) for index, kind in enumerate(types)]
    schema = new_schema(fields, time_ms=5, comment="ü")
    assert decode_schema(encode_schema(schema), path="p") == schema
    assert all(type_of_json(json_of_type(parse_type(field.type))) == parse_type(field.type) for field in fields)


NUMBERS = st.none() | st.integers(-3, 3)
WORDS = st.none() | st.text("ab", max_size=20)
LEAVES = st.one_of(
    st.builds(Compare, st.just("n"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NUMBERS | st.just(0.5)),
    st.builds(Compare, st.just("f"), st.sampled_from(["=", "<>", "<", ">="]), st.integers(-3, 3)),
    st.builds(Compare, st.just("s"), st.sampled_from(["=", "<>", "<", ">="]), WORDS),
    st.builds(In, st.just("n"), st.lists(NUMBERS, max_size=3).map(tuple)),
    st.builds(In, st.just("s"), st.lists(WORDS, max_size=3).map(tuple)),
    st.builds(StartsWith, st.just("s"), st.text("ab", max_size=17)),
    st.builds(IsNull, st.sampled_from(["n", "s", "f"])),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.tuples(NUMBERS, WORDS, st.none() | st.sampled_from([-1.0, 0.0, 2.0, float("nan")])), min_size=1, max_size=4
)
PRUNED = new_schema(pa.schema([("n", pa.int32()), ("s", pa.string()), ("f", pa.float64())]), time_ms=0)


@THOROUGH
@given(st.lists(ROWS, min_size=1, max_size=4), PREDICATES)
def test_pruning_never_loses_a_row(files: list[list[Any]], predicate: Predicate) -> None:
    """A file that holds a matching row is never ruled out."""
    tables, changes = [], []
    for rows in files:
        kinds = (pa.int32(), pa.string(), pa.float64())
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        table = pa.table(arrays, names=["n", "s", "f"])
        stats = compute_stats(table, PRUNED.fields)
        file = DataFile(str(len(tables)), 1, len(rows), b"", b"", EMPTY_STATS, stats, 0, 0, 0, 0)
        tables.append(table)
        changes.append(BucketChange(encode_row([], []), 0, 1, added=(file,)))
    result = may_match(entries_of_changes(changes), predicate, schema=PRUNED, schema_of=lambda _: PRUNED)
    counts = np.array([table.filter(to_arrow(predicate, table.schema)).num_rows for table in tables])
    assert result[counts > 0].all()


@THOROUGH
@given(PREDICATES, ROWS)
def test_printed_filters_mean_the_same(predicate: Predicate, rows: list[Any]) -> None:
    """The text of a filter, parsed, keeps the same rows."""
    kinds = (pa.int32(), pa.string(), pa.float64())
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = pa.table(arrays, names=["n", "s", "f"])
    text = str(predicate)
    if "IN ()" in text:
        return
    again = parse_predicate(text)
    left, right = (table.filter(to_arrow(item, table.schema)) for item in (predicate, again))
    assert left.to_pydict().__repr__() == right.to_pydict().__repr__()
