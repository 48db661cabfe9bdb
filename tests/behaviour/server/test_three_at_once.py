"""A server, commands and a Spark job on one lake at once: each by way of the server, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from lakebed import repo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_COUNT = 3
FILE_COUNT = 24
ROUND_COUNT = 2

COMMITTING = """
import subprocess, sys
lake, file, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    for command in (["put", lake, "analytics", "main", f"cli/{number}", file],
                    ["commit", lake, "analytics", "main", "-m", f"command {number}", "--allow-empty"]):
        subprocess.run([sys.executable, "-m", "lakebed.cli", "repo", *command], check=True, stdout=subprocess.DEVNULL)
"""


@pytest.fixture
def told(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A running ``lakebed serve``: its first report, and its process."""
    command = [sys.executable, "-m", "lakebed.cli", "serve", str(tmp_path / "lake"), "--port", "0"]
    log = ["--access-log", str(tmp_path / "access.log"), "--json"]
    process = subprocess.Popen([*command, *log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = ""
        while not said.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.communicate()
            said += line
        yield {**json.loads(said), "process": process}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_server_a_command_and_a_job_at_once(told: dict[str, Any], tmp_path: Path, spark: SparkSession) -> None:
    """Commands commit in a loop while a job stages files in single calls and commits: all of it is there at the end."""
    from lakebed.spark import jobs

    lake, access_key, secret = str(tmp_path / "lake"), told["access_key_id"], told["secret_access_key"]
    file = tmp_path / "file"
    file.write_bytes(b"by a command")
    with repo.open(f"{told['endpoint']}/analytics", access=repo.Access(access_key=access_key, secret=secret)) as served:
        credentials = {"LAKEBED_ACCESS_KEY_ID": access_key, "LAKEBED_SECRET_ACCESS_KEY": secret}
        command = subprocess.Popen(
            [sys.executable, "-c", COMMITTING, lake, str(file), str(COMMIT_COUNT)],
            env={**os.environ, **credentials},
            stderr=subprocess.PIPE,
            text=True,
        )
        main = served.branch()
        for number in range(ROUND_COUNT):
            rows = [(f"job/{number}/{item}", b"%d of %d" % (item, number)) for item in range(FILE_COUNT)]
            frame = spark.createDataFrame(rows, "path string, content binary").repartition(4)
            assert jobs.stage_files(spark, main, frame) == FILE_COUNT
            main.commit(f"job {number}", allow_empty=True)  # a command may have committed what the job had staged
        _, problems = command.communicate()
        assert command.returncode == 0, problems
        main.commit("the end", allow_empty=True)
        wanted = {f"cli/{item}" for item in range(COMMIT_COUNT)} | {
            f"job/{number}/{item}" for number in range(ROUND_COUNT) for item in range(FILE_COUNT)
        }
        assert {entry.path for entry in served.ref("main@").list()} == wanted
        assert main.get("job/1/17") == b"17 of 1"
        messages = [commit.message for commit in main.log()]
        assert {f"command {item}" for item in range(COMMIT_COUNT)} | {
            f"job {item}" for item in range(ROUND_COUNT)
        } < set(messages)
        assert len(messages) == COMMIT_COUNT + ROUND_COUNT + 2
        assert {row["path"] for row in jobs.list_repository(spark, served).collect()} == wanted
    assert urllib3.request("GET", f"{told['endpoint']}/healthcheck").status == 200
    told["process"].send_signal(signal.SIGTERM)
    assert told["process"].wait(60) == 0
    statuses = [json.loads(line)["status"] for line in (tmp_path / "access.log").read_text().splitlines()]
    assert max(statuses) < 500
    with repo.open(f"{lake}/analytics.repo", create=False) as local:
        assert {entry.path for entry in local.ref("main@").list()} == wanted
        assert bytes(local.branch().get("cli/2")) == b"by a command"
