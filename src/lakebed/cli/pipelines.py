"""Commands on pipelines: run, status, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from lakebed.cli import args, say
from lakebed.cli.args import Json, LakeUrl
from lakebed.cli.grammar import Group, argument, option
from lakebed.errors import InvalidRequest

__all__ = ["app"]

app = Group("pipeline", "Pipelines: ingest, merge, audit, tag, compact, expire and report, through Spark.")

PipelineFile = Annotated[Path, argument("FILE", help="A pipeline in YAML.")]
Variables = Annotated[list[str] | None, option("--var", metavar="NAME=VALUE", help="A variable of the pipeline.")]
InBranch = Annotated[
    str | None, option("--branch", metavar="REPOSITORY/BRANCH", help="The runs inside of a repository's branch.")
]
RunId = Annotated[str | None, argument("RUN", help="Only this run.", formerly=["--run-id"])]


_STEPS_SHOWN_MAX = 10


@app.command("run")
def run(
    file: PipelineFile,
    var: Variables = None,
    run: Annotated[str | None, option("--run-id", help="The run's id: a rerun goes on where it stopped.")] = None,
    replay: Annotated[
        list[str] | None,
        option("--replay", metavar="STEP", help="A finished step that may run again; takes patterns, repeatable."),
    ] = None,
    carry: Annotated[
        list[str] | None,
        option("--carry", metavar="STEP", help="An edited step that counts as done; takes patterns, repeatable."),
    ] = None,
    check: Annotated[bool, option("--check", help="Only look for mistakes; run nothing.")] = False,
    json: Json = False,
) -> None:
    """Run a pipeline, or go on with a run that stopped: finished steps are not repeated."""
    from rich.console import Console

    from lakebed.spark import pipeline

    variables = args.pairs(var, like="day=2013-01-31")
    if check:
        if run is not None or replay or carry:
            raise InvalidRequest("--check runs nothing: give it without --run-id, --replay and --carry.")
        report = pipeline.check_file(file, variables=variables, storage_options=args.storage_options())
        steps = len(report.plan.steps)
        left = f" {report.sql_unchecked}" if report.sql_unchecked else ""
        say.result(
            json,
            {"file": str(file), "steps": steps, "sql_unchecked": report.sql_unchecked},
            f"{file}: {say.count(steps, 'step')}, no mistake found.{left}",
        )
        return
    progress = pipeline.console_progress(Console(stderr=True))
    summary = pipeline.run_file(
        file,
        variables=variables,
        run_id=run,
        progress=progress,
        storage_options=args.storage_options(),
        replay=replay or (),
        carry=carry or (),
    )
    say.result(
        json,
        msgspec.to_builtins(summary),
        f"The run {summary.run_id} is complete: {say.count(summary.steps_run, 'step')} run, "
        f"{summary.steps_skipped} done before.",
    )


@app.command("status")
def status(lake: LakeUrl, run: RunId = None, branch: InBranch = None, json: Json = False) -> None:
    """List the runs in a lake, newest first, and how far each is."""
    from lakebed.spark import pipeline

    runs = pipeline.status(lake, branch=branch, run_id=run, storage_options=args.storage_options())
    if json:
        say.document(msgspec.to_builtins(runs))
        return
    say.grid(
        ("run", "pipeline", "state", "steps", "started"),
        [
            (one.run_id, one.pipeline, one.state, f"{one.steps_done}/{one.steps_total}", say.ago(one.started_ms))
            for one in runs
        ],
        right=("steps",),
        less=("started", "steps"),
        empty=f"No pipeline ever ran in {lake}.",
    )
    for one in runs:
        if one.error:
            say.sentence(f"\n{one.run_id}: {one.error}")
        if one.rows_dropped:
            by_step = sorted(one.rows_dropped.items(), key=lambda item: -item[1])
            listed = ", ".join(f"{name} ({count:,})" for name, count in by_step[:_STEPS_SHOWN_MAX])
            more = (
                f" and {say.count(len(by_step) - _STEPS_SHOWN_MAX, 'more step')}" if by_step[_STEPS_SHOWN_MAX:] else ""
            )
            dropped = say.count(sum(one.rows_dropped.values()), "bad row")
            say.sentence(f"\n{one.run_id}: {dropped} dropped, by {listed}{more}.")


@app.command("report")
def report(
    lake: LakeUrl,
    output: Annotated[Path, option("--output", "-o", help="The page to write, beside its JSON.")] = Path("report.html"),
    run: RunId = None,
    branch: InBranch = None,
    title: Annotated[str | None, option("--title", help="The page's title.")] = None,
    json: Json = False,
) -> None:
    """Write a page with plots about the runs in a lake."""
    from lakebed.spark import pipeline

    files = pipeline.write_report(
        lake, path=output, branch=branch, run_id=run, title=title, storage_options=args.storage_options()
    )
    say.result(json, {"html": str(files.html), "json": str(files.json)}, f"Wrote {files.html} and {files.json}.")
