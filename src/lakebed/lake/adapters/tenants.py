"""The adapter of tenants: the newest committed transaction, branches and pins.

Invariants: when the ledger is in the lake, reads need no running fleet. `collect` deletes nothing of a tenant: the
control plane's collector deletes by deadlists, and `lakebed fleet collect` deletes the orphans that it left.
"""

from __future__ import annotations

from dataclasses import replace

import lakebed.lake
from lakebed.errors import LakebedError, NotFound
from lakebed.fleet.layout import FLEET_FOLDER, TENANT_SUFFIX, tenant_folder
from lakebed.lake.adapters.port import Collection, StoreAdapter, StoreSummary
from lakebed.lake.names import split_top
from lakebed.lake.stores import Stores, read_tenants, root_of
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Explanation, Pin, Version


class TenantAdapter(StoreAdapter):
    """As `StoreAdapter`."""

    def summary(self, lake: Stores, name: str) -> StoreSummary | None:
        """Cost: 3 reads of the ledger and 1 GET."""
        with read_tenants(lake) as records:
            state = records.state(name)
        versions = state.versions()
        files = {file.id: file.size_bytes for timeline in state.manifest.timelines for file in timeline.files.files()}
        return StoreSummary(
            "tenant",
            name,
            versions[-1].id if versions else None,
            versions[-1].created_ms if versions else None,
            None,
            sum(files.values()),
            sum(pin.kind in ("pin", "branch") for pin in state.pins()),
        )

    def disk_bytes(self, lake: Stores, name: str) -> int:
        return sum(meta.size_bytes for meta in lake.store.list(tenant_folder(name)))

    def versions(self, lake: Stores, name: str) -> list[Version]:
        """Cost: as `summary`."""
        with read_tenants(lake) as records:
            return list(records.state(name).versions())

    def pins(self, lake: Stores, name: str) -> list[Pin]:
        """Cost: as `summary`."""
        with read_tenants(lake) as records:
            return list(records.state(name).pins())

    def why(self, lake: Stores, path: str) -> Explanation | None:
        """Cost: as `summary`."""
        if path.startswith(f"{FLEET_FOLDER}/"):
            return Explanation(
                path, (), "It is part of the fleet's ledger or log: their databases keep what they need."
            )
        parts = split_top(path, TENANT_SUFFIX)
        if parts is None:
            return None
        with read_tenants(lake) as records:
            try:
                explained = records.state(parts[0]).explain(parts[1])
            except NotFound:
                return Explanation(
                    path,
                    (),
                    f"The ledger has no tenant {parts[0]}: it was dropped, or lakebed fleet collect deletes it.",
                )
        return replace(explained, path=path)

    def collect(self, lake: Stores, collection: Collection) -> list[CollectionReport]:
        """Report what the control plane's collector deletes next. Delete nothing."""
        if not lake.has_fleet():
            return []
        reports = []
        with read_tenants(lake) as records:
            for record in records.tenants():
                try:
                    plan = lakebed.lake.tenants.plan_of(root_of(lake), records.state(record.tenant))
                except LakebedError as error:
                    reports.append(
                        CollectionReport.not_collected(f"tenant {record.tenant}", error, dry_run=collection.dry_run)
                    )
                else:
                    reports.append(_report(plan, dry_run=collection.dry_run))
        return reports


def _report(plan: CollectionPlan, *, dry_run: bool) -> CollectionReport:
    """Return the report of a tenant: every deletion is left to the control plane."""
    kept_counts = {"the control plane's collector deletes them": len(plan.doomed)} if plan.doomed else {}
    return CollectionReport(plan.store, 0, 0, 0, kept_counts, plan.warnings, dry_run, notes=plan.notes)
