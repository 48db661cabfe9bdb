"""Commit a snapshot that another client has prepared: the client wrote the files, manifests and lists; lakebed checks.

Owns: `commit_prepared`, the checks that a prepared snapshot must pass, and what lakebed itself writes into it.

Invariants:
- A snapshot is accepted only on top of the newest one, and only if its base list has exactly the live files of the
  newest one. A client that prepared it on an old version, or on one that was rolled back, must prepare it again.
- The change passes the rules of lakebed's own commits (`conflicts`), and is made visible by the same create-only put,
  with the same boundary.
- A row that deletion vectors mark stays deleted, also where a compaction replaces its file: the result has at most as
  many rows as are not marked. Any other rewrite of a file is trusted to leave out its marked rows.
- With dynamic buckets a key has one bucket, and the index keeps every key that may be stored.
- A prepared snapshot has one write id, made from its names. So it is committed once, however often it is sent.
- A stream that starts again prepares its last commit anew if the snapshot has expired. If a version has one of the
  files, it gets a snapshot without files, which it finds the next time: no row is committed twice.
- Every name in it is a plain file name: nothing outside the table's folders becomes part of the table.
- A data file that is old enough to have been collected must exist. A younger one is trusted to have been written,
  except in a branch of a repository, where a reset takes back files of any age. There its columns are compared too.

Counts, time, schema and inherited properties are lakebed's, not the client's.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import (
    Conflict,
    Corruption,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    UnsupportedFormat,
)
from lakebed.table.branch.branch_folder import find_branch_id
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.earlier_commits import newest_first
from lakebed.table.branch.inherited import encode_inherited, load_inherited
from lakebed.table.branch.renames import confirm_commit
from lakebed.table.codec.index_manifest import HASH, IndexEntry
from lakebed.table.codec.manifest import ADD, IDENTITY, NO_ENTRIES, encode_manifest_list, row_count_delta
from lakebed.table.codec.row_codes import row_codes
from lakebed.table.commit.conflicts import check_fits, check_written_schemas, rests_on_state
from lakebed.table.commit.presence import (
    confirm_kept,
    explain_gone,
    find_gone_file,
    is_taken_back,
    required_paths,
)
from lakebed.table.commit.written_columns import check_columns
from lakebed.table.files.dynamic_bucket import is_dynamic
from lakebed.table.files.external import OwnFiles
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, ManifestMeta, Snapshot, TableSchema, VectorPlace
from lakebed.table.read.vectors import load_positions, places_of, vectors_of
from lakebed.texts import LONG_MAX, format_value

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*")
COMMITTER: Final = "lakebed.committer"
"""Property of a snapshot: the user, or else the access key, that committed it through a server. DO NOT CHANGE."""

_RESERVED: Final = "lakebed."
_UUID_CHARACTERS_MAX: Final = 100
_USER_CHARACTERS_MAX: Final = 1_000
"""Longest user of a commit, which later snapshots repeat."""
_COUNTS: Final = ("base_manifest_list_size", "delta_manifest_list_size", "changelog_manifest_list_size")
_COUNTS_OF_ROWS: Final = ("changelog_record_count", "next_row_id")
_BUCKET: Final = ("partition", "bucket")
_UNREADABLE: Final = (NotFound, Corruption, UnsupportedFormat)


def commit_prepared(
    branch: TableBranch,
    snapshot: Snapshot,
    *,
    base_uuid: str | None = None,
    committer: str = "",
    check_table: Callable[[], object] | None = None,
) -> Snapshot | None:
    """Make a snapshot that another client has prepared the newest one.

    Args:
        snapshot: what the client wants to commit; its `id` is one more than that of the snapshot it is based on.
        base_uuid: of the snapshot that it is based on; None: the client does not say.
        committer: who commits, for the snapshot's property `COMMITTER`; empty: no property.
        check_table: called after the newest schema was read and before anything is decided; raises if the table is
            not the one that the client means.

    Returns:
        The snapshot as committed, now or when the same snapshot was sent before. (If it was sent to another process,
        its schema id and time may differ.) None: it is not based on the newest snapshot, so the client must prepare it
        again. Nothing was changed then. If a stream committed the same files before, in a snapshot that has expired,
        the snapshot adds none.

    Raises:
        InvalidRequest: kind ``invalid_snapshot``: a list or manifest is missing, unreadable or outside the table, or
            the parts do not agree with each other; or a data file whose existence is checked is missing.
        Conflict: the change does not fit the newest snapshot (as `commit`): ``file_gone``, ``file_twice``,
            ``keys_overlap``, ``schema_changed``, ``rows_changed``, ``index_changed``, ``boundary``.
        OutcomeUnknown: whether it was committed before can no longer be determined.
        NotFound: the table is gone.

    Cost, warm: 1 GET of the newest snapshot, 1 LIST of schemas, 1 GET each for base list, delta list and delta
    manifest, 1 PUT of the snapshot, 1 LIST of the boundary, 1 HEAD: 8 requests. The caller writes the hint for clients
    of the files, when no reply waits for it (`SnapshotLog.store_latest_hint`). Of the base list only the part that the
    newest snapshot's lists do not have is decoded. Data files whose age is at least 9 hours or unknown cost 1 HEAD
    each, or 1 LIST a bucket with more than 3 of them. In a branch of a repository also as `check_columns`.
    """
    if snapshot.id < 1:
        raise _invalid(f"its id is {snapshot.id}, and the first one is 1")
    snapshot = replace(snapshot, uuid=_write_id(snapshot))
    with branch.commit_turn:
        began_in = find_branch_id(branch)
        head = _find_base(branch, snapshot)
        schema = branch.refresh()
        schema_object = branch.schemas.listed
        if check_table is not None:
            check_table()
        earlier_snapshot = _find_committed(branch, snapshot, head)
        if earlier_snapshot is not None or not _is_on_top(branch, snapshot, head, base_uuid):
            return earlier_snapshot
        try:
            if head is not None and _is_repeated(branch, snapshot, head):
                snapshot = _leave_out_files(branch, snapshot, head)
            full_snapshot = _complete(branch, snapshot, head, schema, committer=committer)
            requires, look = _plan_look(branch, full_snapshot, schema)
        except LakebedError as error:
            newest = branch.snapshots.latest()
            if newest != head:  # another commit was first, perhaps this very one, or a rollback deleted files of it
                return _find_committed(branch, snapshot, newest)
            if isinstance(error, _UNREADABLE):
                raise _invalid(f"a part of it cannot be read: {error.message.removesuffix('.')}") from error
            raise

        def confirm() -> None:
            confirm_commit(branch, full_snapshot, began_in, schema, schema_object)
            look()

        try:
            branch.snapshots.append(full_snapshot, confirm=confirm, hints=False, requires=requires)
        except Conflict as error:
            if error.kind in ("schema_changed", "branch_replaced"):  # the table was created again
                raise
            return _find_committed(branch, snapshot, branch.snapshots.latest())
        return full_snapshot


def _plan_look(
    branch: TableBranch, snapshot: Snapshot, schema: TableSchema
) -> tuple[Sequence[str], Callable[[], None]]:
    """Return the files that a snapshot names, and a check to run after its put: that all of them exist.

    Cost: none: its lists are cached.
    """
    if not is_taken_back(branch):
        return (), lambda: None
    names = {snapshot.base_manifest_list, snapshot.delta_manifest_list}
    names |= {meta.file_name for meta in branch.manifests.all_metas(snapshot)}
    names |= {name for name in (snapshot.changelog_manifest_list, snapshot.index_manifest) if name is not None}
    entries = branch.manifests.delta_entries(snapshot)
    parts = set(map(branch.layout.manifest, names))
    new = required_paths(branch, entries, schema, select_new=lambda added: added)
    find_gone = partial(find_gone_file, branch, entries, schema, select_new=lambda added: added)
    return [*sorted(parts), *new], partial(confirm_kept, branch, snapshot, parts, find_gone=find_gone)


def _find_base(branch: TableBranch, snapshot: Snapshot) -> Snapshot | None:
    """The snapshot that this one is based on, if this process has seen no later one; else the newest.

    The create-only put decides whether another process has put a later one, so this is not checked first.
    """
    if branch.snapshots.seen_id == snapshot.id - 1:
        base = branch.snapshots.find(snapshot.id - 1)
        if base is not None:
            return base
    head = branch.snapshots.latest(exact=False)
    if snapshot.id > 1 + (0 if head is None else head.id):
        head = branch.snapshots.latest()  # the client has seen one behind a gap that a rollback left
    return head


def _write_id(snapshot: Snapshot) -> str:
    """The write id: the client's own, or one that is made from names that no two commits share."""
    if snapshot.uuid is not None and not 0 < len(snapshot.uuid) <= _UUID_CHARACTERS_MAX:
        raise _invalid(f"its uuid has not 1 to {_UUID_CHARACTERS_MAX} characters")
    if snapshot.uuid is not None:
        return snapshot.uuid
    names = (snapshot.commit_user, str(snapshot.commit_identifier), snapshot.commit_kind)
    lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "\n".join((*names, *lists))))


