"""Read and write the records of the key-value store. Each is one JSON object.

Owns:
- the encoding of records, and `read_records`, which reads one kind in the order of keys;
- new tokens, and the ULIDs of records that are read in order (`OrderedIds`);
- the removal of old records (`trim_records`), and the search for unknown ones (`refuse_unknown`);
- the two writes that detect by themselves whether they happened (`write_unique`, `replace_record`), and the resolution
  of a write whose reply was lost (`resolving_outcome`).

Invariants: equal records have equal bytes, so that a record can be compared whole. Stored bytes that are not a record
are `Corruption`. A record that is ever changed, or that permits something, is refused if it has an unknown field
(`UnsupportedFormat`): so a change never drops an unknown field, and a rule is never applied without it. Commits, tags
and lines of the reference log never change. They are read without their unknown fields, but not by a collection
(`decode_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from lakebed.decoding import decode_json, find_unknown_part, hold_type_lock
from lakebed.errors import (
    Conflict,
    Corruption,
    InvalidRequest,
    LakebedError,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.key_value.port import KeyValue, KeyValueSnapshot
from lakebed.lsm.file_id import mint_file_id
from lakebed.repo.model.layout import RECORD_FOLDERS, SETTINGS, Keys, repository_key
from lakebed.repo.model.model import Branch, Commit, RepositoryRecord, StagingToken, Tag
from lakebed.repo.model.rows import prefix_range
from lakebed.runtime import Environment

R = TypeVar("R", bound=msgspec.Struct)

_ENCODER = msgspec.json.Encoder()

_KEPT_KINDS: Final[frozenset[type[msgspec.Struct]]] = frozenset((RepositoryRecord, Branch, Tag, Commit))
"""Kinds of records that are kept decoded, by their bytes: every read of a branch needs some, and none is changed."""
_KEPT_BYTES_MAX: Final = 2 << 10
"""Most bytes of a record that is kept decoded."""
_KEPT_COUNT_MAX: Final = 1_024
"""Records that are kept decoded: 5 MB at most."""
_TRIM_COUNT_MAX: Final = 10_000
"""Most records that one call of `trim_records` removes, so that background work can end soon."""
_TRIM_BATCH_COUNT: Final = 1_000
"""Records that one write removes. Other writers wait while so many records are compared."""


def encode_record(record: msgspec.Struct) -> bytes:
    """The bytes of a record.

    Raises:
        InvalidRequest: kind ``invalid_text``: some text in it is not valid Unicode (half a surrogate pair).
    """
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError as error:
        raise not_unicode(f"The text of a {type(record).__name__.lower()}", error) from error


def not_unicode(what: str, error: UnicodeEncodeError) -> InvalidRequest:
    """The error for a text with half a surrogate pair."""
    return InvalidRequest(
        f"{what} is not valid Unicode ({error.reason} at {error.start}): use text that can be written as UTF-8.",
        kind="invalid_text",
    )


def decode_record(raw: bytes, kind: type[R], *, key: bytes) -> R:
    """The record in some bytes.

    Raises:
        Corruption: the bytes are not such a record.
        UnsupportedFormat: a newer lakebed wrote it.
    """
    try:
        if kind in _KEPT_KINDS and len(raw) <= _KEPT_BYTES_MAX:
            record: R = _decode_kept(raw, kind)
            return record
        return decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        key_text = key.decode(errors="backslashreplace")
        if (unknown_part := find_unknown_part(error)) is not None:
            part, name = unknown_part
            raise UnsupportedFormat(
                f"The record at {key_text} has a {part} {name!r} that this lakebed does not know: upgrade lakebed.",
                path=key_text,
                unknown=name,
            ) from error
        raise Corruption(
            f"The record at {key_text} is no {kind.__name__.lower()}: {error}. Restore the database of records.",
            path=key_text,
        ) from error


def decode_whole(raw: bytes, kind: type[R], *, key: bytes) -> R:
    """As `decode_record`, but raise `UnsupportedFormat` for any unknown field: it may name objects.

    Returns a record of a subclass of its kind. Cost: that of `decode_record`.
    """
    record: R = decode_record(raw, _whole(kind), key=key)
    return record


@lru_cache
def _whole(kind: type[msgspec.Struct]) -> Any:
    with hold_type_lock():
        return msgspec.defstruct(kind.__name__, [], bases=(kind,), frozen=True, forbid_unknown_fields=True)


@lru_cache(_KEPT_COUNT_MAX)
def _decode_kept(raw: bytes, kind: type[R]) -> R:
    return decode_json(raw, kind)


def read_records(
    snapshot: KeyValueSnapshot,
    prefix: bytes,
    kind: type[R],
    *,
    begins_with: str = "",
    after: str | None = None,
    whole: bool = False,
) -> Iterator[tuple[str, R]]:
    """Records below a prefix of keys, lazily, in the order of their names' bytes.

    Args:
        prefix: of the keys, such as ``keys.branch()``. The rest of a key is the name.
        begins_with: only names with this prefix.
        after: only names greater than this.
        whole: as `decode_whole`.

    Raises:
        Corruption: a record is damaged.
        UnsupportedFormat: a newer lakebed wrote it.
        InvalidRequest: kind ``invalid_text``.
    """
    try:
        start, end = prefix_range(prefix + begins_with.encode())
        if after is not None:
            start = max(start, prefix + after.encode() + b"\x00")
    except UnicodeEncodeError as error:
        raise not_unicode("A listing's prefix or after", error) from error
    if end is not None and start >= end:
        return
    decode = decode_whole if whole else decode_record
    for key, raw in snapshot.scan(start, end):
        yield key[len(prefix) :].decode(), decode(raw, kind, key=key)


def refuse_unknown(snapshot: KeyValueSnapshot, keys: Keys, *, name: str) -> None:
    """Refuse records that this lakebed does not know. Call it before deleting anything because no record names it.

    Raises:
        UnsupportedFormat: this lakebed does not know a kind of record, a setting, or a field of the repository's
            record. A newer lakebed may express by it that something is needed.
    Cost: 1 seek for each kind of record.
    """
    key = repository_key(name)
    if (raw := snapshot.get(key)) is not None:
        decode_whole(raw, RepositoryRecord, key=key)
    for prefix, known_names in ((keys.root, RECORD_FOLDERS), (keys.setting(), SETTINGS)):
        start, end = prefix_range(prefix)
        while (row := next(iter(snapshot.scan(start, end)), None)) is not None:
            folder, slash, _ = row[0][len(prefix) :].partition(b"/")
            if folder not in known_names:
                key_text = row[0].decode(errors="backslashreplace")
                raise UnsupportedFormat(
                    f"There is a record at {key_text}, of a kind that this lakebed does not know: upgrade lakebed.",
                    path=key_text,
                )
            start = prefix + folder + (b"0" if slash else b"\0")  # "0" is right behind the slash


def trim_records(key_value: KeyValue, prefix: bytes, is_old: Callable[[bytes, bytes], bool]) -> int:
    """Remove the records below a prefix of keys that are old and have not changed since they were read.

    Args:
        is_old: decides from the key and the bytes of a record.

    Returns:
        How many were removed; at most 10,000 for each call.

    Raises:
        Corruption: a record is damaged, where `is_old` decodes it.
    Cost: 1 scan, and 1 write for every 1,000 records that are removed.
    """
    removed_count = 0
    with key_value.snapshot() as snapshot:
        old_rows = (row for row in snapshot.scan(*prefix_range(prefix)) if is_old(*row))
        while batch := dict(islice(old_rows, min(_TRIM_BATCH_COUNT, _TRIM_COUNT_MAX - removed_count))):
            try:
                key_value.write(deletes=batch, expected=batch)
            except Conflict:
                break  # one of them changed just now: the others are removed by the next call
            removed_count += len(batch)
    return removed_count


def new_token(environment: Environment, *, clears: str | None = None) -> StagingToken:
    """A new, unique staging token.

    Args:
        clears: the prefix that it hides in every older layer; None: nothing.
    """
    return StagingToken(mint_file_id(environment=environment), clears)


class OrderedIds:
    """ULIDs of one process, each greater than the one before, also within a millisecond. Thread-safe."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = environment.runtime.lock()
        self._last: str | None = None

    def mint(self) -> str:
        """The next ULID, of the present time."""
        with self._lock:
            self._last = mint_file_id(self._last, environment=self._environment)
            return self._last


