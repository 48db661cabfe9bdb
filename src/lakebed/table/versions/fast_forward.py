"""Publish a branch: its newest version becomes main's in one commit, when main has not moved since the fork.

Owns: `fast_forward`, when it is allowed, and what protects the files that main and the branch share from then on.
Paimon's procedure of this name deletes main's snapshots, schemas and tags after the fork and replaces them by copies of
the branch's; what was committed to main meanwhile is lost. lakebed refuses that, as Git does. The order: copy the
branch's schemas (create-only), pin the version in the branch, write the mark in main, commit. A crash before the commit
leaves main's rows unchanged, and a repetition continues.

Invariants:
- The commit is one snapshot of main, derived from the newest at each try. If another writer of main was faster, the
  commit is a `Conflict`, and nothing is lost.
- Files that came from the branch are born in main with that commit: their `commit_snapshot` is inherited. Files that
  main had already, at another level, keep main's. After any rollback a file may have been in main before. Its birth is
  then unknown, and the mark of a restoring snapshot is written before each try.
- The branch never deletes files that it gave to main: the hidden tag ``lakebed.pin.given.<id>`` in the branch holds
  the version. Main never deletes files that the branch still has: because of the mark ``lakebed/published/<branch>/``,
  main's collectors read the branch's versions. Both last as long as the branch.
- The property `FAST_FORWARDED` of the commit names the version of the branch that main became. A second publication of
  the same branch continues from there, and a repetition after a lost reply recognises its own commit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.reclaim.model import Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.table.branch.branch_folder import PUBLISHED_FOLDER, branch_exists, branch_not_found, fork_pin, mark_path
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import HIDDEN_PREFIX
from lakebed.table.codec.manifest import IDENTITY, as_deletes
from lakebed.table.codec.row_codes import row_codes
from lakebed.table.collect.deletion import open_for_deletion
from lakebed.table.collect.live_versions import mark_restored, read_live_versions
from lakebed.table.commit.commit import CommitOptions, CommitRequest, Derive, StagedChange, commit
from lakebed.table.model.layout import MAIN_BRANCH, parse_schema
from lakebed.table.model.model import COMMIT_SNAPSHOT_UNKNOWN, Snapshot, Tag

FAST_FORWARDED = "lakebed.fast-forwarded-to"
"""Property of the commit: ``<branch>/<snapshot id>/<its delta manifest list>``. DO NOT CHANGE: on disk."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A publication that is allowed now."""

    branch: str
    pin: Tag
    """The pin of the fork snapshot in main."""
    head: Snapshot
    """Main's newest snapshot: the one that the branch started from, or the one that published it before."""
    target: Snapshot
    """The branch's newest snapshot."""

    @property
    def is_done(self) -> bool:
        """Whether main has the branch's newest version already."""
        published = self.head.properties.get(FAST_FORWARDED, "").partition("/")[2]  # the branch may have been renamed
        return _is_same(self.head, self.target) or published == self.name.partition("/")[2]

    @property
    def name(self) -> str:
        """The value of `FAST_FORWARDED`."""
        return f"{self.branch}/{self.target.id}/{self.target.delta_manifest_list}"


def plan_fast_forward(main: TableBranch, branch: str) -> Forward:
    """Check whether a branch can be published to main. Changes nothing.

    Raises `NotFound`: the branch does not exist; `InvalidRequest`: kind ``foreign_branch``: another client made it, so
    where it started is unknown; `Conflict`: kind ``not_fast_forward``: main, or its schema, has moved since. Cost:
    about 6 GETs and 5 LISTs, and 1 GET a schema.
    """
    if branch == MAIN_BRANCH:
        raise InvalidRequest(
            "Main cannot be fast-forwarded to itself: name another branch.", kind="invalid_branch_name"
        )
    source = main.of_branch(branch)
    target, head = source.snapshots.latest(), main.snapshots.latest()
    pin = main.tags.find(fork_pin(branch))
    if pin is None or target is None:
        raise InvalidRequest(
            f"Where the branch {branch!r} started is unknown, because another client made it: main cannot be "
            "fast-forwarded to it.",
            kind="foreign_branch",
            branch=branch,
        )
    if head is None or not (_is_same(head, pin.snapshot) or _was_published(source, head)):
        raise Conflict(
            f"Main has moved since the branch {branch!r} started from snapshot {pin.snapshot.id}"
            f"{'' if head is None else f': its newest snapshot is {head.id}'}. Make a branch from main as it is and "
            "write the change there, or write it into main.",
            kind="not_fast_forward",
            branch=branch,
            fork=pin.snapshot.id,
            newest=None if head is None else head.id,
        )
    _new_schemas(main, source)
    forward = Forward(branch, pin, head, target)
    if not forward.is_done:
        _check_schemas(main, source)
    return forward


