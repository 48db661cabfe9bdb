"""Messages of lakeFS: what is written is read, and ids are those that lakeFS gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import Corruption
from lakebed.repo.lakefs.messages import (
    LakefsCommit,
    LakefsEntry,
    LakefsRange,
    LakefsReference,
    decode_lakefs_commit,
    decode_lakefs_entry,
    decode_lakefs_range,
    decode_lakefs_reference,
    encode_lakefs_commit,
    encode_lakefs_entry,
    encode_lakefs_range,
    encode_lakefs_reference,
    split_value,
)
from lakebed.repo.lakefs.wire import encode_signed, encode_varint, read_signed, read_varint

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
TIME_MS = st.integers(-(1 << 40), 1 << 45)
ENTRIES = st.builds(
    LakefsEntry,
    address=TEXT,
    modified_ms=TIME_MS,
    size_bytes=st.integers(0, (1 << 63) - 1),
    etag=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    address_type=st.integers(0, 2),
    content_type=TEXT,
)
COMMITS = st.builds(
    LakefsCommit,
    id=TEXT,
    committer=TEXT,
    message=TEXT,
    created_at_ms=TIME_MS,
    metarange_id=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    parents=st.lists(st.text("0123456789abcdef", min_size=1, max_size=64), max_size=3).map(tuple),
    version=st.integers(0, 1),
    generation=st.integers(0, 1 << 31),
)


@given(ENTRIES)
def test_an_entry_comes_back(entry: LakefsEntry) -> None:
    """Every field, also those with their defaults, and times before 1970."""
    assert decode_lakefs_entry(split_value(encode_lakefs_entry(entry))[1]) == entry


@given(COMMITS)
def test_a_commit_comes_back(commit: LakefsCommit) -> None:
    """Every field, and all parents in their order."""
    assert decode_lakefs_commit(split_value(encode_lakefs_commit(commit))[1]) == commit


@given(TEXT, TEXT, st.binary(max_size=9), st.binary(max_size=9), st.integers(0, 1 << 62))
def test_references_and_ranges_come_back(name: str, id: str, first: bytes, last: bytes, count: int) -> None:
    """Names, ids, bounds and counts."""
    reference, range_ = LakefsReference(name, id), LakefsRange(id, first, last, count, count)
    assert decode_lakefs_reference(split_value(encode_lakefs_reference(reference))[1]) == reference
    assert decode_lakefs_range(encode_lakefs_range(range_)) == range_


@given(st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_come_back(unsigned: int, signed: int) -> None:
    """Varints of both kinds."""
    assert read_varint(encode_varint(unsigned), 0) == (unsigned, len(encode_varint(unsigned)))
    assert read_signed(encode_signed(signed), 0) == (signed, len(encode_signed(signed)))


@given(st.binary(max_size=60))
def test_other_bytes_are_an_error_or_a_message(data: bytes) -> None:
    """Whatever the bytes are, nothing but `Corruption` comes of them."""
    for decode in (decode_lakefs_entry, decode_lakefs_commit, decode_lakefs_reference, decode_lakefs_range):
        try:
            decode(data)
        except Corruption:
            continue


def test_a_number_without_an_end_is_an_error() -> None:
    """A varint that goes on behind 64 bits, or behind its bytes."""
    for data in (b"\xff" * 11, b"\x80"):
        with pytest.raises(Corruption):
            read_varint(data, 0)
