"""Listings: pages, common prefixes, orders, and what they read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lakebed.errors import Corruption, InvalidRequest
from lakebed.repo.heads.write import stage_many
from lakebed.repo.model.entry import encode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RangeOptions, RepositoryOptions
from lakebed.repo.model.rows import rows_of
from lakebed.repo.staging.listing import CHUNK_ROW_COUNT, SEEK_ROW_COUNT, Listed, decode_entries, list_entries
from worlds.errors import raises
from worlds.repo.staging import BRANCH, StagedBranch

WORDS = ["a", "a/", "a/b", "a/b/c", "a/b/d", "ab", "a0", "b/", "b//c", "b/c", "é/x", "é", "日本/語", "z"]


def lines_of(branch: StagedBranch, prefix: str = "", **arguments: object) -> list[str]:
    """The paths of a listing."""
    with branch.view() as view:
        return [line.path for line in view.list(prefix, **arguments)]  # type: ignore[arg-type]


def pages_of(branch: StagedBranch, amount: int, prefix: str = "", delimiter: str = "") -> Iterator[str]:
    """The same, page by page, each going on behind the last line of the one before."""
    after = ""
    while page := lines_of(branch, prefix, after=after, delimiter=delimiter, amount=amount):
        assert len(page) <= amount
        yield from page
        after = page[-1]


def folded(paths: list[str], prefix: str, delimiter: str) -> list[str]:
    """What a listing is: every path with the prefix, up to and with the first delimiter behind it, each once."""
    lines: dict[str, None] = {}
    for path in sorted(paths, key=str.encode):
        if path.startswith(prefix):
            at = path.find(delimiter, len(prefix)) if delimiter else -1
            lines[path if at < 0 else path[: at + len(delimiter)]] = None
    return list(lines)


@pytest.fixture(scope="module")
def layered() -> tuple[StagedBranch, list[str]]:
    """A branch with rows, tombstones and clears in a head, a compacted metarange, sealed tokens and staging."""
    rng = random.Random(7)
    ranges = RangeOptions(entry_count_min=4, raggedness=8, entry_count_max=16)
    branch = StagedBranch(
        {word + str(number): "head" for number in range(8) for word in WORDS},
        options=RepositoryOptions(ranges=ranges, background=False),
    )
    for move in (branch.compact, branch.seal, branch.seal, lambda: None):
        branch.delete(*rng.sample(list(branch.shown()), 20))
        for word in rng.sample(WORDS, 8):
            branch.put(word + rng.choice("0123/x"), "staged")
        if rng.random() < 0.7:
            branch.delete_prefix(rng.choice(["a/b", "b/", "é"]))
        move()
    return branch, list(branch.shown())


@pytest.mark.parametrize("delimiter", ["", "/", "b", "/b", "語"])
@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "b/", "b//", "é", "nothing"])
def test_a_delimiter_folds_as_by_hand(layered: tuple[StagedBranch, list[str]], prefix: str, delimiter: str) -> None:
    """For any layers, a listing is the fold of what is shown."""
    branch, paths = layered
    assert lines_of(branch, prefix, delimiter=delimiter) == folded(paths, prefix, delimiter)


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_of_any_size_are_one_listing(layered: tuple[StagedBranch, list[str]], delimiter: str) -> None:
    """Going on behind the last line of a page loses nothing and repeats nothing."""
    branch, paths = layered
    for prefix in ("", "a/"):
        whole = folded(paths, prefix, delimiter)
        for amount in (1, 2, 3, 7, len(whole), 1000):
            assert list(pages_of(branch, amount, prefix, delimiter)) == whole


def test_listing_goes_on_behind_any_text(layered: tuple[StagedBranch, list[str]]) -> None:
    """`after` need not be a path: the fold of the paths behind it follows, without the common prefix that it is."""
    branch, paths = layered
    for after in ["", "a", "a/", "a/b", "a/b/zzz", "b", "b//", "zzz", "\U0010ffff", *paths[::9]]:
        for prefix, delimiter in (("", ""), ("", "/"), ("a/", "/"), ("b", "/")):
            rest = [path for path in paths if path.encode() > after.encode()]
            expected = [line for line in folded(rest, prefix, delimiter) if line != after]
            assert lines_of(branch, prefix, after=after, delimiter=delimiter) == expected


def test_paths_are_in_the_order_of_their_bytes() -> None:
    """Unicode sorts by its UTF-8 bytes, in every layer and across them."""
    paths = ["z", "é", "日", "\uffff", "😀", "a\u0301", "á", "~", "Ω"]
    branch = StagedBranch(dict.fromkeys(paths[::2], "x"))
    for path in paths[1::2]:
        branch.put(path, "x")
    assert lines_of(branch) == sorted(paths, key=str.encode)


def test_common_prefixes_carry_no_entry_and_entries_do() -> None:
    """Lines say what they are."""
    branch = StagedBranch({"a/1": "x", "b": "y"})
    with branch.view() as view:
        first, second = view.list(delimiter="/")
    assert first == Listed("a/")
    assert first.is_prefix
    assert second.entry is not None
    assert second.entry.metadata == {"is": "y"}
    assert not second.is_prefix


@pytest.mark.parametrize("amount", [-1, True, 1.5, "1"])
def test_amounts_that_cannot_be_are_refused(amount: object) -> None:
    """An amount is a number of lines."""
    with raises(InvalidRequest, "invalid_amount"):
        lines_of(StagedBranch({"a": "x"}), amount=amount)


def test_an_amount_of_none_or_nothing() -> None:
    """Nothing is listed of an empty branch, and nothing when nothing is asked for."""
    assert lines_of(StagedBranch()) == []
    assert lines_of(StagedBranch({"a": "x"}), amount=0) == []


class Rows:
    """Rows that count how many of them were taken, and record where seeks began."""

    def __init__(self, paths: list[str], *, batch_row_count: int = 256) -> None:
        self.paths = sorted(path.encode() for path in paths)
        self.batch_row_count = batch_row_count
        self.value = encode_entry(Entry("s3://b/k", 1, "c", 0))
        self.sought: list[bytes | None] = []
        self.taken = 0

    def __call__(self, start: bytes | None, end: bytes | None) -> Iterator[pa.RecordBatch]:
        self.sought.append(start)
        paths = [path for path in self.paths if (start or b"") <= path and (end is None or path < end)]
        for at in range(0, len(paths), self.batch_row_count):
            batch = paths[at : at + self.batch_row_count]
            self.taken += len(batch)
            yield rows_of(batch, [self.value] * len(batch))


def test_a_large_common_prefix_is_not_read_through() -> None:
    """Behind a common prefix with many paths the rows are sought again, in every layer."""
    rows = Rows([f"{folder}/{number:06}" for folder in "abc" for number in range(20_000)] + ["d"])
    assert [line.path for line in list_entries(rows, prefix=b"", delimiter="/")] == ["a/", "b/", "c/", "d"]
    assert rows.sought == [None, b"a0", b"b0", b"c0"]
    assert rows.taken <= 3 * (SEEK_ROW_COUNT + 2 * rows.batch_row_count) + 1


@pytest.mark.parametrize("before_count", [0, 1, 40])
def test_a_large_common_prefix_behind_other_lines_is_not_read_through(before_count: int) -> None:
    """Its rows count from its first one on, wherever in a batch that is."""
    lines = [f"{number:06}" for number in range(before_count)]
    rows = Rows([*lines, *(f"a/{number:06}" for number in range(20_000)), "b"], batch_row_count=600)
    assert [line.path for line in list_entries(rows, prefix=b"", delimiter="/")] == [*lines, "a/", "b"]
    assert rows.sought == [None, b"a0"]
    assert rows.taken == 601, "the first batch, and what is behind the prefix"


def test_small_common_prefixes_are_read_in_one_go() -> None:
    """Where prefixes hold few paths, reading on costs less than seeking."""
    rows = Rows([f"{folder:04}/{number}" for folder in range(3_000) for number in range(5)], batch_row_count=10_000)
    assert sum(1 for _ in list_entries(rows, prefix=b"", delimiter="/")) == 3_000
    assert rows.sought == [None]


def test_a_page_reads_no_more_than_its_first_rows() -> None:
    """One line costs one batch of rows, and a page as many as it has lines."""
    rows = Rows([f"{number:06}" for number in range(50_000)], batch_row_count=CHUNK_ROW_COUNT * 2)
    assert len(list(list_entries(rows, prefix=b"", amount=1))) == 1
    assert rows.taken == rows.batch_row_count
    assert len(list(list_entries(rows, prefix=b"", amount=20_000))) == 20_000
    assert rows.taken == rows.batch_row_count * 4


def test_a_common_prefix_across_batches_is_listed_once() -> None:
    """For any ends of batches, a common prefix is one line."""
    paths = [f"{folder}/{number:03}" for folder in "abcde" for number in range(37)] + ["a", "b-", "f"]
    for size in (1, 2, 7, 36, 37, 38, 100, 500):
        rows = Rows(paths, batch_row_count=size)
        lines = [line.path for line in list_entries(rows, prefix=b"", delimiter="/")]
        assert lines == folded(paths, "", "/")


def test_the_first_line_of_a_large_branch_reads_one_range() -> None:
    """A page of one opens one range, and a page behind a path the range that holds what follows."""
    ranges = RangeOptions(entry_count_min=50, raggedness=1 << 40, entry_count_max=50)
    branch = StagedBranch(
        {f"p{number:04}/x": "x" for number in range(1000)}, options=RepositoryOptions(ranges=ranges, background=False)
    )
    branch.put("p0000/y", "x")
    for after, delimiter in (("", ""), ("", "/"), ("p0500", ""), ("p0500/", "/")):
        with branch.home.committed.count() as counts:
            assert len(lines_of(branch, after=after, delimiter=delimiter, amount=1)) == 1
        assert counts.ranges_read <= 2


def test_cleared_stretches_are_never_read() -> None:
    """After everything below a prefix was deleted at once, none of its ranges is opened by a listing."""
    ranges = RangeOptions(entry_count_min=50, raggedness=1 << 40, entry_count_max=50)
    branch = StagedBranch(
        {f"{folder}/{number:04}": "x" for folder in "abc" for number in range(500)},
        options=RepositoryOptions(ranges=ranges, background=False),
    )
    branch.delete_prefix("b/")
    with branch.home.committed.count() as counts:
        assert len(lines_of(branch)) == 1000
    assert counts.ranges_read == 20
    branch.delete_prefix("")
    branch.put("b/x", "x")
    with branch.home.committed.count() as counts:
        assert lines_of(branch) == ["b/x"]
    assert counts.ranges_read == 0


def test_a_branch_with_many_tombstones_lists_what_is_left() -> None:
    """Before and after a compaction the same is listed; after it nothing is left to skip."""
    branch = StagedBranch()
    stage_many(
        branch.home,
        branch=BRANCH,
        entries=[
            (f"{number:06}", Entry("s3://b/k", number, "c", 0, metadata={"is": "x"})) for number in range(100_000)
        ],
    )
    branch.commit()
    deleted = [f"{number:06}" for number in range(100_000) if number != 77_777]
    assert branch.delete(*deleted) == 99_999
    assert lines_of(branch) == lines_of(branch, amount=1) == lines_of(branch, delimiter="/") == ["077777"]
    assert list(pages_of(branch, 1)) == ["077777"]
    branch.compact()
    with branch.home.committed.count() as counts:
        assert lines_of(branch) == ["077777"]
    assert counts.ranges_read == 1


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"short",
        b"x" * 16,
        b"x" * 16 + b"\x96",
        b"x" * 16 + b"\x96\xa3abc\x01",
        b"x" * 16 + b"\x94\xa3\xff\xff\xff\x01\xa1c\x00",
    ],
)
def test_damaged_entries_are_named(damage: bytes) -> None:
    """A value that is not an entry is a corruption that names its path, at any position of a column."""
    good = encode_entry(Entry("s3://b/k", 1, "c", 0))
    for at in range(3):
        values = [good, good]
        values.insert(at, damage)
        paths = [f"p{number}" for number in range(3)]
        with pytest.raises(Corruption) as caught:
            decode_entries(pa.array(values, pa.binary()), paths=paths)
        assert caught.value.facts["path"] == f"p{at}"


def test_entries_are_decoded_from_slices() -> None:
    """A column that is a view of a larger one is decoded as itself."""
    entries = [Entry(f"s3://b/{number}", number, "c", 0) for number in range(10)]
    column = pa.array([encode_entry(entry) for entry in entries], pa.binary())
    assert decode_entries(column.slice(3, 4), paths=["p"] * 4) == entries[3:7]
    assert decode_entries(column.slice(3, 0), paths=[]) == []


def test_a_stored_path_that_is_no_text_is_a_corruption() -> None:
    """Bytes that cannot be a path are never listed as one."""
    value = encode_entry(Entry("s3://b/k", 1, "c", 0))

    def rows(start: bytes | None, end: bytes | None) -> Iterator[pa.RecordBatch]:
        yield rows_of([b"a", b"\xff/b"], [value, value])

    for delimiter in ("", "/"):
        with pytest.raises(Corruption):
            list(list_entries(rows, prefix=b"", delimiter=delimiter))
