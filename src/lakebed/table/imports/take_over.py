"""Making the files of a source a snapshot of a table: plan, carry out, commit.

Owns: for each file the choice between its bytes and its rows (`plan_import`), and the copies.

Invariants:
- The bytes of a file are used only if its footer proves that every reader of the table finds its rows in it: columns of
  the table's names and types, the values of its partition, field ids that agree. Otherwise its rows are read by the
  rules of its format and written by the table's writer, or the import is refused.
- A copy belongs to the table: it has a new name in the table's folder, and is durable before the commit names it.
- lakebed never deletes a file that is registered in place. No version of the table's options can make it one of the
  table's own (`external.OwnFiles`), because it is in no folder of a bucket; and a failed import does not discard it.
- One commit makes all rows visible. No row is visible before it, and after a failure before it the copies are deleted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.ids import new_uuid
from lakebed.objects.open import open_elsewhere, place_of
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, map_in_pool
from lakebed.table.branch.discard import discard, discard_changes
from lakebed.table.codec.binary_row import EMPTY_ROW, encode_rows
from lakebed.table.commit.commit import CommitRequest, commit
from lakebed.table.files.adopt import AdoptedFile, describe_file, read_footer
from lakebed.table.files.data_file import open_data_file
from lakebed.table.files.int96 import BATCH_ROWS, READ_UNIT, int96_columns, refuse_far_instants
from lakebed.table.files.placement import Placement, bucket_folders
from lakebed.table.imports.model import ImportOptions, ImportProgress, ImportReport, Source, SourceFile
from lakebed.table.model.model import BucketChange, DataFile, Snapshot, TableSchema
from lakebed.table.model.types import FIELD_ID_KEY, arrow_type
from lakebed.table.rows.rows import new_writer
from lakebed.table.write.write_settings import UNAWARE_BUCKET, WriteSettings, check_writable
from lakebed.texts import format_value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from lakebed.table.table import Table
    from lakebed.table.write.write import TableWriter

_WORKERS_MAX: Final = 8
_COPY_BYTES_MAX: Final = 5_000_000_000
"""The largest object that every vendor copies in one request."""
_OWN_FOLDER: Final = re.compile(r"bucket-(-?[0-9]+|postpone)|[01]{8}")
"""Last folders in the paths of files that a table may own: of a bucket, or of a hash below one."""

T = TypeVar("T")
ProgressCall = Callable[[ImportProgress], None]


@dataclass(frozen=True, slots=True)
class TakenFile:
    """A file whose bytes become a data file. Picklable."""

    source: SourceFile
    partition: bytes
    folder: str
    """The bucket's folder, relative to the table's."""
    entry: DataFile


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What is done with each file of a source. Files without rows are left out."""

    source: Source
    schema: TableSchema
    taken: tuple[TakenFile, ...]
    rewritten: tuple[tuple[SourceFile, str], ...]
    """Files to rewrite, each with the reason."""

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.source.size_bytes for file in self.taken) + sum(file.size_bytes for file, _ in self.rewritten)


Carrier = Callable[["Table", ImportPlan, ProgressCall | None], list[BucketChange]]
"""Copies and rewrites the files of a plan, and returns the changes to commit."""


