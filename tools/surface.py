"""Print the public Python interface, one name a line: what `docs/reference/public.txt` has.

    python tools/surface.py > docs/reference/public.txt

A test compares the two, so that a change of the interface is seen in review. Parameters are listed without types. A
name that two modules have is listed at the first, and what a class inherits from a public class at that class.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Collection, Iterator
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


def describe(path: str, value: Any, public: Collection[type]) -> Iterator[str]:
    """The lines of one public name: a function with its parameters, a class with its members."""
    if inspect.isclass(value):
        bases = [base for base in value.__mro__[1:] if base in public]
        yield f"class {path}" + (f"({bases[0].__name__})" if bases else "")
        for name in sorted({*dir(value), *attributes(value)}):
            if name not in dir(value):
                yield f"{path}.{name}"
                continue
            member = inspect.getattr_static(value, name)
            owner = next((base for base in value.__mro__ if name in vars(base)), object)
            if name.startswith("_") or not owner.__module__.startswith("lakebed"):
                continue
            if any(name in dir(base) and inspect.getattr_static(base, name) is member for base in bases):
                continue
            member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield f"{path}.{name}{parameters(member) if inspect.isfunction(member) else ''}"
    elif callable(value):
        yield f"{path}{parameters(value)}"
    else:
        yield path


def attributes(value: type) -> set[str]:
    """The public names that a class's own `__init__` gives to an instance."""
    if "__init__" not in vars(value) or dataclasses.is_dataclass(value):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(value.__init__)))  # type: ignore[misc]
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
        if not node.attr.startswith("_")
    }


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
    values: dict[str, Any] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if not inspect.ismodule(value) and not (inspect.isclass(value) and value in values.values()):
                values[f"{module_name}.{name}"] = value
    public = {value for value in values.values() if inspect.isclass(value)}
    return "\n".join(line for path, value in values.items() for line in describe(path, value, public)) + "\n"


if __name__ == "__main__":
    print(surface(), end="")
