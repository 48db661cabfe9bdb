"""`Reference`: reading at a branch, tag or commit.

Owns: the reading half of the facade. Invariants: each call is of one moment, the one at which it is made; an iterator
is of the moment at which its first item is asked for, and stays there. A reference holds nothing and may be kept;
whether what it names is there shows at each call.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from lakebed.arguments import check_arguments
from lakebed.errors import NotFound
from lakebed.objects.port import ByteRange, ObjectStore
from lakebed.repo.directories import CopyProgress, CopyReport, download_directory
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.model import Difference, Entry
from lakebed.repo.model.names import parse_reference
from lakebed.repo.objects.data import find_newer, ranges_file
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import View
from lakebed.repo.transport.transport import OverTransport, Transport
from lakebed.repo.verbs.differences import Diff, DiffScope
from lakebed.repo.verbs.log import Log
from lakebed.repo.verbs.message import texts_of
from lakebed.repo.verbs.reading import BlameMany, Exists, Head, ListObjects, SignedUrl, Stat, StatMany


@check_arguments
class Reference(OverTransport):
    """Reading at a reference; made by `Repository.ref`. Thread-safe.

    What is staged on a branch is seen at ``branch``, and not at ``branch@`` or with any step such as ``branch~1``.

    Raises:
        InvalidRequest: kind ``invalid_reference``: it is malformed.

    Every call raises `NotFound` (``reference_not_found``) when nothing has that name any more, and `Corruption` when
    what is stored is damaged.
    """

    def __init__(self, transport: Transport, text: str) -> None:
        parse_reference(text)
        super().__init__(transport)
        self._text = text

    @property
    def text(self) -> str:
        """The reference, as it was written."""
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.facts.name!r}, {self._text!r})"

    def __str__(self) -> str:
        return self._text

    def head(self) -> CommitWithId:
        """The commit that it leads to, and its id. Cost: 1 snapshot and about 3 reads of the key-value store."""
        return self._transport.call(Head(ref=self._text))

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
        """Commits from here backwards, each before its parents. As `lakebed.repo.verbs.log.Log`."""
        asked = Log(
            ref=self._text,
            after=after,
            since_ms=since_ms,
            stop_at=stop_at,
            first_parent=first_parent,
            paths=texts_of("paths", paths),
            prefixes=texts_of("prefixes", prefixes),
        )
        return self._transport.rows(asked, amount=amount)

    def blame(self, path: str) -> CommitWithId:
        """The commit that made a path what it is here; what is staged does not matter.

        Raises:
            NotFound: kind ``path_not_found``.
        Cost: as `lakebed.repo.heads.blame.blame`.
        """
        return self.blame_many([path])[path]

    def blame_many(self, paths: Sequence[str]) -> dict[str, CommitWithId]:
        """The same for many paths at once, by path. As `blame`."""
        return self._transport.call(BlameMany(ref=self._text, paths=texts_of("paths", paths)))

    def diff(
        self,
        other: str | Reference,
        *,
        kind: DiffScope = "three_dot",
        prefix: str = "",
        after: str = "",
        delimiter: str = "",
        amount: int | None = None,
    ) -> Iterator[Difference]:
        """How another reference differs from this one; only what is committed counts.

        Arguments and errors as `lakebed.repo.verbs.differences.Diff`.
        """
        asked = Diff(left=self._text, right=str(other), kind=kind, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(asked, amount=amount)

    def view(self) -> AbstractContextManager[View]:
        """What is here at one moment, to read many paths of it: ``with repo.ref("main").view() as view``.

        Raises `InvalidRequest` (``not_over_http``) for a repository behind a server, which keeps no moment open.
        Cost: 1 snapshot and about 3 reads of the key-value store.
        """
        return self._transport.view(self._text)

    def stat(self, path: str) -> Entry:
        """What is known of an object without reading it.

        Raises:
            NotFound: kind ``path_not_found``.
            InvalidRequest: kind ``invalid_path``.
        Cost: 1 snapshot of the key-value store; at most 1 block of 1 range, mostly cached.
        """
        return self._transport.call(Stat(ref=self._text, path=path))

    def stat_many(self, paths: Sequence[str]) -> dict[str, Entry]:
        """What is known of many objects, of one moment, by path; those that are not there are left out.

        Raises `InvalidRequest` (``invalid_path``). Cost: 1 snapshot of the key-value store, 1 read a staging token for
        all paths together, and the ranges that may hold them.
        """
        return self._transport.call(StatMany(ref=self._text, paths=texts_of("paths", paths)))

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path. Raises `InvalidRequest` (``invalid_path``). Cost: as `stat`."""
        return self._transport.call(Exists(ref=self._text, path=path))

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        """An object's bytes, or a half-open range of them.

        Raises:
            NotFound: kind ``path_not_found``; ``object_gone``, ``import_gone``: its bytes are not there any more.
            InvalidRequest: kind ``invalid_path``, ``invalid_range``.
        Cost: `stat` and 1 GET. Memory: the bytes.
        """
        return self._transport.get(self._text, path, byte_range=byte_range)

    def stream(self, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        """An object's bytes in chunks, for what is large. As `get`; memory: one chunk."""
        return self._transport.stream(self._text, path, byte_range=byte_range)

    def open(self, path: str) -> io.BufferedReader:
        """An object as a binary file that can be read and sought: the whole file is of one moment.

        That is the call's, and when the object is replaced and collected before anything of the file was read, or its
        end was sought, that of the first read. Raises as `get`, reads too. Cost: `stat`; reads as they come.
        """
        entry = self.stat(path)

        def read_range(byte_range: ByteRange) -> bytes:
            return self._transport.read_entry(self._text, path, entry, byte_range=byte_range)

        def look_again(gone: NotFound) -> int:
            nonlocal entry
            entry = find_newer(lambda: self.stat(path), entry, gone=gone)
            return entry.size_bytes

        return ranges_file(read_range, size_bytes=entry.size_bytes, look_again=look_again)

    def signed_url(self, path: str, *, expires_in_s: int = 3600) -> str:
        """A URL with which anyone may read an object for a while.

        Raises as `stat`, and `InvalidRequest` where the store has no such URLs. Cost: `stat`.
        """
        return self._transport.call(SignedUrl(ref=self._text, path=path, expires_in_s=expires_in_s))

    def list(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Listed]:
        """What is here below a prefix, in the order of paths' bytes, lazily, of one moment.

        Args:
            after: only what sorts behind this; the last path of a page, to continue with the next.
            delimiter: fold paths that hold it behind the prefix into one common prefix, up to and with it.
            amount: at most so many; None: all.

        Raises:
            InvalidRequest: a path or the amount is invalid.
        Cost: 1 snapshot; about 1 us an entry.
        """
        asked = ListObjects(ref=self._text, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(asked, amount=amount)

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
        """An object store of what is here, so that a table, or whatever is written against that port, can live in it.

        Of a branch it can be written to: deletes stage tombstones, and bytes come back by a collection only.

        Args:
            prefix: a folder; what is outside of it is not seen.

        Raises:
            NotFound: kind ``reference_not_found``.
            InvalidRequest: the folder is invalid.
        """
        return self._transport.store(self._text, prefix, writes=False)
