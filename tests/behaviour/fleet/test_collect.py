"""The collector: it finds what nothing references, deletes what is safe, and tells what is missing or strange."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import Unavailable
from lakebed.fleet.collect import NEEDLESS, OrphanCollector, OrphanReport, Reason
from lakebed.fleet.layout import LEDGER_FOLDER, LOG_FOLDER, layer_path, tenant_folder, txn_folder
from lakebed.fleet.manifest import decode_referenced
from lakebed.fleet.model import Manifest, Policy
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.tenant import check_objects
from lakebed.lake.root import LakeRoot
from lakebed.lake.tenants import Records
from lakebed.objects.port import ObjectMeta
from lakebed.objects.reserve import RESERVE_PATH
from worlds.fleet.monitor import layers
from worlds.fleet_in_process import FleetInProcess

ORDERS = "orders"


@pytest.fixture
def fleet() -> FleetInProcess:
    """A tenant with four commits, at rest: everything collected."""
    fleet = FleetInProcess(nodes=1)
    tenant = fleet.tenant(ORDERS)
    tenant.create(policy=Policy(retain_rows=100))
    for number in range(4):
        tenant.main.put(b"k%d" % number, b"v")
        tenant.main.checkpoint()
    fleet.wait(5.0)
    return fleet


def collect_orphans(fleet: FleetInProcess, *, dry_run: bool = True, grace: timedelta = timedelta(0)) -> OrphanReport:
    """Collect with an environment whose clock is the store's."""
    fleet.clock.advance(1.0)
    return OrphanCollector(fleet.ledger, fleet.storage, grace=grace, environment=fleet.environment).collect(
        dry_run=dry_run
    )


def counts(report: OrphanReport) -> dict[Reason, int]:
    """Objects by reason."""
    return {reason: result.object_count for reason, result in report.found.items()}


def committed(fleet: FleetInProcess) -> int:
    """The last committed transaction."""
    return fleet.ledger.tenant(ORDERS, fresh=True).committed


def test_after_collection_there_is_nothing_to_find(fleet: FleetInProcess) -> None:
    """Everything is referenced; a dry run and a real one change nothing."""
    before = [meta.path for meta in fleet.storage.list()]
    for dry_run in (True, False):
        report = collect_orphans(fleet, dry_run=dry_run)
        assert set(counts(report)) <= {Reason.REFERENCED, Reason.UNFINISHED}
        assert report.is_clean
    assert [meta.path for meta in fleet.storage.list()] == before


def test_it_finds_what_nothing_references(fleet: FleetInProcess) -> None:
    """An object of a committed transaction that no manifest names is deleted, after its grace, and nothing else."""
    kept = {meta.path for meta in fleet.storage.list()}
    stray = layer_path(ORDERS, committed(fleet), "main", "0" * 26)
    fleet.storage.put(stray, b"12345")
    young = collect_orphans(fleet, dry_run=False, grace=timedelta(hours=1))
    assert (counts(young)[Reason.YOUNG], young.deleted_count, young.needless_count) == (1, 0, 1)
    dry = collect_orphans(fleet)
    assert dry.found[Reason.UNREFERENCED].examples == (stray,)
    assert (dry.found[Reason.UNREFERENCED].size_bytes, dry.deleted_count) == (5, 0)
    real = collect_orphans(fleet, dry_run=False)
    assert (real.deleted_count, real.deleted_bytes, real.problems) == (1, 5, ())
    assert {meta.path for meta in fleet.storage.list()} == kept
    assert collect_orphans(fleet).is_clean


