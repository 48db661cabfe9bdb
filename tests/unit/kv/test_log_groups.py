"""Groups of rows on their way to the log, and who is told what became of them: by one thread, against a model."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakebed.errors import Fenced, InternalError, LakebedError, OutcomeUnknown, Unavailable
from lakebed.kv.claim import claim_writer
from lakebed.kv.group_commit import GroupCommit, LogGroups
from lakebed.kv.layout import wal_path
from lakebed.kv.wal import WalLog
from lakebed.lsm.memtable import Memtable
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.kv.places import fresh
from worlds.meanwhile import Meanwhile

ROW_BYTES = len(b"k0000") + len(b"v")


class Log:
    """A writer's groups over a real log, its memtable, and a model of both."""

    def __init__(self, *, spacing_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.place = fresh()
        self.claim = claim_writer(self.place)
        self.wal = WalLog(self.place)
        self.memtable = Memtable(1)
        self.groups = LogGroups(
            self.wal,
            epoch=self.claim.epoch,
            last_wal_id=self.claim.fence_id,
            active=lambda: self.memtable,
            lock=contextlib.nullcontext(),
            spacing_ms=spacing_ms,
            environment=Environment(clock=self.clock, rng=random.Random(1)),
        )

    @property
    def last_sequence(self) -> int:
        """Of the last row that was written."""
        return self.memtable.first_sequence + self.memtable.row_count - 1

    def write(self, count: int) -> None:
        """Write rows of one size."""
        for _ in range(count):
            self.memtable.put(b"k%04d" % self.memtable.row_count, b"v")

    def rotate(self) -> None:
        """Seal, and begin another memtable."""
        self.groups.seal()
        self.memtable = Memtable(self.last_sequence + 1)

    def in_log(self) -> list[list[int]]:
        """The sequences of each record with rows, in the order of the log."""
        records = [self.wal.read(id) for id in self.wal.ids()]
        return [record.rows.column("sequence").to_pylist() for record in records if record.rows is not None]


@pytest.mark.parametrize("seed", range(12))
def test_groups_are_as_a_model_says(seed: int) -> None:
    """Random writes, seals, memtables and appends: ids, bytes that wait, and how far the log goes after each."""
    rng = random.Random(seed)
    log = Log()
    groups, fence_id = log.groups, log.claim.fence_id
    sealed: list[list[int]] = []
    appended: list[list[int]] = []
    pending: list[int] = []
    for _ in range(60):
        act = rng.choice(["write", "write", "seal", "rotate", "append", "append", "look"])
        if act == "write":
            count = rng.randint(1, 3)
            pending += range(log.last_sequence + 1, log.last_sequence + 1 + count)
            log.write(count)
        elif act in ("seal", "rotate"):
            if pending:
                sealed, pending = [*sealed, pending], []
            last_id = fence_id + len(appended) + len(sealed)
            if act == "seal":
                assert groups.seal() == last_id
            else:
                log.rotate()
        elif act == "append":
            if not sealed and pending:
                sealed, pending = [pending], []
            through = groups.append_oldest()
            if sealed:
                appended, sealed = [*appended, sealed[0]], sealed[1:]
            assert through == (appended[-1][-1] if appended else 0)
        assert groups.pending_bytes() == ROW_BYTES * len(pending)
        assert groups.last_wal_id == fence_id + len(appended) + len(sealed)
        assert groups.durable_wal_id == fence_id + len(appended)
        assert groups.appended_count == len(appended)
        assert groups.newest_owner() == (log.claim.epoch, appended[-1][-1] if appended else 0)
    assert log.in_log() == appended


@pytest.mark.parametrize("sealed", [0, 1, 2])
@pytest.mark.parametrize("is_tried", [False, True])
def test_a_fence_is_the_owner_of_what_comes(sealed: int, is_tried: bool) -> None:
    """Behind the last record, also while a group is on its way; what was in the log by then is known."""
    log = Log()
    log.write(2)
    log.groups.append_oldest()
    for _ in range(sealed):
        log.write(1)
        log.groups.seal()
    if is_tried and sealed:  # its bytes are there; the reply was lost
        group = log.groups._sealed[0]
        group.body = log.wal.encode(group.memtable.log(group.start, group.end), id=group.wal_id, epoch=log.claim.epoch)
        log.wal.append(group.wal_id, group.body)
        assert log.groups.newest_owner() == (log.claim.epoch, 3)
    next_id = log.wal.last_id() + 1
    assert log.wal.fence(next_id, log.claim.epoch + 1) is None
    landed = 3 if is_tried and sealed else 2
    assert log.groups.newest_owner() == (log.claim.epoch + 1, landed)
    if is_tried and sealed:
        log.groups.append_oldest()
    log.write(1)
    with pytest.raises(Fenced):
        log.groups.append_oldest()


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_record_that_is_collected_during_a_look_is_looked_for_again(is_fenced: bool) -> None:
    """An append landed without a reply, was there, and is gone when it is read: then it is known who owns the log."""
    log = Log()
    log.write(1)
    log.groups.seal()
    (group,) = log.groups._sealed
    group.body = log.wal.encode(group.memtable.log(0, 1), id=group.wal_id, epoch=log.claim.epoch)
    log.wal.append(group.wal_id, group.body)
    if is_fenced:
        log.wal.fence(group.wal_id + 1, log.claim.epoch + 1)
    path = wal_path(group.wal_id)
    store = Meanwhile(log.place.store, lambda: log.place.store.delete([path]), counts=lambda call: call.kind == "get")
    log.groups._wal = WalLog(replace(log.place, store=store))
    assert log.groups.newest_owner() == (log.claim.epoch + is_fenced, 0)
    assert store.happened is not None


@pytest.mark.parametrize(("waited_ms", "slept_ms"), [(0, 10), (4, 6), (9, 1), (10, 0), (50, 0)])
def test_appends_begin_so_far_apart(waited_ms: int, slept_ms: int) -> None:
    """The first one at once; a writer that comes earlier sleeps for the rest."""
    log = Log(spacing_ms=10)
    log.write(1)
    before_s = log.clock.monotonic_s()
    log.groups.append_oldest()
    assert log.clock.monotonic_s() == before_s
    for _ in range(2):
        log.write(1)
        log.clock.advance(waited_ms / 1000)
        begun_s = log.clock.monotonic_s()
        log.groups.append_oldest()
        assert log.clock.monotonic_s() - begun_s == pytest.approx(slept_ms / 1000, abs=1e-9)


@pytest.mark.parametrize("checked", [None, 0, 1, 2])
def test_what_cannot_be_encoded_is_taken_back(checked: int | None) -> None:
    """Its rows are hidden and its id stays used; with a condition behind it, all that follows goes as well."""
    log = Log()
    for count in (2, 1, 3):
        log.write(count)
        log.groups.seal()
    checked_sequence = [2, 3, 6][checked] if checked is not None else 0
    lost = log.groups.choose_lost(checked_sequence=checked_sequence)
    assert len(lost) == (3 if checked in (1, 2) else 1)
    log.groups.take_back(lost)
    log.groups.take_back(lost)
    gone = {sequence for group in lost for sequence in range(group.first_sequence, group.last_sequence + 1)}
    through = [log.groups.append_oldest() for _ in range(3)]
    assert through == [2, 3, 6]
    assert [sequence for rows in log.in_log() for sequence in rows] == [n for n in range(1, 7) if n not in gone]
    assert log.wal.last_id() == log.claim.fence_id + 3


# ---- who is told


class Writers:
    """A group commit of one thread, whose appends do what a test says."""

    def __init__(self) -> None:
        self.newest = 0
        self.persisted = 0
        self.calls = 0
        self.fences = 0
        self.outcome: Callable[[], int] = lambda: self.newest
        self.commit = GroupCommit(
            persist=self.persist,
            newest=lambda: self.newest,
            on_fence=self.note_fence,
            lock=contextlib.nullcontext(),
            durable_sequence=0,
            environment=Environment(runtime=_Alone()),
        )

    def persist(self) -> int:
        """Make durable what is there, or fail."""
        self.calls += 1
        return self.outcome()

    def note_fence(self) -> None:
        """A newer owner is known."""
        self.fences += 1

    def fail(self, error: BaseException) -> None:
        """Let appends fail from now on."""

        def outcome() -> int:
            raise error

        self.outcome = outcome


class _Alone:
    """A runtime whose conditions nobody waits for."""

    def condition(self, lock: Any) -> Any:
        """A condition that is only told."""
        return self

    def notify_all(self) -> None:
        """Nobody waits."""


def test_what_is_durable_is_not_written_again() -> None:
    """A write leads once, for all rows up to then; a smaller answer takes nothing back."""
    writers = Writers()
    writers.newest = 5
    writers.commit.wait(3)
    assert (writers.calls, writers.commit.durable_sequence, writers.commit.unclear_sequence) == (1, 5, None)
    for sequence in (1, 4, 5):
        writers.commit.wait(sequence)
        writers.commit.wait_durable(sequence)
    assert writers.calls == 1
    writers.newest = 7
    answers = iter((4, 6, 7))
    writers.outcome = lambda: next(answers)
    writers.commit.wait(7)
    assert (writers.calls, writers.commit.durable_sequence) == (4, 7)


def test_an_attempt_that_failed_leaves_its_rows_first_in_line() -> None:
    """Its writer does not know; those that come later make them durable, and what is unclear is so no more."""
    writers = Writers()
    writers.newest = 4
    writers.fail(Unavailable("away", kind="away"))
    with raises(OutcomeUnknown, "away"):
        writers.commit.wait(4)
    assert (writers.commit.unclear_sequence, writers.commit.durable_sequence) == (4, 0)
    writers.newest = 6
    writers.outcome = lambda: 3
    writers.fail(ValueError("odd"))
    with pytest.raises(ValueError, match="odd"):
        writers.commit.wait(5)
    assert writers.commit.unclear_sequence == 6
    writers.outcome = lambda: writers.newest
    writers.commit.wait_durable(4)
    assert (writers.commit.unclear_sequence, writers.commit.durable_sequence) == (None, 6)
    writers.commit.check_unreported()


@pytest.mark.parametrize("told", [0, 1, 2, 3])
def test_rows_that_were_taken_back_are_told_once(told: int) -> None:
    """To their writers, wherever in them a write ends; those that did not wait are told by the next look."""
    writers = Writers()
    writers.newest = 9
    error = InternalError("not written", kind="unencodable_rows")
    writers.commit.lose(4, 6, error)
    writers.commit.lose(4, 6, error)
    writers.commit.durable_sequence = 9
    for sequence in range(1, 10):
        if 4 <= sequence <= 6:
            if sequence - 3 <= told:
                with raises(InternalError, "unencodable_rows"):
                    writers.commit.wait(sequence)
        else:
            writers.commit.wait(sequence)
        writers.commit.wait_durable(sequence)
    if told < 3:
        with raises(InternalError, "unencodable_rows"):
            writers.commit.check_unreported()
    writers.commit.check_unreported()
    assert writers.calls == 0


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_a_fence_is_told_to_all_who_lost_rows(waiting: int) -> None:
    """The first error stays; what was durable before is acknowledged; untold rows are told by the next look."""
    writers = Writers()
    writers.newest = 1
    writers.commit.wait(1)
    writers.newest = 3
    writers.fail(Fenced("taken", new_epoch=7))
    for sequence in (2, 3)[:waiting]:
        with pytest.raises(Fenced, match="taken"):
            writers.commit.wait(sequence)
    writers.commit.fence(Fenced("later"))
    writers.commit.wait(1)
    assert writers.fences == 1
    expected = "taken" if waiting else "later"
    if waiting < 2:
        with pytest.raises(Fenced, match=expected):
            writers.commit.check_unreported()
    else:
        writers.commit.check_unreported()
    with pytest.raises(LakebedError, match=expected):
        writers.commit.wait(9)
    assert writers.calls == 1 + min(waiting, 1)
