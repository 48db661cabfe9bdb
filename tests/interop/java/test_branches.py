"""The Java implementation on tables in branches of repositories, through the catalog and the S3 gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed.table.table import Table

if TYPE_CHECKING:
    from conftest import Java
    from lakebed.server.lifecycle import Running

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("x", pa.float64())])
ORDERS = "analytics.etl.orders"


def rows_of(first: int, count: int, x: float) -> pa.Table:
    """Rows of consecutive ids on two days."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "day": [f"d{i % 2}" for i in ids], "x": [x] * count}, SCHEMA)


@pytest.mark.long
@pytest.mark.parametrize(("keys", "options"), [(["id", "day"], {"bucket": "2"}), ([], {})])
def test_java_commits_to_a_branch(
    java_in_branches: tuple[Java, Running], keys: list[str], options: dict[str, str]
) -> None:
    """Java creates, writes, tags and compacts by turns with lakebed; a merge publishes, a reset takes back."""
    java, running = java_in_branches
    analytics = running.site.repositories.repository("analytics")
    etl, main = analytics.branch("etl"), analytics.branch("main")
    java.create(ORDERS, SCHEMA, primary_keys=keys, partition_keys=["day"], options=options)

    def ours() -> Table:
        return Table.open(etl.store().sub("tables/orders"), name="orders")

    for number in range(4):
        rows = rows_of(number * (5 if keys else 10), 10, float(number))
        if number % 2:
            ours().upsert(rows) if keys else ours().append(rows)
        else:
            java.write(ORDERS, rows)
        if keys:
            java.call("compact", ORDERS)
        assert java.exact(java.read(ORDERS)) == java.exact(ours().read())
    expected = java.exact(ours().read())
    assert len(expected) == (25 if keys else 40)
    java.call("create_tag", ORDERS, name="one")
    etl.commit("orders")
    main.merge("etl")
    assert java.exact(java.read("analytics.main.orders")) == expected
    java.write(ORDERS, rows_of(1_000, 2, 9.0))
    etl.reset()
    assert java.exact(java.read(ORDERS)) == expected
    assert java.exact(java.read(ORDERS, options={"scan.tag-name": "one"})) == expected
    analytics.create_tag("monday")
    with pytest.raises(Exception, match="monday"):
        java.write("analytics.monday.orders", rows_of(2_000, 1, 9.0))
    assert java.exact(java.read("analytics.monday.orders")) == expected
