"""Branches: list, create, get, delete, reset."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import PlainTextResponse, Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import Page
from lakebed.repo.heads import actions
from lakebed.repo.references import branches
from lakebed.repo.verbs.reset import HardReset, Reset
from lakebed.server.bodies import BranchCreation, Ref, ResetCreation
from lakebed.server.routes.parameters import FORCE, PAGE
from lakebed.server.site import RepositoryCall

HOT: Final = Routes[RepositoryCall]("branches")
BRANCHES: Final = Routes[RepositoryCall]("branches")
_ONE = "/repositories/{repository}/branches/{branch}"
_ALL = "/repositories/{repository}/branches"
_HIDDEN = Parameter("show_hidden", "Include hidden branches.", kind="boolean")


@HOT.add("GET", _ONE, "getBranch", needs="read")
async def get_branch(call: RepositoryCall) -> Ref:
    """Get a branch."""
    context = await call.context()
    name = call.path["branch"]
    record, _ = await call.look(branches.load_branch, context, name)
    return Ref(name, record.commit_id)


@BRANCHES.add("GET", _ALL, "listBranches", needs="read", gives={200: Page[Ref]}, parameters=(*PAGE, _HIDDEN))
async def list_branches(call: RepositoryCall) -> Response:
    """List branches."""
    context, with_hidden = await call.context(), call.flag("show_hidden")
    return await call.list_page(
        lambda page: branches.list_branches(context, prefix=page.prefix, after=page.after or None, hidden=with_hidden),
        key=lambda row: row[0],
        row=lambda row: Ref(row[0], row[1].commit_id),
    )


@BRANCHES.add("POST", _ALL, "createBranch", needs="write", gives={201: str}, audited=True)
async def create_branch(call: RepositoryCall, body: BranchCreation) -> Response:
    """Create a branch from a reference; the reply is the id of the commit at its head."""
    context = await call.context(force=bool(body.force))
    call.subject = body.name
    branch = await call.heavy(
        actions.create_branch,
        context,
        body.name,
        source=body.source,
        hidden=bool(body.hidden),
        committer=call.committer,
    )
    return PlainTextResponse(branch.commit_id, 201)


@BRANCHES.add("DELETE", _ONE, "deleteBranch", needs="write", parameters=(FORCE,), audited=True, frees_space=True)
async def delete_branch(call: RepositoryCall) -> None:
    """Delete a branch and its uncommitted changes."""
    name, committer = call.path["branch"], call.committer
    await call.give_up(partial(actions.delete_branch, name=name, committer=committer), force=call.flag("force"))


@BRANCHES.add("PUT", _ONE, "resetBranch", needs="write", audited=True, frees_space=True)
async def reset_branch(call: RepositoryCall, body: ResetCreation) -> None:
    """Discard uncommitted changes: all, at a path, or below a prefix."""
    name = call.path["branch"]
    if body.type == "reset":
        reset = Reset(branch=name)
    elif not body.path:
        raise InvalidRequest(f"A reset of type {body.type} needs a path: give it.", kind="invalid_body")
    elif body.type == "object":
        reset = Reset(branch=name, path=body.path)
    else:
        reset = Reset(branch=name, prefix=body.path)
    await call.give_up(reset.run, force=bool(body.force))


@BRANCHES.add(
    "PUT",
    _ONE + "/hard_reset",
    "hardResetBranch",
    needs="write",
    parameters=(Parameter("ref", "The new head of the branch.", required=True), FORCE),
    audited=True,
)
async def hard_reset_branch(call: RepositoryCall) -> None:
    """Move a branch to another commit."""
    ref, force = call.required("ref"), call.flag("force")
    context = await call.context(force=force)
    await call.heavy(HardReset(branch=call.path["branch"], ref=ref, force=force).run, context)
