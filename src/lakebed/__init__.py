"""lakebed: versioned tables, databases, repositories and tenants on object storage.

The names below are all that most programs need. `open`, `Lake`, `Table`, `kv` and `repo` are loaded on first use, so
that importing the package (which the command line and Spark's workers do) costs a few milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corruption,
    Fenced,
    InternalError,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.first_use import on_first_use

if TYPE_CHECKING:
    from lakebed import kv, repo
    from lakebed.lake.lake import Lake, open_lake
    from lakebed.table.table import Table

    open = open_lake

__all__ = [
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corruption",
    "Fenced",
    "InternalError",
    "InvalidRequest",
    "Lake",
    "LakebedError",
    "NotFound",
    "OutcomeUnknown",
    "Rejected",
    "Table",
    "Unavailable",
    "UnsupportedFormat",
    "__version__",
    "kv",
    "repo",
]
"""Without `open`: ``from lakebed import *`` must not replace the built-in function."""

__version__ = "0.1.0"

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, __dir__ = on_first_use(
        __name__,
        {"lake.lake": ("Lake", "open_lake"), "table.table": ("Table",)},
        modules=["kv", "repo"],
        renamed={"open": "open_lake"},
    )
