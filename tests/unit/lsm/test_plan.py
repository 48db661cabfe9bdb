"""Which files are merged next."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lakebed.lsm.model import FileMeta, FileSet, Run
from lakebed.lsm.plan import L0_INPUT_COUNT_MAX, plan_compaction, plan_full


def file(id: str, size_bytes: int = 100, *, rows: int = 100, tombstones: int = 0) -> FileMeta:
    """A file that covers all keys."""
    return FileMeta(
        id=id,
        size_bytes=size_bytes,
        tail_offset=0,
        row_count=rows,
        first_key=b"a",
        last_key=b"z",
        min_sequence=1,
        max_sequence=1,
        tombstone_count=tombstones,
    )


def run(id: str, size_bytes: int = 100, *, rows: int = 100) -> Run:
    """A run of one file."""
    return Run(id, (file(f"{id}.0", size_bytes, rows=rows),))


def plan(file_set: FileSet) -> tuple[tuple[str, ...], tuple[str, ...], bool] | None:
    """The inputs planned with four files a tier, and whether they are the bottom."""
    task = plan_compaction(file_set, l0_compaction_count=4, run_compaction_count=4)
    return None if task is None else (task.l0_ids, task.run_ids, task.bottom)


L0 = tuple(file(id) for id in "dcba")


def test_a_set_in_good_form_is_left_alone() -> None:
    """Nothing is merged before there are enough files."""
    assert plan(FileSet()) is None
    assert plan(FileSet(L0[1:])) is None
    assert plan(FileSet(L0[1:], (run("r", 10), run("q", 1_000), run("p", 100_000)))) is None


def test_level_0_becomes_the_newest_run() -> None:
    """All files of level 0 are merged when there are enough; they are the bottom only when no run lies below."""
    assert plan(FileSet(L0)) == (("d", "c", "b", "a"), (), True)
    assert plan(FileSet(L0, (run("r", 10_000),))) == (("d", "c", "b", "a"), (), False)


def test_a_full_tier_goes_with_level_0() -> None:
    """Runs that the output would be merged with at once are merged with it now, and read once."""
    runs = (run("r", 400), run("q", 400), run("p", 400), run("o", 9_000))
    assert plan(FileSet(L0, runs)) == (("d", "c", "b", "a"), ("r", "q", "p"), False)
    assert plan(FileSet(L0, runs[:3])) == (("d", "c", "b", "a"), ("r", "q", "p"), True)


def test_runs_of_about_one_size_are_merged() -> None:
    """The newest neighbours that fill a tier are merged, and only they."""
    runs = (run("s", 1), run("r", 100), run("q", 150), run("p", 100), run("o", 120), run("n", 5_000))
    assert plan(FileSet((), runs)) == ((), ("r", "q", "p", "o"), False)
    assert plan(FileSet((), runs[:5])) == ((), ("r", "q", "p", "o"), True)


def test_what_is_mostly_deleted_is_merged_with_what_it_deletes() -> None:
    """Tombstones half as many as the oldest run's rows bring everything together, so that space comes back."""
    grave = file("t", rows=60, tombstones=50)
    assert plan(FileSet((grave,), (run("r"),))) == (("t",), ("r",), True)
    assert plan(FileSet((replace_tombstones(grave, 49),), (run("r"),))) is None
    assert plan(FileSet((grave,))) is None


def replace_tombstones(meta: FileMeta, count: int) -> FileMeta:
    """The same file with another count."""
    return msgspec.structs.replace(meta, tombstone_count=count)


def test_full_takes_everything() -> None:
    """A full plan has every file and writes it anew; with too many for one merge it begins with the oldest."""
    assert plan_full(FileSet()) is None
    task = plan_full(FileSet(L0, (run("r"), run("q"))))
    assert task is not None
    assert (task.l0_ids, task.run_ids, task.bottom, task.rewrite) == (("d", "c", "b", "a"), ("r", "q"), True, True)
    single = plan_full(FileSet((), (run("r"),)))
    assert single is not None
    assert single.run_ids == ("r",)
    many = tuple(file(f"{n:03}") for n in reversed(range(L0_INPUT_COUNT_MAX + 5)))
    first = plan_full(FileSet(many, (run("r"),)))
    assert first is not None
    assert first.l0_ids == tuple(item.id for item in many[5:])
    assert (first.run_ids, first.bottom, first.rewrite) == ((), False, False)


def test_the_output_stands_where_the_inputs_stood() -> None:
    """Files that came meanwhile stay in front, older runs stay behind."""
    before = FileSet(L0, (run("r"), run("q", 9_000)))
    task = plan_compaction(before, l0_compaction_count=4, run_compaction_count=4)
    assert task is not None
    since = FileSet((file("e"), *L0), before.runs)
    done = task.apply_to(since, run("out"))
    assert done is not None
    assert [item.id for item in done.l0] == ["e"]
    assert [item.id for item in done.runs] == ["out", "r", "q"]
    emptied = task.apply_to(since, None)
    assert emptied is not None
    assert [item.id for item in emptied.runs] == ["r", "q"]


@pytest.mark.parametrize(
    "changed",
    [
        FileSet(L0[:3], (run("r"),)),
        FileSet((), (run("r"),)),
        FileSet((*L0, file("older")), (run("r"),)),
        FileSet((L0[1], L0[0], *L0[2:]), (run("r"),)),
        FileSet(L0, ()),
        FileSet(L0, (run("new"), run("r"))),
        FileSet(L0, (run("r"), run("older"))),
    ],
)
def test_a_task_does_not_apply_to_another_set(changed: FileSet) -> None:
    """When an input is gone, a file lies between them, or the bottom has changed, nothing is replaced."""
    task = plan_full(FileSet(L0, (run("r"),)))
    assert task is not None
    assert task.apply_to(FileSet(L0, (run("r"),)), None) == FileSet()
    assert task.apply_to(changed, run("out")) is None


def test_a_task_below_the_newest_runs_applies_in_place() -> None:
    """Runs in the middle are replaced in the middle."""
    file_set = FileSet((), (run("s"), run("r"), run("q"), run("p")))
    task = replace(plan_full(file_set), run_ids=("r", "q"), bottom=False)  # type: ignore[type-var]
    done = task.apply_to(file_set, run("out"))
    assert done is not None
    assert [item.id for item in done.runs] == ["s", "out", "p"]
