"""The guide to S3, as a person would follow it: its Python blocks in their order, with the clients that they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "s3.md"
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    """A server as the guide starts it, with the repository that it uses."""
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as server:
        server.site.repositories.create("analytics").branch("main").put("raw/0.csv", b"")
        yield server


def follow(blocks: list[str], gateway: Running, python: Path) -> str:
    """Run blocks in one program, with the credentials in its environment; what it printed."""
    started = gateway.started
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LAKECTL_CREDENTIALS_ACCESS_KEY_ID"] = started.access_key or ""
    environment["LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"] = started.secret or ""
    program = "import os\n" + "\n".join(blocks).replace("http://127.0.0.1:8000", started.endpoint)
    done = subprocess.run(
        [str(python), "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_blocks_of_boto3_work(gateway: Running) -> None:
    """What the guide does with boto3 works as pasted, and is on the branches that it names."""
    (block,) = (block for block in BLOCKS if "import boto3" in block)
    printed = follow([block], gateway, Path(sys.executable))
    assert "flight,delay" in printed
    assert "['main/raw/0.csv', 'main/raw/1.csv', 'main/raw/2.csv']" in printed
    assert "X-Amz-Signature" in printed
    repository = gateway.site.repositories.repository("analytics")
    assert bytes(repository.branch("dev").get("raw/3.csv")) == b"x"


@pytest.mark.long
def test_the_blocks_of_s3fs_work(gateway: Running) -> None:
    """What the guide does with s3fs works as pasted."""
    if subprocess.run([str(CLIENTS), "-c", "import s3fs"], capture_output=True, check=False).returncode != 0:
        pytest.skip("s3fs is not installed in the clients' environment")
    (block,) = (block for block in BLOCKS if "import s3fs" in block)
    assert "analytics/main/raw/4.csv" in follow([block], gateway, CLIENTS)
    entry = gateway.site.repositories.repository("analytics").branch("main").get("raw/4.csv")
    assert bytes(entry) == b"flight,delay\n2,9\n"
