"""What lakebed's own clients ask for: methods of the facade that the interface of lakeFS lacks, or says less of.

Owns: one endpoint a verb of `lakebed.repo.remote.verbs`, made from that table, and the three whose bodies are no
messages: `put` and `read` of objects' bytes, and `stage_many` of columns. Invariants: a verb is the method of the same
name, called with its message; nothing is decided here but who is named as committer. Does not know: what the verbs do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Any, Final

import msgspec
from typing_extensions import Buffer

from lakebed.errors import Conflict, InvalidRequest
from lakebed.repo import data
from lakebed.repo.branch import Branch
from lakebed.repo.entry import address_ulid
from lakebed.repo.home import Home
from lakebed.repo.model import Entry
from lakebed.repo.options import CollectionOptions
from lakebed.repo.remote.columns import StageRow, table_of
from lakebed.repo.remote.verbs import HOME_VERBS, VERBS, BranchPaths, PathsAt, RepositoryFacts, Verb
from lakebed.repo.repositories import Repositories
from lakebed.repo.repository import Repository
from lakebed.server.auth import check_role
from lakebed.server.call import Call
from lakebed.server.endpoint import Endpoint, Parameter, endpoint
from lakebed.server.errors import forbidden
from lakebed.server.replies import Reply, StreamedReply, empty, headers_of, json
from lakebed.server.routes.parameters import OBJECT_PATH
from lakebed.server.streaming import download, gathered, upload

__all__ = ["VERB_ENDPOINTS"]

VERB_ENDPOINTS: list[Endpoint] = []

_ONE: Final = "/repositories/{repository}/verbs/"
_ALL: Final = "/verbs/"
_TAG: Final = "lakebed"
_LINE_BYTES_MAX: Final = 1 << 20
"""Longest first line of `put`: a path and metadata."""
_BRANCH: Final = Parameter("branch", "Which branch.", required=True)


# ---- messages


def _facts(repository: Repository) -> RepositoryFacts:
    return RepositoryFacts(
        repository.name,
        repository.id,
        repository.url,
        repository.namespace,
        repository.default_branch,
        repository.created_at_ms,
        repository.metadata,
        repository.is_read_only,
    )


def _answer(verb: Verb[Any], perform: Callable[..., Any], *arguments: Any) -> Reply:
    """Call, and encode what comes out where it was made: a plan of a million objects must not hold up the loop."""
    found = perform(verb, *arguments)
    return empty() if verb.gives is None else json(found)


def _perform(verb: Verb[Any], repository: Repository, arguments: dict[str, Any]) -> Any:
    """Call the method."""
    if verb.name == "describe":
        return _facts(repository)
    target: Any = repository
    if verb.on == "reference":
        target = repository.ref(arguments.pop("ref"))
    elif verb.on == "branch":
        target = repository.branch(arguments.pop("branch"))
    method = getattr(target, verb.name)
    if verb.name in ("branches", "tags"):  # whose lists know no end of a page
        amount = arguments.pop("amount")
        return list(islice(method(**arguments), max(0, amount)))
    found = method(**arguments)
    if verb.gives is None:
        return None
    return list(found) if isinstance(found, Iterator) else found


def _arguments(verb: Verb[Any], message: msgspec.Struct, call: Call, storage_options: Any) -> dict[str, Any]:
    """What the method is called with: the message, as its signature names it, with what only a server knows."""
    named = {name: getattr(message, name) for name in message.__struct_fields__}
    for name in ("committer", "owner"):
        if name in named:
            named[name] = _committer(call, named[name])
    if "min_age_s" in named:
        age_s = named.pop("min_age_s")
        named["options"] = None if age_s is None else CollectionOptions(min_age=timedelta(seconds=age_s))
    if verb.name == "import_objects":
        named["storage_options"] = storage_options
    return named


def _committer(call: Call, named: str | None) -> str:
    """Who is named: the access key, unless an administrator names somebody else."""
    if not named or named == call.committer:
        return call.committer
    assert call.principal is not None
    if not call.principal.may("admin"):
        raise forbidden(
            f"The access key {call.committer} may not name {named!r} as who did this: leave it out, or use a key with "
            "the role admin."
        )
    return named


def _subject(message: msgspec.Struct) -> str:
    """What the audit log says was changed."""
    for name in ("branch", "name", "pattern", "version"):
        found = getattr(message, name, "")
        if found:
            return str(found)
    return ""


def _runner(verb: Verb[Any], call: Call) -> Callable[..., Awaitable[Any]]:
    return {"look": call.look, "write": call.quick, "compute": call.heavy, "long": call.transfer}[verb.effort]


def _declare(verb: Verb[Any]) -> None:
    async def perform(call: Call) -> Reply:
        bytes_max = call.site.options.stage_bytes_max if verb.takes in (BranchPaths, PathsAt) else None
        message = await call.read(verb.takes, bytes_max=bytes_max)
        call.subject = _subject(message)
        arguments = _arguments(verb, message, call, call.site.imports.storage_options)
        repository = Repository(await call.home())
        reply: Reply = await _runner(verb, call)(_answer, verb, _perform, repository, arguments)
        return reply

    perform.__doc__ = verb.summary
    _register(verb, _ONE, perform)


def _declare_of_all(verb: Verb[Any]) -> None:
    async def perform(call: Call) -> Reply:
        message = await call.read(verb.takes)
        call.subject = _subject(message)
        assert call.principal is not None
        if isinstance(getattr(message, "name", None), str):
            check_role(call.principal, needed=verb.needs, repository=message.name)  # type: ignore[attr-defined]
        named = _arguments(verb, message, call, None)
        reply: Reply = await _runner(verb, call)(_answer, verb, _perform_of_all, call, named)
        return reply

    perform.__doc__ = verb.summary
    _register(verb, _ALL, perform)


def _perform_of_all(verb: Verb[Any], call: Call, named: dict[str, Any]) -> Any:
    home: Repositories = call.site.repositories
    principal = call.principal
    assert principal is not None
    if verb.name == "list":
        amount = named.pop("amount")
        seen = (one for one in home.list(**named) if principal.sees(one.name))
        return [_facts(one) for one in islice(seen, max(0, amount))]
    found = getattr(home, verb.name)(**named)
    return _facts(found) if isinstance(found, Repository) else found


def _register(verb: Verb[Any], place: str, perform: Callable[[Call], Awaitable[Reply]]) -> None:
    words = verb.name.split("_")
    kind = "Repositories" if place == _ALL else ""
    endpoint(
        VERB_ENDPOINTS,
        "POST",
        place + verb.name,
        name="verb" + "".join(word.capitalize() for word in words) + kind,
        tag=_TAG,
        needs=verb.needs,
        takes=verb.takes,
        gives={204: None} if verb.gives is None else {200: _described(verb.gives)},
        audited=not verb.reads,
    )(perform)


def _described(gives: Any) -> Any:
    """A reply that is one text is JSON too."""
    return msgspec.Raw if gives is str else gives


for _verb in VERBS.values():
    _declare(_verb)
for _verb in HOME_VERBS.values():
    _declare_of_all(_verb)


# ---- bytes


class PutLine(msgspec.Struct, frozen=True):
    """The first line of `put`, before the bytes."""

    path: str | None = None
    """None: only upload the bytes; the reply is what to stage."""
    content_type: str = data.CONTENT_TYPE
    metadata: dict[str, str] = {}
    only_if_absent: bool = False


@endpoint(
    VERB_ENDPOINTS,
    "POST",
    _ONE + "put",
    name="verbPut",
    tag=_TAG,
    needs="write",
    takes=bytes,
    gives={200: Entry | None},
    parameters=(_BRANCH, Parameter("only_ask", "Only say whether it would be taken.", kind="boolean")),
)
async def put(call: Call) -> Reply:
    """Write an object: a line of JSON with path, content_type, metadata and only_if_absent, then the bytes."""
    name, only_ask = call.required("branch"), call.flag("only_ask")
    chunks = call.chunks(bytes_max=call.site.options.object_bytes_max)
    line, rest = await _first_line(chunks)
    try:
        says = msgspec.json.decode(line, type=PutLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body has no line of JSON before the bytes: {error}.", kind="invalid_body") from error
    branch = Repository(await call.home()).branch(name)

    def store(content: Buffer | Iterator[Buffer]) -> Entry:
        if says.path is None:
            return branch.upload(content, content_type=says.content_type, metadata=says.metadata)
        return branch.put(
            says.path,
            content,
            content_type=says.content_type,
            metadata=says.metadata,
            only_if_absent=says.only_if_absent,
        )

    if only_ask:
        if says.path is not None:
            await call.quick(branch.check_put, says.path, only_if_absent=says.only_if_absent)
        return json(None)
    held, more = await _held(rest, bytes_max=call.site.options.small_object_bytes)
    if more is None:
        return json(await call.quick(store, held))
    pieces = gathered(more, bytes_min=call.site.options.chunk_bytes)
    return json(await upload(pieces, into=store, places=call.site.pools.uploads))


async def _first_line(chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """What is before the first end of a line, and everything behind it."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        at = held.find(b"\n", max(0, len(held) - len(chunk)))
        if at >= 0:
            return bytes(held[:at]), _chained(bytes(held[at + 1 :]), chunks)
        if len(held) > _LINE_BYTES_MAX:
            break
    raise InvalidRequest("The body has no line of JSON before the bytes.", kind="invalid_body")


