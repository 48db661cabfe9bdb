"""From changes to a snapshot: the only way in which a table's state moves forward.

Owns: `commit`, which writes manifests, then manifest lists, then the create-only snapshot; the work after a lost race;
the recognition of replayed commits.

Invariants:
- What a snapshot references is durable before the snapshot: data files (put by the caller), then manifests, lists and
  index files. The latter are put together, because only the snapshot names them.
- A lost race rewrites only the two lists, and files whose rows must follow the winner's (`late_rows`). A change that
  depends on the state (`CommitRequest.derive`: overwrite, restore) is derived again from the newest snapshot. Any other
  change that rests on state is checked against it.
- All tries of one change carry one write id (the snapshot's `uuid`), so a lost reply is recognised.
- ADDs of new files leave `commit_snapshot` null: the manifest list gives it (``_ADDED_SNAPSHOT``), and only the
  winner's list is ever read. DELETEs, level upgrades and restored files carry theirs explicitly.
- Contention alone fails a commit only after `TRIES_MAX` lost races, or earlier when ``commit.max-retries`` or
  ``commit.timeout`` was set.
- Where another client rolled back below the boundary, the next id is the boundary, and the snapshot's property
  ``lakebed.follows`` says which snapshot it was committed on.

Commits of other clients compete for the same id by the same create-only put.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final, TypedDict

import pyarrow as pa

import lakebed.compute as pc
from lakebed.arguments import Long
from lakebed.backoff import Backoff, Pauses
from lakebed.errors import AlreadyExists, Conflict, LakebedError, NotFound
from lakebed.ids import new_uuid
from lakebed.log import logger
from lakebed.objects.create_once import put_new_each
from lakebed.objects.port import ObjectMeta
from lakebed.table.branch.branch_folder import find_branch_id
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard, discard_changes
from lakebed.table.branch.earlier_commits import find_earlier, load_restored, newest_first
from lakebed.table.branch.inherited import FOLLOWS, InheritedState, encode_inherited, load_inherited
from lakebed.table.branch.renames import confirm_commit
from lakebed.table.codec.manifest import (
    ADD,
    encode_manifest,
    encode_manifest_list,
    entries_of_changes,
    manifest_meta,
    row_count_delta,
)
from lakebed.table.codec.manifest_merge import MergePlan, fold_run, plan_merge
from lakebed.table.commit.conflicts import check_fits, check_schemas, rests_on_state, touches, writes_same_buckets
from lakebed.table.commit.index_after import index_after
from lakebed.table.commit.late_rows import number_after
from lakebed.table.commit.presence import (
    confirm_kept,
    explain_gone,
    find_gone_file,
    is_taken_back,
    required_paths,
)
from lakebed.table.commit.vector_update import check_live, check_vectors, has_deleted, read_files
from lakebed.table.model.model import (
    BATCH_COMMIT_IDENTIFIER,
    BucketChange,
    CommitKind,
    ManifestMeta,
    Snapshot,
    TableSchema,
)
from lakebed.table.model.options import (
    COMMIT_MAX_RETRIES,
    COMMIT_MAX_RETRY_WAIT,
    COMMIT_MIN_RETRY_WAIT,
    COMMIT_TIMEOUT,
    COMMIT_USER_PREFIX,
    MANIFEST_FULL_COMPACTION_SIZE,
    MANIFEST_MERGE_MIN_COUNT,
    MANIFEST_TARGET_FILE_SIZE,
    TableOptions,
)
from lakebed.table.read.vectors import load_positions, may_have_vectors, vectors_of

_LOG: Final = logger("table")

TRIES_MAX = 1_000
"""Races that one commit may lose before it gives up."""

_STUCK_TRIES_MAX = 16
"""Races in a row that a commit may lose for one id while the newest snapshot stays the same.

