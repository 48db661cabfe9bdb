"""Law: a table with ``sequence.field`` equals a dictionary that keeps the greatest (sequence, arrival) of every key.

Random programs of upserts, deletes by key and by predicate, batches with deletes, compactions, expiry, tags and
rollbacks run on a real table; every version that is left is read after every step and compared with the dictionary of
that version. A delete is an entry of the dictionary as a row is.
"""

from __future__ import annotations

import itertools
import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing import seed_count
from lakebed.testing.clock import ManualClock
from worlds.table.made_up import TableModel
from worlds.table.world import InlineRuntime

Model = dict[int, tuple[Any, int, str | None]]
"""Key to the rank of its sequence, its arrival, and its value; None: it is deleted."""

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.float64()), ("b", pa.int32()), ("v", pa.string())])
VALUES_A = [None, -math.inf, -1.0, -0.0, 0.0, 7.5, math.nan]
VALUES_B = [None, -(2**31), 0, 2**31 - 1]
KEY_COUNT = 12
SEEDS = 2
STEPS = 20


def rank(row: dict[str, Any], *, descending: bool) -> tuple[int, ...]:
    """The place of a row's sequence in the order of the option; nulls are first in both directions."""

    def place(values: list[Any], value: Any) -> int:
        match = next(i for i, known in enumerate(values) if repr(known) == repr(value))
        return -match if descending and match else (match if match else -len(values))

    return place(VALUES_A, row["a"]), place(VALUES_B, row["b"])


@dataclass
class World:
    """A table and the dictionaries of its versions."""

    seed: int
    model: TableModel[Model] = field(default_factory=lambda: TableModel(empty={}))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.descending = self.seed % 3 == 2
        self.arrivals = itertools.count()
        self.clock = ManualClock()
        self.table = Table.create(
            open_store(f"memory://sequence-model-{uuid.uuid4()}"),
            name="t",
            schema=SCHEMA,
            primary_keys=["id"],
            options={
                "bucket": str(1 + self.seed % 2),
                "sequence.field": "a,b",
                "sequence.field.sort-order": "descending" if self.descending else "ascending",
                "num-sorted-run.compaction-trigger": "3",
                "target-file-size": "2 kb" if self.seed % 5 == 0 else "128 mb",
            },
            environment=Environment(clock=self.clock, rng=random.Random(self.seed), runtime=InlineRuntime()),
        )

    def made(self) -> list[dict[str, Any]]:
        choose = self.rng.choice
        count = self.rng.choice([1, 1, 2, 5, 30])
        return [
            {
                "id": self.rng.randrange(KEY_COUNT),
                "a": choose(VALUES_A),
                "b": choose(VALUES_B),
                "v": str(self.rng.random()),
            }
            for _ in range(count)
        ]

    def arrive(self, model: Model, row: dict[str, Any], value: str | None) -> None:
        entry = (rank(row, descending=self.descending), next(self.arrivals), value)
        if row["id"] not in model or model[row["id"]][:2] < entry[:2]:
            model[row["id"]] = entry

    def committed(self, snapshot: Any, model: Model) -> None:
        if snapshot is not None:
            assert self.model.publish(model) == snapshot.id

    def upsert(self) -> None:
        model, made = dict(self.model.head), self.made()
        for row in made:
            self.arrive(model, row, row["v"])
        self.committed(self.table.upsert(pa.Table.from_pylist(made, SCHEMA)), model)

    def mixed(self) -> None:
        model, made = dict(self.model.head), self.made()
        gone = [self.rng.random() < 0.4 for _ in made]
        for row, is_gone in zip(made, gone, strict=True):
            self.arrive(model, row, None if is_gone else row["v"])
        rows = pa.Table.from_pylist(made, SCHEMA).append_column("gone", pa.array(gone))
        self.committed(self.table.write(rows, deletes="gone"), model)

    def delete_keys(self) -> None:
        model, made = dict(self.model.head), self.made()
        for row in made:
            self.arrive(model, row, None)
        keys = pa.Table.from_pylist(made, SCHEMA).select(["id", "a", "b"])
        self.committed(self.table.delete(keys=keys), model)

    def delete_where(self) -> None:
        model, bound = dict(self.model.head), self.rng.randrange(KEY_COUNT)
        for key, (place, _, value) in self.model.head.items():
            if key < bound and value is not None:
                model[key] = (place, next(self.arrivals), None)
        self.committed(self.table.delete(f"id < {bound}"), model)

    def compact(self) -> None:
        model = dict(self.model.head)
        self.committed(self.table.compact(full=self.rng.random() < 0.6).snapshot, model)

    def tag(self) -> None:
        if self.model.last_id:
            name = f"t{len(self.model.tags)}-{self.rng.randrange(10**6)}"
            self.table.create_tag(name)
            self.model.tag(name, self.model.last_id)

    def expire(self) -> None:
        self.clock.advance(7200.0)
        self.table.expire(retain_max=self.rng.randrange(1, 4), retain_min=1)
        left = {snapshot.id for snapshot in self.table.snapshots()}
        assert self.model.last_id in left or not self.model.last_id
        self.model.keep(left, {tag.name for tag in self.table.tags()})

    def rollback(self) -> None:
        versions = self.model.snapshots
        if len(versions) > 1:
            choice = self.rng.choice(sorted(versions))
            made = self.table.rollback_to(choice)
            if choice != self.model.last_id:
                self.model.forget_after(choice)
                assert self.model.publish(versions[choice]) == made.id
            assert set(self.model.snapshots) == {snapshot.id for snapshot in self.table.snapshots()}
            assert set(self.model.tags) == {tag.name for tag in self.table.tags()}

    def check(self, *, sample: int | None = None) -> None:
        """Compare the newest version and a sample of the others; None: all of them."""
        versions: list[tuple[int | str, Model]] = list(self.model.snapshots.items())
        versions += [(name, tag) for name, (_, tag, _) in self.model.tags.items()]
        if sample is not None:
            newest = self.table.latest()
            others = self.rng.sample(versions, min(sample, len(versions)))
            versions = others if newest is None else [(newest.id, self.model.head), *others]
        for version, model in versions:
            expected = {key: value for key, (_, _, value) in model.items() if value is not None}
            columns = self.rng.choice([["id", "v"], ["v", "id", "b"]])
            read = self.table.read(version=version, columns=columns)
            assert read.num_rows == len(expected)
            assert dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == expected


def test_random_programs_equal_a_dictionary() -> None:
    """Every version reads as the dictionary of its rows and deletes, whatever happened before and after it."""
    done: set[str] = set()
    for seed in range(seed_count(SEEDS)):
        world = World(seed)
        steps: list[Callable[[], None]] = [world.upsert] * 4 + [world.mixed] * 4 + [world.delete_keys] * 2
        steps += [world.delete_where, world.compact, world.compact, world.tag, world.expire, world.rollback]
        for _ in range(STEPS):
            world.clock.advance(60.0)
            step = world.rng.choice(steps)
            step()
            done.add(step.__name__)
            world.check(sample=1)
        world.check()
    assert {"compact", "expire", "rollback", "delete_where", "mixed"} <= done
