"""`check_url`: the check of a lake, of one table's folder, or of one database's.

Owns: which stores are checked, and the remains of dropped tables. When a store is sound is defined in `table.py`,
`database.py`, `repository.py` and `tenant.py`. Invariants: nothing is written or deleted; a broken store does not keep
the other stores from being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakebed.errors import Corruption, NotFound, UnsupportedFormat
from lakebed.fsck.database import check_database
from lakebed.fsck.model import CheckReport, Findings, Progress
from lakebed.fsck.repository import check_repository
from lakebed.fsck.table import check_table
from lakebed.fsck.tenant import check_tenant
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import MANIFEST_FOLDER, WAL_FOLDER
from lakebed.lake.lake import Lake
from lakebed.lake.names import DATABASE_SUFFIX, parse_table_name
from lakebed.lake.stores import read_repositories
from lakebed.objects.port import ObjectStore
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.table.table import Table


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

    Returns everything found; `error_count` is zero when the store is sound. Raises `NotFound`: nothing is there, or no
    such store; `InvalidRequest`: what is there is neither a lake nor a store of one; `Unavailable`: the store does not
    answer. Cost: a LIST of each store, every snapshot, tag and manifest once; with `deep` every data file once.
    """
    environment = environment or Environment()
    place = DatabaseLocation.at(url, storage_options=storage_options, environment=environment, create=False)
    folder = place.store
    report = CheckReport(folder.root_url, deep)
    if store is None:
        folders = set(folder.list_with_delimiter("").folders)
        name = folder.root_url.rpartition("/")[2]
        if "schema" in folders:
            _check_table(folder, Findings(report, store=name, progress=progress), environment=environment)
            return report
        if {MANIFEST_FOLDER, WAL_FOLDER} <= folders:
            findings = Findings(report, store=name.removesuffix(DATABASE_SUFFIX), progress=progress)
            with findings.whole_store():
                check_database(place, findings)
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
    for store_name in lake.stores() if store is None else [lake.find(store)]:
        findings = Findings(report, store=store_name.name, progress=progress)
        if store_name.kind == "database":
            with findings.whole_store():
                check_database(lake.database(store_name.name).location, findings)
        elif store_name.kind == "repository":
            _check_repository(lake, store_name.name, findings)
        elif store_name.kind == "tenant":
            report.tenant_count += 1
            with findings.whole_store():
                check_tenant(lake, store_name.name, findings)
        else:
            folder = lake.store.sub(parse_table_name(store_name.name).folder)
            _check_table(folder, findings, environment=lake.environment)
    for name in lake.list_dropped() if store is None else ():
        Findings(report, store=name).add(
            "warning", "dropped", "", "was dropped, but some of its files are left: clean the lake."
        )
    return report


def _check_repository(lake: Lake, name: str, findings: Findings) -> None:
    findings.report.repository_count += 1
    with read_repositories(lake) as repositories:
        assert repositories is not None, "it was found in the records"
        with findings.whole_store():
            check_repository(context_of(repositories.repository(name)), findings)


def _check_table(folder: ObjectStore, findings: Findings, *, environment: Environment) -> None:
    findings.report.table_count += 1
    with findings.whole_store():
        try:
            table = Table.open(folder, name=findings.store, environment=environment)
        except (Corruption, UnsupportedFormat, NotFound) as problem:
            findings.error(problem.kind, str(problem.facts.get("path", "schema")), problem.message)
            return
        check_table(table, findings)
