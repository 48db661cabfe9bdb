"""The guide's Declarative Pipeline runs as it is shown, twice, by Spark's own command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from lakebed.spark.jar import find_jar

HOME = Path(pyspark.__file__).parent
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "declarative-pipelines.md"
QUIET = "spark.ui.enabled false\nspark.driver.host localhost\nspark.driver.memory 1g\nspark.sql.shuffle.partitions 2\n"


def run_pipeline(folder: Path) -> None:
    """Run the command that the page shows in the project's folder."""
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_TESTING": "1",  # its server of Spark Connect takes a free port
    }
    command = [str(HOME / "bin" / "spark-pipelines"), "run"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = "\n".join(line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("\tat "))
    assert done.returncode == 0, said[-5000:]
    assert "Run is COMPLETED" in said


@pytest.mark.long
def test_the_guide(tmp_path: Path) -> None:
    """Streaming tables, a materialized view, changes of both types and a sink; the second run continues the first."""
    page = GUIDE.read_text().replace("/opt/lakebed/bin/python", sys.executable)
    page = re.sub(r"/opt/lakebed/jars/\S+", str(find_jar()), page).replace("/data/", f"{tmp_path}/")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["", "yaml", "python", "python", "python", "python"]
    (settings, spec, transformations, prepare, add, check) = (text for _, text in blocks)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-defaults.conf").write_text(settings + QUIET)
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    (tmp_path / "transformations" / "shop.py").write_text(transformations)
    names: dict[str, Any] = {}
    for step in (prepare, run_pipeline, add, run_pipeline, check):
        if isinstance(step, str):
            exec(compile(step, str(GUIDE), "exec"), names)
        else:
            step(tmp_path)
