"""Imports are at the head of a file, as names that Python and people can follow; the exceptions have their reasons."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from typing import Any

LOCAL = {
    "lakebed.fleet.log.open": "each log brings libraries of its own",
    "lakebed.lake.adapters.tables": "a lake is listed without what finds out which files only a tag needs",
    "lakebed.lake.drop": "a lake is listed without what deletes versions of tables",
    "lakebed.objects.local": "who only lists and copies objects of a folder maps none, and needs no Arrow",
    "lakebed.objects.open": "a folder needs no client library of the cloud stores",
    "lakebed.repo.opening": "an own repository needs no HTTP client",
    "lakebed.repo.outside.outbound": "only webhooks need HTTP",
    "lakebed.pipeline.context": "a plan, a check without SQL and steps of metadata need no PySpark",
    "lakebed.table.codec.avro": "only files of other clients need fastavro",
    "lakebed.table.branch.context": "only tables with dynamic buckets need the index",
    "lakebed.table.files.data_file": "commands on tags and snapshots read no Parquet",
    "lakebed.table.exports.run": "optional: deltalake, pyiceberg",
    "lakebed.table.codec.file_encoding": "the same",
    "lakebed.table.codec.roaring": "only tables with deletion vectors need CRoaring",
    "lakebed.table.model.frames": "optional: pandas, polars, duckdb",
    "lakebed.table.imports.sources": "optional: deltalake, pyiceberg",
    "lakebed.table.read.read": "an append-only table is read without acero",
    "lakebed.table.table": "opening a table and its tags loads neither reading nor writing",
    "lakebed.texts": "only notebooks need HTML",
}
"""Modules with imports inside of functions, and why."""

ON_DEMAND = {
    "lakebed.first_use": "names of packages, on first use",
    "lakebed.spark.datasource.source": "PySpark before 4.2 has no streams with limits; a task looks for lakebed",
    "lakebed.fleet.log.jetstream": "nats-py is optional",
    "lakebed.cli.loading": "the command line's loader",
    "lakebed.key_value.postgres_connections": "psycopg is optional",
    "lakebed.repo.repository": "fsspec is optional",
    "lakebed.table.engines.registry": "a table is listed without merge engines, which take 10 ms to load",
}
"""Modules that import by a name in a string, and why."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def local_imports(module: Any) -> Iterator[int]:
    """Lines of imports inside of functions."""
    for node in module.nodes:
        if isinstance(node, Function):
            yield from (item.lineno for item in ast.walk(node) if isinstance(item, ast.Import | ast.ImportFrom))


def imports_by_string(module: Any) -> Iterator[int]:
    """Lines that import what a string names."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            yield node.lineno


def compare(found: dict[str, list[int]], allowed: dict[str, str]) -> None:
    """Fail for a module that is not listed, and for one that is listed and imports at its head only."""
    wrong = [f"{name}, lines {lines}" for name, lines in found.items() if name not in allowed]
    wrong += [f"{name} is listed, and needs not be" for name in allowed if name not in found]
    assert not wrong, "\n".join(wrong)


def test_imports_are_at_the_head(sources: list[Any]) -> None:
    """A function imports nothing, except in the modules of `LOCAL`."""
    result = {module.name: sorted(set(local_imports(module))) for module in sources}
    compare({name: lines for name, lines in result.items() if lines}, LOCAL)


def test_compute_functions_are_loaded_on_demand(sources: list[Any]) -> None:
    """Only `lakebed.compute` imports Arrow's compute functions: a command that calls none does not load them."""
    wrong = [
        f"{module.shown}:{node.lineno}"
        for module in sources
        for node in module.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any("pyarrow.compute" in (name.name, f"{getattr(node, 'module', '')}.{name.name}") for name in node.names)
    ]
    assert not wrong, f"say import lakebed.compute as pc: {', '.join(wrong)}"


def test_no_import_is_hidden_in_a_string(sources: list[Any]) -> None:
    """No module is imported by a text, except by the modules of `ON_DEMAND`."""
    result = {module.name: list(imports_by_string(module)) for module in sources}
    compare({name: lines for name, lines in result.items() if lines}, ON_DEMAND)


def test_what_benchmarks_the_demo_and_tools_import_is_there(all_modules: list[Any]) -> None:
    """A name that moves takes them along: no other test runs all of them."""
    wrong = []
    for module in all_modules:
        if module.shown.split("/")[0] not in {"bench", "demo", "tools"}:
            continue
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakebed":
                names = (alias.name for alias in node.names)
                missing = [name for name in names if not is_there(node.module or "", name)]
                wrong += [f"{module.shown}:{node.lineno} {name} of {node.module}" for name in missing]
    assert not wrong, "\n".join(wrong)


def is_there(package: str, name: str) -> bool:
    """Whether a module has a name, or a package a module of that name."""
    if hasattr(importlib.import_module(package), name):
        return True
    try:
        importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return False
    return True
