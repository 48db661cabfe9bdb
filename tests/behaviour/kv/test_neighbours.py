"""Several databases in one process: they share caches and threads' time, and nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lakebed import kv
from lakebed.errors import Conflict
from lakebed.kv import DatabaseOptions
from worlds.errors import raises

SMALL = DatabaseOptions(l0_sst_bytes=20_000, block_bytes=1_000, l0_compaction_count=2, run_compaction_count=2)
COUNT = 4
ROWS = 400


def test_databases_side_by_side_do_not_mix(tmp_path: Path) -> None:
    """The same keys in several open databases and clones of them, through one cache: each answers with its own."""
    with ThreadPoolExecutor(COUNT) as pool:

        def live(number: int) -> None:
            url, clone_url = tmp_path / f"db{number}", tmp_path / f"clone{number}"
            mine = b"%d " % number * 20
            with kv.open(url, options=SMALL, durable=False) as db:
                for row in range(ROWS):
                    db.put(b"%04d" % row, mine + b"%d" % row, await_durable=row % 50 == 0)
                db.compact(full=True)
                kv.admin.create_clone(clone_url, url)
                with kv.open(clone_url, options=SMALL, durable=False) as clone:
                    for row in range(0, ROWS, 2):
                        clone.put(b"%04d" % row, b"clone " + mine, await_durable=False)
                    clone.flush(memtable=True)
                    for row in range(ROWS):
                        assert db.get(b"%04d" % row) == mine + b"%d" % row
                        expected = mine + b"%d" % row if row % 2 else b"clone " + mine
                        assert clone.get(b"%04d" % row) == expected
                    assert [value for _, value in db.scan()] == [mine + b"%d" % row for row in range(ROWS)]

        list(pool.map(live, range(COUNT)))


def test_opening_twice_in_one_process_is_opening_twice(tmp_path: Path) -> None:
    """The second opening finds the first one's lease, though it is of its own process."""
    with kv.open(tmp_path / "db", durable=False) as db:
        with raises(Conflict, "owned"):
            kv.open(tmp_path / "db", durable=False)
        db.put(b"k", b"v")
        assert kv.admin.show_manifest(tmp_path / "db").writer_epoch == db.epoch
