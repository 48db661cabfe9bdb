"""The log of commits, all of them or by path, against a walk over dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, cast

import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import load_commit
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.memory_repository import MemoryRepository, contents, open_context, put, put_many, remove
from worlds.repo.operations import commit, commit_text, log, log_page, merge


@pytest.fixture
def home(clock: ManualClock) -> Iterator[RepositoryContext]:
    """A repository with one empty commit."""
    with open_context(MemoryRepository(environment=Environment(clock=clock))) as opened:
        yield opened


def messages(home: RepositoryContext, ref: str, **filters: object) -> list[str]:
    """What the commits of a log say."""
    return [result.message for _, result in log(home, ref, **filters)]  # type: ignore[arg-type]


@pytest.fixture
def history(home: RepositoryContext, clock: ManualClock) -> RepositoryContext:
    """Two branches that were merged."""
    for name, branch, path in (("one", "main", "a/1"), ("two", "main", "b/1"), ("three", "main", "a/1")):
        commit_text(home, branch, path, name, message=name)
        clock.advance(10)
    create_branch(home, "dev", source="main~1")
    commit_text(home, "dev", "a/2", "four", message="four")
    clock.advance(10)
    merge(home, "dev", into="main", message="merged")
    return home


def test_a_log_goes_from_new_to_old(history: RepositoryContext) -> None:
    """Every commit once, each before its parents; first parents on request."""
    first = load_commit(history, next(reversed([id for id, _ in log(history, "main")]))).message
    assert messages(history, "main") == ["merged", "four", "three", "two", "one", first]
    assert messages(history, "main", first_parent=True) == ["merged", "three", "two", "one", first]
    assert messages(history, "dev") == ["four", "two", "one", first]
    assert messages(history, "main~1") == ["three", "two", "one", first]


def test_pages_of_a_log_make_the_log(history: RepositoryContext) -> None:
    """For any amount, continuing after the last commit of a page misses and repeats nothing."""
    whole = [id for id, _ in log(history, "main")]
    for amount in (1, 2, 5):
        lines: list[str] = []
        while page := [id for id, _ in log(history, "main", amount=amount, after=lines[-1] if lines else None)]:
            assert len(page) <= amount
            lines += page
        assert lines == whole


class CountingKeyValue:
    """A key-value store that counts the records that its snapshots read, into another one's count if there is one."""

    def __init__(self, inner: Any, into: CountingKeyValue | None = None) -> None:
        self._inner = inner
        self._into = into or self
        self.read_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def snapshot(self) -> Any:
        """A snapshot that counts."""
        return CountingSnapshot(self._inner.snapshot(), self._into)


class CountingSnapshot:
    """Made by `CountingKeyValue.snapshot`."""

    def __init__(self, inner: Any, counter: CountingKeyValue) -> None:
        self._inner, self._counter = inner, counter

    def get(self, key: bytes) -> bytes | None:
        """As the store's."""
        self._counter.read_count += 1
        value: bytes | None = self._inner.get(key)
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> CountingSnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()


COMMIT_COUNT = 120


@pytest.fixture(scope="module")
def long_place() -> MemoryRepository:
    """A history of `COMMIT_COUNT` commits on main, every tenth with a merged branch."""
    place = MemoryRepository()
    with open_context(place) as home:
        for number in range(COMMIT_COUNT):
            if number % 10 == 9:
                create_branch(home, f"side-{number}", source="main~5")
                commit(home, f"side-{number}", message=f"side {number}", allow_empty=True)
                merge(home, f"side-{number}", into="main")
            else:
                commit(home, "main", message=f"{number}", allow_empty=True)
    return place


