"""The pure judgement of `lakebed.table.branch.candidates`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing
import pyarrow as pa
import pytest

from lakebed.table.branch.candidates import (
    CANDIDATES,
    ROLES,
    STAGES,
    UNKNOWN,
    Retention,
    Role,
    candidates_of,
    concat,
    find_needed_files,
    fold_deltas,
    is_named,
    nearest_earlier,
    nearest_later,
    paths_of,
    plan_expiry,
)
from lakebed.table.codec.manifest import ADD, DELETE, ENTRY_SCHEMA


def delta(*entries: tuple[int, str, int]) -> pa.Table:
    """Named entries as `paths_of` gives them: (kind, path, born)."""
    return pa.table(
        {
            "kind": pa.array([kind for kind, _, _ in entries], pa.int8()),
            "path": pa.array([path for _, path, _ in entries], pa.string()),
            "size_bytes": pa.array([10] * len(entries), pa.int64()),
            "born": pa.array([born for _, _, born in entries], pa.int64()),
            "row": pa.array(range(len(entries)), pa.int64()),
        }
    )


def deaths(*deltas: tuple[int, pa.Table]) -> dict[str, tuple[int, int]]:
    """Path -> (born, dead) of the fold."""
    folded = fold_deltas(deltas)
    assert folded.schema == CANDIDATES
    return {row["path"]: (row["born"], row["dead"]) for row in folded.to_pylist()}


def test_a_deleted_file_is_a_candidate_from_its_death() -> None:
    """A DELETE makes a candidate that lived from its birth to that snapshot."""
    assert deaths((5, delta((DELETE, "f", 3), (ADD, "g", 5)))) == {"f": (3, 5)}


def test_an_upgrade_is_no_death() -> None:
    """DELETE and ADD of one file in one delta leave it alive, in either order."""
    assert deaths((5, delta((DELETE, "f", 1), (ADD, "f", 1)))) == {}
    assert deaths((5, delta((ADD, "f", 1), (DELETE, "f", 1)))) == {}


def test_a_restored_file_is_judged_at_its_last_death() -> None:
    """A later ADD takes a candidate back, and a later DELETE makes it one again, over the whole life."""
    assert deaths((4, delta((DELETE, "f", 1))), (6, delta((ADD, "f", 1)))) == {}
    assert deaths((4, delta((DELETE, "f", 1))), (6, delta((ADD, "f", 1))), (9, delta((DELETE, "f", 1)))) == {
        "f": (1, 9)
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_is_folded_as_by_one_event_after_the_other(seed: int) -> None:
    """Whatever the order of paths: the last event of each decides, and an ADD comes last in its delta."""
    rng = random.Random(seed)
    deltas, alive = [], dict[str, tuple[int, int] | None]()
    for snapshot_id in sorted(rng.sample(range(100), 6)):
        entries = [
            (rng.choice((ADD, DELETE)), rng.choice("abcdef"), rng.randrange(-1, 9)) for _ in range(rng.randrange(6))
        ]
        entries = list({(kind, path): (kind, path, born) for kind, path, born in entries}.values())
        for kind, path, born in sorted(entries, key=lambda entry: -entry[0]):
            alive[path] = None if kind == ADD else (born, snapshot_id)
        deltas.append((snapshot_id, delta(*entries)))
    assert deaths(*deltas) == {path: life for path, life in alive.items() if life is not None}


def test_nothing_walked_leaves_nothing() -> None:
    """An empty walk and empty deltas fold to no candidates."""
    assert deaths() == {}
    assert deaths((3, delta())) == {}


@pytest.mark.parametrize(
    ("born", "dead", "needed"),
    [(105, 120, False), (105, 200, False), (105, 201, True), (100, 101, True), (301, 400, False), (7, 7, False)],
)
def test_the_interval_test_of_the_proposal(born: int, dead: int, needed: bool) -> None:
    """With tags at 100, 200 and 300, a file is needed iff one of them lies in [born, dead)."""
    versions = np.array([100, 200, 300], np.int64)
    assert find_needed_files(np.array([born]), np.array([dead]), versions).tolist() == [needed]


def test_the_interval_test_is_that_of_brute_force() -> None:
    """Over all small cases, the two bisections say what trying every version says."""
    versions = np.array([2, 3, 7], np.int64)
    born, dead = (axis.ravel() for axis in np.meshgrid(np.arange(10), np.arange(10)))
    expected = [any(b <= version < d for version in versions) for b, d in zip(born, dead, strict=True)]
    needed_files = find_needed_files(born, dead, versions)
    assert [bool(item) for item, b, d in zip(needed_files, born, dead, strict=True) if b <= d] == [
        item for item, b, d in zip(expected, born, dead, strict=True) if b <= d
    ]


def test_nothing_is_needed_without_versions() -> None:
    """With no version at all, every candidate may go, and there is no neighbour."""
    none = np.array([], np.int64)
    assert not find_needed_files(np.array([1]), np.array([5]), none).any()
    assert nearest_earlier(np.array([5]), none).tolist() == [UNKNOWN]
    assert nearest_later(np.array([5]), none).tolist() == [UNKNOWN]


def test_neighbours() -> None:
    """The nearest version before a death is strictly before it; the nearest after may be at it."""
    versions = np.array([2, 5, 9], np.int64)
    asked = np.array([2, 3, 5, 6, 10], np.int64)
    assert nearest_earlier(asked, versions).tolist() == [UNKNOWN, 2, 2, 5, 9]
    assert nearest_later(asked, versions).tolist() == [2, 5, 5, 9, UNKNOWN]


def entries_table(rows: list[dict[str, object]]) -> pa.Table:
    """Manifest entries with defaults for what does not matter here."""
    blank: dict[str, object] = dict.fromkeys(ENTRY_SCHEMA.names)
    for field in ENTRY_SCHEMA:
        if not field.nullable:
            blank[field.name] = b"" if field.type == pa.binary() else 0
    blank |= {"file_name": "f", "extra_files": []}
    return pa.Table.from_pylist([blank | row for row in rows], schema=ENTRY_SCHEMA)


def folder_of(partition: bytes, bucket: int) -> tuple[str, ...]:
    """A folder that shows both."""
    return (f"p={partition.decode()}/bucket-{bucket}",)


def test_paths_name_partition_bucket_file_and_sidecars() -> None:
    """Every file and sidecar gets its path in order, with the birth and the kind of its entry; external files none."""
    entries = entries_table(
        [
            {"kind": ADD, "partition": b"x", "bucket": 1, "file_name": "a", "file_size": 7, "commit_snapshot": 3},
            {"kind": DELETE, "partition": b"y", "file_name": "b", "commit_snapshot": -1, "extra_files": ["b.idx"]},
            {"partition": b"y", "file_name": "c", "external_path": "s3://elsewhere/c"},
        ]
    )
    named = paths_of(entries, folder_of).to_pylist()
    assert [(row["kind"], row["path"], row["size_bytes"], row["born"]) for row in named] == [
        (ADD, "p=x/bucket-1/a", 7, 3),
        (DELETE, "p=y/bucket-0/b", 0, -1),
        (DELETE, "p=y/bucket-0/b.idx", 0, -1),
    ]


FOLDERS = {0: ("near",), 1: ("first", "second"), 2: ("first", "second", "third")}


def paths_one_by_one(rows: list[dict[str, Any]], bucket_count: int) -> set[tuple[int, str, int, int, int]]:
    """Kind, path, size, birth and place of the files of some entries; sizes are stated once."""
    expected = set()
    for place, row in enumerate(rows):
        url = row["external_path"]
        folders = FOLDERS[row["bucket"] % bucket_count] if url is None else (url.rpartition("/")[0],)
        if url is not None and "own" not in url:
            continue
        for choice, folder in enumerate(folders):
            size_bytes = 0 if choice else row["file_size"]
            expected.add((row["kind"], f"{folder}/{row['file_name']}", size_bytes, row["commit_snapshot"], place))
            for extra in row["extra_files"]:
                expected.add((row["kind"], f"{folder}/{extra}", 0, row["commit_snapshot"], place))
    return expected


@pytest.mark.parametrize("bucket_count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_paths_are_those_of_one_entry_after_the_other(seed: int, bucket_count: int) -> None:
    """Buckets with one folder or several, files with sidecars, and files outside the table that are its own or not."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(rng.choice((1, 2, 12))):
        name = f"f{number}"
        url = rng.choice((None, f"s3://own/a/{name}", f"s3://own/b/c/{name}", f"s3://other/{name}"))
        rows.append(
            {
                "kind": rng.choice((ADD, DELETE)),
                "bucket": rng.randrange(bucket_count),
                "file_name": name,
                "file_size": number + 5,
                "commit_snapshot": rng.randrange(-1, 9),
                "extra_files": [f"{name}.{extra}" for extra in range(rng.choice((0, 0, 1, 2)))],
                "external_path": url if seed % 4 else None,
            }
        )
    asked = list[tuple[bytes, int]]()

    def folders_of(partition: bytes, bucket: int) -> tuple[str, ...]:
        asked.append((partition, bucket))
        return FOLDERS[bucket]

    def own_outside(outside: pa.Table) -> np.typing.NDArray[np.bool_]:
        assert outside["external_path"].null_count == 0
        return np.array(["own" in url for url in outside["external_path"].to_pylist()])

    named = paths_of(entries_table(rows), folders_of, own_outside=own_outside)
    columns = (named[name].to_pylist() for name in ("kind", "path", "size_bytes", "born", "row"))
    files = list(zip(*columns, strict=True))
    assert len(files) == len(set(files))
    assert set(files) == paths_one_by_one(rows, bucket_count)
    assert [file[-1] for file in files] == sorted(file[-1] for file in files)
    assert len(asked) == len(set(asked))
    inside = [row | {"external_path": None} if row["external_path"] is None else None for row in rows]
    expected = paths_one_by_one([row for row in inside if row is not None], bucket_count)
    assert paths_of(entries_table(rows), folders_of).num_rows == len(expected)


