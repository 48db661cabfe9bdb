"""Import a module when it is needed. The only place of the command line that imports on demand."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from lakebed.errors import InvalidRequest

_EXTRAS: Final = {"lakebed.server.serve": ("The server", "server"), "lakebed.cli.pipelines": ("A pipeline", "spark")}
"""Modules that need an optional extra."""


def load(name: str) -> ModuleType:
    """Import a module.

    Raises:
        InvalidRequest: kind ``not_installed``: the module needs an optional extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        who, extra = _EXTRAS.get(name, ("", ""))
        if not extra:
            raise
        raise InvalidRequest(
            f"{who} needs {missing.name}, which is not installed: pip install 'lakebed[{extra}]'.", kind="not_installed"
        ) from missing
