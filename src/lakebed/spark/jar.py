"""The jar of the SQL catalog: where it is, and the settings that make a lake a catalog.

Owns: `find_jar`, `catalog_settings` and `merge_settings`. Imports no PySpark.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url

CATALOG_CLASS: Final = "org.lakebed.spark.LakebedCatalog"
JARS: Final = "spark.jars"
"""The setting that names jars for the driver and the executors."""
EXTENSIONS: Final = "spark.sql.extensions"
"""The setting that lists the classes that extend SQL, separated by commas. Spark reads it when a session starts."""
EXTENSION_CLASS: Final = "org.lakebed.spark.LakebedExtensions"
CATALOGS: Final = "spark.sql.catalog."
"""The prefix of the settings of every catalog."""
_FOLDER: Final = Path(__file__).parent / "jars"


def find_jar() -> Path:
    """Return the jar for the installed PySpark; there is one for each minor version of Spark.

    Raises `InvalidRequest`: there is none; says for which versions there are, and what to do.
    """
    version = importlib.metadata.version("pyspark")
    minor = ".".join(re.findall(r"\d+", version)[:2])
    jar = _FOLDER / f"lakebed-spark-{minor}.jar"
    if jar.is_file():
        return jar
    versions = sorted(path.stem.removeprefix("lakebed-spark-") for path in _FOLDER.glob("lakebed-spark-*.jar"))
    if versions:
        raise InvalidRequest(
            f"There is no SQL catalog for Spark {minor}, only for {', '.join(versions)}: install that PySpark, or use "
            "lakebed.spark.read and lakebed.spark.write, which need no jar.",
            kind="jar_missing",
            version=version,
        )
    raise InvalidRequest(
        "The jar of the SQL catalog is not built: in a checkout, run make jar with a JDK 17 or newer, or install "
        "lakebed's wheel, which has it. lakebed.spark.read and lakebed.spark.write need no jar.",
        kind="jar_missing",
        version=version,
    )


def catalog_settings(catalogs: Mapping[str, str], *, python: str | None = None) -> dict[str, str]:
    """Return the Spark settings that make lakes catalogs of SQL, with the jar.

    Args:
        catalogs: their names in SQL, and the URL of each lake. Credentials come from the environment.
        python: the interpreter that answers for the catalogs; None: the one of the tasks, or this one.

    Raises `InvalidRequest`: as `find_jar`, or a name that SQL would have to quote.
    """
    settings = {JARS: str(find_jar()), EXTENSIONS: EXTENSION_CLASS}
    interpreter = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    for name, url in catalogs.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InvalidRequest(
                f"{name!r} cannot name a catalog: use letters, digits and _, such as 'lake'.", kind="invalid_catalog"
            )
        settings[f"{CATALOGS}{name}"] = CATALOG_CLASS
        settings[f"{CATALOGS}{name}.url"] = str(parse_url(url))
        settings[f"{CATALOGS}{name}.python"] = interpreter
    return settings


def merge_settings(settings: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Merge two sets of settings. `wanted` wins, except that lists of jars and of extensions are joined."""
    lists = {
        name: f"{settings[name]},{wanted[name]}" for name in (JARS, EXTENSIONS) if name in settings and name in wanted
    }
    return {**settings, **wanted, **lists}
