"""Options of the format that lakebed does not implement, each with what to do instead. Pure data.

They can only be set to their default: an option that is accepted without effect misleads. A table of another client may
have them; ignoring them loses or changes no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_STREAMS: Final = "lakebed keeps no progress of streams"
_NO_CHANGELOGS: Final = "lakebed writes and keeps no changelogs"
_NO_METASTORE: Final = "lakebed registers nothing in a metastore"

REFUSED: Final[Mapping[str, str]] = {
    "path": "the catalog says where a table is",
    "auto-create": "create tables with create_table",
    "branch": "open the branch with branch=",
    "write-buffer-spillable": "lakebed writes files when the buffer is full and never spills",
    "commit.force-compact": "compact with compact(), in a process of its own if you like",
    "snapshot.ignore-empty-commit": "a commit without changes makes no snapshot",
    "snapshot.expire.execution-mode": "expiry runs when it is called",
    "snapshot.clean-empty-directories": "object stores have no folders, and empty local folders do no harm",
    "dynamic-partition-overwrite": "pass dynamic=True or dynamic=False to each overwrite",
    "changelog-file.prefix": _NO_CHANGELOGS,
    "changelog.num-retained.min": _NO_CHANGELOGS,
    "changelog.num-retained.max": _NO_CHANGELOGS,
    "changelog.time-retained": _NO_CHANGELOGS,
    "tag.period-formatter": "names of digits alone would read as snapshot ids",
    "tag.batch-customized-name": "tags of batch commits are named after their day",
    "consumer-id": _NO_STREAMS,
    "consumer.mode": _NO_STREAMS,
    "consumer.ignore-progress": _NO_STREAMS,
    "consumer.expiration-time": "a consumer holds its snapshots until it is deleted",
    "scan.mode": "a read takes version= or timestamp_ms=",
    "scan.tag-name": "a read takes version='tag.<name>'",
    "scan.snapshot-id": "a read takes version=<id>",
    "scan.version": "a read takes version=",
    "scan.timestamp": "a read takes timestamp_ms=",
    "scan.timestamp-millis": "a read takes timestamp_ms=",
    "scan.manifest.parallelism": "lakebed chooses how many manifests it reads at once",
    "scan.fallback-branch": "a read is of one branch",
    "compaction.optimization-interval": "full compactions run when they are called",
    "compaction.force-up-level-0": "compact(full=True) takes every file",
    "num-sorted-run.stop-trigger": "writers never wait for compactions",
    "file-index.bloom-filter.columns": "lakebed builds no bloom filters",
    "metastore.partitioned-table": _NO_METASTORE,
    "metastore.tag-to-partition": _NO_METASTORE,
}
"""Why, by name: the end of the sentence that refuses it."""

COLUMN_PREFIXES: Final[Mapping[str, str]] = {
    "fields.": "columns have no aggregate functions or options of their own",
    "parquet.": "lakebed sets the options of Parquet files itself",
    "orc.": "lakebed writes Parquet files only",
    "file.compression.per.level": "files of all levels are compressed alike",
    "file.format.per.level": "lakebed writes Parquet files only",
}
"""The same for families of options, by prefix."""
