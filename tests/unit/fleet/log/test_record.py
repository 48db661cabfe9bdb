"""Records of the log: their bytes, their checks and the chain that they form."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from lakebed.errors import Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.fleet.log.port import APPEND_BYTES_MAX, check_lsn, check_rows, check_timeline, check_write_id, rows_of
from lakebed.fleet.log.record import (
    End,
    LogRecord,
    begin,
    decode_log_record,
    encode_beginning,
    encode_end,
    encode_log_record,
    mark_of,
)
from lakebed.fleet.log.timeline import Tail, decode_tail, encode_tail
from lakebed.fleet.model import LogMark
from lakebed.ids import new_uuid
from lakebed.kv.wal_record import decode_record
from lakebed.lsm.model import ROW_SCHEMA
from worlds.errors import raises
from worlds.fleet_log import check_chain

TIMELINE = "tenant/main"
WRITE_ID = "00000000-0000-4000-8000-000000000001"


def history(*sizes: int, word: bytes = b"v", after: int = 0, timeline: str = TIMELINE) -> list[LogRecord]:
    """Records of so many rows, one behind the other."""
    rng = random.Random(1)
    mark = begin(timeline, after=after)
    records = []
    for size in sizes:
        rows = rows_of([b"k%d" % number for number in range(size)], [word] * size)
        body = encode_log_record(rows, before=mark, write_id=new_uuid(rng))
        records.append(decode_log_record(body, timeline=timeline))
        mark = records[-1].mark
        assert mark == mark_of(body)
    return records


def test_a_record_is_what_was_encoded() -> None:
    """Rows, LSNs, write id and the link to the record before it come back; a value of None is a delete."""
    rows = rows_of([b"a", b"b", b"a"], [b"1", None, b""])
    body = encode_log_record(rows, before=LogMark(lsn=41, checksum="00000000000000ff"), write_id=WRITE_ID)
    log_record = decode_log_record(body, timeline=TIMELINE)
    assert (log_record.first_lsn, log_record.last_lsn, log_record.write_id) == (42, 44, WRITE_ID)
    assert log_record.previous == "00000000000000ff"
    assert log_record.columns() == ([b"a", b"b", b"a"], [b"1", None, b""])
    assert log_record.rows.column(1).to_pylist() == [42, 43, 44]
    assert log_record.size_bytes == len(body)


def test_the_checksum_is_the_documented_one() -> None:
    """Bytes 0 to 7 are the previous checksum, 8 to 15 the hash of those and of the inner record's header."""
    body = encode_log_record(rows_of([b"a"], [b"1"]), before=LogMark(lsn=0, checksum="0" * 15 + "7"), write_id=WRITE_ID)
    previous, checksum = struct.unpack_from("<QQ", body)
    assert previous == 7
    assert body[16:24] == b"LAKEBWAL"
    assert checksum == xxhash.xxh3_64_intdigest(body[:8] + body[16:104])
    assert begin(TIMELINE, after=5).checksum == xxhash.xxh3_64_hexdigest(b"tenant/main 5")


def test_every_damaged_byte_is_found() -> None:
    """A record with any one byte changed, or cut anywhere, is refused."""
    body = encode_log_record(rows_of([b"key"], [b"value"]), before=begin(TIMELINE, after=0), write_id=WRITE_ID)
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 0x40
        with pytest.raises(Corruption):
            decode_log_record(bytes(damaged), timeline=TIMELINE)
        with pytest.raises(Corruption):
            decode_log_record(body[:at], timeline=TIMELINE)


def test_a_history_is_followed_and_another_one_is_not() -> None:
    """The chain goes on from any record of its own history, and from no other position."""
    records, other = history(1, 3, 2, 1), history(1, 3, 2, 1, word=b"w")
    assert check_chain(TIMELINE, LogMark(), records) == records[-1].mark
    assert check_chain(TIMELINE, begin(TIMELINE, after=0), records) == records[-1].mark
    assert check_chain(TIMELINE, records[1].mark, records[2:]) == records[-1].mark
    forked: list[tuple[LogMark, list[LogRecord]]] = [
        (records[1].mark, other[2:]),  # as many rows, others
        (records[1].mark, records[3:]),  # one is missing
        (records[1].mark, records[1:]),  # one comes twice
        (LogMark(), records[1:]),
        (LogMark(), history(1, timeline="tenant/other")),  # another timeline's
        (LogMark(lsn=5), history(1, after=6)),
        (LogMark(lsn=records[1].mark.lsn, checksum=records[0].mark.checksum), records[2:]),
    ]
    for mark, result in forked:
        with raises(Corruption, "log_forked"):
            check_chain(TIMELINE, mark, result)


def test_a_branch_begins_after_its_parent() -> None:
    """The first record of a timeline that was begun after LSN 70 has LSN 71."""
    records = history(2, after=70)
    assert (records[0].first_lsn, records[0].last_lsn) == (71, 72)
    assert check_chain(TIMELINE, LogMark(lsn=70), records) == records[-1].mark


def test_a_beginning_says_where_a_timeline_begins() -> None:
    """A record without rows stands for the position behind which the first rows come."""
    log_record = decode_log_record(encode_beginning(TIMELINE, after=7, write_id=WRITE_ID), timeline=TIMELINE)
    assert log_record.mark == begin(TIMELINE, after=7)
    assert (log_record.first_lsn, log_record.rows.num_rows) == (8, 0)


