"""Runs of actions: what hooks did at an event, and their output.

Until it ends, a run is recorded as failed and without an end. So a run whose process died is also shown as failed.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from lakebed.errors import NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import Page
from lakebed.repo.records.runs import ActionRun, HookRun, list_runs, load_run
from lakebed.server.routes.parameters import AFTER, AMOUNT
from lakebed.server.routes.shapes import rfc_3339
from lakebed.server.site import RepositoryCall

ACTIONS: Final = Routes[RepositoryCall]("actions")
_ALL: Final = "/repositories/{repository}/actions/runs"
_ONE: Final = _ALL + "/{run}"
Status = Literal["failed", "completed"]


class ActionRunRow(msgspec.Struct, frozen=True):
    """A run. The names are those of lakeFS's clients: DO NOT CHANGE them."""

    run_id: str
    branch: str
    start_time: str
    event_type: str
    status: Status
    commit_id: str
    end_time: str | UnsetType = UNSET


class HookRunRow(msgspec.Struct, frozen=True):
    """A hook of a run. The names are those of lakeFS's clients: DO NOT CHANGE them."""

    hook_run_id: str
    action: str
    hook_id: str
    start_time: str
    end_time: str
    status: Status


@ACTIONS.add(
    "GET",
    _ALL,
    "listRepositoryRuns",
    needs="read",
    gives={200: Page[ActionRunRow]},
    parameters=(
        AFTER,
        AMOUNT,
        Parameter("branch", "Only runs of this branch."),
        Parameter("commit", "Only runs of this commit."),
    ),
)
async def list_all(call: RepositoryCall) -> Response:
    """List runs, the newest first."""
    context, branch, commit = await call.context(), call.query.get("branch", ""), call.query.get("commit", "")
    return await call.list_page(
        lambda page: list_runs(context, after=page.after, branch=branch, commit=commit),
        key=lambda row: row[0],
        row=lambda row: _row(*row),
    )


@ACTIONS.add("GET", _ONE, "getRun", needs="read")
async def get(call: RepositoryCall) -> ActionRunRow:
    """Get a run."""
    return _row(call.path["run"], await _load(call))


async def _load(call: RepositoryCall) -> ActionRun:
    return await call.quick(load_run, await call.context(), call.path["run"])


@ACTIONS.add(
    "GET", _ONE + "/hooks", "listRunHooks", needs="read", gives={200: Page[HookRunRow]}, parameters=(AFTER, AMOUNT)
)
async def list_hooks(call: RepositoryCall) -> Response:
    """List the hooks of a run, in the order in which they ran."""
    run = await _load(call)
    rows = [(f"{number:04d}", hook) for number, hook in enumerate(run.hooks)]
    return await call.list_page(
        lambda page: (row for row in rows if row[0] > page.after),
        key=lambda row: row[0],
        row=lambda row: _hook_row(*row),
    )


@ACTIONS.add("GET", _ONE + "/hooks/{hook_run}/output", "getRunHookOutput", needs="read", gives={200: bytes})
async def get_output(call: RepositoryCall) -> Response:
    """Read the output of a hook."""
    run, number = await _load(call), call.path["hook_run"]
    for position, hook in enumerate(run.hooks):
        if f"{position:04d}" == number:
            headers = {"x-content-type-options": "nosniff"}
            return Response(hook.output.encode(), media_type="application/octet-stream", headers=headers)
    raise NotFound(f"The run {call.path['run']} has no hook {number[:100]!r}: list its hooks.", kind="hook_not_found")


def _row(id: str, run: ActionRun) -> ActionRunRow:
    return ActionRunRow(
        id,
        run.branch,
        rfc_3339(run.started_at_ms),
        run.event,
        "completed" if run.passed else "failed",
        run.commit_id,
        UNSET if run.ended_at_ms is None else rfc_3339(run.ended_at_ms),
    )


def _hook_row(id: str, hook: HookRun) -> HookRunRow:
    status: Status = "completed" if hook.passed else "failed"
    return HookRunRow(id, hook.action, hook.hook_id, rfc_3339(hook.started_at_ms), rfc_3339(hook.ended_at_ms), status)
