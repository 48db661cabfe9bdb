"""Tables shared with the real clients of the format, in both directions.

Every test runs the unmodified clients from their own environment on the same folder as lakebed.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import Lake, Table
from lakebed.lake.imports import import_table
from lakebed.objects import open_store
from lakebed.table.imports import ImportOptions

if TYPE_CHECKING:
    from conftest import Peers

PK = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("v", pa.float64()), ("s", pa.string())])
READERS = ("pypaimon", "pypaimon-native")
DAY = datetime.date(2013, 1, 1)


def rows_of(first: int, count: int, *, v: float = 0.5) -> pa.Table:
    """`count` rows with ids from `first`; every seventh string and fifth number is null, strings short and long."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array([None if i % 5 == 0 else i for i in ids], pa.int32()),
            "v": pa.array([v] * count, pa.float64()),
            "s": pa.array([None if i % 7 == 0 else f"row number {i}" if i % 2 else f"r{i}" for i in ids]),
        },
        schema=PK,
    )


def all_types(count: int = 50) -> pa.Table:
    """Every primitive type, each column with nulls in every third row but the key."""

    def column(make: Callable[[int], object], type_: pa.DataType) -> pa.Array:
        return pa.array([None if i % 3 == 0 else make(i) for i in range(count)], type_)

    start = datetime.datetime(2013, 1, 1, 12, 30, 15, 123456)
    columns = {
        "id": pa.array(range(count), pa.int64()),
        "c_boolean": column(lambda i: i % 2 == 0, pa.bool_()),
        "c_tinyint": column(lambda i: i - 25, pa.int8()),
        "c_smallint": column(lambda i: i * 100 - 2500, pa.int16()),
        "c_int": column(lambda i: i * 100_000 - 2_500_000, pa.int32()),
        "c_bigint": column(lambda i: i * 10**12 - 10**13, pa.int64()),
        "c_float": column(lambda i: i / 4, pa.float32()),
        "c_double": column(lambda i: -i / 3, pa.float64()),
        "c_decimal": column(lambda i: decimal.Decimal(i * 12345 - 99).scaleb(-2), pa.decimal128(10, 2)),
        "c_decimal_wide": column(lambda i: decimal.Decimal(i * 10**20 + 7).scaleb(-5), pa.decimal128(30, 5)),
        "c_string": column(lambda i: "é" * (i % 12), pa.string()),
        "c_bytes": column(lambda i: bytes(range(i % 16)), pa.binary()),
        "c_date": column(lambda i: DAY + datetime.timedelta(days=i * 37), pa.date32()),
        "c_timestamp_ms": column(
            lambda i: start.replace(microsecond=123000) + datetime.timedelta(hours=i), pa.timestamp("ms")
        ),
        "c_timestamp_us": column(lambda i: start + datetime.timedelta(seconds=i), pa.timestamp("us")),
        "c_timestamp_ltz": column(lambda i: start.replace(tzinfo=datetime.UTC), pa.timestamp("us", tz="UTC")),
    }
    table = pa.table(columns)
    return table.cast(pa.schema([field.with_nullable(field.name != "id") for field in table.schema]))


def canonical(table: pa.Table) -> list[dict[str, object]]:
    """Rows as Python values in the order of `id`, so that physical types (large strings, ...) do not matter."""
    return table.sort_by("id").to_pylist()


def assert_same(left: pa.Table, right: pa.Table) -> None:
    """The same rows, in any order."""
    assert left.column_names == right.column_names
    assert canonical(left) == canonical(right)


@pytest.fixture
def lake(peers: Peers) -> Lake:
    """The warehouse as a lake."""
    return lakebed.open(peers.warehouse)


def theirs(peers: Peers, name: str) -> Table:
    """A table made by another client, opened by lakebed."""
    return lakebed.open(peers.warehouse).table(name)


def pk_table(lake: Lake, name: str = "pk") -> Table:
    """An empty primary-key table of two buckets."""
    return lake.create_table(name, PK, primary_keys=("id",), options={"bucket": "2"})


