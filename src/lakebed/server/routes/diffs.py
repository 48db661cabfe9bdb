"""Differences: between two references, and between a branch and its head.

Names of tags may contain ``/diff/``. Clients should encode their slashes. If a client does not, the path is split so
that both references exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import Page, PageRequest
from lakebed.repo.model.model import Difference
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.verbs.differences import Diff, Status
from lakebed.server.bodies import DiffRow
from lakebed.server.routes.parameters import AFTER, AMOUNT, DELIMITER, PREFIX
from lakebed.server.routes.shapes import diff_row
from lakebed.server.site import RepositoryCall

DIFFS: Final = Routes[RepositoryCall]("branches")
_KINDS: Final = ("two_dot", "three_dot")
_KIND: Final = Parameter("type", "three_dot: what the right side changed since the merge base.", choices=_KINDS)
_RIGHT_STATS: Final = Parameter("include_right_stats", "Include what the right side has at each path.", kind="boolean")


@DIFFS.add(
    "GET",
    "/repositories/{repository}/branches/{branch}/diff",
    "diffBranch",
    needs="read",
    gives={200: Page[DiffRow]},
    parameters=(PREFIX, AFTER, AMOUNT, DELIMITER),
)
async def diff_branch(call: RepositoryCall) -> Response:
    """List the uncommitted changes of a branch."""
    context, branch, delimiter = await call.context(), call.path["branch"], call.query.get("delimiter", "")

    def rows(page: PageRequest) -> Iterable[Difference]:
        status = Status(branch=branch, prefix=page.prefix, after=page.after, delimiter=delimiter)
        return status.rows(context, amount=page.probe)

    return await call.list_page(rows, key=lambda row: row.path, row=diff_row)


@DIFFS.add(
    "GET",
    "/repositories/{repository}/refs/{left:path}/diff/{right:path}",
    "diffRefs",
    tag="refs",
    needs="read",
    gives={200: Page[DiffRow]},
    parameters=(PREFIX, AFTER, AMOUNT, DELIMITER, _KIND, _RIGHT_STATS),
)
async def diff_two(call: RepositoryCall) -> Response:
    """Compare two references; by default, list what the right one changed since their merge base."""
    context, delimiter = await call.context(), call.query.get("delimiter", "")
    kind = call.query.get("type") or "three_dot"
    if kind not in _KINDS:
        raise InvalidRequest(f"type={kind!r} is invalid: use two_dot or three_dot.", kind="invalid_query")
    left, right = await _sides(call, context)
    row = partial(diff_row, with_right=call.flag("include_right_stats"))

    def rows(page: PageRequest) -> Iterable[Difference]:
        diff = Diff(
            left=left,
            right=right,
            kind=kind,
            prefix=page.prefix,
            after=page.after,
            delimiter=delimiter,
        )
        return diff.rows(context, amount=page.probe)

    return await call.list_page(rows, key=lambda row: row.path, row=row)


async def _sides(call: RepositoryCall, context: RepositoryContext) -> tuple[str, str]:
    """Return the two references of the path."""
    left, right = call.path["left"], call.path["right"]
    segments = call.scope["raw_path"].partition(b"/refs/")[2].split(b"/")
    if segments[1:-1].count(b"diff") < 2:
        return left, right
    return await call.look(_choose_sides, context, left, right)


def _choose_sides(context: RepositoryContext, left: str, right: str) -> tuple[str, str]:
    """Return the two references of a path, split so that both exist. If no split does, return them unchanged.

    Raises:
        InvalidRequest: kind ``ambiguous_path``: several splits do.
    """
    names = f"{left}/diff/{right}".split("/")
    sides = [
        ("/".join(names[:place]), "/".join(names[place + 1 :]))
        for place in range(1, len(names) - 1)
        if names[place] == "diff"
    ]
    existing = [pair for pair in sides if all(_is_reference(context, text) for text in pair)]
    if len(existing) > 1:
        raise InvalidRequest(
            f"The path names the references {' or '.join(' and '.join(map(repr, pair)) for pair in existing)}: write "
            "the slashes of their names as %2F.",
            kind="ambiguous_path",
        )
    return existing[0] if existing else (left, right)


def _is_reference(context: RepositoryContext, text: str) -> bool:
    try:
        resolve_commit(context, text)
    except (InvalidRequest, NotFound):
        return False
    return True