@pytest.mark.parametrize("way", ["positions", "positions elsewhere", "ids"])
def test_pages_of_a_log_do_not_read_it_again(long_place: MemoryRepository, way: str) -> None:
    """All pages together read each commit once and a few records a page, by positions in any process, or by ids."""
    counting = CountingKeyValue(MemoryKeyValue(long_place.space))
    with ExitStack() as homes:
        home = homes.enter_context(open_context(long_place, key_value=cast(Any, counting)))
        whole = [id for id, _ in log(home, "main")]
        once = counting.read_count
        lines: list[str] = []
        after, count = "", 0
        while after or not lines:
            if way == "positions elsewhere":  # another process, which knows nothing of the pages before
                other = CountingKeyValue(MemoryKeyValue(long_place.space), counting)
                home = homes.enter_context(open_context(long_place, key_value=cast(Any, other)))
            page = log_page(home, "main", amount=10, after=after or None)
            lines += [id for id, _ in page.rows]
            after = lines[-1] if page.following and way == "ids" else page.following
            count += 1
        assert lines == whole
        assert counting.read_count - once <= once + 12 * count


def test_a_log_can_end_early(history: RepositoryContext, clock: ManualClock) -> None:
    """At a commit, which is the last one shown; or it leaves out what is older than a time."""
    assert messages(history, "main", stop_at="main~2") == ["merged", "four", "three", "two"]
    assert messages(history, "main", since_ms=clock.now_ms() - 20_000) == ["merged", "four", "three"]
    assert messages(history, "main", since_ms=clock.now_ms() - 20_000, stop_at="main~1") == ["merged", "four", "three"]


def test_a_log_by_path_shows_what_changed_it(history: RepositoryContext) -> None:
    """Only commits in which a path, or something below a prefix, differs from the parent; merges change nothing."""
    assert messages(history, "main", paths=["a/1"]) == ["three", "one"]
    assert messages(history, "main", prefixes=["a/"]) == ["four", "three", "one"]
    assert messages(history, "main", paths=["a/2"], first_parent=True) == ["merged"]
    assert messages(history, "main", paths=["nothing"]) == []
    assert messages(history, "main", paths=["b/1"], prefixes=["a/2"]) == ["four", "two"]
    assert messages(history, "main", paths=["a/1"], amount=1) == ["three"]


def test_wrong_questions_are_refused(history: RepositoryContext) -> None:
    """Missing references, amounts below one, a text where a list is meant."""
    for error, kind, filters in (
        (InvalidRequest, "invalid_amount", {"amount": 0}),
        (InvalidRequest, "wrong_type", {"paths": "a"}),
        (InvalidRequest, "invalid_path", {"paths": [""]}),
        (NotFound, "reference_not_found", {"stop_at": "nobody"}),
    ):
        with raises(error, kind):
            messages(history, "main", **filters)


def test_a_log_by_path_agrees_with_a_model(home: RepositoryContext) -> None:
    """Random histories: the log of every path is what comparing whole states says, and unchanged ranges stay unread."""
    rng = random.Random(5)
    paths = [f"{folder}/{number}" for folder in "abc" for number in range(20)]
    states: list[tuple[str, dict[str, str]]] = [("start", {})]
    put_many(home, "main", dict.fromkeys(paths, "0"))
    commit(home, "main", message="all")
    states.append(("all", contents(home, "main")))
    for number in range(15):
        for path in rng.sample(paths, 2):
            if rng.random() < 0.3 and path in contents(home, "main"):
                remove(home, "main", path)
            else:
                put(home, "main", path, f"{number}")
        commit(home, "main", message=f"{number}", allow_empty=True)
        states.append((f"{number}", contents(home, "main")))
    for path in rng.sample(paths, 12):
        changed = [after for (_, left), (after, right) in pairwise(states) if left.get(path) != right.get(path)]
        assert messages(home, "main", paths=[path]) == changed[::-1]
    with home.committed.count() as counts:
        assert messages(home, "main", prefixes=["zzz"]) == []
    assert counts.ranges_read == 0
    assert load_branch(home, "main")[0].commit_id == next(log(home, "main"))[0]
