"""Sizes, names and docstrings of the source."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any

FUNCTION_LINES_MAX = 70

PARAMETERS_MAX = 8

BANNED_CLASS = re.compile(r"(Manager|Helper|Helpers|Util|Utils|Impl)$|^(Abstract|Base)[A-Z]|Base$")
BANNED_FUNCTION = re.compile(r"^_*(do|process)_")
BANNED_MODULE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "impl"}

NAME_IN_TEXT = re.compile(r"(?<!`)`([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)+)(?:\(\))?`(?!`)")
"""A dotted name as docstrings and comments quote it."""
FOREIGN = {"pyarrow", "pyspark"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: Any) -> Iterator[Function]:
    """Every function and method."""
    return (node for node in module.nodes if isinstance(node, Function))


def public_names(module: Any) -> Iterator[tuple[str, ast.AST]]:
    """Public functions and classes of a module, and the public methods of its public classes."""
    for node in module.tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, Function) and not inner.name.startswith("_") and not is_repeated(inner):
                    yield f"{node.name}.{inner.name}", inner


def is_repeated(node: Function) -> bool:
    """Overloads and setters, whose docstring stands elsewhere."""
    return any(ast.unparse(decorator).split(".")[-1] in {"overload", "setter"} for decorator in node.decorator_list)


def test_functions_are_not_too_long(all_modules: list[Any]) -> None:
    """A function fits on a screen, its docstring not counted."""
    wrong = []
    for module in all_modules:
        for node in functions(module):
            documented = ast.get_docstring(node, clean=False) is not None
            first = node.body[1].lineno if documented and len(node.body) > 1 else node.body[0].lineno
            signature = node.body[0].lineno - node.lineno
            length = signature + (node.end_lineno or 0) - first + 1
            if length > FUNCTION_LINES_MAX:
                wrong.append(f"{module.shown}:{node.lineno} {node.name}: {length} lines")
    assert not wrong, "\n".join(wrong)


def test_signatures_are_short(sources: list[Any]) -> None:
    """A function takes at most eight arguments; more of them are a record of options, or a context."""
    wrong = []
    for module in sources:
        for node in functions(module):
            arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len(arguments) - (arguments[:1] in (["self"], ["cls"]))
            if count > PARAMETERS_MAX:
                wrong.append(f"{module.shown}:{node.lineno} {node.name}: {count} arguments")
    assert not wrong, "\n".join(wrong)


def test_names_say_what_things_are(packages: list[Any]) -> None:
    """No name that could mean anything."""
    wrong = []
    for module in packages:
        if module.path.stem in BANNED_MODULE:
            wrong.append(module.shown)
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and BANNED_CLASS.search(node.name):
                wrong.append(f"{module.shown}:{node.lineno} class {node.name}")
            if isinstance(node, Function) and BANNED_FUNCTION.search(node.name):
                wrong.append(f"{module.shown}:{node.lineno} def {node.name}")
    assert not wrong, "\n".join(wrong)


def test_a_star_import_leaves_the_builtins_in_place(packages: list[Any]) -> None:
    """No `__all__` names a built-in: ``from lakebed.kv import *`` must not replace `open`."""
    wrong = []
    for module in packages:
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
                names = [item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)]
                wrong += [f"{module.shown}: {name}" for name in names if hasattr(builtins, str(name))]
    assert not wrong, "\n".join(wrong)


def test_public_names_are_documented(packages: list[Any]) -> None:
    """Every module with something in it, and every public name, has a docstring, or overrides a method that has one."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for node in (node for module in packages for node in module.nodes if isinstance(node, ast.ClassDef)):
        classes.setdefault(node.name, []).append(node)

    def is_described(name: str, node: ast.AST) -> bool:
        owner, _, method = name.rpartition(".")
        return bool(ast.get_docstring(node)) or any(describes(above, method) for above in bases(owner))  # type: ignore[arg-type]

    def bases(name: str) -> list[str]:
        above = [base for node in classes.get(name, ()) for base in node.bases]
        return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in above]

    def describes(name: str, method: str) -> bool:
        mine = [
            statement
            for node in classes.get(name, ())
            for statement in node.body
            if getattr(statement, "name", "") == method
        ]
        return any(ast.get_docstring(item) for item in mine) or any(describes(above, method) for above in bases(name))

    wrong = []
    for module in packages:
        if module.tree.body and not ast.get_docstring(module.tree):
            wrong.append(f"{module.shown}: the module")
        wrong += [f"{module.shown}: {name}" for name, node in public_names(module) if not is_described(name, node)]
    assert not wrong, "\n".join(wrong)