def test_open_and_pending_transactions_are_not_touched(fleet: FleetInProcess) -> None:
    """Whatever lies in their prefixes, and in those of transactions that begin later."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    before = counts(collect_orphans(fleet)).get(Reason.UNFINISHED, 0)
    for txn in (record.transactions[-1].id, record.next_txn, record.next_txn + 5):
        fleet.storage.put(layer_path(ORDERS, txn, "main", "0" * 26), b"x")
    report = collect_orphans(fleet, dry_run=False)
    assert counts(report)[Reason.UNFINISHED] == before + 3
    assert report.deleted_count == 0


def test_what_waits_for_the_collector_is_its_work(fleet: FleetInProcess) -> None:
    """Right after a commit the old manifest is to be collected, not needless."""
    main = fleet.tenant(ORDERS).main
    main.put(b"k", b"w")
    main.checkpoint()
    report = collect_orphans(fleet, dry_run=False)
    assert counts(report)[Reason.TO_COLLECT] >= 1
    assert (report.deleted_count, report.is_clean) == (0, True)


def test_a_late_put_into_a_collected_transaction_is_found(fleet: FleetInProcess) -> None:
    """A rejected transaction was collected; what appears there afterwards is deleted."""
    fleet.start("n2")
    node = fleet.node_of(ORDERS)
    opened = fleet.ledger.tenant(ORDERS, fresh=True).transactions[-1].id
    fleet.stopped.add(node)
    fleet.wait(20.0)
    fleet.stopped.discard(node)
    fleet.wait(30.0)
    assert opened not in [transaction.id for transaction in fleet.ledger.tenant(ORDERS, fresh=True).transactions]
    stray = f"{txn_folder(ORDERS, opened)}/manifest.1"
    fleet.storage.put(stray, b"x")
    assert collect_orphans(fleet).found[Reason.LEFT].examples == (stray,)
    assert collect_orphans(fleet, dry_run=False).deleted_count == 1


def test_a_missing_object_is_told(fleet: FleetInProcess) -> None:
    """A layer that the committed manifest names is gone: nothing hides that."""
    layer = next(meta.path for meta in fleet.storage.list(tenant_folder(ORDERS)) if meta.path.endswith(".sst"))
    fleet.storage.delete([layer])
    report = collect_orphans(fleet, dry_run=False)
    assert report.missing == (layer,)
    assert not report.is_clean
    assert report.deleted_count == 0


def test_a_tenant_whose_manifest_is_damaged_is_left_alone(fleet: FleetInProcess) -> None:
    """What it references is not known, so nothing of it is deleted."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    assert record.manifest is not None
    fleet.storage.put(record.manifest.path, b"{}")
    fleet.storage.put(layer_path(ORDERS, record.committed, "main", "0" * 26), b"x")
    report = collect_orphans(fleet, dry_run=False)
    assert len(report.problems) == 1
    assert report.deleted_count == 0
    assert not report.is_clean


def test_what_the_ledger_does_not_know_is_never_deleted(fleet: FleetInProcess) -> None:
    """Objects of unknown tenants, and paths of no layout, are told: the ledger may be another bucket's."""
    unknown = layer_path("other", 3, "main", "0" * 26)
    foreign = [f"{tenant_folder(ORDERS)}/notes.txt", "readme.md", f"{txn_folder(ORDERS, 1)}/else"]
    for path in (unknown, *foreign):
        fleet.storage.put(path, b"x")
    report = collect_orphans(fleet, dry_run=False)
    assert report.found[Reason.UNKNOWN_TENANT].examples == (unknown,)
    assert set(report.found[Reason.FOREIGN].examples) == set(foreign)
    assert report.deleted_count == 0


def test_objects_of_a_deleted_tenant_are_left_over(fleet: FleetInProcess) -> None:
    """The ledger remembers that there was one, up to which transaction."""
    fleet.tenant(ORDERS).drop()
    fleet.wait(10.0)
    floor = fleet.ledger.floor(ORDERS)
    assert floor is not None
    fleet.storage.put(layer_path(ORDERS, 1, "main", "0" * 26), b"x")
    fleet.storage.put(layer_path(ORDERS, floor.next_txn, "main", "0" * 26), b"x")
    report = collect_orphans(fleet, dry_run=False)
    assert counts(report) == {Reason.LEFT: 1, Reason.UNKNOWN_TENANT: 1}
    assert report.deleted_count == 1


