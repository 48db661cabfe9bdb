"""Paths: written and parsed in one place."""

from __future__ import annotations

import datetime

import pytest

from lakebed.table import layout
from lakebed.table.layout import Layout, partition_path


@pytest.mark.parametrize("branch", [None, "main", "dev"])
def test_written_paths_parse(branch: str | None) -> None:
    """Every path of main and of a branch parses back to what it names, and to nothing else."""
    paths = Layout(branch)
    assert layout.parse_snapshot(paths.snapshot(12)) == 12
    assert layout.parse_schema(paths.schema(0)) == 0
    assert layout.parse_tag(paths.tag("end of 2013")) == "end of 2013"
    assert layout.parse_consumer(paths.consumer("c")) == "c"
    assert layout.parse_changelog(paths.changelog(3)) == 3
    assert layout.branch_of(paths.snapshot(1)) == (branch or "main")
    assert layout.parse_snapshot(paths.schema(0)) is None
    assert paths.manifest("m") == "manifest/m"


def test_strangers_do_not_parse() -> None:
    """Hints, padded numbers and temporary files are no snapshots."""
    for path in (
        "snapshot/LATEST",
        "snapshot/snapshot-01",
        "snapshot/snapshot-1.tmp",
        "x/snapshot/snapshot-1",
        "snapshot-1",
    ):
        assert layout.parse_snapshot(path) is None


def test_partition_folders() -> None:
    """Partition values are spelled as other clients spell them, special characters escaped."""
    values = {"dt": datetime.date(2013, 1, 1), "a/b": "x=1:2", "n": None, "blank": " ", "flag": True, "k": 7}
    expected = "dt=2013-01-01/a%2Fb=x%3D1%3A2/n=__DEFAULT_PARTITION__/blank=__DEFAULT_PARTITION__/flag=true/k=7"
    assert partition_path(values) == expected
    assert Layout().bucket_folder({"k": 7}, 0) == "k=7/bucket-0"
    assert Layout().bucket_folder({}, 3) == "bucket-3"
    assert layout.parse_bucket_folder("k=7/bucket-12") == ("k=7", 12)
    assert layout.parse_bucket_folder("bucket-0") == ("", 0)
    assert layout.parse_bucket_folder("k=7") is None
