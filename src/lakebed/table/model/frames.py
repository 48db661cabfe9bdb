"""Conversion of rows from and to other libraries: pandas, polars, DuckDB, and every object with an Arrow stream.

Owns: `as_arrow`, and the conversions of `Scan.to_pandas`, `to_polars` and `to_duckdb`. Invariants: none of these
libraries is required, and none is imported before it is used. Rows are converted as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection

ArrowRows = pa.Table | pa.RecordBatch | pa.RecordBatchReader


class ArrowStream(Protocol):
    """An object that exports rows as an Arrow C stream: a pandas or polars DataFrame, a DuckDB relation, and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The stream, as a capsule."""


def as_arrow(rows: Any, *, like: pa.Schema | None = None) -> Any:
    """Convert rows to an Arrow Table, RecordBatch or RecordBatchReader; return one of these unchanged.

    Args:
        rows: also a pandas or polars DataFrame, a LazyFrame, a DuckDB relation, or any other object with
            ``__arrow_c_stream__``. Named levels of a pandas index become columns.
        like: the target columns. Integers that pandas stores as floats, because some are missing, become integers.

    Raises `InvalidRequest`: rows of another kind, or values without an Arrow type. Cost: a DataFrame is already in
    memory; other streams are read once, while they are written.
    """
    if isinstance(rows, ArrowRows):
        return rows
    try:
        if _is_of(rows, "pandas", "DataFrame"):
            return _of_pandas(rows, like)
        if _is_of(rows, "polars", "LazyFrame"):
            rows = rows.collect()
        if _is_of(rows, "polars", "DataFrame"):
            return pa.table(rows)
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
    except (pa.ArrowException, TypeError, ValueError) as wrong:
        raise InvalidRequest(
            f"The {_kind_of(rows)} cannot be converted to columns: {str(wrong).partition(chr(10))[0].rstrip('.')}.",
            kind="invalid_rows",
        ) from wrong
    hint = (
        " Write it with the verbs of its engine, or toArrow() it when it is small." if hasattr(rows, "toArrow") else ""
    )
    raise InvalidRequest(
        "Rows must be a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas or polars, a relation "
        f"of DuckDB, or another object with __arrow_c_stream__, not {_kind_of(rows)}.{hint}",
        kind="invalid_rows",
    )


def into_pandas(rows: pa.Table) -> pd.DataFrame:
    """Rows as a pandas DataFrame.

    Raises `InvalidRequest`: pandas is not installed, or a date is outside the years that Python's dates have.
    """
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError as missing:
        raise _not_installed("pandas") from missing
    try:
        return rows.to_pandas()
    except ValueError as beyond:
        if isinstance(beyond, pa.ArrowException) or "year" not in str(beyond):
            raise
        raise InvalidRequest(
            "Some of the rows have a date outside of the years 1 to 9999, which pandas takes as Python's dates: read() "
            "the rows as Arrow, where to_pandas(date_as_object=False) has such dates, or leave these rows out.",
            kind="value_out_of_range",
        ) from beyond


def into_polars(rows: pa.Table) -> pl.DataFrame:
    """Rows as a polars DataFrame. Raises `InvalidRequest` when polars is not installed."""
    try:
        import polars as pl
    except ModuleNotFoundError as missing:
        raise _not_installed("polars") from missing
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def into_duckdb(rows: pa.Table, name: str, connection: DuckDBPyConnection | None) -> DuckDBPyConnection:
    """Rows as a view of this name in a DuckDB connection, by default a new one in memory. Returns the connection.

    Raises `InvalidRequest`: DuckDB is not installed, or it cannot have such a view (``invalid_view``).
    """
    if connection is None:
        try:
            import duckdb
        except ModuleNotFoundError as missing:
            raise _not_installed("duckdb") from missing
        connection = duckdb.connect()
    if not rows.num_columns or not name:
        noun = "name" if rows.num_columns else "column"
        raise InvalidRequest(f"A view in DuckDB needs a {noun}, and this one has none: give one.", kind="invalid_view")
    try:
        name.encode()
    except UnicodeEncodeError as half:
        raise InvalidRequest(
            f"A view in DuckDB cannot be called {name!r}, which has half a character: choose another name.",
            kind="invalid_view",
        ) from half
    connection.register(name, rows)
    return connection


def _of_pandas(frame: Any, like: pa.Schema | None) -> pa.Table:
    index_names = [name for name in frame.index.names if name is not None]
    if index_names:
        frame = frame.reset_index(level=index_names)
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    column_types = {} if like is None else {field.name: field.type for field in like}
    for position, field in enumerate(schema):
        kind = column_types.get(field.name)
        if kind is not None and pa.types.is_floating(field.type) and pa.types.is_integer(kind):
            schema = schema.set(position, field.with_type(kind))
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)


def _is_of(value: Any, library: str, name: str) -> bool:
    """Whether a value is an instance of a library's class, without importing the library."""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == library for kind in type(value).__mro__)


def _kind_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def _not_installed(library: str) -> InvalidRequest:
    return InvalidRequest(
        f"{library} is not installed: pip install {library}, or read() the rows as Arrow.", kind="not_installed"
    )
