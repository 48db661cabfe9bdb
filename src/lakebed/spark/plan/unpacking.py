"""Objects of the data source on their way to other processes, which may lack this version of lakebed.

Owns: `pack_as`. Invariant: what is pickled with it is unpickled wherever Python runs, or one sentence says what to
install.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import lakebed


def pack_as(kind: type, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` returns for an object that becomes one of some class, made of some state.

    The state is bytes: it is unpickled after the check of the version.
    """
    return _unpacker(lakebed.__version__), (kind.__module__, kind.__name__, pickle.dumps(state))


def _unpacker(version: str) -> Callable[[str, str, bytes], Any]:
    """The function that makes an object in another process, if lakebed is there in this version.

    It is pickled as code, not by its name, so that it also runs where lakebed is missing.
    """

    def lakebed_unpacked(module: str, name: str, state: bytes) -> Any:
        try:
            worker_version = importlib.import_module("lakebed").__version__
        except ImportError:
            worker_version = None
        if worker_version != version:
            problem = "has no package lakebed" if worker_version is None else f"has lakebed {worker_version}"
            raise RuntimeError(
                f"This executor's Python ({sys.executable}) {problem}, and the driver has {version}: install lakebed "
                f"{version} on all executors, or send it with the job (spark.archives)."
            )
        return getattr(importlib.import_module(module), name)(*pickle.loads(state))

    return lakebed_unpacked
