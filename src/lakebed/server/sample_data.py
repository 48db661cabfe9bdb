"""Sample data: a few small files for a first look at a repository."""

from __future__ import annotations

import io
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from lakebed.repo.branch import Branch

_README: Final = """# A repository

The branch has a table of lakes in two formats. Change it on a branch of your own, commit, and merge.
"""


def add_sample_data(branch: Branch, *, committer: str) -> None:
    """Commit the sample files. Errors as `lakebed.repo.branch.Branch.commit`. Cost: a few PUTs."""
    lakes = pa.table(
        {
            "name": ["Caspian Sea", "Superior", "Victoria", "Huron", "Michigan", "Tanganyika", "Baikal", "Malawi"],
            "continent": ["Asia", "America", "Africa", "America", "America", "Africa", "Asia", "Africa"],
            "area_km2": [371_000, 82_100, 68_800, 59_600, 58_000, 32_900, 31_700, 29_600],
            "depth_m": [1_025, 406, 84, 229, 281, 1_470, 1_642, 706],
        }
    )
    csv, parquet = io.BytesIO(), io.BytesIO()
    pyarrow.csv.write_csv(lakes, csv)
    pyarrow.parquet.write_table(lakes, parquet)
    branch.put("README.md", _README.encode(), content_type="text/markdown")
    branch.put("lakes.csv", csv.getvalue(), content_type="text/csv")
    branch.put("tables/lakes.parquet", parquet.getvalue(), content_type="application/vnd.apache.parquet")
    branch.commit("Add sample data", committer=committer)
