"""Values of paths: what is the same, what is read out of columns, and what damage is called."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Corruption
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.model.entry import (
    IDENTITY_BYTES,
    address_ulid,
    decode_entry,
    encode_entries,
    encode_entry,
    identities,
    new_address,
    sizes_of,
)
from lakebed.repo.model.model import TOMBSTONE, Entry
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

ENTRY = Entry("data/01HF7YAT00000000000000000A", 12, "c" * 32, 1_700_000_000_000, "text/csv", {"b": "2", "a": "1"})
"""An entry with something in every field."""

NUMBERS = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1]
"""Sizes on both sides of every width that MessagePack has."""

ADDRESSES = [
    "",
    "a",
    "data/01HF7YAT00000000000000000A",
    "s3://b/" + "k" * 24,
    "s3://b/" + "k" * 25,
    "s3://b/" + "é" * 200,
]
"""Addresses on both sides of every width."""


def changed(**fields: object) -> Entry:
    """`ENTRY` with other fields."""
    return msgspec.structs.replace(ENTRY, **fields)


def _identity(entry: Entry) -> bytes:
    return encode_entry(entry)[:IDENTITY_BYTES]


def test_an_entry_comes_back_as_it_was_put() -> None:
    """Encoding and decoding are inverse for every width of number and text."""
    entries = [changed(address=address, size_bytes=number) for address in ADDRESSES for number in NUMBERS]
    assert [decode_entry(value, where="here") for value in encode_entries(entries)] == entries


def test_entries_that_differ_in_place_and_time_are_the_same() -> None:
    """Identity covers checksum, size, content type and metadata, in whatever order the metadata was given."""
    same = [
        changed(address="data/01HF7YAT00000000000000000B"),
        changed(modified_ms=1),
        changed(metadata={"a": "1", "b": "2"}),
    ]
    others = [changed(checksum="d"), changed(size_bytes=13), changed(content_type=""), changed(metadata={"a": "1"})]
    identity = _identity(ENTRY)
    assert [_identity(entry) for entry in same] == [identity] * len(same)
    assert len({identity, *(_identity(entry) for entry in others)}) == 1 + len(others)
    assert len(identity) == IDENTITY_BYTES


def test_an_entry_without_checksum_is_known_by_its_address() -> None:
    """Where nothing is known of the bytes, another address is another object."""
    here, present = changed(checksum="", address="s3://b/1"), changed(checksum="", address="s3://b/2")
    assert _identity(here) != _identity(present)
    assert _identity(here) == _identity(msgspec.structs.replace(here, modified_ms=0))


def test_equal_entries_have_equal_bytes() -> None:
    """The order in which metadata was given leaves no trace, so ranges of equal entries have one hash."""
    assert encode_entry(changed(metadata={"a": "1", "b": "2"})) == encode_entry(ENTRY)


def test_columns_of_identities_and_sizes_agree_with_the_entries() -> None:
    """What is read out of a column, or a slice of one, is what each value says; tombstones and nulls are zero."""
    entries = [changed(address=address, size_bytes=number) for address in ADDRESSES for number in NUMBERS]
    values = [*encode_entries(entries), TOMBSTONE]
    random.Random(7).shuffle(values)
    for start in (0, 1, 5, len(values) - 1, len(values)):
        some = values[start:]
        column = pa.array(values, pa.binary()).slice(start)
        assert [row.tobytes() for row in identities(column)] == [value[:16] or bytes(16) for value in some]
        sizes = [decode_entry(value, where="here").size_bytes if value else 0 for value in some]
        assert sizes_of(column, where="here").tolist() == sizes
    nullable = pa.array([None, values[0], None, TOMBSTONE], pa.binary())
    assert identities(nullable)[:, 0].astype(bool).tolist() == [False, bool(values[0]), False, False]


def test_columns_of_tombstones_and_empty_columns_are_zero() -> None:
    """Where no value has content, there is nothing to read."""
    for count in (0, 3):
        column = pa.array([TOMBSTONE] * count, pa.binary())
        assert not identities(column).any()
        assert identities(column).shape == (count, 2)
        assert sizes_of(column, where="here").tolist() == [0] * count


def test_a_damaged_value_is_corruption_that_says_where() -> None:
    """Whatever is cut off or put in the place of a value, the error names it and no other error comes out."""
    value = encode_entry(ENTRY)
    size_end = value.index(b"\x0c") + 1
    noted = 0
    for damaged in [value[:size] for size in range(1, len(value))] + [value[:16] + bytes([b]) * 9 for b in range(256)]:
        with pytest.raises(Corruption, match="a/b") as caught:
            decode_entry(damaged, where="a/b")
        assert caught.value.facts["path"] == "a/b"
        try:  # columns of sizes look no further than the size
            assert sizes_of(pa.array([damaged], pa.binary()), where="a/b").tolist() == [12]
            assert len(damaged) > size_end
        except Corruption as error:
            noted += "a/b" in str(error)
    assert noted >= size_end + 255
    with pytest.raises(Corruption, match="fewer than an identity"):
        identities(pa.array([value, b"short"], pa.binary()))


def test_addresses_are_ulids_of_the_present() -> None:
    """A new address shows when it was made."""
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(1))
    address = new_address(environment)
    ulid = address_ulid(address)
    assert ulid is not None
    assert address == f"data/{ulid}"
    assert file_id_at(clock.now_ms()) <= ulid < file_id_at(clock.now_ms() + 1)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "data/",
        "data/x",
        "s3://b/data/01HF7YAT00000000000000000A",
        "data/a/01HF7YAT00000000000000000A",
        "data/01HF7YAT00000000000000000a",
    ],
)
def test_addresses_of_others_are_not_ours(address: str) -> None:
    """What `new_address` did not make has no ULID, so it is never deleted."""
    assert address_ulid(address) is None


def test_identities_do_not_copy_values() -> None:
    """Reading the identities of large values costs memory for the identities alone."""
    column = pa.array([encode_entry(changed(metadata={"k": "v" * 100_000}))] * 50, pa.binary())
    before = pa.total_allocated_bytes()
    result = identities(column)
    assert pa.total_allocated_bytes() == before
    assert result.nbytes == 50 * IDENTITY_BYTES
    assert (result == result[0]).all()
    assert np.asarray(result[0]).tobytes() == column[0].as_py()[:IDENTITY_BYTES]
