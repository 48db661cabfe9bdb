"""Commits: what they hold, what they refuse, and that nothing piles up or is lost on the way."""

from __future__ import annotations

from typing import NoReturn

import pytest

from lakebed import repo
from lakebed.errors import InvalidRequest, NotFound, Rejected
from lakebed.lsm.memtable import Memtable
from lakebed.repo.heads.commit import METADATA_BYTES_MAX
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.model.model import DiffKind
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import HookCall
from lakebed.repo.records.protection import protect
from lakebed.repo.records.reflog import reflog
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import load_commit
from worlds.errors import raises
from worlds.repo.memory_repository import (
    contents,
    head_of,
    put,
    put_many,
    remove,
    uncommitted_of,
)
from worlds.repo.operations import commit, commit_text


def sealed_count(home: RepositoryContext) -> int:
    """Sealed tokens of the branch."""
    return len(load_branch(home, "main")[0].sealed)


def refused(home: RepositoryContext, kind: str, **arguments: object) -> str:
    """The sentence of a commit that must be refused with a kind."""
    before = load_branch(home, "main")[0].commit_id
    with raises((InvalidRequest, Rejected), kind) as caught:
        commit(home, "main", **{"message": "m", **arguments})  # type: ignore[arg-type]
    assert load_branch(home, "main")[0].commit_id == before
    return str(caught.value)


def test_a_commit_holds_what_was_staged(home: RepositoryContext) -> None:
    """Puts, overwrites and deletes are in the commit; afterwards nothing is uncommitted."""
    put_many(home, "main", {f"a/{n}": f"{n}" for n in range(40)})
    first = commit(home, "main", message="first", metadata={"run": "7"}, committer="grace", created_at_ms=5)
    put(home, "main", "a/3", "three")
    remove(home, "main", "a/4")
    second = commit(home, "main", message="second")
    expected = {f"a/{n}": f"{n}" for n in range(40) if n != 4} | {"a/3": "three"}
    assert contents(home, "main") == contents(home, second.id) == expected
    assert uncommitted_of(home, "main") == {}
    assert second.commit.parents == (first.id,)
    assert second.commit.generation == 3
    assert (first.commit.committer, first.commit.created_at_ms, first.commit.metadata) == ("grace", 5, {"run": "7"})
    assert second.commit.committer == "ada"
    record, _ = load_branch(home, "main")
    assert record.commit_id == second.id
    assert record.sealed == ()
    assert record.compacted is None
    assert [(line.what, line.after) for line in reflog(home, branch="main")] == [
        ("commit", first.id),
        ("commit", second.id),
    ]


def test_only_changed_ranges_are_written(home: RepositoryContext) -> None:
    """One changed path among many ranges: few ranges are read and written."""
    put_many(home, "main", {f"{n:05}": "x" for n in range(3000)})
    commit(home, "main", message="many")
    put(home, "main", "01500", "y")
    with home.committed.count() as counts:
        commit(home, "main", message="one")
    assert counts.ranges_read <= 2
    assert counts.ranges_written <= 2


