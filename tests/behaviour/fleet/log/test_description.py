"""The description of the log's HTTP interface, put to the test by schemathesis."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from lakebed.fleet.log.client import HttpLog
from lakebed.fleet.log.serve import LogSettings, start_log
from worlds.fleet_log import append

CLIENTS = Path(__file__).parents[4] / ".venv-clients" / "bin" / "st"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.long
def test_nothing_that_is_described_fails(tmp_path: Path) -> None:
    """Requests inside and at the edges of the description: no failure of the server, every reply as described."""
    if not CLIENTS.exists():
        if os.environ.get("LAKEBED_REQUIRE_SERVERS") == "1":
            pytest.fail("schemathesis is not installed, and LAKEBED_REQUIRE_SERVERS is 1")
        pytest.skip("schemathesis is not installed: make test-long installs it")
    access_log = tmp_path / "access.log"
    settings = LogSettings(storage_url=str(tmp_path / "fleet"), access_log=str(access_log))
    with start_log(settings) as server, closing(HttpLog([server.endpoint])) as log:
        log.create("tenant/main")
        append(log, b"a", timeline="tenant/main")
        command = [str(CLIENTS), "run", f"{server.endpoint}/openapi.json", "--no-color", "--warnings", "off"]
        command += ["--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert '"status":5' not in access_log.read_text()
