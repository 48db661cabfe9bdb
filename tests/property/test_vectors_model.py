"""Law: an append table with deletion vectors equals a dictionary, in every version that is left.

Programs of appends, deletes, updates by position, overwrites, compactions, tags, branches, expiry, tag deletion and
rollbacks run on a real table, with partitions or buckets or neither. After every step each live snapshot, tag and
branch is read and compared with the dictionary that it had, every referenced index file exists, and cleaning deletes
none that is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.table.commit.commit import Basis
from lakebed.table.rows.position_deletes import delete_positions
from lakebed.table.rows.rows import new_writer
from lakebed.table.table import Table, branch_of
from lakebed.testing import seed_count
from worlds.table.kept_versions import KeptVersions

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.int32()), ("v", pa.int64())])
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitions": {"partition_keys": ("p",)},
    "buckets": {"options": {"bucket": "3", "bucket-key": "id"}},
}
Rows = dict[int, int]
EVER = 2**60

STEPS = ("append", "append", "delete", "delete", "delete", "update", "overwrite", "compact", "full", "tag", "untag",
         "expire", "rollback", "as_latest", "fork", "branch_delete", "publish", "drop_branch")  # fmt: skip


class World(KeptVersions[Rows]):
    """A table and what each version holds."""

    def __init__(self, layout: str) -> None:
        shape = dict(LAYOUTS[layout])
        options = {"deletion-vectors.enabled": "true", **shape.pop("options", {})}
        super().__init__(SCHEMA, empty={}, options=options, **shape)
        self.layout = layout
        self.made = 0

    def rows(self, values: Rows) -> pa.Table:
        """Rows by id."""
        return pa.table({"id": list(values), "p": [n % 3 for n in values], "v": list(values.values())}, SCHEMA)

    # ---- steps

    def append(self, number: int) -> None:
        fresh = {self.made + n: number for n in range(1 + number % 7)}
        self.made += len(fresh)
        after = self.now | fresh
        self.table.append(self.rows(fresh))
        self.noted(after)

    def delete(self, number: int, table: Table | None = None) -> None:
        low = number % max(1, self.made)
        (table or self.table).delete(f"id >= {low} and id < {low + 1 + number % 5} or v = {number}")
        if table is None:
            self.noted({n: v for n, v in self.now.items() if not low <= n < low + 1 + number % 5 and v != number})

    def update(self, number: int) -> None:
        basis = Basis(self.table.latest())
        choice = {n: v + 1000 for n, v in self.now.items() if (n + number) % 4 == 0}
        if not choice:
            return
        positions: dict[str, list[int]] = {}
        for split in self.table.scan().splits():
            for file in split.files:
                body = bytes(self.table.store.get(f"{split.folder}/{file.file_name}"))
                stored = pq.read_table(pa.BufferReader(body))["id"].to_pylist()
                positions[file.file_name] = [at for at, item in enumerate(stored) if item in choice]
        writer = new_writer(self.table.context)
        writer.write(self.rows(choice))
        delete_positions(self.table.context, positions, basis=basis, added=writer.finish(), options={})
        self.noted(self.now | choice)

    def overwrite(self, number: int) -> None:
        fresh = {self.made: number}
        self.made += 1
        if self.layout == "partitions":
            gone = next(iter(fresh)) % 3
            self.table.overwrite(self.rows(fresh), dynamic=True)
            self.noted({n: v for n, v in self.now.items() if n % 3 != gone} | fresh)
        else:
            self.table.overwrite(self.rows(fresh))
            self.noted(fresh)

    def compact(self, number: int, *, full: bool = False) -> None:
        before = self.now
        self.table.compact(full=full)
        self.noted(before)

    def full(self, number: int) -> None:
        self.compact(number, full=True)

    def branch_delete(self, number: int) -> None:
        if self.branch is None:
            return
        low = number % max(1, self.made)
        self.delete(number, branch_of(self.table, "b"))
        self.branch = {n: v for n, v in self.branch.items() if not low <= n < low + 1 + number % 5 and v != number}

    # ---- the law

    def check(self) -> None:
        """Every version reads as it did, and cleaning takes nothing away from any."""
        for _ in range(2):
            super().check()
            self.table.collect(grace_ms=0)

    def check_version(self, table: Table, rows: Rows, **version: Any) -> None:
        """A version's rows, in full and by a predicate, and their number."""
        scan = table.scan(**version)
        result = scan.to_arrow()
        assert result.num_rows == scan.count() == len(rows)
        assert dict(zip(result["id"].to_pylist(), result["v"].to_pylist(), strict=True)) == rows
        some = table.read(where="id >= 3 and p = 1", columns=["id"], **version)
        assert sorted(some["id"].to_pylist()) == sorted(n for n in rows if n >= 3 and n % 3 == 1)


def run(layout: str, program: list[tuple[str, int]]) -> None:
    """A program on a new table, checked at its end and after every fourth step."""
    world = World(layout)
    verbs: dict[str, Callable[[int], None]] = {name: getattr(world, name) for name in STEPS}
    for position, (name, number) in enumerate(program):
        verbs[name](number)
        if position % 4 == 3:
            world.check()
    world.check()


PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), min_size=4, max_size=24)
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(QUIET, max_examples=2)
@given(program=PROGRAMS)
def test_the_table_equals_a_dictionary(layout: str, program: list[tuple[str, int]]) -> None:
    """Any program, in every layout."""
    run(layout, [("append", 20), ("append", 6), *program])


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(QUIET, max_examples=seed_count(60), derandomize=False)
@given(program=PROGRAMS)
def test_the_table_equals_a_dictionary_at_length(layout: str, program: list[tuple[str, int]]) -> None:
    """Many programs."""
    run(layout, [("append", 20), ("append", 6), *program])