def take_over(
    table: Table,
    source: Source,
    options: ImportOptions | None = None,
    *,
    progress: ProgressCall | None = None,
    carrier: Carrier | None = None,
) -> ImportReport:
    """Make the files of a source one snapshot of a table.

    Args:
        table: without rows, unless `ImportOptions.append` is set.
        progress: called after each file.
        carrier: copies and rewrites elsewhere, such as in tasks of Spark; None: in this process.

    Raises:
        AlreadyExists: the table has a snapshot, perhaps of another import, and `append` is not set.
        InvalidRequest: a file does not fit; nothing is changed.
        NotFound: a file of the source is gone.
        Conflict, OutcomeUnknown: as `commit`.

    Cost: the footer of each file (1 HEAD and 1 GET), and the columns with INT96; a copy (1 COPY and 1 HEAD inside one
    bucket, else the bytes through this process) unless in place; 1 commit. Rewriting holds the writer's buffer in
    memory.
    """
    options = options or ImportOptions()
    schema = table.refresh()
    newest = table.latest()
    if newest is not None and not options.append:
        raise AlreadyExists(
            f"The table {table.name} has rows already: add to them with append, or import into a new table.",
            kind="table_exists",
            table=table.name,
        )
    plan = plan_import(table.store, source, schema, options=options, environment=table.context.environment)
    if options.in_place:
        check_new_names(plan, table, newest)
    if options.dry_run:
        return report_of(plan, name=table.name, options=options)
    changes = (carrier or carry)(table, plan, progress)
    outside = {file.entry.external_path for file in plan.taken if file.entry.external_path is not None}
    try:
        if changes or newest is None:
            snapshot = commit(table.context, CommitRequest("APPEND", changes, is_first=not options.append))
        else:
            snapshot = newest
    except (AlreadyExists, Conflict, InvalidRequest, NotFound):
        # These errors say that nothing was committed. After any other error that is uncertain.
        discard_changes(table.context, [without_outside(change, outside) for change in changes])
        raise
    return report_of(plan, name=table.name, options=options, changes=changes, snapshot=snapshot)


def report_of(
    plan: ImportPlan,
    *,
    name: str,
    options: ImportOptions,
    changes: Sequence[BucketChange] | None = None,
    snapshot: Snapshot | None = None,
) -> ImportReport:
    """The report of an import; without `changes`, of a dry run."""
    row_count = None
    if changes is not None:
        row_count = sum(file.row_count for change in changes for file in change.added)
    elif not plan.rewritten:
        row_count = sum(file.entry.row_count for file in plan.taken)
    reasons = Counter[str]()
    for file, why in plan.rewritten:
        reasons[why] += file.file_count
    return ImportReport(
        table=name,
        format=plan.source.format,
        source=plan.source.url,
        version=plan.source.version,
        row_count=row_count,
        size_bytes=plan.size_bytes,
        taken_count=len(plan.taken),
        rewritten_count=sum(reasons.values()),
        reasons=dict(reasons),
        in_place=options.in_place,
        dry_run=options.dry_run,
        notes=plan.source.notes if plan.source.history is None else (plan.source.history, *plan.source.notes),
        snapshot=snapshot,
    )


def without_outside(change: BucketChange, urls: Collection[str | None]) -> BucketChange:
    """The change without files that are registered in place, which no failure may delete."""
    return replace(change, added=tuple(file for file in change.added if file.external_path not in urls))


# ---- planning


def plan_import(
    store: ObjectStore, source: Source, schema: TableSchema, *, options: ImportOptions, environment: Environment
) -> ImportPlan:
    """Decide what to do with each file. Writes nothing. Raises as `take_over`. Cost: the footer of each file.

    Args:
        store: the table's store; the table need not exist yet.
        schema: the table's schema.
    """
    check_writable(schema)
    if options.in_place and store.is_versioned:
        raise InvalidRequest(
            f"The table at {store.root_url} is in a branch of a repository, which keeps no versions of files outside "
            "of it: import without in place, so that the files are copied.",
            kind="invalid_in_place",
        )
    descriptions = map_in_pool(
        environment.runtime,
        lambda file: _plan_file(store, file, source, schema, options=options, environment=environment),
        source.files,
        worker_count_max=_WORKERS_MAX,
    )
    taken_files = tuple(file for file in descriptions if isinstance(file, TakenFile))
    rewritten_files = tuple(
        (file, reason) for file, reason in zip(source.files, descriptions, strict=True) if isinstance(reason, str)
    )
    return ImportPlan(source, schema, taken_files, rewritten_files)


