"""Which reader reads which files of a scan: one plan for the Python API, the SQL catalog and the data source. Pure.

Owns: the choice of a reader for each split (`plan_readers`). Spark's own Parquet reader reads the files that need no
merge and have no deletion vector, in one `NativeScan` for each schema with which they were written. lakebed reads all
other splits, which are distributed in packs.

Invariants:
- Both readers return the columns of the scan with the same names, types, nullability and values.
- A plan is data: it contains no session, store or credential, and can be pickled. Files are rows of Arrow tables.
- Imports no PySpark. Only a store in a branch of a repository is read, for the addresses of its files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.task_store import EntryStore
from lakebed.spark.plan.carried import transfer_rows
from lakebed.spark.plan.shipping import locate, open_in_task, pack_units, split_bytes, split_files
from lakebed.table.files.planned_files import columns_of
from lakebed.table.model.model import DataField, Split, TableSchema
from lakebed.table.model.predicate_tree import And, Compare, Not, OneOf, Or, Predicate
from lakebed.table.model.types import Type, parse_type
from lakebed.table.read.read import ReadPlan, read_split

MICROSECONDS: Final = 6
"""Digits of a second that Spark keeps."""

_HADOOP_SCHEMES: Final = {"file": "file", "s3": "s3a", "gs": "gs"}
"""The URL schemes that Hadoop can read, with Hadoop's names."""

_LITERALS_MAX: Final = 1000
"""Most values in a filter for Spark. Each of them costs calls into the JVM."""

