"""Manifests and lists: round trips, the rules of the commit snapshot, folding, damage."""

from __future__ import annotations

import dataclasses
import io
import random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.table.codec import avro
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import (
    ADD,
    DELETE,
    ENTRY_SCHEMA,
    decode_extended_list,
    decode_manifest,
    decode_manifest_list,
    decode_manifest_lists,
    decode_manifests,
    encode_manifest,
    encode_manifest_list,
    entries_of_changes,
    files_of,
    fold,
    live_after,
    manifest_meta,
    row_count_delta,
)
from lakebed.table.codec.manifest_merge import fold_run
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.model.model import BucketChange, DataField, DataFile, ManifestMeta, Stats, TableSchema
from worlds.binary_rows import encode_row

FILE = DataFile(
    "data-1.parquet",
    10,
    5,
    EMPTY_ROW,
    EMPTY_ROW,
    EMPTY_STATS,
    Stats(b"low", b"a rather long maximum", (1, None, 2**40)),
    -1,
    2**62,
    3,
    5,
    ("a", "bb"),
    creation_time_ms=-5,
    value_stats_cols=(),
    external_path="s3://elsewhere/ü",
    embedded_index=b"\0\1",
    commit_snapshot=4,
)
BARE = dataclasses.replace(
    FILE,
    file_name="data-2.parquet",
    value_stats=Stats(EMPTY_ROW, EMPTY_ROW, None),
    extra_files=(),
    value_stats_cols=None,
    external_path=None,
    embedded_index=None,
    commit_snapshot=None,
)


def changes(*, added: tuple[DataFile, ...] = (), deleted: tuple[DataFile, ...] = ()) -> pa.Table:
    """Entries of one bucket."""
    return entries_of_changes([BucketChange(EMPTY_ROW, 0, 1, added=added, deleted=deleted)])


def foreign(records: list[dict[str, Any]], *, without: tuple[str, ...] = (), codec: str = "deflate") -> bytes:
    """A manifest as another Avro library writes it, perhaps with fewer fields."""
    header = fastavro.block_reader(io.BytesIO(null_codec(encode_manifest(changes(added=(FILE,))))))
    writer_schema = header.writer_schema
    file_record = next(field["type"] for field in writer_schema["fields"] if field["name"] == "_FILE")
    file_record["fields"] = [field for field in file_record["fields"] if field["name"] not in without]
    out = io.BytesIO()
    fastavro.writer(out, writer_schema, records, codec=codec, sync_interval=200)
    return out.getvalue()


def null_codec(body: bytes) -> bytes:
    """The same container, uncompressed, for libraries without zstandard."""
    reader = avro.Cursor(body)
    header = avro.read_header(reader)
    counts, blocks = avro.read_blocks(reader, header)
    out = bytearray(avro.encode_header({"avro.schema": header.entries[b"avro.schema"]}) + header.sync)
    for count, block in zip(counts, blocks, strict=True):
        out += avro.encode_long(count) + avro.encode_long(len(block)) + block + header.sync
    return bytes(out)


def foreign_list(metas: list[ManifestMeta], *, codec: str = "deflate") -> bytes:
    """A manifest list as another Avro library writes it, in several blocks."""
    reader = fastavro.reader(io.BytesIO(null_codec(encode_manifest_list(metas))))
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, list(reader), codec=codec, sync_interval=100)
    return out.getvalue()


def records_of(entries: pa.Table) -> list[dict[str, Any]]:
    """The entries as another library reads them: our bytes are plain Avro."""
    return list(fastavro.reader(io.BytesIO(null_codec(encode_manifest(entries)))))


def test_round_trip() -> None:
    """Every field of every kind comes back, nulls and empty lists kept apart."""
    entries = changes(added=(FILE, BARE), deleted=(FILE,))
    result = decode_manifest(encode_manifest(entries), path="m", added_snapshot=9)
    assert result.schema.equals(ENTRY_SCHEMA)
    assert files_of(result) == [FILE, FILE, dataclasses.replace(BARE, commit_snapshot=9)]
    assert result.column("kind").to_pylist() == [DELETE, ADD, ADD]


