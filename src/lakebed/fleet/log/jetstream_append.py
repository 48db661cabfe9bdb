"""One append to JetStream, until its outcome is known.

Invariants:
- A message is stored only if the last message of its subject is the one that its record continues.
- An append without a clear answer is published again at the same position, with the same bytes and message id, until
  the stream says that the timeline ends elsewhere. Then the message after that position is read. Either it is this
  append's, or none of the attempts at that position can be stored any longer. So at most one message has its rows.
- Nothing is published after the message that ends a timeline. It stays the last one of its subject.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.fleet.log.jetstream import REQUEST_S, JetStream, WrongSequence
from lakebed.fleet.log.jetstream_subjects import Subjects, Tail, headers_of, mark_in
from lakebed.fleet.log.port import lsn_conflict, timeline_not_found, timeline_sealed
from lakebed.fleet.log.record import End, encode_log_record, mark_of

_TRIES_MAX: Final = 16
"""Most attempts of one call. Another writer may win each of them."""
_AGAIN_S: Final = 0.5
"""Time limit of a message that is published again. Shorter than the first limit: the first message may have met a
server that hangs, and the next one meets the new leader."""


class Appending:
    """One append.

    Args:
        timeline, rows, write_id, expected: as `Log.append` takes them, checked.
        unclear: the `unclear` of an earlier call with the same write id that gave up.

    Attributes:
        unclear: sequences of the messages after which attempts got no clear answer. They may be stored now or later.
    """

    def __init__(
        self,
        jetstream: JetStream,
        subjects: Subjects,
        timeline: str,
        rows: pa.RecordBatch,
        *,
        write_id: str,
        expected: int | None,
        unclear: set[int] | None = None,
    ) -> None:
        self._jetstream = jetstream
        self._subjects = subjects
        self._timeline = timeline
        self._rows = rows
        self._write_id = write_id
        self._expected = expected
        self._ends_elsewhere = False
        """Whether the stream gave this answer to the last attempt."""
        self.unclear = unclear or set()

    def attempt(self) -> int:
        """Append, and return the LSN of the last row. Call again after `Unavailable` and `OutcomeUnknown`."""
        for _ in range(_TRIES_MAX):
            lsn = self._once()
            if lsn is not None:
                return lsn
        raise Unavailable("Other writers of the timeline were faster each time.", kind="log_contended")

    def _once(self) -> int | None:
        """Try once. Return the LSN, or None if the timeline ends elsewhere by now."""
        tail = self._tail()
        lsn = self._settle(tail)
        if lsn is not None:
            return lsn
        if tail.end is not End.OPEN:
            return self._find_earlier(tail)
        if self._expected is not None and self._expected != tail.mark.lsn:
            return self._refuse(self._subjects.require_tail(self._timeline))
        return self._publish(tail)

    def _tail(self) -> Tail:
        """Return the position to publish at: the end of the timeline as this process last saw it.

        This holds also after an attempt without a clear answer. A stream without a leader refuses a message at once,
        but does not answer a request for its end. So the end is read only after the stream said that the timeline
        ends elsewhere. If that read fails, the next attempt publishes a message.
        """
        asks, self._ends_elsewhere = self._ends_elsewhere, False
        hint = None if asks else self._subjects.hint(self._timeline)
        return hint or self._subjects.require_tail(self._timeline)

    def _find_earlier(self, end: Tail) -> int:
        """Return the LSN of this append in a timeline that has ended, if an earlier call made it.

        Publish the message with its id again, at a position before the end, where nothing can be stored. The stream
        recognizes the id. Raises `Conflict` or `NotFound`: the append was not made, and never will be.
        """
        if end.end is End.DROPPED:
            raise timeline_not_found(self._timeline)
        try:
            return self._send(end, expected=end.sequence - 1)
        except WrongSequence:
            raise timeline_sealed(self._timeline, last=end.mark.lsn) from None

    def _refuse(self, tail: Tail) -> int | None:
        assert self._expected is not None
        if self._expected == tail.mark.lsn:
            return None
        if self._expected < tail.mark.lsn:  # only the record after the expected LSN can be this append
            record = self._subjects.next_record(
                self._timeline, self._subjects.find(self._timeline, self._expected, tail) - 1
            )
            if record.write_id == self._write_id:
                return record.last_lsn
        raise lsn_conflict(self._timeline, expected=self._expected, last=tail.mark.lsn)

    def _publish(self, tail: Tail) -> int | None:
        try:
            return self._send(tail, expected=tail.sequence)
        except WrongSequence:
            self._ends_elsewhere = True
            return None
        except OutcomeUnknown:
            self.unclear.add(tail.sequence)
            raise

    def _send(self, tail: Tail, *, expected: int) -> int:
        """Publish the record that continues a tail. Return the LSN at its end, or at that of a duplicate by id."""
        timeline = self._timeline
        number, subject = self._subjects.place(timeline)
        body = encode_log_record(self._rows, before=tail.mark, write_id=self._write_id)
        mark = mark_of(body)
        message_id = f"{timeline}/{self._write_id}"
        headers = headers_of(tail.begun_after, mark.lsn)
        timeout_s = _AGAIN_S if self.unclear else REQUEST_S
        position = self._jetstream.publish(
            subject, body, expected=expected, id=message_id, headers=headers, timeout_s=timeout_s
        )
        if position.is_duplicate:
            return self._lsn_at(number, position.sequence)
        self._subjects.note_append(timeline, Tail(position.sequence, mark, tail.begun_after))
        return mark.lsn

    def _lsn_at(self, number: int, sequence: int) -> int:
        """Return the last LSN of the message with this append; if it was pruned meanwhile, the last pruned LSN."""
        message = self._jetstream.at(number, sequence)
        if message is None:
            return self._subjects.first_lsn(self._timeline) - 1
        return mark_in(message, self._timeline).lsn

    def _settle(self, tail: Tail) -> int | None:
        """Return the LSN of this append if an attempt without a clear answer was stored.

        Its message can only be the next message of the subject after its position. If another message is there, the
        attempt will never be stored. Cost: 1 request for each position with an unclear attempt, usually one.
        """
        for sequence in sorted(self.unclear):
            if sequence < tail.sequence:
                record = self._subjects.next_record(self._timeline, sequence)
                if record.write_id == self._write_id:
                    return record.last_lsn
                self.unclear.discard(sequence)
        return None
