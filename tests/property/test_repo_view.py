"""A branch under random layers reads as a dictionary, and its difference is that of two dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lakebed.errors import AlreadyExists
from lakebed.repo.heads.write import stage_if_absent, stage_many
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import TOMBSTONE
from lakebed.repo.model.options import RangeOptions, RepositoryOptions
from lakebed.repo.staging.uncommitted import is_dirty
from lakebed.testing import seed_count
from worlds.repo.staging import BRANCH, StagedBranch

PATHS = [folder + name for folder in ("", "a/", "a/b/", "ab", "é/") for name in ("x", "y", "z", "x/y")]
PREFIXES = ["", "a", "a/", "a/b/", "ab", "é/", "x", "nothing"]
TEXTS = ["1", "2", "3"]
BOUNDS = [None, b"\0", b"a", b"a/", b"a/b/y", b"ab", b"abx\0", b"b", "é/".encode(), "é/y".encode(), "é0".encode()]
ROUNDS_MAX = 5

paths = st.sampled_from(PATHS)
texts = st.sampled_from(TEXTS)


def texts_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
    """Paths and texts of rows."""
    return [
        (path.decode(), decode_entry(value, where="a row").metadata["is"])
        for batch in batches
        for path, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]


class BranchMachine(RuleBasedStateMachine):
    """Verbs on a branch and on a dictionary."""

    met: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.branch: Any = None
        self.shown: dict[str, str] = {}
        self.head: dict[str, str] = {}

    @initialize(head=st.dictionaries(paths, texts))
    def begin(self, head: dict[str, str]) -> None:
        """A head with ranges of a few paths."""
        ranges = RangeOptions(entry_count_min=1, raggedness=3, entry_count_max=4)
        self.branch = StagedBranch(head, options=RepositoryOptions(ranges=ranges, background=False))
        self.shown = dict(head)
        self.head = dict(head)

    @rule(path=paths, text=texts)
    def put(self, path: str, text: str) -> None:
        """A put."""
        self.branch.put(path, text)
        self.shown[path] = text

    @rule(path=paths, text=texts)
    def put_if_absent(self, path: str, text: str) -> None:
        """A conditional put."""
        try:
            stage_if_absent(self.branch.home, branch=BRANCH, path=path, entry=self.branch.entry(text))
        except AlreadyExists:
            assert path in self.shown
        else:
            assert path not in self.shown
            self.shown[path] = text

    @rule(entries=st.dictionaries(paths, texts))
    def put_many(self, entries: dict[str, str]) -> None:
        """A batch."""
        stage_many(
            self.branch.home,
            branch=BRANCH,
            entries=[(path, self.branch.entry(text)) for path, text in entries.items()],
        )
        self.shown.update(entries)

    @rule(chosen=st.lists(paths, min_size=1))
    def delete(self, chosen: list[str]) -> None:
        """Deletes."""
        present = {path for path in chosen if path in self.shown}
        self.met["deleted"] += len(present)
        assert self.branch.delete(*chosen) == len(present)
        for path in present:
            del self.shown[path]

    @rule(prefix=st.sampled_from(PREFIXES))
    def delete_prefix(self, prefix: str) -> None:
        """A delete of everything below a prefix."""
        paths = [path for path in self.shown if path.startswith(prefix)]
        self.met["cleared"] += bool(paths)
        assert self.branch.delete_prefix(prefix) == bool(paths)
        for path in paths:
            del self.shown[path]

    @rule()
    def seal(self) -> None:
        """Everything staged is sealed; nothing changes."""
        self.branch.seal()
        self.met["sealed"] += 1

    @rule()
    def compact(self) -> None:
        """Everything sealed is compacted; nothing changes."""
        self.branch.compact()
        self.met["compacted"] += 1

    @rule()
    def commit(self) -> None:
        """What is shown becomes the head."""
        self.branch.commit()
        self.head = dict(self.shown)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        delimiter=st.sampled_from(["", "/"]),
        after=st.sampled_from(["", *PATHS, *PREFIXES]),
    )
    def list(self, prefix: str, delimiter: str, after: str) -> None:
        """A listing is the fold of the dictionary's keys behind `after`, without a folder that `after` names itself."""
        expected: dict[str, None] = {}
        for path in sorted(self.shown, key=str.encode):
            if path.startswith(prefix) and path.encode() > after.encode():
                at = path.find(delimiter, len(prefix)) if delimiter else -1
                expected[path if at < 0 else path[: at + 1]] = None
        with self.branch.view() as view:
            paths = [line.path for line in view.list(prefix, delimiter=delimiter, after=after)]
        assert paths == [line for line in expected if line != after]

    @rule(start=st.sampled_from(BOUNDS), end=st.sampled_from(BOUNDS), count=st.integers(1, 6))
    def read_stretch(self, start: bytes | None, end: bytes | None, count: int) -> None:
        """The rows of a stretch are the dictionary's, whole or as many as are asked for; so is what differs there."""
        within = [
            (path, text)
            for path, text in sorted(self.shown.items(), key=lambda item: item[0].encode())
            if (start is None or path.encode() >= start) and (end is None or path.encode() < end)
        ]
        whole = self.branch.differences()
        with self.branch.view() as view:
            if start is None or end is None or start <= end:
                assert texts_of(view.rows(start, end)) == within
                batches = view.committed_rows(start or b"", end, count=count)
                assert batches is None or texts_of(batches) == within[:count]
                assert self.branch.differences(start=start, end=end) == [
                    (path, kind)
                    for path, kind in whole
                    if (start is None or path.encode() >= start) and (end is None or path.encode() < end)
                ]

    @rule(chosen=st.lists(paths, min_size=1))
    def read_layers(self, chosen: list[str]) -> None:
        """Many reads at once, in any order and repeated; the newest layer's row decides, and else those below it."""
        keys = [path.encode() for path in chosen]
        with self.branch.view() as view:
            values = view.values(keys)
            assert [value is not None for value in values] == [path in self.shown for path in chosen]
            for value, (newest, below) in zip(values, view.layers_of(keys), strict=True):
                assert value == (below if newest is None else newest or None)
                assert below != TOMBSTONE

    @invariant()
    def reads_as_the_dictionary(self) -> None:
        """Listing, single reads and reads of many agree with the dictionary; so does the difference to the head."""
        if self.branch is None:
            return
        assert self.branch.shown() == self.shown
        with self.branch.view() as view:
            entries = view.get_many(PATHS)
            assert entries == [view.get(path) for path in PATHS]
        result = {path: entry.metadata["is"] for path, entry in zip(PATHS, entries, strict=True) if entry is not None}
        assert result == self.shown
        expected = [
            (path, "added" if path not in self.head else "removed" if path not in self.shown else "changed")
            for path in sorted(self.head.keys() | self.shown.keys(), key=str.encode)
            if self.head.get(path) != self.shown.get(path)
        ]
        assert self.branch.differences() == expected
        assert self.branch.differences(start=b"a/", end=b"ab") == [
            pair for pair in expected if b"a/" <= pair[0].encode() < b"ab"
        ]
        with self.branch.home.key_value.snapshot() as snapshot:
            assert is_dirty(self.branch.home, snapshot, self.branch.record) == bool(expected)
        self.met["differences"] += len(expected)
        self.met["restored"] += bool(self.branch.record.sealed) and not expected


def test_a_branch_reads_as_a_dictionary(tell: Any) -> None:
    """After any put, delete, clear, seal, compaction and commit every read agrees with a dictionary."""
    BranchMachine.met = Counter()
    for _ in range(ROUNDS_MAX):  # chance may spare something for a while
        run_state_machine_as_test(
            BranchMachine,
            settings=settings(
                max_examples=seed_count(10),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
        least = min(BranchMachine.met[what] for what in ("deleted", "cleared", "sealed", "compacted", "differences"))
        if least >= 8:
            break
    tell(f"branch against a dictionary: {dict(BranchMachine.met)}")
    assert least >= 8
