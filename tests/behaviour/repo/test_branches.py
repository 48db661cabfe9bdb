"""Branches: made, listed, deleted and brought back; the reference log, protection and rules of retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, OutcomeUnknown
from lakebed.kv.ranges import prefix_end
from lakebed.repo.heads.heads import seal
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import (
    ProtectionRule,
    check_committable,
    check_deletable,
    check_writable,
    protect,
    protected,
    set_protected,
    unprotect,
)
from lakebed.repo.records.reflog import reflog, trim_reflog
from lakebed.repo.records.retention import delete_retention, load_retention, store_retention
from lakebed.repo.references.branches import (
    CLOSED_MS,
    create_branch,
    delete_branch,
    delete_empty_branch,
    list_branches,
    load_branch,
    undelete_branch,
)
from lakebed.repo.references.tags import create_tag
from lakebed.repo.staging.cleanup import clean_once
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from worlds.errors import refused
from worlds.key_value_wrapper import Rival
from worlds.repo.memory_repository import MemoryRepository, Trap, contents, open_context, put
from worlds.repo.operations import commit, commit_text

DAY_S = 86_400


@pytest.fixture
def place(clock: ManualClock) -> MemoryRepository:
    """Where the repository is."""
    return MemoryRepository(environment=Environment(clock=clock))


@pytest.fixture
def home(place: MemoryRepository) -> Iterator[RepositoryContext]:
    """A repository with one empty commit."""
    with open_context(place) as opened:
        yield opened


def staged_rows(home: RepositoryContext) -> list[bytes]:
    """Keys of everything that is staged, under any token."""
    with home.key_value.snapshot() as snapshot:
        return [key for key, _ in snapshot.scan(home.keys.staging(), prefix_end(home.keys.staging()))]


def test_a_deleted_prefix_is_committed_though_nothing_else_is_staged(home: RepositoryContext) -> None:
    """It is no row of the staging token, which is not empty all the same."""
    for path in ("a/1", "a/2", "b"):
        put(home, "main", path, path)
    commit(home, "main", message="first")
    delete_prefix(home, branch="main", prefix="a/")
    commit(home, "main", message="second")
    assert contents(home, "main") == {"b": "b"}
    refused(InvalidRequest, "no_changes", commit, home, "main", message="third")
    delete_prefix(home, branch="main", prefix="")
    commit(home, "main", message="third")
    assert contents(home, "main") == {}


def test_a_branch_begins_with_the_commit_of_its_source(home: RepositoryContext) -> None:
    """What is staged on the source is not in the new branch, and afterwards the two do not meet."""
    made = commit_text(home, "main", "a", "1", message="first")
    put(home, "main", "b", "2")
    branch = create_branch(home, "dev", source="main")
    assert (branch.commit_id, branch.sealed, branch.compacted, branch.hidden) == (made.id, (), None, False)
    assert branch.staging != load_branch(home, "main")[0].staging
    assert contents(home, "dev") == {"a": "1"}
    put(home, "dev", "c", "3")
    assert contents(home, "main") == {"a": "1", "b": "2"}
    assert create_branch(home, "old", source="main~1").commit_id == made.commit.parents[0]
    assert create_branch(home, "same", source="dev@").commit_id == made.id


def test_what_cannot_be_a_branch_is_refused(home: RepositoryContext) -> None:
    """Taken names, names of tags, wrong names, staged sources and missing sources: each has its kind."""
    create_tag(home, "v1", commit_id=load_branch(home, "main")[0].commit_id)
    assert "already" in str(refused(AlreadyExists, "branch_exists", create_branch, home, "main", source="main"))
    refused(AlreadyExists, "tag_exists", create_branch, home, "v1", source="main")
    refused(InvalidRequest, "invalid_branch_name", create_branch, home, "a/b", source="main")
    refused(InvalidRequest, "invalid_source", create_branch, home, "dev", source="main$")
    refused(NotFound, "reference_not_found", create_branch, home, "dev", source="nobody")
    refused(InvalidRequest, "invalid_reference", create_branch, home, "dev", source="a b")
    refused(NotFound, "branch_not_found", load_branch, home, "dev")
    assert [name for name, _ in list_branches(home, hidden=True)] == ["main"]


def test_an_expired_commit_is_not_referred_to_again(home: RepositoryContext) -> None:
    """Once a commit's objects may be gone, neither branch, tag nor undelete brings it back."""
    head = load_branch(home, "main")[0].commit_id
    create_branch(home, "gone", source="main")
    delete_branch(home, "gone")
    home.key_value.set(home.keys.expired(head), b"")
    refused(InvalidRequest, "commit_expired", create_branch, home, "dev", source="main")
    refused(InvalidRequest, "commit_expired", create_tag, home, "v1", commit_id=head)
    refused(InvalidRequest, "commit_expired", undelete_branch, home, "gone")