class TestOursReadByThem:
    """What lakebed wrote, the real clients read exactly."""

    @pytest.mark.parametrize("client", READERS)
    @pytest.mark.parametrize("keys", [(), ("id",)], ids=["append", "primary-key"])
    def test_all_types(self, lake: Lake, peers: Peers, client: str, keys: tuple[str, ...]) -> None:
        """Every primitive type with nulls, in both kinds of table."""
        rows = all_types()
        lake.create_table("t", rows.schema, primary_keys=keys, options={"bucket": "2"} if keys else {}).write(rows)
        assert_same(peers.read("default.t", client=client), rows)

    def test_all_types_by_sql(self, lake: Lake, peers: Peers) -> None:
        """The Rust client's SQL sees the same values."""
        rows = all_types()
        lake.create_table("t", rows.schema, primary_keys=("id",), options={"bucket": "2"}).write(rows)
        assert_same(peers.sql('select * from paimon."default".t'), rows)

    @pytest.mark.parametrize("client", READERS)
    def test_partitions_and_buckets(self, lake: Lake, peers: Peers, client: str) -> None:
        """Partitioned primary-key tables with several buckets, upserted twice."""
        schema = PK.append(pa.field("day", pa.date32(), nullable=False)).append(
            pa.field("region", pa.string(), nullable=False)
        )
        table = lake.create_table(
            "t", schema, primary_keys=("id", "day", "region"), partition_keys=("day", "region"), options={"bucket": "3"}
        )

        def batch(first: int, count: int, v: float) -> pa.Table:
            base = rows_of(first, count, v=v)
            days = pa.array([DAY + datetime.timedelta(days=i % 3) for i in range(first, first + count)])
            regions = pa.array(
                ["north" if i % 2 else "a longer name, with / and =" for i in range(first, first + count)]
            )
            return base.append_column(schema.field("day"), days).append_column(schema.field("region"), regions)

        table.upsert(batch(0, 200, 0.0))
        table.upsert(batch(100, 200, 1.0))
        got = peers.read("default.t", client=client)
        assert got.num_rows == 300
        assert pc.sum(got["v"]).as_py() == 200
        assert_same(got, table.read())

    @pytest.mark.parametrize("client", READERS)
    def test_upserts_and_deletes(self, lake: Lake, peers: Peers, client: str) -> None:
        """Deleted keys stay deleted before and after compaction."""
        table = pk_table(lake)
        table.upsert(rows_of(0, 100))
        table.upsert(rows_of(50, 100, v=2.0))
        table.delete(keys=pa.table({"id": pa.array([3, 60, 149])}))
        assert_same(peers.read("default.pk", client=client), table.read())
        assert peers.read("default.pk", client=client).num_rows == 147
        table.compact(full=True)
        assert_same(peers.read("default.pk", client=client), table.read())

    @pytest.mark.parametrize("client", READERS)
    def test_schema_changes(self, lake: Lake, peers: Peers, client: str) -> None:
        """Added, renamed, widened and dropped columns, with files of all ages."""
        table = pk_table(lake)
        table.upsert(rows_of(0, 20))
        table.add_column("extra", "STRING")
        table.rename_column("v", "value")
        table.widen_column("a", "BIGINT")
        table = lake.table("pk")
        newer = rows_of(10, 20).rename_columns(["id", "a", "value", "s"]).append_column("extra", pa.array(["x"] * 20))
        table.upsert(newer.cast(table.arrow_schema))
        assert_same(peers.read("default.pk", client=client), table.read())
        table.drop_column("s")
        assert_same(peers.read("default.pk", client=client), lake.table("pk").read())

    @pytest.mark.parametrize("client", READERS)
    def test_tags_and_snapshots(self, lake: Lake, peers: Peers, client: str) -> None:
        """Time travel by tag, by snapshot id and to a tag whose snapshot has expired."""
        table = pk_table(lake)
        table.upsert(rows_of(0, 10))
        table.create_tag("first")
        for number in range(1, 6):
            table.upsert(rows_of(number * 10, 10))
        assert peers.read("default.pk", client=client, **{"scan.tag-name": "first"}).num_rows == 10
        assert peers.read("default.pk", client=client, **{"scan.snapshot-id": "3"}).num_rows == 30
        table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
        assert peers.call("list_tags", table="default.pk") == ["first"]
        assert_same(peers.read("default.pk", client=client, **{"scan.tag-name": "first"}), rows_of(0, 10))
        assert_same(peers.read("default.pk", client=client), table.read())

    def test_tag_with_lifetime(self, lake: Lake, peers: Peers) -> None:
        """The optional fields of a tag file do not disturb them."""
        table = pk_table(lake)
        table.upsert(rows_of(0, 10))
        table.create_tag("kept", lifetime_ms=3_600_000)
        assert peers.read("default.pk", **{"scan.tag-name": "kept"}).num_rows == 10
        assert peers.sql("select * from paimon.\"default\".pk VERSION AS OF 'kept'").num_rows == 10
        assert peers.sql('select tag_name from paimon."default"."pk$tags"')["tag_name"].to_pylist() == ["kept"]

    @pytest.mark.parametrize("client", READERS)
    def test_rollback_leaves_a_gap(self, lake: Lake, peers: Peers, client: str) -> None:
        """After a rollback ids have a gap; clients read on and write on."""
        table = pk_table(lake)
        for number in range(5):
            table.upsert(rows_of(number * 10, 10))
        table.rollback_to(2)
        assert_same(peers.read("default.pk", client=client), rows_of(0, 20))
        peers.write("default.pk", rows_of(100, 10), client=client)
        assert lake.table("pk").read().num_rows == 30
        table.rollback_to_as_latest(1)
        assert_same(peers.read("default.pk", client=client), rows_of(0, 10))

    def test_append_overwrite(self, lake: Lake, peers: Peers) -> None:
        """An overwritten partition reads the same on both sides."""
        schema = PK.append(pa.field("p", pa.int32()))
        table = lake.create_table("t", schema, partition_keys=("p",))

        def with_p(rows: pa.Table, p: int) -> pa.Table:
            return rows.append_column(schema.field("p"), pa.array([p] * rows.num_rows, pa.int32()))

        table.append(pa.concat_tables([with_p(rows_of(0, 10), 1), with_p(rows_of(10, 10), 2)]))
        table.overwrite(with_p(rows_of(50, 5), 2), partition={"p": 2})
        got = peers.read("default.t")
        assert sorted(got["id"].to_pylist()) == [*range(10), *range(50, 55)]


