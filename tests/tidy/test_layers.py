"""Imports point downward only, nothing goes round in circles, and few modules may do dangerous things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANK = {
    **dict.fromkeys(
        (
            "arguments",
            "backoff",
            "bounded_cache",
            "decoding",
            "errors",
            "first_use",
            "closing",
            "clock",
            "runtime",
            "event_loop",
            "ids",
            "log",
            "metrics",
            "duration",
            "texts",
            "whole_file",
        ),
        0,
    ),
    "texts": 0,
    "compute": 0,
    "exiting": 0,
    "objects": 1,
    "http": 2,  # what every service shares; knows no store
    "reclaim": 3,
    "lsm": 4,
    "kv": 5,
    "key_value": 6,
    "testing": 6,  # wraps the object port; no store imports it
    "table": 7,
    "repo": 7,  # the same rank as tables: neither imports the other
    "fleet": 7,  # tenants; knows neither tables nor repositories
    "lake": 8,
    # Next to the stores: these import any of them, and none of them imports these.
    "fsck": 9,
    "spark": 9,
    "server": 9,
    "pipeline": 10,  # the main job: steps over a lake, through Spark
    "cli": 11,
}

ROOMS = {
    "table": (
        *("model", "codec", "engines", "schema", "files", "branch", "read", "write", "commit", "compaction", "rows"),
        *("changes", "collect", "versions", "iceberg", "table", "imports", "exports"),
    ),
    "repo": (
        *("model", "outside", "committed", "records", "objects", "references", "staging", "heads", "collect"),
        *("lakefs", "verbs", "transport"),
    ),
    "spark": ("plan", "tasks", "dataframe", "streams", "jobs", "datasource", "catalog", "bridge", "worker"),
}
"""The rooms of the large packages, bottom first: a room imports those before it. A module that is not in a room is of
the facade, above all rooms of its package; `ARCHITECTURE.md` says what is in each."""

BELOW = {"spark": ("jar", "java", "sql_parser", "start")}
"""Modules next to the rooms that rooms may import: what a session needs."""

DELETERS = {
    "lakebed.reclaim.sweep": "what a plan names",
    "lakebed.objects.numbered_log": "numbers below the boundary; its own file, which lost a race or came too late",
    "lakebed.objects.boundary": "old markers of the boundary",
    "lakebed.objects.probe": "its own probe",
    "lakebed.objects.reserve": "the reserve of a full disk",
    "lakebed.table.branch.tags": "files of tags; its own tag, which lost a race",
    "lakebed.objects.vendor": "hands a delete on to the client library",
}
"""Modules that call a store's delete, and what they delete. ARCHITECTURE.md has the same table."""

AMBIENT = {
    "time": "lakebed.clock.Clock",
    "threading": "lakebed.runtime.Runtime",
    "concurrent": "lakebed.runtime.Runtime",
    "asyncio": "lakebed.runtime.Runtime",
    "multiprocessing": "lakebed.runtime.Runtime",
    "secrets": "Environment.rng",
}
AMBIENT_CALLS = {"uuid4", "uuid1", "utcnow", "urandom", "today"}
INSIDE = {"objects", "reclaim", "lsm", "kv", "key_value", "table", "repo", "fleet", "lake", "fsck"}
THREADED = {"group_by", "iter_batches", "sort_by", "to_table"}
"""Functions of Arrow that use its threads unless told otherwise."""
INDEPENDENT = ({"repo", "table", "fleet"},)
"""Packages of one rank that never import each other."""


def imported(module: Any, known: set[str]) -> Iterator[tuple[str, int]]:
    """Modules of lakebed and worlds that a module imports, anywhere in it, with the line."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in {"lakebed", "worlds"}:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.shown}:{node.lineno}: write the whole name, not a relative import"
            if (node.module or "").split(".")[0] in {"lakebed", "worlds"}:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield (full if full in known else str(node.module)), node.lineno


def imported_roots(module: Any) -> Iterator[tuple[str, int]]:
    """First names of everything that a module imports, with the line."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0], node.lineno


