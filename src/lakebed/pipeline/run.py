"""Run a pipeline file: plan it, open its workspace, check or execute it, and return the state of its runs.

Owns: the public calls. Invariant: every mistake in the text of the file is found before the lake is accessed. The
execution itself is in `execute`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from typing_extensions import Unpack

from lakebed.errors import InvalidRequest, NotFound
from lakebed.lake.lake import Lake
from lakebed.pipeline.check import CheckReport, check_columns, check_inputs, check_sql
from lakebed.pipeline.context import query_names
from lakebed.pipeline.execute import RunCall, execute
from lakebed.pipeline.ledger import Ledger, RunStatus, run_statuses
from lakebed.pipeline.model import Plan, RunSummary
from lakebed.pipeline.parse import Document, load, parse
from lakebed.pipeline.plan import make_plan
from lakebed.pipeline.preflight import check_tables, which_run
from lakebed.pipeline.progress import Progress, SilentProgress
from lakebed.pipeline.workspace import open_workspace
from lakebed.runtime import Environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunOptions(TypedDict, total=False):
    """Which run a call continues, and how; every key has a default.

    Keys:
        variables: values for the file's ``vars``; they win over those in the file.
        run_id: the run to begin or continue. None: the run of this definition and these variables. Calling it again
            continues after a crash and does nothing after success; an edited definition takes over the steps that
            earlier runs of the pipeline finished.
        progress: called as the run proceeds; None: silent.
        storage_options: settings of the lake's store.
        environment: clock, randomness and concurrency.
        replay: steps (names, or patterns such as ``merge *``) that may run again although an earlier run finished them.
        carry: steps that differ from what an earlier run did, and count as done all the same.
    """

    variables: Mapping[str, str] | None
    run_id: str | None
    progress: Progress | None
    storage_options: Mapping[str, str] | None
    environment: Environment | None
    replay: Sequence[str]
    carry: Sequence[str]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline file that was read. Its variables have no values yet."""

    document: Document

    @classmethod
    def load(cls, path: str | Path) -> Pipeline:
        """Read a pipeline file. Raises `NotFound`, or `InvalidRequest` with file and line."""
        return cls(load(path))

    @classmethod
    def parse(cls, text: str, *, file: str = "pipeline") -> Pipeline:
        """Read the text of a pipeline file. `file` names it in errors."""
        return cls(parse(text, file=file))

    def plan(self, *, variables: Mapping[str, str] | None = None) -> Plan:
        """Give the variables their values. Return the steps. Raises `InvalidRequest` with file and line."""
        return make_plan(self.document, variables=variables)

    def run(self, spark: SparkSession | None = None, **options: Unpack[RunOptions]) -> RunSummary:
        """Run the steps that are not done yet. Arguments and errors as `run_file`."""
        plan = self.plan(variables=options.get("variables"))
        environment = options.get("environment") or Environment()
        storage_options, run_id = options.get("storage_options"), options.get("run_id")
        replay, carry = options.get("replay", ()), options.get("carry", ())
        _check_before_creation(plan, storage_options=storage_options, environment=environment)
        if run_id is not None and carry:
            raise InvalidRequest(
                "A run with an id of its own takes nothing over from other runs, so --carry has no meaning in it; "
                "leave --run-id out.",
                kind="carry_with_run_id",
            )
        with open_workspace(
            plan.lake, branch=plan.branch, storage_options=storage_options, environment=environment
        ) as workspace:
            lake = workspace.lake
            this_run = which_run(plan, lake, replay=replay, environment=environment) if run_id is None else run_id
            return execute(
                RunCall(
                    plan=plan,
                    workspace=workspace,
                    ledger=Ledger(lake.store, run_id=this_run, environment=environment),
                    environment=environment,
                    spark=spark,
                    progress=options.get("progress") or SilentProgress(),
                    replay=replay,
                    carry=carry,
                    takes_over=run_id is None,
                )
            )


