"""References, commit ids and ancestry: one name means one commit, and every mistake is named."""

from __future__ import annotations

import hashlib
import itertools
import random
import re

import msgspec
import pytest

from lakebed.errors import Corruption, InvalidRequest, NotFound
from lakebed.repo.model.model import Branch, Commit, MetarangeRef
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import (
    Walk,
    commit_id,
    find_commit,
    is_commit_id,
    load_commit,
)
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve
from lakebed.repo.references.tags import create_tag
from worlds.errors import raises
from worlds.repo.memory_repository import make_branch, put


def add_commit(home: RepositoryContext, message: str, *parents: str, created_at_ms: int = 0) -> str:
    """A commit's record, without any branch."""
    generation = 1 + max((load_commit(home, parent).generation for parent in parents), default=0)
    commit = Commit(parents, home.committed.empty, message, "ada", created_at_ms, generation)
    home.key_value.set(home.keys.commit(commit_id(commit)), encode_record(commit))
    return commit_id(commit)


def test_every_form_of_a_reference_finds_its_commit(home: RepositoryContext) -> None:
    """Branch, tag, id, abbreviation, ~n, ^n and their chains lead where they say; only a bare branch shows staging."""
    first = add_commit(home, "first")
    left, right = add_commit(home, "left", first), add_commit(home, "right", first)
    merge = add_commit(home, "merge", left, right)
    make_branch(home, "work", merge)
    create_tag(home, "v1", commit_id=left)
    wanted = {
        "work": merge,
        "work@": merge,
        "work$": merge,
        "work~0": merge,
        "work~": left,
        "work~1": left,
        "work^": left,
        "work^0": merge,
        "work^1": left,
        "work^2": right,
        "work~2": first,
        "work^2~1": first,
        "work^2^": first,
        "v1": left,
        "v1@": left,
        "v1~1": first,
        merge: merge,
        merge[:8]: merge,
        f"{merge[:10]}^2": right,
    }
    result = {text: resolve(home, text) for text in wanted}
    assert {text: resolved.commit_id for text, resolved in result.items()} == wanted
    assert all(resolved.commit == load_commit(home, resolved.commit_id) for resolved in result.values())
    assert [text for text, resolved in result.items() if resolved.branch is not None] == ["work", "work$"]
    assert (result["work~1"].kind, result["v1"].kind, result[merge[:8]].kind) == ("branch", "tag", "commit")
    assert result[merge[:8]].name == merge


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("wrok", "reference_not_found", "Did you mean work?"),
        ("nothing-like-it", "reference_not_found", "has the branches"),
        ("work~5", "reference_not_found", "behind the first commit"),
        ("work~2", "reference_not_found", "behind the first commit"),
        ("work^2", "reference_not_found", "has one parent, and number 2 was asked for"),
        ("work~1^1", "reference_not_found", "has no parent, and number 1 was asked for"),
        ("merged^3", "reference_not_found", "has 2 parents, and number 3 was asked for"),
        ("0123456789", "reference_not_found", "no branch, tag or commit"),
        ("f" * 64, "reference_not_found", "no branch, tag or commit"),
        ("", "invalid_reference", "not a valid reference"),
        ("two words", "invalid_reference", "not a valid reference"),
        ("work@@", "invalid_reference", "not a valid reference"),
        ("v1$", "invalid_reference", "only a branch"),
        ("work~1$", "invalid_reference", "only a branch"),
    ],
)
def test_a_wrong_reference_is_named(home: RepositoryContext, text: str, kind: str, says: str) -> None:
    """What cannot be read or found is said in a sentence, with what is near."""
    first = add_commit(home, "first")
    second = add_commit(home, "second", first)
    make_branch(home, "work", second)
    make_branch(home, "merged", add_commit(home, "merge", second, first))
    create_tag(home, "v1", commit_id=first)
    with raises((NotFound, InvalidRequest), kind) as caught:
        resolve(home, text)
    assert says in str(caught.value)


def test_at_most_three_near_names_are_named(home: RepositoryContext) -> None:
    """The nearest of branches, where a reference or a branch is asked for."""
    for number in range(4):
        make_branch(home, f"work-{number}", add_commit(home, "commit"))
    for ask in (lambda: resolve(home, "work-"), lambda: load_branch(home, "work-")):
        with pytest.raises(NotFound) as caught:
            ask()
        assert len(re.findall("work-[0-9]", str(caught.value))) == 3


