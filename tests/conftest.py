"""What tests share: stores (memory, local folders, an S3 server, Azurite, PostgreSQL on loopback ports) and Spark.

A server is started once a session and worker. One that is not installed skips its tests with a reason, and fails them
when LAKEBED_REQUIRE_SERVERS=1, as continuous integration sets it.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.testing.clock import ManualClock
from worlds.distribution import FilesAndGroups, sort_groups_first
from worlds.ports import free_port
from worlds.postgresql import NotInstalled, PostgreSQL, running_postgresql
from worlds.required import miss
from worlds.spark_archive import OPTIONS, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
AZURITE = ROOT / "tests" / "servers" / "node_modules" / ".bin" / "azurite-blob"
S3_SERVER = ROOT / "tests" / "servers" / "s3.py"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = base64.b64encode(b"a key that only the test server knows").decode()
START_TRIES_MAX = 600
FOLDER_NUMBERS = itertools.count()
FAILED = pytest.StashKey[bool]()
NAMED_MAX = 200
"""Characters of a parameter that stand in the name of its test."""

# Processes that tests start import `worlds` as the tests themselves do (`pythonpath` in pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))

# Spark's own scripts read these variables, so they hold for every JVM that a test starts, however it starts it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())
os.environ.setdefault("SPARK_LAUNCHER_OPTS", OPTIONS)

# A busy machine is slow, and no example is wrong for it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# What is collected lives until the end of the run: the garbage collector looks at it neither while it grows nor later.
gc.disable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its beginning: names of some megabytes would go to and fro between processes."""
    if isinstance(val, (str, bytes)) and len(val) > NAMED_MAX:
        return f"{val[:NAMED_MAX]!a}, {len(val)} long"
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One worker runs what needs Azurite, whose start takes as much processor time as 700 requests to it."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if "azure" in item.name or "azure_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("azure"))


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)  # after each folder has named its groups
def order_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, the order in which they are handed out."""
    if hasattr(config, "workerinput"):
        sort_groups_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndGroups | None:
    """Hand out groups and files with ``--dist loadgroup``; long tests one by one, since each may take minutes."""
    is_ours = config.getoption("dist") == "loadgroup" and config.getoption("markexpr") != "long"
    return FilesAndGroups(config, log) if is_ours else None


def pytest_collection_finish() -> None:
    """From here on there is garbage."""
    gc.freeze()
    gc.enable()


def ask(port: int, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
    """One request to a loopback server; its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the server answers."""
    for _ in range(START_TRIES_MAX):
        if process.poll() is not None:
            break
        try:
            ask(port, "GET", "/")
            return
        except OSError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")


@dataclass(frozen=True)
class Server:
    """A running server, and what opens a store on it."""

    scheme: str
    port: int
    log: Path
    options: Mapping[str, str] = field(repr=False)
    make_place: Callable[[str], None]

    def url(self) -> str:
        """A store URL in a bucket or container made for it."""
        place = f"lakebed-{uuid.uuid4().hex}"
        self.make_place(place)
        return f"{self.scheme}://{place}/some/prefix"

    def request_lines(self) -> list[str]:
        """Every request that the server has logged."""
        return [line for line in self.log.read_text().splitlines() if " HTTP/1." in line]


def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server until the generator resumes."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            wait_for(process, port, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:  # it waits for clients that keep their connections
                process.kill()
                process.wait(30)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The S3 server of moto."""
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    options = {
        "aws_endpoint": f"http://127.0.0.1:{port}",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "secret-of-the-test-server",
        "aws_region": "us-east-1",
    }
    for _ in running([sys.executable, str(S3_SERVER), "-H", "127.0.0.1", "-p", str(port)], port, log):
        yield Server("s3", port, log, options, lambda place: make_bucket(port, place))