def _take_schemas(main: TableBranch, branch: str) -> None:
    """Copy the schemas that were made in the branch to main, oldest first; existing ones are skipped.

    Raises `Conflict`, kind ``not_fast_forward``: main's schema was changed too.
    """
    for path, body in _new_schemas(main, main.of_branch(branch)):
        try:
            main.store.put(path, body, create_only=True)
        except AlreadyExists:
            if bytes(main.store.get(path)) != body:
                raise _schema_moved(branch) from None


def fast_forward(main: TableBranch, branch: str, *, dry_run: bool, identity: CommitOptions | None = None) -> Snapshot:
    """Publish a branch; see `Table.fast_forward`.

    Args:
        identity: the user and the identifier of the commit; None: those of a batch.

    Raises:
        InvalidRequest: kind ``branch_of_branch``: `main` is a branch; or as `plan_fast_forward`.
        NotFound, Conflict: as `plan_fast_forward`.
        OutcomeUnknown, Unavailable: the store failed: call it again.
    """
    main = open_for_deletion(main)
    if main.branch is not None:
        raise InvalidRequest(
            f"Main is fast-forwarded, and this object is the branch {main.branch!r}: open the table without a branch.",
            kind="branch_of_branch",
            branch=main.branch,
        )
    if not branch_exists(main.store, branch):
        raise branch_not_found(main.store, branch)
    forward = plan_fast_forward(main, branch)
    if dry_run:
        return forward.head if forward.is_done else forward.target
    _take_schemas(main, branch)  # also when the branch has no commits of its own
    main.refresh()
    if forward.is_done:
        return forward.head
    return _publish(main, forward, identity or CommitOptions())


def _publish(main: TableBranch, forward: Forward, identity: CommitOptions) -> Snapshot:
    """Commit a branch's newest version to main, which already has its schemas.

    Raises:
        Conflict: kind ``not_fast_forward``: a writer of main was faster; or the branch's version was deleted meanwhile.
        OutcomeUnknown, Unavailable: the store failed: call it again.
    Cost: the manifests of both versions that are not cached, 1 pin, 1 PUT, 1 commit.
    """
    source = main.of_branch(forward.branch)
    _pin(source, forward.target)
    may_return = _may_return(main, source, forward)
    main.store.put(mark_path(forward.branch, forward.pin), b"")
    _confirm(main, forward)
    request = CommitRequest(
        kind="OVERWRITE",
        derive=_derive(main, source, forward, is_returned=may_return),
        options={**identity, "properties": {FAST_FORWARDED: forward.name}},
    )
    return commit(main, request)


def _confirm(main: TableBranch, forward: Forward) -> None:
    """Check that the branch still exists after pin and mark were put; otherwise delete the mark and raise.

    A rename moves only what exists when the schemas are gone.
    """
    if main.tags.find(fork_pin(forward.branch)) != forward.pin or not branch_exists(main.store, forward.branch):
        mark = Deletable(mark_path(forward.branch, forward.pin), 0, "its branch was deleted or renamed meanwhile")
        Sweeper(main.store).delete_all([mark])
        raise branch_not_found(main.store, forward.branch)


def _may_return(main: TableBranch, source: TableBranch, forward: Forward) -> bool:
    """Whether main may get back a file of an older version of main, after rollbacks (also by other clients)."""
    if len(read_live_versions(main).restored_ids) or len(read_live_versions(source).restored_ids):
        return True
    published = any(True for _ in main.store.list(f"{PUBLISHED_FOLDER}/{forward.branch}"))
    return published and _is_same(forward.head, forward.pin.snapshot)