def test_an_ambiguous_abbreviation_is_refused(home: RepositoryContext) -> None:
    """The beginning of two ids is neither of them; one more character is enough; five are never."""
    commit = load_commit(home, load_branch(home, "main")[0].commit_id)
    for ending in ("a", "b"):
        home.key_value.set(home.keys.commit("c0ffee1" + ending * 57), encode_record(commit))
    with raises(InvalidRequest, "ambiguous_reference", match="Give more characters") as caught:
        resolve(home, "c0ffee1")
    assert len(caught.value.facts["commits"]) == 2
    assert resolve(home, "c0ffee1a").commit_id == "c0ffee1" + "a" * 57
    assert resolve(home, "c0ffee1" + "a" * 56).name == "c0ffee1" + "a" * 57
    with pytest.raises(NotFound):
        resolve(home, "c0ffe")


@pytest.mark.parametrize("count", [2, 5, 6, 8])
def test_an_ambiguous_abbreviation_shows_up_to_five_commits(home: RepositoryContext, count: int) -> None:
    """Each with six characters more than were given; dots where there are more."""
    commit = load_commit(home, load_branch(home, "main")[0].commit_id)
    ids = ["c0ffee" + digit * 58 for digit in "0123456789"[:count]]
    for id in ids:
        home.key_value.set(home.keys.commit(id), encode_record(commit))
    with pytest.raises(InvalidRequest) as caught:
        resolve(home, "c0ffee")
    shown = ", ".join("c0ffee" + digit * 6 for digit in "01234"[:count]) + (", ..." if count > 5 else "")
    assert caught.value.message == (
        f"Several commits of repository {home.name} begin with 'c0ffee': {shown}. Give more characters."
    )
    assert caught.value.facts["commits"] == ids[:5]


@pytest.mark.parametrize(
    ("branches", "tags", "says", "says_of_branch"),
    [
        ("", "", "It has the branch main.", "It has the branch main."),
        ("one", "", "It has the branches main, one.", "It has the branches main, one."),
        (
            "a b c d",
            "v1",
            "It has the branches a, b, c, d, main and the tag v1.",
            "It has the branches a, b, c, d, main.",
        ),
        (
            "a b c d e",
            "v1 v2",
            "It has the branches a, b, c, d, e, ... and the tags v1, v2.",
            "It has the branches a, b, c, d, e, ....",
        ),
        ("nothing-like", "", "Did you mean nothing-like?", "Did you mean nothing-like?"),
        (
            "nothing-like",
            "nothing_like_it",
            "Did you mean nothing-like or nothing_like_it?",
            "Did you mean nothing-like?",
        ),
        ("", "nothing-like", "Did you mean nothing-like?", "It has the branch main."),
    ],
)
def test_a_name_that_nothing_has_is_answered_with_names(
    home: RepositoryContext, branches: str, tags: str, says: str, says_of_branch: str
) -> None:
    """With the nearest, or else with some that there are; for a branch only with branches."""
    head = load_branch(home, "main")[0].commit_id
    for name in branches.split():
        create_branch(home, name, source="main")
    for name in tags.split():
        create_tag(home, name, commit_id=head)
    with pytest.raises(NotFound) as caught:
        resolve(home, "nothing-like-it")
    sentence = f"Repository {home.name} has no branch, tag or commit 'nothing-like-it'. "
    assert caught.value.message == sentence + says
    with pytest.raises(NotFound) as caught:
        load_branch(home, "nothing-like-it")
    assert caught.value.message == f"Repository {home.name} has no branch 'nothing-like-it'. {says_of_branch}"


def test_a_tag_in_place_of_a_branch_is_called_a_tag(home: RepositoryContext) -> None:
    """The error of a verb that needs a branch says what the name is."""
    create_tag(home, "v1", commit_id=load_branch(home, "main")[0].commit_id)
    create_branch(home, "v11", source="main")
    with pytest.raises(NotFound) as caught:
        load_branch(home, "v1")
    assert caught.value.message == (
        f"Repository {home.name} has no branch 'v1'. That is a tag, and this needs a branch."
    )


def test_names_go_before_ids(home: RepositoryContext) -> None:
    """A branch that is called like the beginning of an id is the branch; a whole id cannot be a name."""
    head = load_branch(home, "main")[0].commit_id
    other = add_commit(home, "other")
    make_branch(home, head[:10], other)
    assert resolve(home, head[:10]).commit_id == other
    assert resolve(home, head).commit_id == head
    with raises(InvalidRequest, "invalid_branch_name"):
        create_branch(home, head, source="main")
    with raises(InvalidRequest, "invalid_tag_name"):
        create_tag(home, head, commit_id=head)


def test_one_snapshot_gives_one_answer(home: RepositoryContext) -> None:
    """A reference resolved in a snapshot keeps the meaning it had then."""
    before = load_branch(home, "main")[0].commit_id
    with home.key_value.snapshot() as snapshot:
        make_branch(home, "main", add_commit(home, "later", before))
        put(home, "main", "a", "1")
        assert resolve(home, "main", snapshot=snapshot).commit_id == before
    assert resolve(home, "main").commit_id != before


