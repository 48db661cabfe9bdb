"""One append to JetStream, until its outcome is known.

Invariants: a message is stored only if the last message of its subject is the one that its record continues. An append
that got no clear answer is published again at the same position, with the same bytes and message id, until the stream
says that the timeline ends elsewhere. Then the message behind that position is looked at: it is this append's, or none
of the attempts there can be stored any more. So at most one message has its rows. Behind the message that ends a
timeline nothing is published: it is the last one of its subject for ever.
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
"""Attempts at once, each of which another writer may win."""
_AGAIN_S: Final = 0.5
"""How long a message that is published again waits for its answer. Shorter than at first: it may have met a server that
stands still, and the next one meets the new leader."""


class Appending:
    """One append.

    Args:
        timeline, rows, write_id, expected: as `Log.append` takes them, checked.
        unclear: of an earlier call with the same write id that gave up.

    Attributes:
        unclear: sequences of the messages behind which attempts got no clear answer: they may be stored, or may be yet.
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
        """Whether the stream said so to the last attempt."""
        self.unclear = unclear or set()

    def attempt(self) -> int:
        """The LSN of the last row. To be called again after `Unavailable` and `OutcomeUnknown`."""
        for _ in range(_TRIES_MAX):
            lsn = self._once()
            if lsn is not None:
                return lsn
        raise Unavailable("Other writers of the timeline were faster each time.", kind="log_contended")

    def _once(self) -> int | None:
        """The LSN, or None if the timeline ends elsewhere by now."""
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
        """The position to publish at.

        It is where this process last saw the end, also after an attempt without a clear answer: a stream without a
        leader refuses a message at once, but leaves a question for its end without an answer. So the stream is asked
        only after it has said that the timeline ends elsewhere; when it gives no answer then, a message is next.
        """
        asks, self._ends_elsewhere = self._ends_elsewhere, False
        hint = None if asks else self._subjects.hint(self._timeline)
        return hint or self._subjects.require_tail(self._timeline)

    def _find_earlier(self, end: Tail) -> int:
        """The LSN of this append in a timeline that has ended, if an earlier call made it.

        The stream is asked by the message's id, at a position in front of the end, where nothing is stored any more.
        Raises `Conflict` or `NotFound`: it was not made, and never will be.
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
        if self._expected < tail.mark.lsn:  # this append can only be the record behind the expected LSN
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
        """Publish the record that continues a tail; the LSN at its end, or that of the message with the same id."""
        timeline = self._timeline
        number, subject = self._subjects.place(timeline)
        body = encode_log_record(self._rows, before=tail.mark, write_id=self._write_id)
        mark = mark_of(body)
        message_id = f"{timeline}/{self._write_id}"
        headers = headers_of(tail.begun_after, mark.lsn)
        timeout_s = _AGAIN_S if self.unclear else REQUEST_S
        stored = self._jetstream.publish(
            subject, body, expected=expected, id=message_id, headers=headers, timeout_s=timeout_s
        )
        if stored.is_duplicate:
            return self._lsn_at(number, stored.sequence)
        self._subjects.note_append(timeline, Tail(stored.sequence, mark, tail.begun_after))
        return mark.lsn

    def _lsn_at(self, number: int, sequence: int) -> int:
        """Where the message lies that has this append; of one that was pruned meanwhile the last LSN that was."""
        message = self._jetstream.at(number, sequence)
        if message is None:
            return self._subjects.first_lsn(self._timeline) - 1
        return mark_in(message, self._timeline).lsn

    def _settle(self, tail: Tail) -> int | None:
        """The LSN of this append, if an attempt without a clear answer was stored.

        Its message can only be the next one of the subject behind its position. When that is another one, the attempt
        will never be stored. Cost: 1 request for each position at which an attempt was lost: one, as a rule.
        """
        for sequence in sorted(self.unclear):
            if sequence < tail.sequence:
                record = self._subjects.next_record(self._timeline, sequence)
                if record.write_id == self._write_id:
                    return record.last_lsn
                self.unclear.discard(sequence)
        return None