class TestTheirsReadByUs:
    """What the real clients wrote, lakebed reads, changes, tags and expires; they read on."""

    @pytest.mark.parametrize("client", READERS)
    @pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "primary-key"])
    def test_all_types(self, peers: Peers, client: str, keys: list[str]) -> None:
        """Every primitive type with nulls, then an upsert or append of ours on top, read by both."""
        rows = all_types()
        options = {"bucket": "2"} if keys else {}
        peers.call("create", table="d.t", path=peers.send(rows), primary_keys=keys, options=options)
        peers.write("d.t", rows, client=client)
        table = theirs(peers, "d.t")
        assert_same(table.read(), rows)
        table.write(rows.slice(10, 10))
        assert table.read().num_rows == (50 if keys else 60)
        assert_same(peers.read("d.t", client=client), table.read())

    @pytest.mark.parametrize("client", READERS)
    def test_partitions(self, peers: Peers, client: str) -> None:
        """Their partitions and buckets are ours: an upsert of ours replaces their rows."""
        schema = PK.append(pa.field("p", pa.string(), nullable=False))

        def with_p(rows: pa.Table) -> pa.Table:
            return rows.append_column(schema.field("p"), pa.array([f"part {i % 3}" for i in rows["id"].to_pylist()]))

        rows = with_p(rows_of(0, 100))
        peers.call(
            "create",
            table="d.t",
            path=peers.send(rows),
            primary_keys=["id", "p"],
            partition_keys=["p"],
            options={"bucket": "4"},
        )
        peers.write("d.t", rows, client=client)
        table = theirs(peers, "d.t")
        table.upsert(with_p(rows_of(20, 50, v=9.0)))
        got = peers.read("d.t", client=client)
        assert got.num_rows == 100
        assert pc.sum(pc.equal(got["v"], 9.0)).as_py() == 50
        assert_same(got, table.read())
        assert_same(table.read(where="p = 'part 1'"), got.filter(pc.equal(got["p"], "part 1")))

    def test_their_schema_changes(self, peers: Peers) -> None:
        """Columns that they add and rename are followed by id."""
        peers.call("create", table="d.t", path=peers.send(rows_of(0, 1)), primary_keys=["id"], options={"bucket": "1"})
        peers.write("d.t", rows_of(0, 10))
        peers.call("rename_column", table="d.t", name="v", new_name="value")
        peers.call("add_column", table="d.t", name="extra", type="BIGINT")
        table = theirs(peers, "d.t")
        assert table.read().column_names == ["id", "a", "value", "s", "extra"]
        assert table.read()["value"].to_pylist() == [0.5] * 10
        newer = (
            rows_of(5, 10)
            .rename_columns(["id", "a", "value", "s"])
            .append_column("extra", pa.array(range(10), pa.int64()))
        )
        table.upsert(newer)
        assert_same(peers.read("d.t"), table.read())

    def test_their_tags(self, peers: Peers) -> None:
        """Tags of either side are listed, read and deleted by the other."""
        peers.call("create", table="d.t", path=peers.send(rows_of(0, 1)), primary_keys=["id"], options={"bucket": "1"})
        peers.write("d.t", rows_of(0, 10))
        peers.call("create_tag", table="d.t", name="theirs")
        table = theirs(peers, "d.t")
        table.create_tag("ours")
        table.upsert(rows_of(10, 10))
        assert [tag.name for tag in table.tags()] == ["ours", "theirs"]
        assert table.read(version="theirs").num_rows == 10
        assert peers.call("list_tags", table="d.t") == ["ours", "theirs"]
        assert peers.read("d.t", **{"scan.tag-name": "ours"}).num_rows == 10
        table.delete_tag("theirs")
        assert peers.call("delete_tag", table="d.t", name="ours") is True
        assert table.tags() == []

    @pytest.mark.parametrize("client", READERS)
    def test_a_key_twice_in_one_batch(self, peers: Peers, client: str) -> None:
        """The last row of a key counts, within their batch and against rows they wrote before."""
        peers.call("create", table="d.t", path=peers.send(rows_of(0, 1)), primary_keys=["id"], options={"bucket": "1"})
        peers.write("d.t", rows_of(0, 10), client=client)
        twice = pa.concat_tables([rows_of(5, 10, v=1.0), rows_of(0, 8, v=2.0), rows_of(5, 1, v=3.0)])
        peers.write("d.t", twice, client=client)
        table = theirs(peers, "d.t")
        assert_same(table.read(), peers.read("d.t", client=client))
        values = dict(zip(*(table.read()[name].to_pylist() for name in ("id", "v")), strict=True))
        assert values == {**dict.fromkeys(range(5, 15), 1.0), **dict.fromkeys(range(8), 2.0), 5: 3.0}

    @pytest.mark.parametrize("client", READERS)
    def test_old_style_table_tagged_and_expired(self, peers: Peers, client: str) -> None:
        """A table without commit snapshot ids: tags survive expiry on both sides, and a deleted tag's files go."""
        peers.call("create", table="d.t", path=peers.send(rows_of(0, 1)), primary_keys=["id"], options={"bucket": "1"})
        for number in range(4):
            peers.write("d.t", rows_of(0, 20, v=float(number)), client=client)
            if number == 1:
                peers.call("create_tag", table="d.t", name="kept")
        table = theirs(peers, "d.t")
        before = table.read(version="kept")
        table.compact(full=True)
        table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
        assert_same(table.read(version="kept"), before)
        assert_same(peers.read("d.t", client=client, **{"scan.tag-name": "kept"}), before)
        assert_same(peers.read("d.t", client=client), table.read())
        pin = files_on_disk(table)
        report = table.delete_tag("kept")
        assert report.deleted_count > 0
        assert len(files_on_disk(table)) < len(pin)
        assert files_on_disk(table) == set(table.system("files")["file_path"].to_pylist())

    def test_old_style_loses_nothing_naively_needed(self, peers: Peers) -> None:
        """Files that died between two tags go, files that a tag needs stay, though no entry says when they came."""
        peers.call("create", table="d.t", path=peers.send(rows_of(0, 1)), options={})
        peers.write("d.t", rows_of(0, 10))
        peers.call("create_tag", table="d.t", name="a")
        peers.write("d.t", rows_of(10, 10), overwrite={})
        peers.write("d.t", rows_of(20, 10), overwrite={})
        peers.call("create_tag", table="d.t", name="b")
        peers.write("d.t", rows_of(30, 10), overwrite={})
        table = theirs(peers, "d.t")
        table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
        assert_same(table.read(version="a"), rows_of(0, 10))
        assert_same(table.read(version="b"), rows_of(20, 10))
        assert len(files_on_disk(table)) == 3