def _find_committed(branch: TableBranch, snapshot: Snapshot, head: Snapshot | None) -> Snapshot | None:
    """The snapshot as committed, if it was sent before; None: it was not committed.

    Raises `OutcomeUnknown`: its id was passed so long ago that the boundary does not tell. Cost: nothing for an id
    above the newest; else 1 GET, and for an expired one 1 LIST of the boundary.
    """
    if head is None or snapshot.id > head.id:
        return None
    existing_snapshot = head if snapshot.id == head.id else branch.snapshots.find(snapshot.id)
    if existing_snapshot is not None:
        is_same = (existing_snapshot.uuid, existing_snapshot.delta_manifest_list) == (
            snapshot.uuid,
            snapshot.delta_manifest_list,
        )
        return existing_snapshot if is_same else None
    outcome = branch.snapshots.log.create_outcome(snapshot.id, snapshot.uuid)
    if outcome == "won":
        return head
    if outcome == "lost":
        return None
    raise OutcomeUnknown(
        f"Snapshot {snapshot.id} has expired, or was rolled back, so whether this commit was made before is not known: "
        "look whether its rows are in the table, then write them again if they are not.",
        kind="boundary_forgotten",
        id=snapshot.id,
    )


def _is_on_top(branch: TableBranch, snapshot: Snapshot, head: Snapshot | None, base_uuid: str | None) -> bool:
    """Whether the client based a snapshot on the newest one. Raises `InvalidRequest`, `Conflict`."""
    next_id = 1 if head is None else head.id + 1
    if snapshot.id > next_id:
        raise _invalid(f"its id is {snapshot.id}, and the next one is {next_id}")
    if snapshot.id < next_id:
        return False
    if base_uuid is not None and (head is None or (head.uuid is not None and head.uuid != base_uuid)):
        return False
    # The boundary that was seen may be that of a dropped table, since created again: then a new read shows no such
    # boundary.
    if branch.snapshots.next_id(head) > next_id and branch.snapshots.log.boundary() > next_id:
        raise Conflict(
            f"Snapshot {next_id} cannot be committed: ids below {branch.snapshots.next_id(head)} were used before "
            "another client rolled the table back on its files. Commit once with lakebed (`lakebed table compact` will "
            "do), which continues above them; then commit again.",
            kind="boundary",
            id=next_id,
        )
    return True