def test_a_commit_during_the_inventory_changes_nothing(fleet: FleetInProcess) -> None:
    """The ledger is read first: what a commit made unneeded meanwhile is judged by the older state."""
    storage = fleet.storage
    main = fleet.tenant(ORDERS).main
    listing = storage.list

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(storage, name)

        def list(self, prefix: str = "") -> list[ObjectMeta]:
            for number in range(3):
                main.put(b"k%d" % number, b"x")
                main.checkpoint()
            fleet.nodes[fleet.node_of(ORDERS)].compact(ORDERS, "main")
            main.put(b"k", b"x")
            main.checkpoint()
            fleet.wait(5.0)
            return list(listing(prefix))

    collector = OrphanCollector(fleet.ledger, Slow(), grace=timedelta(0), environment=fleet.environment)  # type: ignore[arg-type]
    report = collector.collect(dry_run=False)
    assert (report.missing, report.problems, report.deleted_count) == ((), (), 0)
    assert list(main.scan())
    assert collect_orphans(fleet).is_clean


def test_a_store_that_does_not_answer_is_an_error(fleet: FleetInProcess) -> None:
    """Half an inventory says nothing."""

    class Down:
        root_url = "memory://down"

        def list(self, prefix: str = "") -> list[ObjectMeta]:
            raise Unavailable("no answer")

        def __getattr__(self, name: str) -> object:
            return getattr(fleet.storage, name)

    with pytest.raises(Unavailable):
        OrphanCollector(fleet.ledger, Down(), environment=fleet.environment).collect()  # type: ignore[arg-type]


def test_objects_of_the_lake_are_known(fleet: FleetInProcess) -> None:
    """Its marker and its reserve, the ledger and the log are not judged; a file that is called like a folder is."""
    known = ("lakebed.json", RESERVE_PATH, "_fleet/address", f"{LEDGER_FOLDER}/manifest/1", f"{LOG_FOLDER}/0/wal/1")
    for path in (*known, tenant_folder("orders-b"), f"{ORDERS}.tenant-b/x"):
        fleet.storage.put(path, b"x")
    report = collect_orphans(fleet, dry_run=False)
    assert set(report.found[Reason.FOREIGN].examples) == {tenant_folder("orders-b"), f"{ORDERS}.tenant-b/x"}
    assert set(counts(report)) <= {Reason.REFERENCED, Reason.UNFINISHED, Reason.FOREIGN}
    assert (report.is_clean, report.deleted_count) == (True, 0)


class Interrupted:
    """Parts of which the n-th call, whichever it is, is preceded by something else; with `again` each later one too."""

    def __init__(self, act: Callable[[], None], at: int, *, again: bool = False) -> None:
        self.act = act
        self.left = at
        self.again = again

    def around(self, part: Any) -> Any:
        """A part."""
        return _Part(self, part)


class _Part:
    def __init__(self, interrupted: Interrupted, part: Any) -> None:
        self._interrupted = interrupted
        self._part = part

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._part, name)
        if not callable(result):
            return result

        def call(*given: Any, **named: Any) -> Any:
            self._interrupted.left -= 1
            if self._interrupted.left == 0 or (self._interrupted.left < 0 and self._interrupted.again):
                self._interrupted.act()
            return result(*given, **named)

        return call


def commits(fleet: FleetInProcess) -> None:
    """Commits of which each makes much unneeded, and their collection."""
    main = fleet.tenant(ORDERS).main
    for number in range(2):
        main.put(b"k%d" % number, b"commits")
        main.checkpoint()
        fleet.nodes[fleet.node_of(ORDERS)].compact(ORDERS, "main")
    main.checkpoint()
    fleet.wait(3.0)


def one_commit(fleet: FleetInProcess) -> None:
    """A commit whose deadlist waits, and rows in files that are not committed."""
    node = fleet.nodes[fleet.node_of(ORDERS)]
    node.compact(ORDERS, "main")
    fleet.tenant(ORDERS).main.put(b"k0", b"one")
    fleet.tenant(ORDERS).main.checkpoint()
    fleet.tenant(ORDERS).main.put(b"k1", b"two")
    node.compact(ORDERS, "main")
    fleet.clock.advance(0.5)  # nothing of it is younger than the grace


