"""Fixtures: the real clients in their own environment, and a warehouse that both sides open."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from worlds.required import miss

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"


class PeerError(Exception):
    """A client refused; its own words."""


class Peers:
    """The real clients over one warehouse, driven by JSON lines in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        with (folder / "peers.log").open("w") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), str(Path(__file__).parent / "peer.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.warehouse = ""
        self.catalog: dict[str, str] = {}
        """Options of a catalog behind a server; none: the warehouse's folder."""

    def call(self, verb: str, **request: Any) -> Any:
        """One request; its answer, or `PeerError`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"verb": verb, "warehouse": self.warehouse, "client": "pypaimon", "catalog": self.catalog, **request}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise PeerError("the peers' process ended: " + (self.folder / "peers.log").read_text()[-2000:])
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["answer"]

    def path(self) -> str:
        """A new file for rows in transit."""
        self.made += 1
        return str(self.folder / f"rows{self.made}.arrow")

    def send(self, rows: pa.Table) -> str:
        """Rows into a file that the other side reads."""
        path = self.path()
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return path

    def write(self, table: str, rows: pa.Table, **request: Any) -> None:
        """Write and commit by another client."""
        self.call("write", table=table, path=self.send(rows), **request)

    def read(self, table: str, *, client: str = "pypaimon", **options: str) -> pa.Table:
        """Everything that another client reads."""
        path = self.path()
        self.call("read", table=table, path=path, client=client, options=options)
        return receive(path)

    def sql(self, statement: str) -> pa.Table:
        """What the Rust client answers."""
        path = self.path()
        self.call("sql", statement=statement, path=path)
        return receive(path)


def receive(path: str) -> pa.Table:
    """Rows that the other side wrote."""
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.fixture(scope="session")
def peer_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """One process of the real clients for the whole run."""
    if not PYTHON.exists():
        miss(f"the real clients are not installed at {PYTHON.parents[1].name}: run `make test`, which installs them")
    peers = Peers(tmp_path_factory.mktemp("peers"))
    yield peers
    assert peers.process.stdin is not None
    assert peers.process.stdout is not None
    peers.process.stdin.close()
    peers.process.wait()
    peers.process.stdout.close()


@pytest.fixture
def peers(peer_process: Peers, tmp_path: Path) -> Peers:
    """The real clients, over a fresh warehouse."""
    peer_process.warehouse = str(tmp_path / "lake")
    return peer_process
