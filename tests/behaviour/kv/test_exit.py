"""A process that ends with a database open ends as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from lakebed import kv
from worlds.waiting import HANG_S

DATABASE: Final = """
import sys
from lakebed import kv
small = {"l0_sst_bytes": 1 << 18, "unflushed_bytes_max": 1 << 19, "run_file_bytes": 1 << 18, "l0_compaction_count": 2}
database = kv.open(sys.argv[1], durable=False, options=kv.DatabaseOptions(**small))
reader = kv.open_reader(sys.argv[1])
for number in range(40):
    batch = kv.WriteBatch()
    for _ in range(100):
        batch.put(f"{hash((number, _))}".encode(), bytes(500))
    database.write(batch)
import atexit, threading
from lakebed import exiting
running = [thread for thread in threading.enumerate() if thread.name.startswith("lakebed")]
assert len(running) == 4, running  # all have begun: rows were flushed, and the files merged
atexit.unregister(exiting._wait)
atexit.register(lambda: print(sum(thread.is_alive() for thread in running)))
atexit.register(exiting._wait)
"""


def test_a_database_that_is_not_closed_has_no_threads_when_the_interpreter_finalizes(tmp_path: Path) -> None:
    """The threads of a writer and a reader end before, so that none is in Arrow or in a store's client then."""
    done = subprocess.run(
        [sys.executable, "-c", DATABASE, str(tmp_path / "d.kv")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_write_after_the_threads_have_ended_still_works(tmp_path: Path) -> None:
    """A program's own handler that runs later may write more than fits into memory, and close."""
    script = DATABASE.replace(
        "atexit.register(exiting._wait)\n",
        "atexit.register(lambda: [database.put(b'%d' % n, bytes(50_000)) for n in range(40)] and database.close())\n"
        "atexit.register(exiting._wait)\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "d.kv")],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    with kv.open(tmp_path / "d.kv", durable=False) as database:
        assert all(database.get(b"%d" % number) == bytes(50_000) for number in range(40))
