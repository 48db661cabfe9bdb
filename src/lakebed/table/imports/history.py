"""Importing the versions of a source one after the other: each becomes a snapshot, which a tag pins.

Owns: what a version changes in a table that has the version before (`VersionImport`). `lakebed.lake.imports` chooses
the versions and creates the table.

Invariants:
- After a version is imported, the table has its rows and its columns. A file that several versions name is taken over
  once.
- A file is unchanged if it has the same URL, the same rows of it are deleted, and the source's columns are the same.
  Otherwise its footer is read again: bytes that may still be used stay, other files are replaced.
- No part of a version is visible before its commit, and a version whose files are gone changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakebed.errors import InvalidRequest, OutcomeUnknown
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.discard import discard_changes
from lakebed.table.commit.commit import CommitRequest, commit
from lakebed.table.imports.model import ImportOptions, Source, SourceFile
from lakebed.table.imports.take_over import (
    ImportPlan,
    ProgressCall,
    carry,
    check_new_names,
    plan_import,
    without_outside,
)
from lakebed.table.model.model import BucketChange, DataField, Snapshot, TableSchema
from lakebed.table.model.types import parse_type, without_field_ids
from lakebed.table.schema.schema import new_schema

if TYPE_CHECKING:
    from lakebed.table.table import Table


@dataclass(frozen=True, slots=True)
class VersionReport:
    """The result of importing one version of the source."""

    version: str
    tags: tuple[str, ...]
    """The tags that pin its snapshot; none for a version that is only imported as the newest."""
    snapshot_id: int | None
    """None in a dry run."""
    taken_count: int
    """Files whose bytes became data files: those that no earlier version had."""
    rewritten_count: int
    removed_count: int
    """Files that the previous version had and this one does not."""
    size_bytes: int
    """Size of the source's files that are new."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A file of the source that the table has already."""

    identity: object
    """Everything that its rows depend on."""
    is_taken: bool
    changes: tuple[BucketChange, ...]
    """The changes that added it."""


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """What a version changes."""

    source: Source
    plan: ImportPlan
    """The plan for the files that are new."""
    kept: dict[str, _Known]
    """Unchanged files by URL."""
    removed: tuple[_Known, ...]
    identities: dict[str, object]
    """The identities of the files that are new, by URL."""

    def report(self, tags: Sequence[str], snapshot: Snapshot | None) -> VersionReport:
        """The report of the version."""
        return VersionReport(
            version=str(self.source.version),
            tags=tuple(tags),
            snapshot_id=None if snapshot is None else snapshot.id,
            taken_count=len(self.plan.taken),
            rewritten_count=sum(file.file_count for file, _ in self.plan.rewritten),
            removed_count=len(self.removed),
            size_bytes=self.plan.size_bytes,
        )


