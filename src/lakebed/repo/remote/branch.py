"""`RemoteBranch`: a branch behind a server, to read and write.

Owns: the writing half of the facade over HTTP; methods, arguments, results and errors are those of
`lakebed.repo.branch.Branch`. Invariants: what a call acknowledged is durable on the server's side; a large body is sent
only after the server said that it would be taken, and a few megabytes of it are held; who commits is the access key,
unless an administrator names somebody else. Does not know: how a request travels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from typing_extensions import Buffer

from lakebed.objects.port import ObjectStore
from lakebed.objects.streaming import take_first
from lakebed.repo import data
from lakebed.repo.branch import Content, chunks_of
from lakebed.repo.committed.merge import Strategy
from lakebed.repo.compact import Compaction
from lakebed.repo.directories import CopyProgress, CopyReport, upload_directory
from lakebed.repo.heads import CommitWithId
from lakebed.repo.importing import Import, ImportSource
from lakebed.repo.model import Difference, Entry
from lakebed.repo.names import check_branch_name, check_path
from lakebed.repo.remote.client import Client, encoded, read_reply
from lakebed.repo.remote.columns import ARROW_STREAM, columns_of, stream_of
from lakebed.repo.remote.reference import RemoteReference, only_local
from lakebed.repo.remote.store import RemoteStore

__all__ = ["RemoteBranch"]

_SMALL_BYTES: Final = 256 << 10
"""A body up to this size is sent at once, without asking first whether it would be taken."""
_PIECE_BYTES: Final = 1 << 20


class RemoteBranch(RemoteReference):
    """A branch; made by `RemoteRepository.branch`. Thread-safe, and can be pickled.

    Args:
        client: of the server.
        repository: its name.
        name: the branch's.

    Raises:
        InvalidRequest: kind ``invalid_branch_name``.

    Every call raises what the same call of `lakebed.repo.branch.Branch` does; `Unavailable`: nothing happened;
    `OutcomeUnknown`: the answer to a write was lost.
    """

    def __init__(self, client: Client, repository: str, name: str) -> None:
        super().__init__(client, repository, check_branch_name(name))

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._text

    @property
    def commit_id(self) -> str:
        """The id of the commit at its head, now. Raises `NotFound`. Cost: 1 request."""
        return self.head().id

    # ---- staging

    def put(
        self,
        path: str,
        content: Content,
        *,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
        only_if_absent: bool = False,
    ) -> Entry:
        """Write an object. As `Branch.put`. Cost: 1 request, of a large body 2. Memory: a few megabytes."""
        check_path(path, writing=True)
        return self._send(content, path, content_type, metadata, only_if_absent=only_if_absent)

    def upload(
        self,
        content: Content,
        *,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Upload an object's bytes, and stage nothing. As `Branch.upload`. Cost: 1 request, of a large body 2."""
        return self._send(content, None, content_type, metadata)

    def _send(
        self,
        content: Content,
        path: str | None,
        content_type: str,
        metadata: Mapping[str, str] | None,
        *,
        only_if_absent: bool = False,
    ) -> Entry:
        says = {
            "path": path,
            "content_type": content_type,
            "metadata": data.check_metadata(metadata, content_type=content_type),
            "only_if_absent": only_if_absent,
        }
        line = msgspec.json.encode(says) + b"\n"
        chunks = chunks_of(content)
        whole = data.whole_body(chunks)
        body = take_first(cast(Iterable[Buffer], chunks), bytes_max=_SMALL_BYTES) if whole is None else whole
        if isinstance(body, bytearray | memoryview) and len(body) <= _SMALL_BYTES:
            return self._put(line + body)
        self._put(line, only_ask=True)
        return self._put(_lined(line, body))

    def _put(self, body: bytes | Iterator[Buffer], *, only_ask: bool = False) -> Entry:
        reply = self._client.request(
            "POST",
            f"/repositories/{encoded(self._repository)}/verbs/put",
            body,
            headers={"Content-Type": "application/octet-stream"},
            query={"branch": self._text, **({"only_ask": True} if only_ask else {})},
            read_s=None,
        )
        found: Entry = read_reply(reply.data, Entry | None)
        return found

    def check_put(self, path: str, *, only_if_absent: bool = False) -> None:
        """Raise what `put` would raise before it needs the bytes. As `Branch.check_put`. Cost: 1 request."""
        check_path(path, writing=True)
        self._put(msgspec.json.encode({"path": path, "only_if_absent": only_if_absent}) + b"\n", only_ask=True)

    def store(self, prefix: str = "") -> ObjectStore:
        """An object store of this branch, read and written through the server. As `Branch.store`. Cost: 1 request."""
        self.head()
        return RemoteStore(self, prefix)

    def upload_directory(
        self,
        directory: str | os.PathLike[str],
        prefix: str = "",
        *,
        delete: bool = False,
        dry_run: bool = False,
        progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy every file below a local directory here, uncommitted, in one change.

        Arguments and errors as `lakebed.repo.directories.upload_directory`.
        """
        return upload_directory(self, directory, prefix, delete=delete, dry_run=dry_run, progress=progress)

    def link(
        self,
        path: str,
        url: str,
        *,
        checksum: str | None = None,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
        only_if_absent: bool = False,
    ) -> Entry:
        """Stage an object whose bytes somebody else has put somewhere. As `Branch.link`. Cost: 1 request."""
        found: Entry = self._call(
            "link",
            branch=self._text,
            path=path,
            url=url,
            checksum=checksum,
            content_type=content_type,
            metadata=data.check_metadata(metadata, content_type=content_type),
            only_if_absent=only_if_absent,
        )
        return found

    def stage_many(self, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
        """Stage many objects whose bytes are there already, in one atomic change. As `Branch.stage_many`.

        Cost: 1 request, with about 150 bytes an entry.
        """
        reply = self._client.request(
            "POST",
            f"/repositories/{encoded(self._repository)}/verbs/stage_many",
            stream_of(columns_of(entries)),
            headers={"Content-Type": ARROW_STREAM},
            query={"branch": self._text},
            read_s=None,
        )
        found: int = read_reply(reply.data, int)
        return found

    def delete(self, path: str) -> bool:
        """Delete an object; whether it was there. As `Branch.delete`. Cost: 1 request."""
        return self.delete_many([path]) == 1

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete many objects in one atomic change; how many of them were there. Cost: 1 request."""
        found: int = self._call("delete_many", branch=self._text, paths=list(paths))
        return found

    def delete_prefix(self, prefix: str) -> bool:
        """Delete everything below a prefix; whether anything was there. As `Branch.delete_prefix`. Cost: 1 request."""
        found: bool = self._call("delete_prefix", branch=self._text, prefix=prefix)
        return found

    def copy(self, source: str, path: str, *, ref: str | RemoteReference | None = None) -> Entry:
        """Copy an object, its bytes included, on the server's side. As `Branch.copy`. Cost: 1 request."""
        found: Entry = self._call(
            "copy", branch=self._text, source=source, path=path, ref=None if ref is None else str(ref)
        )
        return found

    def status(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Difference]:
        """What is uncommitted, in the order of paths. As `Branch.status`. Cost: 1 request a page."""
        return self._client.rows(
            "status",
            repository=self._repository,
            branch=self._text,
            prefix=prefix,
            after=after,
            delimiter=delimiter,
            amount=amount,
        )

    def is_dirty(self) -> bool:
        """Whether anything is uncommitted. Cost: 1 request."""
        return next(self.status(amount=1), None) is not None

    # ---- commits

    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        paths: Iterable[str] | None = None,
        prefixes: Iterable[str] | None = None,
        allow_empty: bool = False,
        created_at_ms: int | None = None,
    ) -> CommitWithId:
        """Commit what is staged, or a part of it. As `Branch.commit`. Cost: 1 request."""
        return self._move(
            "commit",
            message=message,
            metadata=_texts(metadata),
            committer=committer,
            paths=None if paths is None else list(paths),
            prefixes=None if prefixes is None else list(prefixes),
            allow_empty=allow_empty,
            created_at_ms=created_at_ms,
        )

    def merge(
        self,
        source: str | RemoteReference,
        *,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        strategy: Strategy | None = None,
        squash: bool = False,
        prefix: str = "",
        allow_empty: bool = False,
    ) -> CommitWithId:
        """Merge what another reference has committed into this branch. As `Branch.merge`. Cost: 1 request."""
        return self._move(
            "merge",
            source=str(source),
            message=message,
            metadata=_texts(metadata),
            committer=committer,
            strategy=strategy,
            squash=squash,
            prefix=prefix,
            allow_empty=allow_empty,
        )

    def revert(
        self,
        ref: str | RemoteReference,
        *,
        parent_number: int | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        strategy: Strategy | None = None,
        allow_empty: bool = False,
    ) -> CommitWithId:
        """Undo one commit's changes in a new commit. As `Branch.revert`. Cost: 1 request."""
        return self._move(
            "revert",
            ref=str(ref),
            parent_number=parent_number,
            message=message,
            metadata=_texts(metadata),
            committer=committer,
            strategy=strategy,
            allow_empty=allow_empty,
        )

    def cherry_pick(
        self,
        ref: str | RemoteReference,
        *,
        parent_number: int | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        strategy: Strategy | None = None,
        allow_empty: bool = False,
    ) -> CommitWithId:
        """Make one commit's changes again here. As `Branch.cherry_pick`. Cost: 1 request."""
        return self._move(
            "cherry_pick",
            ref=str(ref),
            parent_number=parent_number,
            message=message,
            metadata=_texts(metadata),
            committer=committer,
            strategy=strategy,
            allow_empty=allow_empty,
        )

    def rebase(
        self, onto: str | RemoteReference, *, committer: str | None = None, strategy: Strategy | None = None
    ) -> CommitWithId:
        """Make this branch's own commits again upon another reference. As `Branch.rebase`. Cost: 1 request."""
        return self._move("rebase", onto=str(onto), committer=committer, strategy=strategy)

    def reset(self, *, path: str | None = None, prefix: str | None = None) -> CommitWithId:
        """Give up what is uncommitted: everything, one path, or below a prefix. As `Branch.reset`. Cost: 1 request."""
        return self._move("reset", path=path, prefix=prefix)

    def hard_reset(self, ref: str | RemoteReference, *, force: bool = False) -> CommitWithId:
        """Let the branch go to another commit. As `Branch.hard_reset`. Cost: 1 request."""
        return self._move("hard_reset", ref=str(ref), force=force)

    def _move(self, verb: str, **message: Any) -> CommitWithId:
        made: CommitWithId = self._call(verb, branch=self._text, **message)
        return made

    def import_objects(
        self,
        sources: Sequence[ImportSource],
        *,
        message: str = "Import objects",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        replace: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Import:
        """Make objects of another place entries of this branch, in one commit. As `Branch.import_objects`.

        The server reads the other place, with its own credentials: `storage_options` cannot be given here.
        Cost: 1 request, for as long as the import takes.
        """
        if storage_options:
            only_local("An import with credentials of its own")
        found: Import = self._call(
            "import_objects",
            branch=self._text,
            sources=list(sources),
            message=message,
            metadata=_texts(metadata),
            committer=committer,
            replace=replace,
        )
        return found

    def compact(self, *, force: bool = True) -> Compaction:
        """Make reads of what is staged as fast as reads of a commit. As `Branch.compact`. Cost: 1 request."""
        found: Compaction = self._call("compact", branch=self._text, force=force)
        return found


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if metadata is None else dict(metadata)


def _lined(line: bytes, body: bytearray | memoryview | Iterator[memoryview]) -> Iterator[Buffer]:
    """The message, then the bytes, in pieces that are worth a write."""
    yield line
    if isinstance(body, bytearray | memoryview):
        yield from (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))
        return
    held: list[bytes] = []
    size_bytes = 0
    for view in body:
        for at in range(0, len(view), _PIECE_BYTES):
            held.append(bytes(view[at : at + _PIECE_BYTES]))
            size_bytes += len(held[-1])
            if size_bytes >= _PIECE_BYTES:
                yield b"".join(held)
                held, size_bytes = [], 0
    if size_bytes:
        yield b"".join(held)