def _plan_file(
    store: ObjectStore,
    file: SourceFile,
    source: Source,
    schema: TableSchema,
    *,
    options: ImportOptions,
    environment: Environment,
) -> TakenFile | str | None:
    """How a file is taken over, or why it is rewritten; None for a file without rows."""
    if file.must_rewrite is not None and file.reads_every_instant:
        return file.must_rewrite
    place, path = place_of(store, file.url)
    try:
        footer = read_footer(place, path, size_bytes=file.size_bytes)
        _refuse_far_instants(place, path, footer, size_bytes=file.size_bytes)
    except NotFound as absent:
        raise NotFound(f"The source's file {file.url} is gone.", kind="source_not_found", url=file.url) from absent
    why = file.must_rewrite or needs_writer(schema)
    if why is not None:
        return why
    if footer.num_rows == 0:
        return None
    if options.in_place:
        _check_in_place(file.url)
    try:
        _check_names(footer, file, schema)
        return _take_file(file, footer, schema, in_place=options.in_place, environment=environment)
    except InvalidRequest as misfit:
        if misfit.kind != "file_misfit" or options.rewrite or not source.is_strict:
            if misfit.kind != "file_misfit":
                raise
            return (
                misfit.message.removeprefix(f"The file {format_value(path.rpartition('/')[2])} ")
                .partition(": ")[0]
                .rstrip(".")
            )
        raise InvalidRequest(
            f"{misfit.message} Or import with rewrite, which converts the rows of such files.",
            kind=misfit.kind,
            file=file.url,
        ) from misfit


def _refuse_far_instants(store: ObjectStore, path: str, footer: pq.FileMetaData, *, size_bytes: int) -> None:
    """Refuse INT96 timestamps that would be read as other values. Cost: reads the columns that may have such."""
    columns = int96_columns(footer)
    if columns:
        data_file = open_data_file(store, path, size_bytes=size_bytes, int96_unit=READ_UNIT)
        refuse_far_instants(
            data_file.batches(columns=columns, batch_rows=BATCH_ROWS), file_name=path.rpartition("/")[2]
        )


def needs_writer(schema: TableSchema) -> str | None:
    """Why the table cannot use any file unchanged; None: it can."""
    if schema.primary_keys:
        return "has no sequence numbers, which a table with a primary key needs"
    if WriteSettings.of(schema).bucket_count != UNAWARE_BUCKET:
        return "is not divided into the table's buckets"
    return None


def _check_names(footer: pq.FileMetaData, file: SourceFile, schema: TableSchema) -> None:
    """Check that columns found by name are those that the source means."""
    name = file.url.rpartition("/")[2]
    arrow = footer.schema.to_arrow_schema()
    for key in (*file.must_have, *file.partition):
        if key not in arrow.names and key not in schema.partition_keys:
            raise _misfit(name, f"lacks the column {key!r}, whose values are in its partition only")
    for key in schema.partition_keys:
        if key not in file.partition:
            raise _misfit(name, f"is not in a partition of the column {key!r}")
    if file.field_ids is None:
        return
    ids_in_file = dict(ids_of(arrow))
    for path, field_id in file.field_ids.items():
        if path in ids_in_file and ids_in_file[path] != field_id:
            raise _misfit(name, f"has another column as {'.'.join(path)!r} (its field id is {ids_in_file[path]})")


def _misfit(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"The file {format_value(name)} {what}.", kind="file_misfit", file=name)


def _take_file(
    file: SourceFile, footer: pq.FileMetaData, schema: TableSchema, *, in_place: bool, environment: Environment
) -> TakenFile:
    settings = WriteSettings.of(schema).files
    types = [field.type for field in schema.partition_fields]
    values = [_one(file.partition[name], kind) for name, kind in zip(schema.partition_keys, types, strict=True)]
    partition = encode_rows(values, types)[0].as_py() if types else EMPTY_ROW
    name = file.url.rpartition("/")[2]
    place = AdoptedFile(
        name,
        file.size_bytes,
        external_path=_external(file.url) if in_place else None,
        creation_time_ms=environment.clock.now_ms(),
        partition=partition,
    )
    entry = describe_file(footer, place, schema=schema, stats_mode=settings.stats_mode)
    if not in_place:
        entry = replace(entry, file_name=f"{settings.prefix}{new_uuid(environment.rng)}-0.parquet")
    (folders,) = Placement.of(schema).partition_folders(pa.array([partition], pa.binary()))
    return TakenFile(file, partition, bucket_folders(folders, 0)[0], entry)


