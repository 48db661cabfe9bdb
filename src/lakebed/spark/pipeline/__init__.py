"""Pipelines: a YAML file of named steps over a lake, run through Spark, resumable by a ledger in the lake.

Importing this loads neither PySpark nor Java; they are needed when a step that uses Spark runs. Start reading at `run`.
"""

from __future__ import annotations

from lakebed.spark.pipeline.check import CheckReport
from lakebed.spark.pipeline.ledger import RunStatus
from lakebed.spark.pipeline.model import Plan, RunSummary
from lakebed.spark.pipeline.progress import Progress, console_progress
from lakebed.spark.pipeline.report import ReportFiles, write_report
from lakebed.spark.pipeline.report_model import Check, Fingerprint
from lakebed.spark.pipeline.run import Pipeline, check_file, run_file, status

__all__ = [
    "Check",
    "CheckReport",
    "Fingerprint",
    "Pipeline",
    "Plan",
    "Progress",
    "ReportFiles",
    "RunStatus",
    "RunSummary",
    "check_file",
    "console_progress",
    "run_file",
    "status",
    "write_report",
]
