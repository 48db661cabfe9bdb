"""From Arrow rows to data files: routing to partitions and buckets, sorting by key, and numbering.

Owns: `TableWriter` and `BucketIndex`. Rows go in whole batches; nothing here loops over rows.

Invariants:
- Every file of a primary-key table is sorted by key and holds a key once: the table's merge engine merges the rows of
  a batch.
- Sequence numbers of a bucket continue after the highest one in the writer's base snapshot. Two writers with the same
  base may use the same numbers; the second of their commits numbers its rows anew (`lakebed.table.commit.late_rows`).
- Files are durable when `finish` returns; only the commit references them.
- A writer that fails deletes its files and is closed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Closed, InvalidRequest, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, map_in_pool
from lakebed.table.branch.discard import discard
from lakebed.table.codec.binary_row import EMPTY_ROW, encode_rows
from lakebed.table.codec.index_manifest import IndexEntry
from lakebed.table.engines.engine import Deletes, MergeEngine
from lakebed.table.engines.key_rows import is_retract, kinds_of
from lakebed.table.engines.merge import KeyGroups, encode_keys, group_by_key, is_strictly_increasing
from lakebed.table.engines.registry import check_deletes, engine_of
from lakebed.table.engines.sequence import sequence_codes
from lakebed.table.files.bucket import bucket_of, key_hashes
from lakebed.table.files.data_file import FileSettings, RollingWriter
from lakebed.table.files.dynamic_bucket import BucketAssigner, DynamicBuckets, HashIndex
from lakebed.table.files.external import targets_of
from lakebed.table.files.placement import Placement, bucket_folders
from lakebed.table.model.changelog_options import Producer, producer_of
from lakebed.table.model.frames import as_arrow
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, DataFile, Rows, TableSchema
from lakebed.table.model.row_kinds import DELETE_KIND, INSERT_KIND, KIND_COLUMN, SEQUENCE_COLUMN
from lakebed.table.schema.conform import boolean_mask, cast_columns, conform, conform_keys
from lakebed.table.schema.schema import require_column
from lakebed.table.write.changelog import changelog_settings
from lakebed.table.write.write_settings import UNAWARE_BUCKET, WriteSettings, check_writable

SHARE_BYTES_MIN = 12 * 1024 * 1024
SHARES_MAX = 4
"""Rows of an append table for one bucket are encoded as up to `SHARES_MAX` files at once.

