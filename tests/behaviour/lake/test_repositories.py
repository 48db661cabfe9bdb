"""Repositories in a lake: found by name, listed, explained and cleaned together with tables and databases."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.fsck.check import check_url
from lakebed.key_value.port import KeyValue
from lakebed.lake.lake import Lake, open_lake
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

QUIET = RepositoryOptions(background=False)


@pytest.fixture
def lake(tmp_path: object, clock: ManualClock) -> Iterator[Lake]:
    """A lake with one repository, one table and one database."""
    lake = open_lake(str(tmp_path), environment=Environment(clock=clock, rng=random.Random(5)))
    lake.create_table("flights", pa.schema([("id", pa.int64())]))
    lake.database("serving").open().close()
    with lake.repository("analytics", create=True, options=QUIET) as analytics:
        analytics.branch().put("a/b", b"one")
        analytics.branch().commit("first")
        analytics.create_tag("v1")
        analytics.branch().put("a/c", b"two")
    return lake


def test_every_kind_is_listed(lake: Lake) -> None:
    """Tables, databases, repositories: one list, with the newest version and what pins."""
    summaries = {summary.kind: summary for summary in lake.ls()}
    assert list(summaries) == ["table", "database", "repository"]
    analytics = summaries["repository"]
    assert (analytics.name, analytics.row_count, analytics.size_bytes, analytics.pin_count) == ("analytics", 1, 3, 1)
    assert analytics.problem is None


def test_questions_own_nothing(lake: Lake) -> None:
    """They are answered while another process owns the repositories; cleaning names that owner instead."""
    with lake.open_repositories(options=QUIET):
        assert lake.repositories() == ["analytics"]
        assert [pin.name for pin in lake.pins("repository:analytics")] == ["v1"]
        assert [version.summary for version in lake.history("analytics")] == ["Repository created", "first"]
        with pytest.raises(Conflict) as owned:
            lake.repository("analytics")
        assert owned.value.kind == "owned"
        (report,) = [report for report in lake.collect() if report.store == "repositories"]
        assert report.problem_kind == "owned"
        assert "open in this process already" in str(report.problem)
        assert "not collected: owned" in repr(report)


def test_a_dry_run_owns_nothing(lake: Lake, clock: ManualClock) -> None:
    """It reports what a collection would delete, also while the repositories are owned, and deletes nothing."""
    with lake.repository("analytics", options=QUIET) as analytics:
        analytics.branch().put("a/c", b"three")
        clock.advance(2 * 86_400)
        before = [meta.path for meta in lake.store.list("analytics.repo")]
        reports = {report.store: report for report in lake.collect(dry_run=True)}
        assert [meta.path for meta in lake.store.list("analytics.repo")] == before
    shown = reports["analytics"]
    assert (shown.problem, shown.deleted_count) == (None, 1)
    done = {report.store: report for report in lake.collect()}["analytics"]
    assert done.deleted_count == 1


def test_a_bare_repository_spoils_nothing(lake: Lake) -> None:
    """It waits for a dump: it is listed as empty, pins nothing, and the pins of the others are told; it is no fault."""
    with lake.open_repositories(options=QUIET) as home:
        bare = home.create("moving-in", bare=True)
        assert (bare.pins(), list(bare.versions())) == ([], [])
        with pytest.raises(NotFound, match=r"It has no branch\."):
            bare.branch("main").put("a", b"one")
    assert [pin.name for pin in lake.pins()] == ["v1"]
    (listed,) = [summary for summary in lake.ls() if summary.name == "moving-in"]
    assert (listed.problem, listed.version, listed.row_count, listed.pin_count) == (None, None, 0, 0)
    assert check_url(lake.url).error_count == 0


def test_a_lost_default_branch_is_not_taken_for_a_bare_repository(lake: Lake) -> None:
    """With the record of its branch, and then of its tag too, gone: questions fail, and fsck names the fault."""
    with lake.open_repositories(options=QUIET) as home:
        context = context_of(home.repository("analytics"))
        key_value, keys = local_catalog(home).key_value, context.keys
        key_value.delete(keys.branch("main"))
        with pytest.raises(NotFound, match="has no branch 'main'"):
            home.repository("analytics").pins()
    assert [summary.problem is None for summary in lake.ls() if summary.name == "analytics"] == [False]
    assert "has no branch." in [finding.sentence for finding in check_url(lake.url).findings]
    with lake.open_repositories(options=QUIET) as home:
        key_value, keys = local_catalog(home).key_value, context.keys
        lines = [key for key, _ in records_below(key_value, keys.reflog())]
        key_value.write(deletes=[keys.tag("v1"), *lines])
    assert "has no branch." in [finding.sentence for finding in check_url(lake.url).findings]


def records_below(key_value: KeyValue, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """The records below a prefix."""
    with key_value.snapshot() as snapshot:
        return list(snapshot.scan(*prefix_range(prefix)))


def test_names_say_which_kind(lake: Lake) -> None:
    """A plain name finds a store of any kind; a kind narrows it; the error of a missing one suggests near names."""
    assert str(lake.find("analytics")) == "repository:analytics"
    with pytest.raises(NotFound) as missing:
        lake.find("repository:analytic")
    assert missing.value.kind == "repository_not_found"
    assert "analytics" in str(missing.value)
    with pytest.raises(NotFound) as other_kind:
        lake.find("table:analytics")
    assert "repository:analytics" in str(other_kind.value)
    with pytest.raises(InvalidRequest, match="repository:x"):
        lake.find("bucket:x")
    with pytest.raises(NotFound):
        lake.repository("nothing")


def test_why_answers_for_every_object(lake: Lake) -> None:
    """Objects of a repository, of its records, and of one that was deleted."""
    address = next(meta.path for meta in lake.store.list("analytics.repo/data"))
    assert {pin.kind for pin in lake.why(address).pins} <= {"branch", "tag"}
    record = next(meta.path for meta in lake.store.list("_repositories"))
    assert "records of all repositories" in lake.why(record).sentence
    with lake.open_repositories(options=QUIET) as home:
        home.delete("analytics")
    assert "was deleted" in lake.why(address).sentence


def test_a_deleted_repository_is_cleaned_after_a_day(lake: Lake, clock: ManualClock) -> None:
    """Its remains stay for as long as something may still be under way; then objects, records and the note go."""
    with lake.open_repositories(options=QUIET) as home:
        home.delete("analytics")
    assert lake.repositories() == []
    lake.collect()
    assert list(lake.store.list("analytics.repo"))
    clock.advance(2 * 86_400)
    shown = lake.collect(dry_run=True)
    assert list(lake.store.list("analytics.repo"))
    done = lake.collect()
    deleted = [report.deleted_count for report in done if report.store == "analytics"]
    planned = [len(report.plan.doomed) for report in shown if report.store == "analytics" and report.plan]
    assert deleted == planned
    assert planned[0] > 0
    assert not list(lake.store.list("analytics.repo"))
    with lake.repository("analytics", create=True, options=QUIET) as again:
        assert list(again.branch().list()) == []


def test_cleaning_takes_what_nobody_needs(lake: Lake, clock: ManualClock) -> None:
    """An overwritten upload goes with the lake's own cleaning, and what is needed stays."""
    with lake.repository("analytics", options=QUIET) as analytics:
        analytics.branch().put("a/c", b"three")
    before = len(list(lake.store.list("analytics.repo/data")))
    clock.advance(2 * 86_400)
    lake.collect()
    assert len(list(lake.store.list("analytics.repo/data"))) == before - 1
    with lake.repository("analytics", options=QUIET) as analytics:
        assert analytics.branch().get("a/c") == b"three"
        assert analytics.ref("v1").get("a/b") == b"one"
