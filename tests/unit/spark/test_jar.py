"""The settings that make a lake a catalog, and what is said when the jar is missing."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

import lakebed.spark.jar as jar
from lakebed.errors import InvalidRequest


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
    found = jar.catalog_settings({"lake": "data"}, python="python9")
    assert found == {
        "spark.jars": str(jars / "lakebed-spark-4.3.jar"),
        "spark.sql.extensions": "org.lakebed.spark.LakebedExtensions",
        "spark.sql.catalog.lake": "org.lakebed.spark.LakebedCatalog",
        "spark.sql.catalog.lake.url": str(jars / "data"),
        "spark.sql.catalog.lake.python": "python9",
    }
    assert jar.catalog_settings({"lake": "s3://b/l"})["spark.sql.catalog.lake.url"] == "s3://b/l"
    with pytest.raises(InvalidRequest, match="cannot name a catalog"):
        jar.catalog_settings({"my-lake": "data"})


def test_settings_of_the_caller_are_added(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library's jar and extension stay, and so do those of the catalogs."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "4.3.0")
    (jars / "lakebed-spark-4.3.jar").touch()
    own = jar.catalog_settings({"lake": "s3://b/l"}, python="python9")
    joined = jar.joined_settings(own, {"spark.jars": "a.jar", "spark.sql.extensions": "A", "spark.master": "local"})
    assert joined["spark.jars"] == f"{jars / 'lakebed-spark-4.3.jar'},a.jar"
    assert joined["spark.sql.extensions"] == "org.lakebed.spark.LakebedExtensions,A"
    assert joined["spark.sql.catalog.lake.python"] == "python9"
    assert joined["spark.master"] == "local"
    assert jar.joined_settings(own, {"spark.master": "local"}) == {**own, "spark.master": "local"}
