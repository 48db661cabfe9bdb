"""Laws of the compaction planner, over any set of files and over a long load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import CompactionTask, plan_compaction
from lakebed.testing import seed_count

L0_COUNT = 4


def file(id: str, size_bytes: int, first: int, last: int, *, tombstones: int = 0) -> FileMeta:
    """A file with the rows of sequences [first, last]."""
    return FileMeta(
        id=id,
        size_bytes=size_bytes,
        tail_offset=0,
        row_count=max(1, size_bytes // 100),
        first_key=b"a",
        last_key=b"z",
        min_sequence=first,
        max_sequence=last,
        tombstone_count=tombstones,
    )


@st.composite
def file_sets(draw: st.DrawFn) -> FileSet:
    """Any set: every file or run holds one range of ages, and older ones stand behind newer ones."""
    sizes = st.integers(1, 40).flatmap(lambda power: st.integers(1, 2**power))
    l0 = [draw(sizes) for _ in range(draw(st.integers(0, 12)))]
    runs = [draw(sizes) for _ in range(draw(st.integers(0, 24)))]
    ages = list(range(len(l0) + len(runs), 0, -1))
    tombstones = draw(st.booleans())
    return FileSet(
        tuple(
            file(f"l{age}", size, age, age, tombstones=size // 150 if tombstones else 0)
            for age, size in zip(ages, l0, strict=False)
        ),
        tuple(
            Run(f"r{age}", (file(f"f{age}", size, age, age),)) for age, size in zip(ages[len(l0) :], runs, strict=True)
        ),
    )


def merged(task: CompactionTask, file_set: FileSet, id: str) -> Run:
    """What the task would write, if every row were kept."""
    l0, runs = task.inputs(file_set)
    inputs = [*l0, *(item for run in runs for item in run.files)]
    return Run(
        id,
        (
            file(
                f"{id}.f",
                sum(input_.size_bytes for input_ in inputs),
                min(input_.min_sequence for input_ in inputs),
                max(input_.max_sequence for input_ in inputs),
            ),
        ),
    )


def check_order(file_set: FileSet) -> None:
    """Every file is newer than all files after it."""
    ranges = [(file.min_sequence, file.max_sequence) for file in file_set.files()]
    for (newer_low, _), (_, older_high) in itertools.pairwise(ranges):
        assert newer_low > older_high, ranges


def runs_max(file_set: FileSet, run_count: int) -> float:
    """The promised bound of the runs that are left."""
    sizes = [run.size_bytes for run in file_set.runs] or [1]
    return (run_count - 1) * (1 + math.log2(max(sizes) / min(sizes)))


@settings(max_examples=seed_count(50), deadline=None)
@given(file_sets(), st.integers(2, 6))
def test_plans_keep_recency_end_and_bound_what_is_left(file_set: FileSet, run_count: int) -> None:
    """Each plan takes neighbours in age, `bottom` is right, plans end, and few runs are left."""
    check_order(file_set)
    for step in range(100):
        task = plan_compaction(file_set, l0_compaction_count=L0_COUNT, run_compaction_count=run_count)
        if task is None:
            break
        l0, runs = task.inputs(file_set)
        oldest = (file_set.runs[-1].id,) if file_set.runs else ()
        assert task.bottom == (task.run_ids[-1:] == oldest)
        assert len(l0) + len(runs) > 1 or (len(l0) == 1 and not runs and L0_COUNT == 1)
        result = task.apply_to(file_set, merged(task, file_set, f"out{step}"))
        assert result is not None
        assert len(result.l0) + len(result.runs) < len(file_set.l0) + len(file_set.runs)
        file_set = result
        check_order(file_set)
    else:
        raise AssertionError("the plans never end")
    assert len(file_set.l0) < L0_COUNT
    assert len(file_set.runs) <= runs_max(file_set, run_count)


@dataclass
class Load:
    """A database that is only written to, as sizes."""

    run_count: int
    file_set: FileSet = field(default_factory=FileSet)
    written: int = 0
    rewritten: int = 0
    sources_max: int = 0

    def flush(self, age: int, size_bytes: int) -> None:
        """One memtable more, and all compactions that follow from it."""
        self.file_set = FileSet((file(f"l{age}", size_bytes, age, age), *self.file_set.l0), self.file_set.runs)
        self.written += size_bytes
        while task := plan_compaction(self.file_set, l0_compaction_count=L0_COUNT, run_compaction_count=self.run_count):
            output = merged(task, self.file_set, f"r{age}")
            self.rewritten += output.size_bytes
            result = task.apply_to(self.file_set, output)
            assert result is not None
            self.file_set = result
        self.sources_max = max(self.sources_max, len(self.file_set.l0) + len(self.file_set.runs))


def test_amplification_of_a_long_load(tell: Callable[[str], None]) -> None:
    """Writing and reading cost what the planner promises, while a database grows to 4096 memtables."""
    for run_count in (2, 4, 8):
        load = Load(run_count)
        for age in range(1, 4097):
            load.flush(age, 64)
        amplification = 1 + load.rewritten / load.written
        tiers = math.log(4096 / L0_COUNT, run_count)
        tell(
            f"compaction, {run_count} runs a tier: a row is written {amplification:.1f} times, "
            f"a read looks at no more than {load.sources_max} sources"
        )
        assert amplification <= 2 + 1.5 * tiers
        assert load.sources_max <= (L0_COUNT - 1) + (run_count - 1) * (1 + math.log2(4096 / L0_COUNT))
