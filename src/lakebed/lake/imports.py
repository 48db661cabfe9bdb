"""Importing tables of other formats into a lake: the table is created, filled by one commit, and gone after a failure.

Owns: `import_table`, and `import_history` for the versions of a source. What is read and how files are taken over is in
`lakebed.table.imports`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound
from lakebed.lake.drop import take_back_table
from lakebed.lake.names import parse_table_name
from lakebed.table.imports.history import VersionImport, VersionReport, evolve, schema_for
from lakebed.table.imports.model import ImportOptions, ImportReport, Source, SourceVersion
from lakebed.table.imports.sources import SourceOptions, open_source, versions_of
from lakebed.table.imports.take_over import Carrier, ProgressCall, plan_import, report_of, take_over
from lakebed.texts import format_count, format_size

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake
    from lakebed.table.model.model import TableSchema
    from lakebed.table.table import Table


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Which versions of a source are imported."""

    versions: tuple[str, ...] = ()
    """Exactly these: of a Delta table their numbers, of an Iceberg table the ids of snapshots or the names of tags;
    empty: all that the source has kept."""
    tags: bool = False
    """Only those that the source has tags for, and the newest."""


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """What the import of a history did, or would do."""

    table: str
    format: str
    source: str
    versions: tuple[VersionReport, ...]
    """Oldest first."""
    in_place: bool
    dry_run: bool
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The report in one sentence."""
        verb = "would import" if self.dry_run else "imported"
        taken_count = sum(version.taken_count for version in self.versions)
        rewritten_count = sum(version.rewritten_count for version in self.versions)
        how = "registered in place" if self.in_place else "copied unchanged"
        parts = [f"{taken_count:,} {how}"] if taken_count else []
        parts += [f"{rewritten_count:,} rewritten"] if rewritten_count else []
        shares = f" ({', '.join(parts)})" if parts else ""
        size_bytes = sum(version.size_bytes for version in self.versions)
        return (
            f"{self.table}: {verb} {format_count(len(self.versions), 'version')} in "
            f"{format_count(taken_count + rewritten_count, 'file')}"
            f"{shares}, {format_size(size_bytes)}, from the {self.format} source {self.source}."
        )


def import_table(
    lake: Lake,
    name: str,
    source: str,
    *,
    format: str,
    options: ImportOptions | None = None,
    source_options: SourceOptions | None = None,
    progress: ProgressCall | None = None,
    carrier: Carrier | None = None,
) -> ImportReport:
    """Import one version of a table of another format, as one snapshot.

    Args:
        lake: the lake of the table.
        name: of the table. If it does not exist, it is created with the columns of the source, without a primary key.
            If it has no rows, it is filled. A table with rows needs `ImportOptions.append`.
        source: the folder or URL of a Parquet folder, a Delta table or an Iceberg table.
        format: ``parquet``, ``delta`` or ``iceberg``.
        options: how files are taken over.
        source_options: version and settings of the source. The lake's `storage_options` are used unless they are given
            here.
        progress: called with the bytes of the source that are done.
        carrier: runs the work elsewhere; None: here.

    Raises:
        NotFound: there is no such source, version or file.
        AlreadyExists: the table has a snapshot, perhaps since another import began, and `ImportOptions.append` is not
            set.
        InvalidRequest: an unknown format, a library that is not installed, or a feature or file of the source that
            cannot be imported. No file is taken over.
        Conflict, OutcomeUnknown: of the commit.

    After an error, a table that this call created is dropped, unless it has a version: another import may have filled
    it meanwhile.

    Cost: for each file its footer (1 HEAD and 1 GET), and its columns with INT96; a copy (1 COPY and 1 HEAD inside a
        bucket, else the bytes through this process), unless in place; and 1 commit. Rewriting holds the writer's buffer
        in memory.
    """
    import_options, open_options = options or ImportOptions(), source_options or SourceOptions()
    if open_options.storage_options is None:
        open_options = replace(open_options, storage_options=lake.storage_options)
    origin = open_source(format, source, like=lake.store, options=open_options)
    if lake.has_table(name):
        return take_over(lake.table(name), origin, import_options, progress=progress, carrier=carrier)
    if import_options.dry_run:
        return _dry_run(lake, name, origin, import_options)
    table = lake.create_table(name, origin.fields, partition_keys=origin.partition_keys)
    first_schema = table.schema
    try:
        return take_over(table, origin, import_options, progress=progress, carrier=carrier)
    except BaseException:
        _take_back(lake, name, first_schema)
        raise


def _take_back(
    lake: Lake, name: str, first_schema: TableSchema, *, snapshots: Collection[int] = (), tags: Collection[str] = ()
) -> bool:
    """Drop a table that an import has created, if it holds nothing but what that has put there; whether it is gone.

    Another import or another writer may have filled it, and been told so, while this one was waiting; or another table
    has its name. The error of the import is the one to tell: where the store does not answer now, the table stays, and
    of a drop that has begun `Lake.collect` decides the rest.

    Args:
        first_schema: with which it was created.
        snapshots, tags: that the import has made.
    """
    try:
        table = lake.table(name)
        is_ours = (
            table.context.schemas.load(0) == first_schema
            and {snapshot.id for snapshot in table.snapshots()} <= {*snapshots}
            and {tag.name for tag in table.tags()} <= {*tags}
            and not table.branches()
        )  # what is put there from now on is found when nothing can be put there any more
        return is_ours and take_back_table(
            lake.store, parse_table_name(name), snapshots=snapshots, tags=tags, environment=lake.environment
        )
    except NotFound:
        return True
    except LakebedError:
        return False


def _dry_run(lake: Lake, name: str, source: Source, options: ImportOptions) -> ImportReport:
    schema = schema_for(source, lake.environment.clock.now_ms())
    plan = plan_import(lake.store, source, schema, options=options, environment=lake.environment)
    return report_of(plan, name=name, options=options)


def import_history(
    lake: Lake,
    name: str,
    source: str,
    *,
    format: str,
    history: HistoryOptions | None = None,
    options: ImportOptions | None = None,
    source_options: SourceOptions | None = None,
    progress: ProgressCall | None = None,
) -> HistoryReport:
    """Import versions of a table of another format into a new table, each as one snapshot with tags.

    A version gets the tag ``version-N`` (Delta) or ``snapshot-ID`` (Iceberg), and the tags that its source has for it.
    A file that several versions name is imported once. A version that changes no file has the snapshot of the version
    before. Columns that a version adds, drops or widens are added, dropped or widened. Columns that the source changed
    after its newest version come last, as one more version without a tag. The times of snapshots are those of the
    import.

    Args:
        lake: the lake of the table.
        name: of a table that does not exist.
        source, format: as `import_table`. A folder of Parquet files has no versions.
        history: which versions; None: all that the source has kept. A version whose files are gone is left out, with a
            note, unless it is named here.
        options: how files are taken over. `ImportOptions.append` is refused.
        source_options: settings of the source. `SourceOptions.version` is refused.
        progress: called as files are done, with the bytes of one version.

    Raises:
        AlreadyExists: the table exists.
        InvalidRequest: as `import_table`; or a version changes what a table cannot change: its partition columns, or a
            type into one that is not wider.
        NotFound: there is no such source, or no such version as is named in `history`.

    After an error the table is dropped, unless other writers have put something into it meanwhile.

    Cost: for each version its list of files, the footers of the files that are new, their copies, and 1 commit.
    """
    import_options, open_options = options or ImportOptions(), source_options or SourceOptions()
    if open_options.storage_options is None:
        open_options = replace(open_options, storage_options=lake.storage_options)
    if import_options.append or open_options.version is not None:
        raise InvalidRequest(
            "A history is imported into a new table, version by version: leave append and version out.",
            kind="invalid_history",
        )
    if lake.has_table(name):
        raise AlreadyExists(
            f"The table {name} exists: import a history into a new one.", kind="table_exists", table=name
        )
    versions = versions_of(format, source, like=lake.store, options=open_options)
    run = _History(
        lake,
        name,
        lambda version: open_source(format, source, like=lake.store, options=replace(open_options, version=version)),
        VersionImport(import_options),
        progress,
    )
    try:
        for choice in _choose_versions(versions, history or HistoryOptions(), source):
            run.add(choice)
    except BaseException:
        run.take_back()
        raise
    return HistoryReport(
        name, format, source, tuple(run.reports), import_options.in_place, import_options.dry_run, tuple(run.notes)
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A version to import."""

    version: SourceVersion
    tags: tuple[str, ...]
    must_be_there: bool


