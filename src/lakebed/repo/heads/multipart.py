"""Uploads in parts: an upload is begun, its parts are put in any order, then it is completed or aborted.

Owns: the records of uploads and of their parts, and the change that completes an upload. A part is a separate object
(``data/<ulid>``), durable before its record. A completion joins the parts into a new object; a single part is used as
it is. Then one change of the key-value store stages the object's entry and marks the upload completed. The records of
the parts are deleted after that.

Invariants:
- Every change of an upload expects its record as it was read. So either a completion or an abort wins, and a later part
  is refused.
- A repeated completion, after a lost reply, gives the same answer as the first, and changes nothing.
- Only these records refer to parts, and a collection does not mark them. So if an upload takes longer than
  `CollectionOptions.grace`, its parts may be deleted, and its completion then fails and says which. The entry is staged
  only after the last byte of the last part was read, so no object is incomplete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final

import msgspec
from typing_extensions import Buffer

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.lsm.file_id import is_file_id, mint_file_id
from lakebed.repo.heads.write import check_age, path_exists
from lakebed.repo.model.entry import decode_entry, new_address
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_writable
from lakebed.repo.records.records import decode_record, encode_record, read_records, write_unique
from lakebed.repo.references.branches import load_branch
from lakebed.repo.staging.entries import check_entry
from lakebed.repo.staging.protocol import WriteAttempts, check_only_unexpected

PART_NUMBER_MAX: Final = 10_000
PART_BYTES_MIN: Final = 5 << 20
"""Smallest size of a part, except the last."""
_KEYS_AT_ONCE: Final = 10_000
_ENDED_MS: Final = DAY_MS
"""How long the record of a completed upload is kept, for callers whose reply was lost."""
_IDLE_MS: Final = 7 * DAY_MS
"""How long an open upload is kept after its last part."""


class Upload(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of an upload. Field names are stored: DO NOT CHANGE them."""

    branch: str
    path: str
    content_type: str
    metadata: dict[str, str]
    started_at_ms: int
    owner: str = ""
    completed: Entry | None = None
    """The entry of the completed upload; None: it is open."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of a part. Field names are stored: DO NOT CHANGE them."""

    address: str
    size_bytes: int
    checksum: str
    """MD5 of the bytes, hexadecimal."""
    modified_ms: int


class WantedPart(msgspec.Struct, frozen=True):
    """A part that a completion names."""

    number: int
    checksum: str


class Stated(msgspec.Struct, frozen=True):
    """Facts about the whole object that a completion states."""

    size_bytes: int | None = None
    observe: Callable[[Buffer], None] | None = None
    """Called with all bytes of the object, in order, before the `check` of `complete_upload`."""
    description: tuple[str, dict[str, str]] | None = None
    """Content type and metadata of the object, if the completion gives them; None: those given to `begin_upload`."""


def begin_upload(
    context: RepositoryContext, *, branch: str, path: str, content_type: str, metadata: dict[str, str], owner: str
) -> str:
    """Begin an upload of an object, and return the upload's id.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: as `lakebed.repo.heads.write.stage`; ``invalid_metadata``.
    Cost: 1 read, 1 write of the key-value store.
    """
    check_path(path, writing=True)
    check_writable(context, branch)
    load_branch(context, branch)
    checked_metadata = data.check_metadata(metadata, content_type=content_type)
    upload_id = mint_file_id(environment=context.environment)
    record = Upload(branch, path, content_type, checked_metadata, context.now_ms(), owner)
    context.key_value.set(context.keys.upload(upload_id), encode_record(record))
    return upload_id


def load_upload(context: RepositoryContext, upload_id: str, *, branch: str, path: str) -> tuple[Upload, bytes]:
    """Load an upload's record, open or completed, and its bytes, which a conditional write compares.

    Raises:
        NotFound: kind ``upload_not_found``: there is no upload with this id for this branch and path.
    """
    key = context.keys.upload(upload_id) if is_file_id(upload_id) else None
    raw = None if key is None else context.key_value.get(key)
    if key is not None and raw is not None:
        upload = decode_record(raw, Upload, key=key)
        if (upload.branch, upload.path) == (branch, path):
            return upload, raw
    raise _no_upload(upload_id)


