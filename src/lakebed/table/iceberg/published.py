"""A table as an Iceberg table: `PublishedTable`, which makes its metadata on request.

Owns: what is read for each request, the metadata and its properties, and references: ``main``, tags and branches under
their names.

Invariants:
- Nothing is written before a table is requested, and then only what its newest versions lack.
- The metadata names only snapshots that are published completely. A reader that holds older metadata keeps working as
  long as its snapshots live: no object that it names is replaced.
- A tag is shown only with exactly its version. ``main`` and branches show their newest version that can be shown.
- The property ``lakebed.left-out`` says what is not shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lakebed.errors import Corruption, NotFound, Unavailable, UnsupportedFormat
from lakebed.objects.port import ObjectMeta
from lakebed.table.branch.branch_folder import fork_pin
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import follows
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.iceberg.columns import (
    PARTITION_FIELD_ID_MIN,
    IcebergSchema,
    NameMapping,
    highest_id,
    iceberg_schema,
    partition_columns_of,
    partition_spec,
)
from lakebed.table.iceberg.derived import Derived, DerivedObjects, digest_of
from lakebed.table.iceberg.file_ids import FileIds
from lakebed.table.iceberg.lines import Line, ShownSnapshot, hashed_id
from lakebed.table.model.layout import MAIN_BRANCH, Layout, parse_branch, parse_schema, parse_snapshot
from lakebed.table.model.model import Snapshot, TableSchema, Tag
from lakebed.table.schema.schema import encode_schema
from lakebed.texts import format_count

VISIBLE_THROUGH: Final = "lakebed.visible-through"
"""Property: the number of the newest version of main whose rows are shown."""
LEFT_OUT: Final = "lakebed.left-out"
"""Property: what is not shown, in sentences."""

_TRIES_MAX: Final = 5
_SPARE_COUNT: Final = 100
"""How much is cached of versions that are gone, before it is dropped."""
_OPERATIONS: Final = {"APPEND": "append", "COMPACT": "replace", "OVERWRITE": "overwrite", "ANALYZE": "replace"}
_ENCODE: Final = msgspec.json.Encoder().encode

Mark = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a table at one moment."""

    body: bytes
    """As JSON."""
    location: str | None
    """URL of the file with the same contents; None: a table without snapshots, which has none."""
    body_of_references: bytes
    """The same metadata with only the snapshots of references."""
    etag: str


@dataclass(slots=True)
class _Look:
    """What exists at one moment."""

    snapshots: dict[str, dict[int, Snapshot]]
    """By branch, ascending."""
    problems: list[str]
    """Messages about snapshots that are unreadable."""
    mark: Mark
    """If another look has an equal mark, nothing has changed."""


