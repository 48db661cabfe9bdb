"""A node that does not answer: its tenants are attached elsewhere, one write each, and it is told when it is back."""

from __future__ import annotations

from worlds.fleet_control import World


def test_a_silent_node_is_replaced_and_told_when_it_answers() -> None:
    """The new node has the last committed state; the old one is rejected, and detached when it is back."""
    world = World()
    world.add("a", "b", "c")
    world.control.create_tenant("t")
    old = world.node_of("t")
    assert old.held["t"].txn == 1
    assert old.commit("t").verdict == "granted"
    old.is_down = True
    world.wait(2.5)
    new = world.node_of("t")
    assert new is not old
    assert (new.held["t"].base, new.held["t"].manifest) == (1, old.held["t"].manifest)
    late = old.request("t", lsn=9)
    assert new.commit("t", lsn=2).verdict == "granted"
    assert world.control.commit([late])[0].verdict == "rejected"
    old.is_down = False
    world.wait(3.0)
    assert "t" not in old.held
    assert [event.kind for _, event in world.control.events()] == ["node_silent"]
    assert world.log.pruned == {"t/main": 2}
