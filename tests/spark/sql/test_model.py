"""Law: after any program of SQL statements a table, and every version of it that is kept, is what DuckDB says it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from lakebed.lake.lake import Lake
from worlds.sql.state import Judge
from worlds.sql.statements import run_program
from worlds.sql.world import SHAPES, SqlWorld


@pytest.fixture
def judge() -> Iterator[Judge]:
    """DuckDB."""
    made = Judge()
    yield made
    made.close()


def run(session: SparkSession, lake: Lake, judge: Judge, shape: str, seed: int, step_count: int) -> SqlWorld:
    """Run a program on a new table. A failure has the statements that led to it."""
    session.conf.set("spark.sql.shuffle.partitions", "2")
    world = SqlWorld(session, lake, judge, SHAPES[shape], random.Random(f"{seed} {shape}"))
    try:
        run_program(world, step_count)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}, shape {shape}", *world.history]))
        raise
    return world


PROGRAMS = (
    pytest.param("append", 1, 5, marks=pytest.mark.long),
    ("keys", 31, 3),
    ("sequence group", 2, 2),
)


@pytest.mark.parametrize(("shape", "seed", "step_count"), PROGRAMS)
def test_a_program(session: SparkSession, lake: Lake, judge: Judge, shape: str, seed: int, step_count: int) -> None:
    """Few statements of some kinds of tables. A change that no statement made is found."""
    world = run(session, lake, judge, shape, seed, step_count)
    world.check_files()
    world.table().overwrite(world.table().arrow_schema.empty_table())
    with pytest.raises(AssertionError, match="missing"):
        world.check("main")


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_many_programs(
    session: SparkSession, lake: Lake, judge: Judge, tell: Callable[[str], None], shape: str
) -> None:
    """Of each kind of table; at the end the lake is checked."""
    counts: Counter[str] = Counter()
    statement_count = 0
    for seed in range(6):
        world = run(session, lake, judge, shape, seed, 20)
        counts += world.counts
        statement_count += len(world.history)
        world.check_files()
        for branch in world.lines:
            if branch != "main":
                world.run("CALL lake.sys.delete_branch('db.t', 'b')")
        for name in world.tags:
            world.run(f"ALTER TABLE lake.db.t DROP TAG {name}")
        world.run("DROP TABLE lake.db.t")
    tell(f"SQL, {shape}: 6 programs, {statement_count} statements, {dict(counts)}")
