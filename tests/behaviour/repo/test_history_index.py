"""The index of a history: the same answers as without it, judged by git, whatever is missing or damaged in it."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakebed.repo.heads.blame import blame
from lakebed.repo.heads.commit import new_commit
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.commit_graph import CommitGraph
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import encode_record
from lakebed.repo.references import history
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import Walk, walk_to_merge_base
from lakebed.repo.references.history import index_history, load_graph, merge_base
from worlds.repo.memory_repository import MemoryRepository, contents, open_context, put, remove
from worlds.repo.operations import commit, commit_text, log, log_page, merge

PATHS = [f"{folder}/{number}" for folder in ("a", "a/b", "c") for number in range(3)]
BRANCHES = ("main", "dev", "side")


def grow(home: RepositoryContext, rng: random.Random, *, count: int) -> None:
    """Random commits and merges on three branches."""
    for number in range(count):
        branch = rng.choice(BRANCHES)
        if number and rng.random() < 0.2:
            source = rng.choice([other for other in BRANCHES if other != branch])
            merge(home, source, into=branch, strategy=rng.choice(("source-wins", "dest-wins")), allow_empty=True)
            continue
        for path in rng.sample(PATHS, rng.randrange(3)):
            if path in contents(home, branch) and rng.random() < 0.3:
                remove(home, branch, path)
            else:
                put(home, branch, path, f"{rng.randrange(3)}")
        commit(home, branch, message=f"{number}", allow_empty=True)


class Git:
    """The same commits in git, whose messages are our ids."""

    def __init__(self, folder: Path, home: RepositoryContext) -> None:
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        self._folder = folder
        heads = [load_branch(home, branch)[0].commit_id for branch in BRANCHES]
        commits = dict(reversed(list(Walk(home, heads))))
        marks = {id: number for number, id in enumerate(commits, 1)}
        lines: list[str] = []
        for id, made in commits.items():
            lines += [f"commit refs/heads/{id}", f"mark :{marks[id]}", f"committer a <a@b> {marks[id]} +0000"]
            lines += [f"data {len(id)}", id]
            lines += [f"{word} :{marks[parent]}" for word, parent in zip(("from", "merge"), made.parents, strict=False)]
            lines += ["deleteall"]
            for path, text in contents(home, id).items():
                lines += [f"M 100644 inline {path}", f"data {len(text)}", text]
        self._run("init", "-q")
        self._run("fast-import", "--quiet", given="\n".join([*lines, "done", ""]))

    def _run(self, *words: str, given: str | None = None) -> str:
        return subprocess.run(
            ["git", *words], cwd=self._folder, env=self._environment, input=given, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip

    def merge_bases(self, left: str, right: str) -> list[str]:
        """Our ids of the best common ancestors."""
        split = self._run("merge-base", "--all", left, right).split()
        return self._run("log", "--no-walk", "--format=%s", *split).split()

    def log(self, id: str, path: str, *options: str) -> list[str]:
        """Our ids of the commits that changed a path or folder."""
        return self._run("log", "--format=%s", *options, id, "--", path).split()


def assert_as_git(home: RepositoryContext, git: Git) -> None:
    """Logs of paths and folders, and who is blamed for a path, are those of git."""
    for branch in BRANCHES:
        head = load_branch(home, branch)[0].commit_id
        for path in ["a/", "a/b/", *PATHS[::2]]:
            asked: dict[str, Any] = {"prefixes": [path]} if path.endswith("/") else {"paths": [path]}
            ours = [id for id, _ in log(home, branch, **asked)]
            assert sorted(ours) == sorted(git.log(head, path, "--full-history", "--no-merges"))
            ours = [id for id, _ in log(home, branch, first_parent=True, **asked)]
            assert ours == git.log(head, path, "--first-parent")
        live = list(contents(home, f"{branch}@"))
        blamed = blame(home, branch, paths=live)
        assert {path: blamed[path].id for path in live} == {path: git.log(head, path, "-1")[0] for path in live}


def answers(home: RepositoryContext, *, branches: Sequence[str] = BRANCHES[:2]) -> list[Any]:
    """Everything that is asked of a history by path, in order and in pages."""
    items: list[Any] = []
    for branch in branches:
        for asked in ({"paths": ["a/1"]}, {"prefixes": ["a/b/"]}, {"paths": ["c/2"], "prefixes": ["a/b/1"]}):
            for first_parent in (False, True):
                for other in ({"stop_at": f"{branch}~4"}, {"since_ms": 1}):
                    items.append(list(log(home, branch, first_parent=first_parent, **asked, **other)))
                pages, after = [], None
                while after != "":
                    page = log_page(home, branch, amount=2, after=after, first_parent=first_parent, **asked)
                    pages.append(page.rows)
                    after = page.following
                items.append(pages)
                by_id = [row.id for rows in pages for row in rows]
                rest = log(home, branch, first_parent=first_parent, after=by_id[0], **asked) if by_id else ()
                assert [row.id for row in rest] == by_id[1:]
        items.append(blame(home, branch, paths=list(contents(home, f"{branch}@"))))
    return items


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_an_index_answers_as_git_does(tmp_path: Path, seed: int) -> None:
    """Random histories with merges, indexed in part or whole: logs and blame are git's, and those without an index."""
    rng = random.Random(seed)
    place = MemoryRepository()
    with open_context(place) as home:
        for branch in BRANCHES[1:]:
            create_branch(home, branch, source="main")
        grow(home, rng, count=20)
        index_history(home)
        grow(home, rng, count=20)
        without = _without_index(home)
        assert answers(home) == without
        git = Git(tmp_path, home)
        assert index_history(home) > 0
        assert answers(home) == without
        assert_as_git(home, git)
    with open_context(place) as other:
        assert answers(other) == without


