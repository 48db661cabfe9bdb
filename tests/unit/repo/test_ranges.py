"""Ranges of commits, judged by git on the same graph."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo
from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.model import Commit, MetarangeRef
from lakebed.repo.ranges import diff_sides, log_of_range, sides_of

Graph = dict[str, tuple[str, ...]]


def random_graph(rng: random.Random, *, count: int) -> Graph:
    """Commits c0, c1, ... by their parents: lines that part and merge."""
    graph: Graph = {"c0": ()}
    for number in range(1, count):
        recent = list(graph)[-6:]
        parents = rng.sample(recent, k=min(len(recent), rng.choice((1, 1, 2))))
        graph[f"c{number}"] = tuple(parents)
    return graph


def logs_of(graph: Graph, *, looks: list[str]) -> Any:
    """``log(reference)`` over a graph, by falling generation; each commit that is taken out is noted."""
    generations: dict[str, int] = {}
    for id, parents in graph.items():
        generations[id] = 1 + max((generations[parent] for parent in parents), default=0)

    def log(ref: str, *, amount: int | None = None, **filters: Any) -> Iterator[CommitWithId]:
        assert not filters
        result, todo = {ref}, [ref]
        while todo:
            new = [parent for parent in graph[todo.pop()] if parent not in result]
            result.update(new)
            todo.extend(new)
        for id in sorted(result, key=lambda id: (generations[id], id), reverse=True)[:amount]:
            looks.append(id)
            commit = Commit(graph[id], MetarangeRef(""), id, "", 0, generations[id])
            yield CommitWithId(id, commit)

    return log


def in_git(graph: Graph, folder: Path) -> Any:
    """The same graph in git; what it returns lists a range."""

    def git(*words: str, stdin: str = "") -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *words], cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=True
        )
        return done.stdout

    lines = []
    for number, (id, parents) in enumerate(graph.items()):
        lines += [f"commit refs/heads/{id}", f"mark :{number + 1}", "committer a <a@example.org> 0 +0000"]
        lines += [f"data {len(id)}", id]
        lines += [f"{'from' if at == 0 else 'merge'} :{int(parent[1:]) + 1}" for at, parent in enumerate(parents)]
        lines.append("")
    git("init", "-q")
    git("fast-import", "--quiet", stdin="\n".join(lines))
    return lambda left, right: set(git("log", "--format=%s", f"{left}..{right}").split())


@pytest.mark.parametrize("seed", range(3))
def test_a_range_of_a_log_is_that_of_git(tmp_path: Path, seed: int) -> None:
    """Behind the right side and not behind the left one, each commit once and before its parents."""
    rng = random.Random(seed)
    graph = random_graph(rng, count=40)
    expected = in_git(graph, tmp_path)
    for _ in range(12):
        left, right = rng.sample(list(graph), k=2)
        ids = [commit.id for commit in log_of_range(logs_of(graph, looks=[]), f"{left}..{right}")]
        assert len(ids) == len(set(ids))
        assert set(ids) == expected(left, right)
        for at, id in enumerate(ids):
            assert not set(graph[id]) & set(ids[:at])


def test_a_short_range_of_a_long_history_looks_at_few_commits() -> None:
    """``main~1..main`` costs two commits, whatever lies behind."""
    graph: Graph = {"c0": (), **{f"c{number}": (f"c{number - 1}",) for number in range(1, 1000)}}
    looks: list[str] = []
    assert [commit.id for commit in log_of_range(logs_of(graph, looks=looks), "c998..c999")] == ["c999"]
    assert len(looks) <= 4


@pytest.mark.parametrize("text", ["..main", "main..", "..", "...", "a....b", "main~1....main"])
def test_half_a_range_is_refused(text: str) -> None:
    """A side that is missing is not guessed."""
    with pytest.raises(InvalidRequest, match="is not a range"):
        sides_of(text)


def test_what_a_difference_compares() -> None:
    """Two dots compare as they are, three from where they parted, and a range must be the only argument."""
    assert sides_of("main") is None
    assert diff_sides("a..b", None, None) == ("a", "b", "two_dot")
    assert diff_sides("a...b", None, None) == ("a", "b", "three_dot")
    assert diff_sides("a", "b", None) == ("a", "b", "three_dot")
    assert diff_sides("a", "b", "two_dot") == ("a", "b", "two_dot")
    assert diff_sides("a..b", None, "two_dot") == ("a", "b", "two_dot")
    wrong: list[tuple[Any, Any, Any]] = [("a", None, None), ("a..b", "c", None), ("a...b", None, "two_dot")]
    for arguments in wrong:
        with pytest.raises(InvalidRequest, match="two references or of one range"):
            diff_sides(*arguments)


def test_ranges_of_a_repository() -> None:
    """Logs, filtered logs and differences of a range; a side that is missing is named."""
    with lakebed.repo.open("memory://ranges/some.repo") as some:
        main = some.branch("main")
        for number in range(4):
            main.put(f"{'ab'[number % 2]}/{number}", b"1")
            main.commit(f"commit {number}")
        dev = some.create_branch("dev", version="main~2")
        dev.put("d", b"1")
        dev.commit("on dev")
        main.merge("dev", message="merged")

        def messages(text: str, **filters: Any) -> list[str]:
            return [commit.message for commit in some.log(text, **filters)]

        assert messages("main~1..main") == ["merged", "on dev"]
        assert messages("main..main~1") == []
        assert messages("main~3..main", first_parent=True) == ["merged", "commit 3", "commit 2"]
        assert messages("main~3..main", prefixes=["b/"]) == ["commit 3"]
        assert messages("main~3..main", amount=2) == messages("main~3..main")[:2]
        assert [difference.path for difference in some.diff("main~2..main")] == ["b/3", "d"]
        assert [difference.path for difference in some.diff("main~1...dev")] == ["d"]
        with pytest.raises(NotFound, match="nope"):
            messages("nope..main")
        with pytest.raises(InvalidRequest, match=r"main\.\.dev"):
            messages("main...dev")
