"""Fixtures: servers in processes of their own, and unmodified clients in theirs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from worlds.required import miss

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
LAKEBED = Path(sys.executable).parent / "lakebed"


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        signs: whether its store signs URLs.
        by_turns: whether several processes answer.
        folder: on this machine.
        outside_url: below it lies what may be imported, as clients write it.
        outside_http: where to put such objects by HTTP; empty: the folder is it.
    """

    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    signs: bool
    by_turns: bool
    folder: str
    outside_url: str
    outside_http: str
    process: subprocess.Popen[str] = field(repr=False)
    log: Path


class Clients:
    """The real clients, which run flows in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "clients.log"
        self._process: subprocess.Popen[str] | None = None

    def run(self, flow: str, served: Served) -> None:
        """Run a flow of ``flows/`` against a server; any difference it finds fails the test."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        names = (
            "endpoint",
            "access_key_id",
            "secret_access_key",
            "signs",
            "by_turns",
            "folder",
            "outside_url",
            "outside_http",
        )
        request = {"flow": flow, "server": {name: getattr(served, name) for name in names}}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._end()
            pytest.fail(f"the clients' process ended:\n{self._log.read_text()[-4000:]}")
        problem = json.loads(line).get("error")
        if problem:
            bugs = [row for row in served.log.read_text().splitlines() if "Traceback" in row]
            pytest.fail("\n".join([problem, *bugs[-1:]]))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [str(PYTHON), str(HERE / "client.py")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, "LAKECTL_CONFIG_FILE": str(self._log.parent / "no-such-file")},
                )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``flow`` runs once for each flow that ``FLOWS`` of its file has under its name.

    Each is the name of a module of ``flows/``; of those under the name with ``_long`` the long tests alone run.
    """
    if "flow" in metafunc.fixturenames:
        name, table = metafunc.function.__name__, metafunc.module.FLOWS
        quick = flows_of(table[name])
        rest = [pytest.param(flow, marks=pytest.mark.long) for flow in flows_of(table.get(f"{name}_long", ()))]
        metafunc.parametrize("flow", [*quick, *rest])


def flows_of(modules: Sequence[str]) -> list[str]:
    """The flows of modules of ``flows/``, by their source: what they import is not installed here."""
    found = []
    for module in modules:
        tree = ast.parse((HERE / "flows" / f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"the flow {node.name} does not say what it promises"
                found.append(f"{module}.{node.name}")
    return found


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter of the clients' environment."""
    if not PYTHON.exists():
        miss(f"the real clients are not installed at {PYTHON.parents[1].name}: run `make test`, which installs them")
    return PYTHON


@pytest.fixture(scope="session")
def clients(clients_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """One process of the real clients for the whole run."""
    running = Clients(tmp_path_factory.mktemp("clients"))
    yield running
    running._end()


@contextmanager
def serving(
    storage: str,
    folder: Path,
    *arguments: str,
    storage_options: Mapping[str, str] | None = None,
    outside: tuple[str, str] | None = None,
) -> Iterator[Served]:
    """``lakebed serve`` on a free port until the block ends. `outside`: of a store that signs, URLs as `Served` has."""
    (folder / "import").mkdir()
    told = [word for key, value in (storage_options or {}).items() for word in ("--storage-option", f"{key}={value}")]
    command = [str(LAKEBED), *told, "serve", storage, "--port", "0", "--json", *arguments]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    text = ""
    try:
        for line in process.stdout:
            text += line
            if line.rstrip() == "}":
                break
        else:
            pytest.fail(f"the server did not start:\n{(folder / 'server.log').read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(text)
        yield Served(
            answer["endpoint"],
            answer["access_key_id"],
            answer["secret_access_key"],
            outside is not None,
            "--workers" in arguments,
            str(folder / "import"),
            *(outside or (f"local://{folder / 'import'}", "")),
            process,
            folder / "server.log",
        )
        process.terminate()
        assert process.wait(60) == 0, (folder / "server.log").read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def local_server(clients_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on a local folder."""
    folder = tmp_path_factory.mktemp("served")
    arguments = ("--import-from", str(folder / "import"), "--allow-webhook", "127.0.0.1")
    with serving(str(folder / "lake"), folder, *arguments) as served:
        yield served


@pytest.fixture(scope="module")
def signing_server(clients_python: Path, s3_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on an object store that signs URLs."""
    url, folder = s3_server.url(), tmp_path_factory.mktemp("served")
    place = url.removeprefix("s3://")
    outside = (f"{url}/outside", f"http://127.0.0.1:{s3_server.port}/{place}/outside")
    allowed = ("--import-from", outside[0])  # of the storage itself nothing may be imported but what is named
    with serving(url, folder, *allowed, storage_options=s3_server.options, outside=outside) as served:
        yield served


@pytest.fixture(scope="module")
def shared_server(clients_python: Path, postgresql: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two processes that serve the same records, which PostgreSQL keeps."""
    folder = tmp_path_factory.mktemp("served")
    arguments = ["--metadata", postgresql.make_database(), "--workers", "2", "--import-from", str(folder / "import")]
    with serving(str(folder / "lake"), folder, *arguments) as served:
        yield served
