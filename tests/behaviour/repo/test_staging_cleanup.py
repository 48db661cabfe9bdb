"""What dropped tokens leave is taken away, and nothing else."""

from __future__ import annotations

import pytest

from lakebed.lsm.file_id import file_id_at, mint_file_id
from lakebed.repo.model import Branch, StagingToken
from lakebed.repo.records import encode_record, new_token
from lakebed.repo.staging.cleanup import DELETE_ROW_COUNT, FRESH_MS, clean_once, clean_orphans_once
from lakebed.repo.staging.write import stage_many
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.repo.staging import BRANCH, StagingScene


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def scene(clock: ManualClock) -> StagingScene:
    """A branch with a committed path."""
    return StagingScene({"a": "1"}, environment=Environment(clock=clock))


def keys_of(scene: StagingScene, prefix: bytes) -> list[bytes]:
    """Keys with a prefix."""
    with scene.home.key_value.snapshot() as snapshot:
        return [key for key, _ in snapshot.scan(prefix, prefix + b"\xff")]


def staged(scene: StagingScene) -> list[bytes]:
    """Keys of all staged rows."""
    return keys_of(scene, scene.home.keys.staging())


def drop(scene: StagingScene, *, marked: bool) -> str:
    """Commit what is staged; the dropped token, with its mark as a publish writes it."""
    token = scene.record.staging.id
    scene.commit()
    if marked:
        scene.home.key_value.set(scene.home.keys.cleanup(token), b"0")
    return token


def test_rows_and_mark_of_a_dropped_token_go(scene: StagingScene) -> None:
    """After a step nothing is left of a token that a publish has dropped, and everything of the others."""
    scene.put("b", "1")
    drop(scene, marked=True)
    scene.put("c", "1")
    before = scene.shown()
    done = clean_once(scene.home)
    assert (done.token_count, done.row_count, done.is_done) == (1, 1, True)
    assert [key.rsplit(b"/")[-1] for key in staged(scene)] == [b"c"]
    assert keys_of(scene, scene.home.keys.cleanup()) == []
    assert scene.shown() == before
    assert clean_once(scene.home).token_count == 0


def test_a_token_that_a_branch_names_is_never_cleaned(scene: StagingScene) -> None:
    """Whatever is marked: staging and sealed tokens of any branch stay, and so do their marks."""
    scene.put("b", "1")
    scene.seal()
    scene.put("c", "1")
    sealed, fresh = scene.record.sealed[0].id, scene.record.staging.id
    for token in (sealed, fresh):
        scene.home.key_value.set(scene.home.keys.cleanup(token), b"0")
    assert clean_once(scene.home).row_count == 0
    assert scene.shown() == {"a": "1", "b": "1", "c": "1"}
    assert len(keys_of(scene, scene.home.keys.cleanup())) == 2


def test_a_step_is_bounded_and_the_next_goes_on(scene: StagingScene) -> None:
    """A large token goes in several steps of bounded writes; its mark goes last."""
    count = DELETE_ROW_COUNT + 500
    stage_many(scene.home, branch=BRANCH, entries=[(f"{number:05}", scene.entry("x")) for number in range(count)])
    drop(scene, marked=True)
    scene.put("b", "1")
    drop(scene, marked=True)
    steps = []
    while not (done := clean_once(scene.home, row_count_max=2_000)).is_done:
        assert done.row_count == 2_000
        assert keys_of(scene, scene.home.keys.cleanup())
        steps.append(done)
    assert len(steps) == count // 2_000
    assert staged(scene) == []
    assert keys_of(scene, scene.home.keys.cleanup()) == []


def test_a_step_of_exactly_as_many_rows_is_done(scene: StagingScene) -> None:
    """When the last row is the last that a step may take, the mark goes too."""
    scene.put("b", "1")
    scene.put("c", "1")
    drop(scene, marked=True)
    assert clean_once(scene.home, row_count_max=2).is_done
    assert keys_of(scene, scene.home.keys.cleanup()) == []


def test_rows_without_a_mark_go_when_they_are_old(scene: StagingScene, clock: ManualClock) -> None:
    """What an older process left under a token that no branch names goes, when it is no longer fresh."""
    scene.put("b", "1")
    drop(scene, marked=False)
    scene.put("c", "1")
    assert clean_once(scene.home).row_count == 0
    assert clean_orphans_once(scene.home).row_count == 0
    clock.advance(FRESH_MS / 1000 + 1)
    assert clean_orphans_once(scene.home).row_count == 1
    assert scene.shown() == {"a": "1", "b": "1", "c": "1"}
    assert len(staged(scene)) == 1


