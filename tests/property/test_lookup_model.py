"""Law: a primary-key table with deletion vectors equals a dictionary as of the last compaction, in every version.

Programs of upserts, deletes, overwrites, compactions, tags, branches, expiry, tag deletion and rollbacks run on a real
table, with fixed or dynamic buckets and by several merge engines. The model holds what was written and what the last
compaction made visible. Every live snapshot, tag and branch has the rows that it had, each key once, and cleaning takes
nothing away from any.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.errors import Conflict, NotFound
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.table.changes.stream import StreamBatch, StreamOffset, StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.table import Table, branch_of
from lakebed.testing import seed_count
from worlds.table.kept_versions import KeptVersions

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.int64())])
Row = tuple[int | None, int | None]
Rows = dict[int, Row]
EVER = 2**60
KEYS = 60

TABLES: dict[str, dict[str, str]] = {
    "fixed": {"bucket": "2"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "25"},
    "few levels": {"bucket": "1", "num-sorted-run.compaction-trigger": "2"},
    "sequence": {"bucket": "1", "sequence.field": "v"},
    "partial": {"bucket": "1", "merge-engine": "partial-update"},
    "sums": {"bucket": "1", "merge-engine": "aggregation", "fields.default-aggregate-function": "sum"},
}

STEPS = ("upsert", "upsert", "upsert", "delete", "delete_where", "overwrite", "compact", "compact", "full", "tag",
         "untag", "expire", "rollback", "as_latest", "fork", "in_branch", "publish", "drop_branch")  # fmt: skip


@dataclass(frozen=True)
class State:
    """What was written into a version, and what is visible in it."""

    written: Rows = field(default_factory=dict)
    visible: Rows = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)
    """With ``sequence.field``: the greatest value of a delete, by key."""


class World(KeptVersions[State]):
    """A table and what each version holds."""

    def __init__(self, kind: str, more: dict[str, str] | None = None) -> None:
        options = {"deletion-vectors.enabled": "true", "target-file-size": "2 kb", **TABLES[kind], **(more or {})}
        super().__init__(SCHEMA, empty=State(), primary_keys=["id"], options=options)
        self.kind = kind
        self.turn = 0

    def merged(self, old: Row | None, new: Row) -> Row:
        """One row of a key, by the engine."""
        if old is None or self.kind in ("fixed", "dynamic", "few levels"):
            return new
        if self.kind == "sequence":
            return new if (new[0] or 0) >= (old[0] or 0) else old
        if self.kind == "partial":
            return (old[0] if new[0] is None else new[0], old[1] if new[1] is None else new[1])
        return (_sum(old[0], new[0]), _sum(old[1], new[1]))

    def written(self, state: State, rows: Rows) -> State:
        """A state after some rows were written."""
        after, deleted = dict(state.written), dict(state.deleted)
        for key, row in rows.items():
            if self.kind == "sequence" and key in deleted and (row[0] or 0) < deleted[key]:
                continue
            after[key] = self.merged(after.get(key), row)
        return State(after, state.visible, deleted)

    def without(self, state: State, keys: dict[int, int]) -> State:
        """A state after some keys were deleted, each at a value of the sequence field."""
        after, deleted = dict(state.written), dict(state.deleted)
        for key, value in keys.items():
            if self.kind == "sequence":
                if key in after and (after[key][0] or 0) > value:
                    continue
                deleted[key] = max(value, deleted.get(key, value))
            after.pop(key, None)
        return State(after, state.visible, deleted)

    def fresh(self, number: int) -> Rows:
        """New rows; with nulls where the engine keeps older values for them."""
        self.turn += 1
        chance = random.Random(1000 * self.turn + number)
        keys = chance.sample(range(KEYS), 1 + number)
        value = chance.randrange(100) if self.kind == "sequence" else self.turn
        sparse = self.kind in ("partial", "sums")
        return {key: (None if sparse and key % 3 == number % 3 else value, self.turn) for key in keys}

    @property
    def takes_deletes(self) -> bool:
        """Whether the engine deletes rows by key."""
        return self.kind not in ("partial", "sums")

    # ---- steps

    def upsert(self, number: int, table: Table | None = None, state: State | None = None) -> State:
        rows = self.fresh(number)
        after = self.written(self.now if state is None else state, rows)
        (table or self.table).upsert(as_table(rows))
        if table is None:
            self.noted(after)
        return after

    def delete(self, number: int) -> None:
        if self.takes_deletes:
            keys = dict.fromkeys(range(number, min(KEYS, number + 7)), number * 3)
            after = self.without(self.now, keys)
            self.table.delete(keys=pa.table({"id": list(keys), "v": list(keys.values())}))
            self.noted(after)

    def delete_where(self, number: int) -> None:
        """By a predicate on a value: it meets rows that no compaction has seen too."""
        if self.takes_deletes:
            gone = {key: row[0] or 0 for key, row in self.now.written.items() if row[1] == self.turn - number % 3}
            after = self.without(self.now, gone)
            assert (self.table.delete(f"w = {self.turn - number % 3}") is not None) == bool(gone)
            self.noted(after)

    def overwrite(self, number: int) -> None:
        rows = self.fresh(number)
        self.table.overwrite(as_table(rows))
        self.noted(State(rows, {}))

    def compact(self, number: int, *, full: bool = False) -> None:
        before = self.now
        self.table.compact(full=full)
        self.noted(State(before.written, before.written, before.deleted))

    def full(self, number: int) -> None:
        self.compact(number, full=True)

    def in_branch(self, number: int) -> None:
        if self.branch is not None:
            branch = branch_of(self.table, "b")
            state = self.upsert(number, branch, self.branch)
            branch.compact(full=number % 2 == 0)
            self.branch = State(state.written, state.written, state.deleted)

    # ---- the law

    def check(self) -> None:
        """Every version reads as it did, after cleaning too."""
        self.table.collect(grace_ms=0)
        super().check()

    def check_version(self, table: Table, state: State, **version: Any) -> None:
        """A version's rows, in full and by predicates, and their number."""
        rows = state.visible
        scan = table.scan(**version)
        result = scan.to_arrow()
        assert result.num_rows == scan.count() == len(rows)
        assert {item["id"]: (item["v"], item["w"]) for item in result.to_pylist()} == rows
        some = table.read(where="id >= 10 and w > 3", columns=["id"], **version)
        assert sorted(some["id"].to_pylist()) == sorted(n for n, row in rows.items() if n >= 10 and (row[1] or 0) > 3)

    def check_deeply(self) -> None:
        """The deep check finds no error."""
        report = CheckReport(self.table.url, deep=True)
        check_table(self.table, Findings(report, store="t"))
        assert not report.error_count, [finding.sentence for finding in report.findings]


