"""The fleet's transactions, searched: every order of steps within small bounds keeps the invariants.

The second half undoes one rule of the design at a time; the search must find what the rule protects from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from worlds.fleet.search import search
from worlds.fleet.search_model import Bounds, Rules

SMALL = {
    "failover": Bounds(txns=2, lsns=1, crashes=1, pins=False, relocations=False),
    "relocation": Bounds(txns=2, lsns=1, crashes=0, pins=False),
    "begins": Bounds(txns=3, lsns=1, crashes=0, pins=False, relocations=False),
    "pins": Bounds(txns=2, lsns=2, nodes=1, crashes=0, relocations=False),
    "restarts": Bounds(txns=2, lsns=2, nodes=1, crashes=1, pins=False, relocations=False),
    "unclear_puts": Bounds(txns=2, lsns=2, nodes=1, crashes=0, unclear_puts=1, pins=False, relocations=False),
    "readers": Bounds(txns=2, lsns=2, nodes=1, crashes=0, pins=False, readers=True, relocations=False),
}
"""Searched to the end in every run of the tests."""

LARGE = {
    "failover": Bounds(txns=3, lsns=2, crashes=1, pins=False, relocations=False),
    "relocation": Bounds(txns=3, lsns=2, crashes=0, pins=False),
    "everything": Bounds(txns=3, lsns=2, crashes=1, unclear_puts=1, readers=True),
}
"""Searched by the long tests, up to the bound of states."""

UNDONE = {
    "grant always": ("relocation", "base_is_checked state_is_checked attachment_is_checked", "I"),
    "grant by attachment alone": ("relocation", "base_is_checked grant_dooms", "I1"),
    "grant by base alone, also what was rejected": ("failover", "state_is_checked attachment_is_checked", "I"),
    "prune by any node's progress": ("failover", "prunes_to_committed", "I5"),
    "pins are acknowledged before their commit": ("pins", "pins_by_commit", "I6"),
    "layers of pins die": ("pins", "pins_keep_layers", "I4"),
    "pins below the cutoff": ("pins", "pins_above_cutoff", "I6"),
    "a late overwrite of the manifest": ("failover", "manifest_is_pinned", "I7"),
    "relocation dooms": ("relocation", "relocation_dooms_not", "L1"),
    "begin dooms, after a pause behind the grant": ("begins", "begins_with_grant", "L1"),
    "resume without the lock": ("failover", "resumes_with_lock", "I"),
    "a lost local state, and the same transaction": ("failover", "takes_once", "I"),
    "a restart does not repeat the request": ("failover", "repeats_request", "I"),
    "another manifest without an answer": ("failover", "one_manifest", "I11"),
    "uploads between freeze and answer": ("failover", "silent_while_asked", "I11"),
    "paths are not noted": ("failover", "notes_paths", "I11"),
    "own layers are deleted at once": ("unclear_puts", "deadlists_own", "I11"),
    "acknowledged before the last put": ("failover", "acks_after_puts", "I8"),
    "one LIST": ("failover", "lists_twice", "I8"),
    "a deadlist is processed at once": ("failover", "settles_committed", "I11"),
    "a running node is acknowledged for": ("failover", "forces_dead_only", "I8"),
    "no holds": ("readers", "honours_holds", "I10"),
}
"""What is undone: the bounds, the rules, and the invariant that breaks."""

SAFE_WITHOUT = ("attachment_is_checked", "base_is_checked", "grant_dooms")
"""Rules that guard twice: base equality alone keeps every invariant, and so does the rejection of all others by a
grant; attachments decide who makes progress."""


@pytest.mark.parametrize("name", SMALL)
def test_small_bounds_are_searched_to_the_end(name: str, tell: Callable[[str], None]) -> None:
    """No order of steps breaks an invariant, and the search has ended by itself."""
    match = search(Rules(), SMALL[name])
    tell(f"fleet, {name}: {match}")
    assert match.violation is None, match
    assert match.is_complete
    assert match.state_count > 500


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_bounds(name: str, tell: Callable[[str], None]) -> None:
    """More transactions, rows and failures at once."""
    match = search(Rules(), LARGE[name])
    tell(f"fleet, {name}: {match}")
    assert match.violation is None, match


@pytest.mark.parametrize("undone", UNDONE)
def test_a_rule_undone_is_found(undone: str, tell: Callable[[str], None]) -> None:
    """Without it some order of steps breaks an invariant, within the same small bounds."""
    name, rules, invariant = UNDONE[undone]
    match = search(replace(Rules(), **dict.fromkeys(rules.split(), False)), SMALL[name])
    tell(f"fleet, {undone}: {match}")
    assert match.violation is not None, f"{match.state_count:,} states without {rules}"
    assert match.violation.startswith(invariant)


@pytest.mark.parametrize("rule", SAFE_WITHOUT)
def test_a_second_guard_is_not_missed(rule: str) -> None:
    """What the design says of the two grant policies: each of these rules alone may be missing."""
    match = search(replace(Rules(), **{rule: False}), SMALL["relocation"])
    assert match.violation is None, match
    assert match.is_complete


def test_every_rule_is_undone_once() -> None:
    """A rule that no test undoes may say nothing."""
    undone = {rule for _, rules, _ in UNDONE.values() for rule in rules.split()}
    assert {field.name for field in fields(Rules)} <= undone | set(SAFE_WITHOUT)
