"""The settings that make a lake a catalog, and what is said when the jar is missing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import lakebed.spark.jar as jar
from lakebed.errors import InvalidRequest

SCRIPT = Path(__file__).parents[3] / "tools" / "jar.sh"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of jars, empty."""
    monkeypatch.setattr(jar, "_FOLDER", tmp_path)
    return tmp_path


def test_the_jar_is_that_of_the_minor_version(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is not taken for it."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "4.3.1")
    with pytest.raises(InvalidRequest, match="run make jar"):
        jar.find_jar()
    (jars / "lakebed-spark-4.4.jar").touch()
    with pytest.raises(InvalidRequest, match=r"no SQL catalog for Spark 4\.3, only for 4\.4"):
        jar.find_jar()
    (jars / "lakebed-spark-4.3.jar").touch()
    assert jar.find_jar() == jars / "lakebed-spark-4.3.jar"


def test_the_settings_of_a_catalog(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder is made absolute: the JVM may have another working folder."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "4.3.0")
    (jars / "lakebed-spark-4.3.jar").touch()
    monkeypatch.chdir(jars)
    settings = jar.catalog_settings({"lake": "data"}, python="python9")
    assert settings == {
        "spark.jars": str(jars / "lakebed-spark-4.3.jar"),
        "spark.sql.extensions": "org.lakebed.spark.LakebedExtensions",
        "spark.sql.catalog.lake": "org.lakebed.spark.LakebedCatalog",
        "spark.sql.catalog.lake.url": f"file://{jars}/data",
        "spark.sql.catalog.lake.python": "python9",
    }
    assert jar.catalog_settings({"lake": "s3://b/l"})["spark.sql.catalog.lake.url"] == "s3://b/l"
    with pytest.raises(InvalidRequest, match="cannot name a catalog"):
        jar.catalog_settings({"my-lake": "data"})


def test_settings_of_the_caller_are_added(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library's jar and extension stay, and so do those of the catalogs."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "4.3.0")
    (jars / "lakebed-spark-4.3.jar").touch()
    settings = jar.catalog_settings({"lake": "s3://b/l"}, python="python9")
    joined = jar.merge_settings(settings, {"spark.jars": "a.jar", "spark.sql.extensions": "A", "spark.master": "local"})
    assert joined["spark.jars"] == f"{jars / 'lakebed-spark-4.3.jar'},a.jar"
    assert joined["spark.sql.extensions"] == "org.lakebed.spark.LakebedExtensions,A"
    assert joined["spark.sql.catalog.lake.python"] == "python9"
    assert joined["spark.master"] == "local"
    assert jar.merge_settings(settings, {"spark.master": "local"}) == {**settings, "spark.master": "local"}


def built(checkout: Path, *, pyspark: str = "4.3.0", path: Path | None = None) -> str:
    """Run the script that compiles the jar in a checkout with one source; what it says."""
    source = checkout / "src" / "lakebed" / "spark" / "jvm" / "A.java"
    source.parent.mkdir(parents=True)
    source.write_text("class A {}")
    (checkout / "src" / "lakebed" / "__init__.py").write_text('__version__ = "1"\n')
    python = checkout / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    version = ".".join(pyspark.split(".")[:2])
    python.write_text(f'#!/bin/sh\ncase "$2" in *metadata*) echo {version};; *) echo "$PWD";; esac\n')
    python.chmod(0o755)
    environment = os.environ if path is None else {"PATH": str(path)}
    command = ["/bin/sh", str(SCRIPT), "venv"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    assert not list(checkout.rglob("*.jar"))
    return done.stderr


def test_without_a_compiler_all_but_the_catalog_is_built(tmp_path: Path) -> None:
    """A JRE is enough for the rest, so the build goes on, and says what is missing and what to install."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("find", "sed", "mktemp", "java"):
        result = shutil.which(name)
        if result is not None:
            (tools / name).symlink_to(result)
    said = built(tmp_path, path=tools)
    assert re.search(r"not built, since there is no JDK \(javac and jar\) on the PATH; all else\s+works.*JDK 17", said)


def test_the_catalog_is_not_compiled_for_another_spark(tmp_path: Path) -> None:
    """Its sources name classes of some minor versions."""
    said = built(tmp_path, pyspark="4.9.1")
    assert "not built for PySpark 4.9: it is written for Spark 4.1 4.2 4.3; all else works." in said
