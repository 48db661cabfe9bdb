"""What a table should hold, by DuckDB: the rows of each line of versions, and of every version that is kept.

Owns: `Line`, a branch or the main line; `Judge`, which runs a statement on the rows of a line. Rows are Arrow tables
whose columns are in the order of the line's columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa

from worlds.sql.columns import Column


@dataclass(frozen=True)
class Rows:
    """The rows of a version.

    Attributes:
        newest: what DELETE, UPDATE and MERGE see.
        visible: what reads see: in tables with a primary key and deletion vectors, what a compaction has seen.
        columns: when the version was made.
    """

    columns: tuple[Column, ...]
    newest: pa.Table
    visible: pa.Table

    def under(self, columns: Sequence[Column]) -> Rows:
        """The same rows as columns of another schema: by number, null where a column is new."""
        return Rows(tuple(columns), self._under(self.newest, columns), self._under(self.visible, columns))

    def _under(self, rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
        had = {column.number: column.name for column in self.columns}
        arrays = [
            rows[had[item.number]].cast(item.kind.arrow)
            if item.number in had
            else pa.nulls(rows.num_rows, item.kind.arrow)
            for item in columns
        ]
        return table_of(columns, arrays)


def table_of(columns: Sequence[Column], arrays: Sequence[Any]) -> pa.Table:
    """Return columns as a table."""
    return pa.table(list(arrays), schema=pa.schema([(column.name, column.kind.arrow) for column in columns]))


@dataclass
class Line:
    """Versions one after the other; each is remembered until it expires."""

    rows: Rows
    versions: dict[int, Rows] = field(default_factory=dict)
    times_ms: dict[int, int] = field(default_factory=dict)
    schema_changes: int = 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of today."""
        return self.rows.columns

    @property
    def latest_id(self) -> int:
        """The newest version; 0: none."""
        return max(self.versions, default=0)

    def copy(self) -> Line:
        """A line that goes its own way from here."""
        return replace(self, versions=dict(self.versions), times_ms=dict(self.times_ms))


class Judge:
    """DuckDB with nothing but the rows of one statement."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        self.connection.execute("SET timezone = 'UTC'")

    def close(self) -> None:
        """Release the memory."""
        self.connection.close()

    def changed(self, columns: Sequence[Column], rows: pa.Table, statements: Sequence[str], src: pa.Table) -> pa.Table:
        """Return the rows of the table `t` after some statements."""
        self._given(columns, rows, src)
        for statement in statements:
            self.connection.execute(statement)
        names = ", ".join(column.name for column in columns)
        result = self.connection.sql(f"SELECT {names} FROM t").to_arrow_table()
        return table_of(columns, [result[item.name].cast(item.kind.arrow) for item in columns])

    def asked(self, columns: Sequence[Column], rows: pa.Table, query: str, src: pa.Table) -> pa.Table:
        """Return the result of a query of the table `t`."""
        self._given(columns, rows, src)
        return self.connection.sql(query).to_arrow_table()

    def _given(self, columns: Sequence[Column], rows: pa.Table, src: pa.Table) -> None:
        definitions = ", ".join(f"{column.name} {column.kind.duck}" for column in columns)
        self.connection.execute(f"CREATE OR REPLACE TABLE t ({definitions})")
        for column in columns:
            # Without an index DuckDB's UPDATE keeps a value that equals the new one, so -0.0 would not become 0.0.
            if pa.types.is_floating(column.kind.arrow):
                self.connection.execute(f"CREATE INDEX {column.name}_index ON t (({column.name} IS NULL))")
        for name, arrow in (("given", rows), ("src", src)):
            self.connection.register(name, arrow)
        self.connection.execute("INSERT INTO t SELECT * FROM given")


def canonical(rows: pa.Table, *, zeros: bool = True) -> list[str]:
    """Return rows as sorted texts, in which NaN equals itself; not `zeros`: zeros of both signs are equal."""
    columns: list[list[Any]] = []
    for column in rows.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        columns.append([_canonical(value, zeros) for value in column.to_pylist()])
    return sorted(map(repr, zip(*columns, strict=True)))


def _canonical(value: Any, zeros: bool) -> Any:
    if isinstance(value, float) and not zeros:
        return value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        return {name: _canonical(member, zeros) for name, member in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted(value, key=repr)
    return value
