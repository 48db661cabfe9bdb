"""Databases: log-structured key-value stores with one writer, many readers, checkpoints, clones and a collector.

The names below are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakebed.kv import admin
    from lakebed.kv.admin import DatabaseAdmin
    from lakebed.kv.batch import WriteBatch
    from lakebed.kv.database import Database
    from lakebed.kv.model import CheckpointCreateResult, CheckpointScope
    from lakebed.kv.opening import open_database, open_from_checkpoint, open_reader
    from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
    from lakebed.kv.reader import DatabaseReader
    from lakebed.kv.snapshot import Snapshot
    from lakebed.kv.transaction import Transaction
    from lakebed.lsm.operators import MergeOperator, register_operator

    open = open_database

__all__ = [
    "CheckpointCreateResult",
    "CheckpointOptions",
    "CheckpointScope",
    "CollectorOptions",
    "Database",
    "DatabaseAdmin",
    "DatabaseOptions",
    "DatabaseReader",
    "MergeOperator",
    "ReaderOptions",
    "Snapshot",
    "Transaction",
    "WriteBatch",
    "admin",
    "open_from_checkpoint",
    "open_reader",
    "register_operator",
]
"""Without `open`: ``from lakebed.kv import *`` must leave the built-in one in place."""

_HOMES = {
    "CheckpointCreateResult": ("lakebed.kv.model", "CheckpointCreateResult"),
    "CheckpointOptions": ("lakebed.kv.options", "CheckpointOptions"),
    "CheckpointScope": ("lakebed.kv.model", "CheckpointScope"),
    "CollectorOptions": ("lakebed.kv.options", "CollectorOptions"),
    "Database": ("lakebed.kv.database", "Database"),
    "DatabaseAdmin": ("lakebed.kv.admin", "DatabaseAdmin"),
    "DatabaseOptions": ("lakebed.kv.options", "DatabaseOptions"),
    "DatabaseReader": ("lakebed.kv.reader", "DatabaseReader"),
    "MergeOperator": ("lakebed.lsm.operators", "MergeOperator"),
    "ReaderOptions": ("lakebed.kv.options", "ReaderOptions"),
    "Snapshot": ("lakebed.kv.snapshot", "Snapshot"),
    "Transaction": ("lakebed.kv.transaction", "Transaction"),
    "WriteBatch": ("lakebed.kv.batch", "WriteBatch"),
    "open": ("lakebed.kv.opening", "open_database"),
    "open_from_checkpoint": ("lakebed.kv.opening", "open_from_checkpoint"),
    "open_reader": ("lakebed.kv.opening", "open_reader"),
    "register_operator": ("lakebed.lsm.operators", "register_operator"),
}


if not TYPE_CHECKING:  # a checker of types would believe that every name is here

    def __getattr__(name: str) -> Any:
        if name == "admin":
            return importlib.import_module("lakebed.kv.admin")
        if name not in _HOMES:
            raise AttributeError(f"module 'lakebed.kv' has no attribute {name!r}")
        module, attribute = _HOMES[name]
        value = globals()[name] = getattr(importlib.import_module(module), attribute)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
