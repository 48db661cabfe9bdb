"""Verbs on writing: what tasks need, the single commit of a job, and its abort.

Invariants: a job commits once or not at all. An error that a task returned is raised before anything is committed.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql.types import StructType

import lakebed.compute as pc
from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.lake.lake import Lake
from lakebed.lake.names import parse_table_name
from lakebed.spark.catalog.partitions import partition_values
from lakebed.spark.catalog.replace import decode_staged, next_schema
from lakebed.spark.catalog.rewrites import Rewritten
from lakebed.spark.catalog.verb import COLUMNS_CHANGED, TABLE_REPLACED, Session, TableVerb, register_verb, snapshot_of
from lakebed.spark.plan.filters import Translation, from_json, translate
from lakebed.spark.plan.found_rows import FoundRows, positions_of
from lakebed.spark.plan.shipping import ship
from lakebed.spark.plan.types import arrow_schema_of, spark_schema, without_comments
from lakebed.spark.streams.stream_commits import commit_batch
from lakebed.spark.tasks.committing import commit_changes
from lakebed.spark.tasks.native_writes import WrittenFiles, file_target, native_scheme, take_over_files
from lakebed.spark.tasks.write_tasks import write_task
from lakebed.table.branch.discard import discard, discard_changes
from lakebed.table.changes.stream import created_ms
from lakebed.table.commit.commit import Basis
from lakebed.table.model.model import BucketChange, CommitKind
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.read.vectors import has_option
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.rows.position_deletes import position_changes
from lakebed.table.rows.update import check_updatable
from lakebed.table.table import Table

OPERATION: Final = "__lakebed_operation"
"""The column with the operation of a row of UPDATE, DELETE or MERGE: `DELETE`, or write."""


DELETE_BYTES_MAX: Final = 64 << 20
"""Most encoded bytes of files that the bridge rewrites for a DELETE. For more, Spark runs a job."""

OVERWRITE_BYTES_MAX: Final = 512 << 20
"""Most encoded bytes of files that the bridge reads, and rewrites without the rows that an overwrite replaces. These
files are in the same commit as the new rows, so a separate job of Spark cannot do it. Takes about 10 s, within the time
limit of a request."""

MARK_BYTES_MAX: Final = 1 << 30
"""As `DELETE_BYTES_MAX`, in tables with deletion vectors. The bridge reads only the columns of the condition, and
writes no data file, while Spark's job would rewrite the files."""


