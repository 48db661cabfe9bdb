"""Tags: list, create, get, delete."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import Response

from lakebed.http.declaration import Routes
from lakebed.http.pages import Page
from lakebed.repo.heads import actions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references import tags
from lakebed.repo.references.refs import resolve_commit
from lakebed.server.bodies import Ref, TagCreation
from lakebed.server.routes.parameters import FORCE, PAGE
from lakebed.server.site import RepositoryCall

TAGS: Final = Routes[RepositoryCall]("tags")
_ALL = "/repositories/{repository}/tags"
_ONE = "/repositories/{repository}/tags/{tag:path}"


@TAGS.add("GET", _ALL, "listTags", needs="read", gives={200: Page[Ref]}, parameters=PAGE)
async def list_tags(call: RepositoryCall) -> Response:
    """List tags."""
    context = await call.context()
    return await call.list_page(
        lambda page: tags.list_tags(context, prefix=page.prefix, after=page.after or None),
        key=lambda row: row[0],
        row=lambda row: Ref(row[0], row[1].commit_id),
    )


@TAGS.add("POST", _ALL, "createTag", needs="write", gives={201: Ref}, audited=True)
async def create_tag(call: RepositoryCall, body: TagCreation) -> Ref:
    """Create a tag."""
    context = await call.context(force=bool(body.force))
    call.subject = body.id
    tag = await call.heavy(_create, context, body.id, ref=body.ref, owner=call.committer)
    return Ref(body.id, tag)


def _create(context: RepositoryContext, name: str, *, ref: str, owner: str) -> str:
    commit_id, _ = resolve_commit(context, ref)
    return actions.create_tag(context, name, commit_id=commit_id, owner=owner).commit_id


@TAGS.add("GET", _ONE, "getTag", needs="read")
async def get_tag(call: RepositoryCall) -> Ref:
    """Get a tag."""
    context, name = await call.context(), call.path["tag"]
    tag = await call.look(tags.load_tag, context, name)
    return Ref(name, tag.commit_id)


@TAGS.add("DELETE", _ONE, "deleteTag", needs="write", parameters=(FORCE,), audited=True, frees_space=True)
async def delete_tag(call: RepositoryCall) -> None:
    """Delete a tag."""
    name, committer = call.path["tag"], call.committer
    await call.give_up(partial(actions.delete_tag, name=name, committer=committer), force=call.flag("force"))