FILES: Final = pa.schema(
    [
        pa.field("folder", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("modified_ms", pa.int64(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("file_name", pa.string(), nullable=False),
    ]
)
"""One row for each file for Spark's reader. `urls_of` makes its URL from `folder` and `name`, which are spelled like
Hadoop's paths: they are percent-encoded only where the object's own name is. `file_name` is the name in the manifest.
`modified_ms` is Unix time in milliseconds, 0 if unknown."""

UNITS: Final = pa.schema(
    [
        pa.field("scan", pa.int32()),
        pa.field("folder", pa.string()),
        pa.field("name", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("modified_ms", pa.int64()),
        pa.field("file_name", pa.string()),
        pa.field("pack", pa.binary()),
    ]
)
"""One row for each file or pack. A file has its `scan` (the position in `ReaderPlan.natives`) and the columns of
`FILES`. A pack has its pickled `Pack`. Files come first, in the order of the scans. `folder` is null if it is the same
as in the row before, `file_name` is null if it equals `name`."""

Reaches = Callable[[str], bool]
"""Whether Spark has a file system for one of Hadoop's schemes (``file``, ``s3a``, ``gs``)."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a native scan."""

    field: DataField
    """The column in the table."""
    stored: DataField | None
    """The column in the files, with the nullability of `field`; None: they lack it, and its values are null."""


@dataclass(frozen=True, slots=True)
class NativeScan:
    """Files that Spark's own reader reads, all written with one schema."""

    schema_id: int
    columns: tuple[FileColumn, ...]
    """`ReadPlan.decoded`: the columns of the result and of the predicate, in the table's order."""
    files: pa.Table
    """A table of `FILES`."""

    @property
    def is_current(self) -> bool:
        """Whether the files have every column under its present name and type."""
        return all(column.stored == column.field for column in self.columns)


@dataclass(frozen=True, slots=True)
class Pack:
    """The splits of one task for lakebed's reader."""

    splits: tuple[Split, ...]
    entries: Mapping[str, Entry]
    """The entries of files of a store in a branch, for `shipping.open_in_task`; empty for all other stores."""

    def read(self, shipped: bytes, plan: ReadPlan, carried: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows in a task, from a store that was shipped to the task, in the types of `transfer_schema`."""
        store = open_in_task(shipped, self.entries)
        for split in self.splits:
            for rows in read_split(store, split, plan=plan):
                yield transfer_rows(rows, carried)


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """What every reader reads of a scan. The rows of the scan are the union of their results, in any order.

    The rows of a native scan must still be filtered by `where` and projected to `fields`. The rows of packs are those
    of `read.read_split`.
    """

    fields: tuple[DataField, ...]
    """The columns of the result, in order."""
    where: Predicate | None
    natives: tuple[NativeScan, ...]
    packs: tuple[Pack, ...]

    def to_arrow(self) -> pa.Table:
        """Return the plan as `UNITS`, for a process that is not Python."""
        tables = [_units(position, scan.files) for position, scan in enumerate(self.natives)]
        if self.packs:
            tables.append(packs_to_arrow(self.packs))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables or [UNITS.empty_table()])


def urls_of(files: pa.Table) -> pa.ChunkedArray:
    """Return the URLs of `FILES`."""
    return pc.binary_join_element_wise(files.column("folder").cast(pa.string()), files.column("name"), "/")


def _units(position: int, files: pa.Table) -> pa.Table:
    """Return the files of a scan as rows of `UNITS`."""
    count = files.num_rows
    folder, name, file_name = (files.column(column).combine_chunks() for column in ("folder", "name", "file_name"))
    is_new = np.append(True, np.diff(folder.indices.to_numpy()) != 0)[:count]
    shown_folders = folder.dictionary.take(pc.if_else(pa.array(is_new), folder.indices, None))
    return pa.Table.from_arrays(
        [
            pa.array(np.full(count, position, np.int32)),
            shown_folders,
            name,
            files.column("size_bytes"),
            files.column("modified_ms"),
            pa.nulls(count, pa.string()) if file_name.equals(name) else file_name,
            pa.nulls(count, pa.binary()),
        ],
        schema=UNITS,
    )


def packs_to_arrow(packs: Sequence[object]) -> pa.Table:
    """Return pickled packs of tasks as rows of `UNITS`."""
    pickled = pa.array([pickle.dumps(pack) for pack in packs], pa.binary())
    absent = [pa.nulls(len(packs), field.type) for field in UNITS][:-1]
    return pa.Table.from_arrays([*absent, pickled], schema=UNITS)


def plan_readers(
    store: ObjectStore,
    splits: Sequence[Split],
    plan: ReadPlan,
    *,
    reaches: Reaches | None,
    task_count_min: int,
) -> ReaderPlan:
    """Choose the reader of each split.

    Args:
        store: the table's store.
        splits, plan: those of the scan.
        reaches: None: lakebed reads everything.
        task_count_min: number of tasks that run at once. lakebed's splits are distributed over at least as many, if
            there are enough splits.

    Raises `NotFound`: a file is gone from a branch. Cost: columns of all files, then Python steps for each split; in a
    branch also that of `EntryStore.entries`.
    """
    is_wanted = reaches is not None and (plan.where is None or (is_small(plan.where) and has_known_days(plan.where)))
    # In a branch, files and packs are resolved together, as of one moment of the branch.
    (entries,) = locate(store, [splits], files=split_files)
    root = _native_root(store, reaches) if reaches is not None and is_wanted else None
    natives: list[NativeScan] = []
    other_splits = list(splits)
    if root is not None:
        addresses = {path: entry.address for path, entry in entries.items()} if isinstance(store, EntryStore) else None
        natives, other_splits = _native_scans(splits, plan, root=root, addresses=addresses)
    task_splits = pack_units(other_splits, size_bytes=split_bytes, task_count_min=task_count_min)
    packs = (Pack(tuple(pack), _entries_of(pack, entries)) for pack in task_splits)
    return ReaderPlan(fields=plan.fields, where=plan.where, natives=tuple(natives), packs=tuple(packs))


def is_small(bound: Predicate) -> bool:
    """Whether a bound predicate has few enough values for a filter of Spark."""
    return _literal_count(bound) <= _LITERALS_MAX


def _literal_count(bound: Predicate) -> int:
    if isinstance(bound, And | Or):
        return sum(map(_literal_count, bound.parts))
    if isinstance(bound, Not):
        return _literal_count(bound.part)
    return len(bound.values) if isinstance(bound, OneOf) else 1


_KNOWN_DAYS: Final = (-25_202, 2_932_896)
"""1901 to 9999, as days since 1970. Spark's own reader shifts some earlier days (`filters.FIRST_KEPT_YEAR`). For later
days Python has no constant that fits a filter of Spark."""
_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def has_known_days(bound: Predicate) -> bool:
    """Whether all dates and times in a bound predicate have the same meaning in a filter of Spark."""
    if isinstance(bound, And | Or):
        return all(map(has_known_days, bound.parts))
    if isinstance(bound, Not):
        return has_known_days(bound.part)
    if isinstance(bound, OneOf):
        values = bound.values
    elif isinstance(bound, Compare) and isinstance(bound.value, pa.Scalar):
        values = pa.repeat(bound.value, 1)
    else:
        return True
    is_date = pa.types.is_date32(values.type)
    if not is_date and not pa.types.is_timestamp(values.type):
        return True
    per_day = 1 if is_date else _PER_DAY[values.type.unit]
    units = pc.min_max(values.cast(pa.int32() if is_date else pa.int64())).as_py()
    first, last = _KNOWN_DAYS
    return units["min"] is None or (first * per_day <= units["min"] and units["max"] < (last + 1) * per_day)


def _entries_of(splits: Iterable[Split], entries: Mapping[str, Entry]) -> dict[str, Entry]:
    if not entries:
        return {}
    return {path: entries[path] for split in splits for file in split_files(split) for path in file if path in entries}


def _native_root(store: ObjectStore, reaches: Reaches) -> str | None:
    """Return the folder of a store's objects as a URL for Spark's own reader; None if it cannot read them."""
    url = hadoop_url((store.inside_url() if isinstance(store, EntryStore) else store.root_url) or "")
    return url if url is not None and reaches(url.partition("://")[0]) else None


def hadoop_url(url: str) -> str | None:
    """Spell a store's URL as Hadoop does; None for a store that Hadoop does not have."""
    scheme, _, rest = url.partition("://")
    hadoop_scheme = _HADOOP_SCHEMES.get(scheme)
    return None if hadoop_scheme is None else f"{hadoop_scheme}://{rest}"


def _native_scans(
    splits: Sequence[Split], plan: ReadPlan, *, root: str, addresses: Mapping[str, str] | None
) -> tuple[list[NativeScan], list[Split]]:
    """Return the scans of Spark's reader, and the other splits.

    Args:
        addresses: in a branch of a repository: the address of each path's object; None: the path itself.
    """
    readable = {schema_id for schema_id, schema in plan.schemas.items() if _reads_natively(schema, plan.decoded)}
    is_alone = np.array([split.is_whole and not split.other_folders for split in splits], np.bool_)
    alone = [split for split, is_plain in zip(splits, is_alone, strict=True) if is_plain]
    groups, files = columns_of(
        [split.files for split in alone],
        ("file_name", "file_size", "creation_time_ms", "row_count", "schema_id", "external_path", "write_cols"),
    )
    is_far, folders, names = _places(alone, groups, files.column("file_name"), root=root, addresses=addresses)
    is_outside = pc.or_(pc.not_equal(pc.fill_null(files.column("external_path"), ""), ""), is_far)
    is_evolved = ~np.isin(files.column("schema_id").to_numpy(), list(readable))
    # A file of another writer may lack partition columns, for which Spark's reader would return nulls.
    is_partial = _lacks(files.column("write_cols"), plan.schema.partition_keys)
    is_refused = np.zeros(len(alone), np.bool_)
    is_refused[groups[is_outside.to_numpy(zero_copy_only=False) | is_evolved | is_partial]] = True
    is_native = is_alone.copy()
    is_native[is_alone] = ~is_refused
    table = pa.table(
        [
            folders,
            names,
            files.column("file_size"),
            pc.fill_null(files.column("creation_time_ms"), 0),
            files.column("row_count"),
            files.column("file_name"),
        ],
        schema=FILES,
    )
    is_kept = ~is_refused[groups]
    schema_ids = files.column("schema_id").to_numpy()
    scans = []
    for schema_id in map(int, np.unique(schema_ids[is_kept])):
        selection = is_kept & (schema_ids == schema_id)
        rows = table if selection.all() else table.filter(pa.array(selection))
        scans.append(NativeScan(schema_id, _file_columns(plan, schema_id), rows))
    return scans, [split for split, native in zip(splits, is_native, strict=True) if not native]


def _places(
    splits: Sequence[Split],
    groups: npt.NDArray[np.int64],
    names: pa.ChunkedArray,
    *,
    root: str,
    addresses: Mapping[str, str] | None,
) -> tuple[pa.Array, pa.DictionaryArray, pa.ChunkedArray | pa.Array]:
    """Return for each file whether it is outside of the table's store, its folder and its name.

    For files outside of the store, Hadoop may need other credentials.

    Args:
        groups: the position of each file's split.
        addresses: as in `_native_scans`.
    """
    positions = pa.array(groups)
    if addresses is None:
        # Computed once for each split, because a plan may have many files and few folders.
        is_far = pa.array(["://" in split.folder for split in splits], pa.bool_())
        folders = pa.array([f"{root}/{split.folder}" for split in splits], pa.string()).dictionary_encode()
        return is_far.take(positions), folders.take(positions), names
    inside = pa.array([split.folder for split in splits], pa.string()).take(positions)
    paths = pc.binary_join_element_wise(inside, names, "/")
    locations = pa.array(map(addresses.get, paths.to_pylist()), pa.string())
    is_far = pc.fill_null(pc.match_substring(locations, "://"), True)
    zeros = pa.array(np.zeros(len(locations), np.int32))
    return is_far, pa.DictionaryArray.from_arrays(zeros, pa.array([root])), pc.fill_null(locations, "")


def _lacks(write_cols: pa.ChunkedArray, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which files lack one of some columns, by the columns that their entries name."""
    lacks = np.zeros(len(write_cols), np.bool_)
    if names and write_cols.null_count < len(write_cols):
        for row in np.flatnonzero(pc.is_valid(write_cols).to_numpy()):
            lacks[row] = not set(names) <= set(write_cols[row].as_py())
    return lacks


def _file_columns(plan: ReadPlan, schema_id: int) -> tuple[FileColumn, ...]:
    in_file = {field.id: field for field in plan.schemas[schema_id].fields}
    columns = []
    for field in plan.decoded:
        file_field = in_file.get(field.id)
        stored_schema = None
        if file_field is not None and (file_field.name, file_field.type) == (field.name, field.type):
            stored_schema = field
        elif file_field is not None:
            stored_schema = DataField(file_field.id, file_field.name, file_field.type, nullable=field.nullable)
        columns.append(FileColumn(field, stored_schema))
    return tuple(columns)


def _reads_natively(written_with: TableSchema, fields: Sequence[DataField]) -> bool:
    """Whether Spark's reader and casts return exactly the same columns as lakebed's own reader."""
    in_file = {field.id: field for field in written_with.fields}
    for field in fields:
        file_field = in_file.get(field.id)
        if file_field is None:
            continue
        if not (is_native(field) and is_native(file_field)):
            return False
        if parse_type(field.type).is_nested and field.type != file_field.type:
            return False  # inner fields were renamed or added, and Spark matches these by name
    return True


def is_native(field: DataField) -> bool:
    """Whether Spark's own Parquet reader reads a data file's column of this type with the table's meaning.

    It does not for times of day and for nanoseconds, both of which it refuses.
    """
    return _is_native(parse_type(field.type))


def _is_native(data_type: Type) -> bool:
    if data_type.root in ("TIME", "VARIANT", "MULTISET"):
        return False
    if data_type.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and (data_type.precision or 0) > MICROSECONDS:
        return False
    return all(map(_is_native, data_type.children)) and all(_is_native(member.type) for member in data_type.fields)
