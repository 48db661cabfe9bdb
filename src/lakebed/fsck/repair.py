"""The repair of data files' statistics: recompute them, and rewrite the manifest entries, in one commit a branch.

Owns: `repair_url`, `repair_statistics` and `RepairReport`. An entry is rewritten when it does not have the current
`STATS_VERSION`: it was written, or its manifest was merged, by an older lakebed or by another client, and `file_stats`
does not trust all of its bounds. Invariants: no data file is written or deleted; a file that cannot be read keeps its
entry and is reported; a file that another writer replaced meanwhile is left out; the entries of older versions and tags
are unchanged, and readers still do not trust them. One row group is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Corruption, InvalidRequest, LakebedError, NotFound, UnsupportedFormat
from lakebed.fsck.model import Progress
from lakebed.kv.database_location import DatabaseLocation
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import ENTRY_SCHEMA, NO_ENTRIES, files_of
from lakebed.table.codec.stats import EMPTY_STATS, compute_stats, merge_stats
from lakebed.table.commit.commit import CommitRequest, StagedChange, commit
from lakebed.table.files.data_file import OpenDataFile
from lakebed.table.files.splits import bucket_groups
from lakebed.table.model.layout import MAIN_BRANCH
from lakebed.table.model.model import STATS_VERSION, DataField, DataFile, Snapshot, Stats
from lakebed.table.model.types import arrow_type
from lakebed.table.read.source_file import open_in_folders
from lakebed.table.table import Table, branch_of
from lakebed.table.write.write_settings import check_writable

_Key = tuple[bytes, int, str]
"""Partition, bucket and name: a file keeps them when a compaction moves it to another level."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file, or a whole branch (`path` is its name), that could not be repaired."""

    path: str
    sentence: str


@dataclass(frozen=True, slots=True)
class BranchRepair:
    """The repair of one branch of one table."""

    table: str
    branch: str
    file_count: int
    """Live files of the newest snapshot."""
    described_count: int
    """Files whose statistics were recomputed: those without the current version."""
    wrong_count: int
    """Of these, files with a bound that left rows out."""
    read_bytes: int
    snapshot_id: int | None
    """The snapshot with the new manifests; None: nothing to do, or a dry run."""
    skipped: tuple[SkippedFile, ...] = ()


