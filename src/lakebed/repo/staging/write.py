"""Writing to a branch: puts, deletes, prefixes, batches; the protocol by which nothing that was acknowledged is lost.

Owns: every write to a staging token. One try reads the branch's record and the collection's boundary, and writes under
the record's staging token in one atomic change that expects both to be as they were read. So a row only ever lands in
a token while that is the branch's staging token: whoever seals it and then reads it has every row that will ever be in
it, and what a reader has seen of it never vanishes by being written too late. A try that met another record is made
again, on the fresh token.

Invariants:
- A write is acknowledged only when its row was, at the moment of the write, in the branch's staging token.
- A staged entry is removed without a tombstone only where no older layer has the path, in a change that expects the
  record: else a compaction that has read the entry would bring it back.
- An address of ours that is staged is not older than the boundary: a collection takes no bytes that are being named.
- `delete_prefix` writes no row: it seals, and the fresh token hides what lies below it.

Why this is sound, and what each failure leaves: docs/design/0016-staging.md. Does not know: how bytes were uploaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, OutcomeUnknown
from lakebed.metrics import default_registry
from lakebed.repo.branches import load_branch
from lakebed.repo.entry import address_ulid, decode_entry, encode_entry
from lakebed.repo.home import Home
from lakebed.repo.key_value.port import KeyValueSnapshot
from lakebed.repo.model import TOMBSTONE, Branch, Entry
from lakebed.repo.names import check_branch_name, check_path, check_prefix
from lakebed.repo.protection import check_writable
from lakebed.repo.records import decode_record, encode_record, new_token, write_unique
from lakebed.repo.rows import prefix_range
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

_RETRIES: Final = default_registry.counter(
    "lakebed_repo_retries_total",
    help_text="Times an operation on a branch began again because the branch changed meanwhile.",
    label_names=("operation",),
)

_NEEDED: Final = ("path", "address", "size_bytes", "checksum", "modified_ms")
_OPTIONAL: Final = ("content_type", "metadata")


@dataclass(frozen=True, slots=True)
class _Standing:
    """What a try rests on."""

    record: Branch
    guards: Mapping[bytes, bytes | None]
    """Record and boundary as they were read: expected of the write."""
    boundary: bytes | None
    token_prefix: bytes


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
    for standing in _tries(home, branch, "stage"):
        _check_age(ulid, standing.boundary)
        if _put(home, [standing.token_prefix + key], [value], expected=standing.guards):
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
    check_writable(home, check_branch_name(branch))
    for snapshot, standing in _moments(home, branch, "stage_if_absent"):
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
        if _put(home, [staged], [value], expected={**standing.guards, staged: own}):
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
    check_writable(home, check_branch_name(branch))
    for standing in _tries(home, branch, "stage_many"):
        _check_age(oldest, standing.boundary)
        if not paths:
            return 0
        prefix = standing.token_prefix
        keys = [prefix + path for path in paths]
        if _put(home, keys, column, expected=standing.guards):
            home.counters.count(branch, standing.record.staging.id, entries=len(paths))
            return len(paths)
    raise AssertionError  # tries end with an error


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
    check_writable(home, check_branch_name(branch))
    for snapshot, standing in _moments(home, branch, "delete"):
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
        if _bury(home, standing, buried, removed):
            home.counters.count(branch, standing.record.staging.id, entries=-len(removed), tombstones=len(buried))
            return len(buried) + len(removed)
    raise AssertionError  # tries end with an error


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
    check_writable(home, check_branch_name(branch))
    key = home.keys.branch(branch)
    for snapshot, standing in _moments(home, branch, "delete_prefix"):
        view = branch_view(home, standing.record, snapshot=snapshot)
        if next(view.rows(start or None, end), None) is None:
            return False
        record = standing.record
        token = new_token(home.environment, clears=prefix)
        after = msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))
        try:
            write_unique(home.key_value, [(key, encode_record(after))], expected={key: standing.guards[key]})
        except Conflict as error:
            _check_only_unexpected(error)
            continue
        home.counters.count(branch, token.id, tombstones=1)
        home.counters.count_seal(branch)
        return True
    raise AssertionError  # tries end with an error


# ---- one try


def _tries(home: Home, branch: str, operation: str) -> Iterator[_Standing]:
    """What each try rests on, from what this process knows: the write proves it. Ends with `Conflict`."""
    check_writable(home, check_branch_name(branch))
    key_value, key = home.key_value, home.keys.branch(branch)
    tries = _Tries(home, branch, operation)
    while True:
        raw = key_value.peek(key)
        if raw is None:  # that there is no such branch must be true, not only what this process knows
            record, raw = load_branch(home, branch)
        else:
            record = decode_record(raw, Branch, key=key)
        tries.begin(record)
        yield _standing(home, branch, record, raw, key_value.peek(home.keys.boundary))


def _moments(home: Home, branch: str, operation: str) -> Iterator[tuple[KeyValueSnapshot, _Standing]]:
    """The same for tries that look before they write: each with a snapshot of its moment. Ends with `Conflict`."""
    tries = _Tries(home, branch, operation)
    while True:
        with home.key_value.snapshot() as snapshot:
            record, raw = load_branch(home, branch, snapshot=snapshot)
            tries.begin(record)
            yield snapshot, _standing(home, branch, record, raw, snapshot.get(home.keys.boundary))


def _standing(home: Home, branch: str, record: Branch, raw: bytes, boundary: bytes | None) -> _Standing:
    guards = {home.keys.branch(branch): raw, home.keys.boundary: boundary}
    return _Standing(record, guards, boundary, home.keys.token(record.staging.id))


class _Tries:
    """Counts the tries of one write.

    `RepositoryOptions.write_tries_max` is about tokens: a record that changed and kept its token, as by a commit that
    is published while we look, counts against the larger number of `RepositoryOptions.publish_tries_max`.
    """

    def __init__(self, home: Home, branch: str, operation: str) -> None:
        self._home = home
        self._branch = branch
        self._operation = operation
        self._tokens: set[str] = set()
        self._count = 0

    def begin(self, record: Branch) -> None:
        """One more, on this record. Raises `Conflict` (``branch_moved``) when there were enough."""
        options = self._home.options
        self._tokens.add(record.staging.id)
        self._count += 1
        if self._count > 1:
            _RETRIES.add(1, self._operation)
        if len(self._tokens) > options.write_tries_max or self._count > options.publish_tries_max:
            raise Conflict(
                f"Branch {self._branch} of repository {self._home.name} was changed by others at each of "
                f"{self._count - 1} tries to write to it: try again.",
                kind="branch_moved",
                branch=self._branch,
            )


def _put(home: Home, keys: Sequence[bytes], values: Sequence[bytes], *, expected: Mapping[bytes, bytes | None]) -> bool:
    """Write rows, if all is as expected; whether it was."""
    try:
        if len(keys) == 1:
            home.key_value.write([(keys[0], values[0])], expected=expected)
        else:
            home.key_value.put_columns(keys, values, expected=expected)
    except Conflict as error:
        _check_only_unexpected(error)
        return False
    except OutcomeUnknown:
        if home.key_value.get(keys[0]) != values[0]:
            raise
    return True


def _bury(home: Home, standing: _Standing, buried: Sequence[bytes], removed: Mapping[bytes, bytes | None]) -> bool:
    """Write tombstones and remove staged entries; whether all was as expected.

    No address is named, so the boundary does not matter.
    """
    branch = {key: raw for key, raw in standing.guards.items() if key != home.keys.boundary}
    if not removed:
        return _put(home, buried, [TOMBSTONE] * len(buried), expected=branch)
    try:
        home.key_value.write([(key, TOMBSTONE) for key in buried], list(removed), expected={**branch, **removed})
    except Conflict as error:
        _check_only_unexpected(error)
        return False
    except OutcomeUnknown:
        with home.key_value.snapshot() as snapshot:
            if any(snapshot.get(key) != raw for key, raw in branch.items()):
                raise
            if any(value is not None for value in snapshot.get_many(removed)):
                raise
    return True


def _check_only_unexpected(error: Conflict) -> None:
    """Pass when a conditional write met another value; raise every other conflict."""
    if error.kind != "unexpected_value":
        raise error


# ---- what may be staged


def _encoded(entry: Entry, path: str) -> tuple[bytes, str | None]:
    """The encoded entry, if it can be staged, and the ULID of its address, if that is ours."""
    if not isinstance(entry, Entry):
        raise InvalidRequest(
            f"An Entry is staged, and {type(entry).__name__} was given for {path!r}.", kind="wrong_type"
        )
    ulid = address_ulid(entry.address)
    if ulid is None and "://" not in entry.address:
        raise InvalidRequest(
            f"{entry.address!r} is neither an address of the repository nor the URL of an object: stage what was "
            "uploaded or is to be imported.",
            kind="invalid_address",
            path=path,
        )
    if entry.size_bytes < 0:
        raise InvalidRequest(f"{path!r} cannot have {entry.size_bytes} bytes.", kind="invalid_size", path=path)
    try:
        value = encode_entry(entry)
    except (UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidRequest(
            f"What is said of {path!r} cannot be stored ({error}): its fields are Unicode text and 64-bit numbers.",
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
    count = columns.num_rows
    types = _as_list(columns.column("content_type"), "content_type") if "content_type" in names else [None] * count
    metadata = columns.column("metadata").to_pylist() if "metadata" in names else [None] * count
    default = Entry("", 0, "", 0)
    for path, address, size_bytes, checksum, modified_ms, content_type, pairs in zip(
        *listed, types, metadata, strict=True
    ):
        entry = Entry(
            address,
            size_bytes,
            checksum,
            modified_ms,
            default.content_type if content_type is None else content_type,
            dict(pairs) if pairs else {},
        )
        yield path, entry


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