@dataclass(slots=True)
class _Main:
    """The snapshots of main when they were last read."""

    snapshots: dict[int, Snapshot]
    """Ascending."""
    newest: tuple[int, bytes]
    """The number and the bytes of the newest."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """What the metadata is made from."""

    names: NameMapping
    shown: dict[int, ShownSnapshot] = field(default_factory=dict)
    parents: dict[int, int | None] = field(default_factory=dict)
    schema_ids: dict[int, int] = field(default_factory=dict)
    hidden: dict[tuple[str | None, int], set[frozenset[int]]] = field(default_factory=dict)
    """For schemas of branches, by branch and id, the sets of columns that are hidden in some version."""
    hidden_now: frozenset[int] = frozenset()
    """Columns of main's newest schema that are hidden in the newest version of a branch."""
    references: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[dict[str, int]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    visible_through: int | None = None


class PublishedTable:
    """A table for Iceberg's clients. Thread-safe; requests for the same table are served one after the other.

    Args:
        main: the table's main branch.
        objects: where objects for clients are stored; None: in the table's folder.
        location: the table's location for clients, a folder without files of the table: clients delete what they do not
            know there (``remove_orphan_files``). None: such a folder in the table's own.
    """

    def __init__(self, main: TableBranch, *, objects: Derived | None = None, location: str | None = None) -> None:
        self._main = main
        self._objects = DerivedObjects(main.store, runtime=main.environment.runtime) if objects is None else objects
        self._location = location or main.store.url(Layout.client_folder)
        self._turn = main.environment.runtime.lock()
        self._lines: dict[str, Line] = {MAIN_BRANCH: Line(main, fork_id=None, objects=self._objects)}
        self._snapshots: dict[ObjectMeta, Snapshot] = {}
        self._rendered: dict[tuple[int, str], msgspec.Raw] = {}
        self._seen: _Main | None = None
        self._first_schema: ObjectMeta | None = None
        self._mark: Mark | None = None
        self._metadata: Metadata | None = None
        self._uuid: str | None = None

    @property
    def written_count(self) -> int:
        """Objects that this process has written for the table."""
        return self._objects.written_count

    def load(self) -> Metadata:
        """The present metadata. What it names is written first.

        Raises `NotFound`: the table is gone, or another one has its location; `Unavailable`: versions expire faster
        than they are read. Cost: 5 LISTs, 1 GET and 2 HEADs when nothing has changed since the last call; else 1 GET
        for each new version or tag, and what `Line.show` says.
        """
        with self._turn:
            missing: NotFound | None = None
            if self._first_schema is None:
                self._check_place()
            for _ in range(_TRIES_MAX):
                self._main.refresh()
                try:
                    look = self._look()
                    metadata = self._metadata
                    if metadata is None or look.mark != self._mark:
                        metadata = self._make(look)
                except NotFound as error:  # a version expired since it was listed, or the whole table did
                    missing, self._seen = error, None
                    self._check_place()
                    continue
                self._check_place()  # last, so that everything that was read belongs to one table
                if metadata is not self._metadata:
                    self._forget_all_but(look)
                self._metadata, self._mark = metadata, look.mark
                return metadata
            raise Unavailable(
                f"Versions of {self._main.name} expire while they are read: ask again.", kind="versions_expire"
            ) from missing

    def load_settled(self) -> Metadata:
        """As `load`, but nothing has changed since it began: everything that was read belongs to one moment.

        Raises `Unavailable` also when the table changes each time. Cost: one more `load`, mostly its listings.
        """
        metadata = self.load()
        for _ in range(_TRIES_MAX):
            before, metadata = metadata, self.load()
            if metadata is before:
                return metadata
        raise Unavailable(f"{self._main.name} changes faster than it is read: ask again.", kind="table_changes")

    # ---- looking

    def _check_place(self) -> None:
        """Raise `NotFound` when the table was dropped and another one was created. Cost: 1 LIST."""
        metas = self._main.store.list(self._main.layout.schema_folder)
        first = next(iter(metas), None)
        if first is None or self._first_schema not in (None, first):
            raise NotFound(f"{self._main.name} was dropped.", kind="table_not_found", table=self._main.name)
        self._first_schema = first

    def _look(self) -> _Look:
        layout, store = self._main.layout, self._main.store
        snapshots: dict[str, dict[int, Snapshot]] = {}
        problems: list[str] = []
        marks: list[ObjectMeta] = []
        metas = [*store.list(layout.tag_folder), *store.list(layout.branch_folder)]
        for meta in metas:
            branch = parse_branch(meta.path)
            if meta.path.endswith(("/LATEST", "/EARLIEST")):
                continue
            marks.append(meta)  # with its etag: some stores count time in seconds
            if branch is not None and parse_schema(meta.path) is not None:
                snapshots.setdefault(branch, {})
        numbered = [(number, meta) for meta in metas if (number := parse_snapshot(meta.path)) is not None]
        for number, meta in sorted(numbered, key=lambda pair: pair[0]):
            branch = parse_branch(meta.path)
            if branch in snapshots:  # without a schema it is the rest of a deleted branch
                snapshots[branch] |= self._read({number: meta}, problems)
        main = self._look_at_main()
        snapshots[MAIN_BRANCH] = main.snapshots
        oldest = next(iter(main.snapshots), 0)
        return _Look(snapshots, [*main.problems, *problems], (main.newest, oldest, self._main.schema.id, tuple(marks)))

    def _look_at_main(self) -> _Main:
        """The snapshots of main.

        Snapshots are added at the end, expire at the beginning, and are replaced by rollbacks from some id to the end.
        So nothing has changed when the newest one is the same and the oldest one exists. Cost: 1 GET, 2 HEADs and 1
        LIST, and 1 GET for each new snapshot; after an expiry or rollback 1 LIST a thousand snapshots.
        """
        log, last_look = self._main.snapshots, self._seen
        newest = log.latest_body()
        if newest is None:
            return _Main({}, (0, b""))
        if last_look is not None and log.exists(next(iter(last_look.snapshots))):
            number, body = last_look.newest
            new: list[Snapshot] = []
            if newest == last_look.newest:
                return last_look
            if newest[0] > number and bytes(log.body(number)) == body:
                with suppress(Corruption, UnsupportedFormat):
                    new = list(log.walk(range(number + 1, newest[0] + 1)))
                if len(new) == newest[0] - number:
                    new_snapshots = {snapshot.id: snapshot for snapshot in new}
                    self._seen = _Main({**last_look.snapshots, **new_snapshots}, newest)
                    return self._seen
        metas = {parse_snapshot(meta.path): meta for meta in self._main.store.list(self._main.layout.snapshot_folder)}
        numbers = sorted(number for number in metas if number is not None)
        problems: list[str] = []
        snapshots = self._read({number: metas[number] for number in numbers}, problems)
        self._seen = _Main(snapshots, newest, problems) if snapshots else None
        return self._seen or _Main({}, newest, problems)

    def _read(self, metas: Mapping[int, ObjectMeta], problems: list[str]) -> dict[int, Snapshot]:
        """The snapshots with these files, except unreadable ones, which are noted."""
        snapshots: dict[int, Snapshot] = {}
        for number, meta in metas.items():
            try:
                snapshots[number] = self._snapshot_at(meta)
            except (Corruption, UnsupportedFormat) as error:
                problems.append(f"snapshot {number}: {error.message}")
        return snapshots

    def _snapshot_at(self, meta: ObjectMeta) -> Snapshot:
        """A snapshot by its file. Raises `NotFound`, `Corruption`. Cost: 1 GET, once."""
        snapshot = self._snapshots.get(meta)
        if snapshot is None:
            snapshot = decode_snapshot(self._main.store.get(meta.path), path=meta.path)
            self._snapshots[meta] = snapshot
        return snapshot

    def _line_of(self, name: str, pins: Mapping[str, Tag]) -> Line | None:
        """The line of a branch; None: its start is not known."""
        pin = pins.get(fork_pin(name))
        if pin is None:
            return None
        line = self._lines.get(name)
        if line is None or line.fork_id != pin.snapshot.id:
            branch = self._main.of_branch(name)
            line = self._lines[name] = Line(branch, fork_id=pin.snapshot.id, objects=self._objects)
        line.branch.refresh()
        return line

    def _forget_all_but(self, look: _Look) -> None:
        """Drop what is cached of versions and branches that are gone: a server may run for years."""
        self._lines = {name: line for name, line in self._lines.items() if name in look.snapshots}
        counts = [len(snapshots) for snapshots in look.snapshots.values()]
        if len(self._snapshots) + len(self._rendered) > 4 * sum(counts) + _SPARE_COUNT:
            self._snapshots.clear()
            self._rendered.clear()
        for name, line in self._lines.items():
            line.forget_all_but(look.snapshots[name])

    # ---- making

    def _make(self, look: _Look) -> Metadata:
        main = self._lines[MAIN_BRANCH]
        tags = self._main.tags.list_all()
        hidden_tags = {tag.name: tag for tag in tags}
        branches = {name: self._line_of(name, hidden_tags) for name in sorted(look.snapshots) if name != MAIN_BRANCH}
        all_lines = [main, *(line for line in branches.values() if line is not None)]
        names = NameMapping(line.schema_of(number) for line in all_lines for number in line.schema_ids())
        state = _State(names, left_out=list(look.problems))
        newest = self._show_line(state, main, look.snapshots[MAIN_BRANCH])
        if newest is not None:
            state.hidden_now |= self._hidden(state, main, newest.file_ids, self._main.schema)
            state.visible_through = newest.snapshot.id
            state.references[MAIN_BRANCH] = {"snapshot-id": newest.id, "type": "branch"}
        self._show_tags(state, main, [tag for tag in tags if tag.name in set(self._main.tags.names())])
        lines = [main]
        for name, line in branches.items():
            if line is None:
                state.left_out.append(f"the branch {name!r}: another client made it, so where it began is not known")
                continue
            if name in state.references:
                state.left_out.append(f"the branch {name!r}: a tag has the same name")
                continue
            tip = self._show_line(state, line, look.snapshots[name])
            if tip is not None:
                state.hidden_now |= self._hidden(state, line, tip.file_ids, self._main.schema)
                state.references[name] = {"snapshot-id": tip.id, "type": "branch"}
            lines.append(line)
        return self._render(state, lines)

    def _show_line(self, state: _State, line: Line, snapshots: Mapping[int, Snapshot]) -> ShownSnapshot | None:
        """Show the snapshots of a branch; return the newest that is shown."""
        newest: ShownSnapshot | None = None
        unmerged = 0
        name = line.branch.branch
        log_of_main = name is None
        for number, snapshot in snapshots.items():
            try:
                parent = None if newest is None else newest.id
                if parent is None and follows(snapshot):
                    parent = line.snapshot_id_of(follows(snapshot))
                shown_snapshot = line.show(snapshot, parent_id=parent)
            except (Corruption, UnsupportedFormat) as error:
                where = "" if name is None else f" of the branch {name!r}"
                state.left_out.append(f"snapshot {number}{where}: {error.message}")
                continue
            if shown_snapshot is None:
                unmerged += 1
                continue
            self._add(state, line, shown_snapshot, parent)
            newest = shown_snapshot
            if log_of_main:
                time_ms = snapshot.time_ms
                if state.log:  # Iceberg requires times that do not decrease
                    time_ms = max(time_ms, state.log[-1]["timestamp-ms"])
                state.log.append({"timestamp-ms": time_ms, "snapshot-id": shown_snapshot.id})
        if unmerged:
            where = "" if name is None else f" of the branch {name!r}"
            state.left_out.append(
                f"{format_count(unmerged, 'snapshot')}{where}: rows of the same key are in several files until a full "
                "compaction merges them"
            )
        line.write()
        return newest

    def _add(self, state: _State, line: Line, shown_snapshot: ShownSnapshot, parent: int | None) -> None:
        if shown_snapshot.id not in state.shown:
            state.shown[shown_snapshot.id] = shown_snapshot
            state.parents[shown_snapshot.id] = parent
            number = shown_snapshot.snapshot.schema_id
            hidden_ids = frozenset[int]()
            if shown_snapshot.file_ids != FileIds():
                hidden_ids = self._hidden(state, line, shown_snapshot.file_ids, line.schema_of(number))
            state.schema_ids[shown_snapshot.id] = self._schema_id_of(line, number, hidden_ids)
            state.hidden.setdefault((line.branch.branch, number), set()).add(hidden_ids)

    def _hidden(self, state: _State, line: Line, file_ids: FileIds, schema: TableSchema) -> frozenset[int]:
        """The columns of a schema that clients do not find in some file of a version."""
        schemas = {number: line.schema_of(number) for number in line.schema_ids()}
        return file_ids.find_hidden(schema, schemas, state.names)

    def _show_tags(self, state: _State, main: Line, tags: Sequence[Tag]) -> None:
        for tag in tags:
            if tag.name == MAIN_BRANCH:
                state.left_out.append(f"the tag {tag.name!r}: Iceberg has a branch of that name")
                continue
            try:
                shown_snapshot = main.show(tag.snapshot, parent_id=None)
            except (Corruption, UnsupportedFormat) as error:
                state.left_out.append(f"the tag {tag.name!r}: {error.message}")
                continue
            if shown_snapshot is None:
                state.left_out.append(f"the tag {tag.name!r}: its version was not fully compacted")
                continue
            earlier_snapshot = state.shown.get(shown_snapshot.id)
            if earlier_snapshot is not None and earlier_snapshot.list_path != shown_snapshot.list_path:
                # Another client rolled back and used the number again.
                state.left_out.append(
                    f"the tag {tag.name!r}: another snapshot has its number {shown_snapshot.snapshot.id}"
                )
                continue
            self._add(state, main, shown_snapshot, None)
            reference: dict[str, Any] = {"snapshot-id": shown_snapshot.id, "type": "tag"}
            if tag.expires_ms is not None:
                reference["max-ref-age-ms"] = max(1, tag.expires_ms - tag.snapshot.time_ms)
            state.references[tag.name] = reference
        main.write()

    # ---- schemas

    def _schema_id_of(self, line: Line, schema_id: int, hidden_ids: frozenset[int]) -> int:
        """Iceberg's id of a schema: the table's id, except for schemas that a branch made or that lack columns.

        The table's id is that of the whole schema, which manifests have: ClickHouse refuses two schemas of one id.
        """
        main = self._lines[MAIN_BRANCH]
        lacking_ids = hidden_ids | line.find_misfits(schema_id)
        if line is main and not lacking_ids:
            return schema_id
        try:
            is_of_main = main.schema_of(schema_id).fields == line.schema_of(schema_id).fields
        except NotFound:
            is_of_main = False
        if is_of_main and not lacking_ids:
            return schema_id
        return hash_schema_id(main if is_of_main else line, schema_id, lacking_ids)

    def _schemas(self, state: _State, lines: Iterable[Line]) -> dict[int, IcebergSchema]:
        """Iceberg's schemas by id: those of the shown versions, and main's newest."""
        schemas: dict[int, IcebergSchema] = {}
        for line in lines:
            history: list[TableSchema] = []
            for schema_id in line.schema_ids():
                schema = line.schema_of(schema_id)
                variants = set(state.hidden.get((line.branch.branch, schema_id), ()))
                if line.branch.branch is None and schema_id == line.branch.schema.id:
                    variants.add(state.hidden_now)
                for hidden_ids in variants:
                    shown_id = self._schema_id_of(line, schema_id, hidden_ids)
                    if shown_id not in schemas:
                        schemas[shown_id] = iceberg_schema(schema, older=history, hidden=hidden_ids)
                history.append(schema)
        return schemas

    # ---- rendering

    def _render(self, state: _State, lines: Sequence[Line]) -> Metadata:
        schema = self._main.schema
        schemas = self._schemas(state, lines)
        current_id = self._schema_id_of(self._lines[MAIN_BRANCH], schema.id, state.hidden_now)
        newest_schema = schemas[current_id]
        current = state.references.get(MAIN_BRANCH)
        numbers = [shown.snapshot.id for shown in state.shown.values()]
        has_vectors = any(shown.has_vectors for shown in state.shown.values())
        last_ms = max([schema.time_ms, *(shown.snapshot.time_ms for shown in state.shown.values())])
        partitions = partition_columns_of(schema, newest_schema)
        members: dict[str, Any] = {
            "format-version": 3 if has_vectors else 2,
            "table-uuid": self._table_uuid(),
            "location": self._location,
            "last-sequence-number": max(numbers, default=0),
            "last-updated-ms": max([last_ms, *(entry["timestamp-ms"] for entry in state.log)]),
            "last-column-id": max(
                *(line.branch.schema.highest_field_id for line in lines), *map(highest_id, schemas.values())
            ),
            "current-schema-id": current_id,
            "schemas": [schemas[number].members(number) for number in sorted(schemas)],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": partition_spec(partitions)}],
            "last-partition-id": PARTITION_FIELD_ID_MIN - 1 + len(schema.partition_keys),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self._properties(state, newest_schema),
        }
        if has_vectors:
            members["next-row-id"] = 0  # as in an upgraded table: no row has an id yet
        if current is not None:
            members["current-snapshot-id"] = current["snapshot-id"]
        members |= {"refs": state.references, "snapshot-log": state.log, "metadata-log": []}
        shown = [state.shown[number] for number in sorted(state.shown)]
        body = _ENCODE(members | {"snapshots": [self._render_snapshot(state, snapshot) for snapshot in shown]})
        kept_ids = {reference["snapshot-id"] for reference in state.references.values()}
        log = [entry for entry in state.log if entry["snapshot-id"] in kept_ids]
        narrow = {
            "snapshot-log": log,
            "snapshots": [self._render_snapshot(state, snapshot) for snapshot in shown if snapshot.id in kept_ids],
        }
        digest = digest_of(body)
        return Metadata(body, self._store_metadata(state, body, digest), _ENCODE(members | narrow), digest)

    def _store_metadata(self, state: _State, body: bytes, digest: str) -> str | None:
        """Write the metadata and return its URL. It lives as long as the newest version that it shows."""
        if not state.shown:
            return None
        newest = max(state.shown.values(), key=lambda shown: (shown.snapshot.time_ms, shown.snapshot.id))
        source = self._main.layout.manifest(newest.snapshot.delta_manifest_list)
        path = self._objects.path_of_metadata(source, newest.snapshot.id, digest)
        self._objects.renew(path, body)
        return self._objects.url(path)

    def _render_snapshot(self, state: _State, shown_snapshot: ShownSnapshot) -> msgspec.Raw:
        parent = state.parents[shown_snapshot.id]
        schema_id = state.schema_ids[shown_snapshot.id]
        key = (shown_snapshot.id, f"{shown_snapshot.list_path} {parent} {schema_id}")
        document = self._rendered.get(key)
        if document is not None:
            return document
        snapshot = shown_snapshot.snapshot
        is_plain = snapshot.commit_kind in _OPERATIONS and not self._main.schema.primary_keys
        operation = _OPERATIONS[snapshot.commit_kind] if is_plain else "overwrite"
        if operation == "append" and (shown_snapshot.has_vectors or snapshot.delta_record_count < 0):
            operation = "overwrite"
        members: dict[str, Any] = {
            "snapshot-id": shown_snapshot.id,
            "sequence-number": snapshot.id,
            "timestamp-ms": snapshot.time_ms,
            "manifest-list": self._objects.url(shown_snapshot.list_path),
            "schema-id": schema_id,
            "summary": {
                "operation": operation,
                "lakebed.snapshot": str(snapshot.id),
                "lakebed.commit-kind": snapshot.commit_kind,
                "lakebed.commit-user": snapshot.commit_user,
                "lakebed.records": str(snapshot.total_record_count),
                "lakebed.records-delta": str(snapshot.delta_record_count),
            },
        }
        if parent is not None:
            members["parent-snapshot-id"] = parent
        raw = self._rendered[key] = msgspec.Raw(_ENCODE(members))
        return raw

    def _properties(self, state: _State, newest: IcebergSchema) -> dict[str, str]:
        schema = self._main.schema
        properties = {
            "gc.enabled": "false",  # Iceberg's word for a table whose files no client may delete
            "lakebed.table": self._main.name,
            "schema.name-mapping.default": _ENCODE(state.names.members()).decode(),
        }
        if schema.comment:
            properties["comment"] = schema.comment
        if schema.primary_keys:
            properties["lakebed.primary-key"] = ",".join(schema.primary_keys)
            properties[VISIBLE_THROUGH] = str(state.visible_through or 0)
        sentences = [f"the column {name!r}: {reason}" for name, reason in newest.left_out.items()] + state.left_out
        if sentences:
            properties[LEFT_OUT] = "; ".join(sentences)
        return properties

    def _table_uuid(self) -> str:
        """The id of the table, derived from its location and its first schema. Cost: 1 GET, once."""
        if self._uuid is None:
            self._uuid = table_uuid(self._main)
        return self._uuid


def table_uuid(main: TableBranch) -> str:
    """The id of a table, the same for all its branches and in every process. Cost: 1 GET."""
    first = encode_schema(main.schemas.load(0)).decode()
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{main.store.root_url}\n{first}"))


def hash_schema_id(line: Line, schema_id: int, hidden: frozenset[int]) -> int:
    """An id above those of main's schemas, of 31 bits."""
    without = f" without {sorted(hidden)}" if hidden else ""
    return (hashed_id(f"schema of {line.branch.branch}{without}", schema_id) & 0x3FFF_FFFF) | 0x4000_0000
