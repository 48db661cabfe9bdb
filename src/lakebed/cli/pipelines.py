"""Commands on pipelines: run, status, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console

from lakebed import pipeline
from lakebed.cli import output
from lakebed.cli.command import Command
from lakebed.cli.context import LakeCommand
from lakebed.cli.grammar import argument, option, pairs
from lakebed.errors import InvalidRequest

PipelineFile = Annotated[Path, argument("FILE", help="A pipeline in YAML.")]
Variables = Annotated[list[str] | None, option("--var", metavar="NAME=VALUE", help="A variable of the pipeline.")]


InBranch = Annotated[
    str | None, option("--branch", metavar="REPOSITORY/BRANCH", help="The runs inside a branch of a repository.")
]
RunId = Annotated[str | None, argument("RUN", help="Only this run.")]


_STEPS_SHOWN_MAX = 10


class Run(Command, name="run"):
    """Run a pipeline, or continue a run that stopped: finished steps are not repeated."""

    file: PipelineFile
    var: Variables = None
    run_id: Annotated[str | None, option("--run-id", help="The run's id: a rerun continues where it stopped.")] = None
    replay: Annotated[
        list[str] | None,
        option("--replay", metavar="STEP", help="A finished step that may run again; takes patterns, repeatable."),
    ] = None
    carry: Annotated[
        list[str] | None,
        option("--carry", metavar="STEP", help="An edited step that counts as done; takes patterns, repeatable."),
    ] = None
    check: Annotated[bool, option("--check", help="Only look for mistakes; run nothing.")] = False

    def run(self) -> None:
        variables = pairs(self.var, like="day=2013-01-31")
        if self.check:
            if self.run_id is not None or self.replay or self.carry:
                raise InvalidRequest("--check runs nothing: give it without --run-id, --replay and --carry.")
            report = pipeline.check_file(self.file, variables=variables, storage_options=self.storage_options)
            steps = len(report.plan.steps)
            unchecked = f" {report.sql_unchecked}" if report.sql_unchecked else ""
            self.result(
                {"file": str(self.file), "steps": steps, "sql_unchecked": report.sql_unchecked},
                f"{self.file}: {output.count(steps, 'step')}, no mistake found.{unchecked}",
            )
            return
        progress = pipeline.console_progress(Console(stderr=True))
        summary = pipeline.run_file(
            self.file,
            variables=variables,
            run_id=self.run_id,
            progress=progress,
            storage_options=self.storage_options,
            replay=self.replay or (),
            carry=self.carry or (),
        )
        self.result(
            msgspec.to_builtins(summary),
            f"The run {summary.run_id} is complete: {output.count(summary.steps_run, 'step')} run, "
            f"{summary.steps_skipped} done before.",
        )


class Status(LakeCommand, name="status"):
    """List the runs in a lake, newest first, and how far each is."""

    run_id: RunId = None
    branch: InBranch = None

    def run(self) -> None:
        runs = pipeline.status(self.lake, branch=self.branch, run_id=self.run_id, storage_options=self.storage_options)
        if self.json:
            output.document(msgspec.to_builtins(runs))
            return
        output.grid(
            ("run", "pipeline", "state", "steps", "started"),
            [
                (run.run_id, run.pipeline, run.state, f"{run.steps_done}/{run.steps_total}", output.ago(run.started_ms))
                for run in runs
            ],
            right=("steps",),
            less=("started", "steps"),
            empty=f"No pipeline ever ran in {self.lake}.",
        )
        for run in runs:
            if run.error:
                output.sentence(f"\n{run.run_id}: {run.error}")
            if run.rows_dropped:
                by_step = sorted(run.rows_dropped.items(), key=lambda item: -item[1])
                step_counts = ", ".join(f"{name} ({count:,})" for name, count in by_step[:_STEPS_SHOWN_MAX])
                more_text = (
                    f" and {output.count(len(by_step) - _STEPS_SHOWN_MAX, 'more step')}"
                    if by_step[_STEPS_SHOWN_MAX:]
                    else ""
                )
                dropped_text = output.count(sum(run.rows_dropped.values()), "bad row")
                output.sentence(f"\n{run.run_id}: {dropped_text} dropped, by {step_counts}{more_text}.")


class Report(LakeCommand, name="report"):
    """Write a page with plots about the runs in a lake."""

    output: Annotated[Path, option("--output", "-o", help="The page to write, next to its JSON.")] = Path("report.html")
    run_id: RunId = None
    branch: InBranch = None
    title: Annotated[str | None, option("--title", help="The page's title.")] = None

    def run(self) -> None:
        files = pipeline.write_report(
            self.lake,
            path=self.output,
            branch=self.branch,
            run_id=self.run_id,
            title=self.title,
            storage_options=self.storage_options,
        )
        self.result({"html": str(files.html), "json": str(files.json)}, f"Wrote {files.html} and {files.json}.")
