"""Writing to a branch: puts, deletes, prefixes, batches.

Owns: the verbs, and what may be staged. How a try is made so that nothing is lost: `lakebed.repo.staging.protocol`.

Invariants:
- A write is acknowledged only when its row was, at the moment of the write, in the branch's staging token.
- A staged entry is removed without a tombstone only where no older layer has the path, in a change that expects the
  record: else a compaction that has read the entry would bring it back.
- An address of ours that is staged is not older than the boundary: a collection takes no bytes that are being named.
- `delete_prefix` writes no row: it seals, and the fresh token hides what lies below it.

Does not know: how bytes were uploaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.repo.entry import address_ulid, decode_entry, encode_entry
from lakebed.repo.home import Home
from lakebed.repo.model import TOMBSTONE, Entry
from lakebed.repo.names import check_branch_name, check_path, check_prefix
from lakebed.repo.protection import check_writable
from lakebed.repo.records import encode_record, new_token, write_unique
from lakebed.repo.rows import prefix_range
from lakebed.repo.staging.protocol import Tries, check_only_unexpected, replace_rows, write_rows
from lakebed.repo.staging.view import branch_view

__all__ = [
    "VALUE_BYTES_MAX",
    "delete",
    "delete_many",
    "delete_prefix",
    "link",
    "stage",
    "stage_if_absent",
    "stage_many",
]

VALUE_BYTES_MAX: Final = 64 << 10
"""Longest encoded entry: what a user may say of an object beside its bytes."""

_NEEDED: Final = ("path", "address", "size_bytes", "checksum", "modified_ms")
_OPTIONAL: Final = ("content_type", "metadata")
_USUAL_TYPE: Final = Entry("", 0, "", 0).content_type
_NO_METADATA: Final[dict[str, str]] = {}
"""Shared by entries that are only encoded."""


# ---- puts


def stage(home: Home, *, branch: str, path: str, entry: Entry) -> None:
    """Give a path an entry, whatever was there.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: the path, the entry or the branch cannot be written (``invalid_path``, ``reserved_path``,
            ``invalid_address``, ``oversized_metadata``, ``protected_branch``, ...).
        Conflict: kind ``branch_moved``: the branch was sealed at every try; ``upload_expired``: the entry's bytes were
            uploaded so long ago that a collection may have taken them.
        OutcomeUnknown: the store did not say whether it was written.
    Cost: 2 peeks and 1 write of the key-value store.
    """
    key = check_path(path, writing=True)
    value, ulid = _encoded(entry, path)
    tries = Tries(home, branch, operation="stage")
    while True:
        standing = tries.look()
        _check_age(ulid, standing.boundary)
        if write_rows(home, [standing.token_prefix + key], [value], expected=standing.on_both):
            home.counters.count(branch, standing.record.staging.id, entries=1)
            return


def stage_if_absent(home: Home, *, branch: str, path: str, entry: Entry) -> None:
    """Give a path an entry, if nothing is visible there.

    What is visible and has the same address was written by an earlier try of this call, or of its caller, whose reply
    was lost; that is success, also when it was committed since.

    Raises:
        AlreadyExists: kind ``path_exists``: another entry is visible.
        Otherwise as `stage`.
    Cost: 1 snapshot, 1 read a token and 1 of the committed data, 1 write.
    """
    key = check_path(path, writing=True)
    value, ulid = _encoded(entry, path)
    tries = Tries(home, branch, operation="stage_if_absent")
    while True:
        with tries.moment() as (snapshot, standing):
            own, below = branch_view(home, standing.record, snapshot=snapshot).layers_of([key])[0]
        visible = below if own is None else own or None
        if visible is not None:
            if decode_entry(visible, where=path).address == entry.address:
                return
            raise AlreadyExists(
                f"{path!r} is there already on branch {branch} of repository {home.name}, and was to be written only "
                "if it was not.",
                kind="path_exists",
                branch=branch,
                path=path,
            )
        _check_age(ulid, standing.boundary)
        staged = standing.token_prefix + key
        if write_rows(home, [staged], [value], expected={**standing.on_both, staged: own}):
            home.counters.count(branch, standing.record.staging.id, entries=1)
            return


def stage_many(home: Home, *, branch: str, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
    """Give many paths entries, in one atomic change; of a path that repeats the last counts.

    Args:
        entries: pairs of path and entry; or columns ``path``, ``address``, ``checksum`` (text), ``size_bytes``,
            ``modified_ms`` (integers) and, if there are any, ``content_type`` (text) and ``metadata`` (map of texts).

    Returns:
        How many paths were written.

    Raises:
        InvalidRequest: as `stage`; ``invalid_columns``; ``oversized_write``: it is too much for one change.
        Otherwise as `stage`. Nothing was written then.
    Cost: 1 write of the key-value store; about 3 us an entry.
    """
    pairs = _pairs_of(entries) if isinstance(entries, pa.RecordBatch | pa.Table) else entries
    values: dict[bytes, bytes] = {}
    oldest: str | None = None
    for path, entry in pairs:
        key = check_path(path, writing=True)
        values[key], ulid = _encoded(entry, path)
        if ulid is not None and (oldest is None or ulid < oldest):
            oldest = ulid
    paths, column = list(values), list(values.values())
    tries = Tries(home, branch, operation="stage_many")
    while True:
        standing = tries.look()
        _check_age(oldest, standing.boundary)
        if not paths:
            return 0
        prefix = standing.token_prefix
        keys = [prefix + path for path in paths]
        if write_rows(home, keys, column, expected=standing.on_both):
            home.counters.count(branch, standing.record.staging.id, entries=len(paths))
            return len(paths)


def link(
    home: Home,
    *,
    branch: str,
    path: str,
    address: str,
    size_bytes: int,
    checksum: str,
    content_type: str = "application/octet-stream",
    metadata: Mapping[str, str] | None = None,
    only_if_absent: bool = False,
) -> Entry:
    """Give a path an object that was uploaded to an address of ours (`lakebed.repo.entry.new_address`).

    Returns:
        The entry that was staged.

    Raises:
        InvalidRequest: ``invalid_address``: it is not an address of this repository; ``upload_not_found``: nothing is
            there; ``upload_differs``: what is there has another size.
        Otherwise as `stage`, with `only_if_absent` as `stage_if_absent`.
    Cost: 1 HEAD, and as `stage`.
    """
    check_path(path, writing=True)
    check_writable(home, check_branch_name(branch))
    if not isinstance(address, str) or address_ulid(address) is None:
        raise InvalidRequest(
            f"{address!r} is no address of repository {home.name}: link what was uploaded to an address that the "
            "repository gave.",
            kind="invalid_address",
        )
    try:
        there = home.store.head(address).size_bytes
    except NotFound as error:
        raise InvalidRequest(
            f"Nothing was uploaded to {address} of repository {home.name}: upload first, then link.",
            kind="upload_not_found",
            address=address,
        ) from error
    if there != size_bytes:
        raise InvalidRequest(
            f"{address} of repository {home.name} has {there:,} bytes, and {size_bytes:,} were to be linked: link what "
            "was uploaded.",
            kind="upload_differs",
            address=address,
        )
    entry = Entry(address, size_bytes, checksum, home.now_ms(), content_type, dict(metadata or {}))
    (stage_if_absent if only_if_absent else stage)(home, branch=branch, path=path, entry=entry)
    return entry


# ---- deletes


def delete(home: Home, *, branch: str, path: str) -> bool:
    """Take a path away.

    Returns:
        Whether it was there; if not, nothing is written.

    Raises:
        NotFound, InvalidRequest, Conflict, OutcomeUnknown: as `stage`.
    Cost: 1 snapshot, 1 read a token and 1 of the committed data, 1 write.
    """
    return delete_many(home, branch=branch, paths=[path]) == 1


def delete_many(home: Home, *, branch: str, paths: Iterable[str]) -> int:
    """Take many paths away, in one atomic change.

    A tombstone is written where an older layer has the path, or could not be seen to have none; an entry that only the
    staging token has is removed.

    Returns:
        How many of them were there.

    Raises:
        NotFound, InvalidRequest, Conflict, OutcomeUnknown: as `stage`.
    Cost: 1 snapshot, 1 read a token for all paths together, the ranges that may have them, 1 write.
    """
    wanted = list(dict.fromkeys(check_path(path, writing=True) for path in paths))
    tries = Tries(home, branch, operation="delete")
    while True:
        with tries.moment() as (snapshot, standing):
            layers = branch_view(home, standing.record, snapshot=snapshot).layers_of(wanted)
        prefix = standing.token_prefix
        buried: list[bytes] = []
        removed: dict[bytes, bytes | None] = {}
        for path, (own, below) in zip(wanted, layers, strict=True):
            if own == TOMBSTONE or (own is None and below is None):
                continue
            if below is None:
                removed[prefix + path] = own
            else:
                buried.append(prefix + path)
        if not buried and not removed:
            return 0
        # No address is named, so the boundary does not matter.
        if removed:
            is_done = replace_rows(home, [(key, TOMBSTONE) for key in buried], removed, expected=standing.on_branch)
        else:
            is_done = write_rows(home, buried, [TOMBSTONE] * len(buried), expected=standing.on_branch)
        if is_done:
            home.counters.count(branch, standing.record.staging.id, entries=-len(removed), tombstones=len(buried))
            return len(buried) + len(removed)


def delete_prefix(home: Home, *, branch: str, prefix: str) -> bool:
    """Take away everything below a prefix; ``""``: everything. What is written afterwards is not hidden.

    Returns:
        Whether anything was there; if not, nothing changes.

    Raises:
        NotFound, InvalidRequest, OutcomeUnknown: as `stage`.
        Conflict: kind ``branch_moved``: others changed the branch at every try.
    Cost: 1 snapshot, a listing up to its first entry, 1 write of the branch's record, however much is taken away.
    """
    start, end = prefix_range(check_prefix(prefix, writing=True))
    tries = Tries(home, branch, operation="delete_prefix")
    while True:
        with tries.moment() as (snapshot, standing):
            view = branch_view(home, standing.record, snapshot=snapshot)
            if next(view.rows(start or None, end), None) is None:
                return False
        record = standing.record
        token = new_token(home.environment, clears=prefix)
        after = msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))
        try:
            puts = [(home.keys.branch(branch), encode_record(after))]
            write_unique(home.key_value, puts, expected=standing.on_branch)
        except Conflict as error:
            check_only_unexpected(error)
            continue
        home.counters.count(branch, token.id, tombstones=1)
        home.counters.count_seal(branch)
        return True


# ---- what may be staged


def _encoded(entry: Entry, path: str) -> tuple[bytes, str | None]:
    """The encoded entry, if it can be staged, and the ULID of its address, if that is ours."""
    if not isinstance(entry, Entry):
        raise InvalidRequest(
            f"An Entry is staged, and {type(entry).__name__} was given for {path!r}.", kind="wrong_type"
        )
    address = entry.address
    ulid = address_ulid(address) if isinstance(address, str) else None
    if ulid is None and (not isinstance(address, str) or "://" not in address):
        raise InvalidRequest(
            f"{address!r} is neither an address of the repository nor the URL of an object: stage what was "
            "uploaded or is to be imported.",
            kind="invalid_address",
            path=path,
        )
    if not isinstance(entry.size_bytes, int) or entry.size_bytes < 0:
        raise InvalidRequest(f"{path!r} cannot have {entry.size_bytes} bytes.", kind="invalid_size", path=path)
    try:
        value = encode_entry(entry)
        if entry.metadata or not _is_plain(entry):
            decode_entry(value, where=path)  # what could not be read again must never be written
    except (UnicodeEncodeError, TypeError, OverflowError, Corruption) as error:
        raise InvalidRequest(
            f"What is said of {path!r} cannot be stored: all of it is Unicode text or 64-bit numbers ({error}).",
            kind="invalid_entry",
            path=path,
        ) from error
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"What is said of {path!r} has {len(value):,} bytes, and {VALUE_BYTES_MAX:,} are possible: give less "
            "metadata, or put it into an object.",
            kind="oversized_metadata",
            path=path,
        )
    return value, ulid


def _is_plain(entry: Entry) -> bool:
    """Whether an entry without metadata has fields of the right types, which its constructor does not ask."""
    return (
        type(entry.checksum) is str
        and type(entry.content_type) is str
        and type(entry.modified_ms) is int
        and type(entry.metadata) is dict
    )


def _check_age(ulid: str | None, boundary: bytes | None) -> None:
    """Whether an upload is still safe from a collection. Raises `Conflict` (``upload_expired``)."""
    if ulid is not None and boundary is not None and ulid.encode() < boundary:
        raise Conflict(
            f"The upload {ulid} is older than what a collection of unused objects may have taken: upload again.",
            kind="upload_expired",
            address=ulid,
        )


def _pairs_of(columns: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, Entry]]:
    """Paths and entries of columns."""
    names = columns.schema.names
    missing = [name for name in _NEEDED if name not in names]
    unknown = [name for name in names if name not in (*_NEEDED, *_OPTIONAL)]
    if missing or unknown:
        raise InvalidRequest(
            f"Entries have the columns {', '.join(_NEEDED)} and maybe {', '.join(_OPTIONAL)}: "
            f"{', '.join(missing) or 'none'} missing, {', '.join(unknown) or 'none'} unknown.",
            kind="invalid_columns",
        )
    listed: list[list[Any]] = []
    for name in _NEEDED:
        column = columns.column(name)
        if column.null_count:
            raise InvalidRequest(f"The column {name} of entries has nulls.", kind="invalid_columns")
        listed.append(_as_list(column, name))
    types = [_USUAL_TYPE] * columns.num_rows
    if "content_type" in names:
        types = [kind or _USUAL_TYPE for kind in _as_list(columns.column("content_type"), "content_type")]
    metadata = [_NO_METADATA] * columns.num_rows
    if "metadata" in names:
        column = columns.column("metadata")
        if not pa.types.is_map(column.type):
            raise InvalidRequest(
                f"The column metadata of entries is of {column.type}, and a map of texts is needed.",
                kind="invalid_columns",
            )
        metadata = [dict(pairs) if pairs else _NO_METADATA for pairs in column.to_pylist()]
    paths, *fields = listed
    return zip(paths, map(Entry, *fields, types, metadata), strict=True)


def _as_list(column: Any, name: str) -> list[Any]:
    """A column as Python objects, if it is of the right kind."""
    is_number = name in ("size_bytes", "modified_ms")
    wanted = pa.types.is_integer(column.type) if is_number else _is_text(column.type)
    if not wanted:
        raise InvalidRequest(
            f"The column {name} of entries is of {column.type}, and {'integers' if is_number else 'text'} are needed.",
            kind="invalid_columns",
        )
    listed: list[Any] = column.to_numpy(zero_copy_only=False).tolist() if not column.null_count else column.to_pylist()
    return listed


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