@dataclass
class Follower:
    """A reader of a stream of changes, and what it has come to."""

    world: World
    offset: StreamOffset | None = None
    there: Rows = field(default_factory=dict)

    @property
    def sees_compacted(self) -> bool:
        """Whether changes are those that compactions make visible."""
        return not self.world.takes_deletes

    def stream(self) -> TableStream:
        table = self.world.table
        return TableStream(table.context, StreamSettings(changes=True), schema=table.refresh())

    def follow(self, number: int, *, may_end: bool) -> None:
        """Read what is new, in batches; a stream that ended begins anew."""
        limits = Limits() if number % 3 == 0 else Limits(snapshots=number % 3)
        try:
            self.drain(limits)
        except (Conflict, NotFound):
            assert may_end
            self.offset, self.there = None, {}
            self.drain(limits)
        state = self.world.now
        assert self.there == (state.visible if self.sees_compacted else state.written)

    def drain(self, limits: Limits) -> None:
        stream = self.stream()
        if self.offset is None:
            self.offset = stream.first()
        while (end := stream.advance(self.offset, limits)) != self.offset:
            self.apply(stream.plan(self.offset, end), exact=self.sees_compacted)
            self.offset = end

    def apply(self, batch: StreamBatch, *, exact: bool) -> None:
        """Apply a batch. Exact changes say the row that is there before they take it, and add none twice."""
        result = [row for unit in batch.units for rows in unit.rows(self.world.table.store, batch.plan)
                 for row in rows.to_pylist()]  # fmt: skip
        assert len({(row["id"], row["_row_kind"][0]) for row in result}) == len(result), "a key is twice"
        for row in sorted(result, key=lambda row: row["_row_kind"] in ("+I", "+U")):
            key, values = row["id"], (row["v"], row["w"])
            if row["_row_kind"] in ("-U", "-D"):
                assert not exact or self.there[key] == values
                self.there.pop(key, None)
            else:
                assert not exact or key not in self.there
                self.there[key] = values

    def check_versions(self) -> None:
        """The changes of each range of versions are those that readers see."""
        states = self.world.snapshots
        ids = [0, *sorted(states)] if 1 in states else sorted(states)
        for before, after in itertools.pairwise(ids):
            self.there = dict(states[before].visible) if before else {}
            for _, batch in self.stream().commits(before, after):
                self.apply(batch, exact=True)
            assert self.there == states[after].visible


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def as_table(rows: Rows) -> pa.Table:
    """Rows by key."""
    values = list(rows.values())
    return pa.table(
        {"id": list(rows), "v": [value[0] for value in values], "w": [value[1] for value in values]}, SCHEMA
    )


