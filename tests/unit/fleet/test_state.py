"""Versions and pins of a tenant, read from its record, manifest and transactions."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.fleet.layout import layer_path, tenant_folder
from lakebed.fleet.model import (
    MAIN,
    Manifest,
    ManifestRef,
    TenantRecord,
    TimelineIndex,
    Transaction,
    TransactionState,
)
from lakebed.fleet.ports import TransactionList
from lakebed.fleet.state import Position, TenantState
from lakebed.lsm.model import FileMeta, FileSet
from worlds.errors import raises


def a_layer(id: str, *, size_bytes: int = 100) -> FileMeta:
    return FileMeta(id, size_bytes, 50, 1, b"a", b"b", 1, 1)


def a_timeline(
    id: str, name: str, lsn: int, *, cutoff: int = 1, layers: tuple[str, ...] = (), **more: object
) -> TimelineIndex:
    files = FileSet(l0=tuple(map(a_layer, layers)))
    return TimelineIndex(
        id=id, name=name, created_ms=7, lsn=lsn, cutoff=cutoff, files=files, origins={f"1/{id}": layers}, **more
    )


def committed(id: int, main: str, lsn: int, *, at_ms: int = 0) -> Transaction:
    reference = ManifestRef(f"t.tenant/{id:016}/manifest.1", "", 1)
    return Transaction(
        id, id - 1, "n1", 1, TransactionState.COMMITTED, 0, manifest=reference, ended_ms=at_ms, main=main, main_lsn=lsn
    )


def a_state(
    *timelines: TimelineIndex, finished: tuple[Transaction, ...], unfinished: tuple[Transaction, ...] = ()
) -> TenantState:
    newest = max(finished, key=lambda one: one.id)
    record = TenantRecord("t", 99, 9, committed=newest.id, manifest=newest.manifest, transactions=unfinished)
    manifest = Manifest("t", newest.id, newest.base, timelines)
    return TenantState(record, manifest, TransactionList(unfinished, finished[::-1], ()))


def test_a_commit_that_does_not_move_main_is_no_version() -> None:
    """Transactions that branched or merged files are not listed; of one position the first one is."""
    state = a_state(
        a_timeline(MAIN, MAIN, 20),
        finished=(committed(1, MAIN, 10), committed(2, MAIN, 10), committed(3, MAIN, 20), committed(4, MAIN, 20)),
    )
    assert [version.id for version in state.versions()] == ["1", "3"]


@pytest.mark.parametrize("number", ["²", "9" * 5_000], ids=["superscript", "long"])
def test_what_looks_like_a_number_is_no_version(number: str) -> None:
    """Digits that are no number, or one of more digits than Python reads, are as any other unknown version or path."""
    state = a_state(a_timeline(MAIN, MAIN, 20), finished=(committed(1, MAIN, 20),))
    for version in (number, f"{MAIN}@{number}"):
        with pytest.raises(NotFound, match="has no version"):
            state.find(version)
    assert "No timeline needs it" in state.explain(f"{number}/x").sentence


def test_a_version_below_the_cutoff_is_gone() -> None:
    """A version that nothing can read is neither listed nor found."""
    state = a_state(a_timeline(MAIN, MAIN, 20, cutoff=15), finished=(committed(1, MAIN, 10), committed(3, MAIN, 20)))
    assert [version.id for version in state.versions()] == ["3"]
    with pytest.raises(NotFound, match=r"no version 1\. It has 3 to 3"):
        state.find("1")


def test_a_pin_keeps_a_version_below_the_cutoff() -> None:
    """A version is read through the pin at its LSN."""
    state = a_state(
        a_timeline(MAIN, MAIN, 20, cutoff=15),
        a_timeline("p1", "before", 10, cutoff=10, parent=MAIN, branch_lsn=10, is_read_only=True),
        finished=(committed(1, MAIN, 10), committed(3, MAIN, 20)),
    )
    assert [version.id for version in state.versions()] == ["1", "3"]
    assert state.find("1") == Position("p1", 10)
    assert state.find("before") == Position("p1", 10)
    assert [(pin.kind, pin.name, pin.version) for pin in state.pins()] == [("pin", "before", "1")]


def test_versions_of_a_former_main_stay() -> None:
    """After a restore, versions are found on the timeline that was main when they were committed."""
    state = a_state(
        a_timeline(MAIN, "main-until-5", 30),
        a_timeline("b1", MAIN, 12, cutoff=10, parent=MAIN, branch_lsn=10),
        finished=(committed(1, MAIN, 10), committed(3, MAIN, 30), committed(5, "b1", 10), committed(6, "b1", 12)),
    )
    assert [version.id for version in state.versions()] == ["1", "3", "5", "6"]
    assert state.find("3") == Position(MAIN, 30)
    assert state.find("5") == Position("b1", 10)
    assert [(pin.kind, pin.name, pin.version) for pin in state.pins()] == [("timeline", "main-until-5", "3")]


def test_a_state_of_a_former_main_is_named_as_that_timeline() -> None:
    """Not as the timeline that has the name main now: what is shown is read again as it was."""
    state = a_state(
        a_timeline(MAIN, "main-until-5", 30, cutoff=5),
        a_timeline("b1", MAIN, 40, cutoff=8, parent=MAIN, branch_lsn=10),
        a_timeline("p1", "before", 17, cutoff=17, parent=MAIN, branch_lsn=17, is_read_only=True),
        finished=(committed(1, MAIN, 10), committed(3, MAIN, 30), committed(5, "b1", 10), committed(6, "b1", 40)),
    )
    assert {pin.name: pin.version for pin in state.pins()} == {"before": "main-until-5@17", "main-until-5": "3"}
    for pin in state.pins():
        assert state.find(pin.version).timeline in (MAIN, "p1")
    assert state.find("main-until-5@6") == Position(MAIN, 6)
    for version, cutoff in (("main-until-5@4", 5), ("main@7", 8)):
        with raises(InvalidRequest, "below_cutoff", cutoff=cutoff):
            state.find(version)


def test_a_state_between_commits_is_named_by_its_lsn() -> None:
    """Any LSN from the cutoff on can be named; one below it is refused with the cutoff."""
    state = a_state(a_timeline(MAIN, MAIN, 20, cutoff=5), finished=(committed(1, MAIN, 10), committed(3, MAIN, 20)))
    assert state.find("main@17") == Position(MAIN, 17)
    assert state.version_of(Position(MAIN, 17)) == "main@17"
    assert state.version_of(Position(MAIN, 20)) == "3"
    with raises(InvalidRequest, "below_cutoff", match="from LSN 5 on, and 4 was asked for", cutoff=5):
        state.find("main@4")
    for version in ("nope", "nope@3", "2", ""):
        with pytest.raises(NotFound):
            state.find(version)


def test_a_version_is_explained_by_what_it_can_be_read_through() -> None:
    """Pins and branches at its LSN, with the end of their lifetimes; the timeline itself, its newest and its cutoff."""
    state = a_state(
        a_timeline(MAIN, "main-until-5", 30, cutoff=20),
        a_timeline("p1", "before", 10, cutoff=10, parent=MAIN, branch_lsn=10, is_read_only=True, expires_ms=99),
        a_timeline("x1", "experiment", 14, cutoff=10, parent=MAIN, branch_lsn=10),
        a_timeline("b1", MAIN, 12, cutoff=10, parent=MAIN, branch_lsn=10),
        a_timeline("p2", "kept", 25, cutoff=25, parent=MAIN, branch_lsn=25, is_read_only=True),
        finished=(
            *(committed(1, MAIN, 10), committed(2, MAIN, 15), committed(3, MAIN, 25), committed(4, MAIN, 30)),
            *(committed(5, "b1", 10), committed(6, "b1", 12)),
        ),
    )

    def why(version: str) -> tuple[str, dict[str, int | None], str]:
        answer = state.explain_version(version)
        return answer.path, {pin.name: pin.expires_ms for pin in answer.pins}, answer.sentence

    for version in ("1", "before"):
        path, pins, sentence = why(version)
        assert (path, pins) == ("1", {"before": 99, "experiment": None, MAIN: None})
        assert sentence == "Version 1 is kept by branch experiment, branch main, pin before."
    assert why("3")[:2] == ("3", {"kept": None})
    assert "on the timeline main-until-5 while its cutoff, LSN 20 now, is not above LSN 25: " in why("3")[2]
    sentence = "Version 4 is the newest of the timeline main-until-5 until the next commit. No pin or branch keeps it."
    assert why("4") == ("4", {}, sentence)
    assert why("5")[:2] == ("5", {})
    assert "is the newest of the timeline main until" in why("6")[2]
    assert why("experiment")[0] == "experiment@14"
    assert why("main-until-5@22")[2].endswith("No pin or branch keeps it.")
    assert why("main@13")[2] == "The timeline main is committed up to LSN 12, not to 13. No pin or branch keeps it."
    for version in ("2", "7", "nothing"):
        with pytest.raises(NotFound):
            why(version)
    with raises(InvalidRequest, "below_cutoff"):
        why("main-until-5@15")


def test_a_layer_is_explained_by_the_timelines_that_name_it() -> None:
    """`why` names every timeline that needs a layer; bytes are counted for a pin that alone needs them."""
    state = a_state(
        a_timeline(MAIN, MAIN, 20, layers=("01SHARED",)),
        a_timeline("p1", "before", 10, cutoff=10, layers=("01SHARED", "01OLD"), parent=MAIN, branch_lsn=10),
        finished=(committed(1, MAIN, 10), committed(3, MAIN, 20)),
        unfinished=(
            Transaction(4, 3, "n1", 1, TransactionState.OPEN, 0),
            Transaction(2, 1, "n9", 1, TransactionState.REJECT_PENDING, 0),
        ),
    )

    def why(path: str) -> tuple[str, list[str]]:
        result = state.explain(path.removeprefix(f"{tenant_folder('t')}/"))
        return result.sentence, [pin.name for pin in result.pins]

    assert why(layer_path("t", 1, MAIN, "01SHARED"))[1] == [MAIN, "before"]
    assert why(layer_path("t", 1, "p1", "01OLD"))[1] == ["before"]
    assert [pin.bytes_alone for pin in state.pins()] == [100]
    assert "is open" in why(layer_path("t", 4, MAIN, "01NEW"))[0]
    assert "n9 was rejected" in why(layer_path("t", 2, MAIN, "01LOST"))[0]
    assert "fleet collect" in why(layer_path("t", 1, MAIN, "01GONE"))[0]
    assert "newest committed state" in why("0000000000000003/manifest.1")[0]
