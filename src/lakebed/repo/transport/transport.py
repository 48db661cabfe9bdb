"""`Transport`: how a verb reaches a repository; `LocalTransport`, for a repository that this process has opened.

Invariant: the facade is the same class for every transport. So methods, arguments, results and errors are the same in
this process and through a server (`lakebed.repo.transport.http_transport`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import pyarrow as pa
from typing_extensions import Buffer

from lakebed.errors import InvalidRequest
from lakebed.objects.port import ByteRange, ObjectStore
from lakebed.repo.heads import write
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_writable
from lakebed.repo.references.branches import load_branch, peek_branch
from lakebed.repo.references.tags import refuse_deleted
from lakebed.repo.staging.view import View, at_reference
from lakebed.repo.transport.local_objects import local_store
from lakebed.repo.verbs.message import Described, ListVerb, RepositoryFacts, Verb, facts_of
from lakebed.repo.verbs.reading import Exists, Stat

R = TypeVar("R")
Row = TypeVar("Row")

Body = Buffer | Iterable[Buffer]
"""An object's bytes: all at once, or in chunks."""


class Put(msgspec.Struct, frozen=True):
    """The path and properties of an object that is put. Over HTTP the first line of the request, before the bytes."""

    path: str | None = None
    """None: only upload the bytes, and stage nothing; the entry is to be staged."""
    content_type: str = data.CONTENT_TYPE
    metadata: dict[str, str] = {}
    only_if_absent: bool = False
    requires: list[str] = []
    """With `only_if_absent`: other paths that must have objects then."""


class Transport(Protocol):
    """The operations that the facade of a repository needs. Errors are those of the facade's methods.

    Cost: as documented in this process; over HTTP 1 request, unless a method says otherwise.
    """

    @property
    def facts(self) -> RepositoryFacts:
        """The facts of the repository when it was opened. Cost: no request."""

    @property
    def url(self) -> str:
        """The repository's URL: in its storage, or on a server."""

    @property
    def context(self) -> RepositoryContext:
        """The context that verbs run on. Raises `InvalidRequest` (``not_over_http``) if a server has the repository."""

    def call(self, verb: Verb[R], **local: Any) -> R:
        """Run a verb.

        Args:
            local: further arguments of the verb's `run`, which cannot be sent to a server. Over HTTP ``progress`` is
                not called, and ``storage_options`` are refused.
        """

    def rows(self, verb: ListVerb[Row], *, amount: int | None) -> Iterator[Row]:
        """Up to `amount` rows of a list, lazily; None: all. Cost: over HTTP 1 request a page; for a log 1 more."""

    def commit_id(self, branch: str) -> str:
        """The id of the commit at a branch's head. Cost: 1 read of the key-value store."""

    def view(self, ref: str) -> AbstractContextManager[View]:
        """What a reference shows at one moment. Cost: 1 snapshot and about 3 reads of the key-value store."""

    def get(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        """An object's bytes, or a range of them. Cost: `stat` and 1 GET."""

    def stream(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        """An object's bytes in chunks. Memory: one chunk."""

    def read_entry(self, ref: str, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> bytes:
        """The bytes that the entry of a path named when it was looked up. Cost: 1 GET.

        Raises:
            NotFound: kind ``object_gone``, ``import_gone``: the bytes do not exist any more.
            Conflict: kind ``object_changed``: over HTTP, the path of an imported object has another entry now.
            InvalidRequest: kind ``invalid_range``.
        """

    def put(self, branch: str, what: Put, content: Body) -> Entry:
        """Upload and stage an object. Cost: 1 PUT and 1 write of the key-value store; over HTTP of a large body 2."""

    def check_put(self, branch: str, what: Put) -> None:
        """Raise what `put` raises before it needs the bytes. Cost: 1 peek; with `only_if_absent` as `stat`."""

    def stage_many(self, branch: str, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
        """Stage objects whose bytes are stored. Cost: 1 write, about 3 us an entry; over HTTP 150 bytes an entry."""

    def store(self, ref: str, prefix: str, *, writes: bool) -> ObjectStore:
        """An object store over a reference; `writes`: over a branch, to write too. Cost: over HTTP 1 or 2 requests."""


class OverTransport:
    """The common part of repositories and references."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


def transport_of(facade: OverTransport) -> Transport:
    """The transport of a repository or reference."""
    return facade._transport


def context_of(facade: OverTransport) -> RepositoryContext:
    """The context for the functions of `lakebed.repo` for which the facade has no method.

    Raises `InvalidRequest` (``not_over_http``) for a repository behind a server.
    """
    return facade._transport.context


class LocalTransport(Transport):
    """`Transport` to a repository that this process has opened."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"LocalTransport({self._context.store.root_url!r})"

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            f"An open repository cannot be copied or sent to another process: open {self._context.name!r} there, with "
            "lakebed.repo.open, or by the address of a server that owns it.",
            kind="not_picklable",
        )

    @property
    def facts(self) -> RepositoryFacts:
        return facts_of(self._context)

    @property
    def url(self) -> str:
        return self._context.store.root_url

    @property
    def context(self) -> RepositoryContext:
        return self._context

    def call(self, verb: Verb[R], **local: Any) -> R:
        with verb.room():
            self._look(verb)
            return verb.run(self._context, **local)

    def rows(self, verb: ListVerb[Row], *, amount: int | None) -> Iterator[Row]:
        self._look(verb)
        return verb.rows(self._context, amount=amount)

    def _look(self, verb: Described) -> None:
        """Raise `NotFound` (``repository_not_found``) if a verb would not notice that the repository was deleted."""
        if verb.looks_first:
            refuse_deleted(self._context)

    def commit_id(self, branch: str) -> str:
        return load_branch(self._context, branch)[0].commit_id

    def view(self, ref: str) -> AbstractContextManager[View]:
        return at_reference(self._context, ref)

    def get(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        return data.read_found(
            lambda: self._stat(ref, path),
            lambda entry: bytes(data.read(self._context, entry, byte_range=byte_range)),
        )

    def stream(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        chunks = data.read_found(
            lambda: self._stat(ref, path), lambda entry: data.stream(self._context, entry, byte_range=byte_range)
        )
        return map(bytes, chunks)

    def read_entry(self, ref: str, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> bytes:
        return bytes(data.read(self._context, entry, byte_range=byte_range))

    def _stat(self, ref: str, path: str) -> Entry:
        return Stat(ref=ref, path=path).run(self._context)

    def put(self, branch: str, what: Put, content: Body) -> Entry:
        self.check_put(branch, what)
        entry = data.upload(self._context, content, content_type=what.content_type, metadata=what.metadata)
        if what.path is not None:
            if what.only_if_absent:
                write.stage_if_absent(self._context, branch=branch, path=what.path, entry=entry, requires=what.requires)
            else:
                write.stage(self._context, branch=branch, path=what.path, entry=entry)
        return entry

    def check_put(self, branch: str, what: Put) -> None:
        path = what.path
        if path is not None:
            check_path(path, writing=True)
        peek_branch(self._context, branch)
        check_writable(self._context, branch)
        if path is not None and what.only_if_absent and Exists(ref=branch, path=path).run(self._context):
            raise write.path_exists(self._context, branch, path)

    def stage_many(self, branch: str, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
        return write.stage_many(self._context, branch=branch, entries=entries)

    def store(self, ref: str, prefix: str, *, writes: bool) -> ObjectStore:
        return local_store(self._context, ref, prefix)
