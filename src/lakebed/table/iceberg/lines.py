"""Main and the branches of a table as Iceberg's snapshots: ids, lists and manifests.

Owns: `Line`, which publishes the snapshots of one branch. The number of a snapshot of main is its Iceberg id. A branch
continues the numbers of the snapshot that it began with. So its own snapshots have ids that are hashed from its name
and the number.

Invariants: a snapshot is published completely or not at all, with exactly the rows that lakebed reads of it. The list
of a snapshot is written last; if a list exists, what it names need not be checked.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

import msgspec
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound, UnsupportedFormat
from lakebed.objects.open import place_of
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry
from lakebed.table.codec.roaring import Positions, encode_positions
from lakebed.table.collect.referenced_files import folder_namer
from lakebed.table.files.adopt import read_footer
from lakebed.table.files.splits import plan_splits
from lakebed.table.iceberg.avro_files import (
    ADDED,
    POSITION_DELETES,
    ManifestHead,
    ManifestTotals,
    decode_header,
    encode_data_manifest,
    encode_list,
    encode_manifest,
)
from lakebed.table.iceberg.columns import IcebergSchema, iceberg_schema, partition_columns_of
from lakebed.table.iceberg.derived import Derived, digest_of
from lakebed.table.iceberg.entries import (
    EntryContext,
    EntrySums,
    data_entries,
    data_paths,
    data_urls,
    partition_summaries,
    partition_tuples,
    sum_entries,
)
from lakebed.table.iceberg.file_ids import FileIds, has_to_look, ids_of_file, parse_header, union
from lakebed.table.iceberg.fold import Fold, Rows
from lakebed.table.model.model import ManifestMeta, Snapshot, TableSchema, VectorPlace
from lakebed.table.model.types import parse_type
from lakebed.table.read.scan import check_readable
from lakebed.table.read.vectors import decode_vector, may_have_vectors, skips_level_0

_EVERYTHING_BYTES: Final = 1 << 62
_SPARE_COUNT: Final = 100
"""Most snapshots that are gone of which something is cached."""
_SUMS_MAX: Final = 10_000
"""Manifests whose sums are cached: about 1 kB each."""
_UNWRITTEN_MAX: Final = 256
"""Most lists that wait to be written together."""
_FILES_MAX: Final = 100_000
"""Data files for which the content of the footer is cached."""


@dataclass(frozen=True, slots=True)
class ShownSnapshot:
    """A snapshot as Iceberg's clients find it."""

    snapshot: Snapshot
    id: int
    list_path: str
    has_vectors: bool
    file_ids: FileIds


@dataclass(frozen=True, slots=True)
class _Listed:
    """A manifest that a list will name."""

    path: str
    totals: ManifestTotals
    """Its size is filled in when it is written."""


@dataclass(frozen=True, slots=True)
class _UnwrittenList:
    """The list of a snapshot, whose manifests may not be written yet."""

    shown: ShownSnapshot
    parent_id: int | None
    manifests: Sequence[_Listed]
    header: Mapping[str, str]


