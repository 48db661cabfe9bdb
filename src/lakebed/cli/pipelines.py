"""Commands on pipelines: run, status, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lakebed.cli import args, say
from lakebed.cli.args import Json, LakeUrl

__all__ = ["app"]

app = args.new_app("Pipelines: ingest, merge, audit, tag, compact, expire and report, through Spark.")

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline in YAML.", show_default=False)]
Variables = Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="A variable of the pipeline.")]
RunId = Annotated[str | None, typer.Option("--run-id", help="Only this run.")]


@app.command("run")
def run(
    file: PipelineFile,
    var: Variables = None,
    run: Annotated[str | None, typer.Option("--run-id", help="The run's id: a rerun goes on where it stopped.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look for mistakes in the file; start nothing.")] = False,
    json: Json = False,
) -> None:
    """Run a pipeline, or go on with a run that stopped: finished steps are not repeated."""
    from rich.console import Console

    from lakebed.spark import pipeline

    variables = args.pairs(var, like="day=2013-01-31")
    if check:
        plan = pipeline.check_file(file, variables=variables)
        say.result(
            json,
            {"file": str(file), "steps": len(plan.steps)},
            f"{file}: {say.count(len(plan.steps), 'step')}, no mistake.",
        )
        return
    progress = pipeline.console_progress(Console(stderr=True))
    summary = pipeline.run_file(
        file, variables=variables, run_id=run, progress=progress, storage_options=args.storage_options()
    )
    say.result(
        json,
        msgspec.to_builtins(summary),
        f"The run {summary.run_id} is complete: {say.count(summary.steps_run, 'step')} run, "
        f"{summary.steps_skipped} done before.",
    )


@app.command("status")
def status(lake: LakeUrl, run: RunId = None, json: Json = False) -> None:
    """List the runs in a lake, newest first, and how far each is."""
    from lakebed.spark import pipeline

    runs = pipeline.status(lake, run_id=run, storage_options=args.storage_options())
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
        empty=f"No pipeline ever ran in {lake}.",
    )
    for one in runs:
        if one.error:
            say.sentence(f"\n{one.run_id}: {one.error}")


@app.command("report")
def report(
    lake: LakeUrl,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write, beside its JSON.")] = Path(
        "report.html"
    ),
    run: RunId = None,
    title: Annotated[str | None, typer.Option("--title", help="The page's title.")] = None,
    json: Json = False,
) -> None:
    """Write a page with plots about the runs in a lake."""
    from lakebed.spark import pipeline

    files = pipeline.write_report(lake, path=output, run_id=run, title=title, storage_options=args.storage_options())
    say.result(json, {"html": str(files.html), "json": str(files.json)}, f"Wrote {files.html} and {files.json}.")