def test_a_commit_id_is_what_the_commit_says(home: RepositoryContext) -> None:
    """Every field that says something changes the id; the metarange's file, and the order of metadata, do not."""
    said = Commit(("p",), MetarangeRef("m"), "message", "ada", 5, 2, {"a": "1", "b": "2"})
    same = msgspec.structs.replace(said, metarange=MetarangeRef("m", None, 3), metadata={"b": "2", "a": "1"})
    assert commit_id(said) == commit_id(same)
    assert is_commit_id(commit_id(said))
    others = [
        msgspec.structs.replace(said, **change)
        for change in (
            {"parents": ()},
            {"parents": ("p", "q")},
            {"metarange": MetarangeRef("n")},
            {"message": "other"},
            {"committer": "bob"},
            {"created_at_ms": 6},
            {"generation": 3},
            {"metadata": {"a": "1"}},
        )
    ]
    assert len({commit_id(item) for item in [said, *others]}) == len(others) + 1
    stored_for_ever = b'["lakebed commit 1",["p"],"m","message","ada",[["a","1"],["b","2"]],5,2]'
    assert commit_id(said) == hashlib.sha256(stored_for_ever).hexdigest()


def test_half_a_character_in_a_commit_is_refused() -> None:
    """Text that cannot be written as UTF-8 is the caller's mistake, not a crash."""
    broken = Commit((), MetarangeRef("m"), "\ud800", "ada", 0, 1)
    for act in (commit_id, encode_record):
        with raises(InvalidRequest, "invalid_text"):
            act(broken)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b"\xff", b'{"commit_id": 1}', b"[" * 5000, b'"\\ud800"'])
def test_a_damaged_record_is_corruption(home: RepositoryContext, raw: bytes) -> None:
    """Stored bytes that are not a record are never a wrong answer."""
    with pytest.raises(Corruption) as caught:
        decode_record(raw, Branch, key=b"r/1/branches/main")
    assert caught.value.facts["path"] == "r/1/branches/main"
    home.key_value.set(home.keys.branch("main"), raw)
    with pytest.raises(Corruption):
        resolve(home, "main")


def test_a_missing_parent_is_corruption(home: RepositoryContext) -> None:
    """A commit whose parent is not there means that records were lost: that is said, not skipped."""
    lost = add_commit(home, "lost")
    orphan = add_commit(home, "orphan", lost)
    home.key_value.delete(home.keys.commit(lost))
    with pytest.raises(Corruption, match="names a parent"):
        list(Walk(home, [orphan]))
    with pytest.raises(NotFound, match="There is no commit"):
        load_commit(home, lost)
    assert find_commit(home, lost) is None


def test_ancestors_stand_behind_what_descends_from_them(home: RepositoryContext) -> None:
    """With any clocks, a commit comes before its parents, and each comes once; first parents on request."""
    first = add_commit(home, "first", created_at_ms=100)
    left = add_commit(home, "left", first, created_at_ms=1)
    right = add_commit(home, "right", first, created_at_ms=2)
    merge = add_commit(home, "merge", left, right, created_at_ms=0)
    assert [id for id, _ in Walk(home, [merge])] == [merge, right, left, first]
    assert [id for id, _ in Walk(home, [merge], first_parent=True)] == [merge, left, first]


def test_the_merge_base_is_a_best_common_ancestor(home: RepositoryContext) -> None:
    """On random histories: the answer is common, no other common ancestor descends from it, and it has no sides."""
    rng = random.Random(11)
    commits: list[str] = []
    above: dict[str, set[str]] = {}
    for number in range(40):
        parents = rng.sample(commits[-6:], min(len(commits), rng.choice((1, 1, 2)))) if number not in (0, 7) else []
        id = add_commit(home, f"{number}", *parents)
        above[id] = {id}.union(*(above[parent] for parent in parents))
        commits.append(id)
    none = 0
    for left, right in itertools.combinations_with_replacement(commits, 2):
        common = above[left] & above[right]
        base = merge_base(home, left, right)
        assert base == merge_base(home, right, left)
        none += base is None
        if base is None:
            assert not common
        else:
            assert base in common
            assert not any(base in above[other] for other in common if other != base)
    assert none  # two of the histories had nothing in common


def test_a_criss_cross_has_one_base(home: RepositoryContext) -> None:
    """Of several equally good commits every process chooses the same."""
    first = add_commit(home, "first")
    a, b = add_commit(home, "a", first, created_at_ms=7), add_commit(home, "b", first, created_at_ms=8)
    item, other = add_commit(home, "one", a, b), add_commit(home, "other", b, a)
    assert merge_base(home, item, other) == merge_base(home, other, item) == b
