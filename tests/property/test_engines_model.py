"""Law: a table of every merge engine equals a dictionary to which its rows are applied one by one.

Random programs of batches (which repeat keys and hold deletes), compactions of some or of all levels, and new columns
run on a real table. Some batches are prepared, and committed after others were committed and compacted: what counts is
the order of commits. After every step the table is read at once, as a stream and in windows of a few rows, and
compared.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyroaring
import pytest

from lakebed.errors import Conflict
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.engines.functions import FUNCTIONS, Retracts
from lakebed.table.model.model import BucketChange
from lakebed.table.read.read import read_split, read_split_table
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from worlds.table.row_by_row import Column, Groups, Row, aggregated, updated
from worlds.table.world import InlineRuntime

KEY_COUNT = 6
STEPS = 16
NAN = float("nan")

Rows = list[tuple[bool, Row]]
"""The rows of a key in the order of arrival, with whether each is a delete."""


@dataclass(frozen=True)
class Case:
    """One kind of table: its options, its columns with their values, and what the dictionary does."""

    options: Mapping[str, str]
    columns: Sequence[tuple[pa.Field, Sequence[Any]]]
    row_of: Callable[[Rows], Row | None]
    deletes: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The key and the columns."""
        return pa.schema([pa.field("id", pa.int64()), *(column for column, _ in self.columns)])


def column(name: str, kind: pa.DataType, *values: Any) -> tuple[pa.Field, Sequence[Any]]:
    """A column and what its values are drawn from; null too."""
    return pa.field(name, kind), (None, *values)


LISTS = pa.list_(pa.int32())
MAPS = pa.map_(pa.string(), pa.int32())
ROWS = pa.list_(pa.struct([("k", pa.int32()), ("v", pa.string())]))
NESTED = (
    [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}],
    [{"k": 1, "v": "c"}, None, {"k": 1, "v": "a"}],
    [{"k": None, "v": None}],
    [],
)
BIG = 2**55
BITMAPS = (pyroaring.BitMap(), pyroaring.BitMap([1, 70_000]), pyroaring.BitMap([2**32 - 1]), pyroaring.BitMap(range(9)))

EVERY = {
    "sum": column("sum", pa.int64(), 3, -5, BIG, -BIG),
    "product": column("product", pa.int64(), 2, -1, 3),
    "max": column("max", pa.float64(), NAN, -0.0, 0.0, 4.5, float("-inf")),
    "min": column("min", pa.string(), "", "b", "ä", "\U0001f600"),
    "last_value": column("last_value", pa.int32(), 1, 2),
    "last_non_null_value": column("last_non_null_value", pa.string(), "x", "y"),
    "first_value": column("first_value", pa.int32(), 1, 2),
    "first_non_null_value": column("first_non_null_value", pa.string(), "x", "y"),
    "listagg": column("listagg", pa.string(), "a", "b", "a,c"),
    "listagg_distinct": column("listagg_distinct", pa.string(), "a", "b", "c,a"),
    "bool_and": column("bool_and", pa.bool_(), True, False),
    "bool_or": column("bool_or", pa.bool_(), True, False),
    "rbm32": column("rbm32", pa.binary(), *(bitmap.serialize() for bitmap in BITMAPS)),
    "collect": column("collect", LISTS, [1, 2], [], [2, None]),
    "collect_distinct": column("collect_distinct", LISTS, [1, 2], [], [2, 3]),
    "nested_update": column("nested_update", ROWS, *NESTED),
    "nested_update_by_key": column("nested_update_by_key", ROWS, *NESTED),
    "merge_map": column("merge_map", MAPS, [("a", 1), ("b", 2)], [], [("a", None), ("c", 3)]),
}


def function_of(name: str) -> str:
    """The function of a column, without its options."""
    return name.removesuffix("_distinct").removesuffix("_by_key")


RETRACTING = tuple(name for name in EVERY if FUNCTIONS[function_of(name)].retracts is not Retracts.NO)
EXACT = tuple(name for name in EVERY if FUNCTIONS[function_of(name)].retracts is Retracts.EXACT)
NO_GROUPS = Groups({}, {})


def functions(names: Sequence[str], *, ignored: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, Column]]:
    """The options of some columns, each named after its function, and their oracles."""
    options, oracles = {}, {}
    for name in names:
        options[f"fields.{name}.aggregate-function"] = function_of(name)
        if name.endswith("_distinct"):
            options[f"fields.{name}.distinct"] = "true"
        if name.endswith("_by_key"):
            options[f"fields.{name}.nested-key"] = "k"
        if name in ignored:
            options[f"fields.{name}.ignore-retract"] = "true"
        oracles[name] = Column(name, name in ignored)
    return options, oracles


