"""The write protocol, interleaved by hand: the branch is moved between each two steps of a write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.heads.write import delete_many, delete_prefix, stage, stage_if_absent, stage_many
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.staging.protocol import RETRIES
from worlds.errors import raises
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.staging import BRANCH, StagedBranch

Verb = Callable[[StagedBranch], object]


class Interrupted(MemoryKeyValue):
    """A key-value store that lets another process act before one of its calls, and may lose the reply of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = -1
        self.acting = False
        self.act: Callable[[], object] = lambda: None
        self.every_time = False
        self.lose_reply = False
        self.after_loss: Callable[[], object] = lambda: None
        self.drop_write = False
        self.fired = 0

    def _step(self) -> None:
        self.countdown -= 1
        if self.countdown == -1 or (self.every_time and not self.acting):
            self.fired += 1
            self.acting = True
            self.act()
            self.acting = False

    def _lose(self) -> None:
        if self.lose_reply and not self.acting:
            self.lose_reply = False
            self.after_loss()
            raise OutcomeUnknown("no reply, and it happened")

    def interrupt(self, act: Callable[[], object], *, before: int) -> None:
        """Let another process act before the call of this number, from 0."""
        self.act, self.countdown, self.fired = act, before, 0

    def disarm(self) -> bool:
        """Forbid further steps; return whether one was made."""
        self.countdown, self.every_time = -1, False
        return self.fired > 0

    def peek(self, key: bytes) -> bytes | None:  # type: ignore[override]
        self._step()
        return super().get(key)

    def get(self, key: bytes) -> bytes | None:
        self._step()
        return super().get(key)

    def snapshot(self) -> Any:
        self._step()
        return super().snapshot()

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        self._step()
        if self.drop_write:
            self.drop_write = False
            raise OutcomeUnknown("no reply, and it did not happen")
        super().write(puts, deletes, expected=expected)
        self._lose()

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        self._step()
        super().put_columns(keys, values, expected=expected)
        self._lose()


def branch_and_store(committed: Mapping[str, str] | None = None) -> tuple[StagedBranch, Interrupted]:
    """A branch on a store that can be interrupted."""
    store = Interrupted()
    return StagedBranch(committed, key_value=store, options=RepositoryOptions(background=False)), store


def put(branch: StagedBranch) -> object:
    """A put."""
    return stage(branch.home, branch=BRANCH, path="a", entry=branch.entry("2"))


def put_if_absent(branch: StagedBranch) -> object:
    """A conditional put of another path."""
    return stage_if_absent(branch.home, branch=BRANCH, path="b", entry=branch.entry("2"))


def put_many(branch: StagedBranch) -> object:
    """A batch."""
    return stage_many(branch.home, branch=BRANCH, entries=[(path, branch.entry("2")) for path in ("a", "b", "c")])


def take_away(branch: StagedBranch) -> object:
    """A delete of a committed and of a staged path."""
    return delete_many(branch.home, branch=BRANCH, paths=["a", "staged"])


def take_all_away(branch: StagedBranch) -> object:
    """A delete of everything."""
    return delete_prefix(branch.home, branch=BRANCH, prefix="")


EXPECTED = {
    put: {"a": "2", "k": "1", "staged": "1"},
    put_if_absent: {"a": "1", "b": "2", "k": "1", "staged": "1"},
    put_many: {"a": "2", "b": "2", "c": "2", "k": "1", "staged": "1"},
    take_away: {"k": "1"},
    take_all_away: {},
}


@pytest.mark.parametrize("move", ["seal", "compact", "commit"])
@pytest.mark.parametrize("verb", EXPECTED)
def test_nothing_is_lost_when_the_branch_moves_between_two_steps(verb: Verb, move: str) -> None:
    """When the branch is moved before any call of a write, the write, once acknowledged, is what all readers see.

    A compaction and a commit read the sealed tokens at once and drop them, so a row that came too late would be lost.
    """
    for at in range(100):
        branch, store = branch_and_store({"a": "1", "k": "1"})
        branch.put("staged", "1")
        store.interrupt(getattr(branch, move), before=at)
        verb(branch)
        if not store.disarm():
            break
        assert branch.shown() == EXPECTED[verb], f"interrupted before call {at}"
        branch.compact()
        assert branch.shown() == EXPECTED[verb], f"interrupted before call {at}, then compacted"
    assert 2 < at < 100


@pytest.mark.parametrize("verb", EXPECTED)
def test_writes_that_begin_again_are_counted(verb: Verb) -> None:
    """The metric of retries stays where it is while the branch is at rest, and grows when a write meets another."""

    def retry_count() -> float:
        return sum(map(RETRIES.value, ("stage", "stage_if_absent", "stage_many", "delete", "delete_prefix")))

    at_rest, _ = branch_and_store({"a": "1", "k": "1"})
    branch, store = branch_and_store({"a": "1"})
    branch.put("staged", "1")
    before = retry_count()
    verb(at_rest)
    assert retry_count() == before
    store.every_time, store.act = True, branch.seal
    with raises(Conflict, "branch_moved"):
        verb(branch)
    assert retry_count() > before


