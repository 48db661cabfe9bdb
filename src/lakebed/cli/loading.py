"""Import a module when it is needed. The only place of the command line that imports on demand."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

from lakebed.errors import InvalidRequest

_EXTRAS: Final = {"lakebed.server.serve": ("The server", "server"), "lakebed.cli.pipelines": ("A pipeline", "spark")}
"""Modules that need an optional extra."""
_arrow_looks_for_pandas = True

_arrow_looks_for_pandas = True


def use_no_frames() -> None:
    """Spare Arrow its look for pandas, which is half a second of its first array, and 40 MB of a server.

    For a process that makes no data frame. pandas can be imported all the same, and Arrow finds it when it is asked for
    a frame.
    """
    global _arrow_looks_for_pandas
    _arrow_looks_for_pandas = False


def load(name: str) -> ModuleType:
    """Import a module.

    Raises:
        InvalidRequest: kind ``not_installed``: the module needs an optional extra.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        who, extra = _EXTRAS.get(name, ("", ""))
        if not extra:
            raise
        raise InvalidRequest(
            f"{who} needs {missing.name}, which is not installed: pip install 'lakebed[{extra}]'.", kind="not_installed"
        ) from missing
    if not _arrow_looks_for_pandas:
        _answer_arrow()
    return module


class _NoPandas:
    """A finder of modules that says that pandas is not there; without `importlib.abc`, which takes 10 ms to load."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("Arrow is not to load pandas by itself.", name=fullname)


def _answer_arrow() -> None:
    """Let Arrow, once it is loaded, look for pandas now, and not find it."""
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is None or "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        arrow.array([])
    finally:
        sys.meta_path.remove(finder)
    global _arrow_looks_for_pandas
    _arrow_looks_for_pandas = True