def test_branches_are_listed_in_pages(home: RepositoryContext) -> None:
    """By prefix, behind a name, hidden ones only on request, and those of one moment."""
    for name in ("dev-1", "dev-2", "other"):
        create_branch(home, name, source="main")
    create_branch(home, "dev-hidden", source="main", hidden=True)

    def names(**page: Any) -> list[str]:
        return [name for name, _ in list_branches(home, **page)]

    assert names() == ["dev-1", "dev-2", "main", "other"]
    assert names(hidden=True) == ["dev-1", "dev-2", "dev-hidden", "main", "other"]
    assert names(prefix="dev") == ["dev-1", "dev-2"]
    assert names(prefix="dev", after="dev-1") == ["dev-2"]
    assert names(prefix="dev", after="zzz") == []
    assert names(after="main") == ["other"]
    reading = list_branches(home)
    assert next(reading)[0] == "dev-1"
    delete_branch(home, "other")
    assert [name for name, _ in reading] == ["dev-2", "main", "other"]


def test_a_deleted_branch_leaves_nothing_behind(home: RepositoryContext) -> None:
    """Its tokens, sealed ones too, are marked in the same write, and cleaning removes their rows."""
    create_branch(home, "dev", source="main")
    put(home, "dev", "a", "1")
    seal(home, "dev")
    put(home, "dev", "b", "2")
    delete_branch(home, "dev")
    refused(NotFound, "branch_not_found", load_branch, home, "dev")
    refused(NotFound, "branch_not_found", put, home, "dev", "c", "3")
    assert len(staged_rows(home)) == 2
    home.environment.clock.sleep(DAY_S)
    while not clean_once(home).is_done:
        pass
    assert staged_rows(home) == []


def test_default_and_protected_branches_stay(home: RepositoryContext) -> None:
    """No caller can delete them."""
    create_branch(home, "release-1", source="main")
    protect(home, "release-*")
    refused(InvalidRequest, "default_branch", delete_branch, home, "main")
    refused(InvalidRequest, "protected_branch", delete_branch, home, "release-1")
    refused(NotFound, "branch_not_found", delete_branch, home, "release-2")
    assert [name for name, _ in list_branches(home)] == ["main", "release-1"]


def test_a_delete_that_races_a_seal_leaks_nothing(home: RepositoryContext) -> None:
    """A seal between the delete's read and its write is seen: the new token is marked too."""
    create_branch(home, "dev", source="main")
    put(home, "dev", "a", "1")

    def act() -> None:
        seal(home, "dev")
        put(home, "dev", "b", "2")

    delete_branch(replace(home, key_value=Rival(home.key_value, act)), "dev")
    home.environment.clock.sleep(DAY_S)
    while not clean_once(home).is_done:
        pass
    assert staged_rows(home) == []


def test_a_commit_that_races_a_delete_fails(home: RepositoryContext) -> None:
    """The branch is gone before the commit is published: nothing comes back."""
    create_branch(home, "dev", source="main")
    put(home, "dev", "a", "1")
    racing = replace(home, key_value=Rival(home.key_value, lambda: delete_branch(home, "dev")))
    with pytest.raises((NotFound, Conflict)):
        commit(racing, "dev", message="too late")
    refused(NotFound, "branch_not_found", load_branch, home, "dev")


def test_two_that_make_one_branch_do_not_both_succeed(home: RepositoryContext) -> None:
    """A name is taken once, also between the look and the write; so with a tag of that name."""
    main = load_branch(home, "main")[0].commit_id
    racing = replace(home, key_value=Rival(home.key_value, lambda: create_branch(home, "dev", source="main")))
    refused(AlreadyExists, "branch_exists", create_branch, racing, "dev", source="main")
    racing = replace(home, key_value=Rival(home.key_value, lambda: create_tag(home, "v1", commit_id=main)))
    refused(AlreadyExists, "tag_exists", create_branch, racing, "v1", source="main")
    racing = replace(home, key_value=Rival(home.key_value, lambda: create_branch(home, "v2", source="main")))
    refused(AlreadyExists, "branch_exists", create_tag, racing, "v2", commit_id=main)