class TestAlternating:
    """Both sides commit to one table in turn."""

    @pytest.mark.parametrize("client", READERS)
    def test_commits(self, lake: Lake, peers: Peers, client: str) -> None:
        """Twenty commits in turn, with tags and an expiry of ours between, lose and invent nothing."""
        table = pk_table(lake)
        expected: dict[int, float] = {}
        tagged: dict[str, dict[int, float]] = {}
        for number in range(20):
            rows = rows_of(number * 7, 30, v=float(number))
            if number % 2:
                peers.write("default.pk", rows, client=client)
            else:
                table.upsert(rows)
            expected |= dict.fromkeys(range(number * 7, number * 7 + 30), float(number))
            if number % 5 == 4:
                table.create_tag(f"t{number}")
                tagged[f"t{number}"] = dict(expected)
            if number == 12:
                table.compact(full=True)
            if number == 15:
                table.expire(retain_max=2, retain_min=1, older_than_ms=2**60)
        for got in (table.read(), peers.read("default.pk", client=client)):
            assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == expected
        for name, state in tagged.items():
            for got in (table.read(version=name), peers.read("default.pk", client=client, **{"scan.tag-name": name})):
                assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == state

    def test_append_commits(self, lake: Lake, peers: Peers) -> None:
        """Append tables as well, and counts from metadata stay right."""
        table = lake.create_table("log", PK)
        for number in range(10):
            rows = rows_of(number * 10, 10)
            if number % 2:
                peers.write("default.log", rows)
            else:
                table.append(rows)
        assert table.scan().count() == 100
        assert_same(peers.read("default.log"), table.read())

    def test_their_rollback(self, lake: Lake, peers: Peers) -> None:
        """They roll back to a tag of ours; we read and write on."""
        table = pk_table(lake)
        table.upsert(rows_of(0, 10))
        table.create_tag("good")
        table.upsert(rows_of(10, 10))
        peers.call("rollback_to", table="default.pk", target="good")
        assert_same(lake.table("pk").read(), rows_of(0, 10))
        table.upsert(rows_of(20, 5))
        assert_same(peers.read("default.pk"), lake.table("pk").read())