def _is_repeated(branch: TableBranch, snapshot: Snapshot, head: Snapshot) -> bool:
    """Whether a stream sends a commit again that it does not find, because the snapshot of that commit has expired.

    The newest version then contains what its user committed with this identifier, or with a later one. A stream that
    was set back uses identifiers again too, but for new files. So one of the files must be in a version.

    Cost: nothing more for a later identifier; else the live files of every snapshot and tag, until one has a file of
    the commit.
    """
    if snapshot.commit_identifier == BATCH_COMMIT_IDENTIFIER:
        return False
    last_commit = load_inherited(newest_first(branch, head)).users.get(snapshot.commit_user)
    if last_commit is None or snapshot.commit_identifier > last_commit.identifier:
        return False
    _check_names([snapshot.delta_manifest_list])
    metas = _load_metas(branch, snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)
    columns = branch.manifests.concat_entries(metas).select(["kind", "file_name"]).to_pylist()
    deleted = {entry["file_name"] for entry in columns if entry["kind"] != ADD}
    added = {entry["file_name"] for entry in columns if entry["kind"] == ADD} - deleted
    if not added:
        return False
    tags = (tag for tag in map(branch.tags.find, branch.tags.all_names()) if tag is not None)
    versions = itertools.chain(newest_first(branch, head), (tag.snapshot for tag in tags))
    return any(
        not added.isdisjoint(branch.manifests.live_entries(version)["file_name"].to_pylist()) for version in versions
    )


