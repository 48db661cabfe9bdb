"""Moves of branches at their edges: how often they are tried, what they are made on, what they count and refuse."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from msgspec.structs import replace as replace_fields

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.repo.heads import heads
from lakebed.repo.heads.commit import (
    MESSAGE_BYTES_MAX,
    METADATA_BYTES_MAX,
    METADATA_COUNT_MAX,
    check_commit_metadata,
    check_commit_text,
    intervals_of,
    new_commit,
    with_paths_of,
)
from lakebed.repo.heads.compact import (
    COUNTED_BRANCHES_MAX,
    GAUGES,
    SHOWN_BRANCHES_MAX,
    compact_once,
    find_compactions,
    show_counts,
)
from lakebed.repo.heads.heads import (
    Move,
    Overtaken,
    _see_given_up,
    beginning_again,
    move_branch,
    publish,
    seal,
)
from lakebed.repo.heads.merge import _conflict
from lakebed.repo.heads.write import stage_if_absent
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import Branch, Commit, MetarangeRef, StagingToken, Tag
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.counters import BranchCounts
from lakebed.repo.records.records import encode_record
from lakebed.repo.references.branches import create_branch, delete_branch, delete_empty_branch, load_branch
from lakebed.repo.references.refs import resolve
from lakebed.repo.references.tags import create_tag, delete_tag, find_tag, is_live, list_tags, load_tag
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.staging import BRANCH, StagedBranch

R = TypeVar("R")

TRIES = 4


class Busy(KeyValueWrapper):
    """Lets something happen before each write that may be conditional.

    Attributes:
        happens: what.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(MemoryKeyValue(environment=environment))
        self.happens: Callable[[], object] | None = None

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call, after what happens; what that writes itself is not disturbed."""
        if call.changes and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
            self.happens = self.happens or happens
        return perform()


class World:
    """A branch that others change, and a clock that stands still."""

    def __init__(self, **options: int) -> None:
        self.clock = ManualClock()
        environment = Environment(clock=self.clock, rng=random.Random(1))
        self.records = Busy(environment)
        self.branch = StagedBranch(
            {"a": "1"},
            key_value=self.records,
            environment=environment,
            options=RepositoryOptions(publish_tries_max=TRIES, **options),  # type: ignore[arg-type]
        )
        self.home: RepositoryContext = self.branch.home

    def disturb(self, times: int, act: Callable[[], object]) -> list[int]:
        """Let others act before each of the next writes, so many times; how often they have is counted."""
        met: list[int] = []

        def happens() -> None:
            if len(met) < times:
                met.append(len(met))
                act()

        self.records.happens = happens
        return met

    def commit_elsewhere(self) -> None:
        """Another process moves the head."""
        record, _ = load_branch(self.home, BRANCH)
        commit = new_commit(
            self.home,
            parents=[(record.commit_id, self.branch_head(record))],
            metarange=self.branch_head(record).metarange,
            message="other",
            metadata=None,
            committer="other",
        )
        self.home.key_value.set(self.home.keys.commit(commit.id), encode_record(commit.commit))
        after = replace_fields(record, commit_id=commit.id, sealed=(), compacted=None)
        self.home.key_value.set(self.branch.key, encode_record(after))

    def branch_head(self, record: Branch) -> Commit:
        """The head of a record."""
        return resolve(self.home, record.commit_id).commit

    def gain_token(self) -> None:
        """Another process seals the token that takes writes."""
        record, _ = load_branch(self.home, BRANCH)
        after = replace_fields(
            record, staging=StagingToken(f"new{record.staging.id}"), sealed=(record.staging, *record.sealed)
        )
        self.home.key_value.set(self.branch.key, encode_record(after))


@pytest.mark.parametrize("times", [0, 1, TRIES - 1, TRIES])
def test_a_move_is_tried_so_often(times: int) -> None:
    """While others move the branch each time; then it is refused, and nothing of it is there."""
    world = World()
    before = world.home.counters.changes
    plans: list[str] = []

    def plan(sealed: heads.SealedBranch) -> Move:
        plans.append(sealed.record.commit_id)
        if len(plans) <= times:
            world.commit_elsewhere()
        return Move(sealed.record.commit_id, compacted=sealed.base)

    if times >= TRIES:
        with raises(Conflict, "branch_moved"):
            move_branch(world.home, BRANCH, operation="test", plan=plan)
        assert load_branch(world.home, BRANCH)[0].compacted is None
    else:
        move = move_branch(world.home, BRANCH, operation="test", plan=plan)
        assert move.commit_id == plans[-1]
        assert load_branch(world.home, BRANCH)[0].compacted == move.compacted
    assert len(plans) == min(times + 1, TRIES)
    assert len(set(plans)) == len(plans), "each plan is made on what is there"
    assert not world.home.counters.is_moving(BRANCH)
    assert world.home.counters.changes > before


@pytest.mark.parametrize("times", [0, 1, TRIES - 1, TRIES])
def test_a_publish_keeps_the_tokens_that_were_gained_meanwhile(times: int) -> None:
    """So often; then the operation begins again."""
    world = World()
    world.branch.put("b", "2")
    sealed = seal(world.home, BRANCH)
    state = heads.apply_sealed(world.home, sealed)
    world.disturb(times, world.gain_token)
    is_made = publish(world.home, sealed, move=heads.compaction_move(world.home, sealed, state), operation="test")
    world.records.happens = None
    record = world.branch.record
    assert is_made is (times < TRIES)
    assert len(record.sealed) == times + (not is_made)
    assert (record.compacted is not None) is is_made
    assert world.branch.shown() == {"a": "1", "b": "2"}
    if is_made:
        counts = world.home.counters.counts(BRANCH)
        assert counts is not None
        assert counts.sealed_tokens == times


@pytest.mark.parametrize("shows_other", [False, True])
def test_only_a_move_that_shows_another_state_waits_for_writes_that_were_decided(shows_other: bool) -> None:
    """A compaction is published, though a path was staged meanwhile because it was absent; a merge begins again."""
    world = World()
    world.branch.put("b", "2")
    sealed = seal(world.home, BRANCH)
    state = heads.apply_sealed(world.home, sealed)
    stage_if_absent(world.home, branch=BRANCH, path="c", entry=world.branch.entry("3"))
    move = heads.compaction_move(world.home, sealed, state)
    if shows_other:
        assert not publish(world.home, sealed, move=move, operation="test", shows_other=True)
    else:
        assert publish(world.home, sealed, move=move, operation="test")
    assert (world.branch.record.compacted is None) is shows_other
    assert world.branch.shown() == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize("times", [0, 1, TRIES - 1, TRIES])
def test_a_seal_is_tried_so_often(times: int) -> None:
    """A token without rows stays where it is, unless another one is asked for."""
    world = World()
    assert seal(world.home, BRANCH).record == world.branch.record
    assert seal(world.home, BRANCH, fresh_token=True).record.sealed != ()
    world = World()
    world.branch.put("b", "2")
    before = world.branch.record
    world.home.counters.set_counted(BRANCH, {}, sealed_count=0)
    met = world.disturb(times, world.commit_elsewhere)
    if times >= TRIES:
        with raises(Conflict, "branch_moved"):
            seal(world.home, BRANCH)
        assert world.branch.record.sealed == ()
    else:
        sealed = seal(world.home, BRANCH)
        assert sealed.record == world.branch.record
        assert (sealed.raw, sealed.record.sealed) == (encode_record(world.branch.record), (before.staging,))
        assert sealed.head == world.branch_head(sealed.record)
        counts = world.home.counters.counts(BRANCH)
        assert counts is not None
        assert counts.sealed_tokens == 1
    assert len(met) == times


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("gives_up", [True, False])
def test_a_branch_with_too_many_sealed_tokens_is_folded_first(limit: int, gives_up: bool) -> None:
    """Unless what is sealed is given up: then all goes in the write that seals, however much it is."""
    world = World(sealed_tokens_max=limit)
    for number in range(1, 6):
        world.branch.put(f"b{number}", "2")
        if gives_up:
            record = _see_given_up(world.home, BRANCH, fresh_token=False).record
            assert record.sealed == (world.branch.record.staging, *world.branch.record.sealed)
        sealed = seal(world.home, BRANCH)
        assert len(sealed.record.sealed) == (number - 1) % limit + 1
    assert len(world.branch.shown()) == 6


@pytest.mark.parametrize("kind", ["missing_range", "version_went", "corruption"])
@pytest.mark.parametrize("meanwhile", ["nothing", "token", "commit", "boundary"])
def test_what_is_missing_is_damage_unless_the_branch_has_moved(kind: str, meanwhile: str) -> None:
    """A file may go when the branch has moved on or a collection has begun; then the operation begins again."""
    world = World()
    sealed = seal(world.home, BRANCH)
    if meanwhile == "token":
        world.gain_token()
    elif meanwhile == "commit":
        world.commit_elsewhere()
    elif meanwhile == "boundary":
        world.home.key_value.set(world.home.keys.boundary, b"01")
    begins_again = kind != "corruption" and meanwhile in ("commit", "boundary")
    for error in (Corruption("x", kind=kind), Conflict("x", kind=kind)):
        with pytest.raises(Overtaken if begins_again else type(error)), beginning_again(world.home, sealed):
            raise error
    with beginning_again(world.home, sealed):
        pass


def test_only_tokens_on_top_are_a_gain() -> None:
    """Of all records that may follow one: the same head and compacted state, the same tokens below."""
    a, b, c, d = (StagingToken(name) for name in "abcd")
    before = Branch("1", a, sealed=(b, c))
    cases = {
        (b, c): True, (d, b, c): True, (d, a, b, c): True, (): False, (c,): False, (b,): False, (c, b): False,
        (b, c, d): False, (d, b): False, (d, c): False,
    }  # fmt: skip
    for sealed, is_gain in cases.items():
        assert heads._only_gained(replace_fields(before, sealed=sealed), before) is is_gain, sealed
    bare = Branch("1", a)
    for sealed in ((), (b,), (b, c)):
        assert heads._only_gained(replace_fields(bare, sealed=sealed), bare)
    assert not heads._only_gained(replace_fields(before, commit_id="2"), before)
    assert heads._only_gained(replace_fields(before, compaction_started_at_ms=1), before)


@pytest.mark.parametrize(("now_ms", "begins"), [(0, False), (999, False), (1_000, True), (5_000, True), (-1, True)])
def test_a_compaction_begins_when_the_cooldown_is_over(now_ms: int, begins: bool) -> None:
    """At once when it is forced, and when a clock was set back behind the last one; its stamp is its start."""
    world = World(compaction_cooldown_ms=1_000)
    world.branch.put("b", "2")
    assert compact_once(world.home, BRANCH).outcome == "published"
    started = world.branch.record.compaction_started_at_ms
    assert started == world.home.now_ms()
    world.branch.put("c", "3")
    world.clock.advance(now_ms / 1000) if now_ms >= 0 else world.branch.replace(compaction_started_at_ms=started + 1)
    done = compact_once(world.home, BRANCH)
    assert done.outcome == ("published" if begins else "idle")
    if not begins:
        done = compact_once(world.home, BRANCH, force=True)
    assert (done.outcome, done.entry_count, done.tombstone_count) == ("published", 1, 0)
    assert world.branch.record.compaction_started_at_ms == world.home.now_ms()
    assert compact_once(world.home, BRANCH, force=True).outcome == "idle"


def test_the_most_staged_branches_have_gauges() -> None:
    """By their rows, then by their sealed tokens; what is not among them any more loses its own."""
    world = World()
    home = replace(world.home, name=f"gauges-{uuid.uuid4().hex}")
    count = SHOWN_BRANCHES_MAX + 3
    for number in range(count):
        token = {f"t{number}": (number // 2, number % 2)}
        home.counters.set_counted(f"b{number}", token, sealed_count=number)
    show_counts(home)

    def shown() -> dict[str, tuple[float | None, ...]]:
        values = {
            f"b{number}": tuple(gauge.value(home.name, f"b{number}") for gauge in GAUGES) for number in range(count)
        }
        return {branch: numbers for branch, numbers in values.items() if any(numbers)}

    most = sorted(range(count), key=lambda number: (number // 2 + number % 2, number))[3:]
    assert shown() == {f"b{number}": (number // 2, number % 2, number) for number in most if number}
    home.counters.reset("b102")
    home.counters.set_counted("b0", {"t": (1_000, 0)}, sealed_count=0)
    show_counts(home)
    assert shown()["b0"] == (1_000, 0, 0)
    assert len(shown()) <= SHOWN_BRANCHES_MAX
    for number in range(count):
        home.counters.forget(f"b{number}")
    show_counts(home)
    assert shown() == {}


@pytest.mark.parametrize("limit", [1, 3, 4, 10])
def test_branches_are_counted_up_to_the_threshold(limit: int) -> None:
    """Of rows over all tokens, the newest first; what clears a prefix is one tombstone more."""
    world = World(compaction_staged_min=limit, compaction_tombstones_min=100, compaction_sealed_min=100)
    world.branch.put("a", "2")
    world.branch.put("b", "2")
    world.branch.seal()
    world.branch.put("c", "3")
    world.branch.delete("a")
    wanted = find_compactions(world.home)
    counts = world.home.counters.counts(BRANCH)
    assert counts is not None
    rows = 4 if limit >= 4 else limit
    assert counts.staged_entries + counts.tombstones >= min(rows, 2)
    assert counts.sealed_tokens == 1
    assert wanted == ([(BRANCH, "staged_entries")] if counts.staged_entries >= limit else [])
    assert (limit > 3 or wanted) == (True if limit > 3 else wanted)
    if limit >= 4:
        assert counts == BranchCounts(3, 1, 1)


def test_so_many_branches_are_counted_at_once() -> None:
    """Those that are left are counted by the next look."""
    world = World()
    raw = world.home.key_value.get(world.branch.key)
    assert raw is not None
    for number in range(COUNTED_BRANCHES_MAX + 1):
        world.home.key_value.set(world.home.keys.branch(f"b{number:03}"), raw)
    find_compactions(world.home)
    assert len(world.home.counters.all_counts()) == COUNTED_BRANCHES_MAX
    find_compactions(world.home)
    assert len(world.home.counters.all_counts()) == COUNTED_BRANCHES_MAX + 2


# ---- commits


def commit_of(
    home: RepositoryContext, *parents: Commit, committer: str | None = "ada", at_ms: int | None = None
) -> Commit:
    """A commit with some parents."""
    made = new_commit(
        home,
        parents=[(f"{number}", parent) for number, parent in enumerate(parents)],
        metarange=World().branch_head(World().branch.record).metarange,
        message="m",
        metadata=None,
        committer=committer,
        created_at_ms=at_ms,
    )
    return made.commit


def test_a_commit_stands_behind_all_its_parents() -> None:
    """Its generation is one more than the largest, and it is not stored before any of them, whatever the clock says."""
    world = World()
    home, now_ms = world.home, world.home.now_ms()
    first = commit_of(home)
    assert (first.generation, first.stored_at_ms, first.created_at_ms, first.parents) == (1, now_ms, now_ms, ())
    later = replace_fields(first, generation=5, stored_at_ms=now_ms + 9)
    unknown = replace_fields(first, generation=2, stored_at_ms=None)
    merged = commit_of(home, later, unknown, at_ms=3)
    assert (merged.generation, merged.stored_at_ms, merged.created_at_ms) == (6, now_ms + 9, 3)
    assert commit_of(home, unknown, later).generation == 6
    assert commit_of(home, unknown).stored_at_ms == now_ms
    assert commit_of(home, at_ms=0).created_at_ms == 0


def test_a_commit_names_who_made_it() -> None:
    """Who is given, else who is set for the repository, else the user of the process."""
    world = World()
    assert commit_of(world.home, committer="bob").committer == "bob"
    named = replace(world.home, options=replace(world.home.options, committer="ada"))
    assert [commit_of(named, committer=committer).committer for committer in (None, "", "bob")] == ["ada", "ada", "bob"]
    assert commit_of(world.home, committer=None).committer != ""


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("m" * MESSAGE_BYTES_MAX, None),
        ("m" * (MESSAGE_BYTES_MAX + 1), "oversized_message"),
        ("ä" * (MESSAGE_BYTES_MAX // 2), None),
        ("ä" * (MESSAGE_BYTES_MAX // 2) + "m", "oversized_message"),
        (" \n", "empty_message"),
        ("", "empty_message"),
    ],
)
def test_a_message_is_measured_in_bytes(message: str, kind: str | None) -> None:
    """An empty one is taken where it is allowed."""
    if kind is None:
        check_commit_text(message, None)
        return
    with raises(InvalidRequest, kind):
        check_commit_text(message, None)
    if kind == "empty_message":
        check_commit_text(message, {}, allow_empty_message=True)


def test_metadata_is_measured_in_keys_and_bytes() -> None:
    """Keys and values together; at both limits it is taken."""
    many = {f"{number:03}": "" for number in range(METADATA_COUNT_MAX)}
    check_commit_metadata(many)
    with raises(InvalidRequest, "oversized_metadata"):
        check_commit_metadata({**many, "one more": ""})
    check_commit_metadata({"ä": "v" * (METADATA_BYTES_MAX - 2)})
    for key, size in (("ä", METADATA_BYTES_MAX - 1), ("abc", METADATA_BYTES_MAX - 2)):
        with raises(InvalidRequest, "oversized_metadata"):
            check_commit_metadata({key: "v" * size})
    for wrong in ({"k": 1}, {1: "v"}, {"k": None}):
        with raises(InvalidRequest, "wrong_type"):
            check_commit_metadata(wrong)  # type: ignore[arg-type]


def texts_of(home: RepositoryContext, state: MetarangeRef) -> dict[str, str]:
    """What a metarange holds: texts by path."""
    return {
        path.decode(): decode_entry(raw, where=path.decode()).metadata["is"]
        for batch in home.committed.open(state).rows()
        for path, raw in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    }


@pytest.mark.parametrize("seed", range(5))
def test_chosen_paths_are_as_in_another_state(seed: int) -> None:
    """Of two random states, against dictionaries: the paths and prefixes that were chosen, and no others."""
    rng = random.Random(seed)
    branch = StagedBranch()
    paths = [f"{letter}/{number}" for letter in "abcd" for number in range(4)]
    for _ in range(8):
        onto, source = ({path: str(rng.randint(0, 2)) for path in paths if rng.random() < 0.7} for _ in range(2))
        chosen, prefixes = rng.sample(paths, rng.randint(0, 3)), rng.sample(["a/", "b", "c/1", "d/"], rng.randint(0, 2))
        intervals = intervals_of(chosen, prefixes)
        assert list(intervals) == sorted(intervals)
        made = with_paths_of(
            branch.home, branch.metarange_of(onto), source=branch.metarange_of(source), intervals=intervals
        )
        taken = {path for path in paths if path in chosen or path.startswith(tuple(prefixes))}
        expected = {path: text for path, text in onto.items() if path not in taken}
        expected |= {path: text for path, text in source.items() if path in taken}
        assert texts_of(branch.home, made) == expected
    assert intervals_of([], []) == ()
    for name, arguments in (("paths", ("a", ())), ("prefixes", ((), "a"))):
        with raises(InvalidRequest, "wrong_type", match=name):
            intervals_of(*arguments)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 50])
def test_a_conflict_of_a_merge_shows_some_of_its_paths(count: int) -> None:
    """And says how many more there are."""
    home = World().home
    paths = [f"p{number}" for number in range(count)]
    sentence = str(_conflict(home, "merge", paths, count))
    shown = [path for path in paths if path in sentence.replace(",", " ").replace(".", " ").split()]
    assert shown == paths[: len(shown)]
    assert ("conflicts," in sentence) is (count > 1)
    assert (f"and {count - len(shown)} more" in sentence) is (count > len(shown))
    assert " more" not in sentence or count > len(shown) > 1


# ---- names


def test_a_tag_lives_up_to_its_end() -> None:
    """Then its name is free: it is neither found, listed nor deleted, and another may take it."""
    world = World()
    home, commit_id = world.home, world.branch.record.commit_id
    made = create_tag(home, "t", commit_id=commit_id, owner="o", lifetime_ms=1)
    create_tag(home, "u", commit_id=commit_id)
    assert (made.expires_at_ms, made.owner, is_live(made, home.now_ms())) == (home.now_ms() + 1, "o", True)
    with raises(AlreadyExists, "tag_exists"):
        create_tag(home, "t", commit_id=commit_id)
    assert [name for name, _ in list_tags(home)] == ["t", "u"]
    assert [name for name, _ in list_tags(home, after="t")] == ["u"]
    assert [name for name, _ in list_tags(home, prefix="t")] == ["t"]
    world.clock.advance(0.001)
    assert (find_tag(home, "t"), [name for name, _ in list_tags(home)]) == (None, ["u"])
    for act in (load_tag, delete_tag):
        with raises(NotFound, "tag_not_found"):
            act(home, "t")
    with raises(NotFound, "reference_not_found"):
        resolve(home, "t")
    again = create_tag(home, "t", commit_id=commit_id, lifetime_ms=None)
    assert (again.expires_at_ms, load_tag(home, "t")) == (None, again)
    for lifetime_ms in (0, -1):
        with raises(InvalidRequest, "invalid_lifetime"):
            create_tag(home, "v", commit_id=commit_id, lifetime_ms=lifetime_ms)


@pytest.mark.parametrize("commit_id", ["0" * 64, "f" * 64])
def test_what_names_another_commit_is_not_deleted(commit_id: str) -> None:
    """Neither a tag nor a branch, whichever id is the larger."""
    world = World()
    home, head = world.home, world.branch.record.commit_id
    create_tag(home, "t", commit_id=head)
    create_branch(home, "b", source=BRANCH)
    with raises(Conflict, "tag_moved"):
        delete_tag(home, "t", commit_id=commit_id)
    with raises(Conflict, "branch_moved"):
        delete_branch(home, "b", head=commit_id)
    with raises(Conflict, "branch_moved"):
        delete_empty_branch(home, "b", lambda: True, head=commit_id)
    assert load_branch(home, "b")[0].closed_at_ms is None
    assert not delete_empty_branch(home, "b", lambda: False, head=head)
    assert load_branch(home, "b")[0].closed_at_ms is None
    assert delete_empty_branch(home, "b", lambda: True, head=head)
    assert delete_tag(home, "t", commit_id=head).commit_id == head


def test_a_tag_that_another_deletes_first_is_missing() -> None:
    """Or was made anew: what is deleted is what was read."""
    world = World()
    home, commit_id = world.home, world.branch.record.commit_id
    for meanwhile in ("deleted", "made anew"):
        create_tag(home, "t", commit_id=commit_id)

        def act(meanwhile: str = meanwhile) -> None:
            delete_tag(home, "t")
            if meanwhile == "made anew":
                world.clock.advance(1)
                create_tag(home, "t", commit_id=commit_id)

        world.disturb(1, act)
        with raises(NotFound, "tag_not_found"):
            delete_tag(home, "t")
        world.records.happens = None
        assert (find_tag(home, "t") is None) is (meanwhile == "deleted")


@pytest.mark.parametrize("times", [0, 1, TRIES - 1, TRIES])
def test_a_deletion_of_a_branch_is_tried_so_often(times: int) -> None:
    """While others change it each time."""
    world = World()
    create_branch(world.home, "b", source=BRANCH)
    key = world.home.keys.branch("b")

    def change() -> None:
        record, _ = load_branch(world.home, "b")
        token = StagingToken(f"x{record.staging.id}")
        world.home.key_value.set(key, encode_record(replace_fields(record, staging=token)))

    met = world.disturb(times, change)
    if times >= TRIES:
        with raises(Conflict, "branch_moved"):
            delete_branch(world.home, "b")
    else:
        delete_branch(world.home, "b")
    assert (len(met), world.home.key_value.get(key) is None) == (times, times < TRIES)


@pytest.mark.parametrize("meanwhile", ["deleted", "expired", "tag", "branch", "nothing"])
@pytest.mark.parametrize("verb", ["tag", "branch"])
def test_a_name_that_is_taken_meanwhile_is_named(verb: str, meanwhile: str) -> None:
    """Between the look and the write the repository may go, the commit expire, or another take the name."""
    world = World()
    home, commit_id = world.home, world.branch.record.commit_id
    keys, now_ms = home.keys, home.now_ms()
    rows = {
        "deleted": (keys.deleted, b"1", NotFound),
        "expired": (keys.expired(commit_id), b"1", InvalidRequest),
        "tag": (keys.tag("n"), encode_record(Tag(commit_id, now_ms, "", None)), AlreadyExists),
        "branch": (keys.branch("n"), encode_record(Branch(commit_id, StagingToken("x"))), AlreadyExists),
    }
    if meanwhile != "nothing":
        key, raw, error = rows[meanwhile]
        world.disturb(1, lambda: home.key_value.set(key, raw))

    def make() -> None:
        if verb == "tag":
            create_tag(home, "n", commit_id=commit_id)
        else:
            create_branch(home, "n", source=BRANCH)

    if meanwhile == "nothing":
        make()
        assert resolve(home, "n").kind == verb
        return
    with pytest.raises(error) as caught:
        make()
    kinds = {
        "deleted": "repository_not_found",
        "expired": "commit_expired",
        "tag": "tag_exists",
        "branch": "branch_exists",
    }
    assert caught.value.kind == kinds[meanwhile]
