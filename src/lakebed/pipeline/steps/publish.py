"""``publish``: merge the pipeline's branch into another, or fast-forward each table to its branch.

With ``branch:`` it commits and merges, so several tables become visible atomically. It publishes everything in the
branch: the tables after the steps before, and the ledger's records of those steps. A merge takes each table as a whole
from the side that changed it. A table that changed on both sides is a conflict, and nothing is merged. Metrics:
``branch``, ``into``, ``commit`` (of the branch) and ``merge`` (of the other branch): ids of commits. Idempotent: a step
that runs again after a crash commits and merges what is still missing, perhaps only records of the ledger.

With ``table_branch:`` it publishes table by table: see `..table_branch`. Metrics: ``branch``, ``into``, ``dry_run``,
``published`` (table, snapshot of main, and whether an earlier call published it), ``planned`` for a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakebed.errors import InvalidRequest
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.table_branch import TableBranches
from lakebed.table.model.layout import MAIN_BRANCH


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Commit and merge, or fast-forward."""
    if context.branches is not None:
        return _publish_tables(step, context, context.branches)
    repository, branch = context.workspace.repository, context.workspace.branch
    if repository is None or branch is None:
        raise context.location(step).error(
            "a 'publish' merges the branch that the pipeline works in, and this pipeline works in none: name it above "
            "the steps, as in `branch: analytics/dev`."
        )
    into = step.settings["into"] or repository.default_branch
    if into == branch.name:
        raise context.location(step).error(f"the pipeline works in '{into}' already: publish into another branch.")
    message = step.settings["message"] or f"{context.plan.pipeline}: {step.name}"
    metadata = {"pipeline": context.plan.pipeline, "run": context.run_id, "step": str(step.ordinal)}
    target = repository.branch(into)
    target.head()  # raises for a missing branch before anything is committed
    commit_id = _unless_unchanged(lambda: branch.commit(message, metadata=metadata).id, branch)
    merge_id = _unless_unchanged(lambda: target.merge(branch.name, message=message, metadata=metadata).id, target)
    return {"branch": branch.name, "into": into, "commit": commit_id, "merge": merge_id}


def _publish_tables(step: PlannedStep, context: RunContext, branches: TableBranches) -> dict[str, Any]:
    publication = branches.publish(
        lambda name: context.main(name, step=step), dry_run=step.settings["dry_run"], location=context.location(step)
    )
    return {"branch": branches.name, "into": MAIN_BRANCH, "dry_run": step.settings["dry_run"], **publication}


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the tables with their snapshots in main; for a dry run, those that would be published."""
    words = [
        f"{entry['table']} snapshot {entry['snapshot']}{' (published before)' if entry['earlier'] else ''}"
        for entry in metrics.get("published", ())
    ]
    if metrics.get("dry_run"):
        words.append(f"would publish {', '.join(metrics['planned']) or 'nothing'}")
    return words


def _unless_unchanged(move: Callable[[], str], branch: Any) -> str:
    """Return the id of the branch's newest commit afterwards."""
    try:
        return move()
    except InvalidRequest as error:
        if error.kind != "no_changes":
            raise
        head_id: str = branch.head().id
        return head_id


KIND = StepKind(
    name="publish",
    summary="merge the branch, all tables atomically, or fast-forward each table to its branch",
    keys=(
        Key("into", "text", "the branch to merge into; by default the repository's default branch", only_with="branch"),
        Key(
            "message",
            "text",
            "of the commit and the merge; by default the pipeline's and the step's name",
            only_with="branch",
        ),
        Key(
            "dry_run",
            "flag",
            "publish nothing; the record of the step says what would be",
            default=False,
            is_later=True,
            only_with="table_branch",
        ),
    ),
    run=run,
    describe=describe,
    depends_on_all=True,
    needs_branch=True,
)
