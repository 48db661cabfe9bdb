"""Pipelines: a YAML file of named steps over a lake, run through Spark, resumable by a ledger in the lake.

Importing this loads neither PySpark nor Java; they are needed when a step that uses Spark runs. Start reading at `run`.
"""

from __future__ import annotations

from lakebed.pipeline.check import CheckReport
from lakebed.pipeline.ledger import RunStatus
from lakebed.pipeline.model import Plan, RunSummary
from lakebed.pipeline.progress import Progress, console_progress
from lakebed.pipeline.report import ReportFiles, write_report
from lakebed.pipeline.report_model import Check, Fingerprint
from lakebed.pipeline.run import Pipeline, check_file, run_file, status

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
