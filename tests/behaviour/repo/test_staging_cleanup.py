"""What dropped tokens leave is taken away, and nothing else."""

from __future__ import annotations

import pytest

from lakebed.lsm.file_id import file_id_at, mint_file_id
from lakebed.repo.heads.write import stage_many
from lakebed.repo.model.model import Branch, StagingToken
from lakebed.repo.records.records import encode_record, new_token
from lakebed.repo.staging.cleanup import DELETE_ROW_COUNT, FRESH_MS, clean_once, clean_orphans_once
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.repo.staging import BRANCH, StagedBranch


@pytest.fixture
def branch(clock: ManualClock) -> StagedBranch:
    """A branch with a committed path."""
    return StagedBranch({"a": "1"}, environment=Environment(clock=clock))


def keys_of(branch: StagedBranch, prefix: bytes) -> list[bytes]:
    """Keys with a prefix."""
    with branch.home.key_value.snapshot() as snapshot:
        return [key for key, _ in snapshot.scan(prefix, prefix + b"\xff")]


def staged(branch: StagedBranch) -> list[bytes]:
    """Keys of all staged rows."""
    return keys_of(branch, branch.home.keys.staging())


def drop(branch: StagedBranch, *, marked: bool) -> str:
    """Commit what is staged; the dropped token, with its mark as a publish writes it."""
    token = branch.record.staging.id
    branch.commit()
    if marked:
        branch.home.key_value.set(branch.home.keys.cleanup(token), b"0")
    return token


def test_rows_and_mark_of_a_dropped_token_go(branch: StagedBranch) -> None:
    """After a step nothing is left of a token that a publish has dropped, and everything of the others."""
    branch.put("b", "1")
    drop(branch, marked=True)
    branch.put("c", "1")
    before = branch.shown()
    done = clean_once(branch.home)
    assert (done.token_count, done.row_count, done.is_done) == (1, 1, True)
    assert [key.rsplit(b"/")[-1] for key in staged(branch)] == [b"c"]
    assert keys_of(branch, branch.home.keys.cleanup()) == []
    assert branch.shown() == before
    assert clean_once(branch.home).token_count == 0


def test_a_token_that_a_branch_names_is_never_cleaned(branch: StagedBranch) -> None:
    """With any marks: staging and sealed tokens of any branch stay, and so do their marks."""
    branch.put("b", "1")
    branch.seal()
    branch.put("c", "1")
    sealed, fresh = branch.record.sealed[0].id, branch.record.staging.id
    for token in (sealed, fresh):
        branch.home.key_value.set(branch.home.keys.cleanup(token), b"0")
    assert clean_once(branch.home).row_count == 0
    assert branch.shown() == {"a": "1", "b": "1", "c": "1"}
    assert len(keys_of(branch, branch.home.keys.cleanup())) == 2


def test_a_step_is_bounded_and_the_next_goes_on(branch: StagedBranch) -> None:
    """A large token goes in several steps of bounded writes; its mark goes last."""
    count = DELETE_ROW_COUNT + 500
    stage_many(branch.home, branch=BRANCH, entries=[(f"{number:05}", branch.entry("x")) for number in range(count)])
    drop(branch, marked=True)
    branch.put("b", "1")
    drop(branch, marked=True)
    steps = []
    while not (done := clean_once(branch.home, row_count_max=2_000)).is_done:
        assert done.row_count == 2_000
        assert keys_of(branch, branch.home.keys.cleanup())
        steps.append(done)
    assert len(steps) == count // 2_000
    assert staged(branch) == []
    assert keys_of(branch, branch.home.keys.cleanup()) == []


def test_a_step_of_exactly_as_many_rows_is_done(branch: StagedBranch) -> None:
    """When the last row is the last that a step may take, the mark goes too."""
    branch.put("b", "1")
    branch.put("c", "1")
    drop(branch, marked=True)
    assert clean_once(branch.home, row_count_max=2).is_done
    assert keys_of(branch, branch.home.keys.cleanup()) == []


def test_rows_without_a_mark_go_when_they_are_old(branch: StagedBranch, clock: ManualClock) -> None:
    """What an older process left under a token that no branch names goes, when it is older than a day."""
    branch.put("b", "1")
    drop(branch, marked=False)
    branch.put("c", "1")
    assert clean_once(branch.home).row_count == 0
    clock.advance(86_400 - 1)
    assert clean_orphans_once(branch.home).row_count == 0
    clock.advance(2)
    assert clean_orphans_once(branch.home).row_count == 1
    assert branch.shown() == {"a": "1", "b": "1", "c": "1"}
    assert len(staged(branch)) == 1


