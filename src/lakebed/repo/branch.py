"""`Branch`: a reference that can be written to.

Owns: the writing half of the facade. Invariants: an object's bytes are durable before its path is staged, and a write
that is known to be refused is refused before they are uploaded; what a call acknowledged is visible to every later call
until it is overwritten, committed or reset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Unpack, cast

import pyarrow as pa
from typing_extensions import Buffer

from lakebed.arguments import check_arguments
from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.repo.committed.merge import Strategy
from lakebed.repo.directories import CopyProgress, CopyReport, upload_directory
from lakebed.repo.heads.compact import Compaction
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.heads.importing import Import, ImportSource
from lakebed.repo.model.model import Difference, Entry
from lakebed.repo.model.names import check_branch_name
from lakebed.repo.objects import data
from lakebed.repo.reference import Reference
from lakebed.repo.transport.transport import Put, Transport
from lakebed.repo.verbs.commit import Commit
from lakebed.repo.verbs.differences import Status
from lakebed.repo.verbs.imports import ImportObjects
from lakebed.repo.verbs.merge import Merge
from lakebed.repo.verbs.message import texts, texts_of
from lakebed.repo.verbs.pick import CherryPick, PickOptions, Revert
from lakebed.repo.verbs.rebase import Rebase
from lakebed.repo.verbs.reset import HardReset, Reset
from lakebed.repo.verbs.writing import Compact, Copy, Delete, DeleteMany, DeletePrefix, Link

Content = Buffer | BinaryIO | Iterable[Buffer]
"""An object's bytes: all at once, as a file open for reading in binary, or in chunks."""

_FILE_CHUNK_BYTES: Final = 1 << 20