class Replaced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows that an overwrite replaces.

    Attributes:
        partition: values of partition columns, as `filters.from_json` reads literals; empty: the whole table.
        dynamic: replace every partition that has new rows.
        where: predicates instead. All are true for the partitions to replace, or for the rows to replace if they name
            other columns too.
    """

    partition: dict[str, Any] = msgspec.field(default_factory=dict)
    dynamic: bool = False
    where: list[Any] | None = None

    @property
    def starts_anew(self) -> bool:
        """Whether the tasks write rows only into partitions, or a table, of which all rows are replaced."""
        return self.where is None

    def values(self, table: Table) -> dict[str, object]:
        """Return the values of `partition`. Raises `InvalidRequest`: as `partition_values`."""
        return partition_values(self.partition, table.schema)

    def overwrite(self, table: Table) -> Overwrite:
        """Return what the commit replaces.

        Raises `InvalidRequest`: `where` has a part that does not compare a column with values, or in a table with a
        primary key it names columns that are not partition columns.
        """
        schema = table.schema
        if self.where is None:
            return Overwrite(partition=self.values(table), dynamic=self.dynamic and bool(schema.partition_keys))
        terms = [from_json(predicate) for predicate in self.where]
        translation = translate(terms, arrow_schema(schema.partition_fields))
        if translation.where is not None and not translation.inexact:
            return Overwrite(where=translation.where)
        translation = translate(terms, arrow_schema(schema.fields))
        if translation.where is not None and not translation.inexact and not schema.primary_keys:
            return Overwrite(rows=translation.where)
        columns = "columns"
        if schema.primary_keys:
            columns = f"partition columns ({', '.join(schema.partition_keys) or 'it has none'})"
        raise InvalidRequest(
            f"Rows of {table.name} can be overwritten only by comparisons of {columns} with values. For other "
            "conditions, DELETE and INSERT.",
            kind="inexact_overwrite",
        )

    def check(self, table: Table) -> None:
        """Raise as `overwrite`, and if the files that the commit would rewrite are too large for this process.

        Cost: for an overwrite of rows, the manifests of the newest snapshot.
        """
        rows = self.overwrite(table).rows
        if rows is None:
            return
        found_bytes = _bytes_with(table, rows)
        if found_bytes > OVERWRITE_BYTES_MAX:
            raise InvalidRequest(
                f"The files of {table.name} that may have rows to overwrite have {found_bytes >> 20} MB, and at most "
                f"{OVERWRITE_BYTES_MAX >> 20} MB are rewritten by a commit: overwrite by partition columns, or DELETE "
                "and INSERT.",
                kind="large_overwrite",
            )


def _bytes_with(table: Table, where: Predicate) -> int:
    """Return the encoded bytes of the files that may have rows for which a predicate is true."""
    entries = scan_snapshot(table.context, table.latest(), where=where).entries()
    return pc.sum(entries.column("file_size")).as_py() or 0


@register_verb("begin_write")
class BeginWrite(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prepare the tasks of a write.

    Attributes:
        schema: the columns of the tasks' rows, as Spark's JSON.
        replaced: for an overwrite: what it replaces.
        changes: the rows are those of UPDATE, DELETE or MERGE, with the column `OPERATION`.
        removes: they are those of a DELETE.
        native: tasks can write the files themselves, if the table still allows it.
        staged: the schema that the commit gives the table, from the reply of `ReplaceTable`.
    """

    schema: str
    replaced: Replaced | None = None
    changes: bool = False
    removes: bool = False
    native: bool = False
    staged: str | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        if self.changes and not self.removes:
            check_updatable(table.schema, name=table.name)
        starts_anew = self.replaced is not None and self.replaced.starts_anew
        partition = self.replaced.values(table) if self.replaced is not None else {}
        if self.replaced is not None:
            self.replaced.check(table)
        task = write_task(table, starts_anew=starts_anew, partition=partition, schema=decode_staged(self.staged))
        rows = without_comments(StructType.fromJson(json.loads(self.schema)))
        if self.staged is None:
            self.check_columns(table, rows.fieldNames())
        try:
            task.check(table.store, arrow_schema_of(rows))
        except InvalidRequest as misfit:
            self._check_added(table, misfit)
            raise
        if self.removes:
            replace(task, keys_only=True).check(table.store, table.arrow_schema)
        columns = without_comments(spark_schema(task.schema.fields))
        if self.native and native_scheme(table.store, task.schema) is not None and columns == rows:
            target = file_target(table.store, task.schema, spark_schema=columns.json())
            return {"target": msgspec.json.encode(target).decode()}
        payload = pickle.dumps((ship(table.store, writes=True), task, self.changes))
        return {"writer": base64.b64encode(payload).decode()}

    def _check_added(self, table: Table, misfit: InvalidRequest) -> None:
        """Raise `Conflict`: the column that the rows lack was added after the statement was analysed."""
        name = str(misfit.facts.get("column"))
        if self.resolved is None or misfit.kind != "missing_column":
            return
        if self.resolved.schema(table).field_by_name(name) is None:
            raise Conflict(
                f"The column {name} was added to {table.name} while the statement ran. Nothing was changed: run the "
                "statement again.",
                kind=COLUMNS_CHANGED,
                column=name,
            ) from misfit


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch of a stream.

    Attributes:
        user: the query, or the application that the sink's options name.
        number: the batch's number.
        created_ms: when the table was created into which the query wrote first, from the reply of `StreamSink`.
    """

    user: str
    number: int
    created_ms: int

    def check_table(self, table: Table) -> None:
        """Check that the name still belongs to this table. Raises `Conflict`. Cost: 1 LIST + 1 GET."""
        if created_ms(table.context) != self.created_ms:
            raise Conflict(
                f"The table {table.name} was dropped and created again while a stream wrote into it, and what the "
                "stream wrote before is not in the new one: start the query again with a new checkpoint.",
                kind=TABLE_REPLACED,
            )


@register_verb("commit")
class Commit(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit a job.

    Attributes:
        results: the results of the accepted tasks, as their workers returned them, in base64.
        files: location of `WrittenFiles`, which tasks wrote themselves, instead of results.
        schema_id: the schema with which `files` were written.
        replaced: as in `BeginWrite`.
        basis: the version from which the rows were computed, from the reply of `Load`.
        has_basis: refuse the commit if another writer changed rows of the same buckets since `basis`.
        rewritten: the files that the new ones replace. The commit is refused if another writer replaced one of them.
        marks: the rows that tasks found in `basis` are deleted by deletion vectors. The commit is refused if another
            writer deleted rows of their files, or replaced one of the files.
        batch: a batch of a stream. If it is already committed, it is not committed again.
        staged: the table's next schema, with which the rows were written.
    """

    results: list[str] = msgspec.field(default_factory=list)
    files: str | None = None
    schema_id: int = 0
    replaced: Replaced | None = None
    basis: str | None = None
    has_basis: bool = False
    rewritten: Rewritten | None = None
    marks: bool = False
    batch: Batch | None = None
    staged: str | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        try:
            table = self.open_any(session, lake_url)
        except NotFound:  # dropped meanwhile, or its branch was deleted: nothing is committed
            paths = [file.path for file in self._files_of_tasks()]
            _discard_without_table(session.lake(lake_url), self.table, paths, self.results)
            raise
        changes = changes_of(self.results)
        staged_change = decode_staged(self.staged)
        try:
            if self.resolved is not None:
                self.resolved.schema(table)
            if self.replaced is not None and self.replaced.where is not None:
                self.check_columns(table)
            if staged_change is None:
                return self._commit(table, changes)
            with next_schema(table, staged_change):
                return self._commit(table, changes)
        except Conflict as error:
            if error.kind in (COLUMNS_CHANGED, TABLE_REPLACED):
                discard_changes(table.context, changes)
                discard(table.store, [file.path for file in self._files_of_tasks()])
            raise

    def _files_of_tasks(self) -> WrittenFiles:
        return WrittenFiles(None if self.files is None else Path(self.files))

    def _commit(self, table: Table, changes: list[BucketChange]) -> dict[str, Any]:
        if self.files is not None:
            partition = self.replaced.values(table) if self.replaced is not None else {}
            starts_anew = self.replaced is not None and self.replaced.starts_anew
            changes += take_over_files(
                table, self._files_of_tasks(), self.schema_id, starts_anew=starts_anew, partition=partition
            )
        overwrite = None if self.replaced is None else self.replaced.overwrite(table)
        basis = Basis(snapshot_of(self.basis)) if self.has_basis else None
        try:
            if self.batch is not None:
                self.batch.check_table(table)
                user, number = self.batch.user, self.batch.number
                committed = commit_batch(table, changes, user=user, batch_id=number, overwrite=overwrite)
                return {"snapshot_id": None if committed is None else committed.id}
            deletes = self._deletes(table)
            kind: CommitKind = "OVERWRITE" if deletes else "APPEND"
            snapshot = commit_changes(
                table, [*changes, *deletes], options={}, kind=kind, overwrite=overwrite, basis=basis
            )
        except (InvalidRequest, Conflict):
            # Nothing was committed. (A catalog's lake has a URL, so it is not in a branch of a repository, where files
            # may be gone after a commit.)
            discard_changes(table.context, changes)
            raise
        return {"snapshot_id": snapshot.id}

    def _deletes(self, table: Table) -> list[BucketChange]:
        if self.marks:
            positions = positions_of(result for result in _read_results(self.results) if isinstance(result, FoundRows))
            return position_changes(table.context, positions, basis=Basis(snapshot_of(self.basis)))
        return [] if self.rewritten is None else self.rewritten.deletes(table)


