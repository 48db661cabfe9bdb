"""Law: handles of a table that are never refreshed change it as one that was just opened.

Programs of writes, deletes, updates, overwrites, compactions, expiry, tags, branches, their renames, rollbacks and
publications run on a table and a branch of it, through handles of which each has seen another schema: opened at any
time, pickled and thawed, or of the branch. The others add, drop, rename and widen columns, and set and reset options,
also while a verb runs. Plain Python judges: a column is a number that it got when it was added, a row a dictionary by
these numbers.
Every version, tag and branch reads as it did, with the columns of its time; schema ids of snapshots never go back;
while the option asks for a changelog, every write has one.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.table.world import InlineRuntime

R = TypeVar("R")
SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("p", pa.int32(), nullable=False), ("v", pa.int32())]
)
EVER = 2**60
KEYED: dict[str, Any] = {"primary_keys": ("k",)}
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "append, partitions": {"partition_keys": ("p",)},
    "append, buckets": {"options": {"bucket": "2", "bucket-key": "k"}},
    "append, vectors": {"options": {"deletion-vectors.enabled": "true"}},
    "keyed": KEYED,
    "keyed, partitions": {"primary_keys": ("k", "p"), "partition_keys": ("p",), "options": {"bucket": "2"}},
    "keyed, dynamic buckets": KEYED | {"options": {"bucket": "-1"}},
    "keyed, vectors": KEYED
    | {"options": {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}},
    "keyed, compactions log": KEYED | {"options": {"changelog-producer": "full-compaction"}},
    "partial-update": KEYED | {"options": {"merge-engine": "partial-update"}},
    "first-row": KEYED | {"options": {"merge-engine": "first-row"}},
    "aggregation": KEYED
    | {
        "options": {
            "merge-engine": "aggregation",
            "fields.v.aggregate-function": "sum",
            "fields.default-aggregate-function": "last_non_null_value",
        }
    },
}
Row = dict[int, Any]


@dataclass(frozen=True)
class Column:
    """A column of the model: its number never changes and is never used again."""

    number: int
    name: str
    type: str


KEY, PART, VALUE = Column(0, "k", "BIGINT"), Column(1, "p", "INT"), Column(2, "v", "INT")


@dataclass
class Version:
    """What a version shows."""

    columns: tuple[Column, ...]
    rows: list[Row]

    def shown(self) -> Counter[tuple[Any, ...]]:
        """The rows as tuples, each with how often it is there."""
        return Counter(tuple(row.get(column.number) for column in self.columns) for row in self.rows)


@dataclass
class Line:
    """Main or the branch."""

    branch: str | None
    columns: tuple[Column, ...] = (KEY, PART, VALUE)
    rows: list[Row] = field(default_factory=list)
    snapshots: dict[int, Version] = field(default_factory=dict)
    tags: dict[str, Version] = field(default_factory=dict)
    handles: list[Table] = field(default_factory=list)
    frozen: list[tuple[Any, ...]] = field(default_factory=list)
    """Pickled handles, as what makes them and its arguments."""
    logs: bool = False
    logged_from: int = 0
    """Writes of later snapshots have a changelog."""

    def now(self) -> Version:
        """What a new version shows."""
        return Version(self.columns, list(self.rows))

    def columns_with(self, old: Column, new: Column | None) -> None:
        """Put a column in the place of another one, or take it away."""
        kept = (new if column == old else column for column in self.columns)
        self.columns = tuple(column for column in kept if column is not None)


class Interrupted(StoreWrapper):
    """A store that does something else before the next manifest is put: a verb has then looked at the schema."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.before: list[Callable[[], None]] = []

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if self.before and call.kind == "put" and "manifest/" in call.path:
            self.before.pop()()
        return perform()