def _without_index(home: RepositoryContext) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "_scan_segments", lambda *_: [])
        patch.setattr(home.graph, "_kept", None)
        return answers(home)


def stored(home: RepositoryContext) -> dict[bytes, bytes]:
    """The segments."""
    with home.key_value.snapshot() as snapshot:
        return dict(snapshot.scan(home.keys.history(), home.keys.history() + b"~"))


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8 commits."""
    monkeypatch.setattr(history, "SEGMENT_COMMITS_MAX", 8)


def assert_whole(place: MemoryRepository) -> None:
    """The index that a new process reads has every commit once."""
    with open_context(place) as home, home.key_value.snapshot() as snapshot:
        graph = load_graph(home, snapshot=snapshot)
        heads = [load_branch(home, branch)[0].commit_id for branch in BRANCHES]
        assert sorted(map(graph.id_at, range(len(graph)))) == sorted(id for id, _ in Walk(home, heads))


@pytest.fixture(scope="module")
def indexed() -> tuple[MemoryRepository, dict[bytes, bytes], list[Any]]:
    """A history in small segments, the segments, and what it answers without them."""
    place = MemoryRepository()
    with open_context(place) as home, pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "SEGMENT_COMMITS_MAX", 8)
        for branch in BRANCHES[1:]:
            create_branch(home, branch, source="main")
        grow(home, random.Random(7), count=45)
        expected = answers(home, branches=["main"])
        index_history(home)
        assert len(stored(home)) >= 5
        return place, stored(home), expected


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(
    ("damage", "number"),
    [("bit", 2), ("cut", 0), ("missing", -1), ("swapped", 3)],
)
def test_a_damaged_index_answers_nothing_wrong(
    indexed: tuple[MemoryRepository, dict[bytes, bytes], list[Any]], damage: str, number: int
) -> None:
    """Whichever segment is damaged or gone, answers stay, and the next indexing mends it."""
    place, whole, expected = indexed
    key = sorted(whole)[number]
    raw = whole[key]
    middle = len(raw) // 2
    damaged = {
        "bit": raw[:middle] + bytes([raw[middle] ^ 4]) + raw[middle + 1 :],
        "cut": raw[:middle],
        "swapped": whole[sorted(whole)[1]],
        "missing": b"",
    }[damage]
    with open_context(place) as home:
        home.key_value.write([*whole.items(), (key, damaged)])
        if damage == "missing":
            home.key_value.delete(key)
        assert answers(home, branches=["main"]) == expected
        while index_history(home):
            pass
        assert_whole(place)
        assert answers(home, branches=["main"]) == expected
        home.key_value.set(key, damaged)  # behind the back of a process that knows the index
        commit(home, "dev", message="one more", allow_empty=True)
        while index_history(home):
            pass
    assert_whole(place)
    with open_context(place) as home:
        assert answers(home, branches=["main"]) == expected


@pytest.mark.usefixtures("small_segments")
def test_two_that_index_at_once_write_one_index() -> None:
    """Of two processes that index the same commits one writes each segment, and no commit is in it twice."""
    rng = random.Random(11)
    place = MemoryRepository()
    with open_context(place) as home, open_context(place) as other:
        for branch in BRANCHES[1:]:
            create_branch(home, branch, source="main")
        grow(home, rng, count=20)
        looked = 0

        def work_between() -> None:
            nonlocal looked
            looked += 1
            if looked == 1:
                index_history(other)

        assert index_history(home, pause=work_between) == 0
        expected = answers(home)
        assert_whole(place)
        assert answers(other) == expected


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_distant_merge_base_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_indexed: bool) -> None:
    """Of any two commits, after merges crosswise too, by the index and by the records: one of git's, and the same."""
    monkeypatch.setattr(history, "WALKED_COUNT_MAX", 1)
    with open_context(MemoryRepository()) as home:
        for branch in BRANCHES[1:]:
            create_branch(home, branch, source="main")
        grow(home, random.Random(5), count=20)
        if is_indexed:
            index_history(home)
        grow(home, random.Random(6), count=6)
        git = Git(tmp_path, home)
        heads = [load_branch(home, branch)[0].commit_id for branch in BRANCHES]
        ids = [id for id, _ in Walk(home, heads)]
        for left, right in random.Random(7).sample(list(product(ids, ids)), 20):
            base = merge_base(home, left, right)
            assert base == merge_base(home, right, left)
            assert base == walk_to_merge_base(home, left, right, count_max=None, snapshot=None)
            assert base in git.merge_bases(left, right)


