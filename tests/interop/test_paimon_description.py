"""The description of Paimon's REST catalog, put to the test by schemathesis: random requests and no failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

HERE = Path(__file__).parent
ST = HERE.parents[1] / ".venv-clients" / "bin" / "st"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)


@dataclass(frozen=True)
class Served:
    """A running server with a table ``db.t``."""

    endpoint: str
    token: str
    log: Path
    folder: Path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with the names that `paimon_schema_hooks` knows."""
    if not ST.exists():
        reason = f"schemathesis is not installed at {ST}: run `make test`, which installs it"
        if os.environ.get("LAKEBED_REQUIRE_SERVERS"):
            pytest.fail(reason)
        pytest.skip(reason)
    log = tmp_path / "access.log"
    with start_server(tmp_path / "lake", access_log=log, options=ServerOptions(durable=False)) as running:
        lake = lakebed.open(str(tmp_path / "lake"))
        table = lake.create_table("db.t", pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys="day")
        table.append(pa.table({"id": [1, 2], "day": ["a", "b"]}, table.arrow_schema))
        table.create_tag("v1")
        table.create_branch("dev")
        started = running.started
        yield Served(started.endpoint, f"{started.access_key}.{started.secret}", log, tmp_path)


def explore(served: Served, *arguments: str) -> str:
    """Run schemathesis; its report. A failure of the server, or a reply that is not as described, fails the test."""
    command = [str(ST), "run", f"{served.endpoint}/paimon/openapi.json", "--no-color", "--warnings", "off"]
    command += ["--header", f"Authorization: Bearer {served.token}", "--workers", "2"]
    command += ["--checks", ",".join(CHECKS), "--continue-on-failure", *arguments]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "paimon_schema_hooks", "PYTHONPATH": str(HERE)}
    for _ in range(3):
        done = subprocess.run(command, cwd=served.folder, env=environment, capture_output=True, text=True, check=False)
        if "AST constructor recursion depth mismatch" not in done.stdout:  # CPython 3.11 with two threads that compile
            break
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Traceback" not in served.log.read_text()
    return done.stdout


def test_everything_described_is_answered_as_described(served: Served) -> None:
    """Every operation is tried; nothing fails, errors have the protocol's form, and many requests reach the table."""
    report = explore(served, "--phases", "fuzzing", "--max-examples", "2", "--seed", "1")
    counts = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", report)
    assert counts is not None
    assert len(set(counts.groups())) == 1, report
    lines = [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]
    assert sum(200 <= line["status"] < 300 for line in lines) > 10, "hardly any request came past the first look"
    assert lakebed.open(str(served.folder / "lake")).table("db.t").tags()


@pytest.mark.long
def test_random_requests_find_nothing(served: Served) -> None:
    """Far more random requests, other ones each time, and those at the edges of the description."""
    explore(served, "--phases", "coverage,fuzzing", "--max-examples", "40")
