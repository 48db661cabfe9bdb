"""Law: what a filter leaves out before a merge changes no row of the result."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakebed.objects.open import open_store
from lakebed.table.engines.registry import engine_of
from lakebed.table.files.splits import find_unneeded
from lakebed.table.model.model import DataFile
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.read.read import early_filters
from lakebed.table.schema.schema import new_schema
from lakebed.table.table import Table
from worlds.table.made_up import data_file

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
WHERE, KEY_PART = parse_predicate("k > 1 and v = 2"), parse_predicate("k > 1")


def file_of(name: str, first: int, last: int, **facts: int) -> DataFile:
    """A compacted file with rows of these sequence numbers."""
    file = replace(data_file(name, level=5), min_sequence_number=first, max_sequence_number=last)
    return replace(file, **{"delete_row_count": 0, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "options", "is_whole"),
    [
        ([(0, 9), (10, 12)], {}, True),
        ([(0, 9)], {}, True),
        ([(0, 11), (10, 12)], {}, False),
        ([(0, 10), (10, 12)], {}, False),
        ([(0, 9), (10, 12)], {"sequence.field": "v"}, False),
        ([(0, 9), (10, 12)], {"merge-engine": "first-row"}, False),
        ([(0, 9), (10, 12)], {"merge-engine": "partial-update"}, False),
    ],
)
def test_the_whole_filter_applies_to_the_oldest_run(
    runs: list[tuple[int, int]], options: dict[str, str], is_whole: bool
) -> None:
    """Only where the newest row of a key survives, and all other runs are newer; the part on keys applies to all."""
    schema = new_schema(SCHEMA, primary_keys=["k"], options={"bucket": "1", **options}, time_ms=0)
    files = [[file_of(str(number), *sequences)] for number, sequences in enumerate(runs)]
    filters = early_filters(files, where=WHERE, key_part=KEY_PART, engine=engine_of(schema))
    assert filters == [WHERE if is_whole else KEY_PART, *[KEY_PART] * (len(runs) - 1)]


def test_a_file_that_may_repeat_a_key_keeps_its_rows() -> None:
    """A client may write a key twice to a level-0 file; its older row would reappear."""
    schema = new_schema(SCHEMA, primary_keys=["k"], options={"bucket": "1"}, time_ms=0)
    repeated = replace(file_of("a", 0, 9, commit_snapshot=-1), level=0)
    filters = early_filters([[repeated]], where=WHERE, key_part=KEY_PART, engine=engine_of(schema))
    assert filters == [KEY_PART]


def merged(files: list[dict[int, tuple[int, int]]]) -> dict[int, int]:
    """The value of the newest row of every key."""
    newest: dict[int, tuple[int, int]] = {}
    for file in files:
        for key, row in file.items():
            newest[key] = max(row, newest.get(key, row))
    return {key: value for key, (_, value) in newest.items()}


@pytest.mark.parametrize("seed", range(8))
def test_files_without_a_match_are_left_out_where_no_row_reappears(seed: int) -> None:
    """Sections of random files, of which some overlap in keys or in sequence numbers, against a dictionary."""
    rng, gone_count = random.Random(seed), 0
    for _ in range(150):
        files, sequence = [], 0
        for _ in range(rng.randint(2, 6)):
            keys = rng.sample(range(12), rng.randint(1, 4))
            values = rng.choice([(1,), (2,), (1, 2)])
            files.append({key: (sequence + i, rng.choice(values)) for i, key in enumerate(keys)})
            sequence += rng.choice([len(keys), len(keys), 1])
        columns = [
            np.array([of(file) for file in files])
            for of in (
                min,
                max,
                lambda file: min(file.values())[0],
                lambda file: max(file.values())[0],
                lambda file: any(value == 2 for _, value in file.values()),
            )
        ]
        low, high, first, last, may_match = columns
        gone = find_unneeded((low, high), sequences=(first, last), may_match=may_match)
        assert not (gone & may_match).any()
        kept = [file for file, is_gone in zip(files, gone, strict=True) if not is_gone]
        wanted = {key for key, value in merged(files).items() if value == 2}
        assert {key for key, value in merged(kept).items() if value == 2} == wanted
        gone_count += int(gone.sum())
    assert gone_count > 50  # some files are left out


def test_a_filter_opens_neither_old_files_nor_row_groups_without_a_match() -> None:
    """The base of a bucket is not opened for a value that only its updates have; an overwritten match stays away."""
    store = open_store("memory://early-filters")
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys=["k"], options={"bucket": "1"})
    table.upsert(pa.table({"k": range(1000), "v": [number % 50 for number in range(1000)]}, schema=SCHEMA))
    table.compact(full=True)
    table.upsert(pa.table({"k": [7, 900], "v": [100, 200]}, schema=SCHEMA))
    base = [name for name, level in _files(table) if level > 0]
    read = {file.file_name for split in table.scan(where="v >= 100").splits() for file in split.files}
    assert base
    assert not read & set(base), (base, read)
    assert table.read(where="v >= 100").sort_by("k").to_pylist() == [{"k": 7, "v": 100}, {"k": 900, "v": 200}]
    # The update of key 7 has no match, and without it the old row of 7 would be one.
    assert 7 not in table.read(where="v = 7").column("k").to_pylist()
    assert len(table.read(where="v = 7")) == 19


def _files(table: Table) -> list[tuple[str, int]]:
    files = table.system("files").select(["file_path", "level"]).to_pylist()
    return [(row["file_path"].rpartition("/")[2], row["level"]) for row in files]


def test_where_the_oldest_row_survives_no_file_is_left_out() -> None:
    """The first row of a key hides later ones, so a file without a match is needed."""
    shape = {"primary_keys": ["k"], "options": {"bucket": "1", "merge-engine": "first-row"}}
    table = Table.create(open_store("memory://early-filters-first-row"), name="t", schema=SCHEMA, **shape)  # type: ignore[arg-type]
    table.upsert(pa.table({"k": [7, 8], "v": [1, 2]}, schema=SCHEMA))
    table.upsert(pa.table({"k": [7, 9], "v": [100, 200]}, schema=SCHEMA))
    assert table.read(where="v >= 100").to_pylist() == [{"k": 9, "v": 200}]