def another_tenant(fleet: FleetInProcess) -> None:
    """The tenant is deleted, and another one of its name is created and used."""
    fleet.tenant(ORDERS).drop()
    fleet.wait(8.0)
    tenant = fleet.tenant(ORDERS)
    tenant.create(policy=Policy(retain_rows=100))
    tenant.main.put(b"k", b"another")
    tenant.main.checkpoint()


def a_further_tenant(fleet: FleetInProcess) -> None:
    """A tenant is created and used whose name no collection has read yet."""
    tenant = fleet.tenant("zebras")
    tenant.create()
    tenant.main.put(b"k", b"zebras")
    tenant.main.checkpoint()


@pytest.mark.parametrize("act", [commits, one_commit, another_tenant, a_further_tenant])
def test_whatever_happens_between_two_calls_nothing_needed_is_deleted(act: Callable[[FleetInProcess], None]) -> None:
    """Before each call of ledger and store in turn: what is committed then is there, and can be read."""
    for at in range(1, 30):
        fleet = FleetInProcess(nodes=1)
        tenant = fleet.tenant(ORDERS)
        tenant.create(policy=Policy(retain_rows=100))
        for number in range(2):
            tenant.main.put(b"k%d" % number, b"v")
            tenant.main.checkpoint()
        fleet.wait(3.0)
        stray = layer_path(ORDERS, committed(fleet), "main", "0" * 26)
        fleet.storage.put(stray, b"x")
        interrupted = Interrupted(lambda fleet=fleet: act(fleet), at)  # type: ignore[misc]
        report = interrupted_collection(fleet, interrupted)
        record = fleet.ledger.tenant(ORDERS, fresh=True)
        paths = {meta.path for meta in fleet.storage.list()}
        assert record.manifest is not None
        manifest = decode_referenced(fleet.storage.get(record.manifest.path), record.manifest)
        named = layers(ORDERS, manifest) | {record.manifest.path, *([record.deadlist] if record.deadlist else [])}
        assert named <= paths, (at, named - paths)
        assert (report.missing, report.problems) == ((), ())
        assert Reason.UNKNOWN_TENANT not in report.found
        needless = {path for reason in NEEDLESS if reason in report.found for path in report.found[reason].examples}
        assert needless <= {stray}, (at, needless)
        assert dict(fleet.tenant(ORDERS).main.scan())
        if interrupted.left > 0:
            break
        fleet.wait(5.0)
        collect_orphans(fleet, dry_run=False)
        assert collect_orphans(fleet).is_clean, at
    assert at > 4


def interrupted_collection(fleet: FleetInProcess, interrupted: Interrupted) -> OrphanReport:
    """Collect with what comes between its calls."""
    ledger, storage = interrupted.around(fleet.ledger), interrupted.around(fleet.storage)
    return OrphanCollector(ledger, storage, grace=timedelta(0), environment=fleet.environment).collect(dry_run=False)


def test_a_loss_is_told_whatever_is_committed_meanwhile() -> None:
    """A layer is gone that every later state names too: before each call in turn there is a commit."""
    for at in range(1, 40):
        fleet = FleetInProcess(nodes=1)
        fleet.tenant(ORDERS).create()
        one_row(fleet)
        layer = next(meta.path for meta in fleet.storage.list(tenant_folder(ORDERS)) if meta.path.endswith(".sst"))
        fleet.storage.delete([layer])
        interrupted = Interrupted(lambda fleet=fleet: one_row(fleet), at)  # type: ignore[misc]
        report = interrupted_collection(fleet, interrupted)
        assert (report.missing, report.problems, report.deleted_count) == ((layer,), (), 0), at
        if interrupted.left > 0:
            break
    assert 8 < at < 39


def one_row(fleet: FleetInProcess) -> None:
    """A commit of one row more, and the collection of what it made unneeded."""
    main = fleet.tenant(ORDERS).main
    main.put(b"k", b"v")
    main.catch_up()
    main.checkpoint()
    fleet.wait(3.0)