def _choose_versions(versions: Sequence[SourceVersion], history: HistoryOptions, source: str) -> list[_Wanted]:
    """The versions to import, oldest first."""
    if not versions:
        raise InvalidRequest(f"{source} has no version yet: import it without its history.", kind="invalid_history")
    if history.tags and not any(version.tags for version in versions):
        raise InvalidRequest(
            f"{source} has no tags: leave them out, or name versions by their numbers.", kind="invalid_history"
        )
    known_names = {name for version in versions for name in (version.version, *version.tags) if name is not None}
    for name in history.versions:
        if name not in known_names:
            raise NotFound(
                f"{source} has no version {name!r}; it has kept "
                f"{', '.join(version.version for version in versions if version.version is not None)}.",
                kind="version_not_found",
                version=name,
            )
    choices = []
    for version in versions:
        is_newest = version is versions[-1] and not history.versions
        is_named = not history.versions or not {version.version, *version.tags}.isdisjoint(history.versions)
        is_wanted = is_named and (not history.tags or bool(version.tags))
        if is_wanted or is_newest:
            own_tags = () if history.tags or version.own_tag is None else (version.own_tag,)
            must_be_there = bool(history.versions) or history.tags or is_newest
            choices.append(_Wanted(version, (*own_tags, *version.tags), must_be_there))
    return choices


