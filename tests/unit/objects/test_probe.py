"""Probes that a process left behind: which of them are old enough to go."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import pytest

from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import is_probe, leftover_probes, probe_create_only, store_time_ms
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

HOUR_S: Final = 3600


def opened(clock: ManualClock) -> tuple[ObjectStore, Environment]:
    """An empty store whose time is the clock's."""
    environment = Environment(clock=clock)
    return open_store(f"memory://{uuid.uuid4()}", environment=environment), environment


@pytest.mark.parametrize(("age_s", "is_old"), [(0, False), (HOUR_S - 1, False), (HOUR_S, False), (HOUR_S + 1, True)])
def test_a_probe_is_left_over_after_more_than_an_hour(age_s: int, is_old: bool) -> None:
    """Until then its process may be about to delete it; objects of other names, and those in folders, are none."""
    clock = ManualClock()
    store, environment = opened(clock)
    for path in ("lakebed-probe-1", "lakebed-probe-2", "a", "b/lakebed-probe-3"):
        store.put(path, b"x")
    clock.advance(age_s)
    expected = ["lakebed-probe-1", "lakebed-probe-2"] if is_old else []
    for dry_run in (False, True):
        with store.count() as requests:
            assert [meta.path for meta in leftover_probes(store, environment=environment, dry_run=dry_run)] == expected
        assert (requests.put > 0) == (is_old and not dry_run), "the store is asked for its time where that matters"
    assert len(list(store.list())) == 4, "nothing is deleted, and nothing left behind"


@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S, 10 * HOUR_S])
def test_a_clock_that_is_wrong_makes_no_probe_old(ahead_s: int) -> None:
    """Ours and the store's both have to say so."""
    clock, ours = ManualClock(), ManualClock()
    store, _ = opened(clock)
    store.put("lakebed-probe-1", b"x")
    ours.advance(2 * HOUR_S + ahead_s if ahead_s > 0 else 0)
    clock.advance(2 * HOUR_S if ahead_s < 0 else 0)
    assert leftover_probes(store, environment=Environment(clock=ours)) == ()
    ours.advance(20 * HOUR_S)
    clock.advance(2 * HOUR_S)
    assert len(leftover_probes(store, environment=Environment(clock=ours))) == 1


def test_the_time_of_a_store_is_that_of_its_objects(tmp_path: Path) -> None:
    """In memory the clock's, in a folder the file system's; and asking leaves nothing there."""
    clock = ManualClock()
    store, environment = opened(clock)
    clock.advance(5)
    assert store_time_ms(store, environment=environment) == clock.now_ms()
    assert list(store.list()) == []
    local = open_store(str(tmp_path / "local"), durable=False)
    (tmp_path / "file").write_bytes(b"")
    before_ms = int((tmp_path / "file").stat().st_mtime * 1000)
    assert before_ms - 1000 <= store_time_ms(local, environment=Environment()) <= before_ms + 60_000
    assert list(local.list()) == []


def test_a_probe_is_known_by_its_name() -> None:
    """Of every process, and no other object's."""
    store, environment = opened(ManualClock())
    with store.count() as requests:
        probe_create_only(store, environment=environment)
    assert (requests.put, requests.delete, requests.total) == (2, 1, 3)
    assert is_probe("lakebed-probe-x")
    assert not is_probe("lakebed-prob")
    assert not is_probe("a/lakebed-probe-x")
