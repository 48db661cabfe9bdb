"""Iceberg's own compatibility kit for REST catalogs against a server: what it tests of reading passes.

Nearly all of its tests write. A client that was told which endpoints a server has refuses to write before it asks, so
these fail in the client, in its words; what fails in any other way is a defect of the server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

_POM = Path(__file__).parent / "iceberg_kit" / "pom.xml"
_TESTS = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
_CONSOLE = "junit-platform-console-standalone"
_READING = {"testListNonExistingNamespace()", "testLoadTableWithNonExistingNamespace()", "testLoadMissingTable()"}
"""All tests of the kit in which nothing is written."""
_REFUSAL = re.compile(r"Server does not support endpoint: (POST|DELETE) /v1/\{prefix\}/\S+")


@pytest.mark.long
def test_what_the_kit_tests_of_reading_passes(tmp_path: Path) -> None:
    """Its tests that only read pass, and all others fail because the client knows that the server does not write."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    jars = tmp_path / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], check=True
    )
    console = next(jars.glob(f"{_CONSOLE}-*.jar"))
    others = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar != console)
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        started = running.started
        settings = {
            "CATALOG_URI": f"{started.endpoint}/iceberg",
            "CATALOG_WAREHOUSE": "lake",
            "CATALOG_TOKEN": f"{started.access_key}.{started.secret}",
        }
        command = ["java", "-Drck.local=false", "-XX:TieredStopAtLevel=1", "-jar", str(console), "execute"]
        command += ["--class-path", others, "--select-class", _TESTS, "--reports-dir", str(tmp_path / "reports")]
        # It exits with 1 for the tests that write.
        subprocess.run(command, env={**os.environ, **settings}, capture_output=True, timeout=300, check=False)
    report = ElementTree.parse(tmp_path / "reports" / "TEST-junit-jupiter.xml")
    passed = set()
    for case in report.iter("testcase"):
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        if failure is not None:
            text = f"{failure.get('message')}\n{failure.text}"
            assert _REFUSAL.search(text), f"{case.get('name')}: {text}"
        elif case.find("skipped") is None:
            passed.add(case.get("name"))
    assert passed == _READING