def _leave_out_files(branch: TableBranch, snapshot: Snapshot, head: Snapshot) -> Snapshot:
    """The snapshot with an empty delta, which is put. Cost: 1 PUT."""
    body = encode_manifest_list([])
    name = f"manifest-list-{uuid.uuid5(uuid.NAMESPACE_OID, snapshot.delta_manifest_list)}-0"
    branch.store.put(branch.layout.manifest(name), body)
    return replace(
        snapshot,
        delta_manifest_list=name,
        delta_manifest_list_size=len(body),
        changelog_manifest_list=None,
        changelog_manifest_list_size=None,
        changelog_record_count=None,
        index_manifest=head.index_manifest,
    )


def _complete(
    branch: TableBranch, snapshot: Snapshot, head: Snapshot | None, schema: TableSchema, *, committer: str
) -> Snapshot:
    """Check everything that a snapshot names. Return it with the fields that lakebed decides."""
    _check_members(snapshot, head)
    _check_numbers(snapshot)
    before = () if head is None else (head.base_manifest_list, head.delta_manifest_list)
    base = branch.manifests.extended_metas(
        snapshot.base_manifest_list, size_bytes=snapshot.base_manifest_list_size, parts=before
    )
    delta = _load_metas(branch, snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)
    live_entries = NO_ENTRIES if head is None else branch.manifests.live_entries(head)
    _check_base(branch, base, head, live_entries)
    entries = branch.manifests.concat_entries(delta)
    _check_entries(branch, entries, live_entries, schema)
    _check_change(branch, snapshot, entries, live_entries, schema)
    missing_file = find_gone_file(branch, entries, schema, select_new=partial(_select_new, live_entries=live_entries))
    if missing_file is not None:
        raise _invalid(f"the file {missing_file}, which it adds, is not there; {explain_gone(branch)}")
    check_columns(branch, entries, schema, select_new=partial(_select_new, live_entries=live_entries))
    if snapshot.changelog_manifest_list is not None:
        logs = _load_metas(branch, snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size)
        _check_entries(branch, branch.manifests.concat_entries(logs), live_entries, schema)
    _check_index(branch, snapshot, head, entries, live_entries, schema)
    delta_rows = row_count_delta(entries)
    inherited = load_inherited(() if head is None else newest_first(branch, head))
    marks = [mark for mark in (snapshot.watermark, head.watermark if head else None) if mark is not None]
    now_ms = branch.now_ms()
    return replace(
        snapshot,
        schema_id=schema.id,
        # By our clock: a client's may be years ahead, and no later snapshot may be older than this one.
        time_ms=now_ms if head is None else max(now_ms, head.time_ms),
        delta_record_count=delta_rows,
        total_record_count=(head.total_record_count if head else 0) + delta_rows,
        watermark=max(marks, default=None),
        properties={
            **{name: value for name, value in snapshot.properties.items() if not name.startswith(_RESERVED)},
            **encode_inherited(inherited),
            **({COMMITTER: committer} if committer else {}),
        },
        version=3,
    )


def _select_new(entries: pa.Table, *, live_entries: pa.Table) -> pa.Table:
    return entries.filter(pc.invert(pc.is_in(entries["file_name"], value_set=live_entries["file_name"])))


def _check_members(snapshot: Snapshot, head: Snapshot | None) -> None:
    names = (
        snapshot.base_manifest_list,
        snapshot.delta_manifest_list,
        snapshot.changelog_manifest_list,
        snapshot.index_manifest,
        snapshot.statistics,
    )
    _check_names(name for name in names if name is not None)
    # A client that rewrites manifests repeats the properties of the snapshot that it rewrites. Those are not its own.
    old_properties = {} if head is None else head.properties
    if any(
        name.startswith(_RESERVED) and old_properties.get(name) != value for name, value in snapshot.properties.items()
    ):
        raise _invalid(f"its properties hold a name that begins with {_RESERVED}, which only lakebed writes")
    if head is not None and (snapshot.next_row_id or 0) < (head.next_row_id or 0):
        raise _invalid(f"its next row id is {snapshot.next_row_id}, below {head.next_row_id} of the newest snapshot")