def test_a_tenant_that_commits_between_all_reads_is_told(fleet: FleetInProcess) -> None:
    """The collection ends, says which tenant was not judged, and deletes nothing of it."""
    report = interrupted_collection(fleet, Interrupted(lambda: commits(fleet), 1, again=True))
    assert (report.missing, report.deleted_count, len(report.problems)) == ((), 0, 1)
    assert f"The tenant {ORDERS} commits faster than its state can be read" in report.problems[0]
    assert dict(fleet.tenant(ORDERS).main.scan())
    fleet.wait(5.0)
    assert collect_orphans(fleet).is_clean


def committed_manifest(fleet: FleetInProcess) -> Manifest:
    """The newest one."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    assert record.manifest is not None
    return decode_referenced(fleet.storage.get(record.manifest.path), record.manifest)


def faults(fleet: FleetInProcess, interrupted: Interrupted) -> list[str]:
    """What `lakebed fsck --deep` finds."""
    report = CheckReport("memory://", deep=True)
    findings = Findings(report, store=ORDERS)
    store = interrupted.around(fleet.storage)
    root = LakeRoot(store, fleet.environment, storage_options=None, is_probed=True)
    records = Records(store, interrupted.around(fleet.ledger), None)
    check_objects(root, records, ORDERS, findings)
    assert report.version_count
    return [f"{finding.kind} {finding.path}" for finding in report.findings]


@pytest.mark.parametrize("act", [commits, one_commit, one_row])
def test_fsck_finds_no_fault_in_a_fleet_that_commits_meanwhile(act: Callable[[FleetInProcess], None]) -> None:
    """Before each call in turn; and an object that is lost is found all the same."""
    for at in range(1, 60):
        fleet = FleetInProcess(nodes=1)
        fleet.tenant(ORDERS).create(policy=Policy(retain_rows=100))
        one_row(fleet)
        one_row(fleet)
        interrupted = Interrupted(lambda fleet=fleet: act(fleet), at)  # type: ignore[misc]
        assert faults(fleet, interrupted) == [], at
        if interrupted.left > 0:
            break
    assert 8 < at < 59
    fleet.wait(5.0)
    layer = sorted(layers(ORDERS, committed_manifest(fleet)))[0]
    fleet.storage.delete([layer])
    assert faults(fleet, Interrupted(lambda: None, 0)) == [f"missing {layer}"]


def test_fsck_finds_no_fault_where_what_is_new_is_collected_at_once() -> None:
    """A layer is committed after the objects were listed, and is gone before it is looked for."""
    for at, gap in itertools.product(range(2, 4), range(1, 7)):
        fleet = FleetInProcess(nodes=1)
        fleet.tenant(ORDERS).create(policy=Policy(retain_rows=100))
        one_row(fleet)
        calls = itertools.count(1)
        acts = {at: one_row, at + gap: commits}

        def step(fleet: FleetInProcess = fleet, calls: Iterator[int] = calls, acts: dict[int, Any] = acts) -> None:
            acts.get(next(calls), lambda _: None)(fleet)

        assert faults(fleet, Interrupted(step, 1, again=True)) == [], (at, gap)
        assert next(calls) > at + gap


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_memory_is_bounded_by_a_page(count: int, fleet: FleetInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many objects there are: names of one page, and counts."""
    monkeypatch.setattr("lakebed.fleet.collect.PAGE_COUNT", 1_000)

    class Many:
        def __getattr__(self, name: str) -> object:
            return getattr(fleet.storage, name)

        def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
            for number in range(count):
                yield ObjectMeta(layer_path("other", number // 100, "main", f"{number:026}"), 10, 0)

    tracemalloc.start()
    try:
        report = OrphanCollector(fleet.ledger, Many(), environment=fleet.environment).collect()  # type: ignore[arg-type]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.found[Reason.UNKNOWN_TENANT].object_count == count
    assert peak_bytes < 2 << 20
