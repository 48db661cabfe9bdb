"""The collector of orphans: it compares every object of the bucket with every reference of the ledger.

Owns: the inventory, the judgement of an object, and the deletion of unreachable objects.

Invariants:
- An object is deleted only if its transaction is finished and has no task, no manifest or task of its tenant names it,
  and it is older than the grace time. These objects are never touched: those of a transaction that is open, or rejected
  and not acknowledged; those of tenants that the ledger does not know; those whose path fits no layout.
- The ledger is read before the inventory. A state references only objects that its base references or that it writes
  itself, so an object that is unreferenced then stays so. Records are read before tasks: the older record references
  objects that a commit in between made unneeded.
- A fleet commits and collects meanwhile. So an apparent finding by the records that were read first is no result yet.
  The tenant is judged again: its record and tasks are read, and then its folder is listed. A missing object is reported
  only if the tenant's newest state still names it.
- Memory: one page of names, and the references of one tenant, in columns.

Does not know: why objects were left (docs/design/0042-fleet.md, Collection).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import groupby, islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import LakebedError, NotFound, Unavailable
from lakebed.fleet.layout import FLEET_FOLDER, TENANT_SUFFIX, layer_path, tenant_folder
from lakebed.fleet.manifest import decode_deadlist, decode_referenced
from lakebed.fleet.model import CollectTask, Floor, Manifest, TenantRecord, Transaction, TransactionState
from lakebed.objects.port import ObjectMeta, ObjectStore, has_object
from lakebed.objects.reserve import RESERVE_PATH
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment

GRACE: Final = timedelta(hours=1)
"""Younger objects are reported and not deleted, because a put of a finished transaction may still be in flight."""

PAGE_COUNT: Final = 50_000
"""Most names that are judged together."""

_KNOWN: Final = ("lakebed.json", RESERVE_PATH)
"""Objects of the lake outside the fleet. Like those in `FLEET_FOLDER` they belong to no tenant, and are not judged."""

EXAMPLE_COUNT_MAX: Final = 100
"""Most paths that a report names for each reason."""

_READS_MAX: Final = 5
"""Most reads of a tenant's newest state, if commits come between its record and its manifest."""


class Reason(StrEnum):
    """The state of an object, as the collector of orphans judges it."""

    REFERENCED = "referenced"
    """The last committed manifest of its tenant names it, or it is that manifest or its deadlist."""
    UNFINISHED = "unfinished"
    """Its transaction is open, or rejected and not acknowledged."""
    TO_COLLECT = "to_collect"
    """A task of the collector deletes it."""
    UNREFERENCED = "unreferenced"
    """Its transaction is committed, and no manifest or task names it."""
    LEFT = "left"
    """It belongs to a rejected transaction that was collected, or to a deleted tenant."""
    YOUNG = "young"
    """As one of the two above, and within the grace time."""
    UNKNOWN_TENANT = "unknown_tenant"
    """The ledger does not know its tenant. Check whether this ledger belongs to this bucket."""
    FOREIGN = "foreign"
    """Its path fits no layout of a fleet."""


NEEDLESS: Final = (Reason.UNREFERENCED, Reason.LEFT)
"""Reasons for which the collector of orphans deletes an object."""

_REASONS: Final = tuple(Reason)
_CODES: Final = {reason: code for code, reason in enumerate(_REASONS)}


class LedgerReads(Protocol):
    """The part of the ledger that the collector of orphans reads."""

    def tenants(self) -> Iterable[TenantRecord]:
        """Return every tenant, including those that are being deleted."""

    def tenant(self, tenant: str, *, fresh: bool = False) -> TenantRecord:
        """Return the record of a tenant; with `fresh`, the newest one. Raises `NotFound`."""

    def tasks(self) -> Iterable[CollectTask]:
        """Return all tasks of the collector."""

    def tasks_of(self, tenant: str) -> Iterable[CollectTask]:
        """Return the collector's tasks of a tenant."""

    def floor(self, tenant: str) -> Floor | None:
        """Return the floor of a deleted tenant."""

    def finished(self, tenant: str, txn: int) -> Transaction | None:
        """Return a finished transaction."""


