"""`check_url`: the check of a lake, or of one table's folder.

Owns: which tables are checked, the lake's own marker, and remains of dropped tables. The check of one table is in
`table.py`. Invariants: nothing is written or deleted; one broken table does not keep the others from being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakebed.errors import Corruption, LakebedError, NotFound, UnsupportedFormat
from lakebed.fsck.model import CheckReport, Findings, Progress
from lakebed.fsck.table import check_table
from lakebed.lake.lake import Lake
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.table import Table

__all__ = ["check_lake", "check_url"]


def check_url(
    url: str,
    *,
    table: str | None = None,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CheckReport:
    """Check the lake, or the table, at a URL.

    Args:
        url: of a lake, or of one table's folder.
        table: only this table of the lake.
        deep: read every data file too.
        progress: called after each version and each file.

    Returns:
        Everything found; `error_count` is zero when the store is sound.

    Raises:
        NotFound: nothing is there, or no such table.
        InvalidRequest: what is there is neither a lake nor a table.
        Unavailable: the store does not answer.
    Cost: a LIST of each table, every snapshot, tag and manifest once; with `deep` every data file once.
    """
    environment = environment or Environment()
    store = open_store(url, storage_options=storage_options, environment=environment, create=False)
    report = CheckReport(store.root_url, deep)
    if table is None and "schema" in store.list_with_delimiter("").folders:
        name = store.root_url.rpartition("/")[2]
        _check_one(store, report, name=name, environment=environment, progress=progress)
        return report
    lake = Lake.open(store, create=False, environment=environment)
    return check_lake(lake, table=table, report=report, progress=progress)


def check_lake(
    lake: Lake,
    *,
    table: str | None = None,
    report: CheckReport | None = None,
    deep: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CheckReport:
    """Check one table of a lake, or all of them and the remains of dropped ones. As `check_url`."""
    report = report or CheckReport(lake.url, deep)
    if table is not None and not lake.has_table(table):
        lake.table(table)  # raises with the nearest names
        raise NotFound(f"The lake {lake.url} has no table {table}.", kind="table_not_found", table=table)
    for name in [table] if table is not None else lake.tables():
        folder = lake.folder_of(name)
        _check_one(lake.store.sub(folder), report, name=name, environment=lake.environment, progress=progress)
    for name in lake.dropped() if table is None else ():
        Findings(report, store=name).add(
            "warning", "dropped", "", "was dropped, but not all of its files are gone: clean the lake."
        )
    return report


def _check_one(
    store: ObjectStore,
    report: CheckReport,
    *,
    name: str,
    environment: Environment,
    progress: Callable[[Progress], None] | None,
) -> None:
    findings = Findings(report, store=name, progress=progress)
    report.table_count += 1
    try:
        table = Table.open(store, name=name, environment=environment)
    except (Corruption, UnsupportedFormat, NotFound) as problem:
        findings.error(problem.kind, str(problem.facts.get("path", "schema")), problem.message)
        return
    try:
        check_table(table, findings)
    except LakebedError as problem:
        if problem.kind == "unavailable":
            raise
        findings.error(problem.kind, str(problem.facts.get("path", "")), problem.message)