def _check_numbers(snapshot: Snapshot) -> None:
    """Refuse what other clients could not read back: numbers beyond 64 bits, negative counts, too long a user."""
    counts = {name: getattr(snapshot, name) for name in (*_COUNTS, *_COUNTS_OF_ROWS)}
    for name, number in counts.items():
        if number is not None and not 0 <= number <= LONG_MAX:
            raise _invalid(f"its {name} is {format_value(number)}, and can be 0 to {LONG_MAX}")
    for name in ("commit_identifier", "watermark"):
        number = getattr(snapshot, name)
        if number is not None and not -LONG_MAX - 1 <= number <= LONG_MAX:
            raise _invalid(f"its {name} is {format_value(number)}, which has more than 64 bits")
    if len(snapshot.commit_user) > _USER_CHARACTERS_MAX:
        raise _invalid(f"its commit user has more than {_USER_CHARACTERS_MAX:,} characters")


def _load_metas(branch: TableBranch, name: str, size_bytes: int | None) -> list[ManifestMeta]:
    metas = branch.manifests.extended_metas(name, size_bytes=size_bytes)
    _check_names(meta.file_name for meta in metas)
    return metas


def _check_base(
    branch: TableBranch, base: Sequence[ManifestMeta], head: Snapshot | None, live_entries: pa.Table
) -> None:
    """Raise unless the base list has exactly the live files of the newest snapshot."""
    of_head = [] if head is None else branch.manifests.all_metas(head)
    if [meta.file_name for meta in base] == [meta.file_name for meta in of_head]:
        return
    _check_names(meta.file_name for meta in base)
    base_entries = branch.manifests.live_of(base)
    live_codes, base_codes = row_codes(IDENTITY, live_entries, base_entries)
    if len(live_codes) != len(base_codes) or not np.isin(live_codes, base_codes).all():
        raise _invalid(
            f"its base list has {base_entries.num_rows} live files, and not the {live_entries.num_rows} of snapshot "
            f"{0 if head is None else head.id}, on which it is to be committed"
        )


def _check_entries(branch: TableBranch, entries: pa.Table, live_entries: pa.Table, schema: TableSchema) -> None:
    """Raise unless every entry is a file of this table: a plain name, in a bucket's folder or at an external path."""
    _check_names(entries["file_name"].to_pylist())
    _check_names(itertools.chain.from_iterable(entries["extra_files"].to_pylist()))
    if (entries["bucket"].to_numpy() < -2).any():
        raise _invalid("a bucket's number is below -2")
    folders_of = Placement.of(schema)
    if schema.partition_keys:
        folders_of.partition_folders(pc.unique(entries["partition"]))
    if entries["external_path"].null_count == entries.num_rows:
        return
    outside = entries.filter(pc.and_(pc.is_valid(entries["external_path"]), pc.equal(entries["kind"], ADD)))
    outside = outside.filter(pc.invert(pc.is_in(outside["external_path"], value_set=live_entries["external_path"])))
    is_own = OwnFiles(branch.store, folders_of.folders).among(outside)
    if not is_own.all():
        path = outside["external_path"].to_pylist()[int(np.argmin(is_own))]
        raise _invalid(f"it names the file {path}, which lies outside the table and its external paths")


