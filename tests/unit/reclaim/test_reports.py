"""Plans, reports and sweeps: what they count and show, over every shape of a plan and every request that fails."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from lakebed.errors import Unavailable
from lakebed.objects.open import open_store
from lakebed.reclaim import sweep as sweep_module
from lakebed.reclaim.model import HTML_ROWS_MAX, CollectionPlan, CollectionReport, Deletable, Listing
from lakebed.reclaim.sweep import Progress, Sweep, Sweeper, batches, notes_on, report_of
from lakebed.testing import Fault, FaultyStore, RecordingStore

names = itertools.count()

REPORT = CollectionReport("t", 1, 2, 30, {"pinned": 4, "grace": 5}, ("careful",), dry_run=False, notes=("later",))


def rows_of(shown: str) -> list[list[str]]:
    """The cells of a table of HTML, row by row."""
    body = shown.partition("<tbody>")[2]
    return [[unescape(cell) for cell in re.findall("<td>(.*?)</td>", row)] for row in body.split("</tr>") if row][:-1]


def title_of(shown: str) -> str:
    """Its caption."""
    return unescape(shown.partition("<caption>")[2].partition("</caption>")[0])


def plan_of(count: int, *, hidden: int = 0) -> CollectionPlan:
    """A plan whose objects have different sizes: 1, 2, 4 and so on."""
    doomed = tuple(Deletable(f"p{number}", 1 << number, "dead") for number in range(count))
    return CollectionPlan("t", tuple(f"v{number}" for number in range(hidden)), doomed)


def test_a_report_in_a_notebook_has_every_number() -> None:
    """What was kept in the order of the reasons, then the warnings, the notes, and why a store was not collected."""
    expected = [
        ["versions and tags", "1"],
        ["files", "2"],
        ["bytes", "30"],
        ["kept: grace", "5"],
        ["kept: pinned", "4"],
        ["warning", "careful"],
        ["note", "later"],
    ]
    shown = REPORT._repr_html_()
    assert (rows_of(shown), title_of(shown)) == (expected, repr(REPORT))
    failed = replace(REPORT, problem="The store is away.", problem_kind="away")
    assert rows_of(failed._repr_html_()) == [*expected, ["not collected", "The store is away."]]


def test_a_report_is_one_line() -> None:
    """Its counts; warnings and a problem where there are any."""
    counts = "CollectionReport('t', versions=1, files=2, bytes=30, dry_run=False"
    assert repr(REPORT) == f"{counts}, warnings=1)"
    assert repr(replace(REPORT, warnings=())) == f"{counts})"
    assert repr(replace(REPORT, warnings=("a", "b"), problem="x", problem_kind="away")) == (
        f"{counts}, warnings=2, not collected: away)"
    )


@pytest.mark.parametrize(("hidden", "count"), [(0, 0), (2, 1), (HTML_ROWS_MAX + 1, HTML_ROWS_MAX + 1)])
def test_a_plan_in_a_notebook_names_what_goes(hidden: int, count: int) -> None:
    """The first hundred versions, and the first hundred files with their sizes and reasons."""
    plan = replace(plan_of(0, hidden=hidden), doomed=tuple(Deletable(f"p{n}", n, f"why {n}") for n in range(count)))
    shown = plan._repr_html_()
    assert title_of(shown) == repr(plan)
    assert rows_of(shown) == [
        *([f"v{n}", "", "a version, tag or schema"] for n in range(min(hidden, 100))),
        *([f"p{n}", f"{n}", f"why {n}"] for n in range(min(count, 100))),
    ]


def test_an_empty_listing_in_a_notebook_is_an_empty_table() -> None:
    """It has no columns to name; one with a row names them."""
    assert rows_of(Listing()._repr_html_()) == []
    assert title_of(Listing()._repr_html_()) == ""
    shown = Listing([Deletable("p", 1, "dead")])._repr_html_()
    assert ("<th>path</th><th>size_bytes</th><th>why</th>" in shown, rows_of(shown)) == (True, [["p", "1", "dead"]])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", range(7))
def test_batches_are_full_but_the_last(count: int, size: int) -> None:
    """All items, in order."""
    expected = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    assert list(batches(iter(range(count)), size)) == expected


@pytest.mark.parametrize("hidden", range(4))
@pytest.mark.parametrize("count", range(6))
def test_a_sweep_counts_what_each_request_did(monkeypatch: pytest.MonkeyPatch, count: int, hidden: int) -> None:
    """With any one request refused: a plan's report, its progress and what is left agree with a reckoning by hand."""
    monkeypatch.setattr(sweep_module, "BATCH_COUNT_MAX", 2)
    plan = plan_of(count, hidden=hidden)
    hides = [plan.hide[at : at + 2] for at in range(0, hidden, 2)]
    dooms = [plan.doomed[at : at + 2] for at in range(0, count, 2)]
    for refused in (None, *range(len(hides) + len(dooms))):
        store = open_store(f"memory://reports-{next(names)}")
        for path in (*plan.hide, *(item.path for item in plan.doomed), "kept"):
            store.put(path, b"x")
        told: list[Progress] = []
        faults = {} if refused is None else {refused: Fault.ERROR_BEFORE}
        report = Sweeper(FaultyStore(store, faults=faults), progress=told.append).sweep(plan)
        hid = [batch for at, batch in enumerate(hides) if at != refused]
        is_hidden = len(hid) == len(hides)
        gone = [batch for at, batch in enumerate(dooms, len(hides)) if is_hidden and at != refused]
        sizes = [sum(item.size_bytes for item in batch) for batch in gone]
        assert (report.hidden_count, report.deleted_count, report.deleted_bytes) == (
            sum(map(len, hid)),
            sum(map(len, gone)),
            sum(sizes),
        )
        assert (len(report.warnings), report.dry_run, report.plan) == (refused is not None, False, plan)
        left = {meta.path for meta in store.list()}
        assert left == {"kept", *plan.hide, *(item.path for item in plan.doomed)} - {
            *itertools.chain(*hid),
            *(item.path for item in itertools.chain(*gone)),
        }
        done = [(min(at + 2, hidden), hidden, 0) for at in range(0, hidden, 2)]
        if is_hidden:
            done += [(min(at + 2, count), count, (1 << min(at + 2, count)) - 1) for at in range(0, count, 2)]
        assert [(step.done_count, step.total_count, step.done_bytes) for step in told] == done


