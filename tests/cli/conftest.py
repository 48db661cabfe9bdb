"""A lake with a keyed and a plain table, and the command line called in-process."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli.main import run


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error that ``--json`` prints on standard error."""
        return json.loads(self.err)["error"]


Cli = Callable[..., Answer]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run one command: ``cli("table", "tags", lake, "flights")``."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call


def rows(*keys: int, delay: float = 1.0) -> pa.Table:
    """Some flights."""
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "carrier": pa.array(["UA" if key % 2 else "AA" for key in keys], pa.string()),
            "delay": pa.array([delay + key for key in keys], pa.float64()),
        }
    )


SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("carrier", pa.string()), pa.field("delay", pa.float64())]
)


@pytest.fixture(scope="session")
def made_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lake` is a copy of; nothing in it depends on where it lies."""
    folder = tmp_path_factory.mktemp("made") / "lake"
    opened = lakebed.open(str(folder))
    flights = opened.create_table("flights", SCHEMA, primary_keys=["id"], options={"bucket": "1"})
    flights.upsert(rows(1, 2, 3))
    flights.create_tag("jan")
    flights.upsert(rows(3, 4, delay=100.0))
    opened.create_table("db.events", SCHEMA).append(rows(7, 8))
    return folder


@pytest.fixture
def lake(made_lake: Path, tmp_path: Path) -> str:
    """``flights``: key id, two versions, tag jan on the first. ``db.events``: plain, one version."""
    return str(shutil.copytree(made_lake, tmp_path / "lake"))


@pytest.fixture
def state_of() -> Callable[[str], dict[str, str]]:
    """The files of a folder with checksums, byte by byte (hints of readers excepted)."""

    def state(folder: str) -> dict[str, str]:
        files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != "tag-index"]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return state


@pytest.fixture
def unchanged(lake: str, state_of: Callable[[str], dict[str, str]]) -> Callable[[], bool]:
    """Whether the lake still is what it was when the test began."""
    before = state_of(lake)
    return lambda: state_of(lake) == before
