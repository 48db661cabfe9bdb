"""Tables inside branches, merged: one conflict, or the table of one side, never a mixture; and what is reported."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, LakebedError, NotFound
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.port import ObjectStore
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch
from lakebed.repo.transport.local_objects import local_store
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing import seed_count
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from worlds.repo.memory_repository import MemoryRepository, Trap, copy_of, open_context
from worlds.repo.operations import commit, merge

ROOT = "warehouse/t"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Iterator[RepositoryContext]:
    """A repository whose ``main`` holds a table of ten rows and a separate file, committed.

    Each test has a seed of its own: names of files are unique in the world, and caches of the process rely on that.
    """
    with open_context(
        MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(request.node.name)))
    ) as opened:
        table = Table.create(local_store(opened, "main", ROOT), name="t", schema=SCHEMA, environment=opened.environment)
        append(table, range(10))
        local_store(opened, "main").put("warehouse/note", b"beside")
        commit(opened, "main", message="a table")
        yield opened


def table_of(home: RepositoryContext, reference: str, root: str = ROOT) -> Table:
    """The table as a reference has it."""
    return Table.open(local_store(home, reference, root), name="t", environment=home.environment)


def append(table: Table, ids: range) -> None:
    """Rows whose value shows their id."""
    table.append(pa.table({"id": list(ids), "v": [item * 7 for item in ids]}, schema=SCHEMA))


def rows(home: RepositoryContext, reference: str, root: str = ROOT) -> dict[int, int]:
    """What the table holds, each row once."""
    read = table_of(home, reference, root).read()
    pairs = dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))
    assert len(pairs) == read.num_rows
    return pairs


def model(*ids: range) -> dict[int, int]:
    """What it should hold."""
    return {item: item * 7 for some in ids for item in some}


def check(home: RepositoryContext, reference: str) -> None:
    """Every file that the table names is there and has what it says."""
    report = CheckReport(url="", deep=True)
    check_table(table_of(home, reference), Findings(report, store="t"))
    assert not [finding for finding in report.findings if finding.severity == "error"], report.findings


@pytest.mark.parametrize(
    ("strategy", "left"),
    [(None, None), ("source-wins", model(range(10), range(100, 140))), ("dest-wins", model(range(10), range(50, 53)))],
)
@pytest.mark.parametrize("commits", [1, 3])
def test_two_branches_append_to_one_table(
    home: RepositoryContext, strategy: str | None, left: dict[int, int] | None, commits: int
) -> None:
    """Merged without a strategy it is one conflict, the table's root; with one it is that side's table, row for row."""
    create_branch(home, "dev", source="main")
    for number in range(commits):
        append(table_of(home, "dev"), range(100 + 40 * number // commits, 100 + 40 * (number + 1) // commits))
        local_store(home, "dev").put(f"by-dev-{number}", b"1")
        commit(home, "dev", message=f"dev {number}")
    append(table_of(home, "main"), range(50, 53))
    commit(home, "main", message="main")
    if strategy is None:
        with pytest.raises(Conflict) as caught:
            merge(home, "dev", into="main")
        assert caught.value.facts["paths"] == [f"{ROOT}/"]
        assert caught.value.facts["count"] == 1
        assert rows(home, "main") == model(range(10), range(50, 53))
        return
    merge(home, "dev", into="main", strategy=strategy)  # type: ignore[arg-type]
    assert rows(home, "main") == rows(home, "main@") == left
    assert sum(rows(home, "main").values()) == sum((left or {}).values())
    check(home, "main")
    names = {meta.path for meta in local_store(home, "main").list()}
    assert {f"by-dev-{number}" for number in range(commits)} | {"warehouse/note"} <= names
    append(table_of(home, "main"), range(1000, 1001))  # the chain goes on
    assert rows(home, "main") == {**(left or {}), 1000: 7000}
    assert rows(home, "dev") == model(range(10), range(100, 140))


@pytest.mark.parametrize("strategy", [None, "source-wins", "dest-wins"])
def test_one_branch_appends(home: RepositoryContext, strategy: str | None) -> None:
    """When only one side changed the table, the merge has its rows, with any other changes of the other side."""
    create_branch(home, "dev", source="main")
    append(table_of(home, "dev"), range(100, 110))
    commit(home, "dev", message="dev")
    local_store(home, "main").put("warehouse/other", b"1")
    commit(home, "main", message="main")
    merge(home, "dev", into="main", strategy=strategy)  # type: ignore[arg-type]
    assert rows(home, "main") == model(range(10), range(100, 110))
    check(home, "main")


@pytest.mark.parametrize("strategy", [None, "source-wins", "dest-wins"])
def test_two_tables_are_two_units(home: RepositoryContext, strategy: str | None) -> None:
    """Each branch appends to a table of its own: both have all their rows after the merge."""
    second = "warehouse/u"
    made = Table.create(local_store(home, "main", second), name="t", schema=SCHEMA, environment=home.environment)
    append(made, range(5))
    commit(home, "main", message="two tables")
    create_branch(home, "dev", source="main")
    append(table_of(home, "dev"), range(100, 110))
    commit(home, "dev", message="dev")
    append(table_of(home, "main", second), range(200, 210))
    commit(home, "main", message="main")
    merge(home, "dev", into="main", strategy=strategy)  # type: ignore[arg-type]
    assert rows(home, "main") == model(range(10), range(100, 110))
    assert rows(home, "main", second) == model(range(5), range(200, 210))


def test_random_histories_of_two_branches() -> None:
    """Appends, compactions, expiries and commits on two branches, merged by turns: always one side's rows."""
    conflicts: list[tuple[str | None, list[str], bool]] = []
    for seed in range(seed_count(3)):
        rng = random.Random(seed)
        place = MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(seed + 100)))
        with open_context(place) as home:
            table = Table.create(
                local_store(home, "main", ROOT), name="t", schema=SCHEMA, environment=place.environment
            )
            append(table, range(3))
            commit(home, "main", message="begin")
            create_branch(home, "dev", source="main")
            models = {"main": model(range(3)), "dev": model(range(3))}
            for step in range(25):
                branch, other = rng.sample(["main", "dev"], 2)
                verb = rng.choice(["append", "append", "expire", "compact", "commit", "merge"])
                at = table_of(home, branch)
                if verb == "append":
                    ids = range(1000 * (step + 1), 1000 * (step + 1) + rng.randrange(1, 20))
                    append(at, ids)
                    models[branch] |= model(ids)
                elif verb == "expire":
                    at.expire(retain_max=2, retain_min=1)
                elif verb == "compact":
                    compact_once(home, branch, force=True)
                else:
                    for item in models:
                        commit(home, item, message=f"{step}", allow_empty=True)
                    if verb == "merge":
                        strategy = rng.choice([None, "source-wins", "dest-wins"])
                        before = rows(home, branch)
                        try:
                            merge(home, other, into=branch, strategy=strategy, allow_empty=True)  # type: ignore[arg-type]
                        except Conflict as error:
                            conflicts.append((strategy, error.facts["paths"], rows(home, branch) == before))
                        after = rows(home, branch)
                        assert after in (models[branch], models[other]), (seed, step)
                        models[branch] = dict(after)
                assert rows(home, branch) == models[branch], (seed, step, verb)
            check(home, "main")
            check(home, "dev")
    assert conflicts
    assert all(conflict == (None, [f"{ROOT}/"], True) for conflict in conflicts)


