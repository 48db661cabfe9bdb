"""The descriptions of the catalogs of Paimon and Iceberg, put to the test by schemathesis: no request makes it fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.required import miss

HERE = Path(__file__).parent
ICEBERG = os.environ.get("LAKEBED_ICEBERG_OPENAPI", "")
"""Path of the OpenAPI document of Iceberg's REST catalog, which is part of Iceberg's sources."""
PAIMON = os.environ.get("LAKEBED_PAIMON_OPENAPI", "")
"""Path of the OpenAPI document of Paimon's REST catalog, which is part of Paimon's sources."""
NOT_SERVED = re.compile(
    r"/(views|functions|register|auth|token|consumers|consumers/reset|permissions|rollback-schema|mark)$"
    r"|/(tables|views)/rename$|/tables/id/"
)
"""Paths of Paimon's protocol that are answered with 501."""
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
    """A server with the names that `catalog_schema_hooks` knows."""
    if not ST.exists():
        miss(f"schemathesis is not installed at {ST}: run `make test`, which installs it")
    log = tmp_path / "access.log"
    with start_server(tmp_path / "lake", access_log=log, options=ServerOptions(durable=False)) as running:
        lake = lakebed.open(str(tmp_path / "lake"))
        table = lake.create_table("db.t", pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys="day")
        table.append(pa.table({"id": [1, 2], "day": ["a", "b"]}, table.arrow_schema))
        table.create_tag("v1")
        table.create_branch("dev")
        started = running.started
        yield Served(started.endpoint, f"{started.access_key}.{started.secret}", log, tmp_path)


def explore(served: Served, description: str, *arguments: str, checks: Iterable[str] = CHECKS) -> str:
    """Run schemathesis; its report. A failure of the server, or a reply that is not as described, fails the test."""
    command = [str(ST), "run", description, "--no-color", "--warnings", "off"]
    command += ["--header", f"Authorization: Bearer {served.token}", "--workers", "2"]
    command += ["--checks", ",".join(checks), "--continue-on-failure", *arguments]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "catalog_schema_hooks", "PYTHONPATH": str(HERE)}
    for _ in range(3):
        done = subprocess.run(command, cwd=served.folder, env=environment, capture_output=True, text=True, check=False)
        if "AST constructor recursion depth mismatch" not in done.stdout:  # CPython 3.11 with two threads that compile
            break
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Traceback" not in served.log.read_text()
    return done.stdout


def lines_of(served: Served) -> list[dict[str, Any]]:
    """The requests that the server answered."""
    return [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.parametrize("catalog", ["paimon", "iceberg"])
def test_everything_described_is_answered_as_described(served: Served, catalog: str) -> None:
    """Every operation is tried; nothing fails, errors have the protocol's form, and many requests reach the table."""
    description = f"{served.endpoint}/{catalog}/openapi.json"
    report = explore(served, description, "--phases", "fuzzing", "--max-examples", "1", "--seed", "1")
    counts = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", report)
    assert counts is not None
    assert len(set(counts.groups())) == 1, report
    assert sum(200 <= line["status"] < 300 for line in lines_of(served)) > 5, "hardly any request came past the look"
    assert lakebed.open(str(served.folder / "lake")).table("db.t").tags()


@pytest.mark.long
@pytest.mark.parametrize("catalog", ["paimon", "iceberg"])
def test_random_requests_find_nothing(served: Served, catalog: str) -> None:
    """Far more random requests, other ones each time, and those at the edges of the description."""
    description = f"{served.endpoint}/{catalog}/openapi.json"
    explore(served, description, "--phases", "coverage,fuzzing", "--max-examples", "40")


@pytest.mark.long
@pytest.mark.skipif(not ICEBERG, reason="set LAKEBED_ICEBERG_OPENAPI to the path of Iceberg's OpenAPI document")
def test_icebergs_own_document_finds_no_failure(served: Served) -> None:
    """Requests as Iceberg's document has them, of every operation, make no server error."""
    where = ("--url", f"{served.endpoint}/iceberg", "--phases", "fuzzing", "--max-examples", "3")
    # Bodies of the document are large unions, of which a request is made slowly: no fault of the server.
    explore(served, ICEBERG, *where, "--suppress-health-check", "all", checks=["not_a_server_error"])
    lines = lines_of(served)
    assert not [line for line in lines if line["status"] >= 500]
    assert any(line["status"] < 300 for line in lines)


@pytest.mark.long
@pytest.mark.skipif(not PAIMON, reason="set LAKEBED_PAIMON_OPENAPI to the path of Paimon's OpenAPI document")
def test_paimons_own_document_finds_no_failure(served: Served) -> None:
    """Requests as Paimon's document has them, of every operation: what is not served is 501, and nothing else fails."""
    where = ("--url", f"{served.endpoint}/paimon", "--phases", "fuzzing", "--max-examples", "3")
    explore(served, PAIMON, *where, "--suppress-health-check", "all", checks=["content_type_conformance"])
    lines = lines_of(served)
    assert {line["status"] for line in lines if line["status"] >= 500} == {501}
    for line in lines:
        assert line["status"] < 500 or NOT_SERVED.search(line["path"]), line
    assert any(line["status"] < 300 for line in lines)
