"""`lakebed fleet up`: what its processes do when it is killed, when its terminal is closed, and when it runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.local import FleetSettings, LocalFleet
from worlds.waiting import wait_until

Start = Callable[..., "subprocess.Popen[str]"]


def _of_a_terminal() -> None:
    """A session of its own, in which SIGHUP ends a process: what runs the tests may ignore it, as nohup does."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Start]:
    """Start `lakebed fleet up` on the lake of the test with some options."""
    running: list[subprocess.Popen[str]] = []

    def start(*options: str, lake: str = "lake", **variables: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "lakebed.cli", "fleet", "up", lake, "--nodes", "1", "--json", *options]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {**os.environ, **variables}
        running.append(subprocess.Popen(words, cwd=tmp_path, env=env, preexec_fn=_of_a_terminal, **pipes))
        return running[-1]

    yield start
    for process in running:
        with process:  # closes its pipes
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=90)


def started(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it prints when the fleet is up."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            document: dict[str, Any] = json.loads(text)
            return document
    raise AssertionError(process.communicate()[1])


def living(shown: dict[str, Any]) -> list[int]:
    """The processes of its parts that are not gone."""

    def lives(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    return [part["pid"] for part in shown["parts"] if lives(part["pid"])]


def test_its_processes_end_with_it_and_the_next_start_works(tmp_path: Path, up: Start) -> None:
    """Killed with -9 it leaves no process, also when one stood still; the next one reads what was acknowledged."""
    first = up()
    shown = started(first)
    with lakebed.open(str(tmp_path / "lake")).fleet() as fleet:
        fleet.create_tenant("orders").main.put(b"k", b"1")
    stopped = shown["parts"][-1]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    first.kill()
    wait_until(lambda: living(shown) == [stopped])
    second = up()
    assert second.stderr is not None
    messages = second.stderr.readline() + second.stderr.readline()
    assert "was killed: waiting until its processes have ended" in messages
    os.kill(stopped, signal.SIGCONT)
    again = started(second)
    wait_until(lambda: living(shown) == [])  # the system keeps what has ended until its parent has asked
    with lakebed.open(str(tmp_path / "lake")).fleet() as fleet:
        main = fleet.tenant("orders").main
        main.catch_up()  # the node may not have read the row from the log yet
        assert main.get(b"k") == b"1"
    second.send_signal(signal.SIGHUP)  # the terminal is closed
    assert second.wait(90) == 0
    wait_until(lambda: living(again) == [])


def test_a_second_one_is_refused_and_changes_nothing(tmp_path: Path, up: Start) -> None:
    """With the same folder and with another one: clients find the first fleet afterwards, and its ids are kept."""
    shown = started(up())
    files = {path.name: path.read_text() for path in (tmp_path / "lakebed-fleet").glob("*.pid")}
    for options in ((), ("--local", "other")):
        second = up(*options)
        error = json.loads(second.communicate(timeout=90)[1].splitlines()[-1])["error"]
        assert (second.returncode, error["kind"]) == (4, "fleet_runs")
    assert {path.name: path.read_text() for path in (tmp_path / "lakebed-fleet").glob("*.pid")} == files
    with lakebed.open(str(tmp_path / "lake")).fleet() as fleet:
        assert fleet.url == shown["url"]
    assert len(living(shown)) == 3


@pytest.mark.parametrize("wrong", [{"log": "mysql://x"}, {"ledger": "mysql://x"}])
def test_a_url_of_an_unknown_kind_makes_nothing(tmp_path: Path, wrong: dict[str, str]) -> None:
    """Neither the lake nor the folder is there afterwards."""
    settings = FleetSettings(str(tmp_path / "lake"), tmp_path / "local", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"No (log|ledger) has the URL mysql") as refused, LocalFleet(settings):
        pass
    assert refused.value.kind in ("unknown_log", "unknown_ledger")
    assert list(tmp_path.iterdir()) == []


def test_secrets_of_the_store_are_in_no_list_of_processes(up: Start, s3_server: Any) -> None:
    """Given in the environment or as an option, they reach every part, and the command of none of them."""
    lake, region = s3_server.url(), s3_server.options["aws_region"]
    given = json.dumps({name: value for name, value in s3_server.options.items() if name != "aws_region"})
    shown = started(up("--storage-option", f"aws_region={region}", lake=lake, LAKEBED_STORAGE_OPTIONS=given))
    with lakebed.open(lake, storage_options=s3_server.options).fleet() as fleet:
        main = fleet.create_tenant("orders").main
        main.put(b"k", b"v")
        main.checkpoint()
        assert main.get(b"k") == b"v"
    commands = [Path(f"/proc/{part['pid']}/cmdline").read_bytes() for part in shown["parts"]]
    assert [name in command for name, command in zip((b"log", b"control", b"node"), commands, strict=True)] == [
        True
    ] * 3
    for secret in (b"aws_", s3_server.options["aws_secret_access_key"].encode()):
        assert secret not in b"".join(commands)


@pytest.mark.parametrize("wrong", ["log", "ledger"])
def test_passwords_are_in_no_command_file_or_error(tmp_path: Path, wrong: str) -> None:
    """The URL of ledger or log reaches the parts; its password is in no list of processes and nothing that is kept."""
    secret = "postgresql://bob:GEHEIM@127.0.0.1:9/x"
    fleet = LocalFleet(FleetSettings(str(tmp_path / "lake"), tmp_path / "local", **{wrong: secret}))  # type: ignore[arg-type]
    with (
        pytest.raises(Unavailable, match=r"PostgreSQL at postgresql://127\.0\.0\.1:9/x cannot be used") as failed,
        fleet,
    ):
        pass
    assert "GEHEIM" not in str(failed.value)
    commands = [str(part.process.args) for part in fleet.parts if part.process is not None]
    assert "control" in commands[-1]
    assert "GEHEIM" not in " ".join(commands)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"GEHEIM" in path.read_bytes()]