def test_every_test_names_its_promise(test_modules: list[Any]) -> None:
    """Each test says in one line which promise it keeps."""
    wrong = []
    for module in test_modules:
        for node in functions(module):
            if node.name.startswith("test_") and not (ast.get_docstring(node) or "").strip():
                wrong.append(f"{module.shown}:{node.lineno} {node.name}")
    assert not wrong, "\n".join(wrong)


def test_tests_do_not_sleep(test_modules: list[Any]) -> None:
    """Tests wait for conditions or move a manual clock; only `worlds.waiting` lets real time pass."""
    wrong = []
    for module in test_modules:
        if module.name == "worlds.waiting" or "sleep" not in module.text:
            continue
        real = {"time", "SystemClock()", *system_clocks(module)}
        for node in module.nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep":
                owner = ast.unparse(node.func).rpartition(".")[0]
                if not owner or owner in real:
                    wrong.append(f"{module.shown}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def system_clocks(module: Any) -> Iterator[str]:
    """Names that a module gives to a clock of the system."""
    for node in module.nodes:
        is_call = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
        if is_call and ast.unparse(node.value) == "SystemClock()":
            yield from map(ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target])


def test_names_in_docstrings_lead_somewhere(sources: list[Any]) -> None:
    """`module.name`, `Class.name` and `lakebed.package.name` in docstrings and comments exist, also after a rename."""
    owners = names_by_owner(sources)
    wrong, count = [], 0
    for module in sources:
        local = set(map(name_of, module.nodes))
        for match in NAME_IN_TEXT.finditer(module.text):
            parts, count = match[1].split("."), count + 1
            if parts[0] in FOREIGN or parts[-1] in ("py", "css", "jinja") or parts[0] in local:
                continue
            depth = max((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in owners), default=0)
            if depth < len(parts) and parts[depth] not in owners.get(".".join(parts[:depth]), ()):
                wrong.append(f"{module.shown}:{module.text.count(chr(10), 0, match.start()) + 1} {match[1]}")
    assert count > 500
    assert not wrong, "These names are gone:\n" + "\n".join(wrong)


def names_by_owner(modules: list[Any]) -> dict[str, set[str]]:
    """What may follow the dot: of modules, by their whole and by their last name, and of classes, with their bases."""
    owners: dict[str, set[str]] = {}
    bases: list[tuple[str, str]] = []
    for module in modules:
        names = owners.setdefault(module.name, set())
        for statement in module.tree.body:
            is_whole = isinstance(statement, Function | ast.ClassDef)
            names.update([statement.name] if is_whole else map(name_of, ast.walk(statement)))
        owners.setdefault(module.path.stem, set()).update(names)
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, set()).update(map(name_of, ast.walk(node)))
                bases += [(node.name, re.sub(r"\[.*|\w+\.", "", ast.unparse(base))) for base in node.bases]
    for _ in range(3):  # bases of bases
        for name, base in bases:
            owners[name] |= owners.get(base, set())
    return owners


def name_of(node: ast.AST) -> str:
    """The name that a node defines or uses, or its text, as in `__all__`; empty: none."""
    found = (getattr(node, attribute, None) for attribute in ("asname", "name", "id", "attr", "arg", "value"))
    return next((name for name in found if isinstance(name, str)), "")
