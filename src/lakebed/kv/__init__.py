"""Databases: log-structured key-value stores with one writer, many readers, checkpoints, clones and a collector.

The names below are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use

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
"""Without `open`: ``from lakebed.kv import *`` must not replace the built-in function."""

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "kv.admin": ("DatabaseAdmin",),
            "kv.batch": ("WriteBatch",),
            "kv.database": ("Database",),
            "kv.model": ("CheckpointCreateResult", "CheckpointScope"),
            "kv.opening": ("open_database", "open_from_checkpoint", "open_reader"),
            "kv.options": ("CheckpointOptions", "CollectorOptions", "DatabaseOptions", "ReaderOptions"),
            "kv.reader": ("DatabaseReader",),
            "kv.snapshot": ("Snapshot",),
            "kv.transaction": ("Transaction",),
            "lsm.operators": ("MergeOperator", "register_operator"),
        },
        modules=["admin"],
        renamed={"open": "open_database"},
    )
