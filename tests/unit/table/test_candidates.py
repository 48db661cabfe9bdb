"""The pure judgement of `lakebed.table.branch.candidates`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakebed.table.branch.candidates import (
    CANDIDATES,
    ROLES,
    STAGES,
    UNKNOWN,
    Retention,
    Role,
    concat,
    find_needed_files,
    fold_deltas,
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


def test_an_empty_table_expires_nothing() -> None:
    """Without snapshots there is nothing to expire."""
    assert plan_expiry([], Retention(1, 1, 10**18, 1), time_ms_of=lambda _: 0, expiry_limit=None) == 0
