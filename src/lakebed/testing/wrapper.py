"""The common part of all store wrappers: every operation of the port goes through one method.

Owns: `Call` and `StoreWrapper`.

Invariants:
- A wrapper is an `ObjectStore`, so wrappers can be nested. `sub` of a wrapper is a view of the same wrapper, with the
  same state.
- A `Call` names paths from the wrapper's root, whichever view made it.
- A listing is one call for each page, a stream one for each chunk, a delete one for a thousand paths.
- `url`, `signed_url`, `root_url` and `count` send no request to the store and are not intercepted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, Self, TypeVar

from typing_extensions import Buffer

from lakebed.objects.open import open_elsewhere
from lakebed.objects.path import join_path
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, ObjectStore, RequestCounts
from lakebed.objects.streaming import stream_ranges

R = TypeVar("R")

CallKind = Literal["get", "get_ranges", "head", "put", "list", "list_with_delimiter", "delete", "copy", "sync"]

_WRITES = {"put", "delete", "copy", "sync"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the port, as a wrapper sees it."""

    kind: CallKind
    path: str
    """The object or folder; the first of several paths; the target of a copy."""
    paths: tuple[str, ...] = ()
    """All paths of a delete or sync; source and target of a copy."""
    size_bytes: int = 0
    create_only: bool = False
    durable: bool = True

    @property
    def changes(self) -> bool:
        """Whether the call can change what is stored."""
        return self.kind in _WRITES

    def __str__(self) -> str:
        """Such as ``put! snapshot/snapshot-3`` (create-only) or ``delete tag/tag-a (+2)``."""
        more = f" (+{len(self.paths) - 1})" if len(self.paths) > 1 else ""
        return f"{self.kind}{'!' if self.create_only else ''} {self.path}{more}"


class StoreWrapper(ObjectStore):
    """An `ObjectStore` that hands every call to `intercept`. Subclasses override that one method.

    Args:
        page_count: names a listing takes in one call.
    """

    def __init__(self, inner: ObjectStore, *, page_count: int = 1000) -> None:
        self._inner = inner
        self._folder = ""
        self._page_count = page_count

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make `call` by calling `perform`, or not, or twice, or fail before or after it."""
        return perform()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def inner(self) -> ObjectStore:
        """The wrapped store, to look at what is really there."""
        return self._inner

    @property
    def root_url(self) -> str:
        return self._inner.root_url

    @property
    def is_versioned(self) -> bool:
        return self._inner.is_versioned

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        return self.intercept(Call("get", self._at(path)), lambda: self._inner.get(path, byte_range=byte_range))

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return self.intercept(Call("get_ranges", self._at(path)), lambda: self._inner.get_ranges(path, ranges))

    def head(self, path: str) -> ObjectMeta:
        return self.intercept(Call("head", self._at(path)), lambda: self._inner.head(path))

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        content = bytes(body)  # the call may land after its caller has reused the buffer
        call = Call("put", self._at(path), size_bytes=len(content), create_only=create_only, durable=durable)
        self.intercept(call, lambda: self._inner.put(path, content, create_only=create_only, durable=durable))

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        # One put call. Its chunks are kept, because the call may land when they no longer exist.
        content = b"".join(bytes(chunk) for chunk in chunks)
        call = Call("put", self._at(path), size_bytes=len(content), create_only=create_only, durable=durable)
        return self.intercept(
            call, lambda: self._inner.put_stream(path, [content], create_only=create_only, durable=durable)
        )

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        call = Call("list", self._at(prefix))
        while True:
            page = self.intercept(call, partial(self._page, prefix, start_after))
            yield from page
            if len(page) < self._page_count:
                return
            start_after = page[-1].path

    def _page(self, prefix: str, start_after: str | None) -> Sequence[ObjectMeta]:
        return tuple(islice(self._inner.list(prefix, start_after=start_after), self._page_count))

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        call = Call("list_with_delimiter", self._at(prefix))
        return self.intercept(call, lambda: self._inner.list_with_delimiter(prefix))

    def delete(self, paths: Iterable[str]) -> None:
        remaining = iter(paths)
        while batch := list(islice(remaining, 1000)):
            full = tuple(map(self._at, batch))
            self.intercept(Call("delete", full[0], full), partial(self._inner.delete, batch))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        full = (self._at(source), self._at(target))
        call = Call("copy", full[1], full, create_only=create_only)
        self.intercept(call, lambda: self._inner.copy(source, target, create_only=create_only))

    def sync(self, paths: Iterable[str]) -> None:
        path_list = list(paths)
        if path_list:
            full = tuple(map(self._at, path_list))
            self.intercept(Call("sync", full[0], full), lambda: self._inner.sync(path_list))

    def url(self, path: str) -> str:
        return self._inner.url(path)

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        return self._inner.signed_url(path, expires_in_s=expires_in_s, method=method)

    def sub(self, prefix: str) -> Self:
        view = copy.copy(self)
        view._inner = self._inner.sub(prefix)
        view._folder = join_path(self._folder, prefix.removesuffix("/"))
        return view

    def elsewhere(self, url: str) -> Self:
        """See `OpensElsewhere.elsewhere`. The other root shares this wrapper's state; its calls name whole URLs."""
        view = copy.copy(self)
        view._inner = open_elsewhere(self._inner, url)
        view._folder = url
        return view

    def count(self) -> AbstractContextManager[RequestCounts]:
        return self._inner.count()

    def _at(self, path: str) -> str:
        return join_path(self._folder, path)
