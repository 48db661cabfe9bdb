"""The check of one tenant: its committed manifest against the objects in its folder.

Owns: when a tenant is sound. The manifest of the last committed transaction exists, and is the one that was committed;
every layer that a timeline names exists, of the stated size; with ``deep`` each is read: checksums and counts. An
object is an orphan if it is not in the manifest, not of a transaction that is open or rejected, and not named by a
deadlist that waits for the collector. The fleet commits and collects meanwhile: an object is missing only if the newest
state names it, too. Invariants: reads only; needs no running fleet where the ledger is in the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import lakebed.lake
from lakebed.errors import NotFound
from lakebed.fleet.layout import layer_path, tenant_folder, txn_folder
from lakebed.fleet.model import TimelineIndex, TransactionState
from lakebed.fleet.state import TenantState
from lakebed.fsck.model import Findings
from lakebed.lake.root import LakeRoot
from lakebed.lake.stores import Stores, read_tenants, root_of
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.model import FileMeta
from lakebed.objects.port import ObjectMeta

if TYPE_CHECKING:
    from lakebed.lake.tenants import Records

_CACHE_BYTES: Final = 8 << 20
"""Blocks are read once, so only tails are worth keeping."""


def check_tenant(lake: Stores, name: str, findings: Findings) -> None:
    """Check a tenant and report into `findings`.

    Cost: 1 LIST a thousand objects; deep: every layer once. 1 HEAD and the state once more for what looks missing.
    """
    with read_tenants(lake) as records:
        check_objects(root_of(lake), records, name, findings)


def check_objects(root: LakeRoot, records: Records, name: str, findings: Findings) -> None:
    """As `check_tenant`, with the records of the tenants."""
    metas_by_path = {meta.path: meta for meta in root.store.list(tenant_folder(name))}
    try:
        state = records.state(name)
    except NotFound as problem:
        if problem.kind == "tenant_not_found":
            raise
        findings.missing(str(problem.facts.get("path", "manifest")), "the newest committed transaction")
        return
    check = _Check(root, records, state, metas_by_path, findings)
    findings.report.version_count += max(1, len(state.versions()))
    if state.record.manifest is not None:
        path, size_bytes = state.record.manifest.path, state.record.manifest.size_bytes
        check.is_intact(path, size_bytes=size_bytes, needed_by="the ledger")
    checked_paths = set[str]()
    for timeline in state.manifest.timelines:
        for file in timeline.files.files():
            path = _path(name, timeline, file)
            if path not in checked_paths:
                checked_paths.add(path)
                check.layer(path, file, needed_by=f"the timeline {timeline.name}")
                findings.step(len(checked_paths))
    check.orphans()


class _Check:
    """What is there of a tenant against what one state of it names, while the fleet commits and collects.

    Args:
        listed: its objects, listed before the state was read.
    """

    def __init__(
        self,
        root: LakeRoot,
        records: Records,
        state: TenantState,
        listed: Mapping[str, ObjectMeta],
        findings: Findings,
    ) -> None:
        self._root = root
        self._records = records
        self._state = state
        self._listed = listed
        self._findings = findings

    def layer(self, path: str, file: FileMeta, *, needed_by: str) -> None:
        """Check a layer, and read it if that was asked for."""
        report = self._findings.report
        report.file_count += 1
        report.size_bytes += file.size_bytes
        if not self.is_intact(path, size_bytes=file.size_bytes, needed_by=needed_by) or not report.deep:
            return
        with self._findings.reading(path, needed_by=needed_by):
            try:
                _read_whole(self._root, path, file, self._findings)
            except NotFound:
                if self._is_named_still(path):
                    raise

    def is_intact(self, path: str, *, size_bytes: int, needed_by: str) -> bool:
        """Whether an object is there with its size. What is not there and not needed any more is no finding."""
        meta = self._listed.get(path) or self._head(path)
        if meta is None and not self._is_named_still(path):
            return False
        return self._findings.check_object(path, meta, size_bytes=size_bytes, needed_by=needed_by)

    def orphans(self) -> None:
        """Report the objects that nothing refers to, and that were not collected since they were listed."""
        state = self._state
        spoken_for = _paths_of(state) | {
            deletable.path for deletable in lakebed.lake.tenants.plan_of(self._root, state).doomed
        }
        for path, meta in self._listed.items():
            if path not in spoken_for and not _is_spoken_for(state, path) and self._head(path) is not None:
                self._findings.orphan(meta, "is referred to by nothing: lakebed fleet collect deletes it.")

    def _is_named_still(self, path: str) -> bool:
        """Whether the newest state, read after an object was not there, names it too: then it is lost."""
        try:
            return path in _paths_of(self._records.state(self._state.name))
        except NotFound as problem:
            return problem.kind != "tenant_not_found"

    def _head(self, path: str) -> ObjectMeta | None:
        try:
            return self._root.store.head(path)
        except NotFound:
            return None


def _paths_of(state: TenantState) -> set[str]:
    named_paths = {
        _path(state.name, timeline, file) for timeline in state.manifest.timelines for file in timeline.files.files()
    }
    if state.record.manifest is not None:
        named_paths.add(state.record.manifest.path)
    if state.record.deadlist is not None:
        named_paths.add(state.record.deadlist)
    return named_paths


def _path(tenant: str, timeline: TimelineIndex, file: FileMeta) -> str:
    for origin, ids in timeline.origins.items():
        if file.id in ids:
            txn, _, where = origin.partition("/")
            return layer_path(tenant, int(txn), where, file.id)
    return f"{tenant_folder(tenant)}/?/{timeline.id}/{file.id}.sst"


def _is_spoken_for(state: TenantState, path: str) -> bool:
    """Whether an object belongs to a transaction that is not finished, or that was rejected and is not collected."""
    rejected = {
        transaction.id
        for transaction in state.transactions.finished
        if transaction.state is not TransactionState.COMMITTED
    }
    pending = {transaction.id for transaction in state.transactions.unfinished} | (
        rejected & set(state.transactions.to_collect)
    )
    return any(path.startswith(f"{txn_folder(state.name, txn)}/") for txn in pending)


def _read_whole(root: LakeRoot, path: str, file: FileMeta, findings: Findings) -> None:
    reader = FileReader(root.store, path, meta=file, cache=BlockCache(_CACHE_BYTES, runtime=root.environment.runtime))
    rows = sum(block.batch.num_rows for block in reader.batches(None, None))
    if file.ceiling is None and rows != file.row_count:
        findings.error("wrong_count", path, f"has {rows:,} rows; the manifest says {file.row_count:,}.")
