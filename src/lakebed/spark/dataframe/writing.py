"""Writing DataFrames into tables: append, overwrite, upsert, delete and merge, each as one snapshot.

Owns: the verbs, and their single commit on the driver; `write_tasks` distributes the rows. Tasks write data files with
lakebed's own `TableWriter`, so the files are the same as those of the local verbs, including statistics.

Invariants:
- A verb changes the table once, at its end, or not at all.
- A task that fails, is retried or runs twice leaves files that nothing references. Only the result of the attempt that
  Spark accepted is committed.
- Mistakes (a column that does not fit, a null key) raise the same errors as the local verbs.
- Credentials are part of the pickled function, never of a path, a plan or an event log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from typing_extensions import Unpack

from lakebed.errors import Conflict, InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.spark.dataframe.native_jobs import write_files
from lakebed.spark.dataframe.reading import read_splits
from lakebed.spark.plan.expression import exact_column
from lakebed.spark.plan.shipping import ship, split_bytes, split_files
from lakebed.spark.plan.types import arrow_schema_of
from lakebed.spark.start import find_session
from lakebed.spark.tasks.committing import WRITTEN_AGAIN, commit_changes, discarding
from lakebed.spark.tasks.tasks import changes_of_units, collect_changes
from lakebed.spark.tasks.write_tasks import distribute, write_task
from lakebed.table.branch.discard import discard_changes
from lakebed.table.branch.earlier_commits import find_commit
from lakebed.table.commit.commit import Basis, CommitOptions
from lakebed.table.engines.sequence import delete_columns, sequence_order
from lakebed.table.model.model import BucketChange, Snapshot, TableSchema
from lakebed.table.model.predicate_text import as_predicate
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import parse_type
from lakebed.table.read.partitions import partition_scalars
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.rows.rows import CHANGED_KINDS, Rewrite, rewrites_of, without_rows
from lakebed.table.table import Table

Mode = Literal["append", "overwrite", "overwrite_dynamic"]

_TRIES_MAX = 5
"""Most attempts of a verb. It starts again if another writer replaced its files, changed its rows or the schema, or
placed its keys."""


def write(
    df: DataFrame,
    table: Table,
    *,
    mode: Mode = "append",
    partition: Mapping[str, object] | None = None,
    order_by: str | Sequence[str] = (),
    **options: Unpack[CommitOptions],
) -> Snapshot:
    """Write a DataFrame into a table, as one snapshot.

    Args:
        df: rows with the table's column names, in any order. In an append table, missing columns become null.
        table: the table, or one of its branches.
        mode: ``append`` adds rows; in a table with a primary key they replace rows of the same key. ``overwrite``
            replaces the whole table, or one `partition`. ``overwrite_dynamic`` replaces every partition that `df` has
            rows for.
        partition: with ``overwrite``: values of partition columns; only this partition is replaced. `df` may lack these
            columns, or must agree with the values.
        order_by: in a table with a primary key: of several rows of a key in `df`, the last by these columns is kept.
            Without it, and if rows are equal by it, any of them may be kept.
        **options: of the commit (`CommitOptions`). If the pair of `commit_user` and `commit_identifier` was committed
            before, nothing runs, and the earlier snapshot is returned.

    Returns:
        The new snapshot. If there are no rows to append and no identifier, nothing is committed, and it is the newest
        one.

    Raises:
        InvalidRequest: columns, types or values do not fit. Nothing is changed.
        Conflict: another writer changed the table in a way that this change cannot follow.
        OutcomeUnknown: the store gave no clear answer to the commit.

    Cost: one pass over `df` (with a shuffle for tables with fixed buckets), then one commit.
    """
    if mode not in get_args(Mode):
        raise InvalidRequest(
            f"mode={mode!r} is invalid: use {', '.join(get_args(Mode))}, or upsert or merge to change rows by key.",
            kind="unknown_mode",
            mode=mode,
        )
    if partition and mode != "overwrite":
        raise InvalidRequest(
            f"partition= is for mode='overwrite' only, not for {mode!r}: leave it out.", kind="unknown_mode"
        )
    if mode == "append":
        return _run(df, table, options=options, order_by=order_by)
    schema = table.refresh()
    if mode == "overwrite_dynamic" and not schema.partition_keys:
        raise InvalidRequest(
            "A dynamic overwrite needs a partitioned table; this one has no partition columns.", kind="not_partitioned"
        )
    overwrite = Overwrite(partition=dict(partition or {}), dynamic=mode == "overwrite_dynamic")
    for name, value in partition_scalars(overwrite.partition, schema=schema).items():
        if name not in df.columns:
            df = df.withColumn(name, functions.lit(value.as_py()))
    return _run(df, table, options=options, overwrite=overwrite, order_by=order_by)


def write_arrow(
    rows: pa.Table, table: Table, *, deletes: str | None = None, **options: Unpack[CommitOptions]
) -> Snapshot:
    """Write whole rows of this process, as `write` (append) and `upsert` do, without a Spark job.

    Args:
        rows: few enough for one process. Of rows of one key the last one is kept.
        deletes, **options: as `upsert`.

    Raises `InvalidRequest`, `Conflict`, `OutcomeUnknown`: as `write`.
    """
    earlier = _earlier(table, options)
    if earlier is not None:
        return earlier
    for name in _instants_to_utc(rows.schema, table.refresh()):
        column = rows.column(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, column.cast(pa.timestamp(column.type.unit)))
    return table.write(rows, deletes=deletes, **options)


def upsert(
    df: DataFrame,
    table: Table,
    *,
    deletes: str | None = None,
    order_by: str | Sequence[str] = (),
    **options: Unpack[CommitOptions],
) -> Snapshot:
    """Insert or replace rows by primary key, without reading stored rows.

    Args:
        df: whole rows.
        table: the table, or one of its branches.
        deletes: a boolean column of `df`. True deletes the key of the row. The column is stored only if the table has a
            column of that name. order_by, **options: as `write`.

    Raises:
        InvalidRequest: the table has no primary key; otherwise as `write`.
    """
    require_keys(table, "upsert into")
    return _run(df, table, options=options, deletes=deletes, order_by=order_by)


def merge(
    df: DataFrame,
    table: Table,
    *,
    matched: Literal["update", "ignore"] = "update",
    not_matched: Literal["insert", "ignore"] = "insert",
    deletes: str | None = None,
    order_by: str | Sequence[str] = (),
    **options: Unpack[CommitOptions],
) -> Snapshot:
    """Insert, update and delete rows of a table with a primary key, by rows that may lack columns.

    Args:
        df: rows with every column of the key and of the option ``sequence.field``. If the table has the key, columns
            that `df` lacks keep their value; in a new row they are null.
        table: the table, or one of its branches.
        matched: what happens to keys that the table has.
        not_matched: what happens to keys that it does not have.
        deletes: a boolean column of `df`. True deletes the key, if it is matched. order_by, **options: as `write`.

    Raises:
        InvalidRequest: the table has no primary key; otherwise as `write`.

    Cost: that of an upsert, if `df` has every column and nothing is ignored. Otherwise also a read of the newest
        version and a join with it, which is repeated if another writer changes rows of the same buckets in between.
    """
    require_keys(table, "merge into")
    schema = table.refresh()
    missing = _missing(df, schema)
    _require_sequence(schema, missing)
    is_upsert = matched == "update" and not_matched == "insert" and not missing
    if is_upsert or any(key in missing for key in schema.primary_keys):
        return _run(df, table, options=options, deletes=deletes, order_by=order_by)

    def join_basis(basis: Basis) -> DataFrame:
        schema = table.schema  # at least as new as the version that is read
        missing = _missing(df, schema)
        return _join(df, table, schema, basis, missing=missing, matched=matched, not_matched=not_matched)

    snapshot = _until_unchanged(table, join_basis, options=options, deletes=deletes, order_by=order_by)
    return snapshot or commit_changes(table, [], options=options)


def _missing(df: DataFrame, schema: TableSchema) -> list[str]:
    return [field.name for field in schema.fields if field.name not in df.columns]


def _require_sequence(schema: TableSchema, missing: Sequence[str]) -> None:
    """Refuse rows without the columns that order the rows of a key by age."""
    order = sequence_order(schema)
    for name in order.columns if order is not None else ():
        if name in missing:
            raise InvalidRequest(
                f"The rows to merge have no column {name!r}, by which the table orders the rows of a key (option "
                "sequence.field): add it to them.",
                kind="missing_column",
                column=name,
            )


def _join(
    df: DataFrame,
    table: Table,
    schema: TableSchema,
    basis: Basis,
    *,
    missing: Sequence[str],
    matched: str,
    not_matched: str,
) -> DataFrame:
    keys = list(schema.primary_keys)
    kept_columns = missing if matched == "update" else []
    current = _read(df.sparkSession, table, basis, columns=[*keys, *kept_columns])
    if matched == "ignore":
        return df.limit(0) if not_matched == "ignore" else df.join(current, on=keys, how="left_anti")
    if not kept_columns:
        return df.join(current, on=keys, how="left_semi") if not_matched == "ignore" else df
    return df.join(current, on=keys, how="inner" if not_matched == "ignore" else "left")


def delete(
    rows: DataFrame | Predicate | str,
    table: Table,
    **options: Unpack[CommitOptions],
) -> Snapshot | None:
    """Delete rows by key or by predicate.

    Args:
        rows: a DataFrame with every column of the primary key and of the option ``sequence.field``; other columns are
            ignored. Or a predicate, also as text, such as ``"carrier = 'UA' and month >= 2"``.
        table: the table, or one of its branches.
        **options: of the commit, as `write`.

    Returns:
        The new snapshot; None when a predicate matched no row and there is no identifier to remember.

    Raises:
        InvalidRequest: keys for a table without a primary key, or a predicate that does not fit the table.

    Cost: by key, an upsert of the keys. By predicate, a read of the files that may match. A table with a primary key
        then gets an upsert of the matching keys, an append table new files in place of those with matching rows.
    """
    if not isinstance(rows, DataFrame):
        if not table.refresh().primary_keys:
            return _delete_where(table, as_predicate(rows), options)
        where = rows

        def find_rows(basis: Basis) -> DataFrame:
            return _read(_active_session(), table, basis, columns=delete_columns(table.schema), where=where)

        return _until_unchanged(table, find_rows, options=options, keys_only=True)
    require_keys(table, "delete by key from")
    needed_columns = delete_columns(table.schema)
    keys = [name for name in rows.columns if name in needed_columns]
    return _run(rows.select([exact_column(name) for name in keys]), table, options=options, keys_only=True)


def _until_unchanged(
    table: Table, make_rows: Callable[[Basis], DataFrame], *, options: CommitOptions, **more: Any
) -> Snapshot | None:
    """Commit rows that are computed from the newest version. Repeat if another writer changed that version's rows.

    Returns None if there are no rows, and no identifier to remember.

    Args:
        make_rows: computes the rows from the version to read.
        **more: arguments of `_commit_rows`.

    Raises `Conflict`: other writers were faster in each attempt.
    """
    earlier = _earlier(table, options)
    if earlier is not None:
        return earlier
    tries = 0
    while True:
        tries += 1
        basis = Basis(table.latest())
        table.refresh()
        try:
            return _commit_rows(make_rows(basis), table, options=options, basis=basis, **more)
        except Conflict as conflict:
            if tries == _TRIES_MAX or conflict.kind not in ("rows_changed", "schema_changed"):
                raise


def _read(
    spark: SparkSession,
    table: Table,
    basis: Basis,
    *,
    columns: Sequence[str] | None,
    where: Predicate | str | None = None,
) -> DataFrame:
    scan = scan_snapshot(table.context, basis.snapshot, merges_new=True, columns=columns, where=where)
    return read_splits(spark, table, splits=scan.splits(), plan=scan.plan)


def _delete_where(table: Table, where: Predicate, options: CommitOptions) -> Snapshot | None:
    """Rewrite the files of an append table that have matching rows, or mark these rows as deleted, in one commit."""
    earlier = _earlier(table, options)
    if earlier is not None:
        return earlier
    for tries_left in reversed(range(_TRIES_MAX)):
        basis = Basis(table.latest())
        rewrites, plan = rewrites_of(table.context.look(), where, basis=basis)
        changes = changes_of_units(
            _active_session(),
            rewrites,
            size_bytes=lambda rewrite: split_bytes(rewrite.split),
            files=lambda rewrite: split_files(rewrite.split),
            store=table.store,
            function=partial(_without_rows, where=where, plan=plan),
            discard=partial(discard_changes, table.context),
        )
        if not changes and options.get("commit_identifier") is None:
            return None
        try:
            with discarding(table, changes):
                return commit_changes(table, changes, options=options, kind="OVERWRITE")
        except Conflict as conflict:
            if tries_left == 0 or conflict.kind not in CHANGED_KINDS:
                raise
    return None


def _without_rows(rewrite: Rewrite, store: ObjectStore, *, where: Predicate, plan: ReadPlan) -> BucketChange | None:
    return without_rows(store, rewrite, where=where, plan=plan, environment=Environment())


def _active_session() -> SparkSession:
    spark = find_session()
    if spark is None:
        raise InvalidRequest(
            "Deleting by a predicate reads the table through Spark, and no Spark session is running: start one with "
            "lakebed.spark.session().",
            kind="no_session",
        )
    return spark


def require_keys(table: Table, verb: str) -> None:
    """Check that a table has a primary key. Raises `InvalidRequest`."""
    if not table.schema.primary_keys:
        raise InvalidRequest(
            f"Cannot {verb} {table.name}: it has no primary key; append to it or overwrite it instead.",
            kind="no_primary_key",
            table=table.name,
        )


# ---- one job, one commit


def _run(df: DataFrame, table: Table, *, options: CommitOptions, **more: Any) -> Snapshot:
    """Commit rows as `_commit_rows`. If there are none, return the newest snapshot."""
    return _commit_rows(df, table, options=options, **more) or commit_changes(table, [], options=options)


def _commit_rows(
    df: DataFrame,
    table: Table,
    *,
    options: CommitOptions,
    overwrite: Overwrite | None = None,
    basis: Basis | None = None,
    deletes: str | None = None,
    order_by: str | Sequence[str] = (),
    keys_only: bool = False,
) -> Snapshot | None:
    """Write and commit rows. Repeat if another writer placed some of the new keys in other buckets.

    Returns None if there are no rows, nothing to overwrite, and no identifier to remember.

    Raises `Conflict`: kind ``schema_changed``: with `basis`, the rows were read with a schema that is not the newest
    one, in which the same names may belong to other columns.
    """
    earlier = _earlier(table, options)
    if earlier is not None:
        return earlier
    tries, read_under = 0, table.schema
    while True:
        tries += 1
        task = write_task(
            table,
            deletes=deletes,
            keys_only=keys_only,
            starts_anew=overwrite is not None,
            partition=overwrite.partition if overwrite is not None else {},
        )
        if basis is not None and task.schema.id != read_under.id:
            raise Conflict(
                f"Another writer changed columns or options of {table.name} while its rows were read. Nothing was "
                "changed: run it again.",
                kind="schema_changed",
            )
        rows = _in_utc(df, task.schema)
        task.check(table.store, arrow_schema_of(rows.schema))
        changes = write_files(rows, table, task.schema, starts_anew=task.starts_anew, partition=task.partition)
        if changes is None:
            placed_rows = distribute(rows, task, order_by=[order_by] if isinstance(order_by, str) else list(order_by))
            changes = collect_changes(
                placed_rows,
                task.function(ship(table.store, writes=True)),
                into=table.store,
                discard=partial(discard_changes, table.context),
            )
        if not changes and overwrite is None and options.get("commit_identifier") is None:
            return None
        try:
            with discarding(table, changes):
                return commit_changes(table, changes, options=options, overwrite=overwrite, basis=basis)
        except Conflict as conflict:
            if tries == _TRIES_MAX or conflict.kind not in (("index_changed",) if basis else WRITTEN_AGAIN):
                raise


def _earlier(table: Table, options: CommitOptions) -> Snapshot | None:
    """Return the snapshot of an earlier attempt of the same commit, so that its job need not run again."""
    user, identifier = options.get("commit_user"), options.get("commit_identifier")
    return None if user is None or identifier is None else find_commit(table.context, user, identifier)


def _instants_to_utc(brought: pa.Schema, schema: TableSchema) -> list[str]:
    """Return the columns whose instants (``timestamp``) are for a column without a time zone (``TIMESTAMP``)."""
    instants = [field.name for field in brought if pa.types.is_timestamp(field.type) and field.type.tz is not None]
    fields = {field.name: field for field in schema.fields}
    return [name for name in instants if name in fields and parse_type(fields[name].type).root == "TIMESTAMP"]


def _in_utc(df: DataFrame, schema: TableSchema) -> DataFrame:
    """Convert instants to local times in UTC for columns of the table that have no time zone.

    Raises `InvalidRequest`: the session's time zone is not UTC, so the intended zone is not clear.
    """
    for name in _instants_to_utc(arrow_schema_of(df.schema), schema):
        zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
        if zone != "UTC":
            raise InvalidRequest(
                f"Column {name!r} is TIMESTAMP without a time zone, the rows have Spark's timestamp, and the time "
                f"zone of the session is {zone}, not UTC: cast it to timestamp_ntz first, or let the table have "
                "TIMESTAMP WITH LOCAL TIME ZONE.",
                kind="type_mismatch",
                column=name,
                zone=zone,
            )
        df = df.withColumn(name, exact_column(name).cast("timestamp_ntz"))
    return df
