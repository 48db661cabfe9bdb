"""The verbs of a repository: one class each, with its arguments, role, effort, result and body.

The facade (`lakebed.repo.reference`, `branch`, `repository`) builds a verb and passes it to a transport. The transport
runs it in this process, or sends it to a server, which decodes and runs it. To add a verb, write its class in the
module of its subject, with the decorator `verb`, and write the method of the facade that builds it. The endpoint, its
description and the check of roles are derived from the class.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeVar

from lakebed.repo.verbs import (
    commit,
    differences,
    imports,
    lakefs,
    log,
    merge,
    pick,
    reading,
    rebase,
    references,
    repositories,
    reset,
    settings,
    versions,
    writing,
)
from lakebed.repo.verbs.message import PAGE_COUNT_MAX, PATHS_MAX, Described, ListVerb, RepositoryFacts, Verb

__all__ = ["CATALOG_VERBS", "PAGE_COUNT_MAX", "PATHS_MAX", "VERBS", "ListVerb", "RepositoryFacts", "Verb"]

V = TypeVar("V", bound=Described)


def _verbs_of(kind: type[V], *modules: ModuleType) -> dict[str, type[V]]:
    """The verbs that modules declare, by name, in the order of declaration."""
    return {
        value.verb_name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, kind)
        and value.__module__ == module.__name__
        and "verb_name" in vars(value)
    }


_SUBJECTS = (
    reading,
    log,
    differences,
    references,
    settings,
    versions,
    writing,
    commit,
    merge,
    pick,
    rebase,
    reset,
    imports,
    lakefs,
)

VERBS: dict[str, type[Verb[Any]]] = _verbs_of(Verb, *_SUBJECTS)
"""Verbs of one repository: ``POST /repositories/{repository}/verbs/<name>``."""

CATALOG_VERBS: dict[str, type[repositories.CatalogVerb[Any]]] = _verbs_of(repositories.CatalogVerb, repositories)
"""Verbs of all repositories: ``POST /verbs/<name>``."""