def test_no_hints_are_written(home: RepositoryContext) -> None:
    """A table in a branch writes neither Paimon's hints nor an index of tags; hints that are there do no harm."""
    store = local_store(home, "main", ROOT)
    table = table_of(home, "main")
    table.create_tag("v1")
    append(table, range(20, 25))
    table.expire(retain_max=1)
    table.context.tags.index()
    names = {meta.path for meta in store.list()}
    assert not {"snapshot/LATEST", "snapshot/EARLIEST", "lakebed/tag-index"} & names
    store.put("snapshot/LATEST", b"1")
    store.put("snapshot/EARLIEST", b"1")
    append(table_of(home, "main"), range(30, 32))
    assert rows(home, "main") == model(range(10), range(20, 25), range(30, 32))
    assert bytes(store.get("snapshot/LATEST")) == b"1"


def test_reports_say_when_the_bytes_come_back(home: RepositoryContext) -> None:
    """Expiry, rollback and cleaning say that bytes come back by the repository's collection, and so it is."""
    table = table_of(home, "main")
    before = set(names_below(home.store))
    append(table, range(20, 25))
    table.compact()
    commit(home, "main", message="more")
    plan = table.expire(retain_max=1, dry_run=True)
    assert any("collection" in note for note in plan.notes)
    report = table.expire(retain_max=1)
    assert report.deleted_count > 0
    assert any("collection" in note for note in report.notes)
    assert not report.warnings
    assert before <= set(names_below(home.store))  # tombstones only: every byte is there
    assert rows(home, "main") == model(range(10), range(20, 25))
    with pytest.raises(NotFound):
        table.snapshot(1)
    assert rows(home, "main@") == model(range(10), range(20, 25))  # what was committed is as it was
    assert table_of(home, "main@").snapshot(1).id == 1
    home.environment.clock.sleep(10 * 86_400)
    local_store(home, "main", ROOT).put("bucket-0/data-stray.parquet", b"x")
    home.environment.clock.sleep(10 * 86_400)
    cleaned = table.collect(dry_run=True)
    assert any("collection" in note for note in cleaned.notes)


