"""Upserts of a stream's batches into a primary-key table, for ``foreachBatch``.

Owns: `upsert_stream`. Invariant: a batch is committed under the query and its number, so it is committed once, however
often Spark runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, functions

from lakebed.errors import InvalidRequest
from lakebed.spark.dataframe.writing import require_keys, upsert
from lakebed.spark.plan.expression import exact_column
from lakebed.table.branch.earlier_commits import find_commit
from lakebed.table.changes.change_units import ROW_KIND_COLUMN
from lakebed.table.table import Table

_QUERY: str = "sql.streaming.queryId"
"""Spark's property with the query that runs in a thread."""
_GONE: str = "__lakebed_gone"


def upsert_stream(
    table: Table,
    *,
    application: str | None = None,
    deletes: str | None = None,
    order_by: str | Sequence[str] = (),
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that upserts each batch once, as one snapshot.

    Args:
        table: a table with a primary key.
        application: names the stream: no other stream into the table may have this name, and a query that begins with a
            new checkpoint needs a new one. None: the query's id in its checkpoint; not over Spark Connect.
        deletes, order_by: as `upsert`. Rows of a stream of changes say in their column ``_row_kind`` whether they
            delete.

    Raises:
        InvalidRequest: the table has no primary key. The function raises as `upsert`, and `InvalidRequest` if no query
            is known.

    Cost: for each batch 1 probe + 1 GET and the `upsert`; for a repeated batch, its computation only.
    """
    require_keys(table, "upsert into")

    def upsert_batch(df: DataFrame, batch_id: int) -> None:
        user = application or _query_of(df)
        if find_commit(table.context, user, batch_id) is not None:
            df.write.format("noop").mode("overwrite").save()  # the query's own state is of this batch only then
            return
        column = deletes
        if ROW_KIND_COLUMN in df.columns and table.refresh().field_by_name(ROW_KIND_COLUMN) is None:
            kind = exact_column(ROW_KIND_COLUMN)
            df = df.filter(kind != "-U").withColumn(_GONE, kind == functions.lit("-D")).drop(ROW_KIND_COLUMN)
            column = _GONE
        upsert(df, table, deletes=column, order_by=order_by, commit_user=user, commit_identifier=batch_id)

    return upsert_batch


def _query_of(df: DataFrame) -> str:
    try:
        query = df.sparkSession.sparkContext.getLocalProperty(_QUERY)
    except AttributeError as error:  # over Spark Connect
        raise _unknown() from error
    if not query:
        raise _unknown()
    return str(query)


def _unknown() -> InvalidRequest:
    return InvalidRequest(
        "upsert_stream cannot see which query runs: use it as writeStream.foreachBatch(upsert_stream(table)), and over "
        "Spark Connect give it application='a name that no other stream has'.",
        kind="no_application",
    )
