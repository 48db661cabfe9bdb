"""The sweeper."""

from __future__ import annotations

import itertools

import pytest

from lakebed.errors import InternalError, Unavailable
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable, Listing
from lakebed.reclaim.sweep import BATCH_COUNT_MAX, Progress, Sweeper, notes_on
from lakebed.testing import Fault, FaultyStore, RecordingStore

_names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    """A fresh store in memory with a few objects."""
    store = open_store(f"memory://sweep-{next(_names)}")
    for name in ("a", "b", "kept", "version"):
        store.put(name, b"xx")
    return store


def plan(*paths: str, hide: tuple[str, ...] = ()) -> CollectionPlan:
    """A plan that dooms some paths of two bytes each."""
    return CollectionPlan("t", hide, tuple(Deletable(path, 2, "dead") for path in paths), {"needed": 3}, ("careful",))


def there(store: ObjectStore) -> list[str]:
    """Paths that are there."""
    return [meta.path for meta in store.list()]


def test_it_deletes_what_the_plan_names(store: ObjectStore) -> None:
    """Hidden and doomed objects go, missing ones are fine, and the report has counts, bytes and the plan's warnings."""
    report = Sweeper(store).sweep(plan("a", "b", "missing", hide=("version",)))
    assert there(store) == ["kept"]
    assert (report.hidden_count, report.deleted_count, report.deleted_bytes) == (1, 3, 6)
    assert report.kept == {"needed": 3}
    assert report.warnings == ("careful",)


def test_a_dry_run_deletes_nothing(store: ObjectStore) -> None:
    """A dry run returns the plan and asks nothing of the store."""
    recorded = RecordingStore(store)
    report = Sweeper(recorded).sweep(plan("a", hide=("version",)), dry_run=True)
    assert recorded.trace == []
    assert report.dry_run
    assert report.plan is not None
    assert report.plan.bytes_freed == 2


def test_batches_and_progress(store: ObjectStore) -> None:
    """Objects go a thousand a request, in the plan's order, and progress is reported after each."""
    recorded, messages = RecordingStore(store), []
    count = 2 * BATCH_COUNT_MAX + 1
    Sweeper(recorded, progress=messages.append).sweep(plan(*(f"p{n}" for n in range(count))))
    assert [len(call.call.paths) for call in recorded.trace] == [BATCH_COUNT_MAX, BATCH_COUNT_MAX, 1]
    assert messages == [Progress(done, count, 2 * done) for done in (BATCH_COUNT_MAX, 2 * BATCH_COUNT_MAX, count)]


def test_a_deletion_that_is_final_has_no_note(store: ObjectStore) -> None:
    """Only where a repository keeps deleted files does a plan say that their bytes are not freed."""
    assert notes_on(store, plan("a").doomed) == ()


def test_an_error_in_one_batch_is_reported_and_the_rest_goes_on(store: ObjectStore) -> None:
    """One refused request costs its own batch only."""
    faulty = FaultyStore(store, faults={0: Fault.ERROR_BEFORE})
    report = Sweeper(faulty).sweep(plan(*(f"p{n}" for n in range(BATCH_COUNT_MAX)), "a"))
    assert "a" not in there(store)
    assert report.deleted_count == 1
    assert "objects from p0 on could not be deleted" in report.warnings[-1]


def test_objects_outside_go_before_those_that_name_them(store: ObjectStore) -> None:
    """Proven to be the caller's own, each is deleted in the store of its URL; the same names inside stay."""
    outside = open_store(f"memory://sweep-outside-{next(_names)}")
    for name in ("a", "kept"):
        outside.put(name, b"xx")
    recorded = RecordingStore(store)
    urls = [outside.url(name) for name in ("a", "missing")]
    report = Sweeper(recorded, reaches_outside=True).sweep(plan("b", *urls))
    assert (there(store), there(outside)) == (["a", "kept", "version"], ["kept"])
    assert [call.call.paths for call in recorded.trace] == [tuple(urls), ("b",)]
    assert (report.hidden_count, report.deleted_count, report.warnings) == (0, 3, ("careful",))


def test_while_a_version_is_visible_its_files_stay(store: ObjectStore) -> None:
    """When hiding fails, nothing is deleted."""
    faulty = FaultyStore(store, faults={0: Fault.ERROR_BEFORE})
    report = Sweeper(faulty).sweep(plan("a", hide=("version",)))
    assert there(store) == ["a", "b", "kept", "version"]
    assert report.deleted_count == 0


def test_a_sweep_ends_when_its_names_are_anothers(store: ObjectStore) -> None:
    """Whether they are is asked before each request, and what is left then stays."""
    answers = iter((True, False))
    report = Sweeper(store).sweep(plan("a", "b", hide=("version",)), is_current=lambda: next(answers))
    assert there(store) == ["a", "b", "kept"]
    assert (report.hidden_count, report.deleted_count) == (1, 0)


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "s3://bucket/a", "a/./b", ""])
def test_it_never_leaves_its_store(store: ObjectStore, path: str) -> None:
    """A plan with a path outside of the store is refused before anything is deleted."""
    with pytest.raises(InternalError):
        Sweeper(store).sweep(plan("a", path))
    assert "a" in there(store)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_report_of_a_store_that_cannot_be_collected_counts_nothing(dry_run: bool) -> None:
    """It says why, and that nothing was hidden, deleted or kept."""
    report = CollectionReport.not_collected("t", Unavailable("The store is away.", kind="away"), dry_run=dry_run)
    assert (report.hidden_count, report.deleted_count, report.deleted_bytes, report.kept) == (0, 0, 0, {})
    assert (report.problem, report.problem_kind, report.dry_run) == ("The store is away.", "away", dry_run)
    assert "not collected: away" in repr(report)
    assert "not collected" not in repr(Sweeper(open_store("memory://none")).sweep(plan(), dry_run=dry_run))


def test_a_plan_shows_its_counts() -> None:
    """Of versions, files and bytes; of warnings where there are any."""
    assert repr(plan("a", "b", hide=("v",))) == "CollectionPlan('t', versions=1, files=2, bytes=4, warnings=1)"
    assert repr(CollectionPlan("t", (), ())) == "CollectionPlan('t', versions=0, files=0, bytes=0)"


@pytest.mark.parametrize(("count", "title"), [(100, ""), (101, "100 of 101")])
def test_a_listing_in_a_notebook_says_when_it_is_cut(count: int, title: str) -> None:
    """Its first hundred rows are shown."""
    shown = Listing(Deletable(f"p{number}", 1, "dead") for number in range(count))._repr_html_()
    assert (title in shown, " of " in shown, "p99" in shown, "p100" in shown) == (True, bool(title), True, False)