def test_candidates_have_one_number_or_a_column_of_them() -> None:
    """What is stated once is of all; which of them are named is by path alone."""
    table = candidates_of(Role.INDEX, ["a", "b"], born=3, dead=pa.array([5, 6]))
    assert table.schema == CANDIDATES
    assert table.to_pylist() == [
        {"role": "index", "path": "a", "size_bytes": 0, "born": 3, "dead": 5},
        {"role": "index", "path": "b", "size_bytes": 0, "born": 3, "dead": 6},
    ]
    assert is_named(table, pa.array(["b", "c"])).tolist() == [False, True]
    assert is_named(table, pa.array([], pa.string())).tolist() == [False, False]
    assert is_named(table.slice(0, 0), pa.array(["b"])).tolist() == []
    every = concat([table, candidates_of(Role.DATA, pa.array(["c"]), size_bytes=np.array([7]), born=1, dead=2)])
    assert every["path"].to_pylist() == ["a", "b", "c"]
    assert every["size_bytes"].to_pylist() == [0, 0, 7]


def test_paths_of_no_entries() -> None:
    """No entries have no paths."""
    assert paths_of(entries_table([]), folder_of).num_rows == 0


def test_every_role_has_its_stage() -> None:
    """What is named is deleted before what names it."""
    assert sorted(ROLES) == sorted({value for name, value in vars(Role).items() if not name.startswith("_")})
    assert ROLES.index(Role.DATA) < ROLES.index(Role.MANIFEST) < ROLES.index(Role.LIST)
    assert len(STAGES) == 3


