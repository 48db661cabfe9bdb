"""How far back a timeline is read: `Policy.retain_ms` and `retain_rows`, with a clock that a test moves and sets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakebed.errors import InvalidRequest
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.node.node import Node
from lakebed.fleet.ports import TimelineChange
from worlds.errors import raises
from worlds.fleet_node import SMALL, TENANT, Fleet, ShiftedClock

DAY_S = 86_400
AGE_S = 6_400
STEP_S = AGE_S // 64
"""The cutoff moves in such steps."""
ROWS = 4
"""Kept at least, whatever their age."""


def started() -> tuple[Fleet, Node]:
    """A tenant that keeps an age of versions."""
    fleet = Fleet(policy=Policy(retain_ms=AGE_S * 1000, retain_rows=ROWS, commit_age_ms=1 << 40))
    node = fleet.node("a")
    fleet.work("a")
    return fleet, node


def write(fleet: Fleet, node: Node, *, rows: int = 5) -> int:
    """Append and ingest rows; the last LSN."""
    last = fleet.append(rows=rows)
    node.ingest_once(TENANT)
    return last


def merged(fleet: Fleet, node: Node, timeline: str = MAIN) -> int:
    """Drop every version that may be dropped; the cutoff. Each LSN from there on is read as it was, no older one is."""
    node.flush_once(TENANT)
    node.compact(TENANT, timeline)
    cutoff = next(item.cutoff for item in node.timelines(TENANT) if item.name == timeline)
    fleet.check(node, timeline, every=7)
    if cutoff:
        with raises(InvalidRequest, "below_cutoff", cutoff=cutoff) as below:
            node.get(TENANT, timeline, b"key-0001", lsn=cutoff - 1)
        assert f"LSN {cutoff - 1}" in below.value.message
        assert f"LSN {cutoff} on" in below.value.message
    return cutoff


def test_versions_are_kept_for_their_age() -> None:
    """The cutoff is the newest LSN of the time one age ago, as exactly as the age is divided; rows are kept besides."""
    fleet, node = started()
    written: list[tuple[float, int]] = []
    for number in range(32):
        written.append((fleet.clock.monotonic_s(), write(fleet, node)))
        fleet.clock.advance(4 * STEP_S)
        cutoff = merged(fleet, node) if number % 8 == 7 else 0
        if not cutoff:
            continue
        now_s = fleet.clock.monotonic_s()
        due = max((lsn for at_s, lsn in written if at_s <= now_s - AGE_S), default=0)
        least = max((lsn for at_s, lsn in written if at_s <= now_s - AGE_S - STEP_S), default=0)
        assert least <= cutoff <= due <= written[-1][1] - ROWS
    assert cutoff > 40  # the last of them, after two ages
    node.checkpoint(TENANT)
    assert fleet.record.timelines[MAIN].cutoff == cutoff
    fleet.end()


def test_rows_are_kept_when_all_are_old() -> None:
    """However old everything is, the newest rows are read at their LSNs."""
    fleet, node = started()
    last = write(fleet, node, rows=20)
    fleet.clock.advance(10 * AGE_S)
    assert merged(fleet, node) == last - ROWS
    fleet.end()


def test_an_idle_timeline_keeps_what_it_has() -> None:
    """Time alone moves nothing and costs nothing; the next rows move the cutoff to what is old by then."""
    fleet, node = started()
    first = write(fleet, node, rows=10)
    node.checkpoint(TENANT)
    with fleet.storage.count() as counts:
        for _ in range(20):
            fleet.clock.advance(AGE_S)
            fleet.work("a")
            node.heartbeat_once()
    assert counts.total == 0
    assert node.timelines(TENANT)[0].cutoff == 0
    fleet.check(node)
    write(fleet, node, rows=10)
    assert merged(fleet, node) == first
    fleet.end()


def test_pins_and_branches_keep_their_versions() -> None:
    """Their parent's cutoff passes them, its files are merged and the old ones deleted: both are read as before."""
    fleet, node = started()
    write(fleet, node, rows=30)
    node.checkpoint(TENANT)
    for kind, lsn in (("pin", 12), ("branch", 17)):
        fleet.change(node, kind, kind, parent=MAIN, lsn=lsn)
        fleet.oracle.branch(MAIN, lsn, kind)
    fleet.clock.advance(2 * AGE_S)
    write(fleet, node, rows=30)
    assert merged(fleet, node) == 30
    node.checkpoint(TENANT)
    fleet.collect()
    for kind in ("pin", "branch"):
        fleet.check(node, kind)
    assert [timeline.cutoff for timeline in node.timelines(TENANT) if timeline.name != MAIN] == [12, 0]
    other = fleet.node("b")
    for kind in ("pin", "branch"):
        fleet.check(other, kind)
    fleet.ingest(other, "branch", rows=30)
    fleet.clock.advance(2 * AGE_S)
    assert merged(fleet, other, "branch") == 47 - ROWS
    fleet.check(other, "pin")
    fleet.end()