def replace_record(key_value: KeyValue, key: bytes, value: bytes, *, expected: bytes) -> bool:
    """Replace a record if its bytes are as expected. The new value must be unique to this call.

    Returns:
        False: the record is not as expected. Read it and decide again.

    Cost: 1 write; after an unclear reply 1 linearizable read more.
    """
    try:
        key_value.set_if(key, value, expected=expected)
    except Conflict:
        return False
    except OutcomeUnknown as unclear:
        with resolving_outcome(unclear):
            return key_value.get(key) == value
    return True


def write_unique(
    key_value: KeyValue,
    puts: Sequence[tuple[bytes, bytes]],
    deletes: Iterable[bytes] = (),
    *,
    expected: Mapping[bytes, bytes | None],
) -> None:
    """One atomic write that detects by itself whether it happened: its first put has a value unique to this call.

    Args:
        puts: the first holds something unique, such as a new token, under a key that only changes by comparison.
        deletes, expected: as `KeyValue.write`.

    Raises:
        Conflict: kind ``unexpected_value``; nothing was written.
        OutcomeUnknown: it may still happen.
    Cost: 1 write; after an unclear reply or a conflict 1 linearizable read more.
    """
    try:
        key_value.write(puts, deletes, expected=expected)
    except (Conflict, OutcomeUnknown) as problem:
        key, value = puts[0]
        with resolving_outcome(problem):
            happened = key_value.get(key) == value
        if not happened:
            raise


def race_error(operation: str, *, of: str, kind: str, **facts: object) -> Conflict:
    """The error of a change if other writers were faster at every try.

    Args:
        operation: a word, such as ``commit``.
        of: the object of the change.
    """
    return Conflict(
        f"The {operation} lost every race for {of} against others, and changed nothing: try again.", kind=kind, **facts
    )


@contextmanager
def resolving_outcome(problem: LakebedError) -> Iterator[None]:
    """Run a block that reads whether a write has happened.

    If that read fails too, the outcome stays unknown. `Unavailable` would mean that nothing happened, and a caller that
    retries because of it could overwrite what others wrote meanwhile.

    Raises:
        OutcomeUnknown: `problem` itself, if that is one.
    """
    try:
        yield
    except Unavailable:
        if isinstance(problem, OutcomeUnknown):
            raise problem from None
        raise
