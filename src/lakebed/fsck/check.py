"""`check_url`: the check of a lake, of one table's folder, or of one database's.

Owns: which stores are checked, the lake's own marker, and remains of dropped tables. What a sound table, database or
repository is stands in `table.py`, `database.py`, `repository.py`. Invariants: nothing is written or deleted; one
broken store does not keep the others from being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakebed.errors import Corruption, LakebedError, NotFound, UnsupportedFormat
from lakebed.fsck.database import check_database
from lakebed.fsck.model import CheckReport, Findings, Progress
from lakebed.fsck.repository import check_repository
from lakebed.fsck.table import check_table
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import MANIFEST_FOLDER, WAL_FOLDER
from lakebed.lake.lake import Lake
from lakebed.lake.names import DATABASE_SUFFIX
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.table import Table

__all__ = ["check_lake", "check_url"]


def check_url(
    url: str,
    *,
    store: str | None = None,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CheckReport:
    """Check the lake, the table or the database at a URL.

    Args:
        url: of a lake, or of one table's or database's folder.
        store: only this store of the lake: ``flights``, ``database:serving``, ``repository:analytics``.
        deep: read every data file too.
        progress: called after each version and each file.

    Returns:
        Everything found; `error_count` is zero when the store is sound.

    Raises:
        NotFound: nothing is there, or no such store.
        InvalidRequest: what is there is neither a lake nor a store of one.
        Unavailable: the store does not answer.
    Cost: a LIST of each store, every snapshot, tag and manifest once; with `deep` every data file once.
    """
    environment = environment or Environment()
    place = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, create=False)
    folder = place.store
    report = CheckReport(folder.root_url, deep)
    if store is None:
        folders = set(folder.list_with_delimiter("").folders)
        name = folder.root_url.rpartition("/")[2]
        if "schema" in folders:
            _check_table(folder, report, name=name, environment=environment, progress=progress)
            return report
        if {MANIFEST_FOLDER, WAL_FOLDER} <= folders:
            _check_database(place, report, name=name.removesuffix(DATABASE_SUFFIX), progress=progress)
            return report
    lake = Lake.open(folder, create=False, environment=environment, storage_options=storage_options)
    return check_lake(lake, store=store, report=report, progress=progress)


def check_lake(
    lake: Lake,
    *,
    store: str | None = None,
    report: CheckReport | None = None,
    deep: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CheckReport:
    """Check one store of a lake, or all of them and the remains of dropped ones. As `check_url`."""
    report = report or CheckReport(lake.url, deep)
    for found in lake.stores() if store is None else [lake.find(store)]:
        if found.kind == "database":
            _check_database(lake.database(found.name).location, report, name=found.name, progress=progress)
            continue
        if found.kind == "repository":
            _check_repository(lake, report, name=found.name, progress=progress)
            continue
        folder = lake.store.sub(lake.folder_of(found.name))
        _check_table(folder, report, name=found.name, environment=lake.environment, progress=progress)
    for name in lake.dropped() if store is None else ():
        Findings(report, store=name).add(
            "warning", "dropped", "", "was dropped, but not all of its files are gone: clean the lake."
        )
    return report


def _check_database(
    place: DatabaseLocation, report: CheckReport, *, name: str, progress: Callable[[Progress], None] | None
) -> None:
    findings = Findings(report, store=name, progress=progress)
    try:
        check_database(place, findings)
    except LakebedError as problem:
        if problem.kind == "unavailable":
            raise
        findings.error(problem.kind, str(problem.facts.get("path", "")), problem.message)


def _check_repository(
    lake: Lake, report: CheckReport, *, name: str, progress: Callable[[Progress], None] | None
) -> None:
    findings = Findings(report, store=name, progress=progress)
    report.repository_count += 1
    with lake.reading_repositories() as home:
        assert home is not None, "it was found in the records"
        try:
            check_repository(home.repository(name).context, findings)
        except LakebedError as problem:
            if problem.kind == "unavailable":
                raise
            findings.error(problem.kind, str(problem.facts.get("path", "")), problem.message)


def _check_table(
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