@register_verb("abort")
class Abort(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete the files of a job that will not be committed.

    Attributes:
        results: as in `Commit`.
        paths: paths of files that tasks wrote themselves.
    """

    results: list[str] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        try:
            table = self.open_table(session, lake_url)
        except NotFound:
            _discard_without_table(session.lake(lake_url), self.table, self.paths, self.results)
            return {"file_count": len(self.paths)}
        discard(table.store, self.paths)
        changes = _changes_to_discard(self.results)
        discard_changes(table.context, changes)
        return {"file_count": len(self.paths) + sum(len(change.added) for change in changes)}


def _changes_to_discard(results: Sequence[str]) -> list[BucketChange]:
    """Return the changes of tasks, without the errors and the found rows in their results."""
    decoded_results = (pickle.loads(base64.b64decode(text)) for text in results)
    parts = (part for result in decoded_results if not isinstance(result, LakebedError) for part in result)
    return [part for part in parts if isinstance(part, BucketChange)]


def _discard_without_table(lake: Lake, name: str, paths: Sequence[str], results: Sequence[str]) -> None:
    """Delete the files of a job from the folder of a table that is gone, so that they do not obstruct a new one.

    Files of results are found by their names, because only the table knew the folders of their partitions.
    Cost: 1 LIST of the folder, and 1 DELETE for 1000 files.
    """
    names = {file.file_name for change in _changes_to_discard(results) for file in (*change.added, *change.changelog)}
    store = lake.store.sub(parse_table_name(name).folder)
    listed_paths = (meta.path for meta in store.list("")) if names else ()
    discard(store, [*paths, *(path for path in listed_paths if path.rpartition("/")[2] in names)])


class _DeleteVerb(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A DELETE of an append table by predicates."""

    predicates: list[Any]

    def translate_predicates(self, table: Table) -> Translation:
        return translate([from_json(predicate) for predicate in self.predicates], arrow_schema(table.schema.fields))


@register_verb("can_delete")
class CanDelete(_DeleteVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return whether `Delete` finds exactly the rows for which the predicates are true, in files that fit one process.

    Cost: for a predicate, the manifests of the newest snapshot.
    """

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        translation = self.translate_predicates(table)
        if translation.inexact or translation.where is None:
            return {"alone": not translation.inexact}
        bytes_max = MARK_BYTES_MAX if has_option(table.schema) else DELETE_BYTES_MAX
        return {"alone": _bytes_with(table, translation.where) <= bytes_max}


@register_verb("delete")
class Delete(_DeleteVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete rows of an append table. Files with such rows are rewritten in this process."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        self.check_columns(table)
        translation = self.translate_predicates(table)
        if translation.inexact:
            raise InvalidRequest(
                f"The condition of DELETE FROM {table.name} has a part that is not translated: compare columns with "
                "values.",
                kind="inexact_delete",
            )
        where = translation.where
        snapshot = table.delete(where) if where is not None else table.overwrite(table.arrow_schema.empty_table())
        return {"snapshot_id": None if snapshot is None else snapshot.id}


def changes_of(results: list[str]) -> list[BucketChange]:
    """Return the changes of tasks. Raises the first error that a task returned."""
    return [result for result in _read_results(results) if isinstance(result, BucketChange)]


def _read_results(results: list[str]) -> Iterator[BucketChange | FoundRows]:
    for text in results:
        result = pickle.loads(base64.b64decode(text))
        if isinstance(result, LakebedError):
            raise result
        yield from result
