"""Pull requests: asking for a merge, and merging."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from starlette.responses import Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import Page
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.pulls import (
    PullRequest,
    PullStatus,
    check_open,
    create_pull,
    list_pulls,
    load_pull,
    update_pull,
)
from lakebed.repo.references.branches import load_branch
from lakebed.repo.verbs.merge import Merge, merge_pull
from lakebed.server.bodies import (
    MergeCreation,
    MergeResult,
    PullRequestCreation,
    PullRequestCreationResponse,
    PullRequestRow,
    PullRequestUpdate,
)
from lakebed.server.permissions import REPOSITORIES, Permission
from lakebed.server.routes.parameters import PAGE
from lakebed.server.routes.shapes import rfc_3339
from lakebed.server.site import RepositoryCall

PULLS: Final = Routes[RepositoryCall]("pulls")
_ALL: Final = "/repositories/{repository}/pulls"
_ONE: Final = "/repositories/{repository}/pulls/{pull_request}"
_STATUSES: Final[dict[str, tuple[PullStatus, ...]]] = {
    "all": ("open", "closed", "merged"),
    "open": ("open",),
    "closed": ("closed", "merged"),
}
_STATUS: Final = Parameter("status", "Which are listed; `closed`: also merged ones.", choices=tuple(_STATUSES))


@PULLS.add(
    "GET", _ALL, "listPullRequests", needs="read", gives={200: Page[PullRequestRow]}, parameters=(*PAGE, _STATUS)
)
async def list_all(call: RepositoryCall) -> Response:
    """List pull requests, the oldest first."""
    context, status = await call.context(), call.query.get("status") or "all"
    if status not in _STATUSES:
        raise InvalidRequest(f"status={status!r} is invalid: use {', '.join(_STATUSES)}.", kind="invalid_query")
    statuses = _STATUSES[status]
    return await call.list_page(
        lambda page: list_pulls(context, prefix=page.prefix, after=page.after, statuses=statuses),
        key=lambda row: row[0],
        row=lambda row: _row(*row),
    )


@PULLS.add("POST", _ALL, "createPullRequest", needs="write", gives={201: PullRequestCreationResponse}, audited=True)
async def create(call: RepositoryCall, body: PullRequestCreation) -> PullRequestCreationResponse:
    """Ask for the merge of a branch into another."""
    context = await call.context()

    def store() -> str:
        for branch in (body.source_branch, body.destination_branch):
            load_branch(context, branch)
        return create_pull(
            context,
            title=body.title,
            description=body.description or "",
            source=body.source_branch,
            destination=body.destination_branch,
            author=call.committer,
        )

    call.subject = await call.quick(store)
    return PullRequestCreationResponse(call.subject)


@PULLS.add("GET", _ONE, "getPullRequest", needs="read")
async def get(call: RepositoryCall) -> PullRequestRow:
    """Get a pull request."""
    context, id = await call.context(), call.path["pull_request"]
    return _row(id, await call.look(load_pull, context, id))


@PULLS.add("PATCH", _ONE, "updatePullRequest", needs="write", audited=True)
async def update(call: RepositoryCall, body: PullRequestUpdate) -> None:
    """Change the title or description of a pull request, close it, or open it again."""
    context, call.subject = await call.context(), call.path["pull_request"]
    await call.quick(
        update_pull, context, call.subject, title=body.title, description=body.description, status=body.status
    )


@PULLS.add(
    "PUT", _ONE + "/merge", "mergePullRequest", needs="write", takes=MergeCreation, body_required=False, audited=True
)
async def merge(call: RepositoryCall) -> MergeResult:
    """Merge the branch of an open pull request."""
    body = await call.read(MergeCreation, default=MergeCreation())
    context, call.subject = await call.context(force=bool(body.force)), call.path["pull_request"]
    pull = await call.quick(load_pull, context, call.subject)
    call.check(Permission("fs:CreateCommit", f"{REPOSITORIES}{context.name}/branch/{pull.destination}"))
    commit_id = await call.heavy(_merge, context, call.subject, body, committer=call.committer)
    return MergeResult(commit_id)


def _merge(context: RepositoryContext, id: str, body: MergeCreation, *, committer: str) -> str:
    pull = load_pull(context, id)
    check_open(id, pull)
    merge = Merge(
        branch=pull.destination,
        source=pull.source,
        message=body.message or None,
        metadata=body.metadata,
        committer=committer,
        strategy=body.strategy or None,
        squash=bool(body.squash_merge),
        prefix=body.prefix or "",
        allow_empty=bool(body.allow_empty or body.force),
    )
    return merge_pull(context, id, merge).id


def _row(id: str, pull: PullRequest) -> PullRequestRow:
    return PullRequestRow(
        id=id,
        status=pull.status,
        title=pull.title,
        description=pull.description,
        creation_date=rfc_3339(pull.created_at_ms),
        author=pull.author,
        source_branch=pull.source,
        destination_branch=pull.destination,
        merged_commit_id=UNSET if pull.merged_commit_id is None else pull.merged_commit_id,
        closed_date=UNSET if pull.closed_at_ms is None else rfc_3339(pull.closed_at_ms),
    )