async def _held(chunks: AsyncIterator[bytes], *, bytes_max: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """A body of at most `bytes_max` whole; of a larger one nothing, and an iterator of all of it."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) > bytes_max:
            return b"", _chained(bytes(held), chunks)
    return bytes(held), None


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


@endpoint(
    VERB_ENDPOINTS,
    "GET",
    _ONE + "read",
    name="verbRead",
    tag=_TAG,
    needs="read",
    gives={200: bytes},
    parameters=(
        Parameter("ref", "Which reference.", required=True),
        OBJECT_PATH,
        Parameter("start", "The first byte; absent, all are read.", kind="integer"),
        Parameter("end", "Behind the last byte.", kind="integer"),
        Parameter("address", "Of the object that is meant, whatever has become of the path."),
        Parameter("size", "Its size.", kind="integer"),
    ),
)
async def read(call: Call) -> Reply | StreamedReply:
    """Read an object or a half-open range of it, as the path has it, or as it had it when its address was told."""
    ref, path = call.required("ref"), call.required("path")
    address = call.query.get("address")
    size_bytes = call.integer("size", default=0, low=0, high=_SIZE_MAX)
    wanted = None
    if "start" in call.query or "end" in call.query:
        wanted = (
            call.integer("start", default=0, low=-_SIZE_MAX, high=_SIZE_MAX),
            call.integer("end", default=_SIZE_MAX, low=-_SIZE_MAX, high=_SIZE_MAX),
        )
    home = await call.home()
    entry = await call.look(_meant, home, ref, path, address, size_bytes)
    start, end = (0, entry.size_bytes) if wanted is None else wanted
    count = max(0, min(end, entry.size_bytes) - start)
    headers = {"content-type": data.CONTENT_TYPE, "x-content-type-options": "nosniff"}
    if count <= call.site.options.small_object_bytes:
        return Reply(200, await call.quick(data.read, home, entry, byte_range=wanted), headers_of(headers))
    chunk_bytes = call.site.options.chunk_bytes
    chunks = await download(
        lambda: data.stream(home, entry, byte_range=wanted, chunk_bytes=chunk_bytes), pool=call.site.pools.transfer
    )
    return StreamedReply(200, chunks, headers_of({**headers, "content-length": str(count)}))


_SIZE_MAX: Final = (1 << 53) - 1


def _meant(home: Home, ref: str, path: str, address: str | None, size_bytes: int) -> Entry:
    """What a path has; or, when an address of ours is named, what lies there: a reader goes on with what it opened."""
    if address is not None and address_ulid(address) is not None:
        return Entry(address, size_bytes, "", 0)
    entry = Repository(home).ref(ref).stat(path)
    if address is not None and entry.address != address:
        raise Conflict(
            f"{path!r} at {ref} is another object than when it was opened: open it again.",
            kind="object_changed",
            path=path,
        )
    return entry


@endpoint(
    VERB_ENDPOINTS,
    "POST",
    _ONE + "stage_many",
    name="verbStageMany",
    tag=_TAG,
    needs="write",
    takes=list[StageRow],
    gives={200: int},
    parameters=(_BRANCH,),
    audited=True,
)
async def stage_many(call: Call) -> Reply:
    """Stage many objects whose bytes are there, in one atomic change: JSON rows, or an Arrow stream of the columns."""
    name = call.required("branch")
    call.subject = name
    body = await call.body(bytes_max=call.site.options.stage_bytes_max)
    branch = Repository(await call.home()).branch(name)
    content_type = call.header(b"content-type") or ""
    return json(await call.heavy(_stage, branch, body, content_type))


def _stage(branch: Branch, body: bytes, content_type: str) -> int:
    return branch.stage_many(table_of(body, content_type=content_type))
