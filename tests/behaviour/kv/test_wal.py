"""The log of a database: ids, appends, fences."""

from __future__ import annotations

import pytest

from lakebed.errors import Conflict, Corruption, Fenced, InternalError, NotFound, OutcomeUnknown
from lakebed.kv.layout import wal_path
from lakebed.kv.wal import WalLog
from lakebed.lsm.memtable import Memtable
from lakebed.testing import Fault, FaultyStore
from worlds.errors import raises
from worlds.kv.places import fresh, place_on


def body_of(wal: WalLog, id: int, *, epoch: int = 1, key: bytes = b"k") -> bytes:
    """A record with one row."""
    rows = Memtable(id)
    rows.put(key, b"v")
    return wal.encode(rows.log(0, 1), id=id, epoch=epoch)


def test_a_durable_append_is_one_put() -> None:
    """Exactly 1 PUT, and nothing else."""
    place = fresh()
    wal = WalLog(place)
    body = body_of(wal, 1)
    with place.store.count() as counts:
        wal.append(1, body)
    assert (counts.put, counts.total) == (1, 1)
    assert wal.read(1).first_sequence == 1


def test_ids_are_listed_from_where_one_asks() -> None:
    """One LIST with the number to start after; fences are recognized by their size alone."""
    place = fresh()
    wal = WalLog(place)
    for id in (1, 2, 4, 5):
        wal.append(id, body_of(wal, id))
    assert wal.fence(3, 2) is None
    place.store.put("wal/stranger", b"")
    with place.store.count() as counts:
        assert wal.ids(2) == [3, 4, 5]
    assert (counts.list, counts.total) == (1, 1)
    assert [entry.is_fence for entry in wal.entries()] == [False, False, True, False, False]
    assert [entry.id for entry in wal.entries(1, through=3)] == [2, 3]
    assert (wal.last_id(), wal.last_id(5), wal.last_id(9)) == (5, 5, 9)


def test_an_append_on_a_newer_writers_place_is_fenced() -> None:
    """A fence or a record of another epoch says who owns the database now."""
    wal = WalLog(fresh())
    assert wal.fence(1, 2) is None
    with pytest.raises(Fenced, match="epoch 2") as caught:
        wal.append(1, body_of(wal, 1, epoch=1))
    assert caught.value.facts["new_epoch"] == 2
    wal.append(2, body_of(wal, 2, epoch=2))
    with pytest.raises(Fenced):
        wal.append(2, body_of(wal, 2, epoch=1))


def test_appending_twice_is_not_taken_for_a_fence() -> None:
    """Another record of the same writer is a mistake of that writer, and says so."""
    wal = WalLog(fresh())
    wal.append(1, body_of(wal, 1))
    with raises(Conflict, "wal_id_taken"):
        wal.append(1, body_of(wal, 1))


def test_the_same_record_may_be_appended_again() -> None:
    """The same bytes on the same number are one append, however often they are tried."""
    wal = WalLog(fresh())
    body = body_of(wal, 1)
    wal.append(1, body)
    wal.append(1, body)
    assert wal.ids() == [1]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.ERROR_BEFORE, Fault.LATE])
def test_an_append_survives_lost_replies(fault: Fault) -> None:
    """After any fault of one request or its reply the record is there, and it is ours."""
    place = fresh()
    faulty = FaultyStore(place.store, faults={0: fault})
    wal = WalLog(place_on(faulty))
    body = body_of(wal, 1)
    wal.append(1, body)
    faulty.land()
    assert bytes(place.store.get(wal_path(1))) == body
    assert len(faulty.met) == 1


def test_an_append_without_any_answer_is_unknown() -> None:
    """Never a plain failure: the rows may be durable."""
    place = fresh()
    faulty = FaultyStore(place.store, faults=lambda index, call: Fault.LOST_REPLY)
    wal = WalLog(place_on(faulty))
    with pytest.raises(OutcomeUnknown):
        wal.append(1, body_of(wal, 1))
    assert WalLog(place).ids() == [1]


def test_a_fence_meets_what_is_there() -> None:
    """A fence is created, or the record in its place is handed back."""
    wal = WalLog(fresh())
    wal.append(1, body_of(wal, 1, epoch=4))
    present = wal.fence(1, 5)
    assert present is not None
    assert (present.epoch, present.is_fence) == (4, False)
    assert wal.fence(2, 5) is None
    assert wal.read(2).is_fence


def test_damage_and_absence_are_told_apart() -> None:
    """A damaged record is `Corruption` with its path, a missing one `NotFound`."""
    place = fresh()
    wal = WalLog(place)
    place.store.put(wal_path(1), b"nonsense")
    with pytest.raises(Corruption) as caught:
        wal.read(1)
    assert caught.value.facts["path"] == wal_path(1)
    with pytest.raises(NotFound):
        wal.read(2)
    with pytest.raises(InternalError):
        wal.append(2, b"nonsense")
