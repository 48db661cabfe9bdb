"""What ``lakebed serve`` prints for each family of clients: pasted, it reaches the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.required import miss

ROOT = Path(__file__).parents[3]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A first start, with the S3 gateway."""
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as running:
        yield running


def blocks_of(running: Running) -> dict[str, list[str]]:
    """The lines to paste, by the first word of their family."""
    blocks: dict[str, list[str]] = {}
    for part in "\n".join(running.started.lines()).split("\n\n")[1:]:
        head, *lines = part.splitlines()
        blocks[head.split()[0].rstrip(":,")] = [line.removeprefix("  ") for line in lines]
    return blocks


def run(python: Path | str, code: str, **variables: str) -> str:
    """What a program prints, with variables in its environment."""
    done = subprocess.run(
        [python, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def variables_of(lines: list[str]) -> dict[str, str]:
    """What lines of a shell export."""
    pairs = [line.removeprefix("export ").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


@pytest.mark.xdist_group("lakefs-local")
def test_every_family_reaches_the_server(running: Running, clients_python: Path) -> None:
    """The lines as printed, and one call behind them; a later start prints none."""
    blocks = blocks_of(running)
    assert list(blocks) == ["lakebed", "lakeFS", "S3", "Paimon", "Iceberg"]
    assert all(len(lines) <= 5 for lines in blocks.values())
    run(sys.executable, "\n".join([*blocks["lakebed"], 'analytics.branch("main").put("a", b"1")', "analytics.close()"]))
    listed = run(
        clients_python, "import lakefs; print(*(x.id for x in lakefs.repositories()))", **variables_of(blocks["lakeFS"])
    )
    assert listed == "analytics"
    body = "import boto3; print(boto3.client('s3').get_object(Bucket='analytics', Key='main/a')['Body'].read())"
    assert run(sys.executable, body, **variables_of(blocks["S3"])) == "b'1'"
    if not PEERS_PYTHON.exists():
        miss("the environment of other clients is not installed: run `make test`, which installs it")
    asked = ['catalog.create_database("shop", True)', "print(*catalog.list_databases())"]
    assert "shop" in run(PEERS_PYTHON, "\n".join([*blocks["Paimon"], *asked])).split()
    assert "('shop',)" in run(sys.executable, "\n".join([*blocks["Iceberg"], "print(catalog.list_namespaces())"]))


def test_a_later_start_prints_them_when_asked(running: Running, tmp_path: Path) -> None:
    """Without the secret, which nothing shows twice."""
    secret = running.started.secret
    running.stop()
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as later:
        assert later.started.lines() == [f"lakebed serves file://{tmp_path}/lake at {later.started.endpoint}"]
        text = "\n".join(later.started.lines(clients=True))
    assert "ACCESS_KEY.SECRET" in text
    assert secret is not None
    assert secret not in text
    assert "AWS_" not in text
