"""`LocalObjects`: the objects of a reference of a repository that this process has open, for a `BranchStore`.

Invariants: a branch is read as it is at each call. Any other reference is read as the commit that it resolved to first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.port import ByteRange
from lakebed.repo.heads.write import delete_many, path_exists, stage, stage_if_absent, stage_many
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.objects.task_store import ObjectBytes, StorageBytes
from lakebed.repo.records.context import RepositoryContext, storage_ms
from lakebed.repo.records.protection import check_writable
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.refs import resolve
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import View, branch_view, look_again, rows_of_moment
from lakebed.repo.transport.branch_store import BranchStore, ReferenceObjects, with_retries
from lakebed.runtime import Environment

R = TypeVar("R")


def local_store(context: RepositoryContext, reference: str, folder: str = "") -> BranchStore:
    """A store of a reference.

    Args:
        reference: a branch's name, to read and write it; or a tag, a commit, ``main@`` or ``main~2``, to read the
            commit that it means now.
        folder: paths outside it are invisible.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: the reference or the folder is invalid.
    """
    return BranchStore(LocalObjects(context, reference), folder)


class LocalObjects(ReferenceObjects):
    """The objects of a reference. Arguments and errors as `local_store`."""

    def __init__(self, context: RepositoryContext, reference: str) -> None:
        resolved = resolve(context, reference)
        self._context = context
        self._reference = reference
        self._branch = resolved.name if resolved.branch is not None else None
        self._metarange = resolved.commit.metarange

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            f"{self.url} belongs to the process that has its repository open. Send `for_tasks()` to other "
            "processes, or give them a repository behind a server, whose stores can be pickled.",
            kind="not_picklable",
        )

    @property
    def url(self) -> str:
        """``lakefs://repository/reference``: how the repository's clients name it."""
        return f"lakefs://{self._context.name}/{self._reference}"

    @property
    def environment(self) -> Environment:
        return self._context.environment

    @property
    def is_streaming(self) -> bool:
        return True

    @contextmanager
    def _view(self) -> Iterator[View]:
        context, branch = self._context, self._branch
        with context.key_value.snapshot() as snapshot:
            if branch is None:
                yield View(context, snapshot=snapshot, base=self._metarange)
                return
            record, _ = load_branch(context, branch, snapshot=snapshot)
            yield branch_view(context, record, snapshot=snapshot)

    def _read(self, read: Callable[[View], R]) -> R:
        def look() -> R:
            with self._view() as view:
                return read(view)

        return look_again(look)

    def stat(self, path: str) -> Entry:
        entry = self._read(lambda view: view.get(path))
        if entry is None:
            raise NotFound(f"There is no {path!r} in {self.url}.", kind="path_not_found", path=path)
        return entry

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        return self._read(lambda view: view.get_many(paths))

    def rows(self, prefix: str, *, after: str = "", delimiter: str = "") -> Iterator[Listed]:
        def rows() -> Iterator[Listed]:
            with self._view() as view:
                yield from view.list(prefix, after=after, delimiter=delimiter)

        return rows_of_moment(rows)

    def read(self, path: str, *, byte_range: ByteRange | None) -> Buffer:
        def read(entry: Entry) -> Buffer:
            _check_range(byte_range, entry, path)
            return data.read(self._context, entry, byte_range=byte_range)

        return data.read_found(lambda: self.stat(path), read)

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        def read(entry: Entry) -> list[Buffer]:
            for byte_range in ranges:
                _check_range(byte_range, entry, path)
            return data.read_ranges(self._context, entry, ranges=ranges)

        return data.read_found(lambda: self.stat(path), read)

    def stream(self, path: str, *, byte_range: ByteRange | None, chunk_bytes: int) -> Iterator[Buffer]:
        def read(entry: Entry) -> Iterator[Buffer]:
            _check_range(byte_range, entry, path)
            return data.stream(self._context, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)

        return data.read_found(lambda: self.stat(path), read)

    def check_writable(self, path: str | None = None) -> None:
        self._require_branch()
        if path is not None:
            check_path(path, writing=True)

    def _require_branch(self) -> str:
        """The branch, if it may be written. Checked before bytes are uploaded, and again when they are staged."""
        if self._branch is None:
            raise InvalidRequest(
                f"{self.url} shows a commit, which never changes: write to a branch.",
                kind="read_only",
                reference=self._reference,
            )
        check_writable(self._context, self._branch)
        return self._branch

    def put(self, path: str, body: Buffer, *, only_if_absent: bool, requires: Sequence[str] = ()) -> None:
        if only_if_absent:
            self._check_free(path)
        self._stage(path, data.upload(self._context, body), only_if_absent=only_if_absent, requires=requires)

    def put_stream(self, path: str, chunks: Iterable[Buffer], *, only_if_absent: bool) -> int:
        entry = data.upload(self._context, chunks)
        self._stage(path, entry, only_if_absent=only_if_absent)
        return entry.size_bytes

    def copy(self, source: str, path: str, *, only_if_absent: bool) -> None:
        def copy(entry: Entry) -> Entry:
            if only_if_absent:
                self._check_free(path)
            return data.copy(self._context, entry)

        self._stage(path, data.read_found(lambda: self.stat(source), copy), only_if_absent=only_if_absent)

    def stage_many(self, entries: Sequence[tuple[str, Entry]]) -> None:
        branch = self._require_branch()
        self._with_retries(lambda: stage_many(self._context, branch=branch, entries=entries))

    def delete_many(self, paths: Sequence[str]) -> None:
        branch = self._require_branch()
        self._with_retries(lambda: delete_many(self._context, branch=branch, paths=paths))

    def _check_free(self, path: str) -> None:
        if self._read(lambda view: view.get(path)) is not None:
            raise path_exists(self._context, self._require_branch(), path)

    def _stage(self, path: str, entry: Entry, *, only_if_absent: bool, requires: Sequence[str] = ()) -> None:
        branch = self._require_branch()
        write = partial(stage_if_absent, requires=requires) if only_if_absent else stage
        self._with_retries(lambda: write(self._context, branch=branch, path=path, entry=entry))

    def _with_retries(self, request: Callable[[], object]) -> None:
        with_retries(request, url=self.url, environment=self.environment)

    def object_url(self, entry: Entry) -> str:
        return data.physical_url(self._context, entry)

    def signed_url(self, path: str, *, expires_in_s: int) -> str:
        return data.sign_get(self._context, self.stat(path), expires_in_s=expires_in_s)

    def storage_ms(self) -> int:
        return storage_ms(self._context.store)

    def task_bytes(self, folder: str, *, writes: bool) -> ObjectBytes:
        return StorageBytes(self._context.store, self._context.foreign)

    @property
    def inside_url(self) -> str:
        return self._context.store.root_url


def _check_range(byte_range: ByteRange | None, entry: Entry, path: str) -> None:
    if byte_range is not None and not 0 <= byte_range[0] < min(byte_range[1], entry.size_bytes):
        raise InvalidRequest(
            f"bytes {byte_range[0]} to {byte_range[1]} of {path} were asked for, and it has {entry.size_bytes}: a "
            "range starts before its end and holds at least a byte",
            kind="invalid_range",
            path=path,
            size_bytes=entry.size_bytes,
        )