def names_below(store: ObjectStore) -> list[str]:
    """Paths of everything in a store."""
    return [meta.path for meta in store.list()]


def test_sixteen_writers_while_the_branch_is_sealed() -> None:
    """Sixteen threads append to one table while the branch is compacted and committed: each row is there once."""
    place = MemoryRepository()
    with open_context(place) as home:
        table = Table.create(local_store(home, "main", ROOT), name="t", schema=SCHEMA)

        def write(writer: int) -> None:
            mine = Table.open(local_store(home, "main", ROOT), name="t")
            for number in range(2):
                append(mine, range(writer * 100 + number * 10, writer * 100 + number * 10 + 3))

        with ThreadPoolExecutor(17) as pool:
            writing = [pool.submit(write, writer) for writer in range(16)]
            sealing = 0
            while not all(element.done() for element in writing):
                compact_once(home, "main", force=True)
                commit(home, "main", message="while writing", allow_empty=True)
                sealing += 1
            for item in writing:
                item.result()
        assert sealing
        wanted = [range(w * 100 + n * 10, w * 100 + n * 10 + 3) for w in range(16) for n in range(2)]
        assert rows(home, "main") == model(*wanted)
        assert [snapshot.id for snapshot in table.snapshots()] == list(range(1, 33))


@cache
def place_of_a_table() -> MemoryRepository:
    """A repository with a table of three rows in its branch."""
    place = MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(0)))
    with open_context(place) as home:
        made = Table.create(local_store(home, "main", ROOT), name="t", schema=SCHEMA, environment=place.environment)
        append(made, range(3))
        commit(home, "main", message="begin")
    return place


# A crash before a call leaves what the crash after the call before it leaves.
@pytest.mark.parametrize("mode", [pytest.param("crash before", marks=pytest.mark.long), "crash after", "reply lost"])
def test_a_commit_fails_at_every_call(mode: str) -> None:
    """A commit of a table that dies at any call below the branch leaves the old table or the rows, and it goes on."""
    sprung = 0
    for at in range(0, 200, 3):
        place = copy_of(place_of_a_table())
        trap = Trap(at=at, mode=mode)  # type: ignore[arg-type]
        acknowledged = False
        with open_context(place, trap=trap) as home:
            try:
                append(table_of(home, "main"), range(10, 13))
                acknowledged = True
            except (Crashed, LakebedError):
                pass
        if not trap.has_sprung:
            break
        sprung += 1
        with open_context(place) as home:
            present = rows(home, "main")
            assert present in (model(range(3)), model(range(3), range(10, 13)))
            assert not acknowledged or 10 in present
            append(table_of(home, "main"), range(20, 21))
            assert rows(home, "main") == {**present, 20: 140}
            check(home, "main")
    assert sprung > 5
