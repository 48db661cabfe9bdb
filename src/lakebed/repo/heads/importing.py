"""Imports: objects of another place become entries of a branch, in one commit, without copying their bytes.

Owns: the record of an import (``imports/<id>``), and its steps. A verb records the request
(`lakebed.repo.verbs.imports`), `run_import` lists, applies and publishes, `import_status` reads the record, and
`cancel_import` stops the import. Invariants:

- An import's record becomes completed in the same change that moves the branch. So the import takes effect once,
  however often and in however many processes it runs. A cancelled import never moves the branch.
- Imported objects are named by URL, belong to others, and are never deleted.
- Credentials are never stored: the caller of `run_import` passes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import pyarrow as pa

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.reclaim.sweep import batches
from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.heads.commit import intervals_of, move_by_commits, new_commit
from lakebed.repo.heads.heads import Move, SealedBranch, check_clean
from lakebed.repo.model.entry import encode_entries, encode_entry
from lakebed.repo.model.layout import DATA_FOLDER, DERIVED_FOLDER, METARANGE_FOLDER, RANGE_FOLDER, UPLOAD_FOLDER
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import overlay, rows_of
from lakebed.repo.outside.import_policy import real_url
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.records.records import decode_record, encode_record, read_records, replace_record

SOURCE_COUNT_MAX: Final = 10_000
KEPT_DAYS: Final = 7
"""How long the record of an import is kept after its last change. A running import changes its record regularly."""
_BATCH_ROW_COUNT: Final = 16_384
_PROGRESS_ROW_COUNT: Final = 100_000
"""Rows between two reports of progress, which also check if the import was cancelled. Each is a durable write."""


class ImportSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is imported. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    url: str
    """Of an object or a folder: a path, ``file://``, ``memory://``, ``s3://``, ``gs://`` or ``az://``."""
    destination: str
    """Of an object its path on the branch; of a folder the prefix that its objects get instead of the folder's."""
    kind: Literal["prefix", "object"] = "prefix"