@pytest.mark.parametrize("verb", EXPECTED)
def test_a_branch_that_moves_at_every_step_is_a_conflict(verb: Verb) -> None:
    """A write that never finds the branch at rest says so, and has written nothing visible."""
    branch, store = branch_and_store({"a": "1"})
    branch.put("staged", "1")
    before = branch.shown()
    store.every_time, store.act = True, branch.seal
    with raises(Conflict, "branch_moved"):
        verb(branch)
    store.disarm()
    assert branch.shown() == before


@pytest.mark.parametrize("verb", EXPECTED)
def test_a_lost_reply_of_a_write_that_happened_is_success(verb: Verb) -> None:
    """The store is asked for its outcome."""
    branch, store = branch_and_store({"a": "1", "k": "1"})
    branch.put("staged", "1")
    store.lose_reply = True
    verb(branch)
    assert not store.lose_reply
    assert branch.shown() == EXPECTED[verb]


@pytest.mark.parametrize("verb", [put, put_if_absent, take_away])
def test_a_write_that_did_not_happen_and_gave_no_reply_is_said_to_be_unclear(verb: Verb) -> None:
    """No caller sees success for a write that did not happen."""
    branch, store = branch_and_store({"a": "1", "k": "1"})
    branch.put("staged", "1")
    before = branch.shown()
    store.drop_write = True
    with pytest.raises(OutcomeUnknown):
        verb(branch)
    assert branch.shown() == before


@pytest.mark.parametrize("move", ["seal", "compact", "commit"])
def test_a_conditional_put_answers_truthfully_after_a_raced_commit(move: str) -> None:
    """The reply was lost, the row was committed, the caller tries again: it is there, and it is ours, so success."""
    branch, store = branch_and_store()
    entry = branch.entry("ours")
    store.lose_reply = True

    def move_on() -> None:
        getattr(branch, move)()
        if move != "seal":  # the token was dropped: what it has left is cleaned up before the next read
            prefix = branch.home.keys.staging()
            store.write(deletes=[key for key, _ in store.snapshot().scan(prefix, prefix + b"\xff")])

    store.after_loss = move_on
    with pytest.raises(OutcomeUnknown) if move != "seal" else nullcontext():
        stage_if_absent(branch.home, branch=BRANCH, path="a", entry=entry)
    assert not store.lose_reply
    stage_if_absent(branch.home, branch=BRANCH, path="a", entry=entry)
    assert branch.shown() == {"a": "ours"}
    with pytest.raises(AlreadyExists):
        stage_if_absent(branch.home, branch=BRANCH, path="a", entry=branch.entry("ours"))


def test_of_two_conditional_puts_one_wins() -> None:
    """Another process puts the path between look and write, in every order."""
    for at in range(100):
        branch, store = branch_and_store()
        store.interrupt(lambda branch=branch: branch.put("b", "theirs"), before=at)  # type: ignore[misc]
        try:
            put_if_absent(branch)
        except AlreadyExists:
            assert branch.shown() == {"b": "theirs"}
            continue
        assert not store.disarm(), f"the put that came before call {at} was overwritten"
        break
    assert 1 < at < 100


def test_a_collection_that_begins_between_look_and_write_is_seen() -> None:
    """An upload that becomes too old while it is being staged is refused."""
    for at in range(100):
        branch, store = branch_and_store({"a": "1"})
        boundary = file_id_at(branch.home.now_ms() + 60_000).encode()
        act = partial(store.set, branch.home.keys.boundary, boundary)
        store.interrupt(act, before=at)
        error = None
        try:
            put(branch)
        except Conflict as conflict:
            error = conflict
        if not store.disarm():
            break
        assert error is not None
        assert error.kind == "upload_expired"
        assert branch.shown() == {"a": "1"}
    assert 1 < at < 100


def test_a_branch_that_is_deleted_meanwhile_is_not_found() -> None:
    """No row is left behind in the token of a branch that is gone."""
    branch, store = branch_and_store({"a": "1"})
    store.interrupt(lambda: store.delete(branch.key), before=3)
    with pytest.raises(NotFound):
        put(branch)
    prefix = branch.home.keys.staging()
    with store.snapshot() as snapshot:
        assert list(snapshot.scan(prefix, prefix + b"\xff")) == []


def test_a_removed_entry_is_not_brought_back_by_a_compaction() -> None:
    """A compaction that reads the entry before it is removed makes the delete leave a tombstone over what it kept."""
    branch, store = branch_and_store()
    branch.put("staged", "1")
    store.interrupt(branch.compact, before=2)
    assert branch.delete("staged") == 1
    assert store.disarm()
    assert branch.shown() == {}
    branch.compact()
    assert branch.shown() == {}