After that no commit can win the id.
"""

_MERGE_POSTPONED_FACTOR = 4
"""After a lost race, manifests are merged only when the list is this many times as long as the option says."""

_WAIT_DOUBLINGS_MAX = 4
"""The wait after a lost race doubles at most this often, so that a commit that lost often is not starved."""

_DELTAS_MAX = 64
"""Deltas that are compared after a lost race. If there are more, the live files are compared instead."""

_ENTRY_BYTES = 300
"""Approximate size of one entry in a manifest, to split large changes by ``manifest.target-file-size``."""

_TOGETHER_COUNT_MAX = 32
_TOGETHER_BYTES_MAX = 16 << 20
"""Files that are put together, and their bytes. They are in memory until then."""


@dataclass(frozen=True, slots=True)
class StagedChange:
    """What one try commits on top of the newest snapshot."""

    entries: pa.Table
    """`manifest.ENTRY_SCHEMA`; `commit_snapshot` null where it is inherited."""
    base: Snapshot | None
    """The version to whose files the entries are applied: the newest snapshot, or a rollback's target."""
    keeps: Snapshot | None = None
    """The version whose index manifest and statistics also hold for the result; None: `base`."""
    restored: bool = False
    """Whether the change restores old files. Every later snapshot inherits this."""
    restores: Snapshot | None = None
    """The version that becomes the newest again. Commits after it are undone, and no longer recognised."""
    live: pa.Table | None = None
    """The live entries of `base` with `commit_snapshot` resolved.

    They are written as the new base instead of its manifests. None: the base stays as it is.
    """
    changes: Sequence[BucketChange] = ()
    """The changes that `entries` come from: with dynamic buckets, their key hashes go to the index."""
    drops: Callable[[Sequence[bytes]], Sequence[bool]] | None = None
    """Says for each of some partitions whether it is replaced, and its index with it; None: no partition is."""
    fold_base: bool = False
    """Rewrite the base as one list of live files.

    Needed when entries add a file again whose DELETE is still in the base: clients that read manifests as sets,
    whatever their order, would drop the file.
    """


Derive = Callable[[Snapshot | None], StagedChange]
"""The change, given the newest snapshot."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The version that was read to make a change."""

    snapshot: Snapshot | None
    """None: the table had no snapshot."""


class CommitOptions(TypedDict, total=False):
    """The keywords for its commit that every writing verb accepts."""

    commit_user: str | None
    """None: a new random user."""
    commit_identifier: Long | None
    """With `commit_user`: the pair is committed once, however often it is tried.

    None: a batch, which is never recognised as a replay.
    """
    properties: Mapping[str, str] | None
    """Stored in the snapshot."""
    watermark: Long | None
    """Unix ms, UTC: no rows older than this are expected."""


