"""``report``: write the page of this lake's runs, with every tagged version read again.

Metrics: ``html``, ``json``, ``tags_read``: a list of ``table``, ``tag``, ``rows``, ``checksum`` as they read now, for
later reports that do not read them again. Idempotent: the page is replaced. It covers the steps before this one.
"""

from __future__ import annotations

from typing import Any

from lakebed.pipeline.collect import fingerprints_of_tags
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.ledger import Ledger, run_ids
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.report import store_report
from lakebed.pipeline.report_model import Fingerprint


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Fingerprint the tags again (with a Spark job for each), collect, and write."""
    settings = step.settings
    fingerprints = _read_again(step, context) if settings["verify"] else {}
    files = store_report(
        context.lake,
        path=settings["to"],
        run_id=None if settings["runs"] == "all" else context.run_id,
        writing_run=context.run_id,
        title=settings["title"],
        fingerprints=fingerprints,
        environment=context.environment,
    )
    read = [
        {"table": name, "tag": tag, "rows": fingerprint.rows, "checksum": fingerprint.checksum}
        for (name, tag), fingerprint in fingerprints.items()
    ]
    return {"html": files.html, "json": files.json, "tags_read": read}


def _read_again(step: PlannedStep, context: RunContext) -> dict[tuple[str, str], Fingerprint]:
    """Read every tag again that has a fingerprint from a run of this lake."""
    store, environment = context.lake.store, context.environment
    ids = run_ids(store) if step.settings["runs"] == "all" else [context.run_id]
    prints = {
        key
        for run_id in ids
        for key in fingerprints_of_tags(Ledger(store, run_id=run_id, environment=environment).records().values())
    }
    return {
        (name, tag): context.engine().fingerprint(context.table(name, step=step), version=f"tag.{tag}")
        for name, tag in sorted(prints)
        if context.has_table(name) and context.table(name, step=step).tag_exists(tag)
    }


KIND = StepKind(
    name="report",
    summary="write a page about the runs",
    keys=(
        Key("to", "text", "the HTML file to write", required=True),
        Key("title", "text", "the page's heading"),
        Key("runs", "text", "`all` runs of the lake, or only `this` one", default="all", choices=("all", "this")),
        Key("verify", "flag", "read every fingerprinted tag again and compare", default=True),
    ),
    run=run,
    describe=lambda metrics: [str(metrics.get("html", ""))],
    depends_on_all=True,
    is_milestone=True,
)
