"""The names of a package, loaded on first use, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def on_first_use(
    package: str,
    names: Mapping[str, Sequence[str]],
    *,
    modules: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        names: by module, without ``lakebed.``.
        modules: modules of the package that are names of it, too.
        renamed: the names of some of them in the package, with their names in their modules.
    """
    renamed = renamed or {}
    module_of = {name: f"lakebed.{module}" for module, exports in names.items() for name in exports}

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        attribute = renamed.get(name, name)
        if attribute not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[attribute]), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*sys.modules[package].__all__, *renamed})
