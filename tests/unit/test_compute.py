"""Arrow's compute functions are loaded when one is used, and are Arrow's own."""

from __future__ import annotations

import pyarrow.compute
import pytest

import lakebed.compute
from worlds.scripts import run_script


def test_nothing_is_loaded_before_the_first_use() -> None:
    """Importing the module, and the packages that use it, loads no compute functions; using one does, in any thread."""
    script = (
        "import sys, threading\n"
        "import lakebed.compute as pc\n"
        "import lakebed.fsck.check, lakebed.kv.database, lakebed.lake.lake, lakebed.repo.repositories\n"
        "import lakebed.table.compaction.compact, lakebed.table.changes.incremental, lakebed.table.collect.orphans, "
        "lakebed.table.versions.system\n"
        "assert 'pyarrow.compute' not in sys.modules\n"
        "sums = []\n"
        "threads = [threading.Thread(target=lambda: sums.append(pc.sum([1, 2]).as_py())) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "assert sums == [3] * 8, sums\n"
        "assert pc.sum is sys.modules['pyarrow.compute'].sum and 'sum' in vars(pc)\n"
    )
    run_script(script)


def test_names_are_arrows() -> None:
    """A function is the same object as in Arrow; a name that Arrow does not have is an `AttributeError`."""
    assert lakebed.compute.is_in is pyarrow.compute.is_in
    with pytest.raises(AttributeError):
        _ = lakebed.compute.no_such_function
    assert not hasattr(lakebed.compute, "__path__")