@dataclass(slots=True)
class VersionImport:
    """The files of the version that the table has, and the import of the next one."""

    options: ImportOptions
    known: dict[str, _Known] = field(default_factory=dict)

    def plan(self, store: ObjectStore, source: Source, schema: TableSchema, environment: Environment) -> VersionPlan:
        """Plan the next version. Writes nothing.

        Args:
            schema: the table's schema, with the columns of the source.

        Raises as `plan_import`. Cost: the footers of the files that have changed.
        """
        identities = {file.url: _identity(source, file) for file in source.files}
        kept_files = {
            url: record
            for url, record in self.known.items()
            if url in identities and record.identity == identities[url]
        }
        changed_source = replace(source, files=tuple(file for file in source.files if file.url not in kept_files))
        plan = plan_import(store, changed_source, schema, options=self.options, environment=environment)
        for file in plan.taken:
            record = self.known.get(file.source.url)
            if record is not None and record.is_taken:
                kept_files[file.source.url] = replace(record, identity=identities[file.source.url])
        new = replace(plan, taken=tuple(file for file in plan.taken if file.source.url not in kept_files))
        removed_records = tuple(
            record for url, record in self.known.items() if url not in kept_files and record.changes
        )
        return VersionPlan(source, new, kept_files, removed_records, identities)

    def assume(self, plan: VersionPlan) -> None:
        """Continue as if a version had been imported."""
        none = BucketChange(b"", 0, 0)
        changes_by_url = {file.source.url: (none,) for file in plan.plan.taken}
        self._remember(plan, changes_by_url | {file.url: (none,) for file, _ in plan.plan.rewritten})

    def carry_out(self, table: Table, plan: VersionPlan, progress: ProgressCall | None) -> Snapshot:
        """Copy and rewrite what is new, and commit the version.

        For a version without a change, return the newest snapshot. Raises `NotFound`: a file is gone; and as `commit`.
        In both cases what was copied is deleted.
        """
        newest = table.latest()
        if self.options.in_place:
            check_new_names(plan.plan, table, newest)
        changes_by_url: dict[str, tuple[BucketChange, ...]] = {}
        added_changes: list[BucketChange] = []
        outside = {file.entry.external_path for file in plan.plan.taken if file.entry.external_path is not None}
        try:
            for file, why in plan.plan.rewritten:
                changes = carry(table, replace(plan.plan, taken=(), rewritten=((file, why),)), progress)
                changes_by_url[file.url] = tuple(changes)
                added_changes += changes
            if plan.plan.taken:
                changes = carry(table, replace(plan.plan, rewritten=()), progress)
                added_changes += changes
                changes_by_url |= {
                    file.source.url: (change,) for file, change in zip(plan.plan.taken, changes, strict=True)
                }
            deleted_changes = [
                replace(change, added=(), deleted=change.added) for record in plan.removed for change in record.changes
            ]
            snapshot = newest
            if newest is None or added_changes or deleted_changes or newest.schema_id != plan.plan.schema.id:
                request = CommitRequest(
                    "OVERWRITE" if deleted_changes else "APPEND",
                    [*deleted_changes, *added_changes],
                    is_first=newest is None,
                )
                snapshot = commit(table.context, request)
        except OutcomeUnknown:
            raise  # a version may have the files
        except Exception:
            discard_changes(table.context, [without_outside(change, outside) for change in added_changes])
            raise
        assert snapshot is not None
        self._remember(plan, {url: _with_snapshot(changes, snapshot) for url, changes in changes_by_url.items()})
        return snapshot

    def _remember(self, plan: VersionPlan, done: Mapping[str, tuple[BucketChange, ...]]) -> None:
        taken_urls = {file.source.url for file in plan.plan.taken}
        self.known = plan.kept | {
            file.url: _Known(plan.identities[file.url], file.url in taken_urls, done.get(file.url, ()))
            for file in plan.source.files
            if file.url not in plan.kept
        }


def _with_snapshot(changes: Sequence[BucketChange], snapshot: Snapshot) -> tuple[BucketChange, ...]:
    """The same changes, with files that state the snapshot that added them."""
    return tuple(
        replace(change, added=tuple(replace(file, commit_snapshot=snapshot.id) for file in change.added))
        for change in changes
    )


def _identity(source: Source, file: SourceFile) -> object:
    ids = None if file.field_ids is None else frozenset(file.field_ids.items())
    return (source.fields, ids, file.must_rewrite, file.deletes)


# ---- columns


def schema_for(source: Source, time_ms: int) -> TableSchema:
    """The schema of a table for importing a version. Raises `InvalidRequest`, as `new_schema`."""
    return new_schema(source.fields, partition_keys=source.partition_keys, time_ms=time_ms)


def evolve(table: Table, source: Source) -> TableSchema:
    """Give a table the columns of the next version.

    Raises `InvalidRequest`: other partition columns, or a column of another type that is not wider.
    """
    schema = table.refresh()
    if schema.partition_keys != source.partition_keys:
        raise _change_error(
            source,
            f"is partitioned by {', '.join(source.partition_keys) or 'no column'}, and the version before it by "
            f"{', '.join(schema.partition_keys) or 'no column'}",
        )
    old_fields = {column.name: column for column in schema.fields}
    new_columns = {column.name: column for column in source.fields}
    for name, column in new_columns.items():
        if name in old_fields and column.nullable != old_fields[name].nullable:
            raise _change_error(source, f"has the column {name!r} with another nullability than the one before it")
    before: DataField | None = None
    for name, column in new_columns.items():
        if name not in old_fields:
            table.add_column(name, column.type, after=None if before is None else before.name, first=before is None)
        elif (new := _plain_type(column)) != (old := _plain_type(old_fields[name])):
            try:
                table.widen_column(name, new)
            except InvalidRequest as narrower:
                why = f"has the column {name!r} as {new}, and the version before it as {old}"
                raise _change_error(source, why) from narrower
        before = column
    for name in old_fields.keys() - new_columns.keys():
        table.drop_column(name)
    return table.refresh()


def _plain_type(column: DataField) -> str:
    """The column's type without ids of nested fields: they are the table's in one and counted anew in the other."""
    return without_field_ids(parse_type(column.type)).text


def _change_error(source: Source, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"Version {source.version} of {source.url} {what}, which no table follows: import the versions from this one "
        "on into one table, and those before it into another.",
        kind="unsupported_source",
        version=source.version,
    )