@pytest.mark.parametrize("end", [End.SEALED, End.DROPPED])
def test_an_end_says_how_a_timeline_has_ended(end: End) -> None:
    """It stands at the position of the record before it, and a lakebed that does not know ends refuses it."""
    mark = history(1, 3)[-1].mark
    body = encode_end(mark, end, write_id=WRITE_ID)
    record = decode_log_record(body, timeline=TIMELINE)
    assert (record.mark, record.end, record.first_lsn, record.rows.num_rows) == (mark, end, 5, 0)
    assert struct.unpack_from("<I", body, 28) == (int(end),)
    with pytest.raises(UnsupportedFormat):
        decode_record(body[16:], path=TIMELINE)
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 3
        with pytest.raises(Corruption):
            decode_log_record(bytes(damaged), timeline=TIMELINE)
    for later in (3, 4):
        with pytest.raises(UnsupportedFormat):
            decode_log_record(encode_end(mark, later, write_id=WRITE_ID), timeline=TIMELINE)  # type: ignore[arg-type]


def test_a_tail_says_how_a_timeline_has_ended() -> None:
    """An open one has the 24 bytes that it always had; one that has ended 8 more, which older versions refuse."""
    mark = history(1, 3)[-1].mark
    open_ended = encode_tail(Tail(mark, 0))
    assert open_ended == struct.pack("<QQQ", 4, int(mark.checksum, 16), 0)
    assert decode_tail(open_ended, timeline=TIMELINE) == Tail(mark, 0, End.OPEN)
    sealed = encode_tail(Tail(mark, 0, End.SEALED))
    assert sealed == open_ended + struct.pack("<Q", 1)
    assert decode_tail(sealed, timeline=TIMELINE) == Tail(mark, 0, End.SEALED)
    for gone in (None, encode_tail(Tail(mark, 0, End.DROPPED))):
        with pytest.raises(NotFound):
            decode_tail(gone, timeline=TIMELINE)
    for damaged in (b"", open_ended[:-1], sealed[:-1], sealed + b"0"):
        with pytest.raises(Corruption):
            decode_tail(damaged, timeline=TIMELINE)


def test_an_end_that_is_not_known_is_refused() -> None:
    """A tail of a newer lakebed is not taken for an open one."""
    newer = struct.pack("<QQQQ", 4, 0, 0, 3)
    with pytest.raises(UnsupportedFormat):
        decode_tail(newer, timeline=TIMELINE)


def batch(**columns: Any) -> pa.RecordBatch:
    """One row, with some columns as given."""
    row = {"key": b"k", "sequence": 1, "kind": 0, "value": b"v", "expires_at_ms": None, **columns}
    return pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA)


REFUSED = {
    "no rows": (lambda: batch().slice(0, 0), "empty_append"),
    "too many rows": (lambda: rows_of([b"k"] * ((1 << 18) + 1), [b""] * ((1 << 18) + 1)), "oversized_append"),
    "too many bytes": (lambda: rows_of([b"k"] * 2, [bytes(APPEND_BYTES_MAX - 1)] * 2), "oversized_append"),
    "a long value": (lambda: rows_of([b"k"], [bytes(APPEND_BYTES_MAX + 1)]), "oversized_value"),
    "an empty key": (lambda: batch(key=b""), "empty_key"),
    "an empty key among others": (lambda: rows_of([b"a", b""], [b"", b""]), "empty_key"),
    "a long key": (lambda: batch(key=bytes(65_536)), "oversized_key"),
    "a lifetime": (lambda: batch(expires_at_ms=5), "row_with_lifetime"),
    "a merge": (lambda: batch(kind=2), "row_is_merge"),
    "a delete with a value": (lambda: batch(kind=1), "delete_with_value"),
    "other columns": (lambda: pa.RecordBatch.from_pydict({"key": [b"k"]}), "wrong_type"),
    "a table": (lambda: pa.Table.from_batches([batch()]), "wrong_type"),
    "unequal lengths": (lambda: rows_of([b"k"], []), "unequal_lengths"),
    "text": (lambda: rows_of(["k"], [b"v"]), "wrong_type"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_cannot_be_appended_are_refused(case: str) -> None:
    """Each fault of rows has its kind, and the check passes rows without one."""
    make, kind = REFUSED[case]
    with raises(InvalidRequest, kind):
        check_rows(make())
    assert check_rows(batch()).num_rows == 1
    assert check_rows(rows_of([b"a", b"b"], [None, b"x"]).slice(1, 1)).num_rows == 1


def test_the_bytes_of_an_append_are_those_of_its_rows() -> None:
    """Keys and values of the rows count, wherever they are in the batch that they were cut from."""
    rng = random.Random(7)
    pairs = [
        (rng.randbytes(rng.randint(1, 9)), rng.choice([None, rng.randbytes(rng.randint(0, 99))])) for _ in range(40)
    ]
    everything = rows_of([key for key, _ in pairs], [value for _, value in pairs])
    for first in range(40):
        for count in range(1, 41 - first):
            size = sum(len(key) + len(value or b"") for key, value in pairs[first : first + count])
            part = everything.slice(first, count)
            assert check_rows(part, bytes_max=size) is part
            with raises(InvalidRequest, "oversized_append"):
                check_rows(part, bytes_max=size - 1)


def test_names_write_ids_and_lsns_are_checked() -> None:
    """What does not name a timeline, a write or a position is refused."""
    assert check_timeline("tenant-1/main.2") == "tenant-1/main.2"
    for name in ("tenant", "tenant/", "/main", "a/b/c", "a b/c", "a/b*", "a/..", "", None, 5, "a/b\n"):
        with pytest.raises(InvalidRequest):
            check_timeline(name)
    assert check_write_id(WRITE_ID) == WRITE_ID
    for write_id in ("", "x", WRITE_ID.upper().replace("0", "A"), WRITE_ID.replace("-", ""), None, 7):
        with pytest.raises(InvalidRequest):
            check_write_id(write_id)
    for lsn in (-1, 1 << 63, "1", 1.0, None, True):
        with pytest.raises(InvalidRequest):
            check_lsn(lsn, name="after")
