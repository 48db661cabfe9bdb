"""Tags and branches of tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.duration import format_iso_duration, parse_duration_ms
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.replies import empty, json
from lakebed.server.paimon.calls import PAGE, TABLE, name_of, table_of
from lakebed.server.paimon.catalog import PAIMON_TAG
from lakebed.server.paimon.errors import ERRORS
from lakebed.server.paimon.pages import PageOf
from lakebed.server.site import RepositoryCall
from lakebed.table.codec.snapshot_json import encode_snapshot
from lakebed.table.table import Table

ROUTES: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)
_TAGS: Final = f"{TABLE}/tags"
_TAG: Final = f"{TABLE}/tags/{{tag}}"
_BRANCHES: Final = f"{TABLE}/branches"
_BRANCH: Final = f"{TABLE}/branches/{{branch}}"
_PREFIX: Final = "tagNamePrefix"


class TagCreation(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../tags``."""

    tag_name: str
    snapshot_id: int | None = None
    time_retained: str | None = None
    """A duration such as ``7 d`` or ``P7D``; None: until deleted."""


class BranchCreation(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../branches``."""

    branch: str
    from_tag: str | None = None


class BranchRename(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../branches/{branch}/rename``."""

    to_branch: str


@ROUTES.add(
    "GET",
    _TAGS,
    "paimonListTags",
    needs="read",
    gives={200: dict},
    parameters=(*PAGE, Parameter(_PREFIX, "Only tags whose names begin with it.")),
)
def list_tags(call: RepositoryCall) -> Response:
    """List the names of tags."""
    (catalog, database, name), page = table_of(call), PageOf.asked(call, _PREFIX)
    prefix = call.query.get(_PREFIX) or ""
    table, _ = catalog.look(database, name)
    names = (tag for tag in sorted(table.context.tags.names()) if tag.startswith(prefix))
    rows, next_token = page.cut(names, lambda tag: tag)
    return json({"tags": rows, "nextPageToken": next_token})


@ROUTES.add("POST", _TAGS, "paimonCreateTag", needs="write", gives={200: None}, audited=True)
async def create_tag(call: RepositoryCall, body: TagCreation) -> Response:
    """Pin a snapshot under a name."""
    retained_ms = None if body.time_retained is None else parse_duration_ms(body.time_retained)

    def create(table: Table) -> None:
        table.create_tag(body.tag_name, snapshot_id=body.snapshot_id, lifetime_ms=retained_ms)

    return await _change(call, call.quick, f"tag {body.tag_name}", create)


async def _change(
    call: RepositoryCall,
    pool: Callable[[Callable[[], None]], Awaitable[None]],
    what: str,
    change: Callable[[Table], object],
    *,
    of_branches: bool = False,
) -> Response:
    """Change tags or branches of the table in the path, and note the change for the audit log.

    Args:
        pool: runs the change in its threads.
        of_branches: forget the opened branches.
    """
    catalog, database, name = table_of(call)
    call.subject += f" {what}"

    def run() -> None:
        table, _ = catalog.look(database, name)
        change(table)
        if of_branches:
            catalog.forget(database, name)

    await pool(run)
    return empty(200)


@ROUTES.add("GET", _TAG, "paimonGetTag", needs="read", gives={200: dict})
def get_tag(call: RepositoryCall) -> Response:
    """Get a tag with its snapshot."""
    (catalog, database, name), tag_name = table_of(call), name_of(call, "tag")
    table, _ = catalog.look(database, name)
    tag = table.tag(tag_name)
    retained = None if tag.lifetime_ms is None else format_iso_duration(tag.lifetime_ms)
    return json(
        {
            "tagName": tag.name,
            "snapshot": msgspec.Raw(encode_snapshot(tag.snapshot)),
            "tagCreateTime": tag.create_time_ms,
            "tagTimeRetained": retained,
        }
    )


@ROUTES.add("DELETE", _TAG, "paimonDeleteTag", needs="write", gives={200: None}, audited=True)
async def delete_tag(call: RepositoryCall) -> Response:
    """Delete a tag, and the files that only it needed."""
    name = name_of(call, "tag")
    return await _change(call, call.transfer, f"tag {name}", lambda table: table.delete_tag(name))


@ROUTES.add("GET", _BRANCHES, "paimonListBranches", needs="read", gives={200: dict})
def list_branches(call: RepositoryCall) -> Response:
    """List the names of branches."""
    catalog, database, name = table_of(call)
    table, _ = catalog.look(database, name)
    return json({"branches": [branch.name for branch in table.branches()]})


@ROUTES.add("POST", _BRANCHES, "paimonCreateBranch", needs="write", gives={200: None}, audited=True)
async def create_branch(call: RepositoryCall, body: BranchCreation) -> Response:
    """Create a branch of the newest snapshot, or of a tag."""

    def create(table: Table) -> None:
        table.create_branch(body.branch, tag=body.from_tag)

    return await _change(call, call.quick, f"branch {body.branch}", create, of_branches=True)


@ROUTES.add("DELETE", _BRANCH, "paimonDeleteBranch", needs="write", gives={200: None}, audited=True)
async def delete_branch(call: RepositoryCall) -> Response:
    """Delete a branch with its snapshots and tags."""
    branch = name_of(call, "branch")

    def delete(table: Table) -> None:
        table.delete_branch(branch)

    return await _change(call, call.transfer, f"branch {branch}", delete, of_branches=True)


@ROUTES.add("POST", f"{_BRANCH}/forward", "paimonForwardBranch", needs="write", gives={200: None}, audited=True)
async def forward_branch(call: RepositoryCall) -> Response:
    """Publish a branch: its newest version becomes main's, if main has not moved."""
    branch = name_of(call, "branch")
    return await _change(call, call.transfer, f"branch {branch}", lambda table: table.fast_forward(branch))


@ROUTES.add("POST", f"{_BRANCH}/rename", "paimonRenameBranch", needs="write", gives={200: None}, audited=True)
async def rename_branch(call: RepositoryCall, body: BranchRename) -> Response:
    """Give a branch another name, with its snapshots and tags."""
    branch = name_of(call, "branch")

    def rename(table: Table) -> None:
        table.rename_branch(branch, body.to_branch)

    return await _change(call, call.transfer, f"branch {branch} to {body.to_branch}", rename, of_branches=True)
