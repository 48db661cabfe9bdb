"""The commits of a stream's batches: each is made once, by the stream's user.

Owns: `commit_batch` and `user_of`. Invariants: a batch is committed under its query and its number, which the snapshot
contains. So it is committed once, however often Spark runs it. A batch without changes commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.objects import open_store
from lakebed.spark.tasks.committing import commit_changes
from lakebed.table.branch.discard import discard_changes
from lakebed.table.branch.earlier_commits import find_commit
from lakebed.table.model.model import BucketChange, Snapshot
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.table import Table

APPLICATION: Final = "txn-app-id"
"""The option of a sink that names the commit user, instead of the query's checkpoint."""
CHECKPOINT: Final = "checkpointLocation"

_STORES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs"}
"""Schemes of Hadoop, with those of lakebed's stores."""


def commit_batch(
    table: Table, changes: Sequence[BucketChange], *, user: str, batch_id: int, overwrite: Overwrite | None = None
) -> Snapshot | None:
    """Commit a batch. If it is already committed, delete its files instead.

    Returns the snapshot with the batch; None: the batch has no changes. Raises as `commit_changes`.
    """
    earlier = find_commit(table.context, user, batch_id)
    if earlier is not None:
        discard_changes(table.context, changes)
        return earlier
    if not changes and overwrite is None:
        return None
    return commit_changes(
        table, changes, options={"commit_user": user, "commit_identifier": batch_id}, overwrite=overwrite
    )


def user_of(options: Mapping[str, str]) -> str:
    """Return the commit user for the batches of a sink: from the option, or the query that its checkpoint names.

    Raises `InvalidRequest`: neither exists.
    """
    options_by_name = {name.lower(): value for name, value in options.items()}
    application = options_by_name.get(APPLICATION)
    if application:
        return application
    checkpoint = options_by_name.get(CHECKPOINT.lower())
    query = None if checkpoint is None else query_of_checkpoint(checkpoint)
    if query is None:
        problem = "has no checkpointLocation" if checkpoint is None else f"finds no query's id in {checkpoint}/metadata"
        raise InvalidRequest(
            f"The sink 'lakebed' {problem}, by which it would know batches that it has committed: give the option "
            f"checkpointLocation to the stream itself, or the option {APPLICATION} with a name that no other stream "
            "into the table has.",
            kind="no_application",
        )
    return query


def query_of_checkpoint(location: str) -> str | None:
    """Return the id that Spark gave the query of a checkpoint; None: it cannot be read."""
    parts = urlsplit(location)
    try:
        if parts.scheme in _STORES:
            body = bytes(open_store(f"{_STORES[parts.scheme]}://{parts.netloc}{parts.path}").get("metadata"))
        elif parts.scheme in ("", "file"):
            body = (Path(unquote(parts.path) if parts.scheme else location) / "metadata").read_bytes()
        else:
            return None
        query_id = json.loads(body)["id"]
    except (OSError, LakebedError, ValueError, KeyError, TypeError):
        return None
    return query_id if isinstance(query_id, str) and query_id else None