def _derive(main: TableBranch, source: TableBranch, forward: Forward, *, is_returned: bool) -> Derive:
    def derive(head: Snapshot | None) -> StagedChange:
        if head is None or not _is_same(head, forward.head):
            raise Conflict(
                f"Main was written to while it was fast-forwarded to the branch {forward.branch!r}: nothing was "
                "changed. Make a branch from main as it is and write the change there.",
                kind="not_fast_forward",
                branch=forward.branch,
                fork=forward.head.id,
                newest=None if head is None else head.id,
            )
        _check_schemas(main, source)
        if is_returned:
            mark_restored(main, head.id + 1)
        live_entries, target_entries = main.manifests.live_entries(head), source.manifests.live_entries(forward.target)
        live_codes, target_codes = row_codes(IDENTITY, live_entries, target_entries)
        removed_entries = live_entries.filter(pa.array(~np.isin(live_codes, target_codes)))
        adds = _set_births(
            target_entries.filter(pa.array(~np.isin(target_codes, live_codes))), live_entries, is_returned=is_returned
        )
        return StagedChange(
            entries=pa.concat_tables([as_deletes(removed_entries), adds]),
            base=head,
            keeps=forward.target,
            restored=is_returned,
            fold_base=is_returned,
        )

    return derive


def _set_births(adds: pa.Table, live_entries: pa.Table, *, is_returned: bool) -> pa.Table:
    """Entries as main must write them: with main's birth where main has the file at another level, else a new one."""
    position = adds.schema.get_field_index("commit_snapshot")
    field = adds.schema.field(position)
    positions = pc.index_in(adds["file_name"], value_set=live_entries["file_name"].combine_chunks())
    births = live_entries["commit_snapshot"].combine_chunks().take(positions.combine_chunks())
    if is_returned:
        births = pc.fill_null(births, pa.scalar(COMMIT_SNAPSHOT_UNKNOWN, field.type))
    return adds.set_column(position, field, births.cast(field.type))


def _pin(source: TableBranch, target: Snapshot) -> None:
    name = f"given.{target.id}"
    try:
        source.tags.pin_hidden(name, source=source.tags.source(snapshot_id=target.id))
    except AlreadyExists:  # an earlier try copied it
        tag = source.tags.find(HIDDEN_PREFIX + name)
        if tag is None or not _is_same(tag.snapshot, target):
            raise
    except NotFound as error:
        raise Conflict(
            f"The snapshot {target.id} of the branch was deleted while it was published: try again.",
            kind="version_went",
        ) from error


def _was_published(source: TableBranch, head: Snapshot) -> bool:
    """Whether main's newest snapshot is a published version of this branch, whatever the branch's name was then."""
    pin_id = head.properties.get(FAST_FORWARDED, "").rpartition("/")[0].partition("/")[2]
    if not pin_id.isdecimal():
        return False
    pin = source.tags.find(f"{HIDDEN_PREFIX}given.{pin_id}")
    return pin is not None and head.properties[FAST_FORWARDED].endswith(f"/{pin.snapshot.delta_manifest_list}")


def _new_schemas(main: TableBranch, source: TableBranch) -> list[tuple[str, bytes]]:
    """Paths in main, and bodies, of the schemas that only the branch has, oldest first."""
    bodies: list[tuple[int, bytes]] = []
    own_ids = _schema_ids(main)
    for schema_id in sorted(_schema_ids(source)):
        body = bytes(source.store.get(source.layout.schema(schema_id)))
        if schema_id not in own_ids:
            bodies.append((schema_id, body))
        elif bytes(main.store.get(main.layout.schema(schema_id))) != body:
            raise _schema_moved(str(source.layout.branch))
    return [(main.layout.schema(schema_id), body) for schema_id, body in bodies]


def _check_schemas(main: TableBranch, source: TableBranch) -> None:
    """Raise `Conflict` when main's columns or options were changed since the fork. Cost: 2 LISTs."""
    if _schema_ids(main) - _schema_ids(source):
        raise _schema_moved(str(source.layout.branch))


def _schema_ids(branch: TableBranch) -> set[int]:
    ids = (parse_schema(meta.path) for meta in branch.store.list(branch.layout.schema_folder))
    return {schema_id for schema_id in ids if schema_id is not None}


def _schema_moved(branch: str) -> Conflict:
    return Conflict(
        f"The columns or options of main were changed since the branch {branch!r} started: make a branch from main as "
        "it is and write the change there.",
        kind="not_fast_forward",
        branch=branch,
    )


def _is_same(snapshot: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are the same commit. Ids do not decide it: other clients may use an id twice."""
    return snapshot.id == other.id and snapshot.delta_manifest_list == other.delta_manifest_list
