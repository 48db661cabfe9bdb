"""`Branch`: a reference that can be written to.

Owns: the writing half of the facade. Invariants: an object's bytes are durable before its path is staged. If a write
can be refused before its bytes are uploaded, it is. An acknowledged write is visible to every later call until it is
overwritten, committed or reset.
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
    """A branch of a repository, to read and to write. `Repository.branch` makes one. Thread-safe.

    That the branch exists is checked by each call, and not before.

    Raises:
        InvalidRequest: kind ``invalid_branch_name``.

    Every write may raise `NotFound` (``branch_not_found``), `InvalidRequest` (``protected_branch``,
    ``read_only_repository``), `Conflict` (``branch_moved``: other writers were faster each time, and nothing happened)
    and `OutcomeUnknown` (look whether it happened before you repeat it), and what its own documentation lists.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        super().__init__(transport, check_branch_name(name))

    @property
    def name(self) -> str:
        """The name of the branch."""
        return self._text

    @property
    def commit_id(self) -> str:
        """The id of the commit at the head of the branch now.

        Raises `NotFound`. Cost: 1 read of the key-value store.
        """
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
        """Write an object: upload its bytes, and stage it on the branch. `commit` makes it part of a commit.

        Args:
            path: of the object.
            content: bytes, a file open for reading in binary mode, or an iterable of chunks. Of a file or chunks only a
                few megabytes are in memory.
            content_type: such as ``text/csv``.
            metadata: texts of your own.
            only_if_absent: raise `AlreadyExists` if there is an object at the path.

        Raises:
            AlreadyExists: kind ``path_exists``: with `only_if_absent`.
            InvalidRequest: kind ``invalid_path``, ``reserved_path``, ``invalid_body`` or ``invalid_metadata``.

        Cost: 1 PUT, and 1 write of the key-value store.
        """
        verb = Put(path, content_type, dict(metadata or {}), only_if_absent)
        return self._transport.put(self._text, verb, chunks_of(content))

    def check_put(self, path: str, *, only_if_absent: bool = False) -> None:
        """Raise what `put` would raise, without bytes. Cost: a look at the branch; with `only_if_absent` as `stat`."""
        self._transport.check_put(self._text, Put(path, only_if_absent=only_if_absent))

    def upload(
        self,
        content: Content,
        *,
        content_type: str = data.CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Upload an object's bytes without staging them. `stage_many` then makes many objects visible at once.

        A collection deletes an object that was never staged when it is older than `CollectionOptions.grace`. Arguments
        and errors as `put`.

        Cost: 1 PUT.
        """
        verb = Put(None, content_type, dict(metadata or {}))
        return self._transport.put(self._text, verb, chunks_of(content))

    def upload_directory(
        self,
        directory: str | os.PathLike[str],
        prefix: str = "",
        *,
        delete: bool = False,
        dry_run: bool = False,
        progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy every file below a local directory to the branch, in one uncommitted change.

        Args:
            directory: links to files are followed, links to directories are not.
            prefix: folder in which the files appear; ``raw`` and ``raw/`` mean the same.
            delete: also delete the objects below the prefix that the directory does not have, in a second change.
            dry_run: report what would be copied and deleted; change nothing.
            progress: called as files are copied.

        Raises:
            NotFound: there is no such directory.
            InvalidRequest: a file's name is not a valid path.

        Cost: 1 listing of the prefix. Each file is read once to compare it, and a second time to send it.
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
        """Stage an object whose bytes another program has stored. Bytes outside of the repository are never deleted.

        Args:
            path: of the object.
            url: of the bytes, or the address of an upload.
            checksum: what the writer says it is; None: the store's etag.
            content_type, metadata, only_if_absent: as `put`.

        Raises:
            NotFound: there are no bytes at the URL.
            InvalidRequest: kind ``invalid_url``, ``invalid_address`` or ``import_not_allowed``.
            AlreadyExists: as `put`.

        Cost: 1 HEAD, and 1 write of the key-value store.
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
        """Stage many objects whose bytes are stored already, in one atomic change.

        If a path repeats, its last entry counts.

        Args:
            entries: pairs of path and `Entry`; or an Arrow table with the columns ``path``, ``address``, ``checksum``
                (text), ``size_bytes``, ``modified_ms`` (integers) and optionally ``content_type`` (text) and
                ``metadata`` (map of texts).

        Returns:
            The number of paths.

        Raises:
            InvalidRequest: kind ``invalid_columns`` or ``wrong_type``; ``oversized_write``: too much for one change; or
                an entry is not valid. Nothing was staged.

        Cost: 1 write; about 3 us for each entry.
        """
        return self._transport.stage_many(self._text, entries)

    def delete(self, path: str) -> bool:
        """Delete an object. Return whether it existed.

        A collection deletes its bytes when nothing refers to them. Raises `InvalidRequest` (``invalid_path``).
        """
        return self._transport.call(Delete(branch=self._text, path=path))

    def delete_many(self, paths: Iterable[str] | Mapping[str, Entry]) -> int:
        """Delete many objects in one atomic change. Return how many of them existed.

        Args:
            paths: of the objects; a mapping has the entry of each that you have seen, and what others have written
                there since is not deleted.

        Raises:
            Conflict: kind ``path_changed``, with the fact ``paths``: others have written to these since. Nothing was
                deleted.

        Other errors as `delete`.
        """
        path_list, addresses = texts_of("paths", paths), None
        if isinstance(paths, Mapping):
            if not all(isinstance(entry, Entry) for entry in paths.values()):
                raise InvalidRequest("A mapping of paths has the entry of each.", kind="wrong_type")
            addresses = [entry.address for entry in paths.values()]
        return self._transport.call(DeleteMany(branch=self._text, paths=path_list, addresses=addresses))

    def delete_prefix(self, prefix: str) -> bool:
        """Delete all objects whose path begins with a prefix, in one small write. ``""`` means all objects.

        Returns:
            Whether there were any.
        """
        return self._transport.call(DeletePrefix(branch=self._text, prefix=prefix))

    def copy(self, source: str, path: str, *, ref: str | Reference | None = None) -> Entry:
        """Copy an object with its bytes. The copy does not depend on the original.

        Args:
            source: path of the original.
            path: of the copy.
            ref: where `source` is read; None: this branch.

        Raises:
            NotFound: kind ``path_not_found`` or ``reference_not_found``.
            InvalidRequest: kind ``invalid_path``.

        Cost: 1 COPY inside the store, and 1 write of the key-value store.
        """
        ref_text = None if ref is None else str(ref)
        return self._transport.call(Copy(branch=self._text, source=source, path=path, ref=ref_text))

    def status(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Difference]:
        """Iterate over the uncommitted changes, in the order of paths. Arguments and errors as `Reference.list`."""
        verb = Status(branch=self._text, prefix=prefix, after=after, delimiter=delimiter)
        return self._transport.rows(verb, amount=amount)

    def is_dirty(self) -> bool:
        """Return whether the branch has uncommitted changes. Cost: a listing up to the first change."""
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
        """Commit what is staged: everything, or only `paths` and what is below `prefixes`. The rest stays uncommitted.

        Args:
            message: of the commit.
            metadata: texts of your own: at most 1,000 keys and 64 KiB.
            committer: the author; None: `RepositoryOptions.committer`, else the user that runs the process.
            paths: commit only these paths. An empty list selects no path.
            prefixes: also commit the paths with these prefixes.
            allow_empty: commit even when nothing differs from the head.
            created_at_ms: the date that the commit shows, in Unix milliseconds, UTC; None: now. It is a label. How long
                the objects of the commit are kept counts from when it was made.

        Returns:
            The commit with its id.

        Raises:
            InvalidRequest: kind ``no_changes``, ``empty_message``, ``oversized_message``, ``oversized_metadata``,
                ``protected_branch`` or ``read_only_repository``.
            NotFound: kind ``branch_not_found``.
            Rejected: kind ``hook_rejected``: a hook refused the commit. Nothing moved.
            Conflict: kind ``branch_moved``: other writers were faster each time.

        Cost: 2 durable writes of the key-value store, 1 metarange, and the ranges that changed.
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
        """Merge the commits of another reference into this branch.

        Args:
            source: a branch, tag or commit. Of a branch, only what is committed counts.
            message: None: ``Merge 'source' into 'branch'``.
            metadata, committer: as `commit`.
            strategy: what to take if both sides changed a path: ``source-wins`` or ``dest-wins``. None: that is a
                conflict.
            squash: give the new commit one parent, the head of the branch.
            prefix: merge only paths with this prefix. The new commit has one parent, as the rest is not merged.
            allow_empty: make a commit even when there is nothing to merge.

        Returns:
            The new commit with its id.

        Raises:
            Conflict: kind ``merge_conflict``, with the facts ``paths`` and ``count``; or ``branch_moved``. Nothing
                moved.
            InvalidRequest: kind ``dirty_branch``, ``no_changes``, ``unknown_strategy``, ``commit_expired`` or
                ``prefix_cuts_unit``.
            NotFound: kind ``branch_not_found`` or ``reference_not_found``.
            Rejected: kind ``hook_rejected``.

        Cost: 1 or 2 durable writes of the key-value store. Ranges that are equal on two sides are not read.
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
        """Undo the changes of one commit in a new commit.

        Args:
            ref: the commit, which need not be the head.
            **options: `parent_number`: for a merge commit, the parent to go back to; 1 is the first. `message`: None:
                ``Revert <id>``. `metadata` and `committer` of the new commit. `strategy`: what to take if the branch
                has changed the
                same paths since: ``"source-wins"`` undoes them, ``"dest-wins"`` does not. `allow_empty`.

        Returns:
            The new commit with its id.

        Raises:
            Conflict: kind ``merge_conflict``. Nothing moved.
            InvalidRequest: kind ``parent_number_needed``, ``invalid_parent_number``, ``dirty_branch``, ``no_changes``,
                ``commit_expired`` or ``protected_branch``.
            NotFound: kind ``branch_not_found`` or ``reference_not_found``.

        Cost: as `merge`.
        """
        return self._pick(Revert, ref, options)

    def cherry_pick(self, ref: str | Reference, **options: Unpack[PickOptions]) -> CommitWithId:
        """Make the changes of one commit again in a new commit on this branch.

        Args:
            ref: the commit.
            **options: as `revert`, with other defaults: `message`: the commit's own; `metadata`: added to the commit's
                own; equal keys are replaced; the id and committer of the commit are added.

        Returns, errors and cost as `revert`.
        """
        return self._pick(CherryPick, ref, options)

    def _pick(self, kind: type[Revert | CherryPick], ref: str | Reference, options: PickOptions) -> CommitWithId:
        fields: dict[str, Any] = {**options, "metadata": texts(options.get("metadata"))}
        return self._transport.call(kind(branch=self._text, ref=str(ref), **fields))

    def rebase(
        self, onto: str | Reference, *, committer: str | None = None, strategy: Strategy | None = None
    ) -> CommitWithId:
        """Make the branch's own commits again on top of another reference. Merge commits are left out.

        Args:
            onto: a branch, tag or commit. Of a branch, only what is committed counts.
            committer: author of the new commits; None: that of each original commit.
            strategy: ``source-wins`` takes the branch's own commits if both sides changed a path. None: that is a
                conflict.

        Returns:
            The last new commit with its id.

        Raises:
            Conflict: kind ``merge_conflict``, with the commit; or ``branch_moved``. Nothing moved.
            InvalidRequest: kind ``no_changes``: the branch descends from `onto` already; ``dirty_branch``,
                ``too_many_commits``, ``commit_expired``, ``protected_branch`` or ``unrelated_histories``.
            NotFound: kind ``branch_not_found`` or ``reference_not_found``.

        Cost: a merge for each commit, and 1 durable write for all.
        """
        return self._transport.call(Rebase(branch=self._text, onto=str(onto), committer=committer, strategy=strategy))

    def reset(self, *, path: str | None = None, prefix: str | None = None) -> CommitWithId:
        """Discard uncommitted changes: all of them, those of one path, or those below a prefix.

        Returns:
            The commit at the head, which does not move.

        Raises:
            NotFound: kind ``branch_not_found``.
            InvalidRequest: kind ``two_targets``: path and prefix are given; ``invalid_path``, ``protected_branch`` or
                ``read_only_repository``.
            Conflict: kind ``branch_moved``.

        Cost: of everything 1 durable write of the key-value store, whatever is staged. Of a path or prefix, as a
            compaction of the branch.
        """
        return self._transport.call(Reset(branch=self._text, path=path, prefix=prefix))

    def hard_reset(self, ref: str | Reference, *, force: bool = False) -> CommitWithId:
        """Move the branch to another commit.

        Args:
            ref: a branch, tag or commit. Of a branch, only what is committed counts.
            force: discard uncommitted changes. Otherwise a branch that has some is refused.

        Returns:
            The commit with its id.

        Raises:
            NotFound: kind ``branch_not_found`` or ``reference_not_found``.
            InvalidRequest: kind ``dirty_branch``, ``commit_expired``, ``protected_branch`` or ``read_only_repository``.
            Conflict: kind ``branch_moved``.

        Cost: 2 durable writes of the key-value store; with `force` 1.
        """
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
        """Commit objects of another store to this branch, without copying their bytes.

        The objects stay where they are. lakebed never deletes them, and reads them there.

        Args:
            sources: folders and objects. If several have one destination, an object wins over a folder, and a later
                folder over an earlier one.
            message, metadata, committer: as `commit`.
            replace: delete what the branch has below the destinations of folders, so that they become as the folders
                are.
            storage_options: credentials of the other store. They are never stored.

        Returns:
            The record of the completed import.

        Raises:
            InvalidRequest: kind ``no_sources``, ``invalid_url``, ``import_not_allowed``, ``own_objects`` or
                ``invalid_path``.
            NotFound: kind ``branch_not_found``.
        """
        verb = ImportObjects(
            branch=self._text,
            sources=list(sources),
            message=message,
            metadata=texts(metadata),
            committer=committer,
            replace=replace,
        )
        return self._transport.call(verb, storage_options=storage_options)

    def compact(self, *, force: bool = True) -> Compaction:
        """Make reads of what is staged as fast as reads of a commit.

        Args:
            force: compact even within the cooldown after another compaction.

        Raises:
            NotFound: kind ``branch_not_found``.
            InvalidRequest: kind ``read_only_repository``.

        Cost: 2 durable writes of the key-value store, and the ranges that changed.
        """
        return self._transport.call(Compact(branch=self._text, force=force))

    def store(self, prefix: str = "") -> ObjectStore:
        """Return an object store of this branch that can be read and written. As `Reference.store`."""
        return self._transport.store(self._text, prefix, writes=True)


def chunks_of(content: Content) -> Buffer | Iterable[Buffer]:
    """The chunks of a file; other contents unchanged. Raises `InvalidRequest` for anything that has no bytes."""
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