def test_a_late_writer_is_cleaned_up_after(scene: StagingScene, clock: ManualClock) -> None:
    """A row that came into a dropped token after it was cleaned, by whatever writer, is an orphan that goes."""
    scene.put("b", "1")
    token = drop(scene, marked=True)
    clean_once(scene.home)
    scene.home.key_value.set(scene.home.keys.token(token) + b"late", b"")
    assert scene.shown() == {"a": "1", "b": "1"}
    clock.advance(FRESH_MS / 1000 + 1)
    assert clean_orphans_once(scene.home).row_count == 1
    assert staged(scene) == []


def test_a_fresh_token_that_is_not_published_yet_is_left_alone(scene: StagingScene, clock: ManualClock) -> None:
    """Rows under a token that some branch is about to name stay, and are read once it does."""
    clock.advance(FRESH_MS / 1000 + 1)
    token = new_token(scene.environment)
    other = scene.record.staging
    scene.put("b", "1")
    row = scene.home.keys.token(other.id) + b"b"
    value = scene.home.key_value.get(row)
    assert value is not None
    scene.home.key_value.set(scene.home.keys.token(token.id) + b"imported", value)
    assert clean_orphans_once(scene.home).row_count == 0
    record = scene.record
    scene.replace(staging=token, sealed=(record.staging, *record.sealed))
    clock.advance(2 * FRESH_MS / 1000)
    assert clean_orphans_once(scene.home).row_count == 0
    assert scene.shown() == {"a": "1", "b": "1", "imported": "1"}


def test_branches_that_come_between_look_and_delete_lose_nothing(scene: StagingScene, clock: ManualClock) -> None:
    """A branch that is made or sealed while a step goes on names only tokens that the step does not touch."""
    scene.put("b", "1")
    drop(scene, marked=True)
    clock.advance(2 * FRESH_MS / 1000)
    key_value = scene.home.key_value
    inner = key_value.write
    acted: list[str] = []

    def write(puts=(), deletes=(), *, expected={}):  # type: ignore[no-untyped-def]  # noqa: B006
        if deletes and not acted:
            acted.append("between")
            token = StagingToken(mint_file_id(environment=scene.environment))
            key_value.set(scene.home.keys.branch("other"), encode_record(Branch(scene.record.commit_id, token)))
            key_value.set(scene.home.keys.token(token.id) + b"x", b"")
            scene.put("c", "1")
            scene.seal()
            scene.put("d", "1")
        inner(puts, deletes, expected=expected)

    key_value.write = write  # type: ignore[method-assign]
    assert clean_once(scene.home).row_count == 1
    assert acted
    assert scene.shown() == {"a": "1", "b": "1", "c": "1", "d": "1"}
    assert len(staged(scene)) == 3


def test_names_that_are_no_tokens_are_left_alone(scene: StagingScene, clock: ManualClock) -> None:
    """What is below the prefix of staging and is no ULID was not written by us."""
    odd = [scene.home.keys.staging() + name for name in (b"odd/x", b"zz", file_id_at(0).encode()[:-1] + b"/y")]
    for key in odd:
        scene.home.key_value.set(key, b"")
    clock.advance(2 * FRESH_MS / 1000)
    assert clean_orphans_once(scene.home).row_count == 0
    assert set(odd) <= set(staged(scene))


def test_a_crash_between_two_writes_is_gone_on_from(scene: StagingScene) -> None:
    """A step that ends at any write leaves what the next one finishes; no read changes."""
    for number in range(5):
        scene.put(f"p{number}", "1")
        drop(scene, marked=True)
    scene.put("z", "1")
    before = scene.shown()
    inner = scene.home.key_value.write

    class Crash(Exception):
        """The process is gone."""

    for allowed in range(4):
        left = [allowed]

        def write(puts=(), deletes=(), *, expected={}, left=left):  # type: ignore[no-untyped-def]  # noqa: B006
            if not left[0]:
                raise Crash
            left[0] -= 1
            inner(puts, deletes, expected=expected)

        scene.home.key_value.write = write  # type: ignore[method-assign]
        with pytest.raises(Crash):
            clean_once(scene.home)
        assert scene.shown() == before
    scene.home.key_value.write = inner  # type: ignore[method-assign]
    clean_once(scene.home)
    assert len(staged(scene)) == 1
    assert scene.shown() == before