@dataclass(slots=True)
class _History:
    """A table to which versions are added."""

    lake: Lake
    name: str
    open_version: Callable[[str | None], Source]
    files: VersionImport
    progress: ProgressCall | None
    table: Table | None = None
    """None: there is none yet, or this is a dry run."""
    first_schema: TableSchema | None = None
    """With which the table was created."""
    snapshots: set[int] = field(default_factory=set)
    """That this run has made, by id."""
    tags: set[str] = field(default_factory=set)
    """That this run has made, by name."""
    reports: list[VersionReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, choice: _Wanted) -> None:
        """Import a version; leave one out that its source has not kept whole, unless it must be there."""
        is_first = self.table is None
        try:
            self._add(choice, self.open_version(choice.version.version))
        except LakebedError as problem:
            is_gone = isinstance(problem, NotFound) or problem.kind == "unreadable_source"
            if choice.must_be_there or not is_gone:
                raise
            if is_first and not self.take_back():
                raise
            self.notes.append(f"Version {choice.version.version} is left out: {problem.message}")

    def take_back(self) -> bool:
        """Drop the table, unless others have put something there; whether there is none of this run."""
        if self.table is None or self.first_schema is None:
            return True
        is_gone = _take_back(self.lake, self.name, self.first_schema, snapshots=self.snapshots, tags=self.tags)
        if is_gone:
            self.table = None
        return is_gone

    def _add(self, choice: _Wanted, source: Source) -> None:
        is_dry = self.files.options.dry_run
        if is_dry:
            schema = schema_for(source, self.lake.environment.clock.now_ms())
        elif self.table is None:
            self.table = self.lake.create_table(self.name, source.fields, partition_keys=source.partition_keys)
            schema = self.first_schema = self.table.schema
        else:
            schema = evolve(self.table, source)
        plan = self.files.plan(self.lake.store, source, schema, self.lake.environment)
        snapshot = None
        if self.table is None:
            self.files.assume(plan)
        else:
            snapshot = self.files.carry_out(self.table, plan, self.progress)
            self.snapshots.add(snapshot.id)
            self._tag(self.table, choice, snapshot.id)
        self.reports.append(plan.report(choice.tags, snapshot))
        self.notes += [note for note in source.notes if note not in self.notes]

    def _tag(self, table: Table, choice: _Wanted, snapshot_id: int) -> None:
        for name in choice.tags:
            self.tags.add(name)
            try:
                table.create_tag(name, snapshot_id=snapshot_id)
            except InvalidRequest as unfit:
                own_tag = choice.version.own_tag
                assert own_tag is not None, "a version with tags has a name of its own"
                self.tags.add(own_tag)
                table.create_tag(own_tag, snapshot_id=snapshot_id, if_not_exists=True)
                self.notes.append(f"The source's tag {name!r} is here {own_tag}: {unfit.message}")