def run(kind: str, program: list[tuple[str, int]]) -> None:
    """A program on a new table, checked at its end and after every eighth step."""
    world = World(kind)
    verbs: dict[str, Callable[[int], object]] = {name: getattr(world, name) for name in STEPS}
    for position, (name, number) in enumerate(program):
        verbs[name](number)
        if position % 8 == 7:
            world.check()
    world.check()
    world.check_deeply()


def run_followed(kind: str, producer: str, program: list[tuple[str, int]]) -> None:
    """A program on a new table, followed after about every second step."""
    world = World(kind, {"changelog-producer": producer})
    verbs: dict[str, Callable[[int], object]] = {name: getattr(world, name) for name in STEPS}
    follower, may_end = Follower(world), False
    for name, number in program:
        verbs[name](number)
        may_end |= name in ("expire", "rollback", "publish")
        if number % 2 == 0:
            follower.follow(number, may_end=may_end)
            may_end = False
    follower.follow(0, may_end=may_end)
    Follower(world).follow(1, may_end=False)
    Follower(world).check_versions()


PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), min_size=6, max_size=16)
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
BEGIN = [("upsert", 39), ("compact", 0), ("upsert", 5), ("delete", 3), ("compact", 0), ("upsert", 2), ("compact", 0)]


@pytest.mark.parametrize("kind", TABLES)
@settings(QUIET, max_examples=1)
@given(program=PROGRAMS)
def test_the_table_equals_a_dictionary(kind: str, program: list[tuple[str, int]]) -> None:
    """Any program, with every kind of bucket and several engines."""
    run(kind, [*BEGIN, *program])


@pytest.mark.long
@pytest.mark.parametrize("kind", TABLES)
@settings(QUIET, max_examples=seed_count(50), derandomize=False)
@given(program=PROGRAMS)
def test_the_table_equals_a_dictionary_at_length(kind: str, program: list[tuple[str, int]]) -> None:
    """Many programs."""
    run(kind, [*BEGIN, *program])


FOLLOWED = [*((kind, "none") for kind in TABLES), ("fixed", "input"), ("dynamic", "input"), ("sums", "input")]


ALL_OF_THEM = [*BEGIN, ("overwrite", 4), ("upsert", 6), ("compact", 0), ("upsert", 2), ("delete", 0), ("compact", 2),
               ("as_latest", 9), ("upsert", 4), ("delete_where", 0), ("rollback", 2), ("expire", 2)]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "producer"), [("sequence", "none"), ("sums", "none"), ("partial", "input"), ("dynamic", "input")]
)
def test_streams_come_to_its_rows(kind: str, producer: str) -> None:
    """A follower has what was written, or where the engine computes rows what is visible; ranges are exact."""
    run_followed(kind, producer, ALL_OF_THEM)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "producer"), FOLLOWED)
@settings(QUIET, max_examples=seed_count(20), derandomize=False)
@given(program=PROGRAMS)
def test_streams_come_to_its_rows_at_length(kind: str, producer: str, program: list[tuple[str, int]]) -> None:
    """Many programs."""
    run_followed(kind, producer, [*BEGIN, *program])
