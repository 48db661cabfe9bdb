"""Names that a package loads on first use (PEP 562), so that importing the package costs nothing.

Every package that does this uses this module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Lookup = Callable[[str], Any]


def on_first_use(
    package: str,
    names: Mapping[str, Sequence[str]] | None = None,
    *,
    modules: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Lookup, Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        names: the names to load, by their module without ``lakebed.``.
        modules: modules of the package that are also available as its names.
        renamed: names in the package that differ from the names in their modules, with the latter.
        check: called before anything is loaded. It raises if a required package is not installed.
    """
    renamed = renamed or {}
    module_of = {name: f"lakebed.{module}" for module, exports in (names or {}).items() for name in exports}

    def load(name: str) -> Any:
        attribute = renamed.get(name, name)
        if name not in modules and attribute not in module_of:
            raise _missing_name_error(package, name)
        check()
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(module_of[attribute]), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*sys.modules[package].__all__, *renamed})


def _missing_name_error(package: str, name: str) -> Exception:
    """Return the error for a name that a package does not have. It names the new place of a module that has moved.

    The new place is a subpackage. This works for ``from package import module`` only: for ``import package.module``
    Python does not ask the package.
    """
    folder = Path(sys.modules[package].__path__[0])
    if (folder / name / "__init__.py").exists() or (folder / f"{name}.py").exists():  # the import statement takes it
        return AttributeError(f"{package}.{name} is not imported yet: import {package}.{name}.")
    subpackage_files = () if name.startswith("_") else folder.glob(f"*/{name}.py")
    places = [f"{package}.{path.parent.name}.{name}" for path in sorted(subpackage_files)]
    if not places:
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    # Not an AttributeError: the import statement would replace it by an error without this text.
    return ImportError(f"{package}.{name} has moved: import {' or '.join(places)}.", name=f"{package}.{name}")


def all_of(module: str, *, into: dict[str, Any]) -> Lookup:
    """Return a `__getattr__` that loads another module and copies its public names into the globals `into`."""

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {into['__name__']!r} has no attribute {name!r}")
        module_loaded = importlib.import_module(module)
        into.update(
            {attribute: value for attribute, value in vars(module_loaded).items() if not attribute.startswith("_")}
        )
        return getattr(module_loaded, name)

    return load
