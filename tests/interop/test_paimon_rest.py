"""Pypaimon, unmodified, whose catalog is a server of lakebed: it creates, writes, reads and commits through it."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Table
from lakebed.lake.lake import Lake
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.table.table import branch_of
from worlds.listener import Request, listen, pass_on
from worlds.repo.server_process import ServerProcess

from .conftest import PYTHON, ROOT, PeerError, Peers

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
DAYS = pa.schema([*ROWS, pa.field("day", pa.string(), nullable=False)])
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "append in partitions": {"partition_keys": ["day"]},
    "append in buckets": {"options": {"bucket": "2", "bucket-key": "id"}},
    "append with vectors": {"options": {"deletion-vectors.enabled": "true"}},
    "key": {"primary_keys": ["id"], "options": {"bucket": "2"}},
    "key in partitions": {"primary_keys": ["id", "day"], "partition_keys": ["day"], "options": {"bucket": "1"}},
    "dynamic buckets": {"primary_keys": ["id"], "options": {"bucket": "-1"}},
    "changelog": {"primary_keys": ["id"], "options": {"bucket": "1", "changelog-producer": "input"}},
    "partial-update": {"primary_keys": ["id"], "options": {"bucket": "1", "merge-engine": "partial-update"}},
}


KILLS_MIN = 4


def rows_of(first: int, count: int, v: float) -> pa.Table:
    """Rows of consecutive keys with one value."""
    return pa.table({"id": range(first, first + count), "v": [v] * count}, ROWS)


def values(rows: pa.Table) -> dict[int, float]:
    """Values by key."""
    assert len(set(rows["id"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


@pytest.fixture
def served(peers: Peers, tmp_path: Path) -> Iterator[Peers]:
    """The client with a server of the folder ``lake`` as its catalog."""
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        peers.catalog = {
            "metastore": "rest",
            "uri": f"{started.endpoint}/paimon",
            "warehouse": "lake",
            "token.provider": "bear",
            "token": f"{started.access_key}.{started.secret}",
        }
        yield peers
        peers.catalog = {}


@pytest.fixture
def lake(served: Peers, tmp_path: Path) -> Lake:
    """The same folder, opened by lakebed."""
    return lakebed.open(str(tmp_path / "lake"))


@pytest.mark.parametrize("keyed", [True, False])
def test_both_commit_by_turns(served: Peers, lake: Lake, keyed: bool) -> None:
    """A table that the client created; each side sees what the other committed, at every tag, after an expiry too."""
    keys = {"primary_keys": ["id"], "options": {"bucket": "2"}} if keyed else {}
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)), **keys)
    table = lake.table("db.t")
    expected: dict[int, float] = {}
    tagged: dict[str, dict[int, float]] = {}
    for number in range(8):
        first = number * 7 if keyed else number * 30
        rows = rows_of(first, 30, float(number))
        if number % 2:
            table.upsert(rows) if keyed else table.append(rows)
        else:
            served.write("db.t", rows)
        expected |= values(rows)
        if number % 3 == 0:
            served.call("create_tag", table="db.t", name=f"t{number}")
            tagged[f"t{number}"] = dict(expected)
        if number == 5:
            table.compact(full=True)
            table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    assert values(table.read()) == values(served.read("db.t")) == expected
    assert served.call("list_tags", table="db.t") == sorted(tagged)
    for name, state in tagged.items():
        assert values(table.read(version=name)) == values(served.read("db.t", **{"scan.tag-name": name})) == state
    assert table.collect(grace_ms=0, dry_run=True).deleted_count == 0


def test_columns_that_either_adds(served: Peers, lake: Lake) -> None:
    """A column of either side is in the next write of the other; older rows have nulls in it."""
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)))
    table = lake.table("db.t")
    served.write("db.t", rows_of(0, 2, 1.0))
    served.call("add_column", table="db.t", name="w", type="STRING")
    table.refresh()
    table.append(pa.table({"id": [2], "v": [2.0], "w": ["ours"]}, table.arrow_schema))
    table.add_column("x", "BIGINT")
    served.write("db.t", pa.table({"id": [3], "v": [3.0], "w": ["theirs"], "x": [7]}, table.arrow_schema))
    expected = [(0, None, None), (1, None, None), (2, "ours", None), (3, "theirs", 7)]
    for rows in (table.read(), served.read("db.t")):
        assert sorted(zip(*(rows[name].to_pylist() for name in ("id", "w", "x")), strict=True)) == expected


def test_times_of_day(served: Peers, lake: Lake) -> None:
    """Either side reads the milliseconds that the other one wrote, and of a table that the other one made."""
    rows = pa.table({"id": [1, 2], "at": pa.array([3_723_004, None], pa.time32("ms"))})
    lake.create_table("db.ours", rows.schema)
    served.call("create", table="db.theirs", path=served.send(rows.slice(0, 0)))
    for name, type_text in (("db.ours", "TIME(3)"), ("db.theirs", "TIME(0)")):  # pypaimon knows no other
        table = lake.table(name)
        assert [field.type for field in table.schema.fields] == ["BIGINT", type_text]
        table.append(rows)
        served.write(name, rows)
        expected = [3_723_004, 3_723_004, None, None]
        for read in (table.read(), served.read(name)):
            assert read.sort_by("id")["at"].cast(pa.int32()).to_pylist() == expected


def test_writers_of_both_sides_at_once(served: Peers, lake: Lake) -> None:
    """No row of either is lost while both append: a commit on an old base is made again by its client."""
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)))
    table = lake.table("db.t")
    count, problems = 8, list[BaseException]()

    def append() -> None:
        try:
            for number in range(count):
                table.append(rows_of(1_000 + number * 10, 10, 1.0))
        except BaseException as problem:
            problems.append(problem)

    writer = threading.Thread(target=append)
    writer.start()
    for number in range(count):
        served.write("db.t", rows_of(number * 10, 10, 2.0))
    writer.join()
    assert not problems
    assert len(values(table.read())) == len(values(served.read("db.t"))) == 2 * count * 10


class Link:
    """A proxy in front of a server that counts the requests to commit, and loses the replies of the first ones."""

    def __init__(self, target: str, *, loses: int = 0) -> None:
        self.left, self.commits = loses, 0
        self._listening = listen(pass_on(int(target.rpartition(":")[2]), loses=self.loses))

    def loses(self, request: Request) -> bool:
        """Whether the reply to this request is lost."""
        is_commit = request.path.endswith("/commit")
        is_lost = is_commit and self.left > 0
        self.commits += is_commit
        self.left -= is_lost
        return is_lost

    def __enter__(self) -> Link:
        self.url = f"http://127.0.0.1:{self._listening.__enter__()}"
        return self

    def __exit__(self, *raised: Any) -> None:
        self._listening.__exit__(*raised)


def test_a_commit_whose_reply_is_lost_is_made_once(served: Peers, lake: Lake) -> None:
    """The client does not learn that it committed, looks or asks again, and its rows are in the table once."""
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)))
    with Link(served.catalog["uri"].removesuffix("/paimon"), loses=2) as link:
        served.catalog["uri"] = f"{link.url}/paimon"
        for number in range(3):
            served.write("db.t", rows_of(number, 1, float(number)))
    assert link.left == 0
    assert values(lake.table("db.t").read()) == {0: 0.0, 1: 1.0, 2: 2.0}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_that_is_killed_while_clients_commit(peers: Peers, tmp_path: Path, seed: int) -> None:
    """Rows of a commit that the client calls done are there once, and of one that failed at most once."""
    rng = random.Random(seed)
    with ServerProcess(str(tmp_path / "lake"), tmp_path / "logs") as server:
        assert server.keys is not None
        peers.catalog = {
            "metastore": "rest",
            "uri": f"{server.endpoint}/paimon",
            "warehouse": "lake",
            "token.provider": "bear",
            "token": ".".join(server.keys),
        }
        peers.call("create", table="db.t", path=peers.send(rows_of(0, 0, 0)))
        ends, serves, kills = threading.Event(), threading.Event(), 0

        def kill() -> None:
            nonlocal kills
            serves.set()
            while not ends.wait(rng.uniform(0.1, 1.5)):
                serves.clear()
                server.stop(signal.SIGKILL)
                kills += 1
                server.start()
                serves.set()

        killer = threading.Thread(target=kill)
        killer.start()
        table = lakebed.open(str(tmp_path / "lake")).table("db.t")
        done, unclear = dict[int, float](), set[int]()
        try:
            for number in range(150):
                if kills >= KILLS_MIN and len(done) >= KILLS_MIN:
                    break
                rows = rows_of(number, 1, float(number))
                if number % 5 == 4:
                    table.append(rows)
                    done |= values(rows)
                    continue
                try:
                    peers.write("db.t", rows)
                    done |= values(rows)
                except PeerError:
                    unclear.add(number)
                    assert serves.wait(120)
        finally:
            ends.set()
            killer.join()
            peers.catalog = {}
        assert not server.tracebacks()
    assert kills >= KILLS_MIN, "or this is no test of kills"
    found = values(table.read())
    print(f"{kills} kills, {len(done)} commits done, {len(unclear)} unclear, of which {len(unclear & set(found))} made")
    assert {number: value for number, value in found.items() if number not in unclear} == done
    assert set(found) <= set(done) | unclear


def test_sixteen_clients_race_on_one_table(served: Peers, lake: Lake) -> None:
    """Every client commits its row, or says that it lost too many races; the table has the rows of those that did."""
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)))
    options = {"commit.max-retries": "100", "commit.min-retry-wait": "10 ms", "commit.max-retry-wait": "1 s"}
    with Link(served.catalog["uri"].removesuffix("/paimon")) as link:
        served.catalog["uri"] = f"{link.url}/paimon"
        path = served.send(rows_of(0, 16, 7.0))
        errors = served.call("race", table="db.t", path=path, count=16, options=options)
    assert all(error is None or "conflict" in error for error in errors), errors
    committed = {number: 7.0 for number, error in enumerate(errors) if error is None}
    assert committed
    assert values(lake.table("db.t").read()) == committed
    assert len(list(lake.table("db.t").snapshots())) == len(committed)
    print(f"{len(committed)} commits took {link.commits} requests to commit")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_by_turns(served: Peers, lake: Lake, kind: str) -> None:
    """Both see each other's commits, tags, branches and compactions, whatever the table is."""
    served.call("create", table="db.t", path=served.send(DAYS.empty_table()), **KINDS[kind])
    table, keyed = lake.table("db.t"), "primary_keys" in KINDS[kind]
    expected: list[tuple[int, float]] = []

    def in_days(ids: Sequence[int], v: float) -> pa.Table:
        days = ["even" if number % 2 == 0 else "odd" for number in ids]
        return pa.table({"id": list(ids), "v": [v] * len(ids), "day": days}, DAYS)

    def pairs(rows: pa.Table) -> list[tuple[int, float]]:
        return sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))

    def write(ids: Sequence[int], v: float, *, by_peer: bool) -> None:
        rows = in_days(ids, v)
        served.write("db.t", rows) if by_peer else table.write(rows)
        kept = [(id, old) for id, old in expected if not (keyed and id in ids)]
        expected[:] = sorted([*kept, *((id, v) for id in ids)])
        assert pairs(table.read()) == pairs(served.read("db.t")) == expected

    write(range(6), 1.0, by_peer=True)
    write(range(3, 9), 2.0, by_peer=False)
    write(range(5, 11), 3.0, by_peer=True)
    served.call("create_tag", table="db.t", name="one")
    tagged = list(expected)
    if not keyed:
        table.delete("id = 4")
        expected[:] = [(id, v) for id, v in expected if id != 4]
    write([20, 21], 4.0, by_peer=True)
    table.compact(full=True)
    write([20, 22], 5.0, by_peer=True)
    assert pairs(table.read(version="one")) == pairs(served.read("db.t", **{"scan.tag-name": "one"})) == tagged
    served.call("create_branch", table="db.t", name="dev", tag="one")
    served.write("db.t$branch_dev", in_days([30], 6.0))
    assert pairs(branch_of(table, "dev").read()) == sorted([*tagged, (30, 6.0)])
    assert "BranchNotExist" in served.call("rename_branch", table="db.t", name="none", to="other")
    assert "BranchAlreadyExist" in served.call("rename_branch", table="db.t", name="dev", to="dev")
    assert served.call("rename_branch", table="db.t", name="dev", to="other") is None
    served.write("db.t$branch_other", in_days([32], 7.0))
    assert pairs(branch_of(table, "other").read()) == sorted([*tagged, (30, 6.0), (32, 7.0)])
    assert [branch.name for branch in table.branches()] == ["other"]
    assert pairs(table.read()) == expected