@dataclass(slots=True)
class OwnFiles:
    """Files that were written for one commit only.

    Attributes:
        changes: the changes that wrote them.
        may_be_named: a snapshot that names them was put, or may have been. From then on an error leaves open whether
            they are committed, unless it says that nothing was committed.
    """

    changes: Sequence[BucketChange] = ()
    may_be_named: bool = False


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One change that should become the next snapshot."""

    kind: CommitKind
    changes: Sequence[BucketChange] = ()
    derive: Derive | None = None
    """Computes a change that depends on the state; called again after a lost race. `changes` is then empty."""
    options: CommitOptions = field(default_factory=lambda: CommitOptions())
    basis: Basis | None = None
    """The version whose rows the changes were made from; None: they depend on no rows.

    If another writer changed rows of the same buckets since that version, the commit is a `Conflict` of kind
    ``rows_changed``.
    """
    schema_id: int | None = None
    """The id that the newest schema must have: else the commit is a `Conflict` of kind ``schema_changed``.

    None: rows written under an older schema are committed, as readers read them; see `conflicts.check_schemas`.
    """
    is_first: bool = False
    """The table must have no version.

    If another writer has made one, the commit is `AlreadyExists` (``table_exists``).
    """
    own_files: OwnFiles | None = None
    """Files that were written for this commit only; None: the caller is responsible for the files.

    If the pair of user and identifier turns out to be committed before the first try, these files are deleted.
    """


def commit(branch: TableBranch, request: CommitRequest) -> Snapshot:
    """Make a change the newest snapshot.

    Returns the snapshot that contains the change. For a replayed (user, identifier) that is the earlier snapshot, or
    the newest if the earlier one expired; the files of `CommitRequest.own_files` are deleted then.

    Raises:
        Conflict: a file that the change deletes is gone, or keys overlap; new files were collected, because the change
            took longer than a day (``file_gone``), or were taken back by a reset of a branch of a repository
            (``branch_moved``); or the allowed retries or time are used up.
        OutcomeUnknown, Unavailable: the store failed while the snapshot was written; look before retrying.

    Cost of an append, warm: 1 HEAD + 1 GET (newest snapshot), 1 LIST of schemas, 1 PUT a manifest, 2 PUTs of lists, 1
    PUT of the snapshot, 1 LIST of the boundary, 1 PUT of the hint, 1 HEAD (whether the table still exists): 10
    requests. A lost race adds what it takes to read the winner's snapshot and delta list, 1 LIST, and the two lists.
    """
    identifier = request.options.get("commit_identifier")
    attempt = _Commit(
        branch=branch,
        request=request,
        changes=request.changes,
        schema=branch.schema,
        commit_user=request.options.get("commit_user") or "",
        commit_identifier=BATCH_COMMIT_IDENTIFIER if identifier is None else int(identifier),
        write_id=new_uuid(branch.environment.rng),
        began_s=branch.environment.clock.monotonic_s(),
        backoff=Backoff(branch.environment, Pauses(0.0, 0.0)),  # a lost race sets the pauses, and the limits
    )
    with branch.commit_turn:
        return attempt.run()


def _fresh_user(branch: TableBranch, options: TableOptions) -> str:
    prefix, user_id = options.get(COMMIT_USER_PREFIX), new_uuid(branch.environment.rng)
    return user_id if prefix is None else f"{prefix}_{user_id}"


@dataclass(frozen=True, slots=True)
class _Changelog:
    """What a snapshot states about its changelog; by default it has none."""

    list_name: str | None = None
    list_bytes: int | None = None
    row_count: int | None = None
    paths: frozenset[str] = frozenset()
    """Paths of the list and its manifests."""
    entries: pa.Table | None = None


@dataclass(slots=True)
class _Commit:
    """One change that is being committed, over all tries."""

    branch: TableBranch
    request: CommitRequest
    schema: TableSchema
    """The newest schema when the running try began."""
    commit_user: str
    """Empty until the first try chooses it by the table's options."""
    commit_identifier: int
    write_id: str
    began_s: float
    backoff: Backoff
    looked: tuple[TableSchema, ObjectMeta | None] = field(init=False)
    """The schema that the running try saw, and its object as it was listed."""
    tries: int = 0
    """Races lost so far."""
    try_started_s: float = 0.0
    changes: Sequence[BucketChange] = ()
    """The changes of the request, or the same with rows that were numbered anew; see `late_rows`."""
    renumberings: int = 0
    """How often the rows were numbered anew."""
    renumbered: frozenset[str] = frozenset()
    """The paths of the files of `changes`, if their rows were numbered anew."""
    entries: pa.Table | None = None
    """The entries of a change that does not depend on the state: computed once."""
    delta: tuple[ManifestMeta, ...] | None = None
    """The manifests of `entries`, written once."""
    merged: dict[tuple[str, ...], tuple[ManifestMeta, ...]] = field(default_factory=dict)
    """Merges done so far, by the names of their inputs.

    After a lost race a merge is valid while the list contains its inputs.
    """
    stuck: int = 0
    """Races lost in a row for the same id."""
    lost_id: int | None = None
    """The id that the last lost race was for."""
    checked: Snapshot | None = None
    """The newest snapshot against which `entries` were checked."""
    written: list[str] = field(default_factory=list)
    """Paths put so far, or waiting to be put. Those that the winning snapshot does not use are discarded."""
    waiting: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and bytes that the running try still has to put."""
    used: frozenset[str] = frozenset()
    """Paths that the snapshot of the running try references."""
    lists: dict[str, tuple[ManifestMeta, ...]] = field(default_factory=dict)
    """Manifest lists written so far, by name."""
    entries_of: dict[str, pa.Table] = field(default_factory=dict)
    """The entries of the manifests written so far, by name."""
    changelog: _Changelog | None = None
    """The changelog of the change, written once: no lost race changes it."""
    brought: list[pa.Table] = field(default_factory=list)
    """The entries of the files that the running try adds, of rows and of changelogs."""

    def run(self) -> Snapshot:
        began_in = find_branch_id(self.branch)
        for _ in self.backoff:
            self.try_started_s = self.branch.environment.clock.monotonic_s()
            head: Snapshot | None = None
            try:
                head = self._newest()
                self._look()
                inherited = InheritedState() if head is None else load_inherited(newest_first(self.branch, head))
                earlier = self._earlier_snapshot(inherited, head)
                if earlier is not None:
                    self._discard()
                    if self.tries == 0 and self.request.own_files is not None:
                        # No snapshot that could name these files was put. After a try, whatever its outcome, the files
                        # are left to the collection of orphans.
                        discard_changes(self.branch, self.request.own_files.changes)
                    return earlier
                snapshot = self._stage(head, inherited)
            except BaseException as error:  # also an interrupt: no snapshot names what the try wrote
                if isinstance(error, NotFound) and head is not None and self._may_go(head):
                    self._note_race(error)
                    continue
                self._discard()
                raise
            if self.request.own_files is not None:
                self.request.own_files.may_be_named = True  # and never false again, not even after a lost race
            try:
                self.branch.snapshots.append(
                    snapshot, confirm=partial(self._confirm, snapshot, began_in), requires=self._required(snapshot)
                )
            except NotFound:
                self._discard()
                raise
            except Conflict as error:
                if error.kind == "branch_replaced":
                    self._discard()
                    raise
                if error.kind in ("branch_moved", "path_gone"):
                    self._forget_manifests()
                self.stuck = self.stuck + 1 if snapshot.id == self.lost_id else 0
                self.lost_id = snapshot.id
                self._note_race(error)
                continue
            self._remember(snapshot)
            self._discard(keep=self.used)
            self._discard_overtaken()
            _LOG.info(
                "committed",
                table=self.branch.store.root_url,
                snapshot=snapshot.id,
                kind=snapshot.commit_kind,
                rows_delta=snapshot.delta_record_count,
                lost_races=self.tries,
            )
            return snapshot
        raise self._contention() from self.backoff.reason

    @property
    def options(self) -> TableOptions:
        return TableOptions(self.schema.options)

    def _look(self) -> None:
        """Read the newest schema, after the newest snapshot: so it is not older than the snapshot's.

        If another writer commits a snapshot of a later schema, it takes the id of the running try: schema ids of
        snapshots ascend.
        """
        before, self.schema = self.schema, self.branch.refresh()
        self.looked = (self.schema, self.branch.schemas.listed)
        if before != self.schema and (before.id >= self.schema.id or self.branch.schemas.load(before.id) != before):
            # The files of the change are gone, or belong to another table.
            raise self.branch.schemas.replacement_error()
        if not self.commit_user:
            self.commit_user = _fresh_user(self.branch, self.options)

    def _newest(self) -> Snapshot | None:
        head = self.branch.snapshots.latest(exact=False)
        if self.branch.snapshots.next_id(head) == (1 if head is None else head.id + 1):
            return head
        # The ids above were passed. Either newer snapshots have them, or another client rolled back below them.
        return self.branch.snapshots.latest()

    def _may_go(self, head: Snapshot) -> bool:
        """Whether a snapshot with missing files was removed by a rollback, or may yet be withdrawn by its writer.

        In a branch of a repository a reset may have taken its files just before the snapshot was put.
        """
        if self.branch.snapshots.find(head.id) != head:
            return True
        self.stuck = self.stuck + 1 if self.lost_id == head.id + 1 else 0
        self.lost_id = head.id + 1
        return is_taken_back(self.branch)

    # ---- one try

    def _stage(self, head: Snapshot | None, inherited: InheritedState) -> Snapshot:
        """Write everything that the next snapshot references; return that snapshot, not yet visible."""
        if self.request.is_first and head is not None:
            raise AlreadyExists(
                f"The table {self.branch.name} has got rows meanwhile, from another writer: nothing was added to them. "
                "Append to them, or choose another table.",
                kind="table_exists",
                table=self.branch.name,
            )
        snapshot_id = self.branch.snapshots.next_id(head)
        follows = {FOLLOWS: str(head.id)} if head is not None and snapshot_id != head.id + 1 else {}
        staged = self._stage_change(head)
        self._check_schemas(staged)
        if self.request.derive is not None or self.delta is None:
            self.delta = self._write_manifests(staged.entries)
        delta = [replace(meta, added_snapshot=snapshot_id) for meta in self.delta]
        base = self._merge(staged, snapshot_id=snapshot_id)
        base_list, base_size = self._write_list(base)
        delta_list, delta_size = self._write_list(delta)
        self.used = frozenset(
            self.branch.layout.manifest(name)
            for name in (base_list, delta_list, *(meta.file_name for meta in base), *(meta.file_name for meta in delta))
        )
        index_manifest = self._index_of(staged)
        changelog = self.changelog = self.changelog or self._write_changelog()
        self.brought = [entries for entries in (staged.entries, changelog.entries) if entries is not None]
        self.used |= changelog.paths | self.renumbered
        self._put_waiting()
        for brought in self.brought:
            self._check_presence(brought)
        delta_rows = row_count_delta(staged.entries)
        source_snapshot = staged.keeps or staged.base
        if staged.restores is not None:
            inherited = load_restored(self.branch, staged.restores, inherited)
        marks = (self.request.options.get("watermark"), head.watermark if head else None)
        now_ms = self.branch.environment.clock.now_ms()
        return Snapshot(
            id=snapshot_id,
            schema_id=self.schema.id,
            base_manifest_list=base_list,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_list,
            delta_manifest_list_size=delta_size,
            changelog_manifest_list=changelog.list_name,
            changelog_manifest_list_size=changelog.list_bytes,
            changelog_record_count=changelog.row_count,
            commit_user=self.commit_user,
            commit_identifier=self.commit_identifier,
            commit_kind=self.request.kind,
            # Commit times must not decrease, even if this clock is behind the last writer's: `travel` bisects them.
            time_ms=now_ms if head is None else max(now_ms, head.time_ms),
            total_record_count=(staged.base.total_record_count if staged.base else 0) + delta_rows,
            delta_record_count=delta_rows,
            uuid=self.write_id,
            index_manifest=index_manifest,
            statistics=source_snapshot.statistics if source_snapshot else None,
            watermark=max((int(mark) for mark in marks if mark is not None), default=None),
            properties={
                **(self.request.options.get("properties") or {}),
                **follows,
                **encode_inherited(replace(inherited, restored=inherited.restored or staged.restored)),
            },
            next_row_id=head.next_row_id if head else None,
        )

    def _stage_change(self, head: Snapshot | None) -> StagedChange:
        if self.request.derive is not None:
            return self.request.derive(head)
        if self.request.kind == "APPEND" and self.request.basis is None and head is not None:
            self._number_rows(head)
        if self.entries is None:
            self.entries = entries_of_changes(self.changes)
        if self.request.basis is not None:
            self._check_basis(self.request.basis, self.entries, head)
        if rests_on_state(self.entries):
            self._check_fits(self.entries, head)
        if may_have_vectors(self.schema) and any(map(read_files, self.request.changes)):
            self._check_vectors(head)
        return StagedChange(entries=self.entries, base=head, changes=self.changes)

    def _number_rows(self, head: Snapshot) -> None:
        """Where the table's merges need it, give the rows numbers above all that other writers committed."""
        try:
            numbered = number_after(self.branch, self.changes, head, times=self.renumberings, note=self.written.extend)
        except NotFound:
            self._check_presence(entries_of_changes(self.changes))
            raise
        if numbered is not None:
            self.changes, self.entries, self.delta = numbered, None, None
            self.renumberings += 1
            names = {file.file_name for change in numbered for file in change.added}
            self.renumbered = frozenset(path for path in self.written if path.rpartition("/")[2] in names)

    def _check_schemas(self, staged_change: StagedChange) -> None:
        """Raise `Conflict` if the change was made under a schema whose rows the newest one cannot carry."""
        basis = self.request.basis.snapshot if self.request.basis is not None else None
        check_schemas(
            staged_change.changes,
            newest=self.schema,
            schema_of=self.branch.schemas.load,
            upserts=self.request.kind == "APPEND",
            least=basis.schema_id if basis is not None else 0,
            wanted=self.request.schema_id,
        )

    def _index_of(self, staged_change: StagedChange) -> str | None:
        """The index manifest of the result. It is written when the change contains key hashes or deleted rows."""
        source_snapshot = staged_change.keeps or staged_change.base
        before = source_snapshot.index_manifest if source_snapshot else None
        if staged_change.keeps is not None:
            return before
        return index_after(
            self.branch,
            before,
            entries=staged_change.entries,
            changes=staged_change.changes,
            drops=staged_change.drops,
            put=lambda body: self._put_index("index", self.branch.layout.index, body),
            put_manifest=lambda body: self._put_index("index-manifest", self.branch.layout.manifest, body),
        )

    def _put_index(self, kind: str, path_of: Callable[[str], str], body: bytes) -> str:
        name = self._fresh_name(kind)
        self._put(path_of(name), body)
        self.used |= {path_of(name)}
        return name

    def _check_vectors(self, head: Snapshot | None) -> None:
        """Raise `Conflict` if another writer deleted rows of the files that the change was made from."""
        basis = None if self.request.basis is None else self.request.basis.snapshot
        check_live(self.request.changes, branch=self.branch, head=head)
        check_vectors(
            self.request.changes,
            now=vectors_of(self.branch, head),
            at_basis=vectors_of(self.branch, basis),
            load=partial(load_positions, self.branch.store),
        )

    def _check_presence(self, entries: pa.Table) -> None:
        """Raise `Conflict` if new files are gone: a collection of orphans, or a reset of their branch, took them."""
        missing_file = self._find_gone([entries])
        if missing_file is not None:
            raise Conflict(
                f"The new file {missing_file} is not there any more; {explain_gone(self.branch)}. Nothing was "
                "committed.",
                kind="branch_moved" if is_taken_back(self.branch) else "file_gone",
            )

    def _find_gone(self, brought: Sequence[pa.Table]) -> str | None:
        missing = (find_gone_file(self.branch, entries, self.schema, select_new=_select_new) for entries in brought)
        return next((path for path in missing if path is not None), None)

    def _check_basis(self, basis: Basis, entries: pa.Table, head: Snapshot | None) -> None:
        """Raise `Conflict` if another writer may have changed the rows that the change was made from."""
        if head == basis.snapshot:
            return
        deltas = None if head is None or basis.snapshot is None else self._deltas_between(basis.snapshot, head)
        if (
            deltas is None
            or any(
                snapshot.commit_kind != "COMPACT" and writes_same_buckets(entries, delta) for snapshot, delta in deltas
            )
            or (
                not self.schema.primary_keys  # there only compactions mark rows, and they change no row
                and has_deleted(self.branch, before=basis.snapshot, now=head, entries=entries)
            )
        ):
            basis_text = "the empty table" if basis.snapshot is None else f"snapshot {basis.snapshot.id}"
            raise Conflict(
                f"Another writer changed rows of the same buckets after {basis_text} was read to make this change. "
                "Nothing was changed: read again and redo the change.",
                kind="rows_changed",
                snapshot=None if basis.snapshot is None else basis.snapshot.id,
            )

    def _check_fits(self, entries: pa.Table, head: Snapshot | None) -> None:
        """Raise `Conflict` unless `entries` fit `head`. After a lost race, check the winners' deltas first."""
        if head is None:
            raise Conflict(
                "This change replaces files, but the table has no snapshot: it was made for another table or the table "
                "was created again. Read again and redo the change.",
                kind="file_gone",
            )
        deltas = None if self.checked is None else self._deltas_between(self.checked, head)
        if deltas is None or any(touches(entries, delta) for _, delta in deltas):
            keys = [field.type for field in self.schema.key_fields]
            live_entries = self.branch.manifests.live_entries(head)
            check_fits(entries, live=live_entries, key_types=keys, snapshot_id=head.id)
        self.checked = head

    def _deltas_between(self, before: Snapshot, head: Snapshot) -> list[tuple[Snapshot, pa.Table]] | None:
        """The snapshots after `before` up to `head` with their delta entries; None when they cannot show what changed.

        That is so when one of them, or `before`, has been deleted or replaced: another client may have rolled back
        below it and used its id again.
        """
        if head.id - before.id > _DELTAS_MAX or self.branch.snapshots.find(before.id) != before:
            return None
        deltas: list[tuple[Snapshot, pa.Table]] = []
        for snapshot_id in range(before.id + 1, head.id + 1):
            snapshot = head if snapshot_id == head.id else self.branch.snapshots.find(snapshot_id)
            if snapshot is None:
                return None
            deltas.append((snapshot, self.branch.manifests.delta_entries(snapshot)))
        return deltas

    def _merge(self, staged_change: StagedChange, *, snapshot_id: int) -> list[ManifestMeta]:
        """The base list: all manifests of `base`. Small neighbours are merged when that is worth its cost."""
        if staged_change.live is not None:
            live_metas = self._write_manifests(staged_change.live)
            return [replace(meta, added_snapshot=snapshot_id) for meta in live_metas]
        metas = [] if staged_change.base is None else list(self.branch.manifests.all_metas(staged_change.base))
        count_min = self.options.get(MANIFEST_MERGE_MIN_COUNT)
        plan = plan_merge(
            metas,
            count_min=count_min if self.tries == 0 else count_min * _MERGE_POSTPONED_FACTOR,
            target_bytes=self.options.get(MANIFEST_TARGET_FILE_SIZE),
            full_threshold_bytes=self.options.get(MANIFEST_FULL_COMPACTION_SIZE),
        )
        if staged_change.fold_base and metas:
            plan = MergePlan(runs=((0, len(metas)),), full=True)
        for start, end in reversed(plan.runs):
            run = metas[start:end]
            names = tuple(meta.file_name for meta in run)
            if names not in self.merged:
                # Combine all columns at once, before each is used: that takes Arrow a third of the time.
                run_entries = pa.concat_tables(self.branch.manifests.entries(meta) for meta in run).combine_chunks()
                entries = fold_run(run_entries)
                if plan.full:
                    entries = entries.filter(pc.equal(entries["kind"], ADD))
                self.merged[names] = self._write_manifests(entries)
            metas[start:end] = [replace(meta, added_snapshot=snapshot_id) for meta in self.merged[names]]
        return metas

    # ---- writing

    def _fresh_name(self, kind: str) -> str:
        return f"{kind}-{self.write_id}-{len(self.written)}"

    def _write_manifests(self, entries: pa.Table) -> tuple[ManifestMeta, ...]:
        """Write entries as manifests of about the target size. Without entries, write none."""
        metas = []
        rows_max = max(1, self.options.get(MANIFEST_TARGET_FILE_SIZE) // _ENTRY_BYTES)
        for start in range(0, entries.num_rows, rows_max):
            part = entries if entries.num_rows <= rows_max else entries.slice(start, rows_max)
            body = encode_manifest(part)
            name = self._fresh_name("manifest")
            self._put(self.branch.layout.manifest(name), body)
            self.entries_of[name] = part
            metas.append(manifest_meta(part, file_name=name, file_size=len(body), schema=self.schema))
        return tuple(metas)

    def _write_changelog(self) -> _Changelog:
        """Write the list of the changelog files that the change adds, if any."""
        logs = [
            replace(change, added=change.changelog, deleted=()) for change in self.request.changes if change.changelog
        ]
        if not logs:
            return _Changelog()
        entries = entries_of_changes(logs)
        metas = self._write_manifests(entries)
        name, size_bytes = self._write_list(metas)
        names = (name, *(meta.file_name for meta in metas))
        row_count = pc.sum(entries["row_count"]).as_py()
        return _Changelog(name, size_bytes, row_count, frozenset(map(self.branch.layout.manifest, names)), entries)

    def _write_list(self, metas: Sequence[ManifestMeta]) -> tuple[str, int]:
        body = encode_manifest_list(metas)
        name = self._fresh_name("manifest-list")
        self.lists[name] = tuple(metas)
        self._put(self.branch.layout.manifest(name), body)
        return name, len(body)

    def _put(self, path: str, body: bytes) -> None:
        """Queue a file that is put, together with others, before the snapshot."""
        self.written.append(path)
        self.waiting.append((path, body))
        waiting_bytes = sum(len(body) for _, body in self.waiting)
        if len(self.waiting) >= _TOGETHER_COUNT_MAX or waiting_bytes >= _TOGETHER_BYTES_MAX:
            self._put_waiting()

    def _put_waiting(self) -> None:
        """Put all queued files; they are durable when this returns."""
        store, waiting, self.waiting = self.branch.store, self.waiting, []
        if not store.is_versioned:
            put_new_each(store, waiting)
            return
        for path, body in waiting:  # each is a row of its own there, and create-only puts cost reads
            store.put(path, body)

    # ---- before and after

    def _parts_of(self, snapshot: Snapshot) -> frozenset[str]:
        """The paths of a snapshot's lists and manifests."""
        index = [] if snapshot.index_manifest is None else [self.branch.layout.manifest(snapshot.index_manifest)]
        return self.used.union(index)

    def _required(self, snapshot: Snapshot) -> list[str]:
        """The paths that the put of a snapshot expects, where others may take them back."""
        if not is_taken_back(self.branch):
            return []
        new = (required_paths(self.branch, entries, self.schema, select_new=_select_new) for entries in self.brought)
        return [*sorted(self._parts_of(snapshot)), *chain.from_iterable(new)]

    def _confirm(self, snapshot: Snapshot, began_in: str | None) -> None:
        """Raise unless the snapshot that was put is a valid commit: its table exists, and so do all its files."""
        confirm_commit(self.branch, snapshot, began_in, *self.looked)
        parts = self._parts_of(snapshot)
        confirm_kept(self.branch, snapshot, parts, find_gone=lambda: self._find_gone(self.brought))

    def _forget_manifests(self) -> None:
        """Make the next try write all manifests again: a reset deleted those of this try."""
        self.delta, self.changelog, self.checked = None, None, None
        self.merged.clear()

    def _earlier_snapshot(self, inherited: InheritedState, head: Snapshot | None) -> Snapshot | None:
        if head is None:
            return None
        return find_earlier(self.branch, self.commit_user, self.commit_identifier, inherited, head)

    def _note_race(self, error: LakebedError) -> None:
        """Set how long the next try waits, and the limits of further tries. Raise when no try can win."""
        self.tries += 1
        self.backoff.note(error)
        if self.stuck >= _STUCK_TRIES_MAX:
            self._discard()
            if error.kind in ("branch_moved", "path_gone"):
                raise Conflict(
                    f"The branch was reset or merged during each of {self.stuck + 1} tries to commit snapshot "
                    f"{self.lost_id}. Nothing was changed: wait until no one resets or merges it, then try again.",
                    kind="commit_stuck",
                    id=self.lost_id,
                ) from error
            if isinstance(error, NotFound):
                raise Conflict(
                    f"What the newest snapshot before {self.lost_id} names is not on the branch: {error.message} It "
                    "was deleted, or a reset took it while the snapshot was committed, and its writer has not "
                    "withdrawn it. Nothing was changed: reset the folder of the table, or the branch; if it is "
                    "missing in what is committed too, revert the commit without it.",
                    kind="commit_stuck",
                    id=self.lost_id,
                ) from error
            raise Conflict(
                f"The commit was tried {self.stuck + 1} times as snapshot {self.lost_id}, and each time "
                f"snapshot {self.lost_id} is taken, although the newest that can be seen is older. Nothing was "
                "changed: run `lakebed fsck` on the table, and look whether another client is rolling it back.",
                kind="commit_stuck",
                id=self.lost_id,
            ) from error
        backoff, timeout_ms = self.backoff, self.options.get(COMMIT_TIMEOUT)
        backoff.attempts_max = self._retries_max + 1
        if timeout_ms is not None:
            backoff.deadline_s = self.began_s + timeout_ms / 1000
        # A try that takes long is overtaken by other writers, so its duration is the unit of the wait.
        took_s = self.branch.environment.clock.monotonic_s() - self.try_started_s
        unit_s = max(self.options.get(COMMIT_MIN_RETRY_WAIT) / 1000, took_s)
        longest_s = min(self.options.get(COMMIT_MAX_RETRY_WAIT) / 1000, unit_s * (1 << _WAIT_DOUBLINGS_MAX))
        backoff.pauses = Pauses(2 * unit_s, longest_s, jitter=1.0)

    @property
    def _retries_max(self) -> int:
        return self.options.get(COMMIT_MAX_RETRIES) if self.options.is_set(COMMIT_MAX_RETRIES) else TRIES_MAX

    def _contention(self) -> Conflict:
        """The error of a commit that lost too many races, or was losing them for too long."""
        self._discard()
        is_late = self.tries <= self._retries_max
        limit = "commit.timeout" if is_late else f"{self._retries_max:,}, which commit.max-retries sets"
        return Conflict(
            f"The commit lost {self.tries} races against other writers and reached {limit}. "
            "Nothing was changed: try again, or raise the limit.",
            kind="commit_contention",
            tries=self.tries,
        )

    def _remember(self, snapshot: Snapshot) -> None:
        """Put what was committed into the reader's cache: the next commit of this process reads only the snapshot."""
        for name, metas in self.lists.items():
            if name not in (snapshot.base_manifest_list, snapshot.delta_manifest_list):
                continue
            self.branch.manifests.remember_list(name, metas)
            for meta in metas:
                if meta.file_name in self.entries_of:
                    self.branch.manifests.remember_entries(meta, self.entries_of[meta.file_name])

    def _discard(self, *, keep: frozenset[str] = frozenset()) -> None:
        """Delete what this change wrote and nothing references. Best effort: what stays is an orphan."""
        unused_paths = [path for path in self.written if path not in keep]
        discard(self.branch.store, unused_paths)

    def _discard_overtaken(self) -> None:
        """Delete the old files of rows that were numbered anew: the change is committed, so no later try needs them."""
        if self.renumberings:
            pairs = zip(self.request.changes, self.changes, strict=True)
            overtaken = [replace(before, changelog=()) for before, now in pairs if now is not before]
            discard_changes(self.branch, overtaken)


def _select_new(entries: pa.Table) -> pa.Table:
    return entries.filter(pc.and_(pc.is_null(entries["commit_snapshot"]), pc.is_valid(entries["creation_time_ms"])))