@dataclass(slots=True)
class RepairReport:
    """The result of a repair, or of a dry run."""

    url: str
    dry_run: bool
    branches: list[BranchRepair] = field(default_factory=list)

    @property
    def skipped_count(self) -> int:
        """The number of files and branches that could not be repaired."""
        return sum(len(branch.skipped) for branch in self.branches)

    def facts(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        return {
            "url": self.url,
            "dry_run": self.dry_run,
            "branches": [
                {
                    "table": branch.table,
                    "branch": branch.branch,
                    "files": branch.file_count,
                    "described": branch.described_count,
                    "wrong": branch.wrong_count,
                    "bytes": branch.read_bytes,
                    "snapshot": branch.snapshot_id,
                    "skipped": [{"path": skipped.path, "sentence": skipped.sentence} for skipped in branch.skipped],
                }
                for branch in self.branches
            ],
        }


def repair_url(
    url: str,
    *,
    store: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> RepairReport:
    """Repair the statistics of every table of a lake, of one of its tables, or of the table at a URL.

    Args:
        url: of a lake, or of one table's folder.
        store: only this table of the lake.

    Raises `NotFound`: nothing is there, or no such store; `Unavailable`: the store does not answer. Cost: reads every
    live data file without current statistics once; one commit a branch that has such files.
    """
    environment = environment or Environment()
    folder = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, create=False).store
    report = RepairReport(folder.root_url, dry_run)
    tables: list[Table] = []
    if store is None and "schema" in folder.list_with_delimiter("").folders:
        tables.append(Table.open(folder, name=folder.root_url.rpartition("/")[2], environment=environment))
    else:
        lake = Lake.open(folder, create=False, environment=environment, storage_options=storage_options)
        names = [
            store_name.name
            for store_name in (lake.stores() if store is None else [lake.find(store)])
            if store_name.kind == "table"
        ]
        tables += [lake.table(name) for name in names]
    for table in tables:
        report.branches += repair_statistics(table, dry_run=dry_run, progress=progress)
    return report


def repair_statistics(
    table: Table, *, dry_run: bool = False, progress: Callable[[Progress], None] | None = None
) -> list[BranchRepair]:
    """Repair the newest snapshot of main and of every branch of a table; as `repair_url`."""
    lines = [table, *(branch_of(table, branch.name) for branch in table.branches())]
    repairs = []
    for line in lines:
        try:
            repairs.append(_BranchRepairer(line, progress).run(dry_run=dry_run))
        except LakebedError as problem:
            if problem.kind == "unavailable":
                raise
            name = line.branch or MAIN_BRANCH
            repairs.append(
                BranchRepair(table.name, name, 0, 0, 0, 0, None, skipped=(SkippedFile(name, problem.message),))
            )
    return repairs


class _BranchRepairer:
    """The repair of one branch."""

    def __init__(self, table: Table, progress: Callable[[Progress], None] | None) -> None:
        self._table = table
        self._progress = progress
        self._skipped: list[SkippedFile] = []
        self._described: dict[_Key, DataFile] = {}
        self._wrong_count = 0
        self._read_bytes = 0

    def run(self, *, dry_run: bool) -> BranchRepair:
        head = self._table.latest()
        live_entries = NO_ENTRIES if head is None else self._table.context.manifests.live_entries(head)
        if not dry_run:
            check_writable(self._table.schema)
        self._recompute(live_entries)
        snapshot = None
        if self._described and not dry_run:
            snapshot = commit(self._table.context, CommitRequest(kind="COMPACT", derive=self._stage))
        return BranchRepair(
            table=self._table.name,
            branch=self._table.branch or MAIN_BRANCH,
            file_count=live_entries.num_rows,
            described_count=len(self._described),
            wrong_count=self._wrong_count,
            read_bytes=self._read_bytes,
            snapshot_id=None if snapshot is None else snapshot.id,
            skipped=tuple(self._skipped),
        )

    def _recompute(self, live_entries: pa.Table) -> None:
        stale = live_entries.filter(pc.fill_null(pc.not_equal(live_entries["stats_version"], STATS_VERSION), True))
        files = files_of(stale)
        done_count = 0
        for group in bucket_groups(stale, schema=self._table.schema):
            for member in group.members:
                file = files[member]
                path = file.external_path or f"{group.folder}/{file.file_name}"
                try:
                    described_file = self._anew(path, file, folders=(group.folder, *group.other_folders))
                except (Corruption, InvalidRequest, NotFound, UnsupportedFormat) as problem:
                    self._skipped.append(SkippedFile(path, problem.message))
                else:
                    self._described[group.partition, group.bucket, file.file_name] = described_file
                done_count += 1
                if self._progress is not None:
                    self._progress(Progress(done_count, len(files)))

    def _anew(self, path: str, file: DataFile, *, folders: Sequence[str]) -> DataFile:
        """Recompute a file's statistics from its rows; `path` names it in errors, `folders` are its bucket's."""
        schema = self._table.context.schemas.load(file.schema_id)
        keys = schema.key_fields
        names = file.value_stats_cols if file.value_stats_cols is not None else file.write_cols
        values = schema.fields if names is None else schema.select_fields(names)
        columns_by_name = {column.name: column for column in (*keys, *values)}
        parts: list[tuple[int, Stats, Stats]] = []
        data_file = open_in_folders(self._table.store, file, folders=folders)
        for rows in self._groups(path, file, data_file, columns_by_name):
            parts.append((rows.num_rows, compute_stats(rows, keys, truncate=None), compute_stats(rows, values)))
        if sum(count for count, _, _ in parts) != file.row_count:
            raise Corruption(f"The data file {path} does not have the {file.row_count} rows of its entry.", path=path)
        counts = [count for count, _, _ in parts]
        described_file = replace(
            file,
            key_stats=merge_stats([key for _, key, _ in parts], counts, keys) if parts and keys else file.key_stats,
            value_stats=merge_stats([value for _, _, value in parts], counts, values) if parts else file.value_stats,
            stats_version=STATS_VERSION,
        )
        self._wrong_count += _leaves_rows_out(file.value_stats, described_file.value_stats, values) or _leaves_rows_out(
            file.key_stats, described_file.key_stats, keys
        )
        return described_file

    def _groups(
        self, path: str, file: DataFile, data_file: OpenDataFile, columns_by_name: Mapping[str, DataField]
    ) -> Iterator[pa.Table]:
        missing = [name for name in columns_by_name if name not in data_file.column_names]
        if missing:
            raise Corruption(f"The data file {path} has no column {', '.join(missing)}.", path=path)
        self._read_bytes += file.file_size
        for group in range(data_file.row_group_count):
            rows = data_file.read(columns=list(columns_by_name), row_groups=[group])
            try:
                columns = [rows.column(name).cast(arrow_type(column.type)) for name, column in columns_by_name.items()]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise Corruption(f"The data file {path} holds other types than its schema.", path=path) from error
            if rows.num_rows:
                yield pa.table(columns, names=list(columns_by_name))

    def _stage(self, head: Snapshot | None) -> StagedChange:
        """A change without rows of its own whose base has the new entries."""
        live_entries = NO_ENTRIES if head is None else self._table.context.manifests.live_entries(head)
        rows = zip(*(live_entries[name].to_pylist() for name in ("partition", "bucket", "file_name")), strict=True)
        files = [self._described.get(row) for row in rows]
        for stats in ("key_stats", "value_stats"):
            for part, member in (("min", "min_values"), ("max", "max_values"), ("null_counts", "null_counts")):
                live_entries = _with_column(live_entries, f"{stats}_{part}", files, attrgetter(f"{stats}.{member}"))
        live_entries = _with_column(live_entries, "stats_version", files, attrgetter("stats_version"))
        return StagedChange(entries=NO_ENTRIES, base=head, live=live_entries)


def _leaves_rows_out(stated_stats: Stats, true: Stats, fields: Sequence[DataField]) -> bool:
    """Return whether a stated bound is narrower than the recomputed one, or stated where there is none."""
    arity = len(fields).to_bytes(4, "big")
    if (
        not fields
        or stated_stats == EMPTY_STATS
        or stated_stats.min_values[:4] != arity
        or stated_stats.max_values[:4] != arity
    ):
        return False
    types = [column.type for column in fields]
    ends = [
        decode_rows(pa.array([getattr(stats, side) for stats in (stated_stats, true)], pa.binary()), types)
        for side in ("min_values", "max_values")
    ]
    for low, high in zip(*ends, strict=True):
        if (low[0].is_valid and not low[1].is_valid) or (high[0].is_valid and not high[1].is_valid):
            return True
        if pc.less(low[1], low[0]).as_py() or pc.greater(high[1], high[0]).as_py():
            return True
    return False


def _with_column(
    entries: pa.Table, name: str, files: list[DataFile | None], member: Callable[[DataFile], Any]
) -> pa.Table:
    """Replace a column's values for the files with new statistics."""
    place = ENTRY_SCHEMA.get_field_index(name)
    kind = ENTRY_SCHEMA.field(place)
    new_values = pa.array([None if file is None else member(file) for file in files], kind.type)
    is_new = pa.array([file is not None for file in files])
    old_values = entries.column(place).combine_chunks()
    values = pa.concat_arrays([old_values, new_values]) if len(old_values) else new_values
    count = len(files)
    indices = pc.if_else(is_new, pa.array(range(count, 2 * count)), pa.array(range(count)))
    return entries.set_column(place, kind, values.take(indices))
