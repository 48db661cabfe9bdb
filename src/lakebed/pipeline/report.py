"""Writing the report of a lake's runs: one HTML page, and its data as a JSON file in the same folder.

Owns: the two files. Invariants: each is complete or absent (written under another name, then moved); collecting a
report changes nothing in the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from typing_extensions import Unpack

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.objects.path import local_path
from lakebed.pipeline.collect import ReportOptions, collect
from lakebed.pipeline.page import render
from lakebed.pipeline.report_model import ReportFacts
from lakebed.pipeline.workspace import open_workspace
from lakebed.runtime import Environment
from lakebed.whole_file import write_whole


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
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    **options: Unpack[ReportOptions],
) -> ReportFiles:
    """Write a page about the runs of a lake, and the same facts as JSON.

    Args:
        lake_url: URL or path of the lake.
        path: the HTML file. The JSON file has the same name with the ending ``.json``.
        branch: ``repository/branch``: the runs in that branch.
        **options: `title`: the heading; None: the names of the pipelines. `run_id`: only this run. `checks`: what was
            verified outside of the lake. `fingerprints`: tags as they read now, by (table, tag), to compare with those
            taken when they were tagged; missing ones are taken from the last report step that read them.

    Raises:
        NotFound: there is no lake, or no such run.
        InvalidRequest: the file cannot be written.
    """
    environment = environment or Environment()
    with open_workspace(
        lake_url, branch=branch, create=False, storage_options=storage_options, environment=environment
    ) as workspace:
        return store_report(workspace.lake, path=path, environment=environment, **options)


def store_report(
    lake: Lake, *, path: str | Path, environment: Environment, **options: Unpack[ReportOptions]
) -> ReportFiles:
    """Write the report of an open lake; see `write_report`."""
    html = Path(local_path(path)).absolute()
    json = html.with_suffix(".json") if html.name else html
    if html == json:
        raise InvalidRequest(
            f"The report is a page at {html} and a JSON file next to it: give the page a name that ends with .html.",
            kind="invalid_path",
            path=str(html),
        )
    facts = collect(lake, environment=environment, **options)
    _replace(html, render(facts).encode())
    _replace(json, msgspec.json.format(msgspec.json.encode(facts), indent=2))
    return ReportFiles(str(html), str(json), facts)


def _replace(path: Path, body: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as sink:
            sink.write(body)
    except OSError as error:
        raise InvalidRequest(f"The report cannot be written to {path}: {error.strerror}.", path=str(path)) from error