def open_upload(context: RepositoryContext, upload_id: str, *, branch: str, path: str) -> tuple[Upload, bytes]:
    """As `load_upload`, only for an upload that is neither completed nor aborted."""
    upload, raw = load_upload(context, upload_id, branch=branch, path=path)
    if upload.completed is not None:
        raise _no_upload(upload_id)
    return upload, raw


def _no_upload(upload_id: str) -> NotFound:
    return NotFound(
        f"There is no upload {upload_id[:64]!r} of this object: it was completed or aborted, or never begun.",
        kind="upload_not_found",
    )


def put_part(context: RepositoryContext, upload_id: str, *, number: int, stored: Entry, expected: bytes) -> None:
    """Record a stored part. It replaces a part of the same number.

    Args:
        stored: from `lakebed.repo.objects.data.upload`.
        expected: the upload's record, from `open_upload`.

    Raises:
        NotFound: kind ``upload_not_found``: the upload was completed or aborted meanwhile.
    Cost: 1 write.
    """
    part = Part(stored.address, stored.size_bytes, stored.checksum, stored.modified_ms)
    key = context.keys.part(upload_id, number)
    try:
        # The address is new, so the record is unique to this call.
        write_unique(
            context.key_value, [(key, encode_record(part))], expected={context.keys.upload(upload_id): expected}
        )
    except Conflict as error:
        check_only_unexpected(error)
        raise _no_upload(upload_id) from error


def list_parts(context: RepositoryContext, upload_id: str, *, after: int = 0) -> Iterator[tuple[int, Part]]:
    """Iterate over numbers and parts of an upload, in order, lazily. Cost: 1 scan."""
    with context.key_value.snapshot() as snapshot:
        for name, part in read_records(
            snapshot, context.keys.parts(upload_id), Part, after=f"{after:05d}" if after else None
        ):
            yield int(name), part


def list_uploads(context: RepositoryContext, *, branch: str | None, prefix: str) -> list[tuple[str, Upload]]:
    """List ids and records of open uploads, ordered by branch and path, then by their start. Cost: 1 scan.

    Args:
        branch: only uploads to this branch; None: to all.
        prefix: only uploads of paths with this prefix.
    """
    with context.key_value.snapshot() as snapshot:
        uploads = [
            (name, upload)
            for name, upload in read_records(snapshot, context.keys.upload(), Upload)
            if upload.completed is None
            and (branch is None or upload.branch == branch)
            and upload.path.startswith(prefix)
        ]
    return sorted(uploads, key=lambda row: (f"{row[1].branch}/{row[1].path}".encode(), row[0]))


def abort_upload(context: RepositoryContext, upload_id: str, *, branch: str, path: str) -> None:
    """Abort an upload. A collection deletes the bytes of its parts later.

    Raises:
        NotFound: kind ``upload_not_found``.
    Cost: 1 scan, 2 writes.
    """
    _, raw = open_upload(context, upload_id, branch=branch, path=path)
    try:
        context.key_value.set_if(context.keys.upload(upload_id), None, expected=raw)
    except Conflict as error:
        check_only_unexpected(error)
        raise _no_upload(upload_id) from error
    _remove_parts(context, upload_id)


def _remove_parts(context: RepositoryContext, upload_id: str) -> None:
    """Delete the records of parts of an upload that accepts no more parts."""
    while True:
        with context.key_value.snapshot() as snapshot:
            bounds = prefix_range(context.keys.parts(upload_id))
            batch = [key for key, _ in islice(snapshot.scan(*bounds), _KEYS_AT_ONCE)]
        if not batch:
            return
        context.key_value.write(deletes=batch)