def _one(value: pa.Scalar, kind: str) -> pa.Array:
    target = arrow_type(kind)
    try:
        return _parse_moments(pa.array([value.as_py()], value.type), target).cast(target)
    except pa.ArrowException as wrong:
        raise InvalidRequest(
            f"The source's partition value {value} does not fit the table's type {kind}: import into a table with "
            "another type.",
            kind="invalid_partition",
        ) from wrong


def _parse_moments(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts of times in microseconds, which folders spell whatever the column has; other values as they are."""
    if not pa.types.is_string(values.type):
        return values
    if pa.types.is_time(target):  # Arrow (26.0) reads it from no text but that of a timestamp
        moments = pc.binary_join_element_wise("1970-01-01T", values, "").cast(pa.timestamp("us"))
        return moments.cast(pa.time64("us"))
    is_coarse = pa.types.is_timestamp(target) and target.unit != "ns"
    return values.cast(pa.timestamp("us", target.tz)) if is_coarse else values


# ---- files that stay where they are


def _external(url: str) -> str:
    """A URL as other clients of the format write it."""
    location = parse_url(url)
    return f"file:{location.prefix}" if location.scheme == "file" else str(location)


def _check_in_place(url: str) -> None:
    """Refuse a file that some options could make one of the table's own, or that others could not read by its name."""
    folder, _, name = url.rpartition("/")
    if not name.endswith(".parquet"):
        raise InvalidRequest(
            f"{url} cannot be registered in place: clients of the format tell the format by the name, which must end "
            "in .parquet. Import without in place.",
            kind="invalid_in_place",
            url=url,
        )
    if _OWN_FOLDER.fullmatch(folder.rpartition("/")[2]):
        raise InvalidRequest(
            f"{url} cannot be registered in place: it is in a folder of a table's bucket, where a table may delete "
            "files. Import without in place.",
            kind="invalid_in_place",
            url=url,
        )


def check_new_names(plan: ImportPlan, table: Table, newest: Snapshot | None) -> None:
    """Refuse two files with one name in a partition: an entry is identified by partition and name."""
    counts = Counter((file.partition, file.entry.file_name) for file in plan.taken)
    if newest is not None:
        live_entries = table.context.manifests.live_entries(newest)
        counts.update(
            set(zip(*(live_entries.column(name).to_pylist() for name in ("partition", "file_name")), strict=True))
        )
    for file in plan.taken:
        if counts[file.partition, file.entry.file_name] > 1:
            raise InvalidRequest(
                f"{file.source.url} cannot be registered in place: its partition of the table has another file of that "
                "name, or this file already. Import without in place, or leave it out.",
                kind="invalid_in_place",
                url=file.source.url,
            )


# ---- carrying out


class _Counted:
    """Counts the bytes of finished files, from any thread."""

    def __init__(self, environment: Environment, total: int, progress: ProgressCall | None) -> None:
        self._lock = environment.runtime.lock()
        self._total = total
        self._progress = progress
        self._done = 0

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._done += size_bytes
            if self._progress is not None:
                self._progress(ImportProgress(self._done, self._total))


def carry(table: Table, plan: ImportPlan, progress: ProgressCall | None) -> list[BucketChange]:
    """Copy and rewrite the files of a plan in this process. After an error, delete what was written."""
    counter = _Counted(table.context.environment, plan.size_bytes, progress)
    copies = [f"{file.folder}/{file.entry.file_name}" for file in plan.taken if file.entry.external_path is None]
    try:
        changes = map_in_pool(
            table.context.environment.runtime,
            lambda file: _carry(table.store, file, counter),
            plan.taken,
            worker_count_max=_WORKERS_MAX,
        )
        if plan.rewritten:
            changes += _rewritten(table, plan, counter)
    except BaseException:
        discard(table.store, copies)
        raise
    return changes


def _carry(store: ObjectStore, file: TakenFile, count: _Counted) -> BucketChange:
    change = carry_file(store, file)
    count.add(file.source.size_bytes)
    return change


def carry_file(store: ObjectStore, file: TakenFile) -> BucketChange:
    """Copy a file into the table, unless it stays in place, and return its change. Raises `Unavailable`, `NotFound`."""
    if file.entry.external_path is None:
        copy_object(store, file.source.url, f"{file.folder}/{file.entry.file_name}", size_bytes=file.source.size_bytes)
    return BucketChange(file.partition, 0, UNAWARE_BUCKET, added=(file.entry,))


def copy_object(store: ObjectStore, url: str, path: str, *, size_bytes: int) -> None:
    """Copy an object from anywhere into a store, durably. Inside one bucket the vendor copies, else this process.

    Raises `NotFound`; `Unavailable`: the copy has another size, because the source was replaced meanwhile.
    """
    here, source = parse_url(store.root_url), parse_url(url)
    is_same = (here.scheme, here.place) == (source.scheme, source.place) and here.scheme in ("s3", "gs", "az")
    if is_same and not store.is_versioned and size_bytes <= _COPY_BYTES_MAX:
        bucket = open_elsewhere(store, f"{here.scheme}://{here.place}")
        bucket.copy(source.prefix, f"{here.prefix}/{path}")
        copied_bytes = store.head(path).size_bytes
    else:
        place, name = place_of(store, url)
        copied_bytes = store.put_stream(path, place.get_stream(name))
    if copied_bytes != size_bytes:
        raise Unavailable(
            f"The source's file {url} had {size_bytes} bytes, and its copy has {copied_bytes}: it was replaced during "
            "the import. Import again.",
            url=url,
        )


def _rewritten(table: Table, plan: ImportPlan, count: _Counted) -> list[BucketChange]:
    writer = new_writer(table.context)
    try:
        for file, _ in plan.rewritten:
            for rows in rows_of(file, table.store):
                write_rows(writer, rows, file)
            count.add(file.size_bytes)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def write_rows(writer: TableWriter, rows: pa.Table, file: SourceFile) -> None:
    """Add rows of a file. Raises `InvalidRequest`: they do not fit the table; the message names the file."""
    try:
        writer.write(rows)
    except InvalidRequest as misfit:
        raise InvalidRequest(f"{file.url}: {misfit.message}", kind=misfit.kind, **misfit.facts) from misfit


def rows_of(file: SourceFile, store: ObjectStore) -> Iterator[pa.Table]:
    """The rows of a file for the table's writer.

    Raises `InvalidRequest`: the library of its format cannot read it; the message names the file.
    """
    try:
        yield from file.reader.read(store)
    except LakebedError:
        raise
    except (pa.ArrowException, ValueError, NotImplementedError) as problem:
        raise InvalidRequest(
            f"The rows of {file.url} cannot be read: {str(problem).partition(chr(10))[0].rstrip('.')}.",
            kind="unreadable_source",
            url=file.url,
        ) from problem


Ids = Iterator[tuple[tuple[str, ...], int | None]]


def ids_of(schema: pa.Schema) -> Ids:
    """Each column and each field inside a column, with its id; None where no id is stated.

    Elements of lists are at ``[]``, keys and values of maps at ``key`` and ``value``, whatever the file calls them.
    """
    for field in schema:
        yield from _ids((field.name,), field)


def _ids(path: tuple[str, ...], field: pa.Field) -> Ids:
    id_text = (field.metadata or {}).get(FIELD_ID_KEY)
    yield path, None if id_text is None else int(id_text)
    yield from _ids_inside(path, field.type)


def _ids_inside(path: tuple[str, ...], kind: pa.DataType) -> Ids:
    types = pa.types
    if types.is_struct(kind):
        for member in kind:
            yield from _ids((*path, member.name), member)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _ids_inside((*path, "[]"), kind.value_type)
    elif types.is_map(kind):
        yield from _ids_inside((*path, "key"), kind.key_type)
        yield from _ids_inside((*path, "value"), kind.item_type)
