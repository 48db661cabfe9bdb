"""Views: one moment of a reference, over many layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from lakebed.errors import Closed, Conflict
from lakebed.repo.model.options import RangeOptions, RepositoryOptions
from lakebed.repo.staging.protocol import WriteAttempts
from lakebed.repo.staging.view import LOOKS_MAX, READ_LAYERS, View, at_reference, look_again
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.staging import BRANCH, StagedBranch

R = TypeVar("R")


def shown(view: View) -> dict[str, str]:
    """What a view shows."""
    return {line.path: line.entry.metadata["is"] for line in view.list() if line.entry is not None}


def layers_touched() -> float:
    """Tokens that single reads have looked into, by this process."""
    line = next(
        (line for line in READ_LAYERS.lines() if line.startswith('lakebed_repo_read_layers_sum{operation="get"}')), " 0"
    )
    return float(line.rsplit(" ", 1)[1])


def test_a_view_does_not_change() -> None:
    """A view shows its moment after any later write, seal, compaction and cleanup."""
    branch = StagedBranch({"a": "1"})
    branch.put("b", "1")
    with at_reference(branch.home, BRANCH) as view:
        branch.put("c", "1")
        branch.delete_prefix("")
        branch.compact()
        prefix = branch.home.keys.staging()
        with branch.home.key_value.snapshot() as snapshot:
            gone = [key for key, _ in snapshot.scan(prefix, prefix + b"\xff")]
        branch.home.key_value.write(deletes=gone)
        assert shown(view) == {"a": "1", "b": "1"}
        entry = view.get("b")
        assert entry is not None
        assert entry.metadata == {"is": "1"}
    assert branch.shown() == {}
    with pytest.raises(Closed):
        view.get("b")


def test_references_to_commits_show_what_is_committed() -> None:
    """With @, or at a commit, neither staging nor a compacted metarange is looked at."""
    branch = StagedBranch({"a": "1"})
    branch.put("a", "2")
    branch.compact()
    branch.put("b", "1")
    for text, expected in (
        (BRANCH, {"a": "2", "b": "1"}),
        (BRANCH + "$", {"a": "2", "b": "1"}),
        (BRANCH + "@", {"a": "1"}),
        (branch.record.commit_id, {"a": "1"}),
    ):
        with at_reference(branch.home, text) as view:
            assert shown(view) == expected


def test_reads_through_a_hundred_sealed_tokens() -> None:
    """Every layer is found; after a compaction a read looks into one token, however many there were."""
    branch = StagedBranch({"head": "x"})
    for number in range(100):
        branch.put(f"p{number:02}", "x")
        branch.seal()
    expected = {"head": "x", **{f"p{number:02}": "x" for number in range(100)}}
    assert branch.shown() == expected
    before = layers_touched()
    with branch.view() as view:
        assert view.get("p00") is not None
        assert view.get("head") is not None
        assert view.get("nowhere") is None
    assert layers_touched() - before == 3 * 101
    branch.compact()
    before = layers_touched()
    with branch.view() as view:
        assert view.get("p00") is not None
    assert layers_touched() - before == 1
    assert branch.shown() == expected


def test_a_single_read_touches_layers_down_to_the_first_that_says_something() -> None:
    """A row of the staging token ends the search, and so does a clear above."""
    branch = StagedBranch({"a/1": "x"})
    for number in range(5):
        branch.put(f"p{number}", "x")
        branch.seal()
    branch.delete_prefix("a/")
    branch.put("p0", "y")
    for path, present, touched in (("p0", True, 1), ("a/1", False, 1), ("p4", True, 3)):
        before = layers_touched()
        with branch.view() as view:
            assert (view.get(path) is not None) == present
        assert layers_touched() - before == touched


def test_a_single_read_opens_at_most_one_range() -> None:
    """Committed data is asked once, and only when no token says anything."""
    branch = StagedBranch({f"{number:03}": "x" for number in range(100)})
    branch.put("050", "y")
    for path, ranges in (("050", 0), ("051", 1), ("nowhere", 0)):
        with branch.home.committed.count() as counts, branch.view() as view:
            view.get(path)
        assert counts.ranges_read <= ranges


class CountedCalls(KeyValueWrapper):
    """Counts calls by kind."""

    def __init__(self) -> None:
        super().__init__(MemoryKeyValue())
        self.counts: Counter[str] = Counter()

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make it, and count it."""
        self.counts[call.kind] += 1
        return perform()