def make_bucket(port: int, place: str) -> None:
    """Create a bucket."""
    assert ask(port, "PUT", f"/{place}") == 200


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Azurite's blob server."""
    if shutil.which("node") is None:
        miss("Node.js is not installed, which Azurite needs")
    if not AZURITE.exists():
        miss("Azurite is not installed: run `npm install` in tests/servers (make test does)")
    folder = tmp_path_factory.mktemp("azure")
    port, log = free_port(), folder / "log"
    command = [str(AZURITE), "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    options = {
        "azure_storage_account_name": AZURITE_ACCOUNT,
        "azure_storage_account_key": AZURITE_KEY,
        "azure_storage_endpoint": f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURITE_ACCOUNTS", f"{AZURITE_ACCOUNT}:{AZURITE_KEY}")
        for _ in running(command, port, log):
            yield Server("az", port, log, options, lambda place: make_container(port, place))


def make_container(port: int, place: str) -> None:
    """Create a container, with a request signed as Azure's shared keys want it."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", "Content-Length": "0"}
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{place}\nrestype:container"
    text = f"PUT{chr(10) * 12}x-ms-date:{headers['x-ms-date']}\nx-ms-version:{headers['x-ms-version']}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    status = ask(port, "PUT", f"/{AZURITE_ACCOUNT}/{place}?restype=container", headers)
    assert status == 201, status


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL cluster in a temporary folder, on a free loopback port."""
    with ExitStack() as running:
        try:
            server = running.enter_context(running_postgresql())
        except NotInstalled as problem:
            miss(str(problem))
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the test's own, deleted after the test unless it failed: together they would take gigabytes.

    Pytest's own fixture would list the folders of all tests before, and move a link to the newest.
    """
    name = re.sub(r"\W", "_", request.node.name)[:25]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(FOLDER_NUMBERS)}"
    folder.mkdir(0o700)
    yield folder
    if FAILED not in request.node.stash:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["memory", "local", "s3", "azure"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """`open_store` bound to a fresh place of each kind: every call opens the same place anew."""
    options: Mapping[str, str] | None = None
    if request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}/some/prefix"
    elif request.param == "local":
        url = str(tmp_path / "some" / "prefix")
    else:
        server: Server = request.getfixturevalue(f"{request.param}_server")
        url, options = server.url(), server.options
    return lambda **settings: open_store(url, storage_options=options, **settings)


@pytest.fixture
def store(opened: Callable[..., Any]) -> Any:
    """A fresh store of each kind."""
    return opened()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only on request."""
    return ManualClock()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line at the end of the run, from any worker."""
    return lambda line: record_property("told", line)


@pytest.fixture
def found_at_seed(record_property: Callable[[str, object], None]) -> Callable[[str, str, int], None]:
    """``(group, mutation, seed)``: say at the end at which seed a mutation was found, and the median of its group."""
    return lambda group, mutation, seed: record_property("found at seed", [group, mutation, seed])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lines that tests reported, and the seeds at which mutations were found."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    said = [pair for report in reports if report.when == "call" for pair in report.user_properties]
    lines = [str(line) for name, line in said if name == "told"]
    groups: dict[str, dict[str, int]] = {}
    for name, result in said:
        if name == "found at seed":
            groups.setdefault(result[0], {})[result[1]] = result[2]
    for group, seeds in groups.items():
        listed = ", ".join(f"{mutation} {seed}" for mutation, seed in sorted(seeds.items()))
        lines.append(f"{group}, found at seed: {listed}; median {statistics.median(seeds.values()):g}")
    if lines:
        terminalreporter.section("told by tests")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests of a worker share: what lakebed itself would start, on two cores, with the catalog."""
    import lakebed.spark  # the other workers need no PySpark
    from lakebed.spark.jar import EXTENSION_CLASS, EXTENSIONS, JARS, find_jar

    settings: dict[str, str] = {}
    subprocess.run([ROOT / "tools" / "jar.sh", sys.prefix], cwd=ROOT, check=True)
    with suppress(InvalidRequest):  # another minor version of Spark: tests of SQL say so
        settings = {JARS: str(find_jar()), EXTENSIONS: EXTENSION_CLASS}
    # A plan that runs once is interpreted sooner than it is compiled. JVMs that tests start themselves do compile.
    settings |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    settings["spark.sql.shuffle.partitions"] = "2"  # of a few rows, and so many cores
    settings["spark.python.daemon.module"] = "worlds.spark_archive"  # its forks have what they would import
    session = lakebed.spark.session("lakebed tests", cores=2, settings=settings)
    yield session
    session.stop()
