"""Reads of a node at every LSN, against a dictionary, whatever was flushed, compacted, committed or moved."""

from __future__ import annotations

import random

import pytest

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.ports import Location
from worlds.errors import raises
from worlds.fleet_node import TENANT, Fleet


def test_rows_are_read_after_each_step() -> None:
    """From memory, from layers, after a compaction, after a commit, and on another node."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.append(rows=30)
    fleet.check(a)
    assert a.flush_once(TENANT)
    fleet.check(a)
    for _ in range(4):
        fleet.ingest(a, rows=20)
        a.flush_once(TENANT)
    assert a.compact_once(TENANT)
    fleet.check(a)
    fleet.append(rows=5)
    assert a.ingest_once(TENANT)
    assert a.commit_once(TENANT)
    fleet.check(a)
    b = fleet.node("b")
    fleet.check(b)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))])
def test_random_steps(seed: int) -> None:
    """Ingest, flush, compact, commit, branch, pin, delete, restart and failover in any order: every read is right."""
    fleet = Fleet(seed=seed)
    rng = random.Random(seed)
    name = "a"
    node = fleet.node(name)
    timelines = [MAIN]
    pins: list[str] = []
    for step in range(60):
        timeline = rng.choice(timelines)
        match rng.randrange(10):
            case 0 | 1 | 2:
                fleet.append(timeline, rows=rng.randrange(1, 20))
            case 3:
                node.ingest_once(TENANT)
            case 4:
                node.flush_once(TENANT)
            case 5:
                node.compact_once(TENANT)
            case 6:
                node.commit_once(TENANT)
            case 7 if len(timelines) + len(pins) < 6:
                infos = {element.name: element for element in node.timelines(TENANT)}
                committed = infos[timeline].committed_lsn
                lsn = rng.randrange(infos[timeline].cutoff, committed + 1)
                kind = rng.choice(("branch", "pin"))
                fleet.change(node, kind, f"{kind}-{step}", parent=timeline, lsn=lsn)
                fleet.oracle.branch(timeline, lsn, f"{kind}-{step}")
                (timelines if kind == "branch" else pins).append(f"{kind}-{step}")
            case 8 if len(timelines) > 1 and timeline != MAIN:
                fleet.change(node, "delete", timeline)
                timelines.remove(timeline)
            case 9:
                fleet.crash(name)
                before, name = name, rng.choice((name, "a", "b"))
                # A node that another one has replaced is attached anew: its generation is over.
                node = fleet.node(name, attach=name != before or rng.random() < 0.5)
                if not any(location.tenant == TENANT for location in node.locations()):
                    node.put_location(fleet.attach(name))
        if step % 10 == 9:
            for item in (*timelines, *pins):
                fleet.check(node, item, every=7)
    for item in (*timelines, *pins):
        fleet.check(node, item)
    node.checkpoint(TENANT)
    fleet.check_references()
    for item in (*timelines, *pins):
        fleet.check(node, item, every=5)
    fleet.end()


def test_a_read_waits_for_its_lsn() -> None:
    """An LSN ahead is waited for, then refused; one below the cutoff is refused with the oldest."""
    fleet = Fleet(policy=Policy(retain_rows=5))
    a = fleet.node("a")
    last = fleet.append(rows=20)
    assert a.get(TENANT, MAIN, b"key-0001", at_least=last).lsn == last
    with raises(Unavailable, "lsn_not_reached"):
        a.get(TENANT, MAIN, b"key-0001", at_least=last + 1)
    a.flush_once(TENANT)
    with raises(InvalidRequest, "below_cutoff", cutoff=last - 5):
        a.get(TENANT, MAIN, b"key-0001", lsn=last - 6)
    fleet.check(a)


@pytest.mark.parametrize("ending", ["detached", "attached elsewhere", "attached anew"])
def test_a_scan_continues_when_its_tenant_goes(ending: str) -> None:
    """What a scan has begun to read it reads to its end, in the same state, from files that others may replace."""
    fleet = Fleet()
    a = fleet.node("a")
    for _ in range(4):
        fleet.ingest(a, rows=300, keys=1 << 20)
        a.flush_once(TENANT)
    a.checkpoint(TENANT)
    last = fleet.append(rows=50, keys=1 << 20)
    a.ingest_once(TENANT)
    scanned = a.scan(TENANT, MAIN)
    batches = [next(scanned)]
    if ending == "detached":
        a.put_location(Location(TENANT, a.locations()[0].generation, None))
    elif ending == "attached elsewhere":
        b = fleet.node("b")
        fleet.ingest(b, rows=50)
        b.compact(TENANT, MAIN)
        b.checkpoint(TENANT)
    else:
        a.put_location(fleet.attach("a"))
        fleet.append(rows=50)
    fleet.work("a")
    batches += scanned
    assert len(batches) > 1
    result = {
        k: v for batch in batches for k, v in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    }
    assert result == fleet.oracle.state(MAIN, last)
    assert {batch.schema.metadata[b"lsn"] for batch in batches} == {b"%d" % last}


def test_a_pin_is_read_at_its_lsn_alone() -> None:
    """A pin has one state; other LSNs are refused, and so are rows."""
    fleet = Fleet()
    a = fleet.node("a")
    fleet.ingest(a, rows=30)
    a.checkpoint(TENANT)
    fleet.change(a, "pin", "p", parent=MAIN, lsn=20)
    fleet.oracle.branch(MAIN, 20, "p")
    fleet.check(a, "p")
    with pytest.raises(InvalidRequest) as below:
        a.get(TENANT, "p", b"key-0001", lsn=19)
    assert (below.value.kind, below.value.facts["cutoff"], below.value.message[:15]) == (
        "below_cutoff",
        20,
        f"{TENANT}/p was to be"[:15],
    )
    with raises(Unavailable, "lsn_not_reached"):
        a.get(TENANT, "p", b"key-0001", lsn=21)
    fleet.ingest(a, rows=30)
    a.compact(TENANT, MAIN)
    a.checkpoint(TENANT)
    fleet.check(a, "p")
    fleet.end()
