"""Random programs of Spark SQL on a table of a catalog, judged after every statement.

Owns: `SqlWorld`, which runs a statement in Spark and on the `Judge`, and compares: all rows by SQL and by Python, the
result of a random query, and the rows of older versions. One statement makes at most one snapshot.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.table.table import Table, branch_of
from worlds.sql.columns import KEY_KINDS, KINDS, Both, Column, Kind, random_condition
from worlds.sql.engines import Functions, added_kinds, random_function
from worlds.sql.state import Judge, Line, Rows, canonical, table_of

PARTITIONS: Final = ("a", "b", "it's", "a b/c", "ü")
NAME: Final = "lake.db.t"


@dataclass(frozen=True)
class Shape:
    """A kind of table."""

    properties: tuple[tuple[str, str], ...] = ()
    is_keyed: bool = False
    is_partitioned: bool = False
    is_grouped: bool = False
    """Whether some columns are a sequence group."""

    def has(self, name: str) -> bool:
        """Whether a property is true."""
        return dict(self.properties).get(name) == "true"

    @property
    def engine(self) -> str:
        """What becomes of rows of one key."""
        return dict(self.properties).get("merge-engine", "deduplicate")

    @property
    def deletes(self) -> bool:
        """Whether DELETE removes rows."""
        options = dict(self.properties)
        return self.engine == "deduplicate" or any(name.endswith("remove-record-on-delete") for name in options)

    @property
    def hides_new(self) -> bool:
        """Whether rows are visible after a compaction only."""
        return self.is_keyed and self.has("deletion-vectors.enabled") and not self.has("deletion-vectors.merge-on-read")


def _shape(
    properties: Mapping[str, str], *, keyed: bool = False, partitioned: bool = False, grouped: bool = False
) -> Shape:
    return Shape(tuple(properties.items()), keyed, partitioned, grouped)


_VECTORS: Final = {"deletion-vectors.enabled": "true"}
_PARTIAL: Final = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
_SUMS: Final = {"merge-engine": "aggregation", "aggregation.remove-record-on-delete": "true"}
_MERGED: Final = {"deletion-vectors.merge-on-read": "true", **_VECTORS}
SHAPES: Final[dict[str, Shape]] = {
    "append": _shape({}),
    "row groups": _shape({"file.block-size": "1 kb"}),
    "vectors": _shape(_VECTORS),
    "partitions": _shape({}, partitioned=True),
    "partitions with vectors": _shape(_VECTORS, partitioned=True),
    "buckets": _shape({"bucket": "3", "bucket-key": "k"}),
    "buckets with vectors": _shape({"bucket": "2", "bucket-key": "k", **_VECTORS}),
    "keys": _shape({"bucket": "2"}, keyed=True),
    "dynamic buckets": _shape({"dynamic-bucket.target-row-num": "3"}, keyed=True),
    "keys in partitions": _shape({"bucket": "2"}, keyed=True, partitioned=True),
    "keys with vectors": _shape({"bucket": "1", **_VECTORS}, keyed=True),
    "keys with vectors, merged": _shape({"bucket": "2", **_MERGED}, keyed=True, partitioned=True),
    "partial update": _shape({"bucket": "2", **_PARTIAL}, keyed=True),
    "partial update in partitions": _shape(
        {"bucket": "1", "ignore-delete": "true", "merge-engine": "partial-update"}, keyed=True, partitioned=True
    ),
    "partial update with vectors": _shape({"bucket": "1", **_VECTORS, **_PARTIAL}, keyed=True),
    "sequence group": _shape({"bucket": "2", "merge-engine": "partial-update"}, keyed=True, grouped=True),
    "aggregation": _shape({"bucket": "2", **_SUMS}, keyed=True),
    "aggregation in partitions": _shape({"bucket": "1", "merge-engine": "aggregation"}, keyed=True, partitioned=True),
    "aggregation with vectors, merged": _shape({"bucket": "1", **_MERGED, **_SUMS}, keyed=True),
    "aggregation in dynamic buckets": _shape({"dynamic-bucket.target-row-num": "3", **_SUMS}, keyed=True),
    "first row": _shape({"bucket": "1", "merge-engine": "first-row"}, keyed=True, partitioned=True),
    "first row, two buckets": _shape({"bucket": "2", "merge-engine": "first-row", "ignore-delete": "true"}, keyed=True),
}


@dataclass
class SqlWorld:
    """A table, and what it should hold."""

    session: SparkSession
    lake: Lake
    judge: Judge
    shape: Shape
    rng: random.Random
    lines: dict[str, Line] = field(default_factory=dict)
    """By branch; the main line is ``main``."""
    tags: dict[str, tuple[int, Rows]] = field(default_factory=dict)
    fork: tuple[int, int] = (0, 0)
    """The main line's version, and its count of changed schemas, when the branch was made or published last."""
    history: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    left: set[str] = field(default_factory=set)
    """Files of dropped branches and of versions that were rolled back: the next search of orphans deletes them."""
    functions: Functions = field(default_factory=Functions)
    _number: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        keys = [self.column("k", KINDS[rng.choice(KEY_KINDS) if self.shape.is_keyed else "BIGINT"])]
        if self.shape.is_partitioned:
            keys.append(self.column("p", KINDS["STRING"]))
        kinds = rng.sample(sorted(KINDS), rng.randint(3, 6))
        columns = [*keys, *(self.column(f"c{place}", KINDS[kind]) for place, kind in enumerate(kinds))]
        for name, kind, function in added_kinds(self.shape.engine, is_grouped=self.shape.is_grouped):
            columns.append(self.column(name, kind))
            self.functions.names[columns[-1].number] = function
        if self.shape.is_grouped:
            self.functions.sequence = next(item.number for item in columns if item.name == "s")
        elif self.shape.engine == "aggregation":
            for column in columns[len(keys) : len(keys) + len(kinds)]:
                self.functions.names[column.number] = random_function(rng, column.kind)
        empty = table_of(columns, [column.kind.array([]) for column in columns])
        self.lines["main"] = Line(Rows(tuple(columns), empty, empty))
        properties = {**dict(self.shape.properties), **self.functions.options(columns)}
        if self.shape.is_keyed:
            properties["primary-key"] = ",".join(self.keys)
        if rng.random() < 0.3:
            properties["metadata.stats-mode"] = rng.choice(("none", "counts", "full", "truncate(1)"))
        required = self.keys if self.shape.is_keyed else ()
        defined = (f"{item.name} {item.kind.spark}{' NOT NULL' * (item.name in required)}" for item in columns)
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        partitioned = "PARTITIONED BY (p) " if self.shape.is_partitioned else ""
        options = f"TBLPROPERTIES ({listed})" if listed else ""
        self.run(f"CREATE TABLE {NAME} ({', '.join(defined)}) {partitioned}{options}")

    # ---- parts

    def column(self, name: str, kind: Kind) -> Column:
        """A new column, with a number of its own."""
        self._number += 1
        return Column(self._number, name, kind)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that lay out the rows."""
        return ("k", "p") if self.shape.is_partitioned else ("k",)

    @property
    def main(self) -> Line:
        """The main line."""
        return self.lines["main"]

    def table(self, branch: str = "main") -> Table:
        """The table as Python opens it."""
        result = self.lake.table("db.t")
        return result if branch == "main" else branch_of(result, branch)

    def run(self, statement: str) -> pa.Table:
        """Run a statement in Spark."""
        self.history.append(statement)
        return self.session.sql(statement).toArrow()

    def random_rows(self, columns: Sequence[Column], *, unique: bool) -> pa.Table:
        """Rows for some columns; `unique`: no two of one key."""
        rng = self.rng
        rows: dict[Any, list[Any]] = {}
        for number in range(rng.choice((0, 1, 2, 5, 5, 12, 40))):
            values = []
            for column in columns:
                choices: tuple[Any, ...] = PARTITIONS if column.name == "p" else column.kind.values
                if column.name == "k" and column.kind.spark in ("INT", "BIGINT"):
                    choices = tuple(range(15))
                if not (self.shape.is_keyed and column.name in self.keys):
                    choices = (None, *choices)
                values.append(rng.choice(choices))
            key = tuple(value for item, value in zip(columns, values, strict=True) if item.name in self.keys)
            rows[key if unique else number] = values
        arrays = [column.kind.array([row[place] for row in rows.values()]) for place, column in enumerate(columns)]
        return table_of(columns, arrays)

    def give(self, columns: Sequence[Column]) -> pa.Table:
        """Make random rows the view `src`, with unique keys."""
        src = self.random_rows(columns, unique=True)
        self.session.createDataFrame(src).createOrReplaceTempView("src")
        self.history.append(f"-- src: {src.to_pylist()}")
        return src

    # ---- what a statement does

    def upserted(self, line: Line, src: pa.Table) -> pa.Table:
        """The rows of a line after rows of its columns were written."""
        columns = line.columns
        same = " AND ".join(f"t.{key} = src.{key}" for key in self.keys)
        insert = "INSERT INTO t SELECT * FROM src"
        statements = [insert]
        if self.shape.is_keyed and self.shape.engine == "first-row":
            statements = [f"{insert} ANTI JOIN t ON {same}"]
        elif self.shape.is_keyed and self.shape.engine != "deduplicate":
            values = ", ".join(
                f"src.{column.name}" if column.name in self.keys else self.functions.expression(column, columns)
                for column in columns
            )
            statements = [
                f"CREATE OR REPLACE TABLE u AS SELECT {values} FROM t JOIN src ON {same}",
                f"CREATE OR REPLACE TABLE v AS SELECT src.* FROM src ANTI JOIN t ON {same}",
                f"DELETE FROM t USING src WHERE {same}",
                "INSERT INTO t SELECT * FROM u",
                "INSERT INTO t SELECT * FROM v",
            ]
        elif self.shape.is_keyed:
            statements = [f"DELETE FROM t USING src WHERE {same}", insert]
        return self.judge.changed(columns, line.rows.newest, statements, src)

    def judged(self, line: Line, statement: str, src: pa.Table) -> pa.Table:
        """The rows of a line after a statement."""
        return self.judge.changed(line.columns, line.rows.newest, [statement], src)

    def settle(self, branch: str, newest: pa.Table, *, visible: pa.Table | None = None, most: int = 1) -> None:
        """Compare the line with what it should hold after a statement, and remember its new version.

        `most`: snapshots that the statement may have made.
        """
        line = self.lines[branch]
        shown = line.rows.visible if visible is None and self.shape.hides_new else visible
        line.rows = Rows(line.columns, newest, newest if shown is None else shown)
        result = self.table(branch).latest()
        found_id = 0 if result is None else result.id
        assert line.latest_id <= found_id <= line.latest_id + most, (line.latest_id, found_id)
        if result is not None and found_id > line.latest_id:
            line.versions[found_id] = line.rows
            line.times_ms[found_id] = result.time_ms
        self.check(branch)

    # ---- comparing

    def name_of(self, branch: str) -> str:
        """The table's name in SQL."""
        return NAME if branch == "main" else f"lake.db.`t$branch_{branch}`"

    def same(self, found: pa.Table, expected: pa.Table, *, zeros: bool = True) -> None:
        """Compare rows, in any order."""
        left, right = canonical(found, zeros=zeros), canonical(expected, zeros=zeros)
        if left != right:
            missing, more = Counter(right) - Counter(left), Counter(left) - Counter(right)
            raise AssertionError(f"missing {list(missing.elements())[:3]}, not expected {list(more.elements())[:3]}")

    def check(self, branch: str) -> None:
        """The newest rows, by SQL and by Python, and a query."""
        line = self.lines[branch]
        expected = line.rows.visible
        result = self.run(f"SELECT * FROM {self.name_of(branch)}")
        assert result.column_names == [column.name for column in line.columns]
        self.same(result, expected)
        scan = self.table(branch).scan()
        self.same(scan.to_arrow(), expected)
        assert scan.count() == expected.num_rows
        self.query(branch)

    def query(self, branch: str) -> None:
        """A random query of the newest rows."""
        line, rng = self.lines[branch], self.rng
        rows, name = line.rows.visible, self.name_of(branch)
        names = ", ".join(rng.sample([column.name for column in line.columns], rng.randint(1, len(line.columns))))
        where = random_condition(rng, line.columns)
        src = self.random_rows(line.columns, unique=True)
        dice = rng.random()
        if dice < 0.4:
            self._asked(line, name, src, Both(*(f"SELECT {names} FROM t WHERE {item}" for item in where)))
        elif dice < 0.6:
            self._asked(line, name, src, self._aggregate(line, where))
        elif dice < 0.75:
            self.session.createDataFrame(src).createOrReplaceTempView("src")
            where = random_condition(rng, line.columns, prefix="t.", subqueries=True)
            on = random_condition(rng, line.columns[:1], prefix="src.")
            joined = rng.choice(("JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
            forms = Both(*(f"SELECT t.* FROM t {joined} src ON t.k = src.k AND {item} WHERE " for item in on))
            if rng.random() < 0.5:
                forms = Both(*["SELECT t.* FROM t WHERE "] * 2)
            duck = forms.duck.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI") + where.duck
            self._asked(line, name, src, Both(forms.spark + where.spark, duck))
        elif dice < 0.9:
            group = "p" if self.shape.is_partitioned else "k"
            grouped = f"SELECT {group}, count(*) AS n, count(k) AS m FROM t GROUP BY {group}"
            self._asked(line, name, src, Both(grouped, grouped))
        else:
            limit = rng.choice((0, 1, 3, 10))
            result = self.run(f"SELECT {names} FROM {name} LIMIT {limit}")
            assert result.num_rows == min(limit, rows.num_rows)
            assert not Counter(canonical(result)) - Counter(canonical(rows.select(result.column_names)))

    def _aggregate(self, line: Line, where: Both) -> Both:
        rng = self.rng
        parts = ["count(*) AS n"]
        for place in range(rng.randint(1, 4)):
            column = rng.choice(line.columns)
            function = "count" if column.kind.is_nested else rng.choice(("count", "min", "max"))
            parts.append(f"{function}({column.name}) AS a{place}")
        asked = f"SELECT {', '.join(parts)} FROM t"
        if rng.random() < 0.6:
            return Both(asked, asked)
        return Both(*(f"{asked} WHERE {item}" for item in where))

    def _asked(self, line: Line, name: str, src: pa.Table, query: Both) -> None:
        result = self.run(query.spark.replace("FROM t", f"FROM {name} t", 1))
        expected = self.judge.asked(line.columns, line.rows.visible, query.duck, src)
        assert result.num_columns == expected.num_columns
        self.same(result, expected.cast(result.schema), zeros="min(" not in query.duck and "max(" not in query.duck)

    def check_files(self, *, drops: bool = False) -> None:
        """Check the lake: all that versions need is there, and no statement left a file that no version names.

        `drops`: the last statement dropped versions and leaves their files.
        """
        findings = check_lake(self.lake).findings
        orphans = {finding.path for finding in findings if finding.kind == "orphan"}
        if drops:
            self.left |= orphans
        wrong = [finding for finding in findings if finding.kind != "orphan" or finding.path not in self.left]
        assert not wrong, wrong

    def travel(self) -> None:
        """Every version that is kept, by Python, and some by SQL."""
        for branch, line in self.lines.items():
            table = self.table(branch)
            assert [snapshot.id for snapshot in table.snapshots()] == sorted(line.versions)
            for version, rows in line.versions.items():
                self.same(table.scan(version=version).to_arrow(), rows.visible)
        for name, (_, rows) in self.tags.items():
            self.same(self.table().scan(version=name).to_arrow(), rows.visible)
        branch = self.rng.choice(sorted(self.lines))
        line = self.lines[branch]
        targets: list[tuple[str, Rows]] = [(f"VERSION AS OF {item}", rows) for item, rows in line.versions.items()]
        if branch == "main":
            targets += [(f"VERSION AS OF '{name}'", rows) for name, (_, rows) in self.tags.items()]
            targets += [(f"VERSION AS OF '{name}'", self.lines[name].versions[self.lines[name].latest_id])
                for name in self.lines if name != "main" and self.lines[name].versions]  # fmt: skip
        for time_ms in set(line.times_ms.values()):
            newest = max(item for item, at in line.times_ms.items() if at <= time_ms)
            targets.append((f"TIMESTAMP AS OF timestamp_millis({time_ms})", line.versions[newest]))
        for clause, rows in self.rng.sample(targets, min(2, len(targets))):
            result = self.run(f"SELECT * FROM {self.name_of(branch)} {clause}")
            self.same(result, rows.visible)


def refused(world: SqlWorld, statement: str, *messages: str) -> str | None:
    """Run a statement that may be refused; return the sentence, which has one of some texts, or None."""
    try:
        world.run(statement)
    except PySparkException as error:
        if not any(message in str(error) for message in messages):
            raise
        return str(error)
    return None
