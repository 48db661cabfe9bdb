"""Print the public Python interface, one name a line: what `docs/reference/public.txt` has.

    python tools/surface.py > docs/reference/public.txt

A test compares the two, so that a change of the interface is seen in review. Parameters are listed without types.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, Final

MODULES: Final = (
    "lakebed",
    "lakebed.kv",
    "lakebed.kv.admin",
    "lakebed.pipeline",
    "lakebed.repo",
    "lakebed.spark",
    "lakebed.spark.jobs",
    "lakebed.testing",
)
"""Whose `__all__` is public, or all names defined there where it has none."""


def public_names(module: Any) -> list[str]:
    """The public names of a module; also `open`, which no `__all__` has, since it would hide the built-in function."""
    if hasattr(module, "__all__"):
        return sorted({*module.__all__, *(("open",) if "open" in dir(module) else ())})
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def describe(path: str, value: Any) -> Iterator[str]:
    """The lines of one public name: a function with its parameters, a class with its members."""
    if inspect.isclass(value):
        yield f"class {path}"
        for name in sorted(dir(value)):
            member = inspect.getattr_static(value, name)
            owner = next((base for base in value.__mro__ if name in vars(base)), object)
            if name.startswith("_") or not owner.__module__.startswith("lakebed"):
                continue
            member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield f"{path}.{name}{parameters(member) if inspect.isfunction(member) else ''}"
    elif callable(value):
        yield f"{path}{parameters(value)}"
    else:
        yield path


def parameters(function: Any) -> str:
    """The parameters of a function as they are called, without types and values."""
    shown, keyword_only = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        shown.append(prefix + parameter.name + ("=" if parameter.default is not parameter.empty else ""))
    return f"({', '.join(shown)})"


def surface() -> str:
    """All lines."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                lines += describe(f"{module_name}.{name}", value)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(surface(), end="")
