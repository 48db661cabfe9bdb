"""Commands of ``lakebed fleet`` against a fleet that serves HTTP, and commands on a whole lake with tenants."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import lakebed
from lakebed.cli import exits
from lakebed.cli.fleet_processes import without_credentials
from lakebed.errors import NotFound, Unavailable
from lakebed.fleet.address import read_address
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.ports import NodeReport
from worlds.fleet_served import served_fleet
from worlds.scripts import run_script
from worlds.waiting import wait_until

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A lake with a fleet of two nodes."""
    folder = tmp_path_factory.mktemp("fleet")
    with served_fleet(folder / "lake", folder / "local"):
        yield str(folder / "lake")


@pytest.fixture
def orders(lake: str, cli: Cli, request: pytest.FixtureRequest) -> str:
    """A tenant of this test, with two rows."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    assert cli("fleet", "create", lake, name, "--policy", "retain_rows=100").code == 0
    assert cli("fleet", "put", lake, name, "a", "1").out == "Wrote 'a' (1 B) at LSN 1.\n"
    assert cli("fleet", "put", lake, name, "b", "2", "--json").json == {"key": "b", "bytes": 1, "lsn": 2}
    return name


def test_rows_are_written_and_read(cli: Cli, lake: str, orders: str) -> None:
    """Each command is a client of its own, and sees what those before it wrote; LSNs and versions read the past."""
    assert cli("fleet", "get", lake, orders, "a").out == "1\n"
    assert cli("fleet", "delete", lake, orders, "a", "--dry-run").out == "Would delete 'a'.\n"
    assert cli("fleet", "delete", lake, orders, "a", "--yes").out == "Deleted 'a' at LSN 3.\n"
    assert cli("fleet", "get", lake, orders, "a").code == exits.NOT_FOUND
    assert f"Did you mean {orders}?" in cli("fleet", "get", lake, f"{orders}s", "a").err
    assert cli("fleet", "get", lake, orders, "a", "--lsn", "2").out == "1\n"
    assert cli("fleet", "get", lake, orders, "a", "--version", "main@1", "--json").json == {"key": "a", "value": "1"}
    assert cli("fleet", "scan", lake, orders, "--json").json == [{"key": "b", "value": "2"}]
    assert cli("fleet", "scan", lake, orders, "--lsn", "2", "--count").out == "2\n"
    assert cli("fleet", "scan", lake, orders, "--from", "b", "--format", "tsv").out == "b\t2\n"
    refused = cli("fleet", "put", lake, orders, "c", "3", "--expected", "1", "--json")
    assert (refused.code, refused.error["kind"], refused.error["facts"]["last"]) == (4, "unexpected_lsn", 3)


def test_branches_and_pins(cli: Cli, lake: str, orders: str) -> None:
    """A pin keeps what was written before it; a branch goes its own way; a restore keeps what was there."""
    assert "keeps main at LSN 2 and ends in 1 day" in cli("fleet", "pin", lake, orders, "p", "--lifetime", "1d").out
    assert cli("fleet", "put", lake, orders, "a", "9").code == 0
    assert cli("fleet", "get", lake, orders, "a", "--version", "p").out == "1\n"
    assert cli("fleet", "branch", lake, orders, "dev", "--lsn", "1").out == "Branched main at LSN 1 as dev.\n"
    assert cli("fleet", "put", lake, orders, "x", "y", "--timeline", "dev").code == 0
    assert cli("fleet", "scan", lake, orders, "--timeline", "dev", "--count").out == "2\n"
    listed = {row["name"]: row for row in cli("fleet", "timelines", lake, orders, "--json").json}
    assert {name: (entry["branch_lsn"], entry["is_read_only"]) for name, entry in listed.items()} == {
        "main": (0, False),
        "p": (2, True),
        "dev": (1, False),
    }
    pins = {pin["name"]: (pin["kind"], pin["store"]) for pin in cli("pins", lake, orders, "--json").json}
    assert pins == {"p": ("pin", orders), "dev": ("branch", orders)}
    read_only = cli("fleet", "put", lake, orders, "x", "y", "--timeline", "p", "--json")
    assert (read_only.code, read_only.error["kind"]) == (exits.USAGE, "read_only")
    assert cli("fleet", "drop-timeline", lake, orders, "dev", "--dry-run").out == "Would drop the timeline dev.\n"
    assert cli("fleet", "drop-timeline", lake, orders, "dev", "--yes").code == 0
    for how in ("--dry-run", "--yes"):
        refused = cli("fleet", "drop-timeline", lake, orders, "main", how)
        assert (refused.code, "versions and pins are of it" in refused.err) == (2, True)
    assert cli("fleet", "restore", lake, orders, "p", "--yes").code == 0
    assert cli("fleet", "get", lake, orders, "a").out == "1\n"
    assert len(cli("fleet", "timelines", lake, orders, "--json").json) == 3


def test_a_lake_knows_its_tenants(cli: Cli, lake: str, orders: str) -> None:
    """`ls`, `history`, `why`, `fsck` and `collect` answer for tenants; no command deletes an object of one."""
    cli("fleet", "commit", lake, orders)
    cli("fleet", "put", lake, orders, "a", "3")
    cli("fleet", "commit", lake, orders)
    (line,) = (row for row in cli("ls", lake, "--json").json if row["name"] == orders)
    assert (line["kind"], line["problem"], line["rows"]) == ("tenant", None, None)
    assert line["bytes"] > 0
    versions = cli("history", lake, f"tenant:{orders}", "--json").json
    assert [version["facts"]["lsn"] for version in versions][-2:] == [2, 3]
    assert line["version"] == versions[-1]["version"]
    layers = sorted(str(item.relative_to(lake)) for item in Path(lake, f"{orders}.tenant").rglob("*.sst"))
    why = cli("why", lake, layers[0], "--json").json
    assert [pin["name"] for pin in why["pins"]] == ["main"]
    assert "databases keep what they need" in cli("why", lake, "_fleet/control.json").out
    checked = cli("fsck", lake, "--deep", "--json")
    assert (checked.code, checked.json["errors"]) == (0, 0)
    assert checked.json["tenants"] >= 1
    before = {path for path in Path(lake, f"{orders}.tenant").rglob("*") if path.is_file() and path.suffix == ".sst"}
    assert cli("collect", lake, "--yes").code == 0
    assert before == {path for path in Path(lake, f"{orders}.tenant").rglob("*") if path.suffix == ".sst"}
    Path(lake, layers[0]).rename(Path(lake, layers[0] + ".away"))
    broken = cli("fsck", lake, orders, "--json")
    assert (
        broken.code,
        [finding["kind"] for finding in broken.json["findings"] if finding["severity"] == "error"],
    ) == (
        exits.FAULTY,
        ["missing"],
    )
    Path(lake, layers[0] + ".away").rename(Path(lake, layers[0]))


def test_a_tenant_moves_and_operators_watch(cli: Cli, lake: str, orders: str) -> None:
    """A relocation is begun, shown and reported; status, transactions and events are for people and for programs."""

    def node() -> Any:
        return next(row for row in cli("fleet", "tenants", lake, "--json").json if row["tenant"] == orders)["node"]

    source = node()
    target = {"node-1": "node-2", "node-2": "node-1"}[source]
    assert cli("fleet", "migrate", lake, orders, target).code == 0
    wait_until(lambda: node() == target)
    assert cli("fleet", "get", lake, orders, "b").out == "2\n"
    wait_until(
        lambda: "relocated" in {row["kind"] for row in cli("fleet", "events", lake, "--tenant", orders, "--json").json}
    )
    assert "has taken over" in cli("fleet", "events", lake).out
    wait_until(lambda: cli("fleet", "migrate", lake, orders, source).code == 0)
    wait_until(lambda: node() == source)
    wait_until(lambda: len(cli("fleet", "events", lake, "--tenant", orders, "--json").json) == 2)
    (newest,) = cli("fleet", "events", lake, "--tenant", orders, "--limit", "1", "--json").json
    assert newest["message"] == f"{source} has taken over {orders} from {target}."
    assert cli("fleet", "migrate", lake, orders, source).out == f"The tenant {orders} is on {source} already.\n"
    source, target = target, source
    status = cli("fleet", "status", lake, "--json").json
    assert {item["node"]: item["state"] for item in status["nodes"]} == {"node-1": "alive", "node-2": "alive"}
    assert "alive" in cli("fleet", "status", lake).out
    txns = cli("fleet", "txns", lake, orders, "--json").json
    assert txns["unfinished"][0]["node"] == target
    assert [transaction["id"] for transaction in txns["unfinished"]] == sorted(
        (transaction["id"] for transaction in txns["unfinished"]), reverse=True
    )
    assert "open" in cli("fleet", "txns", lake, orders).out
    assert cli("fleet", "policy", lake, orders, "retain_rows=7", "--json").json["retain_rows"] == 7
    assert cli("fleet", "collect", lake, "--dry-run", "--json").json["missing"] == []
    assert cli("fleet", "drop", lake, orders, "--dry-run").code == 0
    dropped = cli("fleet", "drop", lake, orders, "--yes").out
    is_gone = orders not in [row["tenant"] for row in cli("fleet", "tenants", lake, "--json").json]
    assert f"The tenant {orders} is being dropped" in dropped or is_gone
    gone = cli("fleet", "get", lake, orders, "b", "--json")
    assert (gone.code, gone.error["kind"]) == (exits.NOT_FOUND, "tenant_not_found")
    assert f"Did you mean {orders}" not in str(gone.error), "a tenant that is being dropped"


def rows_of(table: str, *, skip: int = 2) -> list[list[str]]:
    """The cells of a table in a pipe."""
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()[skip:] if line.strip()]


def test_tables_and_json_say_the_same(cli: Cli, lake: str, orders: str) -> None:
    """Each list has the same rows in the same order for people and for programs."""
    assert cli("fleet", "pin", lake, orders, "p").code == 0
    assert cli("fleet", "commit", lake, orders).code == 0
    tenants = cli("fleet", "tenants", lake, "--json").json
    # A tenant of a test before that is being dropped, which takes the collector a while, is on no node.
    shown = [(tenant["tenant"], tenant["node"] or "-", f"{tenant['lsn']:,}", tenant["state"]) for tenant in tenants]
    table = rows_of(cli("fleet", "tenants", lake).out)
    assert [(row[0], row[1], row[3], row[6]) for row in table] == shown
    timelines = cli("fleet", "timelines", lake, orders, "--json").json
    table = rows_of(cli("fleet", "timelines", lake, orders).out)
    assert [(row[0], row[2], row[4]) for row in table] == [
        (timeline["name"], str(timeline["lsn"]), str(timeline["cutoff"])) for timeline in timelines
    ]
    txns = cli("fleet", "txns", lake, orders, "--json").json
    table = rows_of(cli("fleet", "txns", lake, orders).out)
    every = [*txns["unfinished"], *txns["finished"]]
    assert len(every) >= 2
    assert [(row[0], row[1], row[2]) for row in table] == [
        (str(item["id"]), str(item["base"]), item["state"].replace("_", " ")) for item in every
    ]
    nodes = cli("fleet", "status", lake, "--json").json["nodes"]
    status = cli("fleet", "status", lake).out
    assert [row[0] for row in rows_of(status[status.index("node ") :])] == [node["node"] for node in nodes]


def test_dry_runs_change_nothing(cli: Cli, lake: str, orders: str) -> None:
    """What a dry run names is there afterwards; what the command would refuse, it refuses."""
    assert cli("fleet", "branch", lake, orders, "dev").code == 0
    assert cli("fleet", "pin", lake, orders, "p").code == 0
    assert cli("fleet", "delete", lake, orders, "a", "--dry-run").out == "Would delete 'a'.\n"
    assert cli("fleet", "get", lake, orders, "a").out == "1\n"
    refused = cli("fleet", "delete", lake, orders, "a", "--timeline", "p", "--dry-run", "--json")
    assert (refused.code, refused.error["kind"]) == (exits.USAGE, "read_only")
    assert cli("fleet", "drop-timeline", lake, orders, "dev", "--dry-run").code == 0
    assert {row["name"] for row in cli("fleet", "timelines", lake, orders, "--json").json} == {"main", "dev", "p"}
    assert cli("fleet", "drop", lake, orders, "--dry-run").code == 0
    assert cli("fleet", "get", lake, orders, "a").out == "1\n"


def test_an_lsn_that_no_row_has(cli: Cli, lake: str, orders: str) -> None:
    """It is refused with the last one that was written; the library would wait for the row."""
    for words in (("--lsn", "99"), ("--version", "main@99")):
        refused = cli("fleet", "get", lake, orders, "a", *words, "--json")
        assert (refused.code, refused.error["kind"]) == (exits.UNAVAILABLE, "lsn_not_reached")
        assert refused.error["facts"]["lsn"] == 2


def test_a_standby_is_not_written_down(lake: str) -> None:
    """Clients find the control plane that decides, also after another process was started and waits."""
    before = read_address(lakebed.open(lake).store)
    assert before is not None
    words = ["fleet", "control", lake, "--log", before.log, "--end-with-input"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "lakebed.cli", *words], **pipes) as standby:
        assert standby.stdout is not None
        assert standby.stdout.readline().startswith("The control plane answers at http://127.0.0.1:")
        assert standby.stdout.readline() == "While another process owns the ledger, it is a standby.\n"
        assert read_address(lakebed.open(lake).store) == before
        assert standby.stdin is not None
        standby.stdin.close()
        assert standby.wait(60) == 0


def test_a_url_is_shown_without_its_password() -> None:
    """What the control plane writes into the lake, and tells clients, has no credentials."""
    assert without_credentials("nats://bob:secret@a:4222,b:4222/name") == "nats://a:4222,b:4222/name"
    assert without_credentials("postgresql://bob:secret@a/x") == "postgresql://a/x"
    assert without_credentials("http://a:8300") == "http://a:8300"


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        ("get LAKE nope k", exits.NOT_FOUND, "tenant_not_found"),
        ("create LAKE a/b", exits.USAGE, "invalid_tenant_name"),
        ("create LAKE other --policy colour=1", exits.USAGE, "unknown_setting"),
        ("create LAKE other --policy retain_rows=many", exits.USAGE, "invalid_setting"),
        ("migrate LAKE nope node-1", exits.NOT_FOUND, "tenant_not_found"),
        ("drain LAKE nope", exits.NOT_FOUND, "node_not_found"),
        ("decommission LAKE nope --yes", exits.NOT_FOUND, "node_not_found"),
        ("ack LAKE a-tenant 99 --yes", exits.CONFLICT, "ack_refused"),
        ("ack LAKE a-tenant 1 --yes", exits.CONFLICT, "ack_refused"),
        ("txns LAKE nope", exits.NOT_FOUND, "tenant_not_found"),
        ("get LAKE nope k --version 1 --lsn 2", exits.USAGE, "two_versions"),
        ("status LAKE --control http://127.0.0.1:9", exits.UNAVAILABLE, "fleet_not_running"),
        ("control LAKE", exits.USAGE, "no_log"),
        ("control LAKE --log http://127.0.0.1:9 --ledger mysql://x", exits.USAGE, "unknown_ledger"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, lake: str, words: str, code: int, kind: str) -> None:
    """Each mistake exits with its code and says what to do in one line."""
    if "a-tenant" in words:
        assert cli("fleet", "create", lake, "a-tenant").code in (0, exits.CONFLICT)
    arguments = [lake if word == "LAKE" else word for word in words.split(" ")]
    answer = cli("fleet", *arguments, "--json")
    assert (answer.code, answer.error["kind"]) == (code, kind)
    assert len(cli("fleet", *arguments).err.splitlines()) == 1


def test_a_lake_whose_fleet_does_not_run(tmp_path: Path, cli: Cli) -> None:
    """One sentence says how to start it; the tenants are listed from the ledger all the same."""
    lake = tmp_path / "lake"
    with pytest.raises(NotFound, match="start one with lakebed fleet up"):
        lakebed.open(str(lake)).tenant("orders")
    with served_fleet(lake, tmp_path / "local", nodes=1):
        with lakebed.open(str(lake)).fleet() as fleet:
            fleet.create_tenant("orders").main.put(b"k", b"v")
        assert read_address(lakebed.open(str(lake)).store) is not None
    with pytest.raises(Unavailable, match=r"does not run.*Start it with lakebed fleet up"):
        lakebed.open(str(lake)).tenant("orders")
    opened = lakebed.open(str(lake))
    assert opened.tenants() == ["orders"]
    assert [store.name for store in opened.ls()] == ["orders"]
    assert opened.history("orders")[-1].facts["lsn"] == 1
    assert cli("fleet", "scan", lake, "orders").code == exits.UNAVAILABLE


def test_a_lake_without_tenants_loads_nothing(tmp_path: Path) -> None:
    """The fleet's modules are imported for lakes with a fleet only."""
    script = (
        "import sys, lakebed\n"
        f"lake = lakebed.open({str(tmp_path / 'lake')!r})\n"
        "lake.ls(); lake.pins(); lake.collect()\n"
        "assert not {'lakebed.fleet.client', 'lakebed.lake.tenants', 'urllib3'} & sys.modules.keys()\n"
    )
    run_script(script)