Each has at least `SHARE_BYTES_MIN` Arrow bytes. One core encodes one file, and most of the time is spent on
compression.
"""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class BucketIndex:
    """The highest sequence number and the bucket count of every bucket of a snapshot."""

    def __init__(self, entries: pa.Table | None, *, key_files: Sequence[IndexEntry] = ()) -> None:
        self.key_files = tuple(key_files)
        """With dynamic buckets: the index of the snapshot."""
        self._highest: dict[tuple[bytes, int], int] = {}
        self._counts: dict[bytes, int] = {}
        if entries is None or entries.num_rows == 0:
            return
        groups = entries.group_by(["partition", "bucket"], use_threads=False).aggregate(
            [("max_sequence_number", "max"), ("total_buckets", "max")]
        )
        columns = (
            groups.column(name).to_pylist()
            for name in ("partition", "bucket", "max_sequence_number_max", "total_buckets_max")
        )
        for partition, bucket, highest, count in zip(*columns, strict=True):
            self._highest[partition, bucket] = highest
            self._counts[partition] = max(count, self._counts.get(partition, count))

    def next_sequence(self, partition: bytes, bucket: int) -> int:
        """The first free sequence number of a bucket; 0 for a new one."""
        return self._highest.get((partition, bucket), -1) + 1

    def check_bucket_count(self, partition: bytes, *, bucket_count: int) -> None:
        """Refuse to add rows that were hashed for another number of buckets to a partition."""
        actual_count = self._counts.get(partition)
        if actual_count is not None and actual_count != bucket_count:
            raise InvalidRequest(
                f"The table's option bucket is {bucket_count}, but the partition was written with {actual_count} "
                "buckets; overwrite it to change its bucket count.",
                kind="bucket_count_changed",
                expected=actual_count,
                actual=bucket_count,
            )


@dataclass(slots=True)
class _Group:
    """Rows that go into one bucket."""

    partition: bytes
    folder: str
    bucket: int
    positions: Int64s | None
    """Positions in the batch, ascending; None: `row_count` rows from `first_row` on."""
    row_count: int
    first_row: int = 0


class TableWriter:
    """Collects rows and writes them as level-0 files. Not thread-safe; encodes buckets in parallel itself.

    Args:
        schema: the newest; rows are conformed to it.
        environment: clock (creation times), randomness (file names), runtime (workers).
        index: loads the state of the base snapshot; called at most once, only if numbers are needed.
        hash_index: reads the index files of dynamic buckets and caches them; None: a new one.
        starts_anew: rows replace all existing rows, so sequence numbers start at 0 and the bucket count may change.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        schema: TableSchema,
        settings: WriteSettings,
        environment: Environment,
        index: Callable[[], BucketIndex],
        hash_index: HashIndex | None = None,
        starts_anew: bool = False,
    ) -> None:
        check_writable(schema)
        self._store = store
        self._schema = schema
        self._placement = Placement.of(schema)
        self._targets = targets_of(store, schema, rng=environment.rng)
        self._settings = settings
        self._environment = environment
        self._load_index = index
        self._index: BucketIndex | None = BucketIndex(None) if starts_anew else None
        self._next_sequence: dict[tuple[bytes, int], int] = {}
        self._hash_index = hash_index or HashIndex(store, Layout())
        self._assigner: BucketAssigner | None = None
        self._hashes: dict[tuple[bytes, int], list[Int32s]] = {}
        self._added: dict[tuple[bytes, int], list[DataFile]] = {}
        self._logs = producer_of(schema) is Producer.INPUT and not starts_anew
        self._logged: dict[tuple[bytes, int], list[DataFile]] = {}
        self._paths: list[str] = []
        self._pending: list[pa.Table] = []
        self._pending_kinds: list[npt.NDArray[np.int8]] = []
        self._pending_bytes = 0
        self._is_finished = False

    def write(self, rows: Rows, *, deletes: str | None = None) -> None:
        """Add rows; in a primary-key table they replace rows of the same key, also those of earlier calls.

        Args:
            rows: Arrow data with the table's column names; a reader is consumed batch by batch.
            deletes: name of a boolean column: true deletes the row's key. It is stored only when the table has it.

        Raises `InvalidRequest`: the rows do not fit the table (see `conform`), or `deletes` on an append table;
        `Closed`: the writer is finished, abandoned or failed before.
        """
        with self._abandon_on_error():
            for part in _parts(rows):
                self._add(*self._kinds_and_rows(part, deletes))

    def delete(self, keys: Rows) -> None:
        """Delete rows of a primary-key table by key; other columns, if given, are stored with the delete.

        Raises `InvalidRequest`: no primary-key table, or the rows do not hold every key column.
        """
        with self._abandon_on_error():
            check_deletes(self._schema, "delete by key", removes=True)
            for part in _parts(keys):
                rows = conform_keys(part, schema=self._schema)
                self._add(rows, np.full(rows.num_rows, DELETE_KIND, np.int8))

    def finish(self) -> list[BucketChange]:
        """Write what is left and return the changes to commit. The writer is closed then."""
        bucket_count = self._settings.bucket_count
        with self._abandon_on_error():
            self._flush()
            changes = [
                BucketChange(
                    partition=partition,
                    bucket=bucket,
                    total_buckets=bucket_count,
                    added=tuple(files),
                    changelog=tuple(self._logged.get((partition, bucket), ())),
                    hashes=self._hashes_in(partition, bucket),
                )
                for (partition, bucket), files in self._added.items()
            ]
        self._is_finished = True
        return changes

    def abandon(self) -> None:
        """Delete the files written so far and close the writer. A no-op after `finish`."""
        if self._is_finished:
            return
        self._is_finished = True
        self._pending, self._pending_kinds, self._pending_bytes = [], [], 0
        discard(self._store, self._paths)

    @contextmanager
    def _abandon_on_error(self) -> Iterator[None]:
        """Abandon the writer if an error is raised: it may have written some of the rows."""
        if self._is_finished:
            raise Closed("This writer is finished; take a new one.")
        try:
            yield
        except BaseException:  # also an interrupt: the caller does not have the changes yet
            self.abandon()
            raise

    def _kinds_and_rows(self, part: pa.Table, deletes: str | None) -> tuple[pa.Table, npt.NDArray[np.int8]]:
        if deletes is None:
            rows = conform(part, schema=self._schema)
            return rows, np.full(rows.num_rows, INSERT_KIND, np.int8)
        check_deletes(self._schema, f"write with deletes={deletes!r}", removes=False)
        mask = boolean_mask(part, column=deletes)
        part = cast_columns(part, schema=self._schema)
        if engine_of(self._schema).deletes is Deletes.IGNORE:
            part, mask = part.filter(pc.invert(mask)), mask.filter(pc.invert(mask))
        if self._schema.field_by_name(deletes) is None:
            part = part.drop_columns([deletes])
        kinds = np.where(mask.to_numpy(), np.int8(DELETE_KIND), np.int8(INSERT_KIND))
        if not kinds.any():
            return conform(part, schema=self._schema), kinds
        conform(part.filter(pc.invert(mask)), schema=self._schema)
        rows = conform_keys(part, schema=self._schema)
        engine_of(self._schema).check_retracts(rows.filter(mask))
        return rows, kinds

    def _add(self, rows: pa.Table, kinds: npt.NDArray[np.int8]) -> None:
        if rows.num_rows == 0:
            return
        self._pending.append(rows)
        self._pending_kinds.append(kinds)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._settings.buffer_bytes:
            self._flush()

    def _flush(self) -> None:
        """Write all pending rows, each bucket by one worker."""
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        kinds = np.concatenate(self._pending_kinds)
        self._pending, self._pending_kinds, self._pending_bytes = [], [], 0
        groups = self._route(rows)
        if len(groups) > 1 or self._schema.primary_keys:
            rows = rows.combine_chunks()
        if not self._schema.primary_keys:
            row_bytes = rows.nbytes / rows.num_rows
            groups = [share for group in groups for share in self._shares(group, len(groups), row_bytes)]
        starts = [self._reserve(group) for group in groups]
        if self._schema.primary_keys:
            rows = _with_system_columns(rows, kinds, groups, starts)
        writers = [self._writer_of(group, self._settings.files) for group in groups]
        log_settings = changelog_settings(self._settings.files, self._schema)
        loggers = [self._writer_of(group, log_settings) for group in groups] if self._logs else []

        def run(position: int) -> tuple[list[DataFile], list[DataFile]]:
            logger = loggers[position] if loggers else None
            return self._write_group(rows, groups[position], writers[position], logger, starts[position])

        try:
            workers = self._settings.worker_count_max
            results = map_in_pool(self._environment.runtime, run, range(len(groups)), worker_count_max=workers)
        finally:
            self._paths += (path for writer in (*writers, *loggers) for path in writer.paths)
        for group, (files, logged) in zip(groups, results, strict=True):
            self._added.setdefault((group.partition, group.bucket), []).extend(files)
            self._logged.setdefault((group.partition, group.bucket), []).extend(logged)

    def _shares(self, group: _Group, group_count: int, row_bytes: float) -> list[_Group]:
        """Split a group into consecutive groups, for workers that would otherwise be idle."""
        spare = self._settings.worker_count_max // group_count
        count = min(spare, int(row_bytes * group.row_count / SHARE_BYTES_MIN), SHARES_MAX)
        if count < 2:
            return [group]
        cuts = np.linspace(0, group.row_count, count + 1).astype(np.int64).tolist()
        shares = []
        for start, end in itertools.pairwise(cuts):
            positions = None if group.positions is None else group.positions[start:end]
            shares.append(replace(group, positions=positions, row_count=end - start, first_row=start))
        return shares

    def _writer_of(self, group: _Group, settings: FileSettings) -> RollingWriter:
        return RollingWriter(
            self._store,
            folder=group.folder,
            schema=self._schema,
            settings=settings,
            environment=self._environment,
            targets=self._targets,
        )

    def _write_group(
        self, rows: pa.Table, group: _Group, writer: RollingWriter, logger: RollingWriter | None, first_sequence: int
    ) -> tuple[list[DataFile], list[DataFile]]:
        """Write the rows of a group to data files, in key order, the rows of one key merged (`merge_batch`).

        With a `logger`, also write all rows to changelog files, those of one key in the order of their merge.
        """
        if not self._schema.primary_keys:
            is_whole = group.positions is None
            writer.write(
                rows.slice(group.first_row, group.row_count) if is_whole else rows.take(pa.array(group.positions))
            )
            return writer.close(first_sequence=first_sequence), []
        key_groups = self._group_keys(rows, group)
        files: list[DataFile] = []
        parts = (
            [_rows_of(rows, group)] if key_groups is None else merge_batch(rows, key_groups, engine_of(self._schema))
        )
        for part in parts:
            writer.write(part)
            files = writer.close()
        if logger is None:
            return files, []
        logger.write(_rows_of(rows, group) if key_groups is None else rows.take(pa.array(key_groups.order)))
        return files, logger.close()

    def _group_keys(self, rows: pa.Table, group: _Group) -> KeyGroups | None:
        """Which rows of a group have the same key, oldest first.

        None: all keys differ, and the rows are in key order.
        """
        order = engine_of(self._schema).order
        keys, ordering = self._schema.trimmed_primary_keys, order.columns if order is not None else ()
        columns = rows.select(dict.fromkeys((*keys, *ordering)))
        if group.positions is not None:
            columns = columns.take(pa.array(group.positions))
        codes = encode_keys([[columns.column(name) for name in keys]])
        if is_strictly_increasing(codes[0]):
            return None
        sequences = None
        if order is not None:
            arrival = np.arange(group.row_count, dtype=np.int64)
            sequences = sequence_codes([([columns.column(name) for name in ordering], arrival)], order=order)
        return group_by_key(codes, sequences=sequences).at(group.positions)

    def _reserve(self, group: _Group) -> int:
        """The first sequence number of a group's rows; later groups of the bucket continue after them."""
        if not self._schema.primary_keys and self._settings.bucket_count == UNAWARE_BUCKET:
            return 0
        index = self._bucket_index()
        key = (group.partition, group.bucket)
        first = self._next_sequence.get(key)
        if first is None:
            index.check_bucket_count(group.partition, bucket_count=self._settings.bucket_count)
            first = index.next_sequence(group.partition, group.bucket)
        self._next_sequence[key] = first + group.row_count
        return first

    def _bucket_index(self) -> BucketIndex:
        if self._index is None:
            self._index = self._load_index()
        return self._index

    def _hashes_in(self, partition: bytes, bucket: int) -> bytes:
        """The distinct hashes of the keys written to a dynamic bucket."""
        parts = self._hashes.get((partition, bucket))
        return np.unique(np.concatenate(parts)).astype("<i4").tobytes() if parts else b""

    def _dynamic_buckets(
        self, rows: pa.Table, settings: DynamicBuckets, partitions: Sequence[bytes], codes: npt.NDArray[Any] | None
    ) -> Int32s:
        """The bucket of each row, by the index and by this writer's earlier placements."""
        if self._assigner is None:
            files = self._bucket_index().key_files
            self._assigner = BucketAssigner(
                settings,
                lambda partition: self._hash_index.load_partition(f for f in files if f.partition == partition),
            )
        fields = self._schema.key_fields
        hashes = key_hashes([rows.column(field.name) for field in fields], [field.type for field in fields])
        buckets: Int32s = np.empty(len(hashes), np.int32)
        all_rows: Int64s = np.arange(len(hashes))
        shares = [(0, all_rows)] if codes is None else _split_by_code(codes, code_count=len(partitions))
        for code, positions in shares:
            share_hashes = hashes[positions]
            buckets[positions] = share_buckets = self._assigner.assign(partitions[code], share_hashes)
            for bucket in np.unique(share_buckets).tolist():
                self._hashes.setdefault((partitions[code], bucket), []).append(
                    np.unique(share_hashes[share_buckets == bucket])
                )
        return buckets

    def _route(self, rows: pa.Table) -> list[_Group]:
        """Group rows by partition and bucket; partitions in order of first appearance, buckets ascending."""
        partitions, partition_codes = self._partitions(rows)
        bucket_count = self._settings.bucket_count
        codes = partition_codes
        dynamic = self._settings.dynamic
        if dynamic is not None:
            buckets = self._dynamic_buckets(rows, dynamic, [key for key, _ in partitions], codes)
            bucket_count = int(buckets.max()) + 1
            codes = buckets if codes is None else codes.astype(np.int64) * bucket_count + buckets
        elif bucket_count > 1:
            fields = [require_column(self._schema, name) for name in self._settings.bucket_keys]
            buckets = bucket_of(
                [rows.column(field.name) for field in fields],
                [field.type for field in fields],
                bucket_count=bucket_count,
                function=self._settings.bucket_function,
            )
            codes = buckets if codes is None else codes.astype(np.int64) * bucket_count + buckets
        if codes is None:
            return [self._group(partitions[0], 0, None, rows.num_rows)]
        width = max(1, bucket_count)
        groups = []
        for code, positions in _split_by_code(codes, code_count=len(partitions) * width):
            partition, bucket = partitions[code // width], code % width
            is_all = len(positions) == rows.num_rows
            groups.append(self._group(partition, bucket, None if is_all else positions, len(positions)))
        return groups

    def _partitions(self, rows: pa.Table) -> tuple[list[tuple[bytes, str]], npt.NDArray[Any] | None]:
        """Distinct partitions with their folders, and the code of each row's partition; None if there is only one."""
        names = self._schema.partition_keys
        if not names:
            return [(EMPTY_ROW, self._placement.directory)], None
        types = [field.type for field in self._schema.partition_fields]
        encoded = encode_rows([rows.column(name) for name in names], types).dictionary_encode()
        distinct = encoded.dictionary
        try:
            folders = [alternatives[0] for alternatives in self._placement.partition_folders(distinct)]
        except UnsupportedFormat as error:
            raise InvalidRequest(f"These rows cannot be written: {error}", kind=error.kind, **error.facts) from error
        partitions = list(zip(distinct.to_pylist(), folders, strict=True))
        return partitions, None if len(partitions) == 1 else encoded.indices.to_numpy()

    def _group(self, partition: tuple[bytes, str], bucket: int, positions: Int64s | None, row_count: int) -> _Group:
        key, folder = partition
        return _Group(key, bucket_folders((folder,), bucket)[0], bucket, positions, row_count)


def _rows_of(rows: pa.Table, group: _Group) -> pa.Table:
    return rows if group.positions is None else rows.take(pa.array(group.positions))


def _with_system_columns(
    rows: pa.Table, kinds: npt.NDArray[np.int8], groups: Sequence[_Group], starts: Sequence[int]
) -> pa.Table:
    """Rows of a primary-key table with their sequence numbers, which ascend in each group, and their kinds."""
    sequences: Int64s = np.empty(rows.num_rows, np.int64)
    for group, start in zip(groups, starts, strict=True):
        places = slice(None) if group.positions is None else group.positions
        sequences[places] = np.arange(start, start + group.row_count)
    return rows.append_column(SEQUENCE_COLUMN, [sequences]).append_column(KIND_COLUMN, [kinds])


def as_table(rows: Rows) -> pa.Table:
    """Rows of any accepted kind as one table; a reader is read to its end."""
    arrow_rows = as_arrow(rows)
    if isinstance(arrow_rows, pa.RecordBatch):
        return pa.Table.from_batches([arrow_rows])
    return arrow_rows.read_all() if isinstance(arrow_rows, pa.RecordBatchReader) else arrow_rows


def _parts(rows: Rows) -> Iterable[pa.Table]:
    arrow_rows = as_arrow(rows)
    if isinstance(arrow_rows, pa.RecordBatchReader):
        return (pa.Table.from_batches([batch]) for batch in arrow_rows)
    return [as_table(arrow_rows)]


def _split_by_code(codes: npt.NDArray[Any], *, code_count: int) -> list[tuple[int, Int64s]]:
    """Positions of each code that occurs, ascending; a radix sort of one pass if codes fit into 16 bits."""
    narrow = codes.astype(np.uint16) if code_count <= 2**16 else codes
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(codes, minlength=code_count) if code_count <= 2**24 else None
    if counts is not None:
        present = np.flatnonzero(counts)
        ends = np.cumsum(counts[present])
    else:
        present, sizes = np.unique(codes, return_counts=True)
        ends = np.cumsum(sizes)
    return [(int(code), part) for code, part in zip(present, np.split(order, ends[:-1]), strict=True)]


def merge_batch(rows: pa.Table, groups: KeyGroups, engine: MergeEngine) -> list[pa.Table]:
    """The rows of a batch in key order, merged by key.

    The result has several tables, oldest first, if some must stay apart. Rows must stay apart if
    `MergeEngine.merges_apart` does not allow merging them before the older rows of their key. Each becomes a row of
    another file.

    Args:
        rows, groups: as `MergeEngine.merge`.
    """
    if engine.merges_apart(with_deletes=True):
        return [engine.merge(rows, groups)]
    deletes = is_retract(kinds_of(rows))[groups.order]
    if not deletes.any() and engine.merges_apart(with_deletes=False):
        return [engine.merge(rows, groups)]
    ends_part = groups.is_last.copy()
    if engine.merges_apart(with_deletes=False):
        ends_part |= deletes
        ends_part[:-1] |= deletes[1:]
    else:
        ends_part[:] = True
    parts = engine.merge(rows, KeyGroups(groups.order, ends_part))
    number = np.arange(parts.num_rows)
    is_first = np.append(True, groups.is_last[ends_part][:-1])
    rank = number - np.maximum.accumulate(np.where(is_first, number, 0))
    return [parts.filter(pa.array(rank == step)) for step in range(int(rank.max()) + 1)]