def files_on_disk(table: Table) -> set[str]:
    """Paths of all data files in the table's folder."""
    return {meta.path for meta in open_store(table.url).list("") if "/bucket-" in f"/{meta.path}"}


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("full", [False, True])
def test_sequence_fields_are_read_alike(lake: Lake, peers: Peers, order: str, full: bool) -> None:
    """Late rows, late deletes and deletes kept in the highest level read the same in every client, from both sides."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("seq", pa.float64()), ("v", pa.string())])
    options = {"bucket": "1", "sequence.field": "seq", "sequence.field.sort-order": order}
    table = lake.create_table("seq", schema, primary_keys=["id"], options=options)
    sign = 1 if order == "ascending" else -1

    def rows(*values: tuple[int, float | None, str]) -> pa.Table:
        made = [{"id": i, "seq": s if s is None else sign * s, "v": v} for i, s, v in values]
        return pa.Table.from_pylist(made, schema)

    table.upsert(rows((1, 10.0, "a"), (2, 10.0, "b"), (3, None, "null"), (4, 0.0, "zero"), (5, 1.0, "e")))
    table.delete(keys=rows((1, 20.0, ""), (2, 5.0, ""), (6, 3.0, "")).select(["id", "seq"]))
    if full:
        table.compact(full=True)
    table.upsert(rows((1, 19.0, "late"), (3, -1.0, "three"), (4, -1.0, "late"), (6, 3.0, "six")))
    expected = {2: "b", 3: "three", 4: "zero", 5: "e", 6: "six"}

    def pairs(found: pa.Table) -> dict[int, str]:
        return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))

    assert pairs(table.read()) == expected
    for client in READERS:
        assert pairs(peers.read("default.seq", client=client)) == expected
    if full:
        table.compact(full=True)
        for client in READERS:
            assert pairs(peers.read("default.seq", client=client)) == expected
    peers.write("default.seq", rows((1, 18.0, "late"), (2, 11.0, "new"), (5, 0.5, "late")))
    expected[2] = "new"
    for client in READERS:
        assert pairs(peers.read("default.seq", client=client)) == expected
    assert pairs(table.read()) == expected
    table.compact(full=True)
    assert pairs(table.read()) == expected


def test_files_without_partition_columns(lake: Lake, peers: Peers, tmp_path: Path) -> None:
    """Imported files lack the columns of their partition: pypaimon takes them from the entry, Rust once compacted."""
    for part in ("a", "b"):
        (tmp_path / "hive" / f"p={part}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2, 3], "v": [part] * 3}), tmp_path / "hive" / f"p={part}" / "x.parquet")
    for name, in_place in (("copied", False), ("stays", True)):
        import_table(lake, name, str(tmp_path / "hive"), format="parquet", options=ImportOptions(in_place=in_place))
        table = lake.table(name)
        assert table.read()["p"].to_pylist() == table.read()["v"].to_pylist()
        assert_same(peers.read(f"default.{name}"), table.read())
        table.compact(full=True)
        for client in READERS:
            assert_same(peers.read(f"default.{name}", client=client), table.read())


def test_deletion_vectors_are_read_alike(lake: Lake, peers: Peers) -> None:
    """Every client leaves out the rows that lakebed marked, also after another client appended and overwrote."""
    options = {"deletion-vectors.enabled": "true"}
    table = lake.create_table("db.marked", PK, options=options)
    table.append(rows_of(0, 300))
    table.append(rows_of(1000, 5))
    table.delete("id < 10 or (id >= 100 and id < 250) or id = 1004")

    def check() -> None:
        expected = canonical(table.read())
        for client in READERS:
            assert canonical(peers.read("db.marked", client=client)) == expected, client
        assert canonical(peers.sql("SELECT * FROM paimon.db.marked")) == expected

    check()
    assert table.scan().count() == 144
    peers.write("db.marked", rows_of(2000, 20))
    assert table.scan().count() == 164
    table.delete("id = 2003 or id = 20")
    check()
    assert table.scan().count() == 162
    table.compact(full=True)
    check()
    table.delete("id = 2004")
    peers.write("db.marked", rows_of(7, 3), overwrite={})
    check()
    assert table.scan().count() == 3


def test_marked_rows_of_keys_are_read_alike(lake: Lake, peers: Peers) -> None:
    """Every client sees what lakebed's last compaction made visible, without the rows that it marked."""
    options = {"deletion-vectors.enabled": "true", "bucket": "2"}
    table = lake.create_table("db.looked_up", PK, primary_keys=["id"], options=options)
    table.upsert(rows_of(0, 1000))
    table.compact()
    table.upsert(rows_of(900, 150))
    table.delete(keys=pa.table({"id": pa.array(range(30), PK.field("id").type)}))
    for expected in (1000, 1020):
        assert table.scan().count() == expected
        for client in READERS:
            assert canonical(peers.read("db.looked_up", client=client)) == canonical(table.read()), client
        assert canonical(peers.sql("SELECT * FROM paimon.db.looked_up")) == canonical(table.read())
        table.compact()
    assert any(split.vectors for split in table.scan().splits())