@pytest.mark.parametrize("mode", ["crash before", "crash after", "reply lost", "request lost"])
@pytest.mark.parametrize("verb", ["create", "delete", "undelete"])
def test_a_fault_at_any_call_leaves_a_branch_or_none(verb: str, mode: Any) -> None:
    """Record, line of the log and marks of tokens are there together or not at all; a lost reply is not a failure."""
    for at in range(30):
        place = MemoryRepository()
        with open_context(place) as before:
            if verb != "create":
                create_branch(before, "dev", source="main")
                put(before, "dev", "a", "1")
            if verb == "undelete":
                delete_branch(before, "dev")
        trap = Trap(at, mode)
        acts: dict[str, Callable[[RepositoryContext], object]] = {
            "create": lambda home: create_branch(home, "dev", source="main"),
            "delete": lambda home: delete_branch(home, "dev"),
            "undelete": lambda home: undelete_branch(home, "dev"),
        }
        failure: BaseException | None = None
        try:
            with open_context(place, trap=trap) as home:
                acts[verb](home)
        except (Crashed, OutcomeUnknown) as error:
            failure = error
        with open_context(place) as after:
            lines = [line.what for line in reflog(after, branch="dev")]
            is_there = "dev" in [name for name, _ in list_branches(after)]
            happened = len(lines) == {"create": 1, "delete": 2, "undelete": 3}[verb]
            assert is_there == (happened != (verb == "delete"))
            with after.key_value.snapshot() as snapshot:
                marks = list(snapshot.scan(after.keys.cleanup(), prefix_end(after.keys.cleanup())))
            assert len(marks) == (1 if verb == "undelete" or (verb == "delete" and happened) else 0)
            if failure is None:
                assert happened
        if not trap.has_sprung:
            assert at > 2
            return
    raise AssertionError("the operation makes more calls than were tried")


def test_undelete_brings_the_last_head_back(home: RepositoryContext, clock: ManualClock) -> None:
    """The commit at the head returns, what was staged does not; after some days, or twice, it is refused."""
    create_branch(home, "dev", source="main")
    made = commit_text(home, "dev", "a", "1", message="work")
    put(home, "dev", "b", "2")
    delete_branch(home, "dev", committer="bob")
    clock.advance(1)
    assert undelete_branch(home, "dev", committer="eve").commit_id == made.id
    assert contents(home, "dev") == {"a": "1"}
    refused(AlreadyExists, "branch_exists", undelete_branch, home, "dev")
    refused(NotFound, "branch_not_deleted", undelete_branch, home, "never")
    assert [(line.what, line.committer) for line in reflog(home, branch="dev") if line.what.endswith("delete")] == [
        ("delete", "bob"),
        ("undelete", "eve"),
    ]
    delete_branch(home, "dev")
    clock.advance(8 * DAY_S)
    refused(NotFound, "branch_not_deleted", undelete_branch, home, "dev")


def test_lines_of_one_millisecond_keep_their_order(home: RepositoryContext) -> None:
    """A branch that is deleted again and again while the clock stands comes back as it was the last time."""
    for number in range(8):
        create_branch(home, "dev", source="main")
        put(home, "dev", "a", str(number))
        last = commit(home, "dev", message=str(number))
        delete_branch(home, "dev")
    assert [line.what for line in reflog(home, branch="dev")] == ["create", "commit", "delete"] * 8
    assert undelete_branch(home, "dev").commit_id == last.id


def test_old_lines_of_the_log_go(home: RepositoryContext, clock: ManualClock) -> None:
    """What is too old to bring anything back is trimmed, of every branch; the rest stays."""
    create_branch(home, "dev", source="main")
    clock.advance(8 * DAY_S)
    create_branch(home, "new", source="main")
    since = home.now_ms()
    assert [line.branch for line in reflog(home, since_ms=since)] == ["new"]
    assert [line.branch for line in reflog(home, branch="dev", since_ms=since)] == []
    assert trim_reflog(home) >= 1
    assert [line.branch for line in reflog(home)] == ["new"]
    assert trim_reflog(home) == 0