@check_arguments
class Branch(Reference):
    """A branch; made by `Repository.branch`. Thread-safe. Whether it is there shows at each call.

    Every write raises `NotFound` (``branch_not_found``), `InvalidRequest` (``protected_branch``,
    ``read_only_repository``), `Conflict` (``branch_moved``: it lost too many races; nothing happened) and
    `OutcomeUnknown` (look before you retry), and what its own documentation lists.

    Raises:
        InvalidRequest: kind ``invalid_branch_name``.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        super().__init__(transport, check_branch_name(name))

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._text

    @property
    def commit_id(self) -> str:
        """The id of the commit at its head, now. Raises `NotFound`. Cost: 1 read of the key-value store."""
        return self._transport.commit_id(self._text)

    def put(
        self,
        path: str,
        content: Content,
        *,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
        only_if_absent: bool = False,
    ) -> Entry:
        """Write an object: upload its bytes, then stage it.

        Args:
            content: bytes, a file open for reading in binary, or chunks; of the last two a few megabytes are held.
            content_type: such as ``text/csv``.
            only_if_absent: refuse when an object is there.

        Raises:
            AlreadyExists: kind ``path_exists``; with `only_if_absent`.
            InvalidRequest: kind ``invalid_path``, ``reserved_path``, ``invalid_body``, ``invalid_metadata``.
        Cost: 1 PUT and 1 write of the key-value store.
        """
        what = Put(path, content_type, dict(metadata or {}), only_if_absent)
        return self._transport.put(self._text, what, chunks_of(content))

    def check_put(self, path: str, *, only_if_absent: bool = False) -> None:
        """Raise what `put` would raise before it needs the bytes. Cost: 1 peek; with `only_if_absent` as `stat`."""
        self._transport.check_put(self._text, Put(path, only_if_absent=only_if_absent))

    def upload(
        self,
        content: Content,
        *,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Upload an object's bytes, and stage nothing: `stage_many` makes many of them visible at one moment.

        Until it is staged nothing refers to it, and a collection deletes it when it is old enough
        (`CollectionOptions.grace`). Arguments and errors as `put`. Cost: 1 PUT.
        """
        what = Put(None, content_type, dict(metadata or {}))
        return self._transport.put(self._text, what, chunks_of(content))

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
        """Stage an object whose bytes another program has stored; bytes outside of the repository are never deleted.

        Args:
            url: of the bytes; or the address of an upload.
            checksum: as the writer gives it; None: the store's etag.
            content_type, metadata, only_if_absent: as `put`.

        Raises:
            NotFound: nothing is there.
            InvalidRequest: kind ``invalid_url``, ``invalid_address``, ``import_not_allowed``.
            AlreadyExists: as `put`.
        Cost: 1 HEAD and 1 write of the key-value store.
        """
        return self._transport.call(
            Link(
                branch=self._text,
                path=path,
                url=url,
                checksum=checksum,
                content_type=content_type,
                metadata=data.check_metadata(metadata, content_type=content_type),
                only_if_absent=only_if_absent,
            )
        )

    def stage_many(self, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
        """Stage many objects whose bytes are there already, in one atomic change.

        Arguments and errors as `lakebed.repo.heads.write.stage_many`. Cost: 1 write; about 3 us an entry.
        """
        return self._transport.stage_many(self._text, entries)

    def delete(self, path: str) -> bool:
        """Delete an object.

        Returns:
            Whether it was there.

        Raises `InvalidRequest` (``invalid_path``). Its bytes go when nothing refers to them, by a collection.
        """
        return self._transport.call(Delete(branch=self._text, path=path))

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete many objects in one atomic change; how many of them were there. As `delete`."""
        return self._transport.call(DeleteMany(branch=self._text, paths=texts_of("paths", paths)))

    def delete_prefix(self, prefix: str) -> bool:
        """Delete everything below a prefix (``""``: everything), however much it is, in one small write.

        Returns:
            Whether anything was there.
        """
        return self._transport.call(DeletePrefix(branch=self._text, prefix=prefix))

    def copy(self, source: str, path: str, *, ref: str | Reference | None = None) -> Entry:
        """Copy an object, its bytes included, so that nothing depends on the first.

        Args:
            source: its path.
            path: of the copy.
            ref: where `source` is read; None: on this branch.

        Raises:
            NotFound: kind ``path_not_found``, ``reference_not_found``.
            InvalidRequest: kind ``invalid_path``.
        Cost: 1 COPY inside the store and 1 write of the key-value store.
        """
        at = None if ref is None else str(ref)
        return self._transport.call(Copy(branch=self._text, source=source, path=path, ref=at))

    def status(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Difference]:
        """What is uncommitted, in the order of paths; arguments and errors as `Reference.list`."""
        asked = Status(branch=self._text, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(asked, amount=amount)

    def is_dirty(self) -> bool:
        """Whether anything is uncommitted. Cost: until the first difference."""
        return next(self.status(amount=1), None) is not None

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
        """Commit what is staged: everything, or only `paths` and what is below `prefixes`; the rest stays uncommitted.

        Arguments and errors as `lakebed.repo.verbs.commit.Commit`.
        """
        return self._transport.call(
            Commit(
                branch=self._text,
                message=message,
                metadata=texts(metadata),
                committer=committer,
                paths=None if paths is None else texts_of("paths", paths),
                prefixes=None if prefixes is None else texts_of("prefixes", prefixes),
                allow_empty=allow_empty,
                created_at_ms=created_at_ms,
            )
        )

    def merge(
        self,
        source: str | Reference,
        *,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        strategy: Strategy | None = None,
        squash: bool = False,
        prefix: str = "",
        allow_empty: bool = False,
    ) -> CommitWithId:
        """Merge what another reference has committed into this branch, all of it or what is below a prefix.

        Arguments and errors as `lakebed.repo.verbs.merge.Merge`; `Conflict` (``merge_conflict``) lists the paths.
        """
        return self._transport.call(
            Merge(
                branch=self._text,
                source=str(source),
                message=message,
                metadata=texts(metadata),
                committer=committer,
                strategy=strategy,
                squash=squash,
                prefix=prefix,
                allow_empty=allow_empty,
            )
        )

    def revert(self, ref: str | Reference, **options: Unpack[PickOptions]) -> CommitWithId:
        """Undo one commit's changes in a new commit. Errors as `lakebed.repo.verbs.pick.Revert`.

        Args:
            **options: `parent_number` of a merge, counted from 1; `message`, `metadata` and `committer` of the new
                commit; `strategy` for conflicts, ``"source-wins"`` or ``"dest-wins"``; `allow_empty`.
        """
        return self._pick(Revert, ref, options)

    def cherry_pick(self, ref: str | Reference, **options: Unpack[PickOptions]) -> CommitWithId:
        """Make one commit's changes again here, with arguments as `revert`.

        Errors as `lakebed.repo.verbs.pick.CherryPick`.
        """
        return self._pick(CherryPick, ref, options)

    def _pick(self, kind: type[Revert | CherryPick], ref: str | Reference, options: PickOptions) -> CommitWithId:
        fields: dict[str, Any] = {**options, "metadata": texts(options.get("metadata"))}
        return self._transport.call(kind(branch=self._text, ref=str(ref), **fields))

    def rebase(
        self, onto: str | Reference, *, committer: str | None = None, strategy: Strategy | None = None
    ) -> CommitWithId:
        """Make this branch's own commits again on top of another reference. As `lakebed.repo.verbs.rebase.Rebase`."""
        return self._transport.call(Rebase(branch=self._text, onto=str(onto), committer=committer, strategy=strategy))

    def reset(self, *, path: str | None = None, prefix: str | None = None) -> CommitWithId:
        """Discard uncommitted changes: all, those of one path, or those below a prefix.

        Returns:
            The head, which does not move.

        Raises:
            InvalidRequest: both are given; as `lakebed.repo.verbs.reset.Reset`.
        """
        return self._transport.call(Reset(branch=self._text, path=path, prefix=prefix))

    def hard_reset(self, ref: str | Reference, *, force: bool = False) -> CommitWithId:
        """Move the branch to another commit. Arguments and errors as `lakebed.repo.verbs.reset.HardReset`."""
        return self._transport.call(HardReset(branch=self._text, ref=str(ref), force=force))

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
        """Make objects of another store entries of this branch, in one commit, without copying their bytes.

        Returns:
            Its record, completed. Arguments and errors as `lakebed.repo.heads.importing`.
        """
        imported = ImportObjects(
            branch=self._text,
            sources=list(sources),
            message=message,
            metadata=texts(metadata),
            committer=committer,
            replace=replace,
        )
        return self._transport.call(imported, storage_options=storage_options)

    def compact(self, *, force: bool = True) -> Compaction:
        """Make reads of what is staged as fast as reads of a commit. As `lakebed.repo.heads.compact.compact_once`."""
        return self._transport.call(Compact(branch=self._text, force=force))

    def store(self, prefix: str = "") -> ObjectStore:
        """An object store of this branch, to be read and written. As `Reference.store`."""
        return self._transport.store(self._text, prefix, writes=True)


def chunks_of(content: Content) -> Buffer | Iterable[Buffer]:
    """A file's chunks; all else as it is. Raises `InvalidRequest` for what has no bytes."""
    if isinstance(content, bytes | bytearray | memoryview):
        return content
    if hasattr(content, "read"):
        return _file_chunks(cast(BinaryIO, content))
    if isinstance(content, str) or not isinstance(content, Buffer | Iterable):
        raise InvalidRequest(
            f"An object's body is bytes, a file open in binary mode or chunks of bytes, and {type(content).__name__} "
            "was given.",
            kind="invalid_body",
        )
    return content


def _file_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_FILE_CHUNK_BYTES):
        if isinstance(chunk, str):
            raise InvalidRequest("The file was opened for text: open it in binary mode ('rb').", kind="invalid_body")
        yield chunk
