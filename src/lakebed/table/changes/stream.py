"""Follow a table: where a reader is, how far it goes next, and what it reads on the way.

Owns: `StreamOffset`, which a reader keeps and passes back, and `TableStream`.

Invariants:
- Only the offsets decide what is read between them, so a batch that is read again has the same rows.
- The rows of a snapshot come in units: files of an append table, buckets of a primary-key table, in an order that only
  the snapshot decides. So a key of a primary-key table is in a batch once.
- With a changelog producer, changes come from changelog files, and a batch has the net change of each key: at most the
  row before and the row after. With ``full-compaction`` these are changes of the rows that compactions have logged,
  those of the highest level, also where an overwrite or a rollback changes these.
- With deletion vectors and a primary key a stream follows what is written; where the engine computes rows, it follows
  what compactions make visible (`producer_to_follow`). `commits` always returns what readers see.
- A version with which a stream begins is read in its own batches. So is, as changes, a snapshot that takes rows away.
- A stream ends with an error rather than leave out rows: when snapshots expired before it read them, and when the table
  was dropped, replaced or rolled back to before its offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.decoding import convert
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.runtime import kept_property
from lakebed.table.branch.consumers import store_consumer
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import follows
from lakebed.table.branch.travel import Time, at_version, parse_time_ms
from lakebed.table.changes.change_units import ChangeUnit, Inserted, Told
from lakebed.table.changes.incremental import (
    additions_in,
    check_increments,
    entries_in_log,
    entries_of_log,
    has_log,
    plan_logged,
    plan_replaced,
    plan_written,
    producer_to_follow,
    whole_rows,
)
from lakebed.table.changes.stream_limits import Content, Limits, Taken
from lakebed.table.codec.manifest import DELETE, NO_ENTRIES
from lakebed.table.commit.vector_update import has_deleted
from lakebed.table.files.splits import plan_splits
from lakebed.table.model.changelog_options import Producer
from lakebed.table.model.model import ROLLED_BACK_TO, DataField, Snapshot, Split, TableSchema, VectorPlace
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.vectors import may_have_vectors, skips_level_0, vectors_of, with_vectors
from lakebed.table.schema.schema_log import SchemaLog
from lakebed.texts import utc

Start = Literal["latest-full", "latest", "from-snapshot", "from-timestamp"]

_NO_VECTORS: Final[Mapping[str, VectorPlace]] = {}

_AGAIN: Final = "start again with a new checkpoint"


class StreamOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a stream has read. Plain data, which readers store in their checkpoints.

    Attributes:
        table: when the table was created, Unix ms; it distinguishes tables of the same name.
        snapshot: the newest snapshot of which rows were read; 0: none.
        commit: the manifest list of that snapshot, which no other snapshot has; empty: unknown.
        units: how many of its units were read; None: all.
        full: the units are those of the whole version, not only those that the snapshot added.
    """

    table: int
    snapshot: int
    commit: str = ""
    units: int | None = None
    full: bool = False

    def members(self) -> dict[str, Any]:
        """The offset as a dictionary of text, numbers and booleans, always in one order."""
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members

    @classmethod
    def of(cls, members: object) -> StreamOffset:
        """Read what `members` returned. Raises `InvalidRequest`."""
        try:
            return convert(members, cls)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"The checkpoint's offset {members!r} is not one of a lakebed table ({error}): {_AGAIN}.",
                kind="invalid_offset",
            ) from error


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a stream reads."""

    start: Start = "latest-full"
    version: int | str | None = None
    """With ``from-snapshot``: a snapshot id or a tag; its own rows are the first."""
    timestamp: Time | None = None
    """With ``from-timestamp``: the first snapshot is the first one committed at or after it."""
    changes: bool = False
    """Return deletions as rows too, and the kind of every row in `change_units.ROW_KIND_COLUMN`."""
    removals: Literal["fail", "skip"] = "fail"
    """Without `changes`: what to do at a snapshot that takes rows away."""


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What is between two offsets: splits, or units of changes, and the plan to read them with."""

    plan: ReadPlan
    splits: Sequence[Split] = ()
    units: Sequence[ChangeUnit] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range of snapshots: a version or a time."""

    version: str | None = None
    time_ms: int | None = None
    is_in: bool = True
    """Whether the range includes the snapshot of the version, or those of that exact millisecond."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A snapshot between two offsets, and how the stream treats it."""

    snapshot: Snapshot
    before: Snapshot | None
    kind: Literal["rows", "nothing", "replaced"]


