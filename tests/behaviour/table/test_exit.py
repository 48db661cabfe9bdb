"""A process that has read a table ends as any other, though a thread of Arrow's is slow to release the file."""

from __future__ import annotations

import subprocess
import sys

READ = """
import sys, threading, time
import numpy as np, pyarrow as pa
from lakebed.lake.lake import Lake
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.limits import StoreLimits
from lakebed.objects.memory import MemoryDriver
from lakebed.runtime import Environment

releasing = threading.Event()

class Late(bytearray):
    '''Bytes that a thread of Arrow's releases slowly, without the interpreter's lock.'''
    def __del__(self):
        if threading.current_thread() is not threading.main_thread():
            releasing.set()
            time.sleep(0.5)

class LateDriver(MemoryDriver):
    def get(self, path, byte_range):
        body = super().get(path, byte_range)
        return Late(body) if path.endswith(".parquet") else body

environment = Environment()
driver = LateDriver("late", prefix="", clock=environment.clock)
lake = Lake.open(AccountedStore(driver, environment=environment, limits=StoreLimits()))
count = 100_000
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.float64()), ("b", pa.int64())])
table = lake.create_table("t", schema, primary_keys=sys.argv[1:])
table.write(pa.table([np.arange(count), np.arange(count) / 7, np.arange(count)], schema=schema))
while not releasing.is_set():
    rows = table.read()
    assert rows.num_rows == count
print("read")
"""


def test_a_process_ends_after_the_threads_of_a_read() -> None:
    """The process ends with 0, and at once: a result that is kept does not keep the bytes of its file.

    A thread that asks for the interpreter's lock while the interpreter finalizes is ended by Python before 3.14, and
    C++ then ends the process: ``terminate called without an active exception``, after everything was done.
    """
    for keys in ((), ("id",)):
        done = subprocess.run([sys.executable, "-c", READ, *keys], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