def test_a_late_writer_is_cleaned_up_after(branch: StagedBranch, clock: ManualClock) -> None:
    """A row that any writer put into a dropped token after its cleanup is an orphan that goes."""
    branch.put("b", "1")
    token = drop(branch, marked=True)
    clean_once(branch.home)
    branch.home.key_value.set(branch.home.keys.token(token) + b"late", b"")
    assert branch.shown() == {"a": "1", "b": "1"}
    clock.advance(FRESH_MS / 1000 + 1)
    assert clean_orphans_once(branch.home).row_count == 1
    assert staged(branch) == []


def test_a_fresh_token_that_is_not_published_yet_is_left_alone(branch: StagedBranch, clock: ManualClock) -> None:
    """Rows under a token that some branch is about to name stay, and are read once it does."""
    clock.advance(FRESH_MS / 1000 + 1)
    token = new_token(branch.environment)
    other = branch.record.staging
    branch.put("b", "1")
    row = branch.home.keys.token(other.id) + b"b"
    value = branch.home.key_value.get(row)
    assert value is not None
    branch.home.key_value.set(branch.home.keys.token(token.id) + b"imported", value)
    assert clean_orphans_once(branch.home).row_count == 0
    record = branch.record
    branch.replace(staging=token, sealed=(record.staging, *record.sealed))
    clock.advance(2 * FRESH_MS / 1000)
    assert clean_orphans_once(branch.home).row_count == 0
    assert branch.shown() == {"a": "1", "b": "1", "imported": "1"}


def test_branches_that_come_between_look_and_delete_lose_nothing(branch: StagedBranch, clock: ManualClock) -> None:
    """A branch that is made or sealed while a step goes on names only tokens that the step does not touch."""
    branch.put("b", "1")
    drop(branch, marked=True)
    clock.advance(2 * FRESH_MS / 1000)
    key_value = branch.home.key_value
    inner = key_value.write
    acted: list[str] = []

    def write(puts=(), deletes=(), *, expected={}):  # type: ignore[no-untyped-def]  # noqa: B006
        if deletes and not acted:
            acted.append("between")
            token = StagingToken(mint_file_id(environment=branch.environment))
            key_value.set(branch.home.keys.branch("other"), encode_record(Branch(branch.record.commit_id, token)))
            key_value.set(branch.home.keys.token(token.id) + b"x", b"")
            branch.put("c", "1")
            branch.seal()
            branch.put("d", "1")
        inner(puts, deletes, expected=expected)

    key_value.write = write  # type: ignore[method-assign]
    assert clean_once(branch.home).row_count == 1
    assert acted
    assert branch.shown() == {"a": "1", "b": "1", "c": "1", "d": "1"}
    assert len(staged(branch)) == 3


def test_names_that_are_no_tokens_are_left_alone(branch: StagedBranch, clock: ManualClock) -> None:
    """An object below the prefix of staging whose name is not a ULID was not written by us."""
    odd = [branch.home.keys.staging() + name for name in (b"odd/x", b"zz", file_id_at(0).encode()[:-1] + b"/y")]
    for key in odd:
        branch.home.key_value.set(key, b"")
    clock.advance(2 * FRESH_MS / 1000)
    assert clean_orphans_once(branch.home).row_count == 0
    assert set(odd) <= set(staged(branch))


def test_a_crash_between_two_writes_is_gone_on_from(branch: StagedBranch) -> None:
    """A step that ends at any write leaves what the next one finishes; no read changes."""
    for number in range(5):
        branch.put(f"p{number}", "1")
        drop(branch, marked=True)
    branch.put("z", "1")
    before = branch.shown()
    inner = branch.home.key_value.write

    class Crash(Exception):
        """The process is gone."""

    for allowed in range(4):
        left = [allowed]

        def write(puts=(), deletes=(), *, expected={}, left=left):  # type: ignore[no-untyped-def]  # noqa: B006
            if not left[0]:
                raise Crash
            left[0] -= 1
            inner(puts, deletes, expected=expected)

        branch.home.key_value.write = write  # type: ignore[method-assign]
        with pytest.raises(Crash):
            clean_once(branch.home)
        assert branch.shown() == before
    branch.home.key_value.write = inner  # type: ignore[method-assign]
    clean_once(branch.home)
    assert len(staged(branch)) == 1
    assert branch.shown() == before
