"""The descriptions of the control plane's and the log's interfaces, put to the test by schemathesis.

Requests inside the descriptions and at their edges: numbers out of range, broken and oversized bodies, unknown names.
No defect of the server, every reply as described; after it the service works as before.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, start_control
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.log.client import HttpLog
from lakebed.fleet.log.serve import LogSettings, start_log
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.ports import NodeReport
from worlds.fleet_control_process import TAKING
from worlds.fleet_log import append
from worlds.required import miss
from worlds.waiting import wait_until

SCHEMATHESIS = Path(__file__).parents[3] / ".venv-clients" / "bin" / "st"
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
Served = tuple[str, Callable[[], None]]
"""The URL of a service, and what works with it after everything."""


@contextmanager
def control_plane(folder: Path, access_log: Path) -> Iterator[Served]:
    """A control plane with a node, which takes everything, and a tenant."""
    settings = ControlSettings(
        storage_url=str(folder),
        nodes=lambda _: TAKING,
        options=ControlOptions(silent_ms=600_000),
        access_log=str(access_log),
        durable=False,
    )
    with start_control(settings) as server:
        wait_until(lambda: server.site.control is not None)
        url = f"http://{server.site.serving.authority}"
        with closing(HttpControl(url)) as control:
            register(control, "node")
            control.create_tenant("tenant")

            def works() -> None:
                register(control, "another")
                control.create_tenant("new")
                wait_until(lambda: control.route("new").node is not None)

            yield url, works


def register(control: HttpControl, name: str) -> None:
    """A node that takes tenants."""
    control.register(NodeRecord(name, f"http://{name}.test:1", f"{name}-1", f"{name}-disk", registered_ms=0))
    control.attached(NodeReport(name, f"{name}-1", f"{name}-disk"))


@contextmanager
def log(folder: Path, access_log: Path) -> Iterator[Served]:
    """The embedded log with a timeline."""
    settings = LogSettings(storage_url=str(folder), access_log=str(access_log), durable=False)
    with start_log(settings) as server, closing(HttpLog([server.endpoint])) as client:
        client.create("tenant/main")
        append(client, b"a", timeline="tenant/main")

        def works() -> None:
            client.create("new/main")
            assert append(client, b"a", timeline="new/main") == 1

        yield server.endpoint, works


def explore(service: Callable[..., Any], folder: Path, *arguments: str) -> None:
    """Run schemathesis against a service."""
    if not SCHEMATHESIS.exists():
        miss("schemathesis is not installed: make test installs it")
    access_log = folder / "access.log"
    with service(folder / "fleet", access_log) as (url, works):
        command = [str(SCHEMATHESIS), "run", f"{url}/openapi.json", "--no-color", "--warnings", "off"]
        command += ["--checks", CHECKS, "--seed", "1", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        works()
    replies = [json.loads(line) for line in access_log.read_text().splitlines()]
    assert len(replies) > 100
    assert not [reply for reply in replies if reply["status"] >= 500 and reply["status"] != 503]


# Both decode their requests by the same declarations.
@pytest.mark.parametrize("service", [pytest.param(control_plane, marks=pytest.mark.long), log])
def test_edges_of_the_description(service: Callable[..., Any], tmp_path: Path) -> None:
    """Each parameter and field at its limits and beyond them; waits, which take their time, in the long run."""
    explore(service, tmp_path, "--phases", "coverage", "--exclude-operation-id", "wait")


@pytest.mark.long
@pytest.mark.parametrize("service", [control_plane, log])
def test_random_requests(service: Callable[..., Any], tmp_path: Path) -> None:
    """Many requests of all kinds, valid and invalid."""
    explore(service, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "40")
