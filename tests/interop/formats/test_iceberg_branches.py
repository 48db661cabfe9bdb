"""Tables in branches of repositories for Iceberg's clients: what they read is what lakebed reads on the branch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed import Table
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.repository import check_repository
from lakebed.lsm.file_id import file_id_at
from lakebed.repo import Repository
from lakebed.repo.collect.why import why
from lakebed.repo.model.layout import name_ulid
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.transport.transport import context_of
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.table.branch.tags import Tags

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server without the S3 gateway, with a repository ``analytics`` and its branches ``main`` and ``etl``."""
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as made:
        made.site.repositories.create("analytics").create_branch("etl")
        yield made


@pytest.fixture
def analytics(running: Running) -> Repository:
    """The repository."""
    return running.site.repositories.repository("analytics")


@pytest.fixture
def catalog(running: Running) -> Iterator[Any]:
    """Pyiceberg with the server as its catalog."""
    token = f"{running.started.access_key}.{running.started.secret}"
    uri = f"{running.started.endpoint}/iceberg"
    opened = load_catalog("lake", type="rest", uri=uri, warehouse="lake", token=token)
    yield opened
    opened.close()


def rows_of(first: int, count: int) -> pa.Table:
    """Rows of consecutive ids on two days."""
    return pa.table({"id": range(first, first + count), "day": ["ab"[i % 2] for i in range(count)]}, ROWS)


def create(analytics: Repository, name: str = "orders", **details: Any) -> Table:
    """A table in the branch ``etl``."""
    return Table.create(analytics.branch("etl").store().sub(f"tables/{name}"), name=name, schema=ROWS, **details)


def reads(analytics: Repository, reference: str, name: str = "orders", version: int | None = None) -> list[Any]:
    """The rows that lakebed reads."""
    table = Table.open(analytics.ref(reference).store().sub(f"tables/{name}"), name=name)
    return sorted(table.read(version=version).select(["id", "day"]).to_pylist(), key=repr)


def theirs(catalog: Any, reference: str, name: str = "orders", **scan: Any) -> list[Any]:
    """The rows that pyiceberg reads."""
    read = catalog.load_table(f"analytics.{reference}.{name}").scan(**scan).to_arrow()
    return sorted(read.select(["id", "day"]).to_pylist(), key=repr)


def derived(analytics: Repository) -> set[str]:
    """What is kept for Iceberg's clients."""
    return {meta.path for meta in context_of(analytics).store.list("derived")}


def test_a_branch_a_tag_and_a_commit_are_read_as_lakebed_reads_them(analytics: Repository, catalog: Any) -> None:
    """Staged rows are read on the branch and nowhere else; a read stages nothing; every version is the same."""
    etl = analytics.branch("etl")
    table = create(analytics, partition_keys=["day"])
    table.append(rows_of(0, 6))
    first = etl.commit("a day of orders")
    analytics.create_tag("v1", ref="etl")
    table.append(rows_of(6, 4))
    before = [str(change) for change in etl.status()]
    loaded = catalog.load_table("analytics.etl.orders")
    assert len(loaded.snapshots()) == 2
    for snapshot in loaded.snapshots():
        number = int(snapshot.summary["lakebed.snapshot"])
        assert theirs(catalog, "etl", snapshot_id=number) == reads(analytics, "etl", version=number)
    assert theirs(catalog, "etl", row_filter="day == 'a'") == [
        row for row in reads(analytics, "etl") if row["day"] == "a"
    ]
    for reference in ("etl", "v1", first.id, "etl@"):
        assert theirs(catalog, reference) == reads(analytics, reference), reference
    assert len(theirs(catalog, "etl")) == 10
    assert len(theirs(catalog, "etl@")) == len(theirs(catalog, "v1")) == 6
    assert [str(change) for change in etl.status()] == before
    assert catalog.load_table(("analytics.etl", "orders")).metadata == loaded.metadata
    for missing in ("main", "none"):
        with pytest.raises(NoSuchTableError):
            catalog.load_table(f"analytics.{missing}.orders")


def test_deleted_rows_a_tag_and_a_branch_of_the_table(analytics: Repository, catalog: Any) -> None:
    """Deletion vectors, and tags and branches of the table itself, are shown as of a table in a database."""
    table = create(analytics, options={"deletion-vectors.enabled": "true"})
    table.append(rows_of(0, 20))
    table.create_tag("month-06")
    table.create_branch("fix", tag="month-06")
    table.delete("id < 5")
    fix = Table.open(table.store, name="orders", branch="fix")
    fix.append(rows_of(100, 2))
    loaded = catalog.load_table("analytics.etl.orders")
    assert set(loaded.refs()) == {"main", "month-06", "fix"}
    assert theirs(catalog, "etl") == reads(analytics, "etl")
    assert len(theirs(catalog, "etl")) == 15
    tagged = loaded.scan(snapshot_id=loaded.refs()["month-06"].snapshot_id).to_arrow()
    assert tagged.num_rows == 20
    fixed = loaded.scan(snapshot_id=loaded.refs()["fix"].snapshot_id).to_arrow()
    assert sorted(fixed.to_pylist(), key=repr) == sorted(fix.read().to_pylist(), key=repr)
    assert fixed.num_rows == 22