class Line:
    """One branch of a table. Not thread-safe.

    Args:
        branch: with its newest schema.
        fork_id: the number of the snapshot that a branch began with; None for main.
        objects: the table's derived objects.
    """

    def __init__(self, branch: TableBranch, *, fork_id: int | None, objects: Derived) -> None:
        self._branch = branch
        self._fork_id = fork_id
        self._objects = objects
        self._fold = Fold(branch.manifests)
        self._sums: dict[str, EntrySums] = {}
        self._ids_of_manifests: dict[str, FileIds] = {}
        self._ids_of_files: dict[str, FileIds] = {}
        self._looks = False
        self._schema_ids: tuple[TableSchema, list[int]] | None = None
        self._shown: dict[tuple[int, str], ShownSnapshot | None] = {}
        self._unwritten: list[_UnwrittenList] = []
        self._made_for: TableSchema | None = None
        self._context: EntryContext | None = None
        self._shown_schema = IcebergSchema(())
        self._misfits: dict[int, frozenset[int]] = {}
        self._skips_level_0 = False

    @property
    def branch(self) -> TableBranch:
        """The branch."""
        return self._branch

    @property
    def fork_id(self) -> int | None:
        """The number of the snapshot that the branch began with; None for main."""
        return self._fork_id

    def schema_of(self, schema_id: int) -> TableSchema:
        """A schema of the branch, as of its last `refresh`: a branch that was made again has others.

        Cost: 1 GET, once.
        """
        return self._branch.schemas.load(schema_id)

    def schema_ids(self) -> list[int]:
        """The ids of the branch's existing schemas, ascending. Those of a replaced table begin with another id."""
        newest = self._branch.schema
        if self._schema_ids is None or self._schema_ids[0] is not newest:
            numbers: list[int] = []
            for number in range(newest.id + 1):
                with suppress(NotFound):
                    self.schema_of(number)
                    numbers.append(number)
            self._schema_ids = newest, numbers
            self._misfits.clear()
        return self._schema_ids[1]

    def find_misfits(self, schema_id: int) -> frozenset[int]:
        """Ids of the columns of a schema that older files may have in a type that Iceberg does not widen to theirs."""
        numbers = self.schema_ids()
        misfits = self._misfits.get(schema_id)
        if misfits is None:
            schema = self.schema_of(schema_id)
            older = [self.schema_of(number) for number in numbers if number < schema_id]
            names = iceberg_schema(schema, older=older).left_out.keys() - iceberg_schema(schema).left_out.keys()
            misfits = self._misfits[schema_id] = frozenset(
                column.id for column in schema.fields if column.name in names
            )
        return misfits

    def snapshot_id_of(self, number: int) -> int:
        """Iceberg's id of a snapshot of the branch."""
        if self._fork_id is None or number <= self._fork_id:
            return number
        return hashed_id(str(self._branch.branch), number)

    def forget_all_but(self, numbers: Collection[int]) -> None:
        """Drop what is cached of all other snapshots, those of tags included, once it is much."""
        if len(self._shown) > 2 * len(numbers) + _SPARE_COUNT:
            self._shown = {key: shown for key, shown in self._shown.items() if key[0] in numbers}
        if len(self._sums) > _SUMS_MAX:
            self._sums.clear()
            self._ids_of_manifests.clear()
        if len(self._ids_of_files) > _FILES_MAX:
            self._ids_of_files.clear()
        if self._context is not None:
            self._context.records.forget()
        self._objects.forget_many()

    def show(self, snapshot: Snapshot, *, parent_id: int | None) -> ShownSnapshot | None:
        """Publish a snapshot, with the next `write`; None: it cannot be shown, because its rows must be merged.

        Raises `UnsupportedFormat`: it cannot be shown for another reason; `NotFound`: it expired; `Corruption`.
        Cost: nothing when it was published before. Else its manifests that were not read before, and 1 PUT for its
        list, each new manifest, and each manifest of which it deletes files. If the footers of the table's files must
        be read (`file_ids`), also 1 GET of the list when another process published it, else 1 HEAD and 1 GET for each
        new file.
        """
        self._prepare()
        key = (snapshot.id, snapshot.delta_manifest_list)
        if key not in self._shown:
            if len(self._unwritten) >= _UNWRITTEN_MAX:
                self.write()
            self._shown[key] = self._show(snapshot, parent_id)
        return self._shown[key]

    def _show(self, snapshot: Snapshot, parent_id: int | None) -> ShownSnapshot | None:
        schema = self._branch.schema
        has_vectors = snapshot.index_manifest is not None and may_have_vectors(schema)
        shown_id = self.snapshot_id_of(snapshot.id)
        digest = digest_of(self._skips_level_0, self._key_of(snapshot.id), *self._look_key, *self._bounds_key)
        path = self._objects.path(
            self._branch.layout.manifest(snapshot.delta_manifest_list), f"list-{shown_id}-{digest}.avro"
        )
        if self._objects.size_of(path) is not None:
            return ShownSnapshot(snapshot, shown_id, path, has_vectors, self._read_file_ids(path))
        check_readable(schema)
        if not self._can_show(snapshot):
            return None
        manifests, file_ids = self._data_manifests(snapshot)
        if has_vectors:
            manifests += self._delete_manifests(snapshot, shown_id)
        shown_snapshot = ShownSnapshot(snapshot, shown_id, path, has_vectors, file_ids)
        self._unwritten.append(
            _UnwrittenList(shown_snapshot, parent_id, manifests, file_ids.header() if self._looks else {})
        )
        return shown_snapshot

    def write(self) -> None:
        """Write the lists of the snapshots shown since the last call, and before them their manifests.

        Raises what a put raises; the next call then writes what remains. Cost: that of `show`, many at once.
        """
        self._objects.write_deferred()
        for unwritten in self._unwritten:
            self._objects.defer(unwritten.shown.list_path, partial(self._encode_list, unwritten))
        self._objects.write_deferred()
        self._unwritten = []

    def _encode_list(self, unwritten: _UnwrittenList) -> bytes:
        shown_snapshot = unwritten.shown
        return encode_list(
            [replace(manifest.totals, size_bytes=self._size_of(manifest.path)) for manifest in unwritten.manifests],
            snapshot_id=shown_snapshot.id,
            parent_id=unwritten.parent_id,
            sequence_number=shown_snapshot.snapshot.id,
            format_version=3 if shown_snapshot.has_vectors else 2,
            header=unwritten.header,
        )

    def _size_of(self, path: str) -> int:
        size = self._objects.size_of(path)
        assert size is not None
        return size

    @property
    def _look_key(self) -> tuple[str, ...]:
        """A key for objects that say which columns are in their files."""
        return ("file-ids",) if self._looks else ()

    @property
    def _bounds_key(self) -> tuple[str, ...]:
        """A key for lists with bounds of floating-point partitions: older lists had none where a value was NaN."""
        roots = {parse_type(column.type).root for column in self._branch.schema.partition_fields}
        return ("bounds-without-nan",) if roots & {"FLOAT", "DOUBLE"} else ()

    def _read_file_ids(self, path: str) -> FileIds:
        """What an object of an earlier request, or of another process, says about its files.

        Cost: 1 GET, or nothing.
        """
        if not self._looks:
            return FileIds()
        return parse_header(decode_header(self._objects.get(path), path=path), path=path)

    def _prepare(self) -> None:
        """Compute everything that depends on the newest schema."""
        schema = self._branch.schema
        if self._made_for is schema:
            return
        self._skips_level_0 = bool(schema.primary_keys) and skips_level_0(schema)
        self._shown_schema = iceberg_schema(schema)
        self._looks = has_to_look([self.schema_of(number) for number in self.schema_ids()])
        self._shown.clear()
        self._ids_of_manifests.clear()
        self._context = EntryContext(
            store=self._branch.store,
            schema=schema,
            schema_of=self.schema_of,
            partitions=partition_columns_of(schema, self._shown_schema),
            folders_of=folder_namer(self._branch),
            snapshot_id_of=self.snapshot_id_of,
            urls_of_files=self._objects.urls_of_files,
        )
        self._made_for = schema  # last: after an error it is all computed again

    def _key_of(self, number: int | None) -> str:
        """A key that distinguishes objects of this branch from those of main with the same source."""
        if self._fork_id is None or (number is not None and number <= self._fork_id):
            return ""
        return f"{self._branch.branch}@{self._fork_id}"

    def _can_show(self, snapshot: Snapshot) -> bool:
        """Whether each live file may be read by itself, without a merge."""
        schema = self._branch.schema
        if not schema.primary_keys:
            return True
        entries = self._branch.manifests.live_entries(snapshot)
        if self._skips_level_0:
            entries = entries.filter(pc.greater(entries["level"], 0))
        splits = plan_splits(
            entries,
            schema=schema,
            target_bytes=_EVERYTHING_BYTES,
            open_cost_bytes=0,
            is_marked=self._skips_level_0,
        )
        return not any(split.needs_merge for split in splits)

    # ---- manifests of data files

    def _data_manifests(self, snapshot: Snapshot) -> tuple[list[_Listed], FileIds]:
        """The manifests of a snapshot's data files, and what is known of the ids in these files."""
        manifests = self._branch.manifests
        metas = manifests.all_metas(snapshot)
        first_new = len(metas) - len(manifests.metas(snapshot.delta_manifest_list))
        self._fold.move_to(metas)
        data_manifests: list[_Listed] = []
        ids: list[FileIds] = []
        for position, meta in enumerate(metas):
            rows = self._fold.rows(meta.file_name)
            if self._skips_level_0 and len(rows):
                levels = manifests.entries(meta).column("level").to_numpy()
                rows = rows[levels[rows] > 0]
            if len(rows):
                fallback = snapshot.id if position >= first_new else 0
                manifest, file_ids = self._data_manifest(meta, rows, fallback=fallback)
                data_manifests.append(manifest)
                ids.append(file_ids)
        return data_manifests, union(ids)

    def _data_manifest(self, meta: ManifestMeta, rows: Rows, *, fallback: int) -> tuple[_Listed, FileIds]:
        """The manifest of some live files of a manifest of the table, and what is known of the ids in these files.

        Args:
            fallback: the number of the snapshot that added it, if the table does not state one.
        """
        assert self._context is not None
        context = self._context
        path = self._objects.path(
            self._branch.layout.manifest(meta.file_name),
            f"data-{digest_of(rows.tobytes(), self._key_of(meta.added_snapshot), *self._look_key)}.avro",
        )
        sums = self._sums.get(path)

        @cache
        def live() -> pa.Table:
            return self._branch.manifests.entries(meta).take(pa.array(rows)).combine_chunks()

        if sums is None:
            sums = self._sums[path] = sum_entries(context, live(), added_snapshot=meta.added_snapshot)
        file_ids = self._ids_of_manifests.get(path)
        if file_ids is None:
            is_stored = not self._looks or self._objects.size_of(path) is not None
            file_ids = self._read_file_ids(path) if is_stored else self._look_at(live())
            self._ids_of_manifests[path] = file_ids
        header = file_ids.header() if self._looks else {}
        self._objects.defer(
            path,
            lambda: encode_data_manifest(
                self._head(meta.schema_id, key=self._key_of(meta.added_snapshot)),
                data_entries(context, live(), added_snapshot=meta.added_snapshot),
                header=header,
            ),
        )
        number = fallback if meta.added_snapshot is None else meta.added_snapshot
        totals = ManifestTotals(
            path=self._objects.url(path),
            size_bytes=0,
            added_snapshot_id=self.snapshot_id_of(number),
            sequence_number=number,
            min_sequence_number=number if sums.min_sequence_number is None else sums.min_sequence_number,
            added_count=sums.added_count,
            existing_count=sums.existing_count,
            added_rows=sums.added_rows,
            existing_rows=sums.existing_rows,
            partitions=sums.partitions,
        )
        return _Listed(path, totals), file_ids

    def _look_at(self, entries: pa.Table) -> FileIds:
        """What the footers of data files say. Cost: 1 HEAD and 1 GET for each file whose footer was not read before."""
        assert self._context is not None
        ids: list[FileIds] = []
        sizes, schema_ids = entries.column("file_size").to_pylist(), entries.column("schema_id").to_pylist()
        for path, size, schema_id in zip(data_paths(self._context, entries), sizes, schema_ids, strict=True):
            if path not in self._ids_of_files:
                file_store, name = place_of(self._branch.store, path)
                columns = read_footer(file_store, name, size_bytes=size).schema.to_arrow_schema()
                self._ids_of_files[path] = ids_of_file(columns, self.schema_of(schema_id))
            ids.append(self._ids_of_files[path])
        return union(ids)

    def _head(self, schema_id: int, *, key: str = "", is_deletes: bool = False) -> ManifestHead:
        """The head of a manifest. With a key it is the branch's own, whose schemas have other ids than main's."""
        assert self._context is not None
        schema = iceberg_schema(self.schema_of(schema_id))
        shown_id = hashed_id(f"schema of {key}", schema_id) & 0x3FFF_FFFF | 0x4000_0000 if key else schema_id
        return ManifestHead(
            schema.members(shown_id),
            self._context.partitions,
            format_version=3 if is_deletes else 2,
            is_deletes=is_deletes,
        )

    # ---- deletion vectors

    def _delete_manifests(self, snapshot: Snapshot, shown_id: int) -> list[_Listed]:
        assert snapshot.index_manifest is not None
        entries = [
            entry
            for entry in self._branch.manifests.index_entries(snapshot.index_manifest)
            if entry.index_type == DELETION_VECTORS and entry.ranges
        ]
        if any(entry.external_path is not None for entry in entries):
            raise UnsupportedFormat("Index files outside of the table's folder are not shown to Iceberg's clients.")
        urls = self._urls_of({vector.data_file for entry in entries for vector in entry.ranges}, snapshot)
        return [self._delete_manifest(entry, urls, snapshot, shown_id) for entry in entries]

    def _urls_of(self, names: set[str], snapshot: Snapshot) -> dict[str, str]:
        """The URLs of the live data files with these names."""
        assert self._context is not None
        live_entries = self._branch.manifests.live_entries(snapshot)
        marked_entries = live_entries.filter(
            pc.is_in(live_entries["file_name"], value_set=pa.array(sorted(names), pa.string()))
        )
        return dict(zip(marked_entries["file_name"].to_pylist(), data_urls(self._context, marked_entries), strict=True))

    def _delete_manifest(self, entry: IndexEntry, urls: dict[str, str], snapshot: Snapshot, shown_id: int) -> _Listed:
        """The manifest of the vectors of one index file, and the Puffin file that has them."""
        assert self._context is not None
        context = self._context
        source = self._branch.layout.index(entry.file_name)
        ranges = [vector for vector in entry.ranges if vector.data_file in urls]
        key = digest_of(*((vector.data_file, urls[vector.data_file]) for vector in ranges))
        puffin_path = self._objects.path(source, f"vectors-{key}.puffin")
        path = self._objects.path(source, f"deletes-{key}.avro")
        where = pa.table({"partition": pa.array([entry.partition] * len(ranges), pa.binary())})
        if self._objects.size_of(path) is None:
            places = [
                VectorPlace(source, vector.offset, vector.length, vector.cardinality, entry.file_size)
                for vector in ranges
            ]
            body, blobs = encode_puffin(
                {
                    urls[vector.data_file]: positions
                    for vector, positions in zip(ranges, self._load_vectors(places), strict=True)
                }
            )
            size = self._objects.ensure(puffin_path, lambda: body)
            records = self._delete_records(where, blobs, puffin_path, size)
            schema_id = self._branch.schema.id
            self._objects.ensure(path, lambda: encode_manifest(self._head(schema_id, is_deletes=True), records))
        totals = ManifestTotals(
            path=self._objects.url(path),
            size_bytes=0,
            added_snapshot_id=shown_id,
            sequence_number=snapshot.id,
            min_sequence_number=snapshot.id,
            added_count=len(ranges),
            existing_count=0,
            added_rows=sum(vector.cardinality or 0 for vector in ranges),
            existing_rows=0,
            partitions=partition_summaries(context, where),
            is_deletes=True,
        )
        return _Listed(path, totals)

    def _load_vectors(self, places: Sequence[VectorPlace]) -> list[Positions]:
        """The vectors of one index file. Cost: 1 GET."""
        if not places:
            return []
        file_store, name = place_of(self._branch.store, places[0].path)
        body = bytes(file_store.get(name))
        return [decode_vector(body[place.offset :], place) for place in places]

    def _delete_records(
        self, where: pa.Table, blobs: dict[str, Blob], puffin_path: str, size: int
    ) -> list[dict[str, object]]:
        assert self._context is not None
        url = self._objects.url(puffin_path)
        partitions = partition_tuples(self._context, where)
        return [
            {
                "status": ADDED,
                "snapshot_id": None,
                "sequence_number": None,
                "file_sequence_number": None,
                "data_file": {
                    "content": POSITION_DELETES,
                    "file_path": url,
                    "file_format": "PUFFIN",
                    "partition": partition,
                    "record_count": blob.row_count,
                    "file_size_in_bytes": size,
                    "referenced_data_file": data_url,
                    "content_offset": blob.offset,
                    "content_size_in_bytes": blob.size_bytes,
                },
            }
            for (data_url, blob), partition in zip(blobs.items(), partitions, strict=True)
        ]