def _check_change(
    branch: TableBranch, snapshot: Snapshot, entries: pa.Table, live_entries: pa.Table, schema: TableSchema
) -> None:
    """Raise `Conflict` unless the change fits the newest snapshot, by the rules of every commit of lakebed."""
    # A change has few files: comparing them as Python texts takes less time than Arrow's overhead.
    columns = zip(*(entries[name].to_pylist() for name in ("kind", "file_name", "schema_id")), strict=True)
    added_files: list[tuple[str, int]] = []
    deleted_files: list[tuple[str, int]] = []
    for kind, name, schema_id in columns:
        (added_files if kind == ADD else deleted_files).append((name, schema_id))
    snapshot_id = snapshot.id - 1
    if rests_on_state(entries):
        keys = [field.type for field in schema.key_fields]
        check_fits(entries, live=live_entries, key_types=keys, snapshot_id=snapshot_id)
    deleted_names = {name for name, _ in deleted_files}
    new_files = [(name, schema_id) for name, schema_id in added_files if name not in deleted_names]
    is_twice = pc.is_in(live_entries["file_name"], value_set=pa.array([name for name, _ in new_files], pa.string()))
    if pc.any(is_twice).as_py():
        name = live_entries["file_name"].filter(is_twice)[0].as_py()
        raise Conflict(
            f"The file {name} is in snapshot {snapshot_id} already: this change was committed before. Nothing was "
            "changed.",
            kind="file_twice",
            file=name,
        )
    added_names = {name for name, _ in added_files}
    check_written_schemas(
        {schema_id for _, schema_id in new_files},
        newest=schema,
        schema_of=branch.schemas.load,
        upserts=snapshot.commit_kind == "APPEND",
        least=max((schema_id for name, schema_id in deleted_files if name not in added_names), default=0),
    )


def _check_index(
    branch: TableBranch,
    snapshot: Snapshot,
    head: Snapshot | None,
    entries: pa.Table,
    live_entries: pa.Table,
    schema: TableSchema,
) -> None:
    """Raise unless the index files keep what the newest snapshot has: deleted rows deleted, one bucket for a key."""
    vectors = vectors_of(branch, head)
    if snapshot.commit_kind == "COMPACT" and vectors:
        _check_compaction(branch, entries, vectors)
    before = None if head is None else head.index_manifest
    is_same = snapshot.index_manifest == before
    index: tuple[IndexEntry, ...] = ()
    if snapshot.index_manifest is not None and not (is_same and not is_dynamic(schema)):
        index = tuple(branch.manifests.index_entries(snapshot.index_manifest))
    known_entries: Sequence[IndexEntry] = () if before is None or is_same else branch.manifests.index_entries(before)
    if not is_same:
        _check_names(entry.file_name for entry in index)
        if any(entry.external_path is not None for entry in index):
            raise _invalid("an index file lies outside the table")
        _check_vectors(branch, index, vectors, entries, live_entries)
        _check_hashes(branch, index, known_entries)
    # Where a key may move between partitions, other clients keep no index in the table.
    if is_dynamic(schema) and set(schema.partition_keys) <= set(schema.primary_keys):
        _check_index_is_whole(branch, snapshot, index, known_entries, entries, live_entries)


def _check_compaction(branch: TableBranch, entries: pa.Table, vectors: Mapping[str, VectorPlace]) -> None:
    """Raise `Conflict` if a compaction brings back deleted rows: it has more rows than its inputs have unmarked rows.

    Cost: 1 GET for each file that it deletes and that has a vector.
    """
    columns = zip(*(entries[name].to_pylist() for name in (*_BUCKET, "file_name", "kind", "row_count")), strict=True)
    surplus: dict[tuple[bytes, int], int] = {}
    deleted_places: dict[str, tuple[bytes, int]] = {}
    added_names: set[str] = set()
    for partition, bucket, name, kind, row_count in columns:
        place = partition, bucket
        surplus[place] = surplus.get(place, 0) + (row_count if kind == ADD else -row_count)
        if kind == ADD:
            added_names.add(name)
        else:
            deleted_places[name] = place
    marked_places = {
        name: place for name, place in deleted_places.items() if name in vectors and name not in added_names
    }
    for name, place in marked_places.items():
        surplus[place] += len(load_positions(branch.store, vectors[name]))
    for name, place in marked_places.items():
        if surplus[place] > 0:
            raise _rows_changed(name)