def test_lists(analytics: Repository, catalog: Any) -> None:
    """A repository is a namespace, and its branches are those below it."""
    create(analytics).append(rows_of(0, 1))
    assert catalog.list_namespaces() == [("analytics",), ("default",)]
    assert catalog.list_namespaces("analytics") == [("analytics", "etl"), ("analytics", "main")]
    assert catalog.list_tables(("analytics", "etl")) == [("analytics", "etl", "orders")]
    assert catalog.list_tables("analytics") == []
    assert catalog.table_exists("analytics.etl.orders")
    assert not catalog.table_exists("analytics.main.orders")
    assert catalog.load_namespace_properties("analytics.etl") == {}
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables(("analytics", "none"))


def test_a_client_with_an_old_view_reads_on_after_a_reset_and_new_ones_see_the_new_state(
    analytics: Repository, catalog: Any
) -> None:
    """A reset and other rows under the same numbers: no client reads a mixture, and the old view has its files."""
    etl = analytics.branch("etl")
    create(analytics).append(rows_of(0, 3))
    etl.commit("three")
    Table.open(etl.store().sub("tables/orders"), name="orders").append(rows_of(10, 3))
    old = catalog.load_table("analytics.etl.orders")
    before = reads(analytics, "etl")
    etl.reset()
    Table.open(etl.store().sub("tables/orders"), name="orders").append(rows_of(50, 5))
    assert theirs(catalog, "etl") == reads(analytics, "etl")
    assert len(theirs(catalog, "etl")) == 8
    assert sorted(old.scan().to_arrow().select(["id", "day"]).to_pylist(), key=repr) == before


def test_a_branch_that_changes_while_a_table_is_loaded(
    analytics: Repository, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded is of one moment: a commit and its tag between two looks are both seen, or neither."""
    table = create(analytics)
    table.append(rows_of(0, 3))
    list_all = Tags.list_all
    changes = iter([lambda: (table.append(rows_of(3, 3)), table.create_tag("late"))])

    def list_later(tags: Tags) -> Any:
        change = next(changes, None)
        if change is not None:
            change()
        return list_all(tags)

    monkeypatch.setattr(Tags, "list_all", list_later)
    loaded = catalog.load_table("analytics.etl.orders")
    assert next(changes, None) is None, "or nothing changed meanwhile"
    assert {name: reference.snapshot_id for name, reference in loaded.refs().items()} == {"main": 2, "late": 2}
    assert theirs(catalog, "etl") == reads(analytics, "etl")


def test_bytes_that_were_uploaded_again_are_named_where_they_are_now(analytics: Repository, catalog: Any) -> None:
    """An upload that was sent twice gives a file another place: who loads the table then does not get the old one."""
    table = create(analytics)
    table.append(rows_of(0, 3))

    def addresses() -> set[str]:
        return {task.file.file_path for task in catalog.load_table("analytics.etl.orders").scan().plan_files()}

    before = addresses()
    paths = [meta.path for meta in table.store.list() if meta.path.endswith(".parquet")]
    for path in paths:
        table.store.put(path, bytes(table.store.get(path)))
    assert before.isdisjoint(addresses())
    assert addresses() == {table.store.url(path) for path in paths}
    assert theirs(catalog, "etl") == reads(analytics, "etl")


def test_fsck_finds_what_is_damaged(analytics: Repository, catalog: Any) -> None:
    """With deep each object that was made for clients has the bytes that its name states, or is named."""
    create(analytics).append(rows_of(0, 3))
    theirs(catalog, "etl")
    context = context_of(analytics)

    def damage(*, deep: bool) -> list[str]:
        findings = Findings(CheckReport(url="", deep=deep), store="repository:analytics")
        check_repository(context, findings)
        return [finding.path for finding in findings.report.findings if finding.severity == "error"]

    assert damage(deep=True) == []
    path = min(derived(analytics))
    context.store.put(path, b"other bytes")
    assert damage(deep=True) == [path]
    assert damage(deep=False) == []


def test_what_is_made_is_used_again_and_goes_with_a_collection(analytics: Repository, catalog: Any) -> None:
    """The same state costs no object again; a collection deletes what is older than its grace; it is made anew then."""
    context = context_of(analytics)
    create(analytics).append(rows_of(0, 3))
    expected = theirs(catalog, "etl")
    made = derived(analytics)
    assert len(made) == 3  # a manifest, a list, the metadata
    assert theirs(catalog, "etl") == expected
    assert derived(analytics) == made
    for path in made:
        assert "made again" in why(context, path).sentence
        context.store.copy(path, path.replace(name_ulid(path), file_id_at(0)))
    analytics.collect()
    assert derived(analytics) == made  # the copies of 1970 are gone, what is young stays
    assert theirs(catalog, "etl") == expected
    analytics.collect(CollectionOptions(grace=timedelta(0)))
    assert derived(analytics) == set()
    assert theirs(catalog, "etl") == expected