def test_concat_of_nothing_has_the_columns() -> None:
    """No candidates are a table all the same."""
    assert concat([]).schema == CANDIDATES


IDS = [1, 2, 5, 6, 9]
"""Snapshot n was committed at n * 100 ms."""


@pytest.mark.parametrize(
    ("most", "least", "older_than_ms", "limit", "held", "expired"),
    [
        (100, 1, 0, 50, None, 0),
        (3, 1, 0, 50, None, 2),
        (100, 1, 10_000, 50, None, 4),
        (100, 1, 501, 50, None, 3),
        (100, 1, 500, 50, None, 2),
        (100, 3, 10_000, 50, None, 2),
        (1, 1, 0, 2, None, 2),
        (1, 1, 0, 50, 5, 2),
        (1, 1, 0, 50, 3, 2),
        (1, 1, 0, 50, 1, 0),
        (100, 9, 10_000, 50, None, 0),
    ],
)
def test_retention(most: int, least: int, older_than_ms: int, limit: int, held: int | None, expired: int) -> None:
    """Number, age, limit and consumers decide together how many of the oldest go, whatever the gaps between ids."""
    asked: list[int] = []

    def time_ms_of(snapshot_id: int) -> int:
        asked.append(snapshot_id)
        return snapshot_id * 100

    rule = Retention(most, least, older_than_ms, limit)
    assert plan_expiry(IDS, rule, time_ms_of=time_ms_of, expiry_limit=held) == expired
    assert len(asked) <= expired + 1, "a time was read that decides nothing"


@pytest.mark.parametrize("seed", range(10))
def test_retention_is_that_of_one_snapshot_after_the_other(seed: int) -> None:
    """The oldest goes while it may: not held, within the limit of a run, not among the newest, too many or too old."""
    rng = random.Random(seed)
    for _ in range(50):
        ids = sorted(rng.sample(range(1, 15), rng.randrange(9)))
        least = rng.randrange(1, 5)
        rule = Retention(
            least + rng.randrange(4), least, rng.randrange(16) * 100 + rng.randrange(2), rng.randrange(1, 5)
        )
        held = rng.choice((None, rng.randrange(16)))
        expired = 0
        for snapshot_id in ids:
            left = len(ids) - expired
            may = left > rule.retain_min and expired < rule.max_deletes and (held is None or snapshot_id < held)
            if not may or not (left > rule.retain_max or snapshot_id * 100 < rule.older_than_ms):
                break
            expired += 1
        assert plan_expiry(ids, rule, time_ms_of=lambda snapshot_id: snapshot_id * 100, expiry_limit=held) == expired


def test_an_empty_table_expires_nothing() -> None:
    """Without snapshots there is nothing to expire."""
    assert plan_expiry([], Retention(1, 1, 10**18, 1), time_ms_of=lambda _: 0, expiry_limit=None) == 0