def _check_vectors(
    branch: TableBranch,
    index: Sequence[IndexEntry],
    vectors: Mapping[str, VectorPlace],
    entries: pa.Table,
    live_entries: pa.Table,
) -> None:
    deleted_names = entries.filter(pc.not_equal(entries["kind"], ADD))["file_name"]
    added_names = entries.filter(pc.equal(entries["kind"], ADD))["file_name"]
    stays = (set(live_entries["file_name"].to_pylist()) - set(deleted_names.to_pylist())) | set(added_names.to_pylist())
    now = places_of(index, branch.layout)
    load = partial(load_positions, branch.store)
    for name, place in vectors.items():
        if name in stays and now.get(name) != place:
            after = load(now[name]) if name in now else np.empty(0, np.int64)
            if not np.isin(load(place), after).all():
                raise _rows_changed(name)


def _rows_changed(name: str) -> Conflict:
    return Conflict(
        f"Another writer deleted rows of the file {name} since this change was made, and it would bring "
        "them back. Nothing was changed: read again and redo the change.",
        kind="rows_changed",
        file=name,
    )


def _check_hashes(branch: TableBranch, index: Sequence[IndexEntry], index_entries: Sequence[IndexEntry]) -> None:
    """Raise `Conflict` if a key of a dynamic bucket would be in two buckets. Cost: 1 GET an index file not cached."""
    names = {entry.file_name for entry in index_entries}
    changed_partitions = {
        entry.partition for entry in index if entry.index_type == HASH and entry.file_name not in names
    }
    for partition in changed_partitions:
        of_partition = [entry for entry in index if entry.index_type == HASH and entry.partition == partition]
        hashes, buckets = branch.hash_index.load_partition(of_partition)
        is_again = (hashes[1:] == hashes[:-1]) & (buckets[1:] != buckets[:-1])
        if is_again.any():
            raise Conflict(
                "Another writer added some of the same new keys at the same time, in other buckets. Nothing was "
                "changed: write the rows again.",
                kind="index_changed",
            )


def _check_index_is_whole(
    branch: TableBranch,
    snapshot: Snapshot,
    index: Sequence[IndexEntry],
    index_entries: Sequence[IndexEntry],
    entries: pa.Table,
    live_entries: pa.Table,
) -> None:
    """Raise `Conflict` if the index of dynamic buckets lacks keys that may be stored: they would get a second bucket.

    An overwrite may leave out the keys of buckets that keep no file.
    """
    is_added = pc.equal(entries["kind"], ADD)
    deleted_names = entries.filter(pc.invert(is_added))["file_name"]
    remaining_entries = live_entries.filter(pc.invert(pc.is_in(live_entries["file_name"], value_set=deleted_names)))
    needed_places = {*_buckets_of(remaining_entries)}
    if snapshot.commit_kind != "OVERWRITE":
        needed_places |= {*_buckets_of(live_entries)}
    hashes_of: dict[tuple[bytes, int], list[IndexEntry]] = {}
    for entry in index:
        if entry.index_type == HASH:
            hashes_of.setdefault((entry.partition, entry.bucket), []).append(entry)
    names = {entry.file_name for entry in index}
    for entry in index_entries:
        place = entry.partition, entry.bucket
        if entry.index_type != HASH or entry.file_name in names or place not in needed_places:
            continue
        hashes, _ = branch.hash_index.load_partition(hashes_of.get(place, ()))
        if not np.isin(branch.hash_index.hashes(entry), hashes).all():
            raise _index_incomplete(entry.bucket)
    for partition, bucket in _buckets_of(entries.filter(is_added)):
        if bucket >= 0 and (partition, bucket) not in hashes_of:
            raise _index_incomplete(bucket)


def _buckets_of(entries: pa.Table) -> list[tuple[bytes, int]]:
    groups = entries.group_by(_BUCKET, use_threads=False).aggregate([])
    return list(zip(*(groups[name].to_pylist() for name in _BUCKET), strict=True))


def _index_incomplete(bucket: int) -> Conflict:
    return Conflict(
        f"The index of the snapshot lacks keys of the dynamic bucket {bucket}, which would get a second bucket when "
        "they are written again. Nothing was changed: write with a client that keeps the index of dynamic buckets.",
        kind="index_changed",
        bucket=bucket,
    )


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if _PLAIN.fullmatch(name) is None:
            raise _invalid(f"it names the file {name!r}, which is no plain name of a file in the table's folders")


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The prepared snapshot cannot be committed: {why}. Nothing was changed.", kind="invalid_snapshot"
    )
