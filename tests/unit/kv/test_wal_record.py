"""The bytes of a log record."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.kv.wal_record import FENCE_BYTES, decode_record, encode_fence, encode_record, find_write_id
from lakebed.lsm.memtable import Memtable

WRITE_ID = "01234567-89ab-4def-8123-456789abcdef"


def table(first_sequence: int = 5) -> Memtable:
    """Rows of every kind."""
    rows = Memtable(first_sequence)
    rows.put(b"a", b"1")
    rows.delete(b"b")
    rows.merge(b"c", b"2")
    rows.put(b"d", b"", 99)
    return rows


RECORD = encode_record(table().log(0, 4), id=7, epoch=3, write_id=WRITE_ID)
FENCE = encode_fence(id=7, epoch=3, write_id=WRITE_ID)


def resealed(body: bytes, at: int, value: bytes) -> bytes:
    """A record with other header bytes and the right checksum for them."""
    header = bytearray(body[:80])
    header[at : at + len(value)] = value
    return bytes(header) + struct.pack("<Q", xxhash.xxh3_64_intdigest(header)) + body[88:]


def test_a_record_comes_back() -> None:
    """A record is what its bytes say."""
    record = decode_record(RECORD, path="x", id=7)
    assert (record.id, record.epoch, record.write_id) == (7, 3, WRITE_ID)
    assert (record.first_sequence, record.last_sequence, record.row_count, record.is_fence) == (5, 8, 4, False)
    assert record.rows == table().log(0, 4)
    assert find_write_id(RECORD) == WRITE_ID


@pytest.mark.parametrize("first", [0, 4, 6, 2**62])
def test_a_record_begins_with_the_sequence_of_its_header(first: int) -> None:
    """Neither an earlier nor a later one; and its rows are as many as it says."""
    with pytest.raises(Corruption, match=f"do not run on from {first}"):
        decode_record(resealed(RECORD, 48, struct.pack("<Q", first)), path="x", id=7)
    with pytest.raises(Corruption, match=f"header says {first + 5}"):
        decode_record(resealed(RECORD, 56, struct.pack("<Q", first + 5)), path="x", id=7)


def test_a_fence_has_one_size_and_no_rows() -> None:
    """A listing distinguishes fences from records by the size that only they have."""
    fence = decode_record(FENCE, path="x", id=7)
    assert (fence.is_fence, fence.row_count, fence.epoch, fence.last_sequence) == (True, 0, 3, 0)
    assert len(FENCE) == FENCE_BYTES
    smallest = Memtable(1)
    smallest.delete(b"k")
    assert len(encode_record(smallest.log(0, 1), id=1, epoch=1, write_id=WRITE_ID)) > FENCE_BYTES


@given(
    first=st.integers(1, 2**62),
    rows=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.none() | st.binary(max_size=200)), min_size=1),
)
def test_any_rows_come_back(first: int, rows: list[tuple[bytes, bytes | None]]) -> None:
    """Whatever the keys and values are."""
    memtable = Memtable(first)
    memtable.extend([key for key, _ in rows], [value for _, value in rows])
    batch = memtable.log(0, len(rows))
    record = decode_record(encode_record(batch, id=1, epoch=1, write_id=WRITE_ID), path="x")
    assert record.rows == batch
    assert record.first_sequence == first


@pytest.mark.parametrize("body", [RECORD, FENCE], ids=["record", "fence"])
def test_every_flipped_byte_is_found(body: bytes) -> None:
    """Change any bit: `Corruption` with path and offset, never rows, never another error."""
    for position in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[position] ^= 1 << bit
            with pytest.raises(Corruption) as caught:
                decode_record(damaged, path="wal/7", id=7)
            assert caught.value.facts["path"] == "wal/7"
            assert 0 <= caught.value.facts["offset"] <= len(body)


@pytest.mark.parametrize("body", [RECORD, FENCE], ids=["record", "fence"])
def test_every_dropped_byte_is_found(body: bytes) -> None:
    """Drop any byte, cut anywhere, add something: `Corruption`."""
    damaged = [body[:at] + body[at + 1 :] for at in range(len(body))]
    damaged += [body[:at] for at in range(len(body))] + [body + b"\0", body + body, b"\0" + body]
    for item in damaged:
        with pytest.raises(Corruption):
            decode_record(item, path="x", id=7)


@given(body=st.binary(max_size=200))
def test_isolation_are_corruption(body: bytes) -> None:
    """Bytes of any other kind are named as such."""
    with pytest.raises(Corruption):
        decode_record(body, path="x")
    assert find_write_id(body) is None


def test_a_record_under_another_name_is_corruption() -> None:
    """A record that was copied to another number is found."""
    with pytest.raises(Corruption, match="under the name of another"):
        decode_record(RECORD, path="x", id=8)


@pytest.mark.parametrize(("at", "value"), [(8, b"\2\0\0\0"), (12, b"\1\0\0\0")], ids=["version", "feature"])
def test_what_is_newer_is_refused(at: int, value: bytes) -> None:
    """A newer version or an unknown feature asks for an upgrade."""
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode_record(resealed(RECORD, at, value), path="x", id=7)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (48, struct.pack("<Q", 6)),
        (56, struct.pack("<Q", 3)),
        (56, struct.pack("<Q", 0)),
        (64, struct.pack("<Q", 0)),
        (64, struct.pack("<Q", 2**63)),
    ],
    ids=["first sequence", "fewer rows", "no rows", "no body", "huge body"],
)
def test_a_header_that_contradicts_its_rows_is_corruption(at: int, value: bytes) -> None:
    """A header with a right checksum and wrong numbers is not believed."""
    with pytest.raises(Corruption):
        decode_record(resealed(RECORD, at, value), path="x", id=7)


def test_a_fence_that_claims_rows_is_corruption() -> None:
    """A header alone has no rows, for any header."""
    with pytest.raises(Corruption):
        decode_record(resealed(FENCE, 56, struct.pack("<Q", 3)), path="x", id=7)


def test_rows_that_are_no_rows_are_corruption() -> None:
    """A body with a right checksum that Arrow cannot read is named, without Arrow's traceback."""
    for rest in (b"x" * 50, RECORD[88:-100], RECORD[88:120] + b"\0" * 200):
        header = bytearray(RECORD[:80])
        header[64:80] = struct.pack("<QQ", len(rest), xxhash.xxh3_64_intdigest(rest))
        body = bytes(header) + struct.pack("<Q", xxhash.xxh3_64_intdigest(header)) + rest
        with pytest.raises(Corruption) as caught:
            decode_record(body, path="x", id=7)
        assert caught.value.facts["offset"] == FENCE_BYTES