class TableStream:
    """A table that is followed, with the columns of one of its schemas. Each method states what it raises.

    Args:
        branch: the branch that is followed.
        settings: see `StreamSettings`.
        schema: the schema whose columns are read.
    """

    def __init__(self, branch: TableBranch, settings: StreamSettings, *, schema: TableSchema) -> None:
        self._branch = branch
        self._settings = settings
        self._schema = schema
        self._producer = producer_to_follow(schema) if settings.changes else Producer.NONE
        self._told: Told = "net" if self._producer is Producer.INPUT else "net-exact"
        self._fitting = {schema.id: schema}

    # ---- offsets

    def first(self) -> StreamOffset:
        """Where a new stream begins. Raises `InvalidRequest`, `NotFound`: as the settings' version or time."""
        self._check_engine()
        settings, table_created_ms = self._settings, self._table
        newest = self._branch.snapshots.latest()
        if settings.start == "from-snapshot":
            return self._before(self._snapshot_of_option().id)
        if settings.start == "from-timestamp":
            return self._at_time(newest)
        if newest is None:
            return StreamOffset(table_created_ms, 0)
        if settings.start == "latest":
            return self._after(newest)
        return StreamOffset(table_created_ms, newest.id, newest.delta_manifest_list, units=0, full=True)

    def after(self, snapshot_id: int) -> StreamOffset:
        """The offset of a reader that has read a snapshot, and all before it; 0: none."""
        return StreamOffset(self._table, snapshot_id)

    def newest(self) -> int:
        """The id of the newest snapshot; 0: there is none. Cost: as `SnapshotLog.latest`."""
        newest = self._branch.snapshots.latest()
        return 0 if newest is None else newest.id

    def advance(self, start: StreamOffset, limits: Limits, *, until: int | None = None) -> StreamOffset:
        """How far the next batch goes; `start` itself if there is nothing new.

        Args:
            limits: limits of the batch.
            until: the last snapshot to read; None: the newest.

        Raises `NotFound`: snapshots expired before they were read, or the table is gone; `Conflict`: it was replaced or
        rolled back; `InvalidRequest`: rows were taken away, or its columns changed.
        Cost: 1 GET + 1 HEAD if there is nothing new; else also 1 LIST, 1 GET a snapshot, and with limits the manifests
        of each.
        """
        newest = self._branch.snapshots.latest()
        if newest is not None and start == self._after(newest):
            return start
        self._check_table(start, newest)
        batch, offset = Taken(limits), start
        if start.units is not None:
            content = self._content(self._snapshot(start), is_full=start.full)
            end = batch.take(content, start.units)
            if end < content.count:
                return msgspec.structs.replace(start, units=end)
            offset = msgspec.structs.replace(start, units=None, full=False)
            if start.full and end > start.units:
                return offset
        for step in self._steps(offset, until):
            if step.kind == "replaced":
                return offset if batch.snapshots else self._after(step.snapshot)
            if step.kind == "rows" and limits != Limits():
                content = self._content(step.snapshot, is_full=False)
                end = batch.take(content, 0) if content.count else 0
                if end == 0 and content.count:
                    return offset
                if end < content.count:
                    return msgspec.structs.replace(self._after(step.snapshot), units=end)
            elif step.kind == "rows":
                batch.snapshots += 1
            offset = self._after(step.snapshot)
        return offset

    def hold(self, consumer: str, offset: StreamOffset) -> None:
        """Keep the snapshots after an offset from expiring, as a consumer of the table.

        Raises `NotFound`: the branch is gone. Cost: 1 PUT, in a branch 1 LIST.
        """
        is_read = offset.units is None
        next_id = offset.snapshot + 1 if is_read else max(1, offset.snapshot)
        store_consumer(self._branch.store, self._branch.layout, consumer, next_snapshot_id=next_id)
        self._branch.schemas.confirm_branch()  # a rename does not move progress that is written after it

    # ---- rows

    def plan(self, start: StreamOffset, end: StreamOffset, *, columns: Sequence[str] | None = None) -> StreamBatch:
        """What a batch reads.

        Args:
            start, end: as `advance` took and returned them, possibly long ago.
            columns: of `StreamBatch.splits`; units of changes have all columns.

        Raises as `advance`. Cost: the manifests of the snapshots in between.
        """
        self._check_engine()
        newest = self._branch.snapshots.latest()
        self._check_table(start, newest)
        self._check_history(end, newest)
        deltas: list[pa.Table] = []
        last: Snapshot | None = None
        if start.units is not None:
            last = self._snapshot(start)
            to = end.units if end.snapshot == start.snapshot else None
            part = self._content(last, is_full=start.full).slice(start.units, to)
            if start.full and (part.num_rows or end.snapshot == start.snapshot):
                return self._batch_of_inserts(part, columns, vectors_of(self._branch, last))
            if not start.full:
                deltas.append(part)  # else the version was empty, and the batch continues after it
        for step in self._steps(start, end.snapshot):
            if step.kind == "replaced":
                differing, plan = plan_replaced(
                    self._branch, step.before, step.snapshot, schema_id=self._schema.id, told_by=self._producer
                )
                return StreamBatch(plan, units=differing)
            if step.kind == "rows":
                last = step.snapshot
                to = end.units if last.id == end.snapshot else None
                deltas.append(self._content(last, is_full=False).slice(0, to))
        if not self._schema.primary_keys or last is None:
            return self._batch_of_inserts(pa.concat_tables([NO_ENTRIES, *deltas]), columns)
        if self._producer is not Producer.NONE:
            logged, plan = plan_logged(self._branch, deltas, schema=self._schema, told=self._told)
            return StreamBatch(plan, units=logged)
        self._check_deletes(deltas)
        units, plan = plan_written(self._branch, deltas, schema=self._schema, end=last)
        return StreamBatch(plan, units=units)

    def commits(self, after: int, until: int) -> Iterator[tuple[Snapshot, StreamBatch]]:
        """What each snapshot changed, exactly: the difference to the one before.

        Args:
            after: the snapshot before the first one; 0: there is none.
            until: the last one.

        Yields: snapshots that changed rows, oldest first. Raises as `advance`. Cost: the manifests of each snapshot.
        """
        before = self._branch.snapshots.find(after) if after else None
        if after and before is None and until > after:
            raise self._expiry_error(after - 1)
        for step in self._steps(StreamOffset(self._table, after), until, is_exact=True):
            now = step.snapshot
            if step.kind == "rows" and not self._schema.primary_keys:
                entries = self._content(now, is_full=False).entries
                plan = whole_rows(self._branch, self._schema, entries)
                splits = plan_splits(entries, schema=self._schema)
                yield now, StreamBatch(plan, units=[Inserted(split) for split in splits])
            elif step.kind != "nothing":
                units, plan = plan_replaced(self._branch, before, now, schema_id=self._schema.id)
                if units:
                    yield now, StreamBatch(plan, units=units)
            before = now

    def _batch_of_inserts(
        self, entries: pa.Table, columns: Sequence[str] | None, vectors: Mapping[str, VectorPlace] = _NO_VECTORS
    ) -> StreamBatch:
        splits = with_vectors(plan_splits(entries, schema=self._schema), vectors)
        plan = whole_rows(self._branch, self._schema, entries)
        if self._settings.changes:
            return StreamBatch(plan, units=[Inserted(split) for split in splits])
        return StreamBatch(plan if columns is None else replace(plan, columns=tuple(columns)), splits=splits)

    def _content(self, snapshot: Snapshot, *, is_full: bool) -> Content:
        """The files of a whole version, or those that a snapshot added or logged its changes in, in units."""
        manifests = self._branch.manifests
        keys = ["partition", "bucket", "file_name"]
        if is_full:
            entries = entries_in_log(manifests.live_entries(snapshot), self._producer, self._schema)
        elif self._producer is Producer.NONE:
            entries = additions_in([manifests.delta_entries(snapshot)])
        else:
            entries = entries_of_log(self._branch, snapshot, self._producer)
            keys.pop()  # the sort is stable: the files of a bucket stay in reading order
        order = pc.sort_indices(entries, [(name, "ascending") for name in keys])
        entries = entries.take(order).combine_chunks()
        edges = np.arange(entries.num_rows + 1)
        if self._schema.primary_keys and entries.num_rows:
            partitions = entries.column("partition").combine_chunks().dictionary_encode().indices.to_numpy()
            buckets = entries.column("bucket").to_numpy()
            is_new = (np.diff(partitions) != 0) | (np.diff(buckets) != 0)
            edges = np.concatenate([[0], np.flatnonzero(is_new) + 1, [entries.num_rows]])
        return Content(entries, edges)

    # ---- the way from one offset to another

    def _steps(self, start: StreamOffset, until: int | None, *, is_exact: bool = False) -> Iterator[_Step]:
        """The snapshots after an offset; each is checked to follow the one before.

        Args:
            is_exact: judge each snapshot by the rows that a reader of it sees, whatever changelogs contain.
        """
        is_logged = self._producer is not Producer.NONE and not is_exact
        ids = [id for id in self._branch.snapshots.ids() if start.snapshot < id and (until is None or id <= until)]
        previous, before = start.snapshot, None
        for id in ids:
            snapshot = self._branch.snapshots.find(id)
            if snapshot is None:
                raise self._expiry_error(previous)
            target = int(snapshot.properties.get(ROLLED_BACK_TO, "-1"))
            parent = follows(snapshot)
            if parent == previous:
                kind = self._kind_from_log(snapshot) if is_logged else self._kind(snapshot, is_seen=is_exact)
            elif target == previous:
                kind = "nothing"  # what was rolled back had not been read
            elif (parent if target < 0 else target) < previous:
                raise self._rollback_error(previous, snapshot.id)
            else:
                raise self._expiry_error(previous)
            if before is None and kind == "replaced" and previous:
                before = self._branch.snapshots.find(previous)
                if before is None:
                    raise self._rollback_error(previous, snapshot.id) if target else self._expiry_error(previous - 1)
            self._check_columns(snapshot)
            yield _Step(snapshot, before, kind)
            previous, before = id, snapshot
        if until is not None and previous < until:
            raise self._expiry_error(previous)

    def _kind(self, snapshot: Snapshot, *, is_seen: bool) -> Literal["rows", "nothing", "replaced"]:
        """How a snapshot changes the rows that were written or, if `is_seen`, the rows that readers see."""
        if is_seen and self._schema.primary_keys and skips_level_0(self._branch.schema):
            return "nothing" if snapshot.commit_kind == "ANALYZE" else "replaced"
        if snapshot.commit_kind in ("COMPACT", "ANALYZE"):
            return "nothing"
        if not self._takes_away(snapshot):
            return "rows"
        if self._settings.changes:
            return "replaced"
        if self._settings.removals == "skip":
            return "nothing"
        raise InvalidRequest(
            f"Snapshot {snapshot.id} of {self._branch.name} replaced or deleted rows, which a stream of rows cannot "
            "say: read changes (option changes=true), or leave such snapshots out (option removals=skip).",
            kind="rows_removed",
            snapshot=snapshot.id,
        )

    def _kind_from_log(self, snapshot: Snapshot) -> Literal["rows", "nothing", "replaced"]:
        """As `_kind`, for a table whose changes are read from changelog files."""
        if has_log(snapshot, self._producer):
            return "rows"
        if self._producer is Producer.INPUT and snapshot.commit_kind != "OVERWRITE":
            return "rows" if snapshot.commit_kind == "APPEND" else "nothing"
        log_entries = entries_in_log(self._branch.manifests.delta_entries(snapshot), self._producer, self._schema)
        return "replaced" if log_entries.num_rows or self._marks(snapshot) else "nothing"

    def _marks(self, snapshot: Snapshot) -> bool:
        """Whether deletion vectors mark other rows than in the snapshot before: more, or after a rollback fewer."""
        may_mark = snapshot.index_manifest is not None or ROLLED_BACK_TO in snapshot.properties
        if not (may_mark and may_have_vectors(self._schema)):
            return False
        parent = self._branch.snapshots.find(follows(snapshot))
        if parent is None:
            return snapshot.commit_kind != "APPEND"  # unknown which rows it marks
        pairs = ((parent, snapshot), (snapshot, parent))
        return any(has_deleted(self._branch, before=before, now=now) for before, now in pairs)

    def _takes_away(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot changes rows of the one before: their files are gone, or vectors mark other rows."""
        if self._marks(snapshot):
            return True
        if snapshot.commit_kind == "APPEND":
            return False
        kinds = self._branch.manifests.delta_entries(snapshot).column("kind")
        return bool(pc.any(pc.equal(kinds, DELETE)).as_py())

    def _check_deletes(self, deltas: Sequence[pa.Table]) -> None:
        if self._settings.changes or self._settings.removals == "skip":
            return
        counts = (pc.fill_null(delta.column("delete_row_count"), 0) for delta in deltas)
        if any(pc.any(pc.greater(count, 0)).as_py() for count in counts):
            raise deletion_found(self._branch.name)

    # ---- checks

    def _check_engine(self) -> None:
        """Refuse a primary-key table whose rows cannot be derived from what a snapshot wrote; `commits` can."""
        if not self._schema.primary_keys:
            return
        if self._producer in (Producer.NONE, Producer.INPUT):
            check_increments(self._schema)

    @kept_property
    def _table(self) -> int:
        """The creation time of the table as this stream first saw it."""
        table_created_ms = created_ms(self._branch)
        if table_created_ms is None:
            raise self._missing_error()
        return table_created_ms

    def _missing_error(self) -> NotFound:
        return NotFound(
            f"The table {self._branch.name} is gone: it was dropped or renamed while a stream read it. Stop the "
            f"stream, or {_AGAIN} on its new name.",
            kind="table_gone",
        )

    def _check_table(self, start: StreamOffset, newest: Snapshot | None) -> None:
        """Raise unless the table is the one that the offset belongs to, and its history has the offset's snapshot."""
        schemas = self._branch.schemas
        ids = schemas.look()
        if not ids:
            raise self._missing_error()
        table_created_ms = schemas.load(ids[0]).time_ms
        if start.table != table_created_ms:
            raise Conflict(
                f"The table {self._branch.name} was dropped and created again: the stream read the one of "
                f"{utc(start.table)}, and this one is of {utc(table_created_ms)}; {_AGAIN}.",
                kind="table_replaced",
            )
        if self._schema.id not in ids or schemas.load(self._schema.id) != self._schema:
            raise InvalidRequest(
                f"The columns of {self._branch.name} were taken back, by a reset of its branch, and the stream still "
                "reads them as they were: start the query again, it continues where it is.",
                kind="columns_changed",
            )
        self._check_history(start, newest)

    def _check_history(self, offset: StreamOffset, newest: Snapshot | None) -> None:
        """Raise unless the offset's snapshot is in the table's history."""
        snapshot = self._branch.snapshots.find(offset.snapshot) if offset.commit else None
        if snapshot is not None and snapshot.delta_manifest_list != offset.commit:
            raise self._rollback_error(offset.snapshot, snapshot.id)
        if (0 if newest is None else newest.id) < offset.snapshot:
            raise self._rollback_error(offset.snapshot, 0 if newest is None else newest.id)

    def _check_columns(self, snapshot: Snapshot) -> None:
        schema = self._branch.schemas.load(snapshot.schema_id)
        if self._fitting.get(schema.id) == schema:
            return
        by_id = {column.id: column for column in schema.fields}
        for column in self._schema.fields:
            became = _became(column, by_id.get(column.id))
            if schema.id > self._schema.id and became is not None:
                raise InvalidRequest(
                    f"Column {column.name!r} of {self._branch.name} {became} before snapshot {snapshot.id}, and the "
                    "stream still reads it as it was: start the query again, it continues where it is.",
                    kind="columns_changed",
                    column=column.name,
                )
        self._fitting[schema.id] = schema

    def _snapshot(self, offset: StreamOffset) -> Snapshot:
        snapshot = self._branch.snapshots.find(offset.snapshot)
        if snapshot is None:
            raise self._expiry_error(offset.snapshot - 1)
        return snapshot

    def span(self, first: Bound | None, last: Bound | None) -> tuple[int, int]:
        """The snapshots between two bounds, in the form that `commits` takes; a bound that is None is open.

        Raises `InvalidRequest`: the first is newer than the last; `NotFound`: a version that does not exist.
        """
        after = 0 if first is None else self._before_bound(first, is_in=not first.is_in)
        until = self.newest() if last is None else self._before_bound(last, is_in=last.is_in)
        if first is None:
            ids = self._branch.snapshots.ids()
            after = ids[0] - 1 if ids else 0
        if first is not None and last is not None and self._position(first) > self._position(last):
            raise InvalidRequest(
                f"Changes go from an older to a newer version, and {first.version or first.time_ms} is newer than "
                f"{last.version or last.time_ms}.",
                kind="invalid_version",
            )
        return after, max(after, until)

    def _position(self, bound: Bound) -> int:
        """A number that orders bounds of one kind."""
        return at_version(self._branch, bound.version).snapshot.id if bound.version else bound.time_ms or 0

    def _before_bound(self, bound: Bound, *, is_in: bool) -> int:
        """The newest snapshot up to a bound; with `is_in`, the bound's own included."""
        if bound.version is not None:
            snapshot_id = at_version(self._branch, bound.version).snapshot.id
            return snapshot_id if is_in else snapshot_id - 1
        assert bound.time_ms is not None
        before = self._branch.snapshots.bisect(self._branch.snapshots.ids(), bound.time_ms - (not is_in))
        return 0 if before is None else before.id

    def _snapshot_of_option(self) -> Snapshot:
        version = self._settings.version
        if version is None:
            raise InvalidRequest("mode=from-snapshot needs the option version: an id or a tag.", kind="missing_option")
        target = at_version(self._branch, version)
        if target.branch is not None:
            raise InvalidRequest(
                f"version={version!r} names a branch: give it as the option branch.", kind="ambiguous_version"
            )
        return target.snapshot

    def _at_time(self, newest: Snapshot | None) -> StreamOffset:
        if self._settings.timestamp is None:
            raise InvalidRequest("mode=from-timestamp needs the option timestamp.", kind="missing_option")
        time_ms = parse_time_ms(self._settings.timestamp)
        ids = self._branch.snapshots.ids()
        before = self._branch.snapshots.bisect(ids, time_ms - 1)
        if before is not None:
            return self._after(before)
        if newest is not None and ids and ids[0] > 1:
            first = self._branch.snapshots.snapshot(ids[0])
            raise NotFound(
                f"Snapshots since {utc(time_ms)} have expired: the oldest of {self._branch.name} is {first.id}, of "
                f"{utc(first.time_ms)}. Start at a later time, or with mode=latest-full.",
                kind="snapshot_expired",
            )
        return StreamOffset(self._table, 0)

    def _before(self, snapshot_id: int) -> StreamOffset:
        ids = self._branch.snapshots.ids()
        if ids and snapshot_id < ids[0]:
            raise NotFound(
                f"Snapshot {snapshot_id} of {self._branch.name} has expired, though a tag holds its rows: the oldest "
                f"one left is {ids[0]}. Start with mode=latest-full, or with version={ids[0]}.",
                kind="snapshot_expired",
            )
        return StreamOffset(self._table, snapshot_id - 1)

    def _after(self, snapshot: Snapshot) -> StreamOffset:
        return StreamOffset(self._table, snapshot.id, snapshot.delta_manifest_list)

    def _expiry_error(self, read: int) -> NotFound:
        ids = self._branch.snapshots.ids()
        remainder = f"the oldest left is {ids[0]}" if ids else "none is left"
        return NotFound(
            f"The stream has read {self._branch.name} up to snapshot {read}, and the snapshots after it have expired "
            f"({remainder}): {_AGAIN} and mode=latest-full. To keep snapshots until a stream has read them, give it "
            "the option consumer.",
            kind="snapshot_expired",
            snapshot=read,
        )

    def _rollback_error(self, read: int, now: int) -> Conflict:
        return Conflict(
            f"The table {self._branch.name} was rolled back: snapshot {now} does not follow snapshot {read}, which the "
            f"stream has read; {_AGAIN}, after removing what the stream wrote since.",
            kind="rolled_back",
            snapshot=read,
        )


def created_ms(branch: TableBranch) -> int | None:
    """When the table that now has this location was created, Unix ms; None: there is none. Cost: 1 LIST + 1 GET."""
    schemas = SchemaLog(branch.store, branch.layout)  # a new one, without cached schemas
    ids = schemas.ids()
    return schemas.load(ids[0]).time_ms if ids else None


def deletion_found(name: str) -> InvalidRequest:
    """The error for a deletion in a stream of rows."""
    return InvalidRequest(
        f"Rows of {name} were deleted, which a stream of rows cannot say: read changes (option changes=true), or leave "
        "deletions out (option removals=skip).",
        kind="rows_removed",
    )


def _became(column: DataField, now: DataField | None) -> str | None:
    """How a column that a stream reads has changed; None: it has not changed."""
    if now is None:
        return "was dropped"
    if now.type != column.type:
        return f"became {now.type}"
    return "lost its NOT NULL" if now.nullable and not column.nullable else None