@dataclass(frozen=True, slots=True)
class Found:
    """The objects of one reason."""

    object_count: int
    size_bytes: int
    examples: tuple[str, ...]
    """The first paths, at most `EXAMPLE_COUNT_MAX`."""


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """The findings of a collection, and its deletions."""

    found: Mapping[Reason, Found]
    missing: tuple[str, ...]
    """Objects that a committed manifest names and that do not exist: data was lost."""
    problems: tuple[str, ...]
    """Tenants that could not be judged, with the error; none of their objects was deleted. Also failed deletions."""
    deleted_count: int
    deleted_bytes: int
    dry_run: bool

    @property
    def needless_count(self) -> int:
        """Number of unreachable objects of any age. Zero after every collection."""
        return sum(self.found[reason].object_count for reason in (*NEEDLESS, Reason.YOUNG) if reason in self.found)

    @property
    def is_clean(self) -> bool:
        """Whether no object is missing or needless, and every tenant was judged."""
        return not (self.missing or self.problems or self.needless_count)


@dataclass(slots=True)
class _Tally:
    """A report in progress."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_REASONS), np.int64))
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_REASONS), np.int64))
    examples: dict[Reason, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    deleted_count: int = 0
    deleted_bytes: int = 0

    def add(self, codes: npt.NDArray[np.int8], page: _Page) -> None:
        self.counts += np.bincount(codes, minlength=len(_REASONS))
        self.sizes += np.bincount(codes, weights=page.sizes, minlength=len(_REASONS)).astype(np.int64)
        for code in np.unique(codes):
            paths_of_reason = self.examples.setdefault(_REASONS[code], [])
            if room := EXAMPLE_COUNT_MAX - len(paths_of_reason):
                paths_of_reason.extend(page.paths.take(np.flatnonzero(codes == code)[:room]).to_pylist())

    def merge(self, other: _Tally) -> None:
        """Add the findings of one tenant."""
        self.counts += other.counts
        self.sizes += other.sizes
        for reason, paths in other.examples.items():
            paths_of_reason = self.examples.setdefault(reason, [])
            paths_of_reason.extend(paths[: EXAMPLE_COUNT_MAX - len(paths_of_reason)])
        self.missing += other.missing
        self.problems += other.problems
        self.deleted_count += other.deleted_count
        self.deleted_bytes += other.deleted_bytes

    def report(self, *, dry_run: bool) -> OrphanReport:
        """Return the findings so far."""
        by_reason = {
            reason: Found(int(self.counts[code]), int(self.sizes[code]), tuple(self.examples[reason]))
            for reason, code in _CODES.items()
            if self.counts[code]
        }
        return OrphanReport(
            by_reason, tuple(self.missing), tuple(self.problems), self.deleted_count, self.deleted_bytes, dry_run
        )


class _Page:
    """Some objects of one tenant, in columns."""

    def __init__(self, metas: Sequence[ObjectMeta]) -> None:
        self.paths = pa.array([meta.path for meta in metas], pa.string())
        self.sizes = np.fromiter((meta.size_bytes for meta in metas), np.int64, len(metas))
        self.times_ms = np.fromiter((meta.modified_ms for meta in metas), np.int64, len(metas))

    def txns(self) -> npt.NDArray[np.int64]:
        """Return the transaction in each path; -1 if it has none."""
        parts = pc.extract_regex(self.paths, r"^[^/]+/(?P<txn>\d{16})/(?:timelines/.+|manifest\.\d+|deadlist\.\d+)$")
        txns = pc.cast(pc.struct_field(parts, "txn"), pa.int64())
        numbers: npt.NDArray[np.int64] = pc.fill_null(txns, -1).to_numpy(zero_copy_only=False)
        return numbers


class _References:
    """All references to objects of one tenant."""

    def __init__(self, record: TenantRecord, tasks: Iterable[CollectTask], storage: ObjectStore) -> None:
        self.record = record
        mine = list(tasks)
        named_paths = iter(()) if record.manifest is None else _paths_of(read_manifest(record, storage), record)
        self.named = pa.array(named_paths, pa.string()).unique()
        self.is_seen = np.zeros(len(self.named), np.bool_)
        collectable: list[str] = []
        for task in mine:
            if task.kind is TransactionState.COMMITTED:
                collectable += task.unneeded
                collectable += _deadlist_paths(task, storage)
        self.collectable = pa.array(collectable, pa.string())
        unfinished = [transaction.id for transaction in record.transactions]
        self.unfinished = np.array(unfinished, np.int64)
        task_txns = [task.txn for task in mine if task.kind is not TransactionState.COMMITTED]
        self.listed = np.array(task_txns, np.int64)

    def judge(self, page: _Page) -> npt.NDArray[np.int8]:
        """Return the code of the reason of each object, regardless of its age."""
        txns = page.txns()
        places = pc.index_in(page.paths, value_set=self.named)
        is_named = pc.is_valid(places).to_numpy(zero_copy_only=False)
        self.is_seen[places.drop_null().to_numpy()] = True
        is_collectable = pc.is_in(page.paths, value_set=self.collectable).to_numpy(zero_copy_only=False)
        codes = np.full(len(txns), _CODES[Reason.UNREFERENCED], np.int8)
        codes[is_collectable | np.isin(txns, self.listed)] = _CODES[Reason.TO_COLLECT]
        codes[(txns >= self.record.next_txn) | np.isin(txns, self.unfinished)] = _CODES[Reason.UNFINISHED]
        if self.record.is_deleted:
            codes[:] = _CODES[Reason.TO_COLLECT]
        codes[is_named] = _CODES[Reason.REFERENCED]
        codes[txns < 0] = _CODES[Reason.FOREIGN]
        return codes

    def missing(self) -> list[str]:
        """Return the objects that the manifest names and the inventory did not have."""
        if self.record.is_deleted:
            return []
        return sorted(self.named.filter(pa.array(~self.is_seen)).to_pylist())


class OrphanCollector:
    """Compares the bucket with the ledger.

    Args:
        ledger: the ledger of this bucket.
        storage: the root of the fleet's storage.
        grace: see `GRACE`.
        environment: provides the clock.
    """

    def __init__(
        self,
        ledger: LedgerReads,
        storage: ObjectStore,
        *,
        grace: timedelta = GRACE,
        environment: Environment | None = None,
    ) -> None:
        self._ledger = ledger
        self._storage = storage
        self._grace_ms = int(grace.total_seconds() * 1000)
        self._clock = (environment or Environment()).clock

    def collect(self, *, dry_run: bool = True) -> OrphanReport:
        """Judge every object. Without `dry_run`, delete the unreachable ones.

        Raises `Unavailable` if ledger or store do not answer.
        Cost: 1 LIST for 1000 objects, 1 GET for each tenant and for each deadlist that waits for its collection;
        1 DELETE for 1000 objects. A tenant is read twice if an object is needless or missing, or was collected
        meanwhile.
        """
        records = {tenant_folder(tenant_record.tenant): tenant_record for tenant_record in self._ledger.tenants()}
        tasks: dict[str, list[CollectTask]] = {}
        for task in self._ledger.tasks():
            tasks.setdefault(tenant_folder(task.tenant), []).append(task)
        tally = _Tally()
        unlisted = set(records)
        for (folder, slash), metas in groupby(self._storage.list(), key=lambda meta: meta.path.partition("/")[:2]):
            if folder == FLEET_FOLDER:
                continue
            if not slash:  # an object outside all folders, whatever its name
                self._judge_unknown("", metas, tally, dry_run=dry_run)
                continue
            unlisted.discard(folder)
            record = records.get(folder)
            if record is None:
                self._judge_unknown(folder, metas, tally, dry_run=dry_run)
            else:
                self._judge_tenant(record, tasks.get(folder, ()), metas, tally, dry_run=dry_run)
        for folder in sorted(unlisted):
            self._judge_tenant(records[folder], (), (), tally, dry_run=dry_run)
        return tally.report(dry_run=dry_run)

    def _judge_tenant(
        self,
        record: TenantRecord,
        tasks: Iterable[CollectTask],
        metas: Iterable[ObjectMeta],
        tally: _Tally,
        *,
        dry_run: bool,
    ) -> None:
        sound = self._count_sound(record, tasks, metas)
        tally.merge(sound or self._judge_again(record.tenant, dry_run=dry_run))

    def _count_sound(
        self, record: TenantRecord, tasks: Iterable[CollectTask], metas: Iterable[ObjectMeta]
    ) -> _Tally | None:
        """Count a tenant's objects by reason.

        Return None if one is needless or missing, or references are unreadable.
        """
        try:
            references = _References(record, tasks, self._storage)
        except LakebedError:
            return None
        tally = _Tally()
        for page in _pages(metas):
            codes = references.judge(page)
            if (codes == _CODES[Reason.UNREFERENCED]).any():
                return None
            tally.add(codes, page)
        return None if references.missing() else tally

    def _judge_again(self, tenant: str, *, dry_run: bool) -> _Tally:
        """Judge a tenant by its newest state, and then its folder. Without `dry_run`, delete needless objects."""
        tally = _Tally()
        folder = tenant_folder(tenant)
        try:
            references = self._newest(tenant)
        except NotFound as error:
            if error.kind == "tenant_not_found":  # deleted meanwhile
                self._judge_gone(folder, self._storage.list(f"{folder}/"), tally, dry_run=dry_run)
                return tally
            tally.missing.append(str(error.facts.get("path", error.message)))
            tally.problems.append(f"tenant {tenant}: {error.message}")
            return tally
        except LakebedError as error:
            tally.problems.append(f"tenant {tenant}: {error.message}")
            return tally
        for page in _pages(self._storage.list(f"{folder}/")):
            codes = references.judge(page)
            self._tell_left(tenant, page, codes)
            self._settle(page, codes, tally, dry_run=dry_run)
        try:
            tally.missing += self._still_missing(references.record, references.missing())
        except LakebedError as error:
            tally.problems.append(f"tenant {tenant}: {error.message}")
        return tally

    def _newest(self, tenant: str) -> _References:
        """Read the current references to objects of a tenant.

        Raises:
            NotFound: the tenant does not exist any longer (``tenant_not_found``), or its committed manifest is lost.
            Unavailable: ``tenant_is_busy``.
        """
        for _ in range(_READS_MAX):
            record = self._ledger.tenant(tenant, fresh=True)
            try:
                return _References(record, self._ledger.tasks_of(tenant), self._storage)
            except NotFound:
                if self._ledger.tenant(tenant, fresh=True).manifest == record.manifest:
                    raise
        raise _is_busy(tenant)

    def _still_missing(self, record: TenantRecord, paths: Sequence[str]) -> list[str]:
        """Return the given paths that do not exist although the newest state also names them."""
        missing = list(paths)
        for _ in range(_READS_MAX):
            missing = [path for path in missing if not has_object(self._storage, path)]
            if not missing:
                return []
            try:
                newest = self._ledger.tenant(record.tenant, fresh=True)
                if newest.is_deleted:
                    return []
                if newest.manifest == record.manifest:
                    return missing
                named_paths = set(
                    () if newest.manifest is None else _paths_of(read_manifest(newest, self._storage), newest)
                )
            except NotFound as error:
                if error.kind == "tenant_not_found":
                    return []
                continue  # a commit has replaced that manifest, which was then collected
            record, missing = newest, [path for path in missing if path in named_paths]
        raise _is_busy(record.tenant)

    def _judge_unknown(self, folder: str, metas: Iterable[ObjectMeta], tally: _Tally, *, dry_run: bool) -> None:
        """Judge objects that are in no folder of a tenant that existed at the beginning."""
        if folder.endswith(TENANT_SUFFIX):
            tenant = folder.removesuffix(TENANT_SUFFIX)
            if self._is_tenant(tenant):  # created meanwhile
                tally.merge(self._judge_again(tenant, dry_run=dry_run))
                return
        self._judge_gone(folder, metas, tally, dry_run=dry_run)

    def _judge_gone(self, folder: str, metas: Iterable[ObjectMeta], tally: _Tally, *, dry_run: bool) -> None:
        is_tenant = folder.endswith(TENANT_SUFFIX)
        floor = self._ledger.floor(folder.removesuffix(TENANT_SUFFIX)) if is_tenant else None
        for page in _pages(metas):
            reason = Reason.UNKNOWN_TENANT if is_tenant else Reason.FOREIGN
            codes = np.full(len(page.sizes), _CODES[reason], np.int8)
            if floor is not None:
                txns = page.txns()
                codes[(txns >= 0) & (txns < floor.next_txn)] = _CODES[Reason.LEFT]
            self._settle(page, codes, tally, dry_run=dry_run)

    def _tell_left(self, tenant: str, page: _Page, codes: npt.NDArray[np.int8]) -> None:
        """Distinguish objects of rejected transactions from those of committed ones. Reads the ledger once for each."""
        suspects = codes == _CODES[Reason.UNREFERENCED]
        if not suspects.any():
            return
        txns = page.txns()
        for txn in np.unique(txns[suspects]):
            finished = self._ledger.finished(tenant, int(txn))
            if finished is None or finished.state is not TransactionState.COMMITTED:
                codes[suspects & (txns == txn)] = _CODES[Reason.LEFT]

    def _settle(self, page: _Page, codes: npt.NDArray[np.int8], tally: _Tally, *, dry_run: bool) -> None:
        """Count a page, and delete its needless objects."""
        needless = np.isin(codes, [_CODES[reason] for reason in NEEDLESS])
        codes[needless & (page.times_ms > self._clock.now_ms() - self._grace_ms)] = _CODES[Reason.YOUNG]
        tally.add(codes, page)
        if dry_run:
            return
        places = np.flatnonzero(np.isin(codes, [_CODES[reason] for reason in NEEDLESS]))
        if not len(places):
            return
        whys = [_REASONS[code].value for code in codes[places]]
        paths: list[str] = page.paths.take(places).to_pylist()
        plan = CollectionPlan(
            store=self._storage.root_url,
            hide=(),
            doomed=tuple(map(Deletable, paths, page.sizes[places].tolist(), whys)),
        )
        report = Sweeper(self._storage).sweep(plan)
        tally.deleted_count += report.deleted_count
        tally.deleted_bytes += report.deleted_bytes
        tally.problems += report.warnings

    def _is_tenant(self, tenant: str) -> bool:
        try:
            self._ledger.tenant(tenant, fresh=True)
        except NotFound:
            return False
        return True


def read_manifest(record: TenantRecord, storage: ObjectStore) -> Manifest:
    """Read the last committed manifest of a tenant. Raises `NotFound`, `Corruption`. Cost: 1 GET."""
    assert record.manifest is not None
    return decode_referenced(storage.get(record.manifest.path), record.manifest)


def _paths_of(manifest: Manifest, record: TenantRecord) -> Iterator[str]:
    """Yield every path of a committed state. A file that branches share comes once for each branch."""
    for index in manifest.timelines:
        for origin, file_ids in index.origins.items():
            txn, _, timeline = origin.partition("/")
            for file_id in file_ids:
                yield layer_path(record.tenant, int(txn), timeline, file_id)
    if record.manifest is not None:
        yield record.manifest.path
    if record.deadlist is not None:
        yield record.deadlist


def _is_busy(tenant: str) -> Unavailable:
    return Unavailable(
        f"The tenant {tenant} commits faster than its state can be read: collect again.", kind="tenant_is_busy"
    )


def _deadlist_paths(task: CollectTask, storage: ObjectStore) -> tuple[str, ...]:
    """Return the paths in a task's deadlist, and its own path. A deadlist that is gone was processed before."""
    if task.deadlist is None:
        return ()
    try:
        body = storage.get(task.deadlist)
    except NotFound:
        return ()
    return (*decode_deadlist(body, path=task.deadlist).paths, task.deadlist)


def _pages(metas: Iterable[ObjectMeta]) -> Iterator[_Page]:
    source = (meta for meta in metas if meta.path not in _KNOWN)
    while page := list(islice(source, PAGE_COUNT)):
        yield _Page(page)