def test_what_is_staged_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is something to commit is asked in the form in which it is then read."""

    def sort_again(memtable: Memtable) -> NoReturn:
        raise AssertionError("the keys of all that is new were sorted by themselves")

    with repo.open("memory://sorted/analytics.repo", create=True) as opened:
        branch = opened.branch("main")
        branch.put("a", b"1")
        monkeypatch.setattr(Memtable, "order_keys", sort_again)
        branch.commit("one")
        assert bytes(branch.get("a")) == b"1"


def test_without_changes_there_is_no_commit(home: RepositoryContext) -> None:
    """Nothing staged, a change undone, the same content again: no_changes, and no token is left sealed."""
    commit_text(home, "main", "a", "1", message="a")
    refused(home, "no_changes")
    for _ in range(5):
        put(home, "main", "b", "2")
        remove(home, "main", "b")
        put(home, "main", "a", "1")
        sentence = refused(home, "no_changes")
        assert sealed_count(home) == 0
    assert "branch main of repository analytics" in sentence
    assert uncommitted_of(home, "main") == {}


def test_an_empty_commit_can_be_asked_for(home: RepositoryContext) -> None:
    """allow_empty makes a commit that holds what its parent holds."""
    first = commit_text(home, "main", "a", "1", message="a")
    empty = commit(home, "main", message="nothing", allow_empty=True)
    assert empty.commit.parents == (first.id,)
    assert empty.commit.metarange.id == first.commit.metarange.id


def test_what_a_commit_cannot_say_is_refused(home: RepositoryContext) -> None:
    """Messages and metadata have limits, and nothing is sealed for a commit beyond them."""
    put(home, "main", "a", "1")
    refused(home, "empty_message", message=" ")
    refused(home, "oversized_message", message="m" * 70_000)
    assert f"{METADATA_BYTES_MAX:,}" in refused(home, "oversized_metadata", metadata={"k": "v" * METADATA_BYTES_MAX})
    refused(home, "oversized_metadata", metadata={f"{n}": "" for n in range(2000)})
    refused(home, "wrong_type", metadata={"k": 1})
    refused(home, "invalid_text", metadata={"k": "\ud800"})
    assert sealed_count(home) == 0
    assert commit(home, "main", message="", allow_empty_message=True).commit.message == ""


def test_a_branch_that_is_not_there_takes_no_commit(home: RepositoryContext) -> None:
    """The error names the branch."""
    with raises(NotFound, "branch_not_found"):
        commit(home, "mian", message="m")


def test_a_protected_branch_takes_no_commit(home: RepositoryContext) -> None:
    """A rule refuses it before anything is sealed."""
    put(home, "main", "a", "1")
    protect(home, "ma*", blocked=("commit",))
    refused(home, "protected_branch")
    assert sealed_count(home) == 0


def test_chosen_paths_are_committed_alone(home: RepositoryContext) -> None:
    """The rest stays uncommitted, tombstones included, and the next commit takes it."""
    put_many(home, "main", {f"{n:02}": "old" for n in range(30)})
    commit(home, "main", message="base")
    put_many(home, "main", {"05": "new", "06": "new", "in/a": "1", "in/b": "2", "out": "3"})
    remove(home, "main", "07")
    remove(home, "main", "08")
    before = contents(home, "main")
    part = commit(home, "main", message="part", paths=["05", "07", "not there"], prefixes=["in/"])
    old = {f"{n:02}": "old" for n in range(30)}
    texts = {path: text for path, text in (old | {"05": "new", "in/a": "1", "in/b": "2"}).items() if path != "07"}
    assert contents(home, part.id) == texts
    assert contents(home, "main") == before
    assert uncommitted_of(home, "main") == {"06": DiffKind.CHANGED, "08": DiffKind.REMOVED, "out": DiffKind.ADDED}
    refused(home, "no_changes", paths=["05"])
    commit(home, "main", message="rest")
    assert head_of(home, "main") == before
    assert uncommitted_of(home, "main") == {}


def test_a_commit_stands_on_what_was_compacted(home: RepositoryContext) -> None:
    """What compaction has made of the staged rows is in the next commit, and the branch keeps nothing compacted."""
    put_many(home, "main", {"a": "1", "b": "2"})
    commit(home, "main", message="base")
    remove(home, "main", "a")
    put(home, "main", "c", "3")
    assert compact_once(home, "main", force=True).outcome == "published"
    commit_text(home, "main", "d", "4", message="all")
    assert head_of(home, "main") == {"b": "2", "c": "3", "d": "4"}
    assert load_branch(home, "main")[0].compacted is None


def test_changed_and_changed_back_over_a_compaction_is_no_change(home: RepositoryContext) -> None:
    """The head's own content at another address, staged over a compacted change, makes no commit."""
    put_many(home, "main", {"a": "1", "b": "2"})
    commit(home, "main", message="base")
    put(home, "main", "a", "9")
    remove(home, "main", "b")
    compact_once(home, "main", force=True)
    put_many(home, "main", {"a": "1", "b": "2"})
    refused(home, "no_changes")
    record, _ = load_branch(home, "main")
    assert record.sealed == ()
    assert record.compacted is None


def test_a_prefix_deleted_and_filled_again_is_committed(home: RepositoryContext) -> None:
    """Range tombstones hide what is older, not what came later."""
    put_many(home, "main", {f"p/{n}": "old" for n in range(20)} | {"q": "1"})
    commit(home, "main", message="base")
    delete_prefix(home, branch="main", prefix="p/")
    commit_text(home, "main", "p/7", "new", message="cleared")
    assert head_of(home, "main") == {"p/7": "new", "q": "1"}


def test_a_hook_can_refuse_and_nothing_piles_up(home: RepositoryContext) -> None:
    """A pre-commit hook that raises keeps the head where it is; again and again it leaves no sealed tokens."""
    seen: list[HookCall] = []

    def strict(call: HookCall) -> None:
        seen.append(call)
        raise ValueError("no message format")

    home.hooks.register("pre-commit", strict)
    model = {}
    for number in range(6):
        put(home, "main", f"{number}", "x")
        model[f"{number}"] = "x"
        assert "no message format" in refused(home, "hook_rejected", metadata={"k": "v"})
        assert sealed_count(home) == 0
        assert contents(home, "main") == model
    assert seen[0].event == "pre-commit"
    assert seen[0].metadata == {"k": "v"}
    home.hooks.remove(strict)
    commit(home, "main", message="at last")
    assert head_of(home, "main") == model


def test_hooks_after_a_commit_cannot_undo_it(home: RepositoryContext) -> None:
    """A failing post-commit hook is reported with the commit it was called for."""
    home.hooks.register("post-commit", lambda call: 1 // 0, name="divider")
    new = commit_text(home, "main", "a", "1", message="m")
    [failure] = home.hooks.failures
    assert (failure.hook, failure.call.commit_id) == ("divider", new.id)
    assert load_commit(home, new.id) == new.commit


def test_a_commit_of_no_path_is_not_one_of_everything(home: RepositoryContext) -> None:
    """An empty list that a program computed commits nothing, and what is staged stays so."""
    put(home, "main", "a", "1")
    for nothing in ({"paths": []}, {"prefixes": []}, {"paths": (), "prefixes": ()}):
        refused(home, "no_changes", **nothing)
    assert uncommitted_of(home, "main") == {"a": DiffKind.ADDED}
    made = commit(home, "main", message="marked", paths=[], allow_empty=True)
    assert contents(home, made.id) == {}
    assert uncommitted_of(home, "main") == {"a": DiffKind.ADDED}
    assert contents(home, commit(home, "main", message="all").id) == {"a": "1"}
