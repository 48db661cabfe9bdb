"""Paths: written and parsed in one place."""

from __future__ import annotations

import pytest

from lakebed.table.model import layout
from lakebed.table.model.layout import Layout


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


def test_isolation_do_not_parse() -> None:
    """Hints, padded numbers and temporary files are not snapshots."""
    for path in (
        "snapshot/LATEST",
        "snapshot/snapshot-01",
        "snapshot/snapshot-1.tmp",
        "x/snapshot/snapshot-1",
        "snapshot-1",
    ):
        assert layout.parse_snapshot(path) is None


def test_bucket_folders_parse() -> None:
    """The folder of a bucket is distinguished from every other folder."""
    assert layout.parse_bucket_folder("k=7/bucket-12") == ("k=7", 12)
    assert layout.parse_bucket_folder("bucket-0") == ("", 0)
    assert layout.parse_bucket_folder("k=7") is None
