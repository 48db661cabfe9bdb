"""`RemoteReference`: reading at a branch, tag or commit behind a server.

Owns: the reading half of the facade over HTTP; methods, arguments, results and errors are those of
`lakebed.repo.reference.Reference`. Invariants: a call that is one request is of one moment. A list of more than
`PAGE_COUNT_MAX` rows is several: its first page is read by the call, each other when it is needed, and of a branch each
shows its own moment; rows are never twice, and what was there all the time is never missed. What a commit or tag holds
does not change, and a log is of the commit at which it began. An open file reads the object that it was opened on,
whatever becomes of its path. Does not know: how a request travels.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import urllib3

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, ObjectStore
from lakebed.repo.data import ranges_file
from lakebed.repo.differences import DiffScope
from lakebed.repo.directories import CopyProgress, CopyReport, download_directory
from lakebed.repo.heads import CommitWithId
from lakebed.repo.model import Difference, Entry
from lakebed.repo.names import parse_reference
from lakebed.repo.remote.client import Client, encoded
from lakebed.repo.remote.store import RemoteStore
from lakebed.repo.staging.listing import Listed

__all__ = ["RemoteReference", "only_local"]


def only_local(what: str) -> NoReturn:
    """Refuse what needs the storage and its records in this process."""
    raise InvalidRequest(
        f"{what} works on the storage itself, and not through a server: open the folder or bucket, or do it there.",
        kind="not_over_http",
    )


class RemoteReference:
    """Reading at a reference; made by `RemoteRepository.ref`. Thread-safe, and can be pickled.

    Args:
        client: of the server.
        repository: its name.
        text: the reference.

    Raises:
        InvalidRequest: kind ``invalid_reference``.

    Every call raises what the same call of `lakebed.repo.reference.Reference` does, and `Unavailable`.
    """

    def __init__(self, client: Client, repository: str, text: str) -> None:
        parse_reference(text)
        self._client = client
        self._repository = repository
        self._text = text

    @property
    def text(self) -> str:
        """The reference, as it was written."""
        return self._text

    @property
    def repository_url(self) -> str:
        """``http://host:port/repository``."""
        return f"{self._client.endpoint}/{self._repository}"

    @property
    def home(self) -> NoReturn:
        """Not here: the server has it. Raises `InvalidRequest` (``not_over_http``)."""
        only_local("A repository's home")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._repository!r}, {self._text!r})"

    def __str__(self) -> str:
        return self._text

    def _call(self, verb: str, **message: Any) -> Any:
        return self._client.call(verb, repository=self._repository, **message)

    # ---- history

    def head(self) -> CommitWithId:
        """The commit that it leads to, and its id. Cost: 1 request."""
        found: CommitWithId = self._call("head", ref=self._text)
        return found

    def log(
        self,
        *,
        after: str | None = None,
        amount: int | None = None,
        since_ms: int | None = None,
        stop_at: str | None = None,
        first_parent: bool = False,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
    ) -> Iterator[CommitWithId]:
        """Commits from here backwards, each before its parents. As `Reference.log`. Cost: 1 request and 1 a page."""
        return self._client.rows(
            "log",
            repository=self._repository,
            ref=self.head().id,
            after=after,
            amount=amount,
            since_ms=since_ms,
            stop_at=stop_at,
            first_parent=first_parent,
            paths=list(paths),
            prefixes=list(prefixes),
        )

    def blame(self, path: str) -> CommitWithId:
        """The commit that made a path what it is here. As `Reference.blame`. Cost: 1 request."""
        return self.blame_many([path])[path]

    def blame_many(self, paths: Sequence[str]) -> dict[str, CommitWithId]:
        """The same for many paths at once, by path. Cost: 1 request."""
        found: dict[str, CommitWithId] = self._call("blame_many", ref=self._text, paths=list(paths))
        return found

    def diff(
        self,
        other: str | RemoteReference,
        *,
        kind: DiffScope = "three_dot",
        prefix: str = "",
        after: str = "",
        delimiter: str = "",
        amount: int | None = None,
    ) -> Iterator[Difference]:
        """How another reference differs from this one. As `Reference.diff`. Cost: 1 request a page."""
        return self._client.rows(
            "diff",
            repository=self._repository,
            left=self._text,
            right=str(other),
            kind=kind,
            prefix=prefix,
            after=after,
            delimiter=delimiter,
            amount=amount,
        )

    # ---- objects

    def view(self) -> NoReturn:
        """Not here: a view keeps one moment open, and no server keeps one for a client. Raises `InvalidRequest`."""
        only_local("A view of one moment")

    def stat(self, path: str) -> Entry:
        """What is known of an object without reading it. As `Reference.stat`. Cost: 1 request."""
        found: Entry = self._call("stat", ref=self._text, path=path)
        return found

    def stat_many(self, paths: Sequence[str]) -> dict[str, Entry]:
        """What is known of many objects, of one moment. As `Reference.stat_many`. Cost: 1 request."""
        found: dict[str, Entry] = self._call("stat_many", ref=self._text, paths=list(paths))
        return found

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path. Cost: 1 request."""
        found: bool = self._call("exists", ref=self._text, path=path)
        return found

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        """An object's bytes, or a half-open range of them. As `Reference.get`. Cost: 1 request. Memory: the bytes."""
        reply = self._read(path, byte_range=byte_range)
        with self._client.reading(reply):
            return reply.read()

    def stream(self, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        """An object's bytes in chunks, for what is large. As `Reference.stream`. Cost: 1 request. Memory: one chunk."""
        reply = self._read(path, byte_range=byte_range)

        def chunks() -> Iterator[bytes]:
            with self._client.reading(reply):
                while chunk := reply.read(STREAM_CHUNK_BYTES):
                    yield chunk

        return chunks()

    def open(self, path: str) -> io.BufferedReader:
        """An object as a binary file that can be read and sought. Cost: `stat`; reads as they come."""
        entry = self.stat(path)

        def read_range(byte_range: ByteRange) -> bytes:
            return self.read_entry(path, entry, byte_range=byte_range)

        return ranges_file(read_range, size_bytes=entry.size_bytes)

    def read_entry(self, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> bytes:
        """The bytes that an entry of a path named when it was looked up, or a range of them.

        Raises:
            NotFound: kind ``object_gone``, ``import_gone``: they are not there any more.
            Conflict: kind ``object_changed``: the path of an imported object has another entry now.
            InvalidRequest: kind ``invalid_range``.
        Cost: 1 request. Memory: the bytes.
        """
        reply = self._read(path, byte_range=byte_range, entry=entry)
        with self._client.reading(reply):
            return reply.read()

    def _read(self, path: str, *, byte_range: ByteRange | None, entry: Entry | None = None) -> urllib3.BaseHTTPResponse:
        query: dict[str, Any] = {"ref": self._text, "path": path}
        if byte_range is not None:
            query |= {"start": byte_range[0], "end": byte_range[1]}
        if entry is not None:
            query |= {"address": entry.address, "size": entry.size_bytes}
        place = f"/repositories/{encoded(self._repository)}/verbs/read"
        return self._client.request("GET", place, query=query, again=True, preload=False)

    def signed_url(self, path: str, *, expires_in_s: int = 3600) -> str:
        """A URL of the storage that lets whoever has it read an object for a while. As `Reference.signed_url`."""
        found: str = self._call("signed_url", ref=self._text, path=path, expires_in_s=expires_in_s)
        return found

    def list(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Listed]:
        """What is here below a prefix, in the order of paths' bytes. As `Reference.list`. Cost: 1 request a page."""
        return self._client.rows(
            "list",
            repository=self._repository,
            ref=self._text,
            prefix=prefix,
            after=after,
            delimiter=delimiter,
            amount=amount,
        )

    def download_directory(
        self,
        directory: str | os.PathLike[str],
        prefix: str = "",
        *,
        delete: bool = False,
        dry_run: bool = False,
        progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy every object below a prefix into a local directory.

        Arguments and errors as `lakebed.repo.directories.download_directory`.
        """
        return download_directory(self, directory, prefix, delete=delete, dry_run=dry_run, progress=progress)

    def store(self, prefix: str = "") -> ObjectStore:
        """An object store of what is here, read through the server. As `Reference.store`, but to read only.

        A branch's own store, to write too, is `RemoteBranch.store`. Cost: 1 or 2 requests.
        """
        try:
            self._call("status", branch=self._text, amount=1)
        except (NotFound, InvalidRequest):  # not a branch's name: what is meant now is a commit, which never changes
            return RemoteStore(RemoteReference(self._client, self._repository, self.head().id), prefix)
        return RemoteStore(RemoteReference(self._client, self._repository, self._text), prefix)