@pytest.mark.parametrize("jump_s", [-86_400 * 365, 86_400 * 365])
def test_a_wall_clock_that_is_set_ages_nothing(jump_s: int) -> None:
    """A year back or ahead: what was written a moment ago stays readable, and ages from then on as before."""
    fleet, node = started()
    early = write(fleet, node, rows=20)
    fleet.clock.advance(STEP_S)
    fleet.clock.set_wall(jump_s)
    late = write(fleet, node, rows=20)
    assert merged(fleet, node) == 0
    fleet.clock.advance(AGE_S - STEP_S // 2)
    write(fleet, node, rows=20)
    assert merged(fleet, node) == early
    fleet.clock.set_wall(-jump_s)
    fleet.clock.advance(STEP_S)
    write(fleet, node, rows=20)
    assert merged(fleet, node) == late
    fleet.end()


def test_another_node_begins_to_count_anew() -> None:
    """A node does not know how old rows are that others have ingested: it keeps them for one age more, never less."""
    fleet, node = started()
    write(fleet, node, rows=20)
    node.checkpoint(TENANT)
    fleet.clock.advance(2 * AGE_S)
    other = fleet.node("b")
    write(fleet, other, rows=20)
    assert merged(fleet, other) == 0
    fleet.clock.advance(AGE_S)
    write(fleet, other, rows=20)
    assert merged(fleet, other) == 40
    fleet.end()


def test_a_scan_that_runs_holds_its_state() -> None:
    """The cutoff does not pass it, so it continues in files that were written since; then the cutoff moves on."""
    fleet = Fleet(policy=Policy(retain_rows=ROWS), options=replace(SMALL, cache_bytes=0))
    node = fleet.node("a")
    for _ in range(4):
        last = fleet.append(rows=300, keys=900)
        node.ingest_once(TENANT)
        node.flush_once(TENANT)
    node.checkpoint(TENANT)
    scanned = node.scan(TENANT, MAIN)
    batches = [next(scanned)]
    for _ in range(2):
        fleet.ingest(node, rows=300, keys=900)
        node.compact(TENANT, MAIN)
        node.checkpoint(TENANT)
    fleet.collect()
    assert node.timelines(TENANT)[0].cutoff == last
    batches += scanned
    result = {
        k: v for batch in batches for k, v in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    }
    assert result == fleet.oracle.state(MAIN, last)
    node.compact(TENANT, MAIN)
    assert node.timelines(TENANT)[0].cutoff == fleet.oracle.last(MAIN) - ROWS
    fleet.end()


@pytest.mark.parametrize("wrong", ["node", "control plane"])
@pytest.mark.parametrize("off_s", [-40 * DAY_S, 40 * DAY_S])
def test_one_clock_that_is_wrong_ends_no_pin(wrong: str, off_s: int) -> None:
    """A pin lives as long as it was to live, made and kept while the node's clock or the control plane's is set."""
    fleet = Fleet()
    clock = ShiftedClock()
    node = fleet.node("a", clock=clock)

    def pass_time(seconds: float) -> set[str]:
        fleet.clock.advance(seconds)
        clock.advance(seconds)
        node.heartbeat_once()
        fleet.work("a")
        node.checkpoint(TENANT)
        return {timeline.name for timeline in node.timelines(TENANT)}

    def set_wrong(seconds: float) -> None:
        (clock if wrong == "node" else fleet.clock).set_wall(seconds)

    def pin(name: str) -> None:
        node.change(
            TENANT, TimelineChange(kind="pin", name=name, id=name, parent=MAIN, lsn=10, lifetime_ms=DAY_S * 1000)
        )

    write(fleet, node, rows=10)
    assert pass_time(1) == {MAIN}
    pin("before")
    set_wrong(off_s)
    pass_time(1)
    pin("while")
    assert pass_time(DAY_S - 100) == {MAIN, "before", "while"}
    set_wrong(-off_s)
    assert pass_time(1) == {MAIN, "before", "while"}
    assert pass_time(200) == ({MAIN} if off_s < 0 else {MAIN, "while"})
    assert pass_time(41 * DAY_S) == {MAIN}
    fleet.end()
