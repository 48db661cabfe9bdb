"""The background threads of an open database: which steps they run, and when each is due.

There are three threads, because a long step must not delay a short one. One writes the log and the lease, one flushes
files and polls for what others publish, and one compacts. The first starts with the opening, each of the others when it
has work. So a process that opens a database for one read and closes it starts only one thread. Does not know: how a
thread waits and what it does with errors (`lakebed.kv.background`).
"""

from __future__ import annotations

from typing import Final

from lakebed.kv.background import Background, Step, Stopped
from lakebed.kv.writer import WriterCore

COMPACTION_DELAY_S: Final = 1.0
"""Delay after the opening before files of earlier processes are compacted. Files that this process flushes are
compacted at once. A database that is closed earlier would have begun a compaction, which costs an update of the
manifest, in vain."""

DELAYED_FACTOR: Final = 2
"""With this many times `DatabaseOptions.l0_compaction_count` files of level 0 there is no delay. Otherwise processes
that only open, write a row and close would never merge files."""


class WriterThreads:
    """The threads of one writer. There are none before `start`."""

    def __init__(self, writer: WriterCore) -> None:
        self._writer = writer
        self._polled_s = self._opened_s = writer.environment.clock.monotonic_s()
        self._opened_generation = writer.tree.generation
        self._compacted_generation = -1
        self._background = Background(
            lock=writer.lock,
            wanted=writer.wanted,
            report=writer.report_trouble,
            environment=writer.environment,
            at_exit=self._end,
        )

    def start(self) -> None:
        """Start to run the steps."""
        writer, background = self._writer, self._background
        writer.has_background = True
        later: dict[str, list[Step]] = {
            f"lakebed files of {writer.url}": [
                (lambda now_s: now_s if writer.tree.waiting_count else None, writer.flush_once),
                (self._poll_due, self._poll),
            ]
        }
        if writer.compacts:
            later[f"lakebed compaction of {writer.url}"] = [(self._compaction_due, self._compact)]
        background.start(
            f"lakebed log of {writer.url}",
            (lambda now_s: writer.log_due_s, self._write_log),
            (lambda now_s: now_s + writer.claim.lease.renew_in_s, writer.renew_once),
            later=later,
        )

    def stop(self) -> None:
        """Make every thread end after its step, and wait for the ends."""
        self._background.stop()

    def _end(self) -> None:
        """Make every thread end. A later write runs the steps for which it would wait."""
        self._writer.has_background = False
        self._background.end()

    def _write_log(self) -> None:
        """Make rows durable for which no writer waits. If none are pending then, the next write calls `make_room`."""
        writer = self._writer
        writer.make_durable()
        with writer.lock:
            writer.log_due_s = None
            if writer.has_pending:
                writer.want_log(within_ms=writer.log_interval_ms)
            else:
                writer.alarm_rows = 0

    def _poll_due(self, now_s: float) -> float:
        return self._polled_s + self._writer.options.manifest_poll_interval_ms / 1000

    def _poll(self) -> None:
        self._polled_s = self._writer.environment.clock.monotonic_s()
        self._writer.poll_once()

    def _compaction_due(self, now_s: float) -> float | None:
        tree, options = self._writer.tree, self._writer.options
        if tree.generation == self._compacted_generation:
            return None
        count_max = min(DELAYED_FACTOR * options.l0_compaction_count, options.l0_count_max)
        if tree.generation == self._opened_generation and tree.l0_count < count_max:
            return self._opened_s + COMPACTION_DELAY_S
        return now_s

    def _compact(self) -> None:
        generation = self._writer.tree.generation
        if not self._writer.compact_once(self._stop_if_closing):
            self._compacted_generation = generation

    def _stop_if_closing(self, rows_read: int, bytes_written: int) -> None:
        if self._background.is_stopping:
            raise Stopped
