"""One append to JetStream, until its outcome is known.

Invariants: a message is stored only if the last message of its subject is the one that its record continues. An append
that got no clear answer is published again at the same position, with the same bytes and message id, until the stream
says that the timeline ends elsewhere; then it is found among the messages behind that position, or none of its attempts
can be stored any more. So at most one message has its rows.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.log.jetstream import REQUEST_S, JetStream, WrongSequence
from lakebed.fleet.log.jetstream_subjects import Subjects, Tail, headers_of, mark_in
from lakebed.fleet.log.port import READ_BYTES_DEFAULT, unexpected_lsn
from lakebed.fleet.log.record import encode_log_record, mark_of

_TRIES_MAX: Final = 16
"""Attempts at once, each of which another writer may win."""
_AGAIN_S: Final = 0.5
"""How long a message that is published again waits for its answer. Shorter than at first: it may have met a server that
stands still, and the next one meets the new leader."""

Ends = tuple[int, int]
"""Of the timeline at the first and the last attempt that got no clear answer: LSNs."""


class Appending:
    """One append.

    Args:
        timeline, rows, write_id, expected: as `Log.append` takes them, checked.
        unclear: of an earlier call with the same write id that gave up.

    Attributes:
        unclear: messages of attempts behind these ends may be there, or may come yet; None: there is none such.
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
        unclear: Ends | None = None,
    ) -> None:
        self._jetstream = jetstream
        self._subjects = subjects
        self._timeline = timeline
        self._rows = rows
        self._write_id = write_id
        self._expected = expected
        self._ends_elsewhere = False
        """Whether the stream said so to the last attempt."""
        self.unclear = unclear

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
        if self.unclear is not None and tail.mark.lsn > self.unclear[0]:
            found = self._found_behind(self.unclear[0])
            if found is not None:
                return found
            if tail.mark.lsn > self.unclear[1]:  # other messages are where those of unclear attempts could be
                self.unclear = None
        if self._expected is not None and self._expected != tail.mark.lsn:
            return self._refused(self._subjects.known_tail(self._timeline))
        return self._published(tail)

    def _tail(self) -> Tail:
        """The position to publish at.

        It is where this process last saw the end, also after an attempt without a clear answer: a stream without a
        leader refuses a message at once, but leaves a question for its end without an answer. So the stream is asked
        only after it has said that the timeline ends elsewhere; when it gives no answer then, a message is next.
        """
        asks, self._ends_elsewhere = self._ends_elsewhere, False
        hint = None if asks else self._subjects.hint(self._timeline)
        return hint or self._subjects.known_tail(self._timeline)

    def _refused(self, tail: Tail) -> int | None:
        assert self._expected is not None
        if self._expected == tail.mark.lsn:
            return None
        found = self._found_behind(self._expected) if self._expected < tail.mark.lsn else None
        if found is None:
            raise unexpected_lsn(self._timeline, expected=self._expected, last=tail.mark.lsn)
        return found

    def _published(self, tail: Tail) -> int | None:
        timeline = self._timeline
        number, subject = self._subjects.place(timeline)
        body = encode_log_record(self._rows, before=tail.mark, write_id=self._write_id)
        mark = mark_of(body)
        message_id = f"{timeline}/{self._write_id}"
        headers = headers_of(tail.begun_after, mark.lsn)
        timeout_s = REQUEST_S if self.unclear is None else _AGAIN_S
        try:
            stored = self._jetstream.publish(
                subject, body, expected=tail.sequence, id=message_id, headers=headers, timeout_s=timeout_s
            )
        except WrongSequence:
            self._ends_elsewhere = True
            return None
        except OutcomeUnknown:
            first, last = self.unclear or (tail.mark.lsn, tail.mark.lsn)
            self.unclear = min(first, tail.mark.lsn), max(last, tail.mark.lsn)
            raise
        if stored.is_duplicate:
            return self._lsn_at(number, stored.sequence)
        self._subjects.appended(timeline, Tail(stored.sequence, mark, tail.begun_after))
        return mark.lsn

    def _lsn_at(self, number: int, sequence: int) -> int:
        """Where the message lies that has this append; of one that was pruned meanwhile the last LSN that was."""
        message = self._jetstream.at(number, sequence)
        if message is None:
            return self._subjects.first_lsn(self._timeline) - 1
        return mark_in(message, self._timeline).lsn

    def _found_behind(self, after: int) -> int | None:
        """The LSN of this append among the records behind another one."""
        while True:
            try:
                records = self._subjects.read(self._timeline, after, READ_BYTES_DEFAULT)
            except LakebedError as error:
                if error.kind == "log_pruned":
                    return None
                raise
            for record in records:
                if record.write_id == self._write_id:
                    return record.last_lsn
            if not records:
                return None
            after = records[-1].last_lsn
