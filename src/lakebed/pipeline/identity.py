"""The identity of a step, apart from its name and line: it finds finished work again in an edited pipeline. Pure.

Owns: `identities`. Two steps have the same `source` when three things are equal: their kind and settings, the kind and
settings of the ingest steps whose views they read, and the pipeline's branch of each table. Keys at their defaults, the
step's name, its line, a view's name and `cache` are not part of the identity, so editing these changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lakebed.pipeline.inputs import digest
from lakebed.pipeline.model import Plan, PlannedStep, StepIdentity
from lakebed.pipeline.steps import KINDS

_MEANINGLESS = frozenset(("as", "cache"))
"""Settings that do not change the rows."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def identities(plan: Plan) -> list[StepIdentity]:
    """Return the identity of every step, in order."""
    views: dict[str, StepIdentity] = {}
    results: list[StepIdentity] = []
    tables = {*plan.tables, *(name for step in plan.steps for name in _tables_of(step))}
    for step in plan.steps:
        identity = _identity(step, views, tables, plan.table_branch)
        if step.settings.get("as") is not None:
            views[step.settings["as"]] = identity
        results.append(identity)
    return results


def _identity(
    step: PlannedStep, views: Mapping[str, StepIdentity], tables: set[str], table_branch: str | None
) -> StepIdentity:
    settings = {name: value for name, value in step.settings.items() if name not in _MEANINGLESS}
    settings = {name: value for name, value in settings.items() if value != _default(step.kind, name)}
    words = _sources(step)
    used_views = [views[word] for word in sorted(words) if word in views]
    if step.settings.get("from") in views:
        settings.pop("from")
    kind = KINDS[step.kind]
    writes = kind.table_written(step.settings)
    reads = {word for word in words if word in tables and word not in views}
    reads.update(name for name in _tables_of(step) if name != writes)
    parts: list[Any] = [step.kind, settings, [view.source for view in used_views]]
    return StepIdentity(
        step=step,
        source=digest(parts if table_branch is None else [*parts, table_branch]),
        views=(step,) if kind.reads_files else tuple(view.step for view in used_views),
        reads=frozenset(reads),
        writes=writes,
        depends_on_all=kind.depends_on_all,
        needs_consent=writes is not None or kind.creates_names,
    )


def _sources(step: PlannedStep) -> set[str]:
    """Return the words of the step that may name views and tables that it reads."""
    if KINDS[step.kind].reads_files:
        return set()
    query, source = step.settings.get("query"), step.settings.get("from")
    return set(_WORD.findall(query)) if query is not None else {source} if source is not None else set()


def _tables_of(step: PlannedStep) -> list[str]:
    names = (step.settings.get(key.name) for key in KINDS[step.kind].keys if key.kind == "table")
    return [name for name in names if name is not None]


def _default(kind: str, name: str) -> Any:
    return next((key.default for key in KINDS[kind].keys if key.name == name), None)