@pytest.fixture
def gateway(peers: Peers, tmp_path: Path) -> Iterator[tuple[Peers, Running]]:
    """The client with a server as its catalog that has the S3 gateway, and a repository ``analytics``."""
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as running:
        analytics = running.site.repositories.create("analytics")
        analytics.create_branch("etl")
        key, secret = running.started.access_key, running.started.secret
        peers.catalog = {
            "metastore": "rest",
            "uri": f"{running.started.endpoint}/paimon",
            "warehouse": "lake",
            "token.provider": "bear",
            "token": f"{key}.{secret}",
            "s3.endpoint": running.started.endpoint,
            "s3.access-key": str(key),
            "s3.secret-key": str(secret),
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
        }
        yield peers, running
        peers.catalog = {}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_table_in_a_branch(gateway: tuple[Peers, Running], keyed: bool) -> None:
    """The client creates it and commits to the branch by turns with lakebed; a commit and a merge publish all of it."""
    peers, running = gateway
    analytics = running.site.repositories.repository("analytics")
    etl, main = analytics.branch("etl"), analytics.branch("main")
    keys = {"primary_keys": ["id"], "options": {"bucket": "2"}} if keyed else {}
    name = "`analytics.etl`.orders"
    peers.call("create", table=name, path=peers.send(rows_of(0, 0, 0)), **keys)
    expected: dict[int, float] = {}
    for number in range(4):
        rows = rows_of(number * (5 if keyed else 10), 10, float(number))
        table = Table.open(etl.store().sub("tables/orders"), name="orders")
        if number % 2:
            table.upsert(rows) if keyed else table.append(rows)
        else:
            peers.write(name, rows)
        expected |= values(rows)
        assert values(peers.read(name)) == expected
    with pytest.raises(PeerError):
        peers.read("`analytics.main`.orders")
    etl.commit("orders")
    main.merge("etl")
    assert values(peers.read("`analytics.main`.orders")) == expected
    analytics.create_tag("monday")
    peers.write("`analytics.main`.orders", rows_of(1_000, 1, 9.0))
    assert values(peers.read("`analytics.monday`.orders")) == expected
    with pytest.raises(PeerError):
        peers.write("`analytics.monday`.orders", rows_of(2_000, 1, 9.0))
    main.reset()  # what the client committed was staged
    assert values(peers.read("`analytics.main`.orders")) == expected


def test_a_wrong_key_is_refused(served: Peers, lake: Lake) -> None:
    """A client without a key of the server reads nothing."""
    served.call("create", table="db.t", path=served.send(rows_of(0, 0, 0)))
    served.catalog = {**served.catalog, "token": "nobody.nothing"}
    with pytest.raises(PeerError):
        served.read("db.t")
    assert lake.tables() == ["db.t"]


def test_the_guide(served: Peers, lake: Lake) -> None:
    """The first block of the guide runs as pasted, against the server."""
    block, *_ = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/guide/engines.md").read_text(), re.MULTILINE | re.DOTALL
    )
    key, _, secret = served.catalog["token"].partition(".")
    environment = {**os.environ, "LAKEBED_ACCESS_KEY_ID": key, "LAKEBED_SECRET_ACCESS_KEY": secret}
    environment.pop("PYTHONPATH", None)
    program = block.replace("http://127.0.0.1:8000/paimon", served.catalog["uri"])
    done = subprocess.run([str(PYTHON), "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "2 rows\n", done.stderr[-2000:]
    assert lake.table("shop.orders").scan().count() == 2
