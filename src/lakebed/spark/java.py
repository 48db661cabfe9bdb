"""The check that PySpark and a Java runtime, which Spark needs to start, are on the machine.

Owns: finding `java`, reading its version, and the sentences a user sees when something is missing. Imports no PySpark,
so that its absence can be reported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from lakebed.errors import InvalidRequest

JAVA_VERSION_MIN = 17
"""Spark 4 is compiled for Java 17 and fails with an UnsupportedClassVersionError below."""

PYSPARK_VERSION_MIN = (4, 1)
"""The first with `arrow_udf` (keys are hashed as columns) and `repartitionById` (buckets are dealt out evenly)."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ANSWER_SECONDS_MAX = 30
"""A healthy `java -version` answers within a second. One that hangs must not block the caller."""


def require_pyspark() -> None:
    """Check that PySpark 4.1 or newer and pandas can be imported.

    Raises `InvalidRequest`: they are missing or too old; names what to install.
    """
    for package in ("pyspark", "pandas"):
        if importlib.util.find_spec(package) is None:
            raise InvalidRequest(
                f"lakebed.spark needs the package {package}, which is not installed: pip install 'lakebed[spark]'.",
                kind="spark_missing",
                package=package,
            )
    version = importlib.metadata.version("pyspark")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < PYSPARK_VERSION_MIN:
        oldest = ".".join(map(str, PYSPARK_VERSION_MIN))
        raise InvalidRequest(
            f"lakebed.spark needs PySpark {oldest} or newer, but {version} is installed: "
            "pip install --upgrade 'lakebed[spark]'.",
            kind="spark_missing",
            package="pyspark",
            version=version,
        )


def find_java() -> Path:
    """Return the `java` that Spark will run: ``$JAVA_HOME/bin/java`` if JAVA_HOME is set, otherwise the first on PATH.

    Raises `InvalidRequest`: there is none. Its message lists where it was searched and what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
        raise InvalidRequest(
            f"JAVA_HOME is {home!r}, but there is no executable bin/java in it: let it name a Java "
            f"{JAVA_VERSION_MIN} (or newer) folder, or unset it to use the java on PATH.",
            kind="java_missing",
            java_home=home,
        )
    on_path = shutil.which("java")
    if on_path:
        return Path(on_path)
    raise InvalidRequest(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, but JAVA_HOME is not set and there is no java on PATH: "
        f"install one (Debian: apt install openjdk-{JAVA_VERSION_MIN}-jre-headless; macOS: brew install "
        f"openjdk@{JAVA_VERSION_MIN}) or set JAVA_HOME to it.",
        kind="java_missing",
    )


def parse_java_version(text: str) -> int | None:
    """Parse the feature version that ``java -version`` printed: 17 for ``17.0.15``, 8 for ``1.8.0_392``, or None."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor is not None else major


def require_java() -> Path:
    """Return the `java` that Spark will run, after checking its version.

    Raises `InvalidRequest`: there is no Java, it does not answer, or it is older than 17. The message tells what to do.
    Cost: one ``java -version``, about 50 ms.
    """
    java = find_java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_SECONDS_MAX, check=False)
        text = (answer.stderr + answer.stdout).decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    version = parse_java_version(text)
    if version is None:
        said = text.strip().partition("\n")[0] or "nothing"
        raise InvalidRequest(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {java} -version answered {said!r}: install a Java "
            "runtime and let JAVA_HOME name it.",
            kind="java_missing",
            java=str(java),
        )
    if version < JAVA_VERSION_MIN:
        raise InvalidRequest(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {java} is Java {version}: install a newer one and let "
            "JAVA_HOME name it.",
            kind="java_too_old",
            java=str(java),
            version=version,
        )
    return java
