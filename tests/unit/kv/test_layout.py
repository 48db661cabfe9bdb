"""Paths of a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.kv import layout

FILE_ID = "01M7Z0AX9JD0889MTSQGP4ADK0"


@given(number=st.integers(0, 10**20 - 1))
def test_paths_come_back(number: int) -> None:
    """Every path that is written is parsed as what it names, and as nothing else."""
    assert layout.parse_manifest(layout.manifest_path(number)) == number
    assert layout.parse_wal(layout.wal_path(number)) == number
    assert layout.parse_manifest(layout.wal_path(number)) is None
    assert layout.parse_wal(layout.manifest_path(number)) is None
    assert layout.parse_boundary(f"boundary/{number:020d}") == number


def test_the_names_on_disk_are_these() -> None:
    """Names of objects never change."""
    assert layout.manifest_path(7) == "manifest/00000000000000000007.manifest"
    assert layout.wal_path(7) == "wal/00000000000000000007.wal"
    assert layout.sst_path(FILE_ID) == f"sst/{FILE_ID}.sst"
    assert layout.LEASE_PATH == "lease.json"
    assert layout.parse_sst(layout.sst_path(FILE_ID)) == FILE_ID


@given(numbers=st.lists(st.integers(0, 10**20 - 1), min_size=2, max_size=5))
def test_names_sort_as_numbers_do(numbers: list[int]) -> None:
    """A listing shows objects in the order of their numbers."""
    assert sorted(map(layout.wal_path, numbers)) == list(map(layout.wal_path, sorted(numbers)))


@pytest.mark.parametrize(
    "path",
    [
        "wal/7.wal",
        "wal/00000000000000000007.wal.tmp",
        "wal/0000000000000000000\u0663.wal",
        "nested/wal/00000000000000000007.wal",
        "wal/deeper/00000000000000000007.wal",
        "manifest/00000000000000000007.wal",
        "manifest/00000000000000000007.manifest\n",
        "manifest",
        "sst/01M7Z0AX9JD0889MTSQGP4ADK.sst",
        "sst/01M7Z0AX9JD0889MTSQGP4ADKU.sst",
        f"sst/{FILE_ID}",
        f"nested/sst/{FILE_ID}.sst",
        "boundary/7",
        "lease.json.bak",
        "nested/lease.json",
        "",
    ],
)
def test_isolation_are_not_ours(path: str) -> None:
    """What a nested database or another program wrote is never taken for an object of this database."""
    assert not layout.is_own(path)


@pytest.mark.parametrize(
    "path", [layout.manifest_path(1), layout.wal_path(1), layout.sst_path(FILE_ID), "lease.json", f"boundary/{1:020d}"]
)
def test_own_paths_are_ours(path: str) -> None:
    """Each kind of object that a database writes is recognised."""
    assert layout.is_own(path)
