"""`Verb`: the message of one operation on a repository, and how it is run.

Invariants: names and fields of verbs are the interface between versions of client and server: DO NOT CHANGE them; add
fields with a default. Does not know: how a message travels (`lakebed.repo.transport.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

import msgspec
from msgspec import Meta

from lakebed.errors import InvalidRequest
from lakebed.objects.reserve import freeing_space
from lakebed.repo.records.context import RepositoryContext

R = TypeVar("R")
Row = TypeVar("Row")
V = TypeVar("V", bound="Described")

PAGE_COUNT_MAX: Final = 5_000
"""Most rows of a page."""

PATHS_MAX: Final = 100_000
"""Most paths of a message."""

REPOSITORY_ID_HEADER: Final = "x-lakebed-repository-id"
"""Of a request to a server: the id of the repository that the client has opened by its name."""

Role = Literal["read", "write", "admin"]
Effort = Literal["look", "write", "compute", "long"]
"""How a server runs it: a short read; a write that waits for the store; what computes; what may take minutes."""

Texts = dict[str, str]
Paths = Annotated[list[str], Meta(max_length=PATHS_MAX)]
Amount = Annotated[int, Meta(le=PAGE_COUNT_MAX)]
Milliseconds = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]


class Described(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server knows of every verb.

    Attributes:
        verb_name: the last part of its endpoint's path; the method of the facade has the same name.
        role: the least role of the access key.
        effort: how a server runs it.
        gives: the type that the reply is decoded to; None: the reply has no body.
        changes_nothing: whether a client may ask again when the answer was lost.
        reads_other_stores: `run` takes ``storage_options``, the credentials for stores outside the storage.
        is_large: the message may be as large as one that stages many objects.
        frees_space: it gives up what a collection may then take, or collects: on a full disk it may use the reserve.
        looks_first: it uses records that stay for a while when a repository is deleted, unlike its branches: whether it
            was deleted is looked up before it runs, by 1 read.
        changes: fields that name what is changed, for the audit log: the first that is set.
        author: the field that names who makes the change, which only a server knows; None: there is none.
        summary: one sentence, for the description of the interface.
    """

    verb_name: ClassVar[str]
    role: ClassVar[Role]
    effort: ClassVar[Effort]
    gives: ClassVar[Any]
    changes_nothing: ClassVar[bool]
    reads_other_stores: ClassVar[bool] = False
    is_large: ClassVar[bool] = False
    frees_space: ClassVar[bool] = False
    looks_first: ClassVar[bool] = False
    changes: ClassVar[tuple[str, ...]]
    author: ClassVar[str | None]
    summary: ClassVar[str]

    def subject(self) -> str:
        """What is changed; empty: the message does not name it."""
        return next((str(value) for value in (getattr(self, name) for name in self.changes) if value), "")

    def room(self) -> AbstractContextManager[None]:
        """In which it runs: with the reserve of a full disk, if it frees space (`lakebed.objects.reserve`)."""
        return freeing_space() if self.frees_space else nullcontext()

    def with_author(self, name_of: Callable[[str | None], str]) -> Self:
        """The same message by the author that `name_of` makes of the one it names."""
        if self.author is None:
            return self
        return msgspec.structs.replace(self, **{self.author: name_of(getattr(self, self.author))})


class Verb(Described, Generic[R], frozen=True):
    """An operation on one repository."""

    def run(self, context: RepositoryContext) -> R:
        """Do it. Raises what the method of the facade documents."""
        raise NotImplementedError


class ListVerb(Verb[list[Row]], frozen=True):
    """A list, which travels in pages: a subclass has the fields ``after``, the last row before, and ``amount``."""

    amount: Amount = PAGE_COUNT_MAX

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[Row]:
        """The rows, lazily, at most so many; None: all."""
        raise NotImplementedError

    def run(self, context: RepositoryContext) -> list[Row]:
        """One page."""
        return list(self.rows(context, amount=self.amount))

    def fix_moment(self, call: Callable[[Verb[R]], R]) -> ListVerb[Row]:
        """The same list, such that all its pages are of one moment where that is possible; `call` runs a verb."""
        return self


def verb(
    name: str,
    *,
    role: Role,
    effort: Effort,
    gives: Any,
    changes_nothing: bool | None = None,
    changes: tuple[str, ...] = (),
    author: str | None = None,
    frees_space: bool = False,
) -> Any:
    """Declare a class a verb; the arguments are those of `Described`. What only needs to read changes nothing."""

    def declare(kind: type[V]) -> type[V]:
        kind.verb_name, kind.role, kind.effort, kind.gives = name, role, effort, gives
        kind.changes_nothing = role == "read" if changes_nothing is None else changes_nothing
        kind.changes, kind.author, kind.frees_space = changes, author, frees_space
        kind.summary = (kind.__doc__ or "").strip().split("\n")[0]
        return kind

    return declare


def look_first(kind: type[V]) -> type[V]:
    """Declare of a class that it looks first: see `Described.looks_first`."""
    kind.looks_first = True
    return kind


def texts(metadata: Mapping[str, str] | None) -> Texts | None:
    """Metadata as a message has it."""
    return None if metadata is None else dict(metadata)


def texts_of(name: str, given: Iterable[str]) -> list[str]:
    """Several texts as a message has them. Raises `InvalidRequest` (``wrong_type``) for a single text."""
    if isinstance(given, str):
        raise InvalidRequest(f"{name} are a list of texts, and one text was given.", kind="wrong_type")
    return list(given)


class RepositoryFacts(msgspec.Struct, frozen=True):
    """What a repository is."""

    name: str
    id: str
    url: str
    namespace: str
    default_branch: str
    created_at_ms: int
    metadata: Texts
    is_read_only: bool


def facts_of(context: RepositoryContext) -> RepositoryFacts:
    """What an open repository is. Cost: no request."""
    record = context.record
    return RepositoryFacts(
        name=context.name,
        id=record.uid,
        url=context.store.root_url,
        namespace=record.namespace,
        default_branch=record.default_branch,
        created_at_ms=record.created_at_ms,
        metadata=dict(record.metadata),
        is_read_only=record.read_only,
    )