def test_protection_blocks_what_its_rules_say(home: RepositoryContext) -> None:
    """Patterns match whole names; each rule blocks what it names; rules are sorted and replaced by pattern."""
    assert protected(home) == ()
    protect(home, "release-*", blocked=("staging_write",))
    protect(home, "main")
    protect(home, "release-*", blocked=("commit", "delete"))
    assert protected(home) == (
        ProtectionRule("main"),
        ProtectionRule("release-*", ("commit", "delete")),
    )
    sentence = str(refused(InvalidRequest, "protected_branch", check_writable, home, "main"))
    assert "work on another branch and merge it" in sentence
    check_writable(home, "release-1")
    check_committable(home, "a-release-1")
    refused(InvalidRequest, "protected_branch", check_committable, home, "release-1")
    refused(InvalidRequest, "protected_branch", check_deletable, home, "release-1")
    unprotect(home, "release-*")
    check_deletable(home, "release-1")
    assert "main" in str(refused(NotFound, "protection_not_found", unprotect, home, "release-*"))
    set_protected(home, ())
    check_writable(home, "main")


@pytest.mark.parametrize(
    "rules",
    [
        (ProtectionRule(""),),
        (ProtectionRule("a" * 300),),
        (ProtectionRule("a", ()),),
        (ProtectionRule("a", ("everything",)),),  # type: ignore[arg-type]
        (ProtectionRule("a"), ProtectionRule("a")),
    ],
)
def test_wrong_rules_of_protection_are_refused(home: RepositoryContext, rules: tuple[ProtectionRule, ...]) -> None:
    """Nothing of them is stored."""
    refused(InvalidRequest, "invalid_protection", set_protected, home, rules)
    assert protected(home) == ()


def test_a_read_only_repository_stays_as_it_is(home: RepositoryContext) -> None:
    """Nothing is made, written or deleted in it."""
    record = msgspec.structs.replace(home.record, read_only=True)
    closed = replace(home, record=record)
    head = load_branch(home, "main")[0].commit_id
    for act, named in (
        (create_branch, {"source": "main"}),
        (create_tag, {"commit_id": head}),
        (undelete_branch, {}),
    ):
        refused(InvalidRequest, "read_only_repository", act, closed, "dev", **named)
    refused(InvalidRequest, "read_only_repository", check_writable, closed, "main")


def test_rules_of_retention_are_kept_and_matched(home: RepositoryContext) -> None:
    """A name counts before a pattern, a longer pattern before a shorter one, and the default for the rest."""
    assert load_retention(home) is None
    rules = store_retention(home, default_days=30, branch_days={"dev-*": 5, "dev-*-keep": 90, "dev-x": 1, "main": 365})
    assert load_retention(home) == rules
    days = {name: rules.days_of(name) for name in ("main", "dev-1", "dev-1-keep", "dev-x", "other")}
    assert days == {"main": 365, "dev-1": 5, "dev-1-keep": 90, "dev-x": 1, "other": 30}
    delete_retention(home)
    delete_retention(home)
    assert load_retention(home) is None


@pytest.mark.parametrize(
    "rules",
    [
        {"default_days": -1},
        {"default_days": 36_501},
        {"default_days": 1.5},
        {"default_days": True},
        {"default_days": 1, "branch_days": {"a": -1}},
        {"default_days": 1, "branch_days": {"": 1}},
    ],
)
def test_wrong_rules_of_retention_are_refused(home: RepositoryContext, rules: dict[str, Any]) -> None:
    """Days are whole, not negative and fewer than a hundred years; nothing wrong is stored."""
    refused(InvalidRequest, "invalid_retention", lambda: store_retention(home, **rules))
    assert load_retention(home) is None


def test_an_empty_branch_goes_without_what_is_written_meanwhile(home: RepositoryContext, clock: ManualClock) -> None:
    """A put beside the look is refused, or the deletion is: nothing that was acknowledged goes with the branch."""
    create_branch(home, "dev", source="main")

    def look() -> bool:
        refused(Conflict, "branch_closed", put, home, "dev", "a", "1")
        return not contents(home, "dev")

    put(home, "dev", "b", "2")
    assert not delete_empty_branch(home, "dev", look)
    put(home, "dev", "c", "3")  # it is open again
    assert contents(home, "dev") == {"b": "2", "c": "3"}
    create_branch(home, "other", source="main")

    def hang() -> bool:
        is_empty = not contents(home, "other")
        clock.advance(CLOSED_MS / 1000)
        put(home, "other", "d", "4")  # its writer does not wait for a process that may have died
        return is_empty

    refused(Conflict, "branch_moved", delete_empty_branch, home, "other", hang)
    assert contents(home, "other") == {"d": "4"}
    create_branch(home, "third", source="main")
    refused(Conflict, "branch_moved", partial(delete_empty_branch, home, "third", lambda: True, head="another"))
    assert delete_empty_branch(home, "third", lambda: not contents(home, "third"))
    refused(NotFound, "branch_not_found", load_branch, home, "third")