class Import(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of an import. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    id: str
    branch: str
    sources: tuple[ImportSource, ...]
    message: str
    committer: str | None
    metadata: dict[str, str]
    replace: bool
    updated_at_ms: int
    state: Literal["running", "completed", "failed", "cancelled"] = "running"
    ingested_count: int = 0
    """Objects listed so far."""
    commit_id: str | None = None
    """The commit, once the import is completed; the head if the branch had all objects already."""
    error: str | None = None
    """Why it failed."""
    force: bool = False
    """Import even though the repository is read-only."""


def check_sources(context: RepositoryContext, sources: Sequence[ImportSource]) -> None:
    """Refuse invalid sources, before the import is recorded.

    Raises `InvalidRequest`: ``no_sources``, ``invalid_url``, ``import_not_allowed``, ``own_objects``, ``invalid_path``.
    """
    if not 0 < len(sources) <= SOURCE_COUNT_MAX:
        raise InvalidRequest(
            f"An import has 1 to {SOURCE_COUNT_MAX:,} sources, and {len(sources):,} were given.", kind="no_sources"
        )
    for source in sources:
        if source.kind == "object":
            check_path(source.destination, writing=True)
            _folder_and_name(source.url)
            _refuse_own(context, source.url)
            context.foreign.check([source.url])
        else:
            _refuse_own(context, source.url)
            context.foreign.folder(source.url)
            # Some name below it must be valid, or the import would fail later, after the reply.
            check_path(_folder(source.destination) + "-", writing=True)


def import_status(context: RepositoryContext, id: str, *, branch: str | None = None) -> Import:
    """Load the record of an import. Raises `NotFound` (``import_not_found``). Cost: 1 read of the key-value store.

    Args:
        branch: only an import into this branch; None: into any.
    """
    return _load_into(context, id, branch=branch)[0]


def list_unfinished_imports(context: RepositoryContext) -> list[Import]:
    """List imports that are running, or were running when their process ended; run those again. Cost: 1 scan."""
    with context.key_value.snapshot() as snapshot:
        records = read_records(snapshot, context.keys.import_record(), Import)
        return [record for _, record in records if record.state == "running"]


def cancel_import(context: RepositoryContext, id: str, *, branch: str | None = None) -> Import:
    """Cancel an import; the branch does not change.

    Args:
        branch: as in `import_status`.

    Raises:
        NotFound: ``import_not_found``.
        Conflict: ``import_ended``: it has already completed, failed or been cancelled.
    Cost: 1 durable write of the key-value store; more if the running import changes its record at the same time.
    """
    for _ in range(context.options.publish_tries_max):
        record, raw = _load_into(context, id, branch=branch)
        if record.state != "running":
            raise Conflict(
                f"Import {id} is {record.state} already and cannot be cancelled.", kind="import_ended", id=id
            )
        cancelled = msgspec.structs.replace(record, state="cancelled", updated_at_ms=context.now_ms())
        if _set(context, raw, cancelled):
            return cancelled
    raise Conflict(f"Import {id} changes too fast to be cancelled: try again.", kind="import_busy", id=id)


def trim_imports(context: RepositoryContext) -> int:
    """Delete the records of imports that did not change for `KEPT_DAYS`, ended or abandoned.

    Returns:
        The number of deleted records, at most 10,000 a call.
    Cost: that of `RepositoryContext.trim_old`.
    """
    return context.trim_old(
        context.keys.import_record(),
        lambda key, raw: decode_record(raw, Import, key=key).updated_at_ms,
        kept_ms=KEPT_DAYS * DAY_MS,
    )


def run_import(context: RepositoryContext, id: str, *, storage_options: Mapping[str, str] | None = None) -> Import:
    """Run an import, or repeat it after a crash. If two processes run it at once, one completes it.

    Args:
        storage_options: settings and credentials of the stores to import from; None: those of
            `RepositoryContext.foreign`.

    Returns:
        Its record: completed, or as another process has ended it meanwhile.

    Raises:
        The error of the import, with which the record then says that it failed: `NotFound` (``source_not_found``),
        `InvalidRequest` (``dirty_branch``), `Conflict` (``branch_moved``), `Rejected` (``hook_rejected``), or others.
    Cost: 1 LIST a 1000 objects, 1 HEAD a single object; reads and writes the ranges that change.
    """
    try:
        return _Run(context, id, storage_options).complete()
    except LakebedError as error:
        record, raw = _load(context, id)
        if record.state != "running":
            return record  # it was cancelled, or another run ended it; that result counts
        _set(
            context,
            raw,
            msgspec.structs.replace(record, state="failed", error=str(error), updated_at_ms=context.now_ms()),
        )
        raise


class _NothingChanged(Exception):
    """The branch already has all objects of the import, with the same addresses: no commit is needed."""

    def __init__(self, commit_id: str) -> None:
        super().__init__(commit_id)
        self.commit_id = commit_id


class _Run:
    """One run of an import: its sources and its progress."""

    def __init__(self, context: RepositoryContext, id: str, storage_options: Mapping[str, str] | None) -> None:
        self._record, self._raw = _load(context, id)
        self._context = context.as_writable() if self._record.force else context
        self._storage_options = storage_options
        self._done = self._record

    def complete(self) -> Import:
        record = self._record
        if record.state != "running":
            return record
        try:
            move_by_commits(self._context, record.branch, operation="import", plan=self._plan)
        except _NothingChanged as error:
            return self._end(error.commit_id)
        return self._done

    def _end(self, commit_id: str) -> Import:
        """Record that an existing commit completes the import."""
        ended_task = msgspec.structs.replace(
            self._record, state="completed", commit_id=commit_id, updated_at_ms=self._context.now_ms()
        )
        return ended_task if _set(self._context, self._raw, ended_task) else import_status(self._context, ended_task.id)

    def _plan(self, sealed_branch: SealedBranch) -> Move:
        context, record = self._context, self._record
        check_committable(context, record.branch)
        check_clean(context, sealed_branch, operation="import")
        folders = [source for source in record.sources if source.kind == "prefix"]
        cleared = intervals_of((), [_folder(source.destination) for source in folders]) if record.replace else ()
        # By value: an entry for the same bytes at another place has the same identity, and must replace the old one.
        changes = Changes(clears=cleared, rows=self._rows, by_value=True)
        application = apply_changes(context.committed, sealed_branch.head.metarange, changes)
        if application.ref.id == sealed_branch.head.metarange.id:  # the same entries at the same addresses
            raise _NothingChanged(sealed_branch.record.commit_id)
        new = new_commit(
            context,
            parents=[(sealed_branch.record.commit_id, sealed_branch.head)],
            metarange=application.ref,
            message=record.message,
            metadata=record.metadata,
            committer=record.committer,
        )
        self._done = msgspec.structs.replace(
            self._record, state="completed", commit_id=new.id, updated_at_ms=context.now_ms()
        )
        key = context.keys.import_record(record.id)
        return Move(new.id, commits=[new], puts=[(key, encode_record(self._done))], expected={key: self._raw})

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the objects of the sources as rows, and record the progress."""
        self._go_on(0)
        count = reported_count = 0
        sources = self._record.sources
        layers = [self._objects([source for source in sources if source.kind == "object"])]
        layers += [self._folder(source) for source in reversed(sources) if source.kind == "prefix"]
        for batch in overlay(layers):
            count += batch.num_rows
            if count - reported_count >= _PROGRESS_ROW_COUNT:
                reported_count = count
                self._go_on(count)
            yield batch
        self._go_on(count)

    def _go_on(self, count: int) -> None:
        """Record the progress. Raises `Conflict` if the import has ended meanwhile."""
        context = self._context
        for _ in range(context.options.publish_tries_max):
            after = msgspec.structs.replace(self._record, ingested_count=count, updated_at_ms=context.now_ms())
            if _set(context, self._raw, after):
                self._record, self._raw = after, encode_record(after)
                return
            self._record, self._raw = _load(context, after.id)
            if self._record.state != "running":
                break
        raise Conflict(f"Import {self._record.id} is {self._record.state}.", kind="import_ended", id=self._record.id)

    def _objects(self, sources: Sequence[ImportSource]) -> Iterator[pa.RecordBatch]:
        rows: dict[bytes, bytes] = {}
        for source in sources:
            folder, name = _folder_and_name(source.url)
            self._context.foreign.check([source.url])
            store = self._open(real_url(parse_url(folder)))
            entry = _entry(store.root_url, store.head(name))
            rows[check_path(source.destination, writing=True)] = encode_entry(entry)
        if rows:
            yield rows_of(*zip(*sorted(rows.items()), strict=True))

    def _folder(self, source: ImportSource) -> Iterator[pa.RecordBatch]:
        """Iterate over the objects of a folder as rows, in the order of paths, which is that of the listing."""
        store = self._open(real_url(self._context.foreign.folder(source.url)))
        objects: Iterable[ObjectMeta] = store.list()
        destination = _folder(source.destination)
        for metas in batches(objects, _BATCH_ROW_COUNT):
            paths = [check_path(destination + meta.path, writing=True) for meta in metas]
            yield rows_of(paths, encode_entries([_entry(store.root_url, meta) for meta in metas]))

    def _open(self, url: StoreUrl) -> ObjectStore:
        return open_folder(self._context, url, self._storage_options)


def open_folder(context: RepositoryContext, url: StoreUrl, storage_options: Mapping[str, str] | None) -> ObjectStore:
    """Open a folder to import from.

    Args:
        url: real URL of the folder, which must have been allowed.
        storage_options: as in `run_import`.
    """
    environment = context.environment
    if url.scheme in ("file", "memory"):
        return open_store(str(url), environment=environment, create=False)  # a missing folder is not an empty one
    if storage_options is None:
        return context.foreign.store(url)
    return open_store(str(url), storage_options=storage_options, environment=environment)


def _refuse_own(context: RepositoryContext, url: str) -> None:
    """Raise `InvalidRequest` if a source has this repository's own objects, which a collection may delete."""
    source, root = str(real_url(parse_url(url))), str(real_url(parse_url(context.store.root_url)))
    own_folders = (DATA_FOLDER, RANGE_FOLDER, METARANGE_FOLDER, UPLOAD_FOLDER, DERIVED_FOLDER)
    folders = [f"{root}/{folder}/" for folder in own_folders]
    place = source.removesuffix("/") + "/"
    if any(place.startswith(folder) or folder.startswith(place) for folder in folders):
        raise InvalidRequest(
            f"{source} is an invalid import source: repository {context.name} has its own objects there, which a "
            "collection may delete. Copy them on the branch instead.",
            kind="own_objects",
        )


def _entry(root_url: str, meta: ObjectMeta) -> Entry:
    return Entry(
        address=f"{root_url}/{meta.path}",  # URLs are taken literally
        size_bytes=meta.size_bytes,
        checksum=(meta.etag or "").strip('"'),
        modified_ms=meta.modified_ms,
    )


def _folder(destination: str) -> str:
    """A destination as a prefix of paths."""
    return destination if not destination or destination.endswith("/") else destination + "/"


def _folder_and_name(url: str) -> tuple[str, str]:
    """The URL of an object's folder, and the object's name in it."""
    location = parse_url(url)
    folder, _, name = str(location).rpartition("/")
    if not location.prefix or not name or url.endswith("/"):
        raise InvalidRequest(
            f"{url!r} names no object: write the folder's URL, a slash and a name.", kind="invalid_url"
        )
    return folder, name


def _load_into(context: RepositoryContext, id: str, *, branch: str | None) -> tuple[Import, bytes]:
    """Load an import; with a branch, only an import into that branch.

    Otherwise a caller that may use one branch could use imports into other branches by their ids.
    """
    record, raw = _load(context, id)
    if branch not in (None, record.branch):
        raise _missing(context, id)
    return record, raw


def _load(context: RepositoryContext, id: str) -> tuple[Import, bytes]:
    key = context.keys.import_record(id)
    raw = context.key_value.get(key)
    if raw is None:
        raise _missing(context, id)
    return decode_record(raw, Import, key=key), raw


def _missing(context: RepositoryContext, id: str) -> NotFound:
    return NotFound(
        f"Repository {context.name} has no import {id!r} into such a branch.", kind="import_not_found", id=id
    )


def _set(context: RepositoryContext, raw: bytes, record: Import) -> bool:
    """Set the record if it is still `raw`."""
    return replace_record(context.key_value, context.keys.import_record(record.id), encode_record(record), expected=raw)
