"""Commits: create, get, list; merge, revert, cherry-pick."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import AMOUNT_MAX, Page, Pagination
from lakebed.http.replies import json
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.verbs.commit import Commit
from lakebed.repo.verbs.log import Log
from lakebed.repo.verbs.merge import Merge
from lakebed.repo.verbs.pick import CherryPick, Revert
from lakebed.server.bodies import (
    CherryPickCreation,
    CommitCreation,
    CommitOverrides,
    CommitRow,
    MergeBaseResult,
    MergeCreation,
    MergeResult,
    RevertCreation,
)
from lakebed.server.routes.parameters import AFTER, AMOUNT
from lakebed.server.routes.shapes import commit_row
from lakebed.server.site import RepositoryCall

COMMITS: Final = Routes[RepositoryCall]("commits")
_BRANCH = "/repositories/{repository}/branches/{branch}"
_REF = "/repositories/{repository}/refs/{ref:path}"
_MERGE = "/repositories/{repository}/refs/{source:path}/merge/{branch}"
_NO_OVERRIDES = CommitOverrides()


@COMMITS.add(
    "POST",
    _BRANCH + "/commits",
    "commit",
    needs="write",
    gives={201: CommitRow},
    audited=True,
    parameters=(Parameter("source_metarange", "Not supported: an existing metarange cannot be committed."),),
)
async def commit(call: RepositoryCall, body: CommitCreation) -> CommitRow:
    """Commit the changes staged on a branch, or those of the given paths."""
    if call.query.get("source_metarange"):
        raise InvalidRequest("A metarange cannot be committed by its id: commit what is staged.", kind="unsupported")
    context = await call.context(force=bool(body.force))
    commit = Commit(
        branch=call.path["branch"],
        message=body.message,
        metadata=body.metadata,
        committer=call.committer,
        created_at_ms=None if body.date is None else body.date * 1000,
        allow_empty=bool(body.allow_empty),
        paths=None if body.paths is None else [path for path in body.paths if not path.endswith("/")],
        prefixes=None if body.paths is None else [path for path in body.paths if path.endswith("/")],
    )
    # Clients of lakeFS send no message in transactions.
    commit_with_id = await call.heavy(commit.run, context, allow_empty_message=True)
    return commit_row(commit_with_id.id, commit_with_id.commit)


@COMMITS.add("GET", "/repositories/{repository}/commits/{commit:path}", "getCommit", needs="read")
async def get_commit(call: RepositoryCall) -> CommitRow:
    """Get a commit, by its id or any other reference."""
    context = await call.context()
    commit_id, record = await call.look(resolve_commit, context, call.path["commit"])
    return commit_row(commit_id, record)


@COMMITS.add(
    "GET",
    _REF + "/commits",
    "logCommits",
    needs="read",
    gives={200: Page[CommitRow]},
    parameters=(
        AFTER,
        AMOUNT,
        Parameter("objects", "Only commits that changed one of these paths; may repeat."),
        Parameter("prefixes", "Only commits that changed paths with one of these prefixes; may repeat."),
        Parameter("limit", "Return at most `amount` commits in all: there is no next page.", kind="boolean"),
        Parameter("first_parent", "Follow only the first parent of each commit.", kind="boolean"),
        Parameter("since", "Only commits not older than this time (RFC 3339)."),
        Parameter("stop_at", "The reference whose commit is listed last."),
    ),
)
async def log_commits(call: RepositoryCall) -> Response:
    """List commits, from a reference backwards."""
    context, page = await call.context(), call.page()
    stop_at, first_parent, limit = call.query.get("stop_at"), call.flag("first_parent"), call.flag("limit")
    since = _parse_time(call.query.get("since"))
    paths, prefixes = call.all_values("objects"), call.all_values("prefixes")

    log = Log(
        ref=call.path["ref"],
        after=page.after or None,
        amount=page.amount,
        since_ms=since,
        stop_at=stop_at or None,
        first_parent=first_parent,
        paths=paths,
        prefixes=prefixes,
    )

    def read() -> Response:
        page = log.page(context, is_last=limit)
        next_token = page.following
        rows = [commit_row(*row) for row in page.rows]
        return json(Page(Pagination(bool(next_token), next_token, len(rows), AMOUNT_MAX), rows))

    return await call.heavy(read)


@COMMITS.add(
    "POST", _MERGE, "mergeIntoBranch", tag="refs", needs="write", takes=MergeCreation, body_required=False, audited=True
)
async def merge(call: RepositoryCall) -> MergeResult:
    """Merge a reference into a branch."""
    body = await call.read(MergeCreation, default=MergeCreation())
    context = await call.context(force=bool(body.force))
    merge = Merge(
        branch=call.path["branch"],
        source=call.path["source"],
        message=body.message or None,
        metadata=body.metadata,
        committer=call.committer,
        strategy=body.strategy or None,
        squash=bool(body.squash_merge),
        prefix=body.prefix or "",
        allow_empty=bool(body.allow_empty or body.force),
    )
    merge_commit = await call.heavy(merge.run, context)
    return MergeResult(merge_commit.id)


@COMMITS.add("GET", _MERGE, "findMergeBase", tag="refs", needs="read")
async def find_merge_base(call: RepositoryCall) -> MergeBaseResult:
    """The commit that a merge would compare both sides with."""
    context = await call.context()
    return await call.heavy(_merge_base, context, call.path["source"], call.path["branch"])


def _merge_base(context: RepositoryContext, source: str, branch: str) -> MergeBaseResult:
    source_id, _ = resolve_commit(context, source)
    destination_id, _ = resolve_commit(context, branch)
    return MergeBaseResult(source_id, destination_id, merge_base(context, source_id, destination_id) or "")


@COMMITS.add(
    "POST",
    _BRANCH + "/revert",
    "revertBranch",
    tag="branches",
    needs="write",
    statuses={"parent_number_needed": 409},
    audited=True,
)
async def revert(call: RepositoryCall, body: RevertCreation) -> None:
    """Undo one commit's changes in a new commit."""
    await _pick(call, Revert, body, allow_empty=bool(body.allow_empty))


@COMMITS.add(
    "POST",
    _BRANCH + "/cherry-pick",
    "cherryPick",
    tag="branches",
    needs="write",
    gives={201: CommitRow},
    audited=True,
)
async def cherry_pick(call: RepositoryCall, body: CherryPickCreation) -> CommitRow:
    """Make one commit's changes again, in a new commit on a branch."""
    picked_commit = await _pick(call, CherryPick, body)
    return commit_row(picked_commit.id, picked_commit.commit)


async def _pick(
    call: RepositoryCall,
    kind: type[Revert | CherryPick],
    body: RevertCreation | CherryPickCreation,
    *,
    allow_empty: bool = False,
) -> CommitWithId:
    context, overrides = await call.context(force=bool(body.force)), body.commit_overrides or _NO_OVERRIDES
    pick = kind(
        branch=call.path["branch"],
        ref=body.ref,
        parent_number=body.parent_number or None,
        message=overrides.message,
        metadata=overrides.metadata,
        committer=call.committer,
        allow_empty=allow_empty,
    )
    return await call.heavy(pick.run, context)


def _parse_time(text: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r} is not a valid time: use RFC 3339, such as 2026-01-31T12:00:00Z.", kind="invalid_query"
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