def join_checksum(parts: Sequence[Part]) -> str:
    """The checksum of an object that was joined from parts, as in S3: the MD5 of their MD5s, and their number."""
    digests = b"".join(bytes.fromhex(part.checksum) for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def choose_parts(context: RepositoryContext, upload_id: str, wanted: Sequence[WantedPart]) -> list[Part]:
    """Load the parts that a completion names, and check them.

    Raises:
        InvalidRequest: kind ``invalid_part``: a part is missing, or has another checksum; ``invalid_part_order``;
            ``part_too_small``.
    """
    if not wanted:
        raise InvalidRequest("An upload is completed with at least one part: name them.", kind="invalid_part")
    if any(after.number <= before.number for before, after in pairwise(wanted)):
        raise InvalidRequest("The parts are not in ascending order: order them.", kind="invalid_part_order")
    stored_parts = dict(list_parts(context, upload_id))
    parts = []
    for part in wanted:
        record = stored_parts.get(part.number)
        if record is None or record.checksum != part.checksum:
            raise InvalidRequest(
                f"Part {part.number} was not uploaded, or its ETag is another: upload it again.", kind="invalid_part"
            )
        parts.append(record)
    for part, record in zip(wanted[:-1], parts[:-1], strict=True):
        if record.size_bytes < PART_BYTES_MIN:
            raise InvalidRequest(
                f"Part {part.number} has {record.size_bytes:,} bytes, and every part but the last has at least "
                f"{PART_BYTES_MIN:,}.",
                kind="part_too_small",
            )
    return parts


def complete_upload(
    context: RepositoryContext,
    upload_id: str,
    *,
    branch: str,
    path: str,
    wanted: Sequence[WantedPart],
    matches: Callable[[Entry | None], bool] | None = None,
    check: Callable[[], None] = lambda: None,
    stated: Stated | None = None,
) -> Entry:
    """Join the parts of an upload to an object, and stage it.

    Args:
        matches: returns whether the entry visible at the path (None: no entry) may be replaced; None: it always may.
        check: called after the bytes are joined, and before anything refers to them. Its errors end the call.
        stated: facts about the whole object; None: the caller states none.

    Returns:
        The object's entry; a repeated call returns the same.

    Raises:
        NotFound: kind ``upload_not_found``; ``object_gone``: parts are so old that a collection deleted them.
        InvalidRequest: as `choose_parts`, and as `lakebed.repo.heads.write.stage`; kind ``size_differs``.
        AlreadyExists: kind ``path_exists``: `matches` refused.
        Conflict: kind ``branch_moved``, ``upload_expired``.
        OutcomeUnknown: complete it again.
    Cost: 1 GET a chunk of each part and the PUTs of the whole; 1 scan, 1 write of the key-value store.
    """
    upload, raw = load_upload(context, upload_id, branch=branch, path=path)
    if upload.completed is not None:
        return upload.completed
    load_branch(context, branch)
    try:
        parts = choose_parts(context, upload_id, wanted)
    except InvalidRequest:
        # If the upload was aborted or completed meanwhile, the records of its parts were deleted.
        upload, _ = load_upload(context, upload_id, branch=branch, path=path)
        if upload.completed is not None:
            return upload.completed
        raise
    size_bytes = sum(part.size_bytes for part in parts)
    stated = stated or Stated()
    if stated.size_bytes is not None and stated.size_bytes != size_bytes:
        raise InvalidRequest(
            f"The parts have {size_bytes:,} bytes, and {stated.size_bytes:,} were stated: name all parts.",
            kind="size_differs",
        )
    entry = _join(context, upload, parts, observe=stated.observe)
    if stated.description is not None:
        content_type, metadata = stated.description
        entry = msgspec.structs.replace(entry, content_type=content_type, metadata=metadata)
    check()
    return _publish(context, upload_id, upload, raw, entry=entry, matches=matches)


def _join(
    context: RepositoryContext, upload: Upload, parts: Sequence[Part], *, observe: Callable[[Buffer], None] | None
) -> Entry:
    """Join parts to an object. A single part is used as it is; several are written to a new address."""
    size_bytes = sum(part.size_bytes for part in parts)
    address = parts[0].address

    def chunks() -> Iterator[Buffer]:
        for part in parts:
            if part.size_bytes:
                for chunk in data.stream(context, Entry(part.address, part.size_bytes, part.checksum, 0)):
                    if observe is not None:
                        observe(chunk)
                    yield chunk

    if len(parts) > 1:
        address = new_address(context.environment)
        context.store.put_stream(address, chunks(), create_only=True)
    elif observe is not None:
        for _ in chunks():
            pass
    return Entry(address, size_bytes, join_checksum(parts), context.now_ms(), upload.content_type, upload.metadata)


def _publish(
    context: RepositoryContext,
    upload_id: str,
    upload: Upload,
    raw: bytes,
    *,
    entry: Entry,
    matches: Callable[[Entry | None], bool] | None,
) -> Entry:
    """Stage the entry and mark the upload completed, in one change."""
    key, path = context.keys.upload(upload_id), check_path(upload.path, writing=True)
    value, ulid = check_entry(entry, upload.path)
    completed = encode_record(msgspec.structs.replace(upload, completed=entry))
    attempts = WriteAttempts(context, upload.branch, operation="complete_upload")
    while True:
        expected: dict[bytes, bytes | None] = {key: raw}
        if matches is None:
            precondition = attempts.look()
        else:
            [(newest, lower)], precondition = attempts.read(lambda view: view.layers_of([path]))
            visible = lower if newest is None else newest or None
            if not matches(None if visible is None else decode_entry(visible, where=upload.path)):
                raise path_exists(context, upload.branch, upload.path)
            expected[precondition.token_prefix + path] = newest
        check_age(ulid, precondition.boundary)
        puts = [(key, completed), (precondition.token_prefix + path, value)]
        if matches is not None:
            puts.append(precondition.mark)
        try:
            write_unique(context.key_value, puts, expected={**precondition.on_both, **expected})
        except Conflict as error:
            check_only_unexpected(error)
            upload_now, _ = load_upload(context, upload_id, branch=upload.branch, path=upload.path)
            if upload_now.completed is not None:
                return upload_now.completed  # a concurrent call has completed it
            continue
        context.counters.count(upload.branch, precondition.record.staging.id, entries=1)
        _remove_parts(context, upload_id)
        return entry


def trim_uploads(context: RepositoryContext, *, now_ms: int | None = None) -> int:
    """Delete the records of uploads that were completed a day ago, or got no part for a week. Returns their number.

    Args:
        now_ms: the present time; None: the earlier of this process's clock and the store's.

    Cost: 1 scan, and 1 scan and 2 writes for each upload.
    """
    is_given = now_ms is not None
    now_ms = context.now_ms() if now_ms is None else now_ms
    with context.key_value.snapshot() as snapshot:
        uploads = [
            row
            for row in read_records(snapshot, context.keys.upload(), Upload)
            if row[1].started_at_ms < now_ms - _ENDED_MS
        ]
    if uploads and not is_given:
        now_ms = context.earlier_ms()
    removed_count = 0
    for name, upload in uploads:
        raw = context.key_value.get(context.keys.upload(name))
        last_ms = max((part.modified_ms for _, part in list_parts(context, name)), default=upload.started_at_ms)
        age_ms = now_ms - (last_ms if upload.completed is None else upload.completed.modified_ms)
        if raw is None or age_ms < (_IDLE_MS if upload.completed is None else _ENDED_MS):
            continue
        try:
            context.key_value.set_if(context.keys.upload(name), None, expected=raw)
        except Conflict:
            continue  # it was completed or aborted meanwhile
        _remove_parts(context, name)
        removed_count += 1
    return removed_count
