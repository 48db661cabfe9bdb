"""Fixtures: Flink with the table format's own connector, a cluster in one process; its catalog is a server of lakebed.

Every test in this folder runs in one group of pytest-xdist, so that a test run starts one cluster at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Lake
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

HERE = Path(__file__).parent
OPENS = ("lang", "net", "nio", "text", "time", "util", "util.concurrent")
"""Packages of java.base that Flink reaches into, as its own scripts allow."""
STREAMS = {
    "execution.checkpointing.interval": "500 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "100 ms",
}
"""Options of jobs that run on."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One group: one cluster at a time. Without pytest-xdist there are no groups."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.xdist_group("flink"))


class FlinkError(Exception):
    """Flink or its connector refused; the last cause's own words."""


class Flink:
    """A Flink cluster in a process of its own, driven by JSON lines (FlinkWorker.java).

    Tests cannot import this module, so the error that they need is here too.
    """

    Error = FlinkError

    def __init__(self, folder: Path, catalog: Mapping[str, str]) -> None:
        self.folder = folder
        self.log = folder / "flink.log"
        self.catalog = dict(catalog)
        self.start_cluster()

    def start_cluster(self) -> None:
        """Start a cluster; a later one after `kill`."""
        home = os.environ.get("JAVA_HOME")
        program = str(Path(home, "bin", "java")) if home else "java"
        classes = os.pathsep.join([str(HERE / "classes"), str(HERE / "lib" / "*")])
        flags = ["-Xmx1200m", "-XX:MaxMetaspaceSize=500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        flags += ["-Duser.timezone=UTC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        flags += [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENS]
        flags.append(f"-Djava.io.tmpdir={self.folder}")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [program, *flags, "-cp", classes, "FlinkWorker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        self.ask("catalog", catalog=self.catalog)

    def kill(self) -> None:
        """End the cluster with all its jobs at once."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, verb: str, **request: Any) -> Any:
        """One request; its answer, or `FlinkError`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"verb": verb, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise FlinkError("the process ended: " + self.log.read_text()[-2000:])
        reply = json.loads(line)
        if "error" in reply:
            with self.log.open("a") as log:
                log.write(reply["trace"])
            raise FlinkError(reply["error"])
        return reply["answer"]

    def run(self, *statements: str) -> list[list[Any]]:
        """Run statements to their end; the rows of the last one, sorted, each without its kind."""
        answers = self.ask("run", statements=statements)
        return sorted((row[1:] for row in answers[-1]), key=repr)

    def start(self, *statements: str, options: Mapping[str, str] | None = None) -> str:
        """Start a job that runs on; its id."""
        return str(self.ask("start", statements=statements, streaming=True, options={**STREAMS, **(options or {})}))

    def follow(self, name: str, *statements: str, options: Mapping[str, str] | None = None) -> str:
        """Start a query that runs on, of which `rows` gives the rows; the id of its job."""
        options = {**STREAMS, **(options or {})}
        return str(self.ask("follow", name=name, statements=statements, streaming=True, options=options))

    def rows(self, name: str) -> list[list[Any]]:
        """What a query that runs on has given so far, each row with its kind first."""
        return list(self.ask("rows", name=name))

    def has_ended(self, job: str) -> bool:
        """Whether a job has done all its work. Raises `FlinkError` when it failed."""
        status = self.ask("status", job=job)
        if status == "FAILED":
            raise FlinkError(self.ask("failure", job=job))
        return bool(status == "FINISHED")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a lake, with an S3 gateway."""
    if not (HERE / ".ready").exists():
        pytest.skip("Flink is not installed: run `make flink`, which gets it by Maven")
    folder = tmp_path_factory.mktemp("served")
    options = ServerOptions(durable=False, s3_key_file=str(folder / "s3.key"))
    with start_server(folder / "lake", options=options) as server:
        yield server


@pytest.fixture(scope="module")
def flink(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A cluster whose catalog is the server."""
    started = running.started
    catalog = {
        "metastore": "rest",
        "uri": f"{started.endpoint}/paimon",
        "warehouse": "lake",
        "token.provider": "bear",
        "token": f"{started.access_key}.{started.secret}",
        "s3.endpoint": started.endpoint,
        "s3.access-key": str(started.access_key),
        "s3.secret-key": str(started.secret),
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
    }
    cluster = Flink(tmp_path_factory.mktemp("flink"), catalog)
    yield cluster
    cluster.kill()


@pytest.fixture
def lake(running: Running) -> Lake:
    """The same folder, opened by lakebed."""
    return lakebed.open(running.started.storage_url)
