"""lakebed: pin, fork, roll back and clean data on object storage.

The names below are all that most programs need. `open`, `Lake`, `Table`, `kv` and `repo` are loaded on first use, so
that importing the package (which the command line and Spark's workers do) costs a few milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_PACKAGES = ("kv", "repo")

_MODULE_OF = {
    "Lake": ("lakebed.lake.lake", "Lake"),
    "Table": ("lakebed.table.table", "Table"),
    "open": ("lakebed.lake.lake", "open_lake"),
}


if not TYPE_CHECKING:  # with it, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"lakebed.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'lakebed' has no attribute {name!r}")
        module, attribute = _MODULE_OF[name]
        value = globals()[name] = getattr(importlib.import_module(module), attribute)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULE_OF})