@pytest.mark.parametrize("ends_at", range(6))
def test_a_sweep_asks_before_each_request_whether_to_go_on(monkeypatch: pytest.MonkeyPatch, ends_at: int) -> None:
    """When the names are another's, nothing more is asked of the store, and the sweep is not complete."""
    monkeypatch.setattr(sweep_module, "BATCH_COUNT_MAX", 2)
    plan, asked = plan_of(5, hidden=3), itertools.count()
    store = RecordingStore(open_store(f"memory://reports-{next(names)}"))
    report = Sweeper(store).sweep(plan, is_current=lambda: next(asked) < ends_at)
    requests = [["v0", "v1"], ["v2"], ["p0", "p1"], ["p2", "p3"], ["p4"]]
    assert [list(record.call.paths) for record in store.trace] == requests[:ends_at]
    assert (report.hidden_count, report.deleted_count) == (
        sum(map(len, requests[: min(ends_at, 2)])),
        sum(map(len, requests[2:ends_at])),
    )
    sweep = Sweeper(store).delete_all(plan.doomed, is_current=lambda: next(asked) < 0)
    assert (sweep.complete, sweep.is_ended, sweep.deleted_count) == (False, True, 0)
    sweep = Sweeper(store).delete_all(plan.doomed, is_current=lambda: True)
    assert (sweep.complete, sweep.is_ended, sweep.deleted_count, sweep.deleted_bytes) == (True, False, 5, 31)


def test_a_sweep_goes_on_with_counts_that_it_is_given() -> None:
    """Of an earlier one, which is returned."""
    given = Sweep(deleted_count=3, deleted_bytes=7)
    swept = Sweeper(open_store(f"memory://reports-{next(names)}")).delete_all(plan_of(2).doomed, into=given)
    assert swept is given
    assert (given.deleted_count, given.deleted_bytes, given.complete) == (5, 10, True)
    given.errors.append("one")
    assert not given.complete


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_report_has_the_numbers_of_the_sweep_or_those_of_the_plan(dry_run: bool) -> None:
    """A dry run says what would be deleted; a sweep what was, with its errors behind the plan's warnings."""
    plan = replace(plan_of(3, hidden=2), kept={"grace": 1}, warnings=("careful",), notes=("later",))
    report = report_of(plan, Sweep(2, 5, ["failed"]), hidden_count=1, dry_run=dry_run)
    counts = (2, 3, 7) if dry_run else (1, 2, 5)
    assert (report.hidden_count, report.deleted_count, report.deleted_bytes) == counts
    assert (report.store, report.kept, report.warnings) == ("t", {"grace": 1}, ("careful", "failed"))
    assert (report.dry_run, report.plan, report.notes, report.problem) == (dry_run, plan, ("later",), None)
    report.kept["grace"] = 2
    assert plan.kept == {"grace": 1}, "a report is no part of its plan"


class _Branch(RecordingStore):
    """A store that keeps what is deleted."""

    @property
    def is_versioned(self) -> bool:
        """It does."""
        return True


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_store_that_keeps_what_is_deleted_is_noted(count: int, is_kept: bool) -> None:
    """Once, where something is deleted."""
    inner = open_store(f"memory://reports-{next(names)}")
    store: Any = _Branch(inner) if is_kept else inner
    notes = notes_on(store, plan_of(count).doomed)
    assert len(notes) == (1 if count and is_kept else 0)
    assert all(note.startswith(f"{inner.root_url} is a branch") for note in notes)


def test_a_store_that_could_not_be_collected_is_as_its_error_says() -> None:
    """Its sentence and its kind."""
    report = CollectionReport.not_collected("t", Unavailable("away", kind="gone"), dry_run=True)
    assert report == CollectionReport("t", 0, 0, 0, {}, (), True, problem="away", problem_kind="gone")