def test_many_blocks() -> None:
    """A manifest of many blocks keeps every record in order."""
    entries = pa.concat_tables([changes(added=(FILE, BARE))] * 4000)
    body = encode_manifest(entries)
    assert body.count(avro.read_header(avro.Cursor(body)).sync) > 2
    result = decode_manifest(body, path="m", added_snapshot=4)
    assert result.column("file_name").equals(entries.column("file_name"))


@pytest.mark.parametrize("count", [1, avro.SMALL_COUNT_MAX, avro.SMALL_COUNT_MAX + 1, 3 * avro.SMALL_COUNT_MAX])
def test_few_and_many_are_written_alike(count: int) -> None:
    """Entries and lists of any number are what another library reads, each field at its place."""
    rng = random.Random(count)
    files = [dataclasses.replace(rng.choice((FILE, BARE)), file_name=f"f{number}") for number in range(count)]
    entries = pa.concat_tables(
        [changes(added=(file,)) if rng.random() < 0.5 else changes(deleted=(file,)) for file in files]
    )
    assert [row_of(record, added_snapshot=7) for record in records_of(entries)] == decode_manifest(
        encode_manifest(entries), path="m", added_snapshot=7
    ).to_pylist()
    metas = some_metas(0, count)
    body = encode_manifest_list(metas)
    assert decode_manifest_list(body, path="l") == metas
    records = list(fastavro.reader(io.BytesIO(null_codec(body))))
    assert [(record["_VERSION"], record["_FILE_NAME"], record["_ADDED_SNAPSHOT"]) for record in records] == [
        (2, meta.file_name, meta.added_snapshot) for meta in metas
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_manifest_is_described_by_what_it_holds(seed: int) -> None:
    """Its ADDs and DELETEs, their rows, and the least and greatest partition; NULL ones are counted."""
    rng = random.Random(seed)
    values = [rng.choice((None, 3, 5, 9)) for _ in range(rng.randrange(1, 8))]
    kinds = [rng.choice((ADD, DELETE)) for _ in values]
    row_counts = [rng.randrange(100) for _ in values]
    some = []
    for kind, value, row_count in zip(kinds, values, row_counts, strict=True):
        files = (dataclasses.replace(FILE, row_count=row_count),)
        named = {"added": files} if kind == ADD else {"deleted": files}
        some.append(BucketChange(encode_row([value], ["BIGINT"]), 0, 1, **named))
    entries = entries_of_changes(some)
    schema = TableSchema(4, (DataField(0, "p", "BIGINT"), DataField(1, "x", "BIGINT")), 1, partition_keys=("p",))
    meta = manifest_meta(entries, file_name="m", file_size=12, schema=schema)
    assert (meta.file_name, meta.file_size, meta.schema_id) == ("m", 12, 4)
    assert (meta.added_file_count, meta.deleted_file_count) == (kinds.count(ADD), kinds.count(DELETE))
    present = [value for value in values if value is not None]
    bounds = (min(present, default=None), max(present, default=None))
    assert [meta.partition_stats.min_values, meta.partition_stats.max_values] == [
        encode_row([value], ["BIGINT"]) for value in bounds
    ]
    # Distinct partitions are counted, so that NULL is one or none.
    assert meta.partition_stats.null_counts == (int(None in values),)
    signs = [1 if kind == ADD else -1 for kind in kinds]
    assert row_count_delta(entries) == sum(sign * rows for sign, rows in zip(signs, row_counts, strict=True))


def test_a_manifest_of_a_table_without_partitions_has_no_bounds() -> None:
    """As every client writes it."""
    schema = TableSchema(0, (DataField(0, "x", "BIGINT"),), 0)
    meta = manifest_meta(changes(added=(FILE, BARE)), file_name="m", file_size=1, schema=schema)
    assert meta == ManifestMeta("m", 1, 2, 0, Stats(EMPTY_ROW, EMPTY_ROW, ()), 0)


def test_empty() -> None:
    """No entries, no manifests: still files."""
    assert decode_manifest(encode_manifest(ENTRY_SCHEMA.empty_table()), path="m", added_snapshot=1).num_rows == 0
    assert decode_manifest_list(encode_manifest_list([]), path="l") == []


def test_plain_avro() -> None:
    """Another library reads our manifests; ours reads what it writes back, whatever the codec and block size."""
    entries = changes(added=(FILE, BARE) * 20, deleted=(FILE,))
    records = records_of(entries)
    assert records[1]["_FILE"]["_EXTRA_FILES"] == ["a", "bb"]
    for codec in ("null", "deflate"):
        result = decode_manifest(foreign(records, codec=codec), path="m", added_snapshot=9)
        assert result.equals(decode_manifest(encode_manifest(entries), path="m", added_snapshot=9))


def test_commit_snapshot_rules() -> None:
    """Inherited by ADDs only; -1 without the manifest's snapshot, and -1 for good without the field."""
    entries = changes(added=(BARE, FILE), deleted=(BARE,))

    def decoded(body: bytes, added_snapshot: int | None) -> list[int]:
        table = decode_manifest(body, path="m", added_snapshot=added_snapshot)
        return table.column("commit_snapshot").to_pylist()

    assert decoded(encode_manifest(entries), 9) == [-1, 9, 4]
    assert decoded(encode_manifest(entries), None) == [-1, -1, 4]
    without = foreign(records_of(entries), without=("_COMMIT_SNAPSHOT",))
    assert decoded(without, 9) == [-1, -1, -1]


def test_missing_optional_fields() -> None:
    """Files of older writers lack optional fields: null. A required field must be there."""
    records = records_of(changes(added=(FILE,)))
    entries = decode_manifest(foreign(records, without=("_WRITE_COLS", "_EXTERNAL_PATH")), path="m", added_snapshot=1)
    assert files_of(entries)[0] == dataclasses.replace(FILE, external_path=None)
    with pytest.raises(Corruption, match="_ROW_COUNT"):
        decode_manifest(foreign(records, without=("_ROW_COUNT",)), path="m", added_snapshot=1)


def test_unknown_version_and_kind() -> None:
    """Records of a newer version, or of an unknown kind, are named as such."""
    records = records_of(changes(added=(FILE,)))
    with pytest.raises(UnsupportedFormat, match="_VERSION 3"):
        decode_manifest(foreign([{**records[0], "_VERSION": 3}]), path="m", added_snapshot=1)
    with pytest.raises(UnsupportedFormat, match="kind"):
        decode_manifest(foreign([{**records[0], "_KIND": 2}]), path="m", added_snapshot=1)


def test_list_round_trip() -> None:
    """Manifest lists keep order, statistics and the snapshot that added each manifest."""
    metas = [
        ManifestMeta("manifest-1", 100, 1, 0, EMPTY_STATS, 0, None),
        ManifestMeta("manifest-2", 2**40, 5, 7, Stats(b"a", b"b", None), 2, 5),
    ]
    assert decode_manifest_list(encode_manifest_list(metas), path="l") == metas


def test_every_flipped_bit_is_found() -> None:
    """One flipped bit anywhere in a manifest is an error that names it, or harmless: never another answer."""
    body = encode_manifest(changes(added=(FILE, BARE)))
    expected = decode_manifest(body, path="manifest-x", added_snapshot=1)
    harmless = unnamed = 0
    for index in range(len(body)):
        damaged = bytearray(body)
        damaged[index] ^= 1 << index % 8
        try:
            entries = decode_manifest(bytes(damaged), path="manifest-x", added_snapshot=1)
        except (Corruption, UnsupportedFormat) as error:
            unnamed += "manifest-x" not in error.message
            continue
        # The name of lakebed's own header entry, which only says where records begin.
        assert entries.equals(expected)
        harmless += 1
    assert unnamed == 0
    assert harmless <= len(avro.LENGTHS_KEY) + 4


def test_every_truncation_is_found() -> None:
    """A manifest cut anywhere inside a block or its header is an error."""
    body = encode_manifest(changes(added=(FILE, BARE)))
    header_end = avro.read_header(avro.Cursor(body)).end
    for length in range(len(body)):
        if length == header_end:
            continue  # looks like an empty manifest: the size and counts in the list tell (see test_manifest_reader)
        with pytest.raises(Corruption):
            decode_manifest(body[:length], path="m", added_snapshot=1)


def test_foreign_damage_never_crashes() -> None:
    """Damage in a file without checksums is an error or another value, but never a raw exception."""
    body = foreign(records_of(changes(added=(FILE, BARE))), codec="null")
    rng = np.random.default_rng(5)
    for _ in range(1500):
        damaged = bytearray(body)
        for index in rng.integers(0, len(body), rng.integers(1, 4)):
            damaged[index] = rng.integers(0, 256)
        try:
            decode_manifest(bytes(damaged), path="m", added_snapshot=1)
        except (Corruption, UnsupportedFormat):
            continue


def test_fold() -> None:
    """ADDs that were taken back go; a later ADD comes back; a DELETE of something earlier stays."""
    item, two, three = (dataclasses.replace(FILE, file_name=name) for name in ("one", "two", "three"))
    add, drop = (lambda file: changes(added=(file,))), (lambda file: changes(deleted=(file,)))
    entries = pa.concat_tables([add(item), add(two), drop(item), drop(three), drop(two), add(two)])
    folded = fold(entries)
    assert list(zip(folded.column("kind").to_pylist(), folded.column("file_name").to_pylist(), strict=True)) == [
        (DELETE, "three"),
        (ADD, "two"),
    ]


def test_fold_tells_levels_apart() -> None:
    """An upgrade deletes a file at one level and adds it at another: it lives."""
    upgraded = dataclasses.replace(FILE, level=6)
    folded = fold(pa.concat_tables([changes(added=(FILE,)), changes(added=(upgraded,), deleted=(FILE,))]))
    assert folded.column("level").to_pylist() == [6]


Files = list[tuple[str, int]]
"""Names and levels, in the order in which they were added last."""


def applied(base: Files, entries: pa.Table) -> Files:
    """The files after some entries, one by one."""
    files = dict.fromkeys(base)
    for kind, name, level in zip(*(entries[column].to_pylist() for column in FOLDED), strict=True):
        files.pop((name, level), None)
        if kind == ADD:
            files[name, level] = None
    return list(files)


FOLDED = ("kind", "file_name", "level")


@pytest.mark.parametrize("seed", range(12))
def test_folded_entries_have_the_effect_of_all_of_them(seed: int) -> None:
    """Of few entries and of many: on whatever was there before, and on the live files of a snapshot."""
    rng = random.Random(seed)
    only_adds = rng.random() < 0.4
    files = [(f"f{number}", level) for number in range(rng.choice((4, 40))) for level in (0, 1)]
    before = sorted(rng.sample(files, len(files) // 2))
    present, steps = set(before), []
    for _ in range(rng.choice((0, 1, 20, 64, 65, 120))):
        file = rng.choice([file for file in files if not only_adds or file not in present] or files)
        kind = DELETE if file in present else ADD
        present ^= {file}
        steps.append((kind, dataclasses.replace(FILE, file_name=file[0], level=file[1])))
    rows = [changes(added=(file,)) if kind == ADD else changes(deleted=(file,)) for kind, file in steps]
    entries = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *rows])
    live = changes(added=tuple(dataclasses.replace(FILE, file_name=name, level=level) for name, level in before))
    expected = applied(before, entries)
    assert applied([], live_after(live, entries)) == expected
    assert live_after(live, entries).num_rows == len(expected)
    for folded in (fold(entries), fold_run(entries)):
        assert sorted(applied(before, folded)) == sorted(expected)
        assert applied([], folded) == applied([], entries)
    assert fold(entries).num_rows <= len({(file.file_name, file.level) for _, file in steps})


def test_a_live_file_that_is_added_again_is_there_once() -> None:
    """Its rows would be read twice otherwise; one of its name at another level is another file."""
    other, upgraded = dataclasses.replace(FILE, file_name="other"), dataclasses.replace(FILE, level=6)
    live = changes(added=(FILE, other))
    assert applied([], live_after(live, changes(added=(FILE,)))) == [
        ("other", FILE.level),
        (FILE.file_name, FILE.level),
    ]
    assert [live_after(live, changes(added=(file,))).num_rows for file in (FILE, upgraded)] == [2, 3]


def row_of(record: dict[str, Any], *, added_snapshot: int | None) -> dict[str, Any]:
    """A record of another library as a row of `ENTRY_SCHEMA`, its commit snapshot by the rules of the format."""
    file = record["_FILE"]
    row = {
        "kind": record["_KIND"],
        "partition": record["_PARTITION"],
        "bucket": record["_BUCKET"],
        "total_buckets": record["_TOTAL_BUCKETS"],
        "embedded_index": file["_EMBEDDED_FILE_INDEX"],
    }
    for stats in ("key_stats", "value_stats"):
        for ours, theirs in (("min", "_MIN_VALUES"), ("max", "_MAX_VALUES"), ("null_counts", "_NULL_COUNTS")):
            row[f"{stats}_{ours}"] = file[f"_{stats.upper()}"][theirs]
    created = file["_CREATION_TIME"]
    row["creation_time_ms"] = created and round(created.timestamp() * 1000)
    inherited = -1 if added_snapshot is None or row["kind"] == DELETE else added_snapshot
    stated = file["_COMMIT_SNAPSHOT"]
    row["commit_snapshot"] = inherited if stated is None else stated
    return {name: row[name] if name in row else file["_" + name.upper()] for name in ENTRY_SCHEMA.names}


def some_manifests(rng: np.random.Generator, count: int) -> list[pa.Table]:
    """Entries of small manifests: different counts, lengths and nulls."""

    def some_file(number: int) -> DataFile:
        choice = BARE if rng.random() < 0.5 else FILE
        text = "ü" * int(rng.integers(0, 200))
        return dataclasses.replace(choice, file_name=f"{number}-{text}", file_size=int(rng.integers(0, 2**50)))

    tables = []
    for number in range(count):
        added, deleted = (tuple(some_file(number) for _ in range(rng.integers(0, 4))) for _ in range(2))
        tables.append(changes(added=added, deleted=deleted))
    return tables


def test_manifests_decoded_together_are_what_another_library_reads() -> None:
    """Many manifests decoded in one pass have the rows that fastavro reads from each, in the order of the files."""
    tables = some_manifests(np.random.default_rng(3), 60)
    bodies = [encode_manifest(table) for table in tables]
    added = [None if number % 7 == 0 else number for number in range(len(bodies))]
    joined = decode_manifests(bodies, added_snapshots=added)
    assert [position for part in joined for position in part.positions] == list(range(len(bodies)))
    for part in joined:
        assert part.entries.schema.equals(ENTRY_SCHEMA)
        expected = [
            row_of(record, added_snapshot=added[position])
            for position in part.positions
            for record in fastavro.reader(io.BytesIO(null_codec(bodies[position])))
        ]
        assert part.entries.to_pylist() == expected
        assert part.counts == [tables[position].num_rows for position in part.positions]


def test_what_is_decoded_together_is_never_damaged() -> None:
    """Of files with one damaged byte, or of other clients, each is decoded right, or left out of all results."""
    rng = np.random.default_rng(4)
    tables = some_manifests(rng, 8)
    whole = [encode_manifest(table) for table in tables]
    other = foreign(records_of(tables[1]))
    alone = [decode_manifest(body, path="m", added_snapshot=5) for body in whole]
    seen_right = seen_left_out = 0
    for _ in range(80):
        bodies = [*whole, other]
        damaged = bytearray(bodies[2])
        damaged[rng.integers(0, len(damaged))] ^= 1 << rng.integers(0, 8)
        bodies[2] = bytes(damaged)
        positions = []
        for part in decode_manifests(bodies, added_snapshots=[5] * len(bodies)):
            positions += part.positions
            assert part.entries.equals(pa.concat_tables(alone[at] for at in part.positions))
        assert len(whole) not in positions  # the other client's
        seen_right += 2 in positions
        seen_left_out += 2 not in positions
    assert seen_left_out > seen_right


def test_lists_decoded_together() -> None:
    """Many manifest lists decoded in one pass are those that were written; few, and damaged ones, are left out."""
    lists = [
        [ManifestMeta(f"m-{number}-{place}", place, 1, 2, Stats(b"a", b"b", (None, place)), 0, number or None)]
        * (number % 3)
        for number, place in enumerate(range(20))
    ]
    bodies = [encode_manifest_list(metas) for metas in lists]
    assert decode_manifest_lists(bodies) == dict(enumerate(lists))
    assert decode_manifest_lists(bodies[:2]) == {}
    bodies[4] = bodies[4][:-1]
    assert decode_manifest_lists(bodies) == {number: metas for number, metas in enumerate(lists) if number != 4}


LIST_VARIANTS: dict[str, tuple[str, Any, Any]] = {
    "usual": ("_VERSION", "int", 2),
    "another version": ("_VERSION", "int", 3),
    "a name as bytes": ("_FILE_NAME", "bytes", b"m-1"),
    "a name that is no text": ("_FILE_NAME", "bytes", b"\xff"),
    "a name that may be missing": ("_FILE_NAME", ["null", "string"], "m-1"),
    "a missing name": ("_FILE_NAME", ["null", "string"], None),
    "a size as text": ("_FILE_SIZE", "string", "7"),
    "a size that is no number": ("_FILE_SIZE", "string", "x"),
    "a snapshot that must be there": ("_ADDED_SNAPSHOT", "long", 4),
    "no snapshot": ("_ADDED_SNAPSHOT", ["null", "long"], None),
}


@pytest.mark.parametrize("variant", LIST_VARIANTS)
@pytest.mark.parametrize("left_out", ["", "_ADDED_SNAPSHOT", "_FILE_SIZE", "_VERSION"])
def test_a_short_list_is_read_as_a_long_one(variant: str, left_out: str) -> None:
    """Few manifests of a list are decoded one by one, many by columns: what is read, and what is refused, is one."""
    reader = fastavro.reader(io.BytesIO(null_codec(encode_manifest_list(some_metas(1, 2)))))
    (record,) = [dict(row) for row in reader if isinstance(row, dict)]
    schema: Any = reader.writer_schema
    name, kind, value = LIST_VARIANTS[variant]
    fields = [dict(field) for field in schema["fields"] if field["name"] != left_out]
    for field in fields:
        if field["name"] == name:
            field["type"], record[name] = kind, value
            field.pop("default", None)

    def outcome(count: int) -> Any:
        out = io.BytesIO()
        fastavro.writer(out, {**schema, "fields": fields}, [record] * count)
        try:
            (meta,) = set(decode_manifest_list(out.getvalue(), path="l"))
        except (Corruption, UnsupportedFormat) as error:
            return type(error), error.message
        return meta

    assert outcome(3) == outcome(avro.SMALL_COUNT_MAX + 1)


@pytest.mark.parametrize("count", [1, 3, avro.SMALL_COUNT_MAX + 1])
@pytest.mark.parametrize(
    ("size_bytes", "encoded"), [(2**63 - 1, b"\xfe" + b"\xff" * 8 + b"\x01"), (-(2**63), b"\xff" * 9 + b"\x01")]
)
def test_a_number_of_more_than_64_bits_is_damage(count: int, size_bytes: int, encoded: bytes) -> None:
    """The least and the greatest number are read, in few records and in many; one further bit is refused."""
    metas = [dataclasses.replace(meta, file_size=size_bytes) for meta in some_metas(1, count + 1)]
    body = foreign_list(metas, codec="null")
    assert decode_manifest_list(body, path="l") == metas
    assert body.count(encoded) == count
    with pytest.raises(Corruption, match="l "):
        decode_manifest_list(body.replace(encoded, encoded[:-1] + b"\x02"), path="l")


def some_metas(start: int, end: int) -> list[ManifestMeta]:
    """Descriptions of manifests, each another."""
    stats = Stats(b"a", b"b", (None, 1))
    return [ManifestMeta(f"m-{number}", number, 1, 2, stats, 0, number or None) for number in range(start, end)]


@pytest.mark.parametrize(
    ("first", "second", "end"), [(0, 0, 3), (5, 1, 0), (5, 1, 4), (100, 1, 0), (100, 0, 90), (3, 2, 5)]
)
def test_a_list_that_repeats_others(first: int, second: int, end: int) -> None:
    """A list that begins with others has the manifests that are in it, whatever of them is taken from the others."""
    whole = some_metas(0, first + second + end)
    parts = []
    for start, stop in ((0, first), (first, first + second)):
        parts.append(decode_extended_list(foreign_list(whole[start:stop]), path="l", parts=[]))
        assert list(parts[-1].metas) == whole[start:stop]
    grown = decode_extended_list(foreign_list(whole, codec="null"), path="l", parts=parts)
    assert list(grown.metas) == whole
    # What does not begin with them is decoded, and so is what another schema, or lakebed, wrote.
    other = [*some_metas(200, 201), *whole]
    assert list(decode_extended_list(foreign_list(other), path="l", parts=parts).metas) == other
    assert list(decode_extended_list(foreign_list(whole[:first]), path="l", parts=[grown]).metas) == whole[:first]
    ours = decode_extended_list(encode_manifest_list(whole), path="l", parts=parts)
    assert list(ours.metas) == whole


def test_damage_behind_what_a_list_repeats() -> None:
    """A list that is cut, or states other numbers of records, is what it is when nothing of it is known: damage."""
    known = decode_extended_list(foreign_list(some_metas(0, 9), codec="null"), path="l", parts=[])
    body = foreign_list(some_metas(0, 12), codec="null")
    whole_count = 0
    for size in range(len(body) - 120, len(body)):
        try:
            metas = decode_manifest_list(body[:size], path="l")
        except Corruption:
            with pytest.raises(Corruption):
                decode_extended_list(body[:size], path="l", parts=[known])
        else:  # cut between two blocks: the size that its snapshot states tells
            whole_count += 1
            assert list(decode_extended_list(body[:size], path="l", parts=[known]).metas) == metas
    assert whole_count < 5
    reader = avro.Cursor(body)
    header = avro.read_header(reader)
    counts, blocks = avro.read_blocks(reader, header)
    start = body[: header.end]
    for stated in (8, 9, 13):
        short = (
            start + avro.encode_long(stated) + avro.encode_long(len(b"".join(blocks))) + b"".join(blocks) + header.sync
        )
        with pytest.raises(Corruption):
            decode_extended_list(short, path="l", parts=[known])
    assert sum(counts) == 12
