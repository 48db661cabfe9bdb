"""``publish``: commit the pipeline's branch, and merge it into another: several tables become visible atomically.

Only in a pipeline with ``branch:``. It publishes everything in the branch: the tables after the steps before, and the
ledger's records of those steps. A merge takes each table whole from the side that changed it; a table that changed on
both sides is a conflict, and nothing is merged. Metrics: ``branch``, ``into``, ``commit`` (of the branch) and ``merge``
(of the other branch): ids of commits. Idempotent: a step that runs again after a crash commits and merges what is still
missing, perhaps only records of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakebed.errors import InvalidRequest
from lakebed.spark.pipeline.context import RunContext
from lakebed.spark.pipeline.keys import Key, StepKind
from lakebed.spark.pipeline.model import PlannedStep


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Commit and merge."""
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
    target.head()  # a missing branch is reported before anything is committed
    committed = _unless_unchanged(lambda: branch.commit(message, metadata=metadata).id, branch)
    merged = _unless_unchanged(lambda: target.merge(branch.name, message=message, metadata=metadata).id, target)
    return {"branch": branch.name, "into": into, "commit": committed, "merge": merged}


def _unless_unchanged(move: Callable[[], str], branch: Any) -> str:
    """Return the id of the branch's newest commit afterwards."""
    try:
        return move()
    except InvalidRequest as error:
        if error.kind != "no_changes":
            raise
        found: str = branch.head().id
        return found


KIND = StepKind(
    name="publish",
    summary="commit the branch and merge it, all tables atomically",
    keys=(
        Key("into", "text", "the branch to merge into; by default the repository's default branch"),
        Key("message", "text", "of the commit and the merge; by default the pipeline's and the step's name"),
    ),
    run=run,
    depends_on_all=True,
    needs_branch=True,
)
