"""The description of the interface, put to the test by schemathesis: everything that it allows, and what it forbids."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import urllib3

HERE = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("lakefs-description")

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)

# 501 is what lakeFS's own server answers a copy without bytes, and ours whoever would delete objects by lakeFS's rules.
SETTINGS = """
[[operations]]
include-operation-id-regex = "^(copyObject|prepareGarbageCollection.*)$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
"""
# A method that no path has stands for the others: which methods a path has is one function of the router for all.
ONE_METHOD = """
[phases.coverage]
unexpected-methods = ["PATCH"]
"""


@pytest.fixture(scope="module")
def filled(local_server: Any) -> Any:
    """A server with the names that `schema_hooks` knows."""
    headers = urllib3.make_headers(basic_auth=f"{local_server.access_key_id}:{local_server.secret_access_key}")
    pool = urllib3.PoolManager(retries=False)

    def ask(place: str, body: Any) -> None:
        raw = json.dumps(body) if isinstance(body, dict) else body
        reply = pool.request("POST", f"{local_server.endpoint}/api/v1/repositories{place}", body=raw, headers=headers)
        assert reply.status == 201, reply.data

    ask("", {"name": "analytics", "storage_namespace": "local://analytics"})
    for path in ("a", "folder/b"):
        ask(f"/analytics/branches/main/objects?path={path}", b"12345")
    ask("/analytics/branches/main/commits", {"message": "first"})
    ask("/analytics/branches", {"name": "dev", "source": "main"})
    ask("/analytics/tags", {"id": "v1", "ref": "main"})
    pool.clear()
    return local_server


def explore(
    python: Path, served: Any, folder: Path, *arguments: str, known: bool = True, more: str = "", settings: str = ""
) -> str:
    """Run schemathesis against a server; its report. A failure of the run fails the test.

    Args:
        known: put names that exist in the place of most generated ones, which makes valid what was meant as invalid.
        more: checks in addition to `CHECKS`.
        settings: in addition to `SETTINGS`.
    """
    (folder / "schemathesis.toml").write_text(SETTINGS + settings)
    command = [str(python.parent / "st"), "run", f"{served.endpoint}/openapi.json", "--no-color", "--warnings", "off"]
    command += ["--auth", f"{served.access_key_id}:{served.secret_access_key}", "--workers", "2"]
    command += ["--checks", ",".join([*CHECKS, *more.split()]), "--continue-on-failure", *arguments]
    environment = {**os.environ, **({"SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": str(HERE)} if known else {})}
    for _ in range(3):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if "AST constructor recursion depth mismatch" not in done.stdout:  # CPython 3.11 with two threads that compile
            break
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    bugs = [line for line in served.log.read_text().splitlines() if "Traceback" in line]
    assert bugs == [], bugs[0]
    return done.stdout


def test_everything_described_is_answered_as_described(filled: Any, clients_python: Path, tmp_path: Path) -> None:
    """A request of every operation: no failure of the server, every reply as it is described."""
    report = explore(clients_python, filled, tmp_path, "--phases", "fuzzing", "--max-examples", "1", "--seed", "1")
    match = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", report)
    assert match is not None
    assert len(set(match.groups())) == 1, report
    # What is not HTTP at all has no line of its own, only a sentence.
    lines = [line for line in filled.log.read_text().splitlines() if line.startswith("{")]
    statuses = [json.loads(line)["status"] for line in lines]
    assert sum(200 <= status < 300 for status in statuses) > 20, "hardly any request came past the first look"


@pytest.mark.long
def test_edges_of_the_description(filled: Any, clients_python: Path, tmp_path: Path) -> None:
    """Requests inside and at the edges of the description, and each method that a path has not."""
    explore(clients_python, filled, tmp_path, "--phases", "coverage", "--seed", "1", settings=ONE_METHOD)


@pytest.mark.long
def test_what_the_description_forbids_is_refused(filled: Any, clients_python: Path, tmp_path: Path) -> None:
    """A request that violates the description is never accepted."""
    explore(clients_python, filled, tmp_path, "--phases", "coverage", known=False, more="negative_data_rejection")


@pytest.mark.long
def test_random_requests_find_nothing(filled: Any, clients_python: Path, tmp_path: Path, tell: Any) -> None:
    """Far more random requests, other ones each time."""
    report = explore(clients_python, filled, tmp_path, "--phases", "fuzzing", "--max-examples", "40")
    tell(next(line for line in report.splitlines() if "generated" in line).strip())
