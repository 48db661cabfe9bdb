"""What a person at a prompt meets: what objects print, what cannot be done with them, and a fork of the process."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from lakebed import kv
from lakebed.errors import InvalidRequest
from lakebed.lsm.cache import block_cache
from worlds.errors import raises
from worlds.forks import answer_in_fork


@pytest.fixture
def database(tmp_path: Path) -> Any:
    """A database with threads, as users open it."""
    with kv.open(tmp_path / "orders.kv") as opened:
        opened.put(b"k", b"v")
        yield opened


def test_objects_say_what_they_are(database: kv.Database) -> None:
    """Each shows what it represents, and that it is over."""
    assert repr(database) == f"Database({database.url!r}, epoch=1)"
    with database.snapshot() as snapshot:
        assert repr(snapshot) == "Snapshot(sequence=1)"
        assert repr(snapshot.scan()).startswith("<rows of a scan")
    assert repr(snapshot) == "Snapshot(sequence=1, closed)"
    with database.transaction() as transaction:
        transaction.put(b"a", b"1")
        assert repr(transaction) == "Transaction('snapshot', sequence=1, keys_written=1)"
    assert repr(transaction) == "Transaction('snapshot', sequence=1, ended)"
    batch = kv.WriteBatch()
    batch.put(b"a", b"1")
    assert repr(batch) == "WriteBatch(1 rows)"
    database.close()
    assert repr(database) == f"Database({database.url!r}, epoch=1, closed)"


def test_an_open_database_is_not_copied(database: kv.Database) -> None:
    """Neither by pickle nor by copy, which would be two writers of one name; the sentence says what to do."""
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="open a reader there"):
            attempt(database)


def test_options_of_another_type_are_refused(tmp_path: Path, database: kv.Database) -> None:
    """One sentence with the name of the right type, and nothing is made."""
    wrong: Any = {"lifetime": 7}
    for attempt in (
        lambda: kv.open(tmp_path / "other.kv", options=wrong),
        lambda: database.create_checkpoint(wrong),
        lambda: kv.admin.create_checkpoint(tmp_path / "orders.kv", wrong),
    ):
        with raises(InvalidRequest, "wrong_type", match=r"Options, and dict was given: write kv\.\w+Options\("):
            attempt()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_cannot_write_in_its_parents_name(database: kv.Database) -> None:
    """In the child the database is closed, with any locks held; the parent goes on, and keeps its lease."""
    with database._writer.lock:  # as another thread of the parent may, at the moment of the fork
        put = answer_in_fork(lambda: database.put(b"k", b"child"))
    assert put.startswith("Closed: ")
    assert "forked" in put
    for act in (
        lambda: database.get(b"k"),
        lambda: list(database.scan()),
        lambda: database.flush(),
        lambda: database.write(_batch()),
        lambda: database.set_if(b"k", b"child", expected=b"v"),
        lambda: database.create_checkpoint(),
    ):
        assert answer_in_fork(act).startswith("Closed: ")
    assert answer_in_fork(database.close) == "None"
    database.put(b"k", b"parent")
    assert database.get(b"k", linearizable=True) == b"parent"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_can_read_through_a_reader_of_its_own(database: kv.Database) -> None:
    """What the sentence advises works."""

    def read() -> bytes | None:
        with kv.open_reader(database.url, options=kv.ReaderOptions(background=False)) as reader:
            return reader.get(b"k")

    database.flush(memtable=True)
    cache = block_cache()
    with cache._lock:  # as another thread of the parent may, at the moment of the fork
        assert answer_in_fork(read) == "b'v'"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_moves_and_closes_its_copy_of_a_reader(database: kv.Database) -> None:
    """Whatever the parent's thread that polls was doing at that moment; the parent's reader goes on."""

    def move() -> list[tuple[bytes, bytes]]:
        reader.poll_once()
        rows = list(reader.scan())
        reader.close()
        return rows

    with kv.open_reader(database.url, options=kv.ReaderOptions(background=False)) as reader:
        database.put(b"l", b"w")
        database.flush(memtable=True)
        with reader._woken, reader._core._polling:
            assert answer_in_fork(move) == "[(b'k', b'v'), (b'l', b'w')]"
        assert reader.get(b"l") is None
        assert reader.poll_once()
        assert reader.get(b"l") == b"w"


def _batch() -> kv.WriteBatch:
    batch = kv.WriteBatch()
    batch.put(b"a", b"1")
    return batch