def test_imports_point_downward(sources: list[Any]) -> None:
    """No package imports one above it; the table of ranks is the one in the design."""
    known = {module.name for module in sources}
    wrong = []
    for module in sources:
        if not module.package:
            continue
        assert module.package in RANK, f"{module.shown}: a new package; give it a rank in {__name__} and in the design"
        for name, line in imported(module, known):
            package = ([*name.split("."), ""])[1]
            private = {"fsck", "testing"} & {package} and module.package not in {package, "cli"}
            independent = package != module.package and {package, module.package} in INDEPENDENT
            if (package and RANK[package] > RANK[module.package]) or private or independent:
                wrong.append(f"{module.shown}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_rooms_import_downward(sources: list[Any]) -> None:
    """Within a package, no room imports one above it, nor the facade."""
    known = {module.name for module in sources}
    wrong = []
    for module in sources:
        rooms = ROOMS.get(module.package)
        if rooms is None:
            continue
        rank = {room: number for number, room in enumerate(rooms, 1)} | dict.fromkeys(BELOW.get(module.package, ()), 0)
        top = len(rooms) + 1
        own = rank.get([*module.name.split("."), ""][2], top)
        for name, line in imported(module, known):
            parts = [*name.split("."), "", ""]
            if parts[1] == module.package and parts[2] and rank.get(parts[2], top) > own:
                wrong.append(f"{module.shown}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles(packages: list[Any]) -> None:
    """Modules can be read one after another: no cycle, not even one hidden in a function."""
    known = {module.name for module in packages}
    edges = {
        module.name: {name for name, _ in imported(module, known) if name in known and name != module.name}
        for module in packages
        if module.package
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import cycle: " + " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(edges.get(name, ())):
                walk(target, (*path, name))
            done.add(name)

    for name in sorted(edges):
        walk(name, ())


def test_arrow_computes_in_the_thread_of_its_caller(sources: list[Any]) -> None:
    """No thread of Arrow's holds a buffer of Python's that the end of the interpreter does not wait for.

    Reading whole files is parallel, and says what it holds: `lakebed.exiting`.
    """
    wrong = [
        f"{module.shown}:{node.lineno} {node.func.attr}"
        for module in sources
        for node in module.nodes
        if module.package in INSIDE and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in THREADED
        if node.func.attr == "sort_by" or "use_threads=False" not in map(ast.unparse, node.keywords)
    ]
    assert not wrong, f"say use_threads=False, or take(pc.sort_indices(...)): {', '.join(wrong)}"


def test_only_the_vendor_module_imports_the_vendor(sources: list[Any]) -> None:
    """Nothing above the port knows which client library lies below it."""
    importers = {module.name for module in sources for name, _ in imported_roots(module) if name == "obstore"}
    assert importers <= {"lakebed.objects.vendor"}


def test_one_module_decodes_into_types(sources: list[Any]) -> None:
    """A type that two threads decode into for the first time ends the process: `lakebed.decoding` learns types."""
    wrong = []
    for module in sources:
        for node in module.nodes:
            if not isinstance(node, ast.Call) or module.name == "lakebed.decoding":
                continue
            called = ast.unparse(node.func)
            makes = called in {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}
            decodes = called in {"msgspec.json.decode", "msgspec.msgpack.decode"} and len(node.keywords) > 0
            if makes or decodes:
                wrong.append(f"{module.shown}:{node.lineno} {called}")
    assert not wrong, f"use lakebed.decoding: {', '.join(wrong)}"


def test_few_modules_delete(sources: list[Any], root: Path) -> None:
    """Exactly the modules in `DELETERS` call the delete of a store or a driver; the architecture page names them."""
    found = set()
    for module in sources:
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "delete":
                receiver = ast.unparse(node.func.value).split(".")[-1].strip("_").lower()
                if receiver.endswith("store") or receiver in {"driver", "inner"}:
                    found.add(module.name)
    ours = {name for name in found if not name.startswith("lakebed.testing.")}
    assert ours == set(DELETERS)
    table = (root / "ARCHITECTURE.md").read_text().partition("## Who may delete what")[2].partition("\n## ")[0]
    rows = "\n".join(line for line in table.splitlines() if line.startswith("|"))
    named = {f"lakebed.{name.replace('/', '.')}" for name in re.findall(r"`([\w/]+)\.py`", rows)}
    assert named == set(DELETERS)


def test_time_chance_and_threads_come_in_as_arguments(sources: list[Any]) -> None:
    """Stores run deterministically under the simulator: none reads a clock, rolls dice or starts a thread itself.

    None has `functools.cached_property` either, which in Python 3.11 holds one lock for all objects of a class.
    """
    wrong = []
    for module in sources:
        if module.package not in INSIDE:
            continue
        for name, line in imported_roots(module):
            if name in AMBIENT:
                wrong.append(f"{module.shown}:{line} imports {name}; take {AMBIENT[name]} instead")
        for node in module.nodes:
            if isinstance(node, ast.Name) and node.id == "cached_property":
                wrong.append(f"{module.shown}:{node.lineno} uses cached_property; take lakebed.runtime.kept_property")
            if not isinstance(node, ast.Attribute):
                continue
            owner = ast.unparse(node.value)
            ambient_random = owner == "random" and node.attr != "Random"
            ambient_now = node.attr in AMBIENT_CALLS or (node.attr == "now" and owner.endswith("datetime"))
            if ambient_random or ambient_now:
                wrong.append(f"{module.shown}:{node.lineno} uses {owner}.{node.attr}; take it from the Environment")
    assert not wrong, "\n".join(wrong)


def test_errors_are_not_swallowed(sources: list[Any]) -> None:
    """A handler of every exception says, does or raises something."""
    wrong = []
    for module in sources:
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
                idle = all(isinstance(line, ast.Pass | ast.Continue) for line in node.body)
                if broad and idle:
                    wrong.append(f"{module.shown}:{node.lineno}")
    assert not wrong, "\n".join(wrong)
