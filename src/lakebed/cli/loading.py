"""Import modules when they are needed. Only this module of the command line imports on demand."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

from lakebed.errors import InvalidRequest

_EXTRAS: Final = {
    "lakebed.server.serve": ("The server", "server"),
    "lakebed.cli.access_keys": ("A command on access keys", "server"),
    "lakebed.cli.fleet_processes": ("A part of a fleet", "server"),
    "lakebed.cli.pipelines": ("A pipeline", "spark"),
}
"""Modules that need an optional extra."""


def load(name: str) -> ModuleType:
    """Import a module.

    Raises:
        InvalidRequest: kind ``not_installed``: the module needs an optional extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        user, extra = _EXTRAS.get(name, ("", ""))
        if not extra:
            raise
        package = str(missing.name).partition(".")[0]
        raise InvalidRequest(
            f"{user} needs {package}, which is not installed: pip install 'lakebed[{extra}]'.", kind="not_installed"
        ) from missing


class _NoPandas:
    """A module finder that reports that pandas is missing. Without `importlib.abc`, which takes 10 ms to load."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("Arrow is not to load pandas by itself.", name=fullname)


def load_arrow() -> None:
    """Load Arrow without pandas, whose import takes half a second at Arrow's first array, and 40 MB of a server.

    For a process that makes no data frame. Afterwards pandas can be imported, and Arrow finds it when it has to make a
    frame.
    """
    arrow = load("pyarrow")
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            arrow.array([])
        finally:
            sys.meta_path.remove(finder)
