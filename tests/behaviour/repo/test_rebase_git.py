"""Rebases and merges judged by git: the same random history in both, and the same files after every step."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import Walk
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, head_of, open_context, put, put_many, remove
from worlds.repo.operations import cherry_pick, commit, hard_reset, log, merge, rebase, revert

BRANCHES = ("main", "dev", "side")


class Git:
    """A git repository in a folder, driven by its command line; nothing of the user's settings is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        self("init", "-q", "-b", "main")
        self("commit", "-q", "--allow-empty", "-m", "root")

    def __call__(self, *words: str) -> str:
        """What a command prints. Raises `subprocess.CalledProcessError` when it fails."""
        command = ["git", "-c", "advice.detachedHead=false", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def commit(self, branch: str, texts: dict[str, str | None], message: str) -> None:
        """Change files on a branch, None deletes, and commit."""
        self("checkout", "-q", branch)
        for path, text in texts.items():
            file = self.folder / path
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
        self("add", "--all")
        self("commit", "-q", "-m", message)

    def files(self, branch: str) -> dict[str, str]:
        """Path -> content at a branch's head."""
        self("checkout", "-q", branch)
        return {
            str(file.relative_to(self.folder)): file.read_text()
            for file in self.folder.rglob("*")
            if file.is_file() and ".git" not in file.parts
        }

    def merge(self, source: str, into: str) -> None:
        """A merge commit; fails and changes nothing when there is a conflict."""
        self("checkout", "-q", into)
        self.or_abort("merge", "-q", "--no-ff", "--no-edit", "-Xno-renames", source)

    def rebase(self, branch: str, onto: str) -> None:
        """Drop merges, and commits that change nothing on `onto`.

        A patch that is in `onto` and was changed again there is applied again; by default git leaves it out.
        """
        self("checkout", "-q", branch)
        self.or_abort("rebase", "-q", "--reapply-cherry-picks", "--empty=drop", "-Xno-renames", onto)

    def or_abort(self, verb: str, *words: str) -> None:
        """Run a command, and take it back when it stops at a conflict."""
        try:
            self(verb, *words)
        except subprocess.CalledProcessError:
            self(verb, "--abort")
            raise


def change(home: RepositoryContext, git: Git, branch: str, texts: dict[str, str | None], message: str) -> None:
    """The same commit in both."""
    for path, text in texts.items():
        if text is None:
            remove(home, branch, path)
        else:
            put(home, branch, path, text)
    commit(home, branch, message=message)
    git.commit(branch, texts, message)


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """An empty repository."""
    folder = tmp_path / "git"
    folder.mkdir()
    return Git(folder)


def messages(home: RepositoryContext, branch: str) -> list[str]:
    """Of the commits along first parents, newest first."""
    head_id = load_branch(home, branch)[0].commit_id
    return [made.message for _, made in Walk(home, [head_id], first_parent=True)]


def test_a_branch_that_merged_upstream_keeps_its_commits(git: Git) -> None:
    """Commits, a merge of upstream, more commits upstream, then a rebase: no own commit is lost, as in git."""
    with open_context(MemoryRepository()) as home:
        change(home, git, "main", {"base": "0"}, "base")
        create_branch(home, "dev", source="main")
        git("branch", "dev", "main")
        change(home, git, "dev", {"d1": "1"}, "first")
        change(home, git, "dev", {"d2": "2"}, "second")
        change(home, git, "main", {"m1": "1"}, "upstream")
        merge(home, "main", into="dev")
        git.merge("main", "dev")
        change(home, git, "dev", {"d3": "3"}, "third")
        change(home, git, "main", {"m1": "2", "m2": "2"}, "upstream again")
        rebase(home, "dev", onto="main")
        git.rebase("dev", "main")
        assert (
            head_of(home, "dev")
            == git.files("dev")
            == {"base": "0", "m1": "2", "m2": "2"} | {f"d{n}": f"{n}" for n in (1, 2, 3)}
        )
        assert messages(home, "dev")[:4] == ["third", "second", "first", "upstream again"]
        assert git("log", "--format=%s", "-4").split("\n")[:4] == messages(home, "dev")[:4]


FILES = {f"{number:02}": "old" for number in range(30)}


@pytest.fixture
def reworked(git: Git) -> Iterator[RepositoryContext]:
    """30 files on main; on dev the file 03 was changed and changed back, so its bytes have another address there."""
    with open_context(MemoryRepository()) as home:
        change(home, git, "main", dict(FILES), "base")
        create_branch(home, "dev", source="main")
        git("branch", "dev", "main")
        change(home, git, "dev", {"03": "new"}, "there")
        change(home, git, "dev", {"03": "old"}, "and back")
        yield home


def refused_by_both(home: RepositoryContext, git: Git, ours: Callable[[], object], *words: str) -> None:
    """No commit is made by us, with the kind ``no_changes``; git has nothing to commit after its command either."""
    before, commits = load_branch(home, "main")[0].commit_id, git("rev-parse", "main")
    with raises(InvalidRequest, "no_changes"):
        ours()
    assert load_branch(home, "main")[0].commit_id == before
    git("checkout", "-q", "main")
    git(*words)
    with pytest.raises(subprocess.CalledProcessError) as said:
        git("commit", "-m", "nothing")
    assert "nothing to commit" in said.value.stdout
    assert git("rev-parse", "main") == commits


def test_equal_contents_at_other_addresses_are_not_merged(reworked: RepositoryContext, git: Git) -> None:
    """A squashed or partial merge of files that were changed and changed back has no changes, as in git."""
    refused_by_both(
        reworked, git, lambda: merge(reworked, "dev", into="main", squash=True), "merge", "-q", "--squash", "dev"
    )
    with raises(InvalidRequest, "no_changes"):
        merge(reworked, "dev", into="main", prefix="0")
    made = merge(reworked, "dev", into="main", squash=True, allow_empty=True)
    assert made.commit.message == "Merge 'dev' into 'main'"


def test_equal_contents_at_other_addresses_are_not_picked(reworked: RepositoryContext, git: Git) -> None:
    """A cherry-pick or revert of a merge that changed no content has no changes, as in git."""
    home = reworked
    base = load_branch(home, "main")[0].commit_id
    git("branch", "side", "main")
    create_branch(home, "side", source="main")
    merged = merge(home, "dev", into="side").id
    git.merge("dev", "side")
    pick = lambda: cherry_pick(home, "main", ref=merged, parent_number=1)  # noqa: E731
    refused_by_both(home, git, pick, "cherry-pick", "-m", "1", "--no-commit", "side")
    hard_reset(home, "main", ref=merged)
    git("reset", "-q", "--hard", "side")
    undo = lambda: revert(home, "main", ref=merged, parent_number=1)  # noqa: E731
    refused_by_both(home, git, undo, "revert", "-m", "1", "--no-commit", "side")
    assert load_branch(home, "main")[0].commit_id != base


def test_a_rebase_leaves_out_what_only_moved_bytes(git: Git) -> None:
    """A commit whose change is upstream, and whose other bytes are at new addresses only, is left out, as in git."""
    with open_context(MemoryRepository()) as home:
        change(home, git, "main", dict(FILES), "base")
        create_branch(home, "dev", source="main")
        git("branch", "dev", "main")
        for text in ("new", "old"):  # both compacted: the commit refers to the second upload of the same bytes
            put_many(home, "dev", {"03": text, "27": "new"})
            compact_once(home, "dev", force=True)
        commit(home, "dev", message="own")
        git.commit("dev", {"03": "old", "27": "new"}, "own")
        change(home, git, "main", {"27": "new"}, "upstream")
        head = rebase(home, "dev", onto="main").id
        git.rebase("dev", "main")
        assert git("rev-parse", "dev") == git("rev-parse", "main")
        assert head == load_branch(home, "main")[0].commit_id


class Both:
    """One random history in lakebed and in git."""

    def __init__(self, home: RepositoryContext, git: Git, rng: random.Random) -> None:
        self.home, self.git, self.rng = home, git, rng
        self.count = 0
        self.done: Counter[str] = Counter()
        change(home, git, "main", {"start": "0"}, "start")
        for name in BRANCHES[1:]:
            create_branch(home, name, source="main")
            git("branch", name, "main")

    def both(self, name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        """Run a verb in both. When both refuse, fine; git says nothing of a step without effect, lakebed does."""
        try:
            ours()
            kind = ""
        except LakebedError as error:
            kind = error.kind
        try:
            theirs()
            conflict = False
        except subprocess.CalledProcessError:
            conflict = True
        assert kind in ("", "merge_conflict", "no_changes"), kind
        assert (kind == "merge_conflict") == conflict, (name, kind, conflict)
        self.done[f"{name} {kind}".strip()] += 1

    def step(self) -> None:
        """A commit to files of the branch's own, or a merge, rebase or reset of any branch."""
        branch, other = self.rng.sample(BRANCHES, 2)
        self.count += 1
        draw = self.rng.random()
        if draw < 0.55:
            paths = [path for path in head_of(self.home, branch) if path.startswith(f"of-{branch}/")]
            texts: dict[str, str | None] = {f"of-{branch}/{self.rng.randrange(6)}": f"{self.count}\n"}
            if paths and self.rng.random() < 0.3:
                texts[self.rng.choice(paths)] = None
            change(self.home, self.git, branch, texts, f"{self.count} on {branch}")
            self.done["commit"] += 1
        elif draw < 0.75:
            self.both("merge", lambda: merge(self.home, other, into=branch), lambda: self.git.merge(other, branch))
        elif draw < 0.95:
            self.both("rebase", lambda: rebase(self.home, branch, onto=other), lambda: self.git.rebase(branch, other))
        else:
            hard_reset(self.home, branch, ref=other)
            self.git("checkout", "-q", branch)
            self.git("reset", "-q", "--hard", other)
            self.done["reset"] += 1
        for name in BRANCHES:
            assert head_of(self.home, name) == self.git.files(name), name


def test_the_log_of_a_path_is_that_of_git(git: Git) -> None:
    """Which commits changed a path or folder is what git says: no merge, unless only first parents are followed."""
    with open_context(MemoryRepository()) as home:
        change(home, git, "main", {"all/0": "0", "m": "0"}, "start")
        create_branch(home, "dev", source="main")
        git("branch", "dev", "main")
        for number in (1, 2):
            change(home, git, "dev", {f"all/{number}": "dev", "d": f"{number}"}, f"{number} on dev")
            change(home, git, "main", {f"all/{number + 2}": "main", "m": f"{number}"}, f"{number} on main")
            merge(home, "dev", into="main")
            git.merge("dev", "main")
            merge(home, "main", into="dev")
            git.merge("main", "dev")
        wanted: list[tuple[list[str], list[str]]] = [(["m"], []), (["d"], []), (["all/1"], []), ([], ["all/"])]
        for paths, prefixes in [*wanted, (["m", "d"], ["all/"])]:
            for first_parent, words in ((False, ["--full-history", "--no-merges"]), (True, ["--first-parent"])):
                ours = log(home, "main", paths=paths, prefixes=prefixes, first_parent=first_parent)
                theirs = git("log", "--format=%s", *words, "main", "--", *paths, *prefixes).split("\n")[:-1]
                said = [_as_git(item.message) for _, item in ours]
                assert sorted(said) == sorted(theirs), (paths, prefixes, first_parent)


def _as_git(message: str) -> str:
    """Git names merges otherwise."""
    words = re.fullmatch(r"Merge '(\w+)' into '(\w+)'", message)
    if words is None:
        return message
    source, into = words.groups()
    return f"Merge branch '{source}'" + ("" if into == "main" else f" into {into}")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_random_histories(seed: int, git: Git) -> None:
    """After any merges and rebases, every branch holds the files that git's does."""
    with open_context(MemoryRepository()) as home:
        history = Both(home, git, random.Random(seed))
        for _ in range(40):
            history.step()
        assert history.done["rebase"] >= 2, history.done
