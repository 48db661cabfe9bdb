"""Writing the report of a lake's runs: one HTML page, and the same facts as JSON beside it.

Owns: the two files. Invariants: both are whole or not there (written under another name, then moved); reading a lake
for its report changes nothing in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.pipeline.facts import Check, Fingerprint, ReportFacts, collect
from lakebed.spark.pipeline.page import render
from lakebed.spark.pipeline.workspace import open_workspace

__all__ = ["ReportFiles", "store_report", "write_report"]


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where a report was written."""

    html: str
    json: str
    facts: ReportFacts


def write_report(
    lake_url: str,
    *,
    path: str | Path,
    branch: str | None = None,
    run_id: str | None = None,
    title: str | None = None,
    checks: Sequence[Check] = (),
    fingerprints: Mapping[tuple[str, str], Fingerprint] | None = None,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> ReportFiles:
    """Collect what the runs of a lake did and write the page.

    Args:
        path: the HTML file; the JSON goes beside it, with the ending ``.json``.
        branch: ``repository/branch``: the runs inside of that branch.
        run_id: only this run; None: all of them.
        title: the page's heading; None: the names of the pipelines.
        checks: what was verified from outside; shown with the tags they are about, or in a list.
        fingerprints: tags as they read now, by (table, tag), to be compared with those taken when they were tagged.

    Raises:
        NotFound: no lake there, or no such run.
        InvalidRequest: the file cannot be written.
    """
    environment = environment or Environment()
    with open_workspace(
        lake_url, branch=branch, create=False, storage_options=storage_options, environment=environment
    ) as workspace:
        return store_report(
            workspace.lake,
            path=path,
            run_id=run_id,
            title=title,
            checks=checks,
            fingerprints=fingerprints,
            environment=environment,
        )


def store_report(
    lake: Lake,
    *,
    path: str | Path,
    run_id: str | None = None,
    writing_run: str | None = None,
    title: str | None = None,
    checks: Sequence[Check] = (),
    fingerprints: Mapping[tuple[str, str], Fingerprint] | None = None,
    environment: Environment,
) -> ReportFiles:
    """As `write_report`, for a lake that is open; `writing_run` is the run that has this report as a step."""
    facts = collect(
        lake,
        environment=environment,
        title=title or "",
        run_id=run_id,
        writing_run=writing_run,
        checks=checks,
        fingerprints=fingerprints,
    )
    html = Path(path).absolute()
    json = html.with_suffix(".json")
    _replace(html, render(facts).encode())
    _replace(json, msgspec.json.format(msgspec.json.encode(facts), indent=2))
    return ReportFiles(str(html), str(json), facts)


def _replace(path: Path, body: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(body)
        os.replace(part, path)
    except OSError as error:
        raise InvalidRequest(f"The report cannot be written to {path}: {error.strerror}.", path=str(path)) from error