def hashed_id(name: str, number: int) -> int:
    """An id above those of main, always the same for the same arguments."""
    digest = hashlib.blake2b(f"{name}\0{number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 2) | 1 << 61


_PUFFIN_MAGIC: Final = b"PFA1"
_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_ROW_POSITION_ID: Final = 2_147_483_645
"""Iceberg's reserved field of row positions."""


@dataclass(frozen=True, slots=True)
class Blob:
    """The location of the vector of a data file in a Puffin file."""

    offset: int
    size_bytes: int
    row_count: int


def encode_puffin(vectors: Mapping[str, Positions]) -> tuple[bytes, dict[str, Blob]]:
    """The bytes of a Puffin file of vectors by URL of the data file, and where each is.

    A blob is the length (big-endian), a magic number, a 64-bit Roaring bitmap and the CRC-32 of the last two
    (big-endian). DO NOT CHANGE: other clients read it.
    """
    body, blobs, members = bytearray(_PUFFIN_MAGIC), dict[str, Blob](), []
    for url, positions in vectors.items():
        # One bitmap, for the upper half 0: positions have at most 31 bits.
        content = _VECTOR_MAGIC + struct.pack("<QI", 1, 0) + encode_positions(positions)
        blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        blobs[url] = Blob(len(body), len(blob), len(positions))
        members.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(body),
                "length": len(blob),
                "properties": {"referenced-data-file": url, "cardinality": str(len(positions))},
            }
        )
        body += blob
    footer = msgspec.json.encode({"blobs": members, "properties": {}})
    body += _PUFFIN_MAGIC + footer + struct.pack("<I", len(footer)) + bytes(4) + _PUFFIN_MAGIC
    return bytes(body), blobs