def make_long(home: RepositoryContext, count: int) -> dict[str, str]:
    """A history of so many commits on main, as records: 20 paths change in turn. Returns the last ids by path."""
    paths = [f"data/{number:02}" for number in range(20)]
    for path in paths:
        put(home, "main", path, "0")
    commit(home, "main", message="all")
    states = []
    for number in range(40):
        put(home, "main", paths[number % 20], f"{number + 1}" if number < 20 else "0")
        states.append((paths[number % 20], commit(home, "main", message=f"{number}").commit.metarange))
    record, raw = load_branch(home, "main")
    parent = next(log(home, "main"))
    last: dict[str, str] = {}
    puts: list[tuple[bytes, bytes]] = []
    for path, metarange in islice(cycle(states), count):
        parent = new_commit(
            home, parents=[tuple(parent)], metarange=metarange, message=path, metadata=None, committer="a"
        )
        last[path] = parent.id
        puts.append((home.keys.commit(parent.id), encode_record(parent.commit)))
    for first in range(0, len(puts), 5_000):
        home.key_value.write(puts[first : first + 5_000])
    home.key_value.set_if(
        home.keys.branch("main"), encode_record(msgspec.structs.replace(record, commit_id=parent.id)), expected=raw
    )
    return last


class CountedCommits:
    """Counts the commits that are read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = history.find_commit

        def find(*arguments: Any, **settings: Any) -> Any:
            self.count += 1
            return real(*arguments, **settings)

        for module in ("history", "commits"):
            patch.setattr(f"lakebed.repo.references.{module}.find_commit", find)


def test_a_long_history_is_not_read_for_one_path(home: RepositoryContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the index, a log and a blame of a path that changed long ago read a few commits of hundreds."""
    first = commit_text(home, "main", "old/path", "1", message="old")
    make_long(home, 600)
    without = CountedCommits(monkeypatch)
    assert [row.id for row in log(home, "main", paths=["old/path"])] == [first.id]
    assert without.count > 600
    monkeypatch.undo()
    assert index_history(home) > 600
    counted = CountedCommits(monkeypatch)
    assert [row.id for row in log(home, "main", paths=["old/path"])] == [first.id]
    assert blame(home, "main", paths=["old/path"])["old/path"].id == first.id
    assert [row.id for row in log(home, "main", prefixes=["old/"])] == [first.id]
    assert counted.count < 150


@pytest.mark.long
def test_a_history_of_100_thousand_commits_answers_by_path(home: RepositoryContext) -> None:
    """A log and a blame by path over 100,000 commits read what has changed the path, and name it."""
    first = commit_text(home, "main", "old/path", "1", message="old")
    last = make_long(home, 100_000)
    index_history(home)
    assert [row.id for row in log(home, "main", paths=["old/path"])] == [first.id]
    paths = ["old/path", *list(last)]
    blamed: dict[str, CommitWithId] = blame(home, "main", paths=paths)
    assert {path: row.id for path, row in blamed.items()} == {"old/path": first.id, **last}
    assert [row.id for row in log(home, "main", paths=["data/03"], amount=1)] == [last["data/03"]]


def test_an_empty_graph_has_no_commits() -> None:
    """Of a repository without an index nothing is known."""
    graph = CommitGraph([])
    assert len(graph) == 0
    assert graph.find("0" * 64) is None
    assert graph.find("not an id") is None