class World:
    """A table, its branch, and their model."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.rng = kind, random.Random(seed)
        self.clock = ManualClock()
        self.clock.advance(1_000.0)
        self.environment = Environment(clock=self.clock, rng=random.Random(seed + 1), runtime=InlineRuntime())
        inner = open_store(f"memory://stale-{uuid.uuid4()}", environment=self.environment)
        self.store = Interrupted(inner)
        first = Table.create(self.store, name="t", schema=SCHEMA, environment=self.environment, **KINDS[kind])
        self.main = Line(None, handles=[first])
        self.dev: Line | None = None
        self.forked: tuple[int, tuple[Column, ...]] | None = None
        self.numbers = 3
        self.is_keyed = bool(first.schema.primary_keys)
        self.engine = first.schema.options.get("merge-engine", "deduplicate")
        self.steps: Counter[str] = Counter()
        self.checks = 0

    # ---- handles

    def line(self) -> Line:
        """Main, or now and then the branch."""
        return self.dev if self.dev is not None and self.rng.random() < 0.4 else self.main

    def fresh(self, line: Line) -> Table:
        """A handle that was just opened."""
        return Table.open(self.store, name="t", branch=line.branch, environment=self.environment)

    def handle(self, line: Line) -> Table:
        """Any handle that there is, or a new one, or one that was pickled long ago. None is ever refreshed."""
        chance = self.rng.random()
        if chance < 0.15 or not line.handles:
            line.handles.append(self.fresh(line))
            return line.handles[-1]
        if chance < 0.3 and line.frozen:
            function, arguments = self.rng.choice(line.frozen)
            thawed: Table = function(*arguments)
            return thawed
        choice = self.rng.choice(line.handles)
        if self.rng.random() < 0.3:
            reduced: Any = choice.__reduce__()
            line.frozen.append((reduced[0], reduced[1]))
        return choice

    # ---- values

    def value(self, column: Column) -> Any:
        """A value that only the column's newest type holds."""
        if column.number != KEY.number and column.number != PART.number and self.rng.random() < 0.2:
            return None
        if column.type == "STRING":
            return f"s{self.rng.randrange(100)}"
        number = self.rng.randrange(40)
        return number + 2**40 if column.type == "BIGINT" and column.number > 1 else number

    def new_rows(self, columns: tuple[Column, ...], count: int, *, least: int = 0) -> list[Row]:
        """Rows with some columns; of one key there is one row. Keys count from `least`."""
        rows: dict[int, Row] = {}
        for _ in range(count):
            key = least + self.rng.randrange(12)
            rows[key] = {column.number: self.value(column) for column in columns} | {0: key, 1: key % 2}
        return list(rows.values())

    def arrow(self, columns: tuple[Column, ...], rows: list[Row]) -> pa.Table:
        """Rows as a user gives them: by the names of columns."""
        types = {"INT": pa.int32(), "BIGINT": pa.int64(), "STRING": pa.string()}
        arrays = [pa.array([row.get(column.number) for row in rows], types[column.type]) for column in columns]
        return pa.table(arrays, names=[column.name for column in columns])

    # ---- the model of merging

    def merged(self, line: Line, rows: list[Row]) -> list[Row]:
        """The rows of a line after others were written."""
        if not self.is_keyed:
            return [*line.rows, *rows]
        known = {row[0]: row for row in line.rows}
        for row in rows:
            old = known.get(row[0])
            if old is None or self.engine == "deduplicate":
                known[row[0]] = dict(row)
            elif self.engine != "first-row":
                given = {number: value for number, value in row.items() if value is not None}
                if self.engine == "aggregation" and VALUE.number in given and old.get(VALUE.number) is not None:
                    given[VALUE.number] += old[VALUE.number]
                known[row[0]] = old | given
        return list(known.values())

    def lacks(self, line: Line, columns: tuple[Column, ...]) -> bool:
        """Whether rows with some columns cannot be written: the table has others of the key's rows."""
        lacking = set(line.columns) - set(columns)
        return self.is_keyed and self.engine != "partial-update" and bool(lacking)

    def noted(self, line: Line, *, is_write: bool = False) -> None:
        """The newest snapshot, if a verb made it, shows what the model has."""
        newest = self.fresh(line).latest()
        if newest is None or newest.id in line.snapshots:
            return
        if is_write and line.logs:
            assert newest.changelog_manifest_list is not None, f"snapshot {newest.id} logs nothing"
        line.snapshots[newest.id] = line.now()

    # ---- verbs on rows

    def write(self) -> None:
        line = self.line()
        handle = self.handle(line)
        columns = line.columns
        if self.rng.random() < 0.4:  # what the user of an old handle believes
            names = {field.name for field in handle.schema.fields}
            columns = tuple(column for column in line.columns if column.name in names)
        rows = self.new_rows(columns, self.rng.randrange(1, 6))
        given = self.arrow(columns, rows)
        if self.lacks(line, columns):
            with pytest.raises(InvalidRequest, match="no column"):
                handle.write(given)
            return
        handle.write(given.to_reader() if self.rng.random() < 0.2 else given)
        line.rows = self.merged(line, rows)
        self.noted(line, is_write=True)

    def write_gone(self) -> None:
        """A column that another handle dropped is refused."""
        line = self.line()
        handle = self.handle(line)
        known = {column.name for column in line.columns}
        gone = [field.name for field in handle.schema.fields if field.name not in known]
        if gone:
            rows = self.arrow(line.columns, self.new_rows(line.columns, 1))
            with pytest.raises(InvalidRequest, match="does not exist"):
                handle.write(rows.append_column(gone[0], [pa.nulls(1, pa.int32())]))
            with pytest.raises(InvalidRequest, match="does not exist"):
                self.handle(line).read(where=f"`{gone[0]}` is null")

    def held_writer(self) -> None:
        """A writer whose rows were made before others changed the schema: carried as reads do, or refused."""
        line = self.line()
        handle, options = self.handle(line), line.logs
        writer, columns = new_writer(handle.context.look()), line.columns
        rows = self.new_rows(columns, 3)
        writer.write(self.arrow(columns, rows))
        changes = writer.finish()
        self.change(line)
        added = {column.number for column in line.columns} - {column.number for column in columns}
        erases = self.is_keyed and self.engine != "partial-update" and bool(added)
        kind = None
        try:
            commit_changes(handle.context, changes)
        except Conflict as refused:
            kind = refused.kind
        if kind is not None:
            assert kind == "index_changed" or (kind == "schema_changed" and (erases or options != line.logs))
            return
        assert not erases
        assert options == line.logs
        line.rows = self.merged(line, rows)
        self.noted(line, is_write=True)

    def delete(self) -> None:
        if self.engine != "deduplicate":
            return
        line = self.line()
        handle = self.handle(line)
        column = self.rng.choice([item for item in line.columns if item.type != "STRING"])
        bound = self.rng.randrange(40) + (2**40 if column.type == "BIGINT" and column.number > 1 else 0)
        if column.number == 0:
            bound %= 12
        gone = [row for row in line.rows if (value := row.get(column.number)) is not None and value == bound]
        snapshot = handle.delete(f"`{column.name}` = {bound}")
        assert (snapshot is not None) == bool(gone)
        line.rows = [row for row in line.rows if row not in gone]
        if snapshot is not None:
            self.noted(line, is_write=self.is_keyed)

    def update(self) -> None:
        if self.engine != "deduplicate":
            return
        line = self.line()
        handle = self.handle(line)
        values = [item for item in line.columns if item.number > 1]
        if not values:
            return
        column, key = self.rng.choice(values), self.rng.randrange(12)
        value = self.value(column)
        rows = [row for row in line.rows if row[0] == key]
        snapshot = handle.update(f"k = {key}", {column.name: value})
        assert (snapshot is not None) == bool(rows)
        line.rows = [row | {column.number: value} if row[0] == key else row for row in line.rows]
        if snapshot is not None:
            self.noted(line, is_write=self.is_keyed)

    def overwrite(self) -> None:
        line = self.line()
        handle = self.handle(line)
        rows = self.new_rows(line.columns, 4)
        given = self.arrow(line.columns, rows)
        if handle.schema.partition_keys and self.rng.random() < 0.5:
            replaced = {row[1] for row in rows}
            handle.overwrite(given, dynamic=True)
            line.rows = [*(row for row in line.rows if row[1] not in replaced), *rows]
        else:
            handle.overwrite(given)
            line.rows = rows
        self.noted(line)

    def compact(self) -> None:
        line = self.line()
        handle = self.handle(line)
        handle.compact(full=self.rng.random() < 0.7)
        self.noted(line)

    def interrupted(self) -> None:
        """While a verb commits, another handle changes the schema and writes: the verb looks again."""
        line = self.line()
        handle, other = self.handle(line), self.fresh(line)
        verb = self.rng.choice(("compact", "write"))
        columns = line.columns
        rows = self.new_rows(columns, 3)
        done: list[bool] = []

        def meanwhile() -> None:
            self.change(line)
            fresh = self.new_rows(line.columns, 2, least=20)  # of equal keys either writer's row may win
            other.write(self.arrow(line.columns, fresh))
            line.rows = self.merged(line, fresh)
            self.noted(line, is_write=True)
            done.append(True)

        self.store.before.append(meanwhile)
        try:
            if verb == "compact":
                handle.compact(full=True)
            else:
                handle.write(self.arrow(columns, rows))
                line.rows = self.merged(line, list(rows))
            is_refused = False
        except InvalidRequest:
            is_refused = True
        if is_refused:  # the columns are no longer those of the rows
            assert verb == "write"
            assert {column.name for column in columns} != {column.name for column in line.columns}
        self.store.before.clear()
        if done or verb == "write":
            self.noted(line)

    # ---- the schema

    def change(self, line: Line | None = None) -> None:
        """One change of columns or options, by any handle."""
        line = line or self.line()
        handle = self.handle(line)
        verb = self.rng.choice(("add", "add", "drop", "rename", "widen", "again", "log", "option"))
        plain = [item for item in line.columns if item.number > 2]
        if verb == "add":
            number, self.numbers = self.numbers, self.numbers + 1
            type_ = self.rng.choice(("INT", "BIGINT", "STRING"))
            column = Column(number, f"c{number}", type_)
            handle.add_column(column.name, column.type)
            line.columns += (column,)
        elif verb == "drop" and plain:
            column = self.rng.choice(plain)
            handle.drop_column(column.name)
            line.columns_with(column, None)
        elif verb == "rename" and plain:
            column = self.rng.choice(plain)
            self.numbers += 1
            renamed = replace(column, name=f"r{self.numbers}")
            handle.rename_column(column.name, renamed.name)
            line.columns_with(column, renamed)
        elif verb == "widen" and (narrow := [item for item in line.columns if item.number > 1 and item.type == "INT"]):
            column = self.rng.choice(narrow)
            handle.widen_column(column.name, "BIGINT")
            line.columns_with(column, replace(column, type="BIGINT"))
        elif verb == "log" and self.is_keyed and self.engine != "first-row" and "log" not in self.kind:
            if line.logs:
                handle.remove_options(["changelog-producer"])
            else:
                handle.set_options({"changelog-producer": "input"})
            line.logs = not line.logs
        elif verb == "option":
            handle.set_options({"snapshot.num-retained.max": str(100 + self.rng.randrange(100))})

    def again(self) -> None:
        """A column is dropped, and another one gets its name: it has none of the old values."""
        line = self.line()
        plain = [item for item in line.columns if item.number > 2]
        if plain:
            column = self.rng.choice(plain)
            self.handle(line).drop_column(column.name)
            line.columns_with(column, None)
            number, self.numbers = self.numbers, self.numbers + 1
            self.handle(line).add_column(column.name, column.type)
            line.columns += (replace(column, number=number),)

    # ---- versions

    def tag(self) -> None:
        line = self.line()
        if line.snapshots:
            name, newest = f"t{len(line.tags)}x{self.rng.randrange(10**6)}", max(line.snapshots)
            choice = newest if self.rng.random() < 0.6 else self.rng.choice(sorted(line.snapshots))
            self.handle(line).create_tag(name, snapshot_id=None if choice == newest else choice)
            line.tags[name] = line.snapshots[choice]

    def untag(self) -> None:
        line = self.line()
        if line.tags:
            name = self.rng.choice(sorted(line.tags))
            self.handle(line).delete_tag(name)
            del line.tags[name]

    def expire(self) -> None:
        line = self.line()
        if line.snapshots:
            self.handle(line).expire(retain_max=2, retain_min=2, older_than_ms=EVER)
            for gone in sorted(line.snapshots)[:-2]:
                del line.snapshots[gone]

    def restore(self) -> None:
        line = self.line()
        if line.snapshots:
            choice = self.rng.choice(sorted(line.snapshots))
            if choice == max(line.snapshots):
                return
            self.handle(line).rollback_to_as_latest(choice)
            line.rows = list(line.snapshots[choice].rows)
            self.noted(line)

    def orphans(self) -> None:
        self.handle(self.main).collect(grace_ms=0)

    def fork(self) -> None:
        if self.dev is None and self.main.snapshots:
            newest = max(self.main.snapshots)
            self.handle(self.main).create_branch("dev")
            version = self.main.snapshots[newest]
            self.dev = Line("dev", self.main.columns, list(version.rows), {newest: version}, logs=self.main.logs)
            self.forked = (newest, self.main.columns)

    def publish(self) -> None:
        if self.dev is None or self.forked is None or not self.main.snapshots:
            return
        if self.forked != (max(self.main.snapshots), self.main.columns):
            return
        if self.main.logs == self.dev.logs and self.dev.snapshots.keys() - {self.forked[0]}:
            self.handle(self.main).fast_forward(str(self.dev.branch))
            self.main.columns, self.main.rows = self.dev.columns, list(self.dev.rows)
            self.noted(self.main)
            self.drop_branch()

    def drop_branch(self) -> None:
        if self.dev is not None:
            self.handle(self.main).delete_branch(str(self.dev.branch))
            self.dev = self.forked = None

    def rename_branch(self) -> None:
        """What was opened by the old name is told that the branch is gone; the branch has all that it had."""
        if self.dev is None:
            return
        stale = self.handle(self.dev)
        self.handle(self.main).rename_branch(str(self.dev.branch), f"dev{self.rng.randrange(10**6)}")
        (branch,) = self.fresh(self.main).branches()
        assert branch.name != self.dev.branch
        for ask in (stale.read, stale.latest, lambda: stale.write(self.arrow(self.dev.columns, []))):
            with pytest.raises(NotFound):
                ask()
        self.dev = replace(self.dev, branch=branch.name, handles=[], frozen=[])

    # ---- the law

    def check(self, *, every: bool) -> None:
        """The newest rows by a new or an old handle; with `every` each version and tag too, by one of both."""
        for line in [self.main] if self.dev is None else [self.main, self.dev]:
            tables = [self.fresh(line), self.handle(line)]
            for table in tables if every else tables[self.rng.randrange(2) :][:1]:
                self.same(table, line.now())
                if every:
                    for snapshot_id, version in line.snapshots.items():
                        self.same(table, version, version=snapshot_id)
                    for name, version in line.tags.items():
                        self.same(table, version, tag=name)
            ids = [snapshot.schema_id for snapshot in self.fresh(line).snapshots()]
            assert ids == sorted(ids)

    def same(self, table: Table, expected: Version, **version: Any) -> None:
        """A version has its columns and its rows."""
        self.checks += 1
        result = table.read(**version)
        assert result.column_names == [column.name for column in expected.columns], version
        rows = zip(*(column.to_pylist() for column in result.columns), strict=True)
        assert Counter(rows) == expected.shown(), version


STEPS = (
    *("write",) * 6, *("change",) * 6, *("compact",) * 4, *("update",) * 2, *("delete",) * 2, "overwrite", "again",
    "write_gone", "held_writer", "held_writer", "interrupted", "interrupted", "tag", "tag", "untag", "expire",
    "restore", "fork", "fork", "publish", "rename_branch", "drop_branch", "orphans",
)  # fmt: skip


def run(kind: str, seed: int, *, step_count: int) -> World:
    """A random program on a new table, checked after every step, and in all its versions after every twelfth."""
    world = World(kind, seed)
    for position in range(step_count):
        name = world.rng.choice(STEPS) if position else "write"
        world.clock.advance(1.0)
        getattr(world, name)()
        world.steps[name] += 1
        world.check(every=position % 12 == 11)
    world.check(every=True)
    return world


@pytest.mark.parametrize("kind", KINDS)
def test_old_handles_change_a_table_as_new_ones_do(kind: str) -> None:
    """One program on each kind of table."""
    run(kind, list(KINDS).index(kind), step_count=14)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_old_handles_change_a_table_as_new_ones_do_at_length(kind: str) -> None:
    """Many programs: 500 over all kinds."""
    for seed in range(42):
        run(kind, 1000 + seed, step_count=20)
