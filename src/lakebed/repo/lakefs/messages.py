"""The messages in lakeFS's files: entries of objects, commits, branches, tags and ranges. Pure data, and its bytes.

Owns: the numbers of the fields, from lakeFS's ``catalog.proto``, ``graveler.proto`` and ``committed.proto``; the frame
of a value (identity, then data); the ids that lakeFS computes from contents. They are another program's format: DO NOT
CHANGE them. Times are Unix nanoseconds in lakeFS, milliseconds here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lakebed.errors import Corruption
from lakebed.repo.lakefs.wire import (
    bytes_field,
    encode_signed,
    map_field,
    number_field,
    read_fields,
    read_signed,
    signed_64,
    text_field,
)

BY_PREFIX: Final = 0
RELATIVE: Final = 1
FULL: Final = 2
"""The constants above are the kinds of an entry's address. `BY_PREFIX`: in old entries, its form decides; `RELATIVE`:
below the storage namespace; `FULL`: a URL."""

PARENTS_SWITCHED: Final = 1
"""From this version of commits on, a merge's first parent is the branch's head; before, it was the merged source."""


class LakefsEntry(msgspec.Struct, frozen=True, gc=False):
    """An object of lakeFS."""

    address: str
    modified_ms: int
    size_bytes: int
    etag: str
    metadata: dict[str, str]
    address_type: int
    content_type: str


class LakefsCommit(msgspec.Struct, frozen=True):
    """A commit of lakeFS."""

    id: str
    committer: str
    message: str
    created_at_ms: int
    metarange_id: str
    """Id of its metarange; empty: there are no entries, and no file."""
    metadata: dict[str, str]
    parents: tuple[str, ...]
    version: int = PARENTS_SWITCHED
    generation: int = 1


class LakefsReference(msgspec.Struct, frozen=True):
    """A branch or a tag of lakeFS."""

    name: str
    commit_id: str


class LakefsRange(msgspec.Struct, frozen=True):
    """A range of lakeFS, as its metarange stores it."""

    id: str
    first_key: bytes
    last_key: bytes
    size_bytes: int
    """Estimated size of its file."""
    count: int


# ---- reading


def split_value(value: bytes) -> tuple[bytes, bytes]:
    """Split a value into identity and data. Raises `Corruption`. Cost: about 0.5 us."""
    size, position = read_signed(value, 0)
    if not 0 <= size <= len(value) - position:
        raise _wrong_value(value, size)
    identity, position = value[position : position + size], position + size
    data_size, position = read_signed(value, position)
    if not 0 <= data_size <= len(value) - position:
        raise _wrong_value(value, data_size)
    return identity, value[position : position + data_size]


def _wrong_value(value: bytes, size: int) -> Corruption:
    return Corruption(f"A value of {len(value):,} bytes has a part of {size:,} bytes.")


def decode_lakefs_entry(data: bytes) -> LakefsEntry:
    """Decode an entry. Raises `Corruption`. Cost: about 5 us."""
    fields: dict[int, int | bytes] = {}
    metadata: dict[str, str] = {}
    for number, value in read_fields(data):
        if number == 5:
            key, text = _pair(value)
            metadata[key] = text
        else:
            fields[number] = value
    return LakefsEntry(
        address=_text(fields.get(1, b"")),
        modified_ms=_milliseconds(fields.get(2, b"")),
        size_bytes=signed_64(_number(fields.get(3, 0))),
        etag=_text(fields.get(4, b"")),
        metadata=metadata,
        address_type=_number(fields.get(6, BY_PREFIX)),
        content_type=_text(fields.get(7, b"")),
    )


def decode_lakefs_commit(data: bytes) -> LakefsCommit:
    """Decode a commit. Raises `Corruption`."""
    fields: dict[int, int | bytes] = {}
    metadata: dict[str, str] = {}
    parents: list[str] = []
    for number, value in read_fields(data):
        if number == 6:
            key, text = _pair(value)
            metadata[key] = text
        elif number == 7:
            parents.append(_text(value))
        else:
            fields[number] = value
    return LakefsCommit(
        id=_text(fields.get(1, b"")),
        committer=_text(fields.get(2, b"")),
        message=_text(fields.get(3, b"")),
        created_at_ms=_milliseconds(fields.get(4, b"")),
        metarange_id=_text(fields.get(5, b"")),
        metadata=metadata,
        parents=tuple(parents),
        version=_number(fields.get(8, 0)),
        generation=_number(fields.get(9, 0)),
    )


def decode_lakefs_reference(data: bytes) -> LakefsReference:
    """Decode a branch or a tag: both have the same first two fields. Raises `Corruption`."""
    fields = dict(read_fields(data))
    return LakefsReference(_text(fields.get(1, b"")), _text(fields.get(2, b"")))


def decode_lakefs_range(value: bytes) -> LakefsRange:
    """Decode a range from its value in the metarange. Raises `Corruption`."""
    identity, data = split_value(value)
    fields = dict(read_fields(data))
    return LakefsRange(
        id=_text(identity),
        first_key=_bytes(fields.get(1, b"")),
        last_key=_bytes(fields.get(2, b"")),
        size_bytes=_number(fields.get(3, 0)),
        count=signed_64(_number(fields.get(4, 0))),
    )


def _pair(message: int | bytes) -> tuple[str, str]:
    fields = dict(read_fields(_bytes(message)))
    return _text(fields.get(1, b"")), _text(fields.get(2, b""))


def _milliseconds(timestamp: int | bytes) -> int:
    fields = dict(read_fields(_bytes(timestamp)))
    seconds, nanoseconds = signed_64(_number(fields.get(1, 0))), _number(fields.get(2, 0))
    return seconds * 1000 + nanoseconds // 1_000_000


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Corruption("A field that holds bytes holds a number.")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise Corruption("A field that holds a number holds bytes.")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"A text is not UTF-8: {error}.") from error


# ---- writing


def join_value(identity: bytes, data: bytes) -> bytes:
    """Join identity and data to a value."""
    return encode_signed(len(identity)) + identity + encode_signed(len(data)) + data


def encode_lakefs_entry(entry: LakefsEntry) -> bytes:
    """Encode the value of an entry. Cost: about 15 us, mostly for its identity."""
    data = (
        text_field(1, entry.address)
        + _time_field(2, entry.modified_ms)
        + number_field(3, entry.size_bytes)
        + text_field(4, entry.etag)
        + map_field(5, entry.metadata)
        + number_field(6, entry.address_type)
        + text_field(7, entry.content_type)
    )
    identity = Identity().number(entry.size_bytes).text(entry.etag).texts_by_text(entry.metadata)
    if entry.content_type:
        identity.text(entry.content_type)
    return join_value(identity.digest(), data)


def encode_lakefs_commit(commit: LakefsCommit) -> bytes:
    """Encode the value of a commit in a dump."""
    data = (
        text_field(1, commit.id)
        + text_field(2, commit.committer)
        + text_field(3, commit.message)
        + _time_field(4, commit.created_at_ms)
        + text_field(5, commit.metarange_id)
        + map_field(6, commit.metadata)
        + b"".join(text_field(7, parent) for parent in commit.parents)
        + number_field(8, commit.version)
        + number_field(9, commit.generation)
    )
    return join_value(commit.id.encode(), data)


def encode_lakefs_reference(reference: LakefsReference) -> bytes:
    """Encode the value of a branch or a tag in a dump."""
    data = text_field(1, reference.name) + text_field(2, reference.commit_id)
    return join_value(reference.commit_id.encode(), data)


def encode_lakefs_range(range_: LakefsRange) -> bytes:
    """Encode the value of a range in its metarange."""
    data = (
        bytes_field(1, range_.first_key)
        + bytes_field(2, range_.last_key)
        + number_field(3, range_.size_bytes)
        + number_field(4, range_.count)
    )
    return join_value(range_.id.encode(), data)


def _time_field(field: int, time_ms: int) -> bytes:
    seconds, milliseconds = divmod(time_ms, 1000)
    return bytes_field(field, number_field(1, seconds) + number_field(2, milliseconds * 1_000_000)) or (
        bytes((field << 3 | 2, 0))  # a present message whose fields all have their defaults
    )


# ---- ids

_BYTES, _TEXT, _NUMBER, _TEXTS, _MAP, _EMBEDDED = range(6)
"""Bytes that mark the type of the next value in an identity's content."""


