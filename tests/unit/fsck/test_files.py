"""Sorted runs, without a store: which files may share a level."""

from __future__ import annotations

import pytest

from lakebed.fsck.files import check_runs
from lakebed.fsck.model import CheckReport, Findings
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import entries_of_changes
from lakebed.table.model.model import BucketChange, DataField, DataFile, TableSchema
from worlds.binary_rows import encode_row
from worlds.table.made_up import data_file

SCHEMA = TableSchema(0, (DataField(0, "id", "BIGINT", nullable=False),), 0, primary_keys=("id",))


def file(name: str, low: int, high: int, *, level: int) -> DataFile:
    """A file with a key range."""
    ends = {"min_key": encode_row((low,), ("BIGINT",)), "max_key": encode_row((high,), ("BIGINT",))}
    return data_file(name, level=level, commit_snapshot=1, **ends)


def kinds(*files: DataFile, buckets: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    """What is found in a version of these files, each in bucket 0 or as given."""
    changes = [
        BucketChange(EMPTY_ROW, bucket, 9, added=(file,))
        for file, bucket in zip(files, buckets or (0,) * len(files), strict=True)
    ]
    report = CheckReport("memory://x", False)
    check_runs(entries_of_changes(changes), schema=SCHEMA, called="snapshot 1", findings=Findings(report, store="t"))
    return [(finding.kind, finding.path) for finding in report.findings]


def test_runs_that_are_sound() -> None:
    """Neighbours on a level, overlaps of level 0, of different levels and of different buckets are all fine."""
    assert kinds(file("a", 1, 5, level=5), file("b", 6, 9, level=5)) == []
    assert kinds(file("a", 1, 5, level=0), file("b", 2, 9, level=0)) == []
    assert kinds(file("a", 1, 5, level=4), file("b", 2, 9, level=5)) == []
    assert kinds(file("a", 1, 5, level=5), file("b", 2, 9, level=5), buckets=(0, 1)) == []


@pytest.mark.parametrize(("low", "high"), [(5, 9), (2, 3), (-9, 1), (1, 5)])
def test_runs_that_overlap(low: int, high: int) -> None:
    """Two files of one level above 0 that share a key are found, whichever comes first."""
    (result,) = kinds(file("a", 1, 5, level=5), file("b", low, high, level=5))
    assert result[0] == "overlap"


def test_ranges_upside_down() -> None:
    """A file whose least key is above its greatest is found."""
    assert ("wrong_key_range", "a") in kinds(file("a", 5, 1, level=0))
