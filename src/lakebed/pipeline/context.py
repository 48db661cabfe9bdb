"""The context of a step: the lake, its tables, Spark on demand, and the identity of its commit.

Owns: the creation of declared tables, and the views that ingest steps name. Invariants: Spark does not start before a
step needs it. The commit of step n of run r has the user ``pipeline:<r>`` and the identifier n, on every table and in
every attempt of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.errors import InvalidRequest, NotFound
from lakebed.lake.lake import Lake
from lakebed.pipeline.carry import matches
from lakebed.pipeline.increments import StepCommit, commit_identity
from lakebed.pipeline.inputs import Inputs
from lakebed.pipeline.ledger import Ledger
from lakebed.pipeline.measure import snapshot_on_main
from lakebed.pipeline.model import Plan, PlannedStep, StepIdentity, StepRecord, TableSpec
from lakebed.pipeline.nodes import SourceLocation, nearest
from lakebed.pipeline.rows import Rows
from lakebed.pipeline.table_branch import TableBranches
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment
from lakebed.table.engines.registry import engine_of
from lakebed.table.model.model import DataField
from lakebed.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.pipeline.engine import Engine


@dataclass(slots=True)
class RunContext:
    """One call of run."""

    plan: Plan
    run_id: str
    workspace: Workspace
    environment: Environment
    scratch_folder: Path
    """A local folder that exists as long as this call."""
    start_spark: Callable[[], SparkSession]
    identities: Mapping[int, StepIdentity] = field(default_factory=dict)
    """The identity of each step, by ordinal."""
    replay: Sequence[str] = ()
    """Names and patterns of steps that a person asked to run again."""
    is_resumed: bool = False
    """The run was called before."""
    records: list[StepRecord] = field(default_factory=list)
    """Steps done so far, of this call and those before, in order."""
    _recipes: dict[str, Callable[[], Rows]] = field(default_factory=dict)
    _views: dict[str, Rows] = field(default_factory=dict)
    _tables: dict[str, Table] = field(default_factory=dict)
    _engine: Engine | None = None
    _inputs: Inputs | None = None
    branches: TableBranches | None = field(init=False, default=None)
    """The branches of the tables; None: steps write to main."""

    def __post_init__(self) -> None:
        """Prepare the branches of tables, when the pipeline works in them."""
        if self.plan.table_branch is not None:
            self.branches = TableBranches(self.plan.table_branch, f"pipeline:{self.run_id}", self.records)

    @property
    def lake(self) -> Lake:
        """The lake that the pipeline works in."""
        return self.workspace.lake

    def engine(self) -> Engine:
        """Return the engine, which uses Spark; the session starts when Spark is first needed."""
        if self._engine is None:
            from lakebed.pipeline.engine import Engine  # loads PySpark

            self._engine = Engine(self.start_spark)
        return self._engine

    def close(self) -> None:
        """Release cached rows. The Spark session stays open."""
        for rows in self._views.values():
            self.engine().release_rows(rows)
        self._views.clear()

    def location(self, step: PlannedStep) -> SourceLocation:
        """Return where the pipeline file declares a step."""
        return self.plan.location(step)

    def identity(self, step: PlannedStep) -> dict[str, Any]:
        """Return ``commit_user`` and ``commit_identifier`` of a step's commit."""
        return {"commit_user": f"pipeline:{self.run_id}", "commit_identifier": step.ordinal}

    def content(self, step: PlannedStep) -> str | None:
        """Return the identity of the increment that a step reads now; None when it is unknown."""
        if self._inputs is None:
            self._inputs = Inputs(remote=lambda pattern: self.engine().file_facts(pattern))
        identity = self.identities[step.ordinal]

        def tables() -> list[tuple[str, int]]:
            tables_read = [(name, self.table(name, step=step)) for name in sorted(identity.reads)]
            version = step.settings.get("version")
            return [_version_read(name, table, version) for name, table in tables_read if table.latest() is not None]

        return self._inputs.of(identity, tables=tables)

    def increment(self, step: PlannedStep, table: Table, *, name: str, content: str | None) -> dict[str, Any]:
        """Return ``commit_user`` and ``commit_identifier`` for the commit of a step's increment.

        A table whose merge engine ignores repeated rows (it has ``sequence.field``) may get an increment twice: nothing
        is compared.

        Raises `Rejected`: another run merged the same increment into the table; or a killed call of this run has made
        the step's commit, of another increment.
        """
        identity = self.identity(step)
        if engine_of(table.schema).ignores_repeats:
            return identity
        commit = StepCommit(
            table=table,
            name=name,
            identity=self.identities[step.ordinal],
            own=identity,
            run_id=self.run_id,
            location=self.location(step),
            is_resumed=self.is_resumed,
            is_replayed=matches(step.name, self.replay),
        )
        return commit_identity(
            self.lake.store,
            commit,
            content=content,
            ledger_of=lambda run_id: Ledger(self.lake.store, run_id=run_id, environment=self.environment),
        )

    def has_table(self, name: str) -> bool:
        """Return whether the lake has the table now."""
        return name in self._tables or self.lake.has_table(name)

    def row_sources(self) -> set[str]:
        """Return every view and table that a query may name; tables of database ``default`` by their plain names."""
        return {*self._recipes, *self.plan.tables, *query_names(self.lake)}

    def table(self, name: str, *, step: PlannedStep) -> Table:
        """Return a table of the lake; its branch, when the table is in one. Create a declared table that is absent.

        Raises `InvalidRequest`: neither declared nor in the lake; names the step's line. `Conflict`: its branch cannot
        be used; see `TableBranches.open`.
        """
        main = self.main(name, step=step)
        if self.branches is None:
            return main
        writes = self.identities[step.ordinal].writes == name
        return self.branches.open(main, name, writes=writes, location=self.location(step))

    def mark_metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a step, with the branch of the table that it worked in."""
        return metrics if self.branches is None else self.branches.mark(metrics)

    def main(self, name: str, *, step: PlannedStep) -> Table:
        """Return main of a table; as `table`."""
        table = self._tables.get(name)
        if table is None:
            spec = self.plan.tables.get(name)
            if spec is not None and spec.columns and not self.lake.has_table(name):
                table = self._create(spec, fields_of(spec))
            else:
                table = self._open(name, step=step)
            self._tables[name] = table
        return table

    def declares_columns(self, name: str) -> bool:
        """Return whether the pipeline declares the columns of the table."""
        spec = self.plan.tables.get(name)
        return spec is not None and bool(spec.columns)

    def create_like(self, name: str, rows: Rows, *, step: PlannedStep, without: str | None = None) -> Table:
        """Create a table with the columns of the first rows written to it (except `without`)."""
        spec = self.plan.tables.get(name, TableSpec(name))
        schema = self.engine().arrow_schema(rows, without=without, never_null=spec.primary_key)
        for column in (*spec.primary_key, *spec.partition_by):
            if column not in schema.names:
                raise self.location(step).error(
                    f"the rows for the new table '{name}' have no column '{column}', which is a key of it."
                    f"{nearest(column, schema.names)}"
                )
        self._tables[name] = self._create(spec, schema)
        return self._tables[name]

    def name_view(self, view: str, recipe: Callable[[], Rows]) -> None:
        """Define a view; `recipe` makes its rows when a step first needs them."""
        forgotten = self._views.pop(view, None)
        if forgotten is not None:
            self.engine().release_rows(forgotten)
        self._recipes[view] = recipe

    def view(self, name: str) -> Rows | None:
        """Return the rows of a view that an ingest step named; None when there is no such view."""
        if name not in self._views and name in self._recipes:
            self._views[name] = self._recipes[name]()
        return self._views.get(name)

    def before(self) -> Iterable[StepRecord]:
        """Return the records whose totals a commit may continue, newest first: none in a branch, whose ids recur."""
        return () if self.branches is not None else reversed(self.records)

    def _open(self, name: str, *, step: PlannedStep) -> Table:
        try:
            return self.lake.table(name)
        except NotFound as error:
            row_sources = self.row_sources()
            raise self.location(step).error(f"there is no table '{name}'.{nearest(name, row_sources)}") from error

    def _create(self, spec: TableSpec, schema: Any) -> Table:
        try:
            return self.lake.create_table(
                spec.name,
                schema,
                primary_keys=spec.primary_key,
                partition_keys=spec.partition_by,
                options=dict(spec.options),
                comment=spec.comment,
            )
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{self.plan.file}: the table '{spec.name}' cannot be created: {error.message}", table=spec.name
            ) from error


def newest_commit(records: Iterable[StepRecord], table: str) -> int | None:
    """Return the newest snapshot that steps committed to main of a table; None when none did, in any order."""
    commits: list[int | None] = []
    for record in records:
        if record.metrics.get("table") == table:
            commits.append(snapshot_on_main(record))
        commits += [entry["snapshot"] for entry in record.metrics.get("published", ()) if entry["table"] == table]
    return max((snapshot for snapshot in commits if snapshot is not None), default=None)


def _version_read(name: str, table: Table, version: str | None) -> tuple[str, int]:
    """Return a table and its snapshot as the identity of what a step reads; ids recur in branches of the same name."""
    snapshot = table.resolve(version=version)
    return (name if table.branch is None else f"{name}/{snapshot.delta_manifest_list}"), snapshot.id


def query_names(lake: Lake) -> set[str]:
    """Return the lake's tables as a query names them: those of the database ``default`` by their plain names."""
    return {name.removeprefix("default.") for name in lake.tables()}


def fields_of(spec: TableSpec) -> tuple[DataField, ...]:
    """Return the declared columns as a table's fields, numbered from 0; keys are never null."""
    keys = {*spec.primary_key}
    return tuple(
        DataField(id=number, name=column.name, type=column.type, nullable=column.nullable and column.name not in keys)
        for number, column in enumerate(spec.columns)
    )
