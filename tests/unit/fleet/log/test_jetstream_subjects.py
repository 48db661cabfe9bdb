"""Records among the messages of a subject."""

from __future__ import annotations

from lakebed.fleet.log.jetstream import Message
from lakebed.fleet.log.jetstream_subjects import dense
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.log.record import begin, encode_beginning, encode_log_record, mark_of

TIMELINE = "tenant/main"
WRITE_ID = "00000000-0000-4000-8000-000000000001"


def messages(*sizes: int) -> list[Message]:
    """The beginning of a timeline, and records of so many rows."""
    mark = begin(TIMELINE, after=0)
    result = [Message(1, {}, encode_beginning(TIMELINE, after=0, write_id=WRITE_ID))]
    for size in sizes:
        body = encode_log_record(rows_of([b"k"] * size, [b"v"] * size), before=mark, write_id=WRITE_ID)
        result.append(Message(10 * len(result), {}, body))
        mark = mark_of(body)
    return result


def test_records_end_at_a_hole() -> None:
    """A replica that lacks a message gives what is before it, and nothing when the first one is missing."""
    all_of_them = messages(2, 1, 3, 1)
    assert [(sequence, record.last_lsn) for sequence, record in dense(all_of_them, TIMELINE, 0)] == [
        (10, 2),
        (20, 3),
        (30, 6),
        (40, 7),
    ]
    assert [record.last_lsn for _, record in dense(all_of_them, TIMELINE, 3)] == [6, 7]
    assert [record.last_lsn for _, record in dense(all_of_them, TIMELINE, 4)] == [6, 7]
    holed = [*all_of_them[:2], *all_of_them[3:]]
    assert [record.last_lsn for _, record in dense(holed, TIMELINE, 0)] == [2]
    assert dense(holed[2:], TIMELINE, 2) == []
    assert dense(all_of_them, TIMELINE, 7) == []