def longer_by(count: int) -> bytes:
    """The record, with so many bytes more behind it, or fewer."""
    return RECORD + b"x" * count if count > 0 else RECORD[:count]


@pytest.mark.parametrize(
    ("body", "id", "offset"),
    [
        *((RECORD[:size], 7, size) for size in (0, 1, 8, 87)),
        (b"LAKEBWAK" + RECORD[8:], 7, 0),
        (b"LAKEBWAM" + RECORD[8:], 7, 0),
        (RECORD[:80] + bytes(8) + RECORD[88:], 7, 0),
        (RECORD, 8, 32),
        (RECORD, 6, 32),
        (longer_by(-1), 7, len(RECORD) - 1),
        (longer_by(-9), 7, len(RECORD) - 9),
        (longer_by(1), 7, len(RECORD)),
        (longer_by(9), 7, len(RECORD)),
        (RECORD[:-1] + b"\xff", 7, 88),
        (resealed(FENCE, 56, struct.pack("<Q", 3)), 7, 56),
        (resealed(RECORD, 48, struct.pack("<Q", 6)), 7, 88),
        (resealed(RECORD, 56, struct.pack("<Q", 3)), 7, 88),
    ],
)
def test_damage_is_said_where_it_is(body: bytes, id: int, offset: int) -> None:
    """At the field of the header that is wrong, at the end of what is there, or where the rows begin."""
    with pytest.raises(Corruption) as caught:
        decode_record(body, path="wal/7", id=id)
    assert caught.value.facts == {"path": "wal/7", "offset": offset}


def test_bytes_are_those_of_the_page() -> None:
    """Each field stands where the page of the format has it, in a record and in a fence."""
    for body, first_sequence, row_count in ((RECORD, 5, 4), (FENCE, 0, 0)):
        rest = body[88:]
        fields = struct.unpack_from("<8sII16sQQQQQQQ", body)
        assert fields == (
            b"LAKEBWAL",
            1,
            0,
            bytes.fromhex(WRITE_ID.replace("-", "")),
            7,
            3,
            first_sequence,
            row_count,
            len(rest),
            xxhash.xxh3_64_intdigest(rest),
            xxhash.xxh3_64_intdigest(body[:80]),
        )


def test_only_a_whole_header_has_a_write_id() -> None:
    """A fence has one; what is shorter, or begins with other letters, before or after these, has none."""
    assert find_write_id(FENCE) == find_write_id(RECORD) == WRITE_ID
    for body in (FENCE[:87], b"LAKEBWAK" + FENCE[8:], b"LAKEBWAM" + FENCE[8:], b""):
        assert find_write_id(body) is None
