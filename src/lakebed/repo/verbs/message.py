"""`Verb`: the message of one operation on a repository, and how the operation is run.

Invariants: names and fields of verbs are the interface between versions of client and server: DO NOT CHANGE them; add
fields with a default. Does not know: how a message is sent (`lakebed.repo.transport.transport`).
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
"""Header of a request to a server: the id of the repository that the client has opened by its name."""

Role = Literal["read", "write", "admin"]
Effort = Literal["look", "write", "compute", "long"]
"""How a server runs a verb: as a short read, a write that waits for the store, a computation, or for minutes."""

Texts = dict[str, str]
Paths = Annotated[list[str], Meta(max_length=PATHS_MAX)]
Amount = Annotated[int, Meta(le=PAGE_COUNT_MAX)]
Milliseconds = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]


class Described(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declaration of a verb.

    Attributes:
        verb_name: the last part of its endpoint's path; the method of the facade has the same name.
        role: the least role that the access key needs.
        effort: how a server runs it.
        gives: the type to which the reply is decoded; None: the reply has no body.
        changes_nothing: whether a client may repeat the request after a lost reply.
        reads_other_stores: `run` takes ``storage_options``, the credentials for stores outside the storage.
        is_large: the message may be as large as one that stages many objects.
        frees_space: it frees data for a collection, or collects. On a full disk it may use the reserve.
        looks_first: it uses records that, unlike branches, still exist for a time after the repository is deleted. So
            1 read before it runs checks if the repository was deleted.
        changes: fields that name what is changed, for the audit log; the first that is set counts.
        author: the field for the author of the change, which only a server knows; None: there is none.
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
        """The name of what is changed; empty: the message does not name it."""
        return next((str(value) for value in (getattr(self, name) for name in self.changes) if value), "")

    def room(self) -> AbstractContextManager[None]:
        """The context to run it in: with the reserve of a full disk if it frees space (`lakebed.objects.reserve`)."""
        return freeing_space() if self.frees_space else nullcontext()

    def with_author(self, name_of: Callable[[str | None], str]) -> Self:
        """Return the message with another author: what `name_of` returns for the message's author."""
        if self.author is None:
            return self
        return msgspec.structs.replace(self, **{self.author: name_of(getattr(self, self.author))})


class Verb(Described, Generic[R], frozen=True):
    """An operation on one repository."""

    def run(self, context: RepositoryContext) -> R:
        """Run the operation. Raises the errors that the facade's method documents."""
        raise NotImplementedError


class ListVerb(Verb[list[Row]], frozen=True):
    """A list, which travels in pages: a subclass has the fields ``after``, the last row before, and ``amount``."""

    amount: Amount = PAGE_COUNT_MAX

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[Row]:
        """Iterate over the rows, lazily, at most `amount`; None: all."""
        raise NotImplementedError

    def run(self, context: RepositoryContext) -> list[Row]:
        """Return one page."""
        return list(self.rows(context, amount=self.amount))

    def fix_moment(self, call: Callable[[Verb[R]], R]) -> ListVerb[Row]:
        """Return a verb for the same list whose pages are all of one moment, if possible. `call` runs a verb."""
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
    """Declare a class as a verb. Arguments as `Described`; by default a verb with role ``read`` changes nothing."""

    def declare(kind: type[V]) -> type[V]:
        kind.verb_name, kind.role, kind.effort, kind.gives = name, role, effort, gives
        kind.changes_nothing = role == "read" if changes_nothing is None else changes_nothing
        kind.changes, kind.author, kind.frees_space = changes, author, frees_space
        kind.summary = (kind.__doc__ or "").strip().split("\n")[0]
        return kind

    return declare


def look_first(kind: type[V]) -> type[V]:
    """Decorate a class that needs `Described.looks_first`."""
    kind.looks_first = True
    return kind


def texts(metadata: Mapping[str, str] | None) -> Texts | None:
    """Metadata in the form of a message: a dictionary."""
    return None if metadata is None else dict(metadata)


def texts_of(name: str, given: Iterable[str]) -> list[str]:
    """Several texts in the form of a message: a list. Raises `InvalidRequest` (``wrong_type``) for a single text."""
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
    """The facts of an open repository. Cost: no request."""
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