def run_file(path: str | Path, *, spark: SparkSession | None = None, **options: Unpack[RunOptions]) -> RunSummary:
    """Run a pipeline file: every step that is not in the ledger of its run yet.

    Args:
        path: of the file.
        spark: the session to use; None: a session is started when a step first needs it.
        **options: `variables`: values for the file's ``vars``, which override those in the file. `run_id`: the run to
            begin or continue; None: the run of this definition and these variables, which continues after a crash, does
            nothing after success, and takes over steps that earlier runs of an edited definition finished. `progress`:
            called as the run proceeds.
            `storage_options`: settings of the lake's store. `environment`: clock, randomness and concurrency. `replay`:
                steps (names, or patterns such as ``merge *``) that may run again although an earlier run finished them.
            `carry`: steps that differ from those of an earlier run, and count as done.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: the file is wrong, with file and line; the run id belongs to another plan; or kind
            ``replay_needed``: finished steps would run again, and neither `replay` nor `carry` names them.
        AlreadyExists: a tag that the run would create exists on another snapshot. Nothing was done.
        Rejected: kind ``audit_failed``: an audit failed; ``merged_already``: another run merged the same increment. No
            later step ran.
        LakebedError: any other error of a step. Call the run again to continue.
    """
    return Pipeline.load(path).run(spark, **options)


def check_file(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> CheckReport:
    """Find the mistakes in a pipeline file that can be found without running it. Change nothing.

    This reads the lake's tables, if there is a lake, and looks for the input files. Spark's parser reads the SQL.

    Raises:
        InvalidRequest: the first mistake, with file and line.
    """
    plan = Pipeline.load(path).plan(variables=variables)
    environment = environment or Environment()
    with ExitStack() as resources:
        lake: Lake | None = None
        try:
            workspace = resources.enter_context(
                open_workspace(
                    plan.lake,
                    branch=plan.branch,
                    create=False,
                    storage_options=storage_options,
                    environment=environment,
                )
            )
            lake = workspace.lake
        except NotFound:
            pass  # the first run creates it
        check_tables(plan, lake)
        check_columns(plan, lake)
        tables = set() if lake is None else query_names(lake)
    check_inputs(plan)
    return CheckReport(plan, sql_unchecked=check_sql(plan, tables))


def status(
    lake_url: str,
    *,
    branch: str | None = None,
    run_id: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> list[RunStatus]:
    """Return the state of the runs of a lake, newest first.

    Args:
        lake_url: URL or path of the lake.
        branch: ``repository/branch``: the runs in that branch.
        run_id: only this run. Its steps are read too, for `RunStatus.rows_dropped`.

    Raises:
        NotFound: there is no lake, or no such run.
    """
    environment = environment or Environment()
    with open_workspace(
        lake_url, branch=branch, create=False, storage_options=storage_options, environment=environment
    ) as workspace:
        store = workspace.lake.store
        if run_id is None:
            return run_statuses(store, environment=environment)
        ledger = Ledger(store, run_id=run_id, environment=environment)
        state = ledger.status()
        counts = {record.name: int(record.metrics.get("rows_dropped", 0)) for record in ledger.records().values()}
        return [replace(state, rows_dropped={name: count for name, count in counts.items() if count})]


def _check_before_creation(plan: Plan, *, storage_options: Mapping[str, str] | None, environment: Environment) -> None:
    """Look for tables that only an existing lake can have, before a missing lake is created.

    Raises `InvalidRequest`: there is no lake, and a step names a table that the plan does not declare. Cost: no request
    when the plan declares its tables.
    """
    try:
        check_tables(plan, None)
    except InvalidRequest as undeclared:
        if plan.branch is not None:  # a new branch has the tables of its source
            return
        try:
            with open_workspace(plan.lake, create=False, storage_options=storage_options, environment=environment):
                return
        except NotFound:
            raise undeclared from None