class Identity:
    """lakeFS's hash of typed contents: SHA-256 over values, each preceded by a byte for its type and by its length."""

    def __init__(self) -> None:
        self._content = bytearray()

    def number(self, value: int) -> Identity:
        """Add a 64-bit number."""
        self._content += bytes((_NUMBER, 8)) + (value & (1 << 64) - 1).to_bytes(8, "big")
        return self

    def text(self, value: str) -> Identity:
        """Add a text."""
        text_bytes = value.encode(errors="surrogateescape")  # properties of a table may be any bytes
        self._content.append(_TEXT)
        self.number(len(text_bytes))
        self._content += text_bytes
        return self

    def texts(self, values: Sequence[str]) -> Identity:
        """Add texts."""
        self._content.append(_TEXTS)
        self.number(len(values))
        for value in values:
            self.text(value)
        return self

    def texts_by_text(self, values: Mapping[str, str]) -> Identity:
        """Add a map."""
        self._content.append(_MAP)
        self.number(len(values))
        for key in sorted(values):
            self.text(key).text(values[key])
        return self

    def embedded(self, digest: bytes) -> Identity:
        """Add the digest of another identity."""
        self._content += bytes((_EMBEDDED, _BYTES))
        self.number(len(digest))
        self._content += digest
        return self

    def content(self) -> bytes:
        """The bytes that are hashed."""
        return bytes(self._content)

    def digest(self) -> bytes:
        """The SHA-256 of the content."""
        return hashlib.sha256(self._content).digest()


def lakefs_commit_id(commit: LakefsCommit) -> str:
    """The id that lakeFS gives a commit with these contents; the field `id` is ignored."""
    parents = Identity().texts(commit.parents).digest()
    return (
        Identity()
        .text("commit:v1")
        .text(commit.committer)
        .text(commit.message)
        .text(commit.metarange_id)
        .number(commit.created_at_ms // 1000)
        .texts_by_text(commit.metadata)
        .embedded(parents)
        .digest()
        .hex()
    )
