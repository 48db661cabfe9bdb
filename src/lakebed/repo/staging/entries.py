"""Check and encode entries before they are staged, one at a time or many at once. Pure.

Owns: the checks, and the conversion of columns to entries. Invariant: an entry that could not be read again is refused
before anything is written. Entries without metadata are checked together, field by field, in C. The others are checked
one by one, so that the error can name the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import Corruption, InvalidRequest
from lakebed.repo.model.entry import SIZE_BYTES_MAX, address_ulid, decode_entry, encode_entries, encode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_paths

VALUE_BYTES_MAX: Final = 64 << 10
"""Longest encoded entry, in bytes, with its content type and metadata."""

_PLAIN_TEXT_MAX: Final = 4 << 10
"""Longest address, checksum or type of an entry that is not checked alone: several together are far below the limit."""

_NEEDED: Final = ("path", "address", "size_bytes", "checksum", "modified_ms")
_OPTIONAL: Final = ("content_type", "metadata")
_USUAL_TYPE: Final = Entry("", 0, "", 0).content_type
_NO_METADATA: Final[dict[str, str]] = {}
"""Shared by entries that are only encoded."""


def validate_columns(pairs: Iterable[tuple[str, Entry]]) -> tuple[list[bytes], list[bytes], str | None]:
    """Check and encode many entries.

    Returns:
        Paths as in keys, each once (if a path repeats, its last entry counts); their encoded entries; and the ULID of
        the oldest upload among them, if there is one.

    Raises:
        InvalidRequest: as `check_entry`, and as `check_paths`.
    Cost: about 2 us an entry.
    """
    pair_list = list(pairs)
    names, entries = [path for path, _ in pair_list], [entry for _, entry in pair_list]
    keys = check_paths(names)
    if _are_plain(entries):
        values = encode_entries(entries)
        ulids = [ulid for ulid in [address_ulid(entry.address) for entry in entries] if ulid is not None]
    else:
        rows = [check_entry(entry, path) for path, entry in pair_list]
        values = [value for value, _ in rows]
        ulids = [ulid for _, ulid in rows if ulid is not None]
    if len(set(keys)) < len(keys):
        last = dict(zip(keys, values, strict=True))
        keys, values = list(last), list(last.values())
    return keys, values, min(ulids, default=None)


def _are_plain(entries: list[Entry]) -> bool:
    """Whether the fast check accepts all entries. If not, the check of each entry decides."""
    if not set(map(type, entries)) <= {Entry}:
        return False
    addresses = [entry.address for entry in entries]
    texts = [entry.checksum for entry in entries] + [entry.content_type for entry in entries]
    numbers = [entry.size_bytes for entry in entries]
    times = [entry.modified_ms for entry in entries]
    if not (set(map(type, addresses)) | set(map(type, texts)) <= {str}):
        return False
    if not (set(map(type, numbers)) | set(map(type, times)) <= {int}):
        return False
    if any(type(entry.metadata) is not dict or entry.metadata for entry in entries):
        return False
    if not 0 <= min(numbers, default=0) <= max(numbers, default=0) <= SIZE_BYTES_MAX:
        return False
    if not -SIZE_BYTES_MAX <= min(times, default=0) <= max(times, default=0) <= SIZE_BYTES_MAX:
        return False
    if max(map(len, addresses), default=0) > _PLAIN_TEXT_MAX or max(map(len, texts), default=0) > _PLAIN_TEXT_MAX:
        return False
    if not all("://" in address or address_ulid(address) is not None for address in addresses):
        return False
    try:
        "".join(addresses).encode()
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_entry(entry: Entry, path: str) -> tuple[bytes, str | None]:
    """Check and encode an entry. Returns also the ULID of its address, if it is an upload.

    Raises:
        InvalidRequest: kind ``wrong_type``, ``invalid_address``, ``invalid_size``, ``invalid_entry``,
            ``oversized_metadata``.
    """
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
            f"The entry of {path!r} cannot be stored: use Unicode text and 64-bit numbers ({error}).",
            kind="invalid_entry",
            path=path,
        ) from error
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"The entry of {path!r} has {len(value):,} bytes, and {VALUE_BYTES_MAX:,} are possible: give less "
            "metadata, or put it into an object.",
            kind="oversized_metadata",
            path=path,
        )
    return value, ulid


def _is_plain(entry: Entry) -> bool:
    """Whether an entry without metadata has fields of the right types: its constructor does not check them."""
    return (
        type(entry.checksum) is str
        and type(entry.content_type) is str
        and type(entry.modified_ms) is int
        and type(entry.metadata) is dict
    )


def pairs_of(columns: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, Entry]]:
    """Paths and entries of columns.

    Raises:
        InvalidRequest: kind ``invalid_columns``.
    """
    names = columns.schema.names
    missing = [name for name in _NEEDED if name not in names]
    unknown_columns = [name for name in names if name not in (*_NEEDED, *_OPTIONAL)]
    if missing or unknown_columns:
        raise InvalidRequest(
            f"Entries have the columns {', '.join(_NEEDED)} and maybe {', '.join(_OPTIONAL)}: "
            f"{', '.join(missing) or 'none'} missing, {', '.join(unknown_columns) or 'none'} unknown.",
            kind="invalid_columns",
        )
    column_lists: list[list[Any]] = []
    for name in _NEEDED:
        column = columns.column(name)
        if column.null_count:
            raise InvalidRequest(f"The column {name} of entries has nulls.", kind="invalid_columns")
        column_lists.append(_as_list(column, name))
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
    paths, *fields = column_lists
    return zip(paths, map(Entry, *fields, types, metadata), strict=True)


def _as_list(column: Any, name: str) -> list[Any]:
    """Convert a column to Python objects, if it is of the right kind."""
    is_number = name in ("size_bytes", "modified_ms")
    has_type = pa.types.is_integer(column.type) if is_number else _is_text(column.type)
    if not has_type:
        raise InvalidRequest(
            f"The column {name} of entries is of {column.type}, and {'integers' if is_number else 'text'} are needed.",
            kind="invalid_columns",
        )
    items: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return items


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
