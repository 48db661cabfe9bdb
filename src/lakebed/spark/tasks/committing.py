"""The commit of a job: the files that tasks wrote become one snapshot, on the driver.

Owns: the one commit, and the check that a branch still has its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import lakebed.compute as pc
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.repo.objects.task_store import EntryStore
from lakebed.table.branch.candidates import paths_of
from lakebed.table.branch.discard import discard_changes, paths_written
from lakebed.table.codec.manifest import ADD
from lakebed.table.commit.commit import Basis, CommitOptions
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import BucketChange, CommitKind, Snapshot
from lakebed.table.rows import rows
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.table import Table

BRANCH_MOVED: Final = "branch_moved"
"""The kind of the error of `check_there`, which comes after the commit."""

WRITTEN_AGAIN: Final = ("index_changed", "schema_changed")
"""Kinds of the conflicts after which the same rows can be written again: by the newest schema and its buckets."""


def commit_changes(
    table: Table,
    changes: Sequence[BucketChange],
    *,
    options: CommitOptions,
    kind: CommitKind = "APPEND",
    overwrite: Overwrite | None = None,
    basis: Basis | None = None,
) -> Snapshot:
    """Commit a job once. If the job changes nothing and need not be remembered, return the newest snapshot.

    Raises:
        Conflict: kind ``branch_moved``: in a branch of a repository, as `check_there`; otherwise as
            `rows.commit_changes`.
    """
    if not changes and overwrite is None and options.get("commit_identifier") is None:
        newest = table.latest()
        if newest is not None:
            return newest
    snapshot = rows.commit_changes(table.context, changes, kind=kind, overwrite=overwrite, basis=basis, options=options)
    if overwrite is not None and overwrite.rows is not None:
        check_committed(table, snapshot)
    else:
        check_there(table, changes)
    return snapshot


@contextmanager
def discarding(table: Table, changes: Sequence[BucketChange]) -> Iterator[None]:
    """Run a commit, and delete the files of its job if the commit is refused, so that nothing was committed.

    A commit is also refused if the table is gone. After any other error the outcome is open, and an error of
    `check_there` comes after the commit. In both cases the files stay.
    """
    try:
        yield
    except (Conflict, InvalidRequest, NotFound) as error:
        is_gone = error.kind in ("table_not_found", "branch_not_found") and not isinstance(table.store, EntryStore)
        if is_gone if isinstance(error, NotFound) else error.kind != BRANCH_MOVED:
            discard_changes(table.context, changes)
        raise


def check_there(table: Table, changes: Sequence[BucketChange]) -> None:
    """Check that the files of a commit are in the branch, if the table is in one.

    A reset, or a merge that took the whole table from the other side, removes staged entries that are not yet
    committed. If it happens between the staging of a job's files and its commit, it leaves a snapshot without files.

    Raises `Conflict`: kind ``branch_moved``; `NotFound`: the branch is gone. Cost: that of `EntryStore.entries`; none
    for tables that are not in a branch.
    """
    _look(table, lambda: paths_written(changes, schema=table.schema))


def check_committed(table: Table, snapshot: Snapshot) -> None:
    """As `check_there`, for a commit that a verb of the table made. Cost: also that of the commit's manifests."""

    def find_added() -> list[str]:
        written_to = partial(_first_folder, Placement.of(table.schema))
        named_paths = paths_of(table.context.manifests.delta_entries(snapshot), written_to)
        paths: list[str] = named_paths.filter(pc.equal(named_paths["kind"], ADD))["path"].to_pylist()
        return paths

    _look(table, find_added)


def _first_folder(placement: Placement, partition: bytes, bucket: int) -> tuple[str, ...]:
    """Return the folder that files are written to, without the folders of older files."""
    return placement.folders(partition, bucket)[:1]


def _look(table: Table, paths_of_commit: Callable[[], list[str]]) -> None:
    if not isinstance(table.store, EntryStore):
        return
    paths = paths_of_commit()
    missing = set(paths) - set(table.store.entries(paths))
    newest = table.latest() if missing else None
    if missing and newest is not None:
        # Files that another writer has since compacted and expired are rightly gone: no version names them any longer.
        live_names = set(table.context.manifests.live_entries(newest).column("file_name").to_pylist())
        missing = {path for path in missing if path.rpartition("/")[2] in live_names}
    if missing:
        raise Conflict(
            f"{table.url} was reset or merged over while this job committed, and files of its commit are gone. Reset "
            "the branch to a commit, then run the job again.",
            kind=BRANCH_MOVED,
            path=min(missing),
        )