def test_a_rejected_transaction_that_only_a_person_can_end_is_shown(tmp_path: Path, cli: Cli) -> None:
    """Its node lost its local state: status and events say so and what to do, and that ends it."""
    lake = str(tmp_path / "lake")
    with served_fleet(tmp_path / "lake", tmp_path / "local", nodes=1) as url:
        control = HttpControl(url)
        wiped = NodeRecord("node-2", "http://127.0.0.1:9", "process-1", "disk-1", 0)
        control.register(wiped)
        control.attached(NodeReport("node-2", "process-1", "disk-1"))
        assert cli("fleet", "create", lake, "first").code == cli("fleet", "create", lake, "orders").code == 0
        tenant = next(item.tenant for item in control.tenants() if item.preferred == "node-2")
        wait_until(lambda: control.tenant(tenant).preferred == "node-1")
        (waiting,) = cli("fleet", "status", lake, "--json").json["not_acknowledged"]
        assert (waiting["tenant"], waiting["node"]) == (tenant, "node-2")
        control.register(replace(wiped, incarnation="process-2", local_id="disk-2"))
        control.attached(NodeReport("node-2", "process-2", "disk-2"))
        ack = f"lakebed fleet ack {lake} {tenant} {waiting['transaction']}"
        assert ack in " ".join(cli("fleet", "status", lake).out.split())
        wait_until(lambda: "local_state_lost" in {event.kind for _, event in control.events()})
        assert ack.replace(lake, "LAKE") in " ".join(cli("fleet", "events", lake).out.split())
        assert cli("fleet", "ack", lake, tenant, str(waiting["transaction"]), "--yes").code == 0
        assert cli("fleet", "status", lake, "--json").json["not_acknowledged"] == []
        control.close()