def aggregation(names: Sequence[str], *, ignored: Sequence[str] = (), removes: bool = False, deletes: bool) -> Case:
    """A table of the engine ``aggregation`` with a column for each function."""
    options, oracles = functions(names, ignored=ignored)
    if removes:
        options["aggregation.remove-record-on-delete"] = "true"
    return Case(
        {"merge-engine": "aggregation", **options},
        [EVERY[name] for name in names],
        lambda rows: aggregated(rows, oracles, removes=removes),
        deletes,
    )


def grouped(names: Sequence[str], *, deletes: bool) -> Case:
    """A table of the engine ``partial-update`` with two sequence groups and a column outside of them."""
    options, oracles = functions(names)
    options |= {"fields.s.sequence-group": ",".join(["p", *names]), "fields.t,u.sequence-group": "q"}
    groups = Groups({("s",): ["p", *names], ("t", "u"): ["q"]}, oracles)
    sequences = [column("s", pa.int32(), 1, 2, 3), column("t", pa.float64(), 1.0, NAN), column("u", pa.int32(), 1, 2)]
    plain = [column(name, pa.string(), "a", "b", "c") for name in ("p", "q", "free")]
    return Case(
        {"merge-engine": "partial-update", **options},
        [*sequences, *plain, *(EVERY[name] for name in names)],
        lambda rows: updated(rows, groups=groups, deletes="retract"),
        deletes,
    )


def partial(deletes: str) -> Case:
    """A table of the engine ``partial-update`` without groups."""
    options = {"ignore": {"ignore-delete": "true"}, "remove": {"partial-update.remove-record-on-delete": "true"}}
    return Case(
        {"merge-engine": "partial-update", **options.get(deletes, {})},
        [column("a", pa.int32(), 1, 2), column("b", pa.string(), "x", ""), column("c", LISTS, [1], [])],
        lambda rows: updated(rows, groups=NO_GROUPS, deletes=deletes),
        deletes in options,
    )


def first_row(*, ignores: bool) -> Case:
    """A table of the engine ``first-row``."""
    return Case(
        {"merge-engine": "first-row", **({"ignore-delete": "true"} if ignores else {})},
        [column("a", pa.int32(), 1, 2), column("b", pa.string(), "x", "y")],
        lambda rows: next((row for gone, row in rows if not gone), None),
        ignores,
    )


OTHERS = tuple(name for name in EVERY if name not in (*RETRACTING, "first_value"))
"""Without `first_value`: of a key whose rows were all deletes, a compaction leaves a null, which is then the first."""
CASES = {
    "every function": aggregation(tuple(EVERY), deletes=False),
    "retracts that merge apart": aggregation(
        (*EXACT, "max", "listagg", "bool_and"), ignored=("max", "listagg", "bool_and"), deletes=True
    ),
    "retracts that merge late": aggregation((*RETRACTING, *OTHERS), ignored=OTHERS, deletes=True),
    "aggregation, removed": aggregation(("sum", "max", "last_non_null_value", "collect"), removes=True, deletes=True),
    "partial update": partial("refuse"),
    "partial update, ignored": partial("ignore"),
    "partial update, removed": partial("remove"),
    "groups": grouped((), deletes=False),
    "groups, any order": grouped(("sum", "max", "collect", "bool_or"), deletes=False),
    "groups, by order": grouped(tuple(name for name in EVERY if name not in ("collect",)), deletes=False),
    "groups, retracted": grouped(("sum", "product", "collect"), deletes=True),
    "first row": first_row(ignores=False),
    "first row, ignored": first_row(ignores=True),
}