@pytest.mark.parametrize(
    ("tokens", "path", "single", "together"),
    [
        (1, "newest", 1, 0),
        (1, "nowhere", 1, 0),
        (2, "newest", 1, 0),
        (2, "oldest", 2, 0),
        (2, "nowhere", 2, 0),
        (3, "newest", 0, 1),
        (3, "nowhere", 0, 1),
        (40, "oldest", 0, 1),
    ],
)
def test_a_single_read_asks_two_tokens_one_by_one_and_more_at_once(
    tokens: int, path: str, single: int, together: int
) -> None:
    """So a read costs two requests of the records at most, however many tokens are sealed."""
    key_value = CountedCalls()
    branch = StagedBranch({"head": "x"}, key_value=key_value)
    branch.put("oldest", "x")
    for _ in range(tokens - 1):
        branch.seal()
    branch.put("newest", "x")
    with branch.view() as view:
        key_value.counts.clear()
        assert (view.get(path) is None) == (path == "nowhere")
    assert (key_value.counts["snapshot get"], key_value.counts["snapshot get_many"]) == (single, together)


@pytest.mark.parametrize(
    ("change", "is_committed"),
    [
        (lambda branch: branch.put("b", "2"), False),
        (lambda branch: branch.put("c", "2"), False),
        (lambda branch: branch.delete("c"), False),
        (lambda branch: branch.delete_prefix("c"), False),
        (lambda branch: branch.put("c!", "2"), True),
        (lambda branch: branch.delete("e"), True),
        (lambda branch: branch.delete_prefix("e"), True),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_the_rows_of_a_page_are_the_committed_ones_where_nothing_is_staged_up_to_its_last(
    change: Callable[[StagedBranch], object], is_committed: bool, sealed: bool
) -> None:
    """A change of the last path of a page makes it another page, one behind it does not."""
    branch = StagedBranch({"a": "1", "c": "1", "e": "1"})
    change(branch)
    if sealed:
        branch.seal()
    with at_reference(branch.home, BRANCH) as view:
        batches = view.committed_rows(b"", None, count=2)
    assert batches is None or [path for batch in batches for path in batch.column(0).to_pylist()] == [b"a", b"c"]
    assert (batches is not None) == is_committed


@pytest.mark.parametrize("token_count", [1, 2, 3, 4, 5])
def test_a_page_asks_up_to_three_tokens_whether_they_have_a_say(token_count: int) -> None:
    """Of a branch with more, its rows are read as those of all layers are."""
    branch = StagedBranch({"a": "1", "c": "1"})
    for _ in range(token_count - 1):
        branch.seal()
    with at_reference(branch.home, BRANCH) as view:
        assert len(view.tokens) == token_count
        assert (view.committed_rows(b"", None, count=2) is not None) == (token_count <= 3)


def test_a_page_ends_at_its_last_row_in_any_block() -> None:
    """Of a commit of many blocks, too: the rows of a page are as many as were asked for, the first ones."""
    paths = [f"{number:05}" for number in range(2_000)]
    options = RepositoryOptions(background=False, ranges=RangeOptions(block_bytes=4 << 10))
    branch = StagedBranch(dict.fromkeys(paths, "1"), options=options)
    branch.put("zlast", "2")
    with at_reference(branch.home, BRANCH) as view:
        for count in (1, 999, 1_000):
            batches = view.committed_rows(b"", None, count=count)
            assert batches is not None
            rows = [path.decode() for batch in batches for path in batch.column(0).to_pylist()]
            assert (len(rows), rows[-1]) == (count, paths[count - 1])
    assert len(batches) > 1, "the last page is of several blocks"


def test_a_write_is_tried_on_as_many_tokens_as_the_setting_says() -> None:
    """Each try after a commit is on a new token; behind the last of them the writer is told that the branch moves."""
    options = RepositoryOptions(background=False, write_tries_max=3)
    branch = StagedBranch({"a": "1"}, options=options)
    attempts = WriteAttempts(branch.home, BRANCH, operation="stage")
    for _ in range(options.write_tries_max):
        attempts.look()
        branch.seal()
    with raises(Conflict, "branch_moved"):
        attempts.look()


def test_a_read_looks_at_as_many_moments_as_the_limit_says() -> None:
    """While a collection takes each of them away: the last one succeeds, or the error says that the version went."""
    moments: list[int] = []

    def look(readable: int) -> str:
        moments.append(len(moments))
        if len(moments) < readable:
            raise Conflict("The version went.", kind="version_went")
        return "rows"

    assert look_again(partial(look, LOOKS_MAX)) == "rows"
    moments.clear()
    with raises(Conflict, "version_went"):
        look_again(partial(look, LOOKS_MAX + 1))
    assert len(moments) == LOOKS_MAX