@pytest.mark.parametrize(
    ("engine", "options", "first"),
    [
        ("partial-update", {}, {"id": 1, "a": 5, "b": "x"}),
        ("aggregation", {"fields.a.aggregate-function": "sum"}, {"id": 1, "a": 6, "b": "x"}),
        ("first-row", {}, {"id": 1, "a": 1, "b": "x"}),
    ],
)
def test_merge_engines_are_read_alike(
    lake: Lake, peers: Peers, engine: str, options: dict[str, str], first: dict[str, object]
) -> None:
    """Pypaimon merges the rows of lakebed's tables as lakebed does; those of first-row once they are compacted."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.string())])
    settings = {"bucket": "1", "merge-engine": engine, **options}
    table = lake.create_table("engine", schema, primary_keys=["id"], options=settings)
    table.upsert(pa.table({"id": [1, 2], "a": [1, 2], "b": ["x", None]}, schema=schema))
    table.upsert(pa.table({"id": [1], "a": [5], "b": [None]}, schema=schema))
    if engine == "first-row":
        table.compact(full=True)
    expected = [first, {"id": 2, "a": 2, "b": None}]
    assert table.read().sort_by("id").to_pylist() == expected
    assert peers.read("default.engine", client="pypaimon").sort_by("id").to_pylist() == expected


def test_pypaimon_logs_what_it_writes(lake: Lake, peers: Peers) -> None:
    """With the producer input both clients write changelogs, and lakebed reads those of either."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    options = {"bucket": "1", "changelog-producer": "input"}
    table = lake.create_table("logged", schema, primary_keys=["id"], options=options)
    table.upsert(pa.table({"id": [1, 2], "v": [1, 1]}, schema=schema))
    peers.write("default.logged", pa.table({"id": [2, 3], "v": [2, 2]}, schema=schema))
    newest = table.latest()
    assert newest is not None
    assert newest.changelog_manifest_list is not None
    assert [(row["id"], row["v"]) for row in table.changes(None).to_pylist()] == [(1, 1), (2, 1), (2, 2), (3, 2)]
    expected = [{"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "v": 2}]
    assert peers.read("default.logged").sort_by("id").to_pylist() == expected