@dataclass
class World:
    """A table and the rows that were written to it."""

    case: Case
    seed: str
    written: dict[int, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.added: list[str] = []
        self.prepared: list[tuple[list[BucketChange], list[tuple[bool, Row]]]] = []
        self.table = Table.create(
            open_store(f"memory://engines-model-{uuid.uuid4()}"),
            name="t",
            schema=self.case.schema,
            primary_keys=["id"],
            options={
                "bucket": str(self.rng.choice((1, 2))),
                "num-sorted-run.compaction-trigger": "2",
                "num-levels": "5",
                "compaction.max-size-amplification-percent": "100000",
                "target-file-size": self.rng.choice(("1 kb", "128 mb")),
                **self.case.options,
            },
            environment=Environment(rng=random.Random(self.seed), runtime=InlineRuntime()),
        )

    def write(self) -> None:
        rows = []
        for _ in range(self.rng.choice((1, 2, 4, 12))):
            row = {"id": self.rng.randrange(KEY_COUNT)}
            row |= {item.name: self.rng.choice(values) for item, values in self.case.columns}
            rows.append(row | {name: self.rng.choice((None, 7)) for name in self.added})
        gone = [self.case.deletes and self.rng.random() < 0.3 for _ in rows]
        arrow = pa.Table.from_pylist(rows, self.schema())
        deletes = None
        if any(gone):
            arrow, deletes = arrow.append_column("gone", pa.array(gone)), "gone"
        batch = list(zip(gone, rows, strict=True))
        if self.rng.random() < 0.4:
            writer = new_writer(self.table.context.look())
            writer.write(arrow, deletes=deletes)
            self.prepared.append((writer.finish(), batch))
            return
        self.table.write(arrow, deletes=deletes)
        self.note(batch)

    def note(self, batch: list[tuple[bool, Row]]) -> None:
        """Apply rows that were committed."""
        for is_gone, row in batch:
            lacking = {name: None for name in self.added if name not in row}
            self.written.setdefault(row["id"], []).append((is_gone, {**row, **lacking}))

    def commit_prepared(self) -> None:
        """Commit a batch that was written against an older version. One that lacks a column is refused."""
        if not self.prepared:
            return
        changes, batch = self.prepared.pop(self.rng.randrange(len(self.prepared)))
        try:
            commit_changes(self.table.context, changes)
        except Conflict as refused:
            if refused.kind != "schema_changed" or not self.added:
                raise
            return
        self.note(batch)

    def schema(self) -> pa.Schema:
        return pa.schema([*self.case.schema, *(pa.field(name, pa.int32()) for name in self.added)])

    def compact(self) -> None:
        self.table.compact(full=self.rng.random() < 0.3)

    def add_column(self) -> None:
        if len(self.added) < 1 and "first_value" not in self.case.schema.names:
            self.added.append("new")
            self.table.add_column("new", "INT")
            for rows in self.written.values():
                rows[:] = [(gone, {**row, "new": None}) for gone, row in rows]

    def expected(self) -> dict[int, Row]:
        result = {key: self.case.row_of(rows) for key, rows in self.written.items()}
        rows = {key: row for key, row in result.items() if row is not None}
        for key, row in rows.items():
            if self.added and len(self.written[key]) > 1 and self.case.options["merge-engine"] == "aggregation":
                rows[key] = {**row, "new": self.newest(self.written[key])}
        return rows

    def newest(self, rows: Rows) -> Any:
        """The added column has the default function."""
        if "aggregation.remove-record-on-delete" in self.case.options:
            last = max((number for number, (gone, _) in enumerate(rows) if gone), default=-1)
            rows = rows[last + 1 :]
        return Column("last_non_null_value").of([(gone, row["new"]) for gone, row in rows])

    def check(self) -> None:
        scan = self.table.scan()
        tiny = replace(scan.plan, window_bytes=64)
        ways = [
            [read_split_table(self.table.store, split, plan=scan.plan) for split in scan.splits()],
            [
                pa.Table.from_batches([batch])
                for split in scan.splits()
                for batch in read_split(self.table.store, split, plan=tiny, batch_rows=3)
            ],
        ]
        expected = {key: shown_row(row) for key, row in self.expected().items()}
        for tables in ways:
            rows = [row for table in tables for row in table.to_pylist()]
            assert len({row["id"] for row in rows}) == len(rows)
            assert {row["id"]: shown_row(row) for row in rows} == expected
        name = self.case.columns[-1][0].name
        narrow = [shown_row(row)[name] for row in self.table.read(columns=[name]).to_pylist()]
        assert sorted(narrow) == sorted(row[name] for row in expected.values())


def shown_row(row: Row) -> dict[str, str]:
    """The values of a row; the elements of a set in their order, of a bitmap as numbers."""
    return {name: shown(elements(name, value)) for name, value in row.items()}


def elements(name: str, value: Any) -> Any:
    """A set as its elements, ascending; anything else as it is."""
    if value is None or name not in ("collect_distinct", "rbm32"):
        return value
    return sorted(pyroaring.BitMap.deserialize(value) if name == "rbm32" else value)


def shown(value: Any) -> str:
    """Values that compare exactly: NaN equals itself, -0.0 differs from 0.0; maps in the order of their keys."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = sorted(value)
    return repr(value)


def test_no_function_is_left_out() -> None:
    """Each aggregate function has a column here, and so a dictionary that it is compared with."""
    assert set(map(function_of, EVERY)) == set(FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_every_engine_equals_rows_applied_one_by_one(name: str, seed: int) -> None:
    """Whatever batches, compactions and new columns come, a table is what a dictionary says."""
    world = World(CASES[name], f"{name}-{seed}")
    for _ in range(STEPS):
        steps = (world.write, world.commit_prepared, world.compact, world.add_column)
        world.rng.choices(steps, (6, 3, 4, 1))[0]()
        world.check()
    world.table.compact(full=True)
    world.check()
