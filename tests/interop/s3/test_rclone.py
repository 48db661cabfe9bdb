"""rclone against the gateway: what tools that copy whole folders do, and what the guide says of it."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "s3.md"
(BLOCK,) = (block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "rclone" in block)
NAMES = ("1.csv", "of day 1/a+b &c.csv", "of day 1/größe=ü/%41.csv", "of day 2/empty", "of day 2/'quoted' #1?.csv")
LARGE = "large.bin"
"""A file that is sent in parts."""

pytestmark = [pytest.mark.long, pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    """A server with the repository of the guide."""
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as server:
        server.site.repositories.create("analytics")
        yield server


def run(command: str, gateway: Running, folder: Path, **variables: str) -> str:
    """What commands of a shell print, in a folder, with the credentials in their environment."""
    started = gateway.started
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RCLONE_", "AWS_"))} | {
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": started.access_key or "",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": started.secret or "",
        "RCLONE_CONFIG": str(folder / "rclone.conf"),
        "RCLONE_RETRIES": "1",
        **variables,
    }
    program = command.replace("http://127.0.0.1:8000", started.endpoint)
    done = subprocess.run(
        ["sh", "-ec", program], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_branch(gateway: Running) -> dict[str, bytes]:
    """What the branch has below the folder that is copied."""
    branch = gateway.site.repositories.repository("analytics").branch("main")
    return {line.path.removeprefix("raw/"): bytes(branch.get(line.path)) for line in branch.list("raw/")}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into folders that need not be there."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_folders_go_to_a_branch_and_come_back(gateway: Running, tmp_path: Path) -> None:
    """The guide's lines, twice: files that changed, came and went; odd names; an empty file, and one in parts."""
    raw, random_bytes = tmp_path / "raw", random.Random(3).randbytes
    write_files(raw, {name: random_bytes(1000) for name in NAMES} | {LARGE: random_bytes(11 << 20)})
    (raw / "of day 2/empty").write_bytes(b"")
    parts = {"RCLONE_S3_UPLOAD_CUTOFF": "5M", "RCLONE_S3_CHUNK_SIZE": "5M"}
    run(BLOCK, gateway, tmp_path, **parts)
    assert read_branch(gateway) == read_folder(raw) == read_folder(tmp_path / "copy")
    (raw / LARGE).unlink()
    shutil.rmtree(raw / "of day 1")
    write_files(raw, {"1.csv": b"another", "of day 3/1.csv": b"new"})
    run(BLOCK, gateway, tmp_path, **parts)
    assert read_branch(gateway) == read_folder(raw) == read_folder(tmp_path / "copy")
    assert set(read_folder(raw)) == {"1.csv", "of day 2/empty", "of day 2/'quoted' #1?.csv", "of day 3/1.csv"}


def test_verbs_of_rclone(gateway: Running, tmp_path: Path) -> None:
    """Listings, moves within the branch, sizes, hashes, reads of a part and deletions say what a folder would."""
    settings = "".join(line + "\n" for line in BLOCK.splitlines() if line.startswith("export"))

    def rclone(*words: str) -> str:
        return run(settings + "rclone " + " ".join(words), gateway, tmp_path)

    write_files(tmp_path / "raw", {f"{number % 3}/{number}.csv": b"%d\n" % number * 100 for number in range(30)})
    rclone("copy ./raw lake:analytics/main/raw")
    assert set(rclone("lsf -R --files-only lake:analytics/main/raw").split()) == set(read_folder(tmp_path / "raw"))
    assert rclone("lsd lake:").split()[-1] == "analytics"
    assert rclone("lsf lake:analytics/main/raw").split() == ["0/", "1/", "2/"]
    assert '"count":30' in rclone("size --json lake:analytics/main/raw").replace(" ", "")
    assert rclone("cat --offset 2 --count 3 lake:analytics/main/raw/1/1.csv") == "1\n1"
    rclone("moveto lake:analytics/main/raw/1/1.csv lake:analytics/main/raw/moved.csv")
    assert read_branch(gateway)["moved.csv"] == b"1\n" * 100
    assert "1/1.csv" not in read_branch(gateway)
    rclone("deletefile lake:analytics/main/raw/moved.csv")
    rclone("purge lake:analytics/main/raw/2")
    assert len(read_branch(gateway)) == 30 - 1 - 10
    rclone("mkdir lake:analytics.dev")
    rclone("sync lake:analytics.main lake:analytics.dev")
    rclone("check lake:analytics.main lake:analytics.dev")
    branches = gateway.site.repositories.repository("analytics").branches()
    assert sorted(branch.name for branch in branches) == ["dev", "main"]


def test_pages_of_encoded_names(gateway: Running, tmp_path: Path) -> None:
    """What stands last on a page is read and deleted under its own name, with whatever percent and plus signs."""
    settings = "".join(line + "\n" for line in BLOCK.splitlines() if line.startswith("export"))
    names = [f"{name}{number}" for name in ("a+b", "50%", "%41", "=&") for number in (1, 2)]
    write_files(tmp_path / "raw", dict.fromkeys(names, b"1"))
    pages = {"RCLONE_S3_LIST_URL_ENCODE": "true", "RCLONE_S3_LIST_CHUNK": "1"}
    run(settings + "rclone sync ./raw lake:analytics.main/raw", gateway, tmp_path, **pages)
    run(settings + "rclone sync --fast-list lake:analytics.main/raw ./copy", gateway, tmp_path, **pages)
    assert read_folder(tmp_path / "copy") == read_folder(tmp_path / "raw") == read_branch(gateway)
    run(settings + "rclone purge lake:analytics.main/raw", gateway, tmp_path, **pages)
    assert read_branch(gateway) == {}
