"""`Reference`: read at a branch, tag or commit.

Owns: the reading half of the facade. Invariants: each call shows the state at the moment of the call. An iterator shows
the state at the moment when its first item is requested. A reference holds no resources and may be kept. Each call
checks anew if its name exists.
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
    """A branch, tag or commit, to read. `Repository.ref` makes one. Thread-safe.

    What is staged on a branch is shown for ``branch``, but not for ``branch@`` or with a step such as ``branch~1``.

    Raises:
        InvalidRequest: kind ``invalid_reference``: the text is malformed.

    Every call may raise `NotFound` (``reference_not_found``) if there is nothing of that name, and `Corruption` if
    stored data is damaged.
    """

    def __init__(self, transport: Transport, text: str) -> None:
        parse_reference(text)
        super().__init__(transport)
        self._text = text

    @property
    def text(self) -> str:
        """The reference as it was written."""
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.facts.name!r}, {self._text!r})"

    def __str__(self) -> str:
        return self._text

    def head(self) -> CommitWithId:
        """Return the commit that the reference leads to, with its id.

        Cost: 1 snapshot and about 3 reads of the key-value store.
        """
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
        """Iterate over the commits from the reference backwards, each before its parents. All are of one moment.

        The order is by falling generation; of one generation the later commit comes first.

        Args:
            after: continue behind this commit, the last of an earlier page.
            amount: most commits to return; None: all.
            since_ms: only commits that are not older than this, in Unix milliseconds, UTC.
            stop_at: a reference; its commit is the last.
            first_parent: follow only the first parent of each commit.
            paths: only commits that changed one of these paths, or something below one of `prefixes`. Merges are left
                out, unless `first_parent` is set.
            prefixes: see `paths`.

        Raises:
            NotFound: kind ``reference_not_found``: of this reference or `stop_at`.
            InvalidRequest: a reference, a path, the position or the amount is not valid.
            Corruption: a record or range is damaged.

        Cost: 1 snapshot, and 1 read of the key-value store for each commit. With paths, also the metaranges of each
            commit and its parent, and the ranges that differ around the paths; an indexed commit that cannot have
            changed the paths costs 0.3 us instead. A page costs what it shows. Only behind a commit where this process
            has ended no page lately, the commits before it are read again.
        """
        verb = Log(
            ref=self._text,
            after=after,
            since_ms=since_ms,
            stop_at=stop_at,
            first_parent=first_parent,
            paths=texts_of("paths", paths),
            prefixes=texts_of("prefixes", prefixes),
        )
        return self._transport.rows(verb, amount=amount)

    def blame(self, path: str) -> CommitWithId:
        """Return the commit that made a path what it is here. What is staged does not count.

        Raises:
            NotFound: kind ``path_not_found`` or ``reference_not_found``.
            InvalidRequest: kind ``invalid_path``.

        Cost: for each commit back to the answer, 1 read of the key-value store, and the metaranges and ranges that
            differ. An indexed commit that cannot have changed the path costs 0.1 us instead.
        """
        return self.blame_many([path])[path]

    def blame_many(self, paths: Sequence[str]) -> dict[str, CommitWithId]:
        """Return the commits that made several paths what they are here, by path. As `blame`.

        The index of commits helps for up to 64 paths.
        """
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
        """Iterate over the differences between this reference and another, in the order of paths. Only commits count.

        Args:
            other: the right side.
            kind: ``three_dot``: what `other` changed since the merge base and this reference does not have.
                ``two_dot``: from this reference to `other`, as they are.
            prefix: only paths with this prefix.
            after: only paths that sort behind this one, such as the last path of a page.
            delimiter: fold paths that have it behind the prefix into one common prefix.
            amount: most differences to return; None: all.

        Raises:
            NotFound: kind ``reference_not_found``.
            InvalidRequest: a reference, path or amount is not valid.
            Corruption: a stored record or file is damaged.

        Cost: the ranges in which the two differ; of ``three_dot`` also those in which this reference differs from the
            merge base between the same paths. About 3 us for each path.
        """
        verb = Diff(left=self._text, right=str(other), kind=kind, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(verb, amount=amount)

    def view(self) -> AbstractContextManager[View]:
        """Return one moment of the reference, to read many paths of it: ``with repo.ref("main").view() as view``.

        Raises `InvalidRequest` (``not_over_http``) for a repository behind a server, which keeps no moment open.

        Cost: 1 snapshot and about 3 reads of the key-value store.
        """
        return self._transport.view(self._text)

    def stat(self, path: str) -> Entry:
        """Return what is known of an object, without reading its bytes.

        Raises:
            NotFound: kind ``path_not_found``.
            InvalidRequest: kind ``invalid_path``.

        Cost: 1 snapshot of the key-value store, and at most 1 block of 1 range, which is mostly cached.
        """
        return self._transport.call(Stat(ref=self._text, path=path))

    def stat_many(self, paths: Sequence[str]) -> dict[str, Entry]:
        """Return what is known of many objects, by path, at one moment. Missing objects are left out.

        Raises `InvalidRequest` (``invalid_path``).

        Cost: 1 snapshot of the key-value store, 1 read for each staging token, and the ranges that may hold the paths.
        """
        return self._transport.call(StatMany(ref=self._text, paths=texts_of("paths", paths)))

    def exists(self, path: str) -> bool:
        """Return whether there is an object at a path. Raises `InvalidRequest` (``invalid_path``). Cost: as `stat`."""
        return self._transport.call(Exists(ref=self._text, path=path))

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        """Return the bytes of an object, or of a half-open range of it.

        Raises:
            NotFound: kind ``path_not_found``; ``object_gone`` or ``import_gone``: its bytes are gone.
            InvalidRequest: kind ``invalid_path`` or ``invalid_range``.

        Cost: `stat` and 1 GET. The bytes are in memory; `stream` needs less.
        """
        return self._transport.get(self._text, path, byte_range=byte_range)

    def stream(self, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        """Iterate over the bytes of an object in chunks. As `get`, with one chunk in memory."""
        return self._transport.stream(self._text, path, byte_range=byte_range)

    def open(self, path: str) -> io.BufferedReader:
        """Open an object as a binary file for reading and seeking. The whole file is of one moment.

        That is the moment of this call. If the object is replaced and collected before the first read, it is that of
        the first read. Reads raise as `get`, and so does this call.

        Cost: `stat`, and the reads.
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
        """Return a URL with which anyone can read an object for some time.

        Args:
            path: of the object.
            expires_in_s: seconds; an hour by default.

        Raises as `stat`, and `InvalidRequest` if the store has no such URLs. Cost: as `stat`.
        """
        return self._transport.call(SignedUrl(ref=self._text, path=path, expires_in_s=expires_in_s))

    def list(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Listed]:
        """Iterate over the objects below a prefix, in the order of the bytes of their paths, at one moment.

        Args:
            prefix: ``""`` means all objects.
            after: only paths that sort behind this one, such as the last path of a page.
            delimiter: fold paths that have it behind the prefix into one common prefix, which ends with it.
            amount: most lines to return; None: all.

        Raises:
            InvalidRequest: a path or the amount is not valid.

        Cost: 1 snapshot; about 1 us for each entry.
        """
        verb = ListObjects(ref=self._text, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(verb, amount=amount)

    def download_directory(
        self,
        directory: str | os.PathLike[str],
        prefix: str = "",
        *,
        delete: bool = False,
        dry_run: bool = False,
        progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy every object below a prefix into a local directory, which is created if it is missing.

        Args:
            directory: existing files, and links to files, are replaced if they differ. What a link leads to is read, to
                compare it, and never written.
            prefix: a folder; ``raw`` and ``raw/`` mean the same.
            delete: also delete the files of the directory that are not below the prefix.
            dry_run: report what would be copied and deleted; change nothing.
            progress: called as objects are copied.

        Raises:
            NotFound: kind ``prefix_not_found``: a prefix is given, and there is no object below it.
            InvalidRequest: kind ``not_a_file_name``: a path that no file below the directory can have.
            Conflict: kind ``changed_meanwhile``: an object of a branch was replaced during the copy. Run it again.

        Cost: 1 listing. Each object that differs is read once, and so is each file of the same size.
        """
        return download_directory(self, directory, prefix, delete=delete, dry_run=dry_run, progress=progress)

    def store(self, prefix: str = "") -> ObjectStore:
        """Return an object store of what is at this reference, in which a table or a database can live.

        The store of a branch can be written to. A delete there stages a tombstone; only a collection frees the bytes.

        Args:
            prefix: a folder; the store shows only what is in it.

        Raises:
            NotFound: kind ``reference_not_found``.
            InvalidRequest: the folder is not valid.
        """
        return self._transport.store(self._text, prefix, writes=False)
