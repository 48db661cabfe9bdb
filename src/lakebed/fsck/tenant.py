"""The check of one tenant: its committed manifest against the objects in its folder.

Owns: when a tenant is sound. The manifest of the last committed transaction exists, and is the one that was committed;
every layer that a timeline names exists, of the stated size; with ``deep`` each is read: checksums and counts. An
object is an orphan if it is not in the manifest, not of a transaction that is open or rejected, and not named by a
deadlist that waits for the collector. Invariants: reads only; needs no running fleet where the ledger is in the lake.
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import NotFound
from lakebed.fleet.layout import layer_path, tenant_folder, txn_folder
from lakebed.fleet.model import TimelineIndex, TransactionState
from lakebed.fleet.state import TenantState
from lakebed.fsck.model import Findings
from lakebed.lake.on_demand import module_of
from lakebed.lake.stores import Stores
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.model import FileMeta

_CACHE_BYTES: Final = 8 << 20
"""Blocks are read once, so only tails are worth keeping."""


def check_tenant(lake: Stores, name: str, findings: Findings) -> None:
    """Check a tenant and report into `findings`. Cost: 1 LIST a thousand objects; deep: every layer once."""
    with lake.reading_tenants() as records:
        listed = {meta.path: meta for meta in lake.store.list(tenant_folder(name))}
        try:
            state = records.state(name)
        except NotFound as problem:
            if problem.kind == "tenant_not_found":
                raise
            findings.missing(str(problem.facts.get("path", "manifest")), "the newest committed transaction")
            return
        findings.report.version_count += max(1, len(state.versions()))
        needed = set[str]()
        if state.record.manifest is not None:
            path = state.record.manifest.path
            needed.add(path)
            findings.check_object(
                path, listed.get(path), size_bytes=state.record.manifest.size_bytes, needed_by="the ledger"
            )
        if state.record.deadlist is not None:
            needed.add(state.record.deadlist)
        for timeline in state.manifest.timelines:
            for file in timeline.files.files():
                path = _path(name, timeline, file)
                if path in needed:
                    continue
                needed.add(path)
                findings.report.file_count += 1
                findings.report.size_bytes += file.size_bytes
                there = listed.get(path)
                called = f"the timeline {timeline.name}"
                intact = findings.check_object(path, there, size_bytes=file.size_bytes, needed_by=called)
                if intact and findings.report.deep:
                    with findings.reading(path, needed_by=called):
                        _read_whole(lake, path, file, findings)
                findings.step(len(needed))
        dead = {one.path for one in module_of("tenant").plan_of(lake.root, state).doomed}
        for path, meta in listed.items():
            if path not in needed and path not in dead and not _is_spoken_for(state, path):
                findings.orphan(meta, "is referred to by nothing: lakebed fleet scrub deletes it.")


def _path(tenant: str, timeline: TimelineIndex, file: FileMeta) -> str:
    for origin, ids in timeline.origins.items():
        if file.id in ids:
            txn, _, where = origin.partition("/")
            return layer_path(tenant, int(txn), where, file.id)
    return f"{tenant_folder(tenant)}/?/{timeline.id}/{file.id}.sst"


def _is_spoken_for(state: TenantState, path: str) -> bool:
    """Whether an object belongs to a transaction that is not finished, or that was rejected and is not collected."""
    rejected = {one.id for one in state.transactions.finished if one.state is not TransactionState.COMMITTED}
    pending = {one.id for one in state.transactions.unfinished} | (rejected & set(state.transactions.to_collect))
    return any(path.startswith(f"{txn_folder(state.name, txn)}/") for txn in pending)


def _read_whole(lake: Stores, path: str, file: FileMeta, findings: Findings) -> None:
    reader = FileReader(lake.store, path, meta=file, cache=BlockCache(_CACHE_BYTES, runtime=lake.environment.runtime))
    rows = sum(block.batch.num_rows for block in reader.batches(None, None))
    if file.ceiling is None and rows != file.row_count:
        findings.error("wrong_count", path, f"has {rows:,} rows; the manifest says {file.row_count:,}.")
