"""Hadoop's own tests of its file system for S3, and of the committers of jobs, against the gateway.

They are compiled from the sources that Hadoop publishes. What a test does not ask of a store it skips by itself; all
others pass.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

HERE = Path(__file__).parent
_CONSOLE = "junit-platform-console-standalone"
_SOURCES = "hadoop-aws-*-test-sources.jar"
_CONTRACT = "org.apache.hadoop.fs.contract.s3a.ITestS3AContract"
_COMMIT = "org.apache.hadoop.fs.s3a.commit."
_FILES = "BulkDelete ContentSummary Create Delete Etag GetFileStatus Mkdir MultipartUploader Open Rename Unbuffer"
_COMMITTERS = "Directory Partitioned Staging"
RUNS = [
    [f"{_CONTRACT}{name}" for name in _FILES.split()],
    [f"{_CONTRACT}{name}" for name in ("Seek", "VectoredRead", "RootDir")],
    [
        f"{_COMMIT}ITestCommitOperations",
        f"{_COMMIT}magic.ITestMagicCommitProtocol",
        *(f"{_COMMIT}staging.integration.ITest{name}CommitProtocol" for name in _COMMITTERS.split()),
    ],
]
"""Classes that one JVM runs: the client keeps opened file systems, also for classes that set other options."""
_PASSED_MIN = 400
_UNSERVED = ("encryption", "sts", "create.storage.class", "create.acl")


@pytest.mark.long
def test_hadoops_contract_and_committers_hold(tmp_path: Path) -> None:
    """Files, folders, renames, vectored reads, uploads in parts and the protocols of committers, on a branch."""
    if not (HERE / ".ready").exists() or shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("Hadoop's file system for S3, Maven or javac is not there: run make hadoop-aws")
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    with start_server(tmp_path / "lake", options=options) as server:
        server.site.repositories.create("hadoop")
        started = server.started
        settings = {
            "test.fs.s3a.name": "s3a://hadoop.main/",
            "fs.contract.test.fs.s3a": "s3a://hadoop.main/",
            "fs.s3a.endpoint": started.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": str(started.access_key),
            "fs.s3a.secret.key": str(started.secret),
            "fs.s3a.scale.test.enabled": "true",  # what takes parts of 5 MiB
            **{f"test.fs.s3a.{name}.enabled": "false" for name in _UNSERVED},
        }
        outcomes = run_tests(tmp_path, settings)
    failed = {name: text for name, text in outcomes.items() if text not in ("passed", "skipped")}
    assert not failed, "\n".join(f"{name}: {text}" for name, text in sorted(failed.items()))
    assert list(outcomes.values()).count("passed") >= _PASSED_MIN


def describe(settings: dict[str, str]) -> str:
    """A file of settings in Hadoop's form."""
    root = ElementTree.Element("configuration")
    for name, value in settings.items():
        entry = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(entry, "name").text = name
        ElementTree.SubElement(entry, "value").text = value
    return ElementTree.tostring(root, encoding="unicode")


def run_tests(folder: Path, settings: dict[str, str]) -> dict[str, str]:
    """The outcome of every test: ``passed``, ``skipped`` or the beginning of its failure."""
    jars, sources, classes = (folder / name for name in ("jars", "sources", "classes"))
    fetch = ["mvn", "-q", "-B", "-f", str(HERE / "contract" / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*fetch, f"-DoutputDirectory={jars}"], check=True)
    with zipfile.ZipFile(next(jars.glob(_SOURCES))) as packed:
        packed.extractall(sources)
    console = next(jars.glob(f"{_CONSOLE}-*.jar"))
    files = [str(sources / f"{name.replace('.', '/')}.java") for name in itertools.chain(*RUNS)]
    compiler = ["javac", "-nowarn", "-proc:none", "-d", str(classes), "-sourcepath", str(sources), "-cp", f"{jars}/*"]
    subprocess.run([*compiler, *files], check=True, capture_output=True)
    shutil.copytree(sources / "contract", classes / "contract")
    shutil.copy(sources / "core-site.xml", classes)
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    (classes / "auth-keys.xml").write_text(f"<configuration>{rows}</configuration>")
    others = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar != console)
    outcomes = {}
    for number, names in enumerate(RUNS):
        reports = folder / f"reports-{number}"
        command = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-Dtest.unique.fork.id=fork-0001",
            "-jar",
            str(console),
            "execute",
        ]
        command += ["--class-path", f"{classes}:{others}", "--reports-dir", str(reports)]
        command += [f"--select-class={name}" for name in names]
        with (folder / f"output-{number}").open("w") as output:
            subprocess.run(command, cwd=folder, stdout=output, stderr=output, timeout=1_800, check=False)
        outcomes.update(_read_outcomes(reports / "TEST-junit-jupiter.xml"))
    return outcomes


def _read_outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for number, case in enumerate(ElementTree.parse(report).iter("testcase")):
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        outcome = "passed" if case.find("skipped") is None else "skipped"
        name = f"{str(case.get('classname')).rpartition('.')[2]}.{case.get('name')} ({number})"
        outcomes[name] = outcome if failure is None else f"{failure.get('message')}"[:300]
    return outcomes
