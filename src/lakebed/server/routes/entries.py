"""Entries: find the entry of a reference at a path, and stage an entry on a branch, perhaps under a condition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.http.replies import ARRIVAL
from lakebed.repo.heads.write import stage, stage_if_absent, stage_if_match
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import LOOKS_MAX, find_newer
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.staging.view import read_reference, went_suppressed
from lakebed.server.site import RepositoryCall


def find_entry(context: RepositoryContext, ref: str, path: str) -> Entry:
    """Return the entry of a reference at a path. Raises `NotFound` (``path_not_found``)."""
    return _require(context, ref, path, read_reference(context, ref, lambda view: view.get(path)))


def _require(context: RepositoryContext, ref: str, path: str, entry: Entry | None) -> Entry:
    if entry is None:
        raise NotFound(f"{ref} of repository {context.name} has nothing at {path!r}.", kind="path_not_found", path=path)
    return entry


async def look_up(call: RepositoryCall, context: RepositoryContext, ref: str, path: str) -> Entry:
    """As `find_entry`, at one moment for all requests that arrived together with this one."""
    if call.serving.reads_inline:
        with went_suppressed():  # look again, at a later moment
            view = call.site.moments.view(context, ref, arrival=call.scope[ARRIVAL])
            return _require(context, ref, path, view.get(path))
    return await call.look(find_entry, context, ref, path)


async def reply_with_found(
    call: RepositoryCall,
    find: Callable[[], Entry],
    reply: Callable[[Entry], Awaitable[Response]],
    *,
    first: Entry | None = None,
) -> Response:
    """Reply with the bytes of an entry, as `lakebed.repo.objects.data.read_found` does outside the event loop.

    Args:
        first: the entry, if it was already looked up.
    """
    entry = await call.look(find) if first is None else first
    for _ in range(LOOKS_MAX - 1):
        try:
            return await reply(entry)
        except NotFound as error:
            entry = await call.look(find_newer, find, entry, gone=error)
    return await reply(entry)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition that a path must satisfy before it is written.

    Attributes:
        checksums: it has an object with one of these; None: any object. Ignored if `absent`.
        absent: it has no object.
    """

    checksums: frozenset[str] | None = None
    absent: bool = False

    def holds(self, entry: Entry | None) -> bool:
        """Whether an entry (None: no object) satisfies the condition."""
        if entry is None or self.absent:
            return entry is None and self.absent
        return self.checksums is None or entry.checksum in self.checksums


def condition_of(call: RepositoryCall) -> Condition | None:
    """Return the condition in ``If-Match`` or ``If-None-Match: *``; None: there is none."""
    match, none_match = call.header(b"if-match"), call.header(b"if-none-match")
    if match is not None and none_match is not None:
        raise InvalidRequest("The upload has both If-Match and If-None-Match: give one of them.", kind="invalid_header")
    if match is not None:
        return Condition(call.etags(b"if-match"))
    if none_match is None or not none_match.strip():  # some clients send an empty header and mean no condition
        return None
    if none_match.strip() != "*":
        raise InvalidRequest("If-None-Match of an upload can only be *: write if no object exists.", kind="unsupported")
    return Condition(absent=True)


def refuse_early(context: RepositoryContext, branch: str, path: str, condition: Condition) -> None:
    """Check a condition before the bytes arrive. It is checked again when they are staged."""
    entry = None
    try:
        entry = find_entry(context, branch, path)
    except NotFound as error:
        if error.kind != "path_not_found":
            raise
    if not condition.holds(entry):
        raise _unmet(path, condition)


def _unmet(path: str, condition: Condition) -> InvalidRequest:
    sentence = (
        f"There is an object at {path!r} already."
        if condition.absent
        else f"The object at {path!r} is not the one that If-Match names: read its ETag again."
    )
    return InvalidRequest(sentence, kind="precondition_failed", path=path)


def stage_entry(
    context: RepositoryContext, branch: str, path: str, entry: Entry, *, condition: Condition | None = None
) -> None:
    """Stage an entry at a path. Raises `InvalidRequest` (``precondition_failed``) if the condition does not hold."""
    try:
        if condition is None:
            stage(context, branch=branch, path=path, entry=entry)
        elif condition.absent:
            stage_if_absent(context, branch=branch, path=path, entry=entry)
        else:
            stage_if_match(context, branch=branch, path=path, entry=entry, matches=condition.holds)
    except AlreadyExists as error:
        assert condition is not None
        raise _unmet(path, condition) from error
    except Conflict as error:
        if error.kind != "path_changed" or condition is None:
            raise
        raise _unmet(path, condition) from error


def with_mtime(entry: Entry, mtime_s: int | None) -> Entry:
    """Return the entry with a client's modification time in Unix seconds; None: unchanged."""
    return entry if mtime_s is None else msgspec.structs.replace(entry, modified_ms=mtime_s * 1000)
