"""The packages of databases, repositories and tenants, loaded when a lake first needs one of their kind.

The only place of this package that imports on demand: a program that uses tables alone does not pay for the engine of
databases, for repositories and for tenants (0.3 s). Each module in `_MODULES` imports its store's package at its head,
as usual, and nothing imports these modules but `module_of`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_MODULES: Final = {
    "database": "lakebed.lake.databases",
    "repository": "lakebed.lake.repositories",
    "tenant": "lakebed.lake.tenants",
}


@dataclass(frozen=True, slots=True)
class LakeRoot:
    """Where a lake is, and what its stores are opened with."""

    store: ObjectStore
    """The lake's root."""
    environment: Environment
    storage_options: dict[str, str] | None
    is_probed: bool
    """The store is known to honour create-only puts."""


def module_of(kind: Literal["database", "repository", "tenant"]) -> Any:
    """Return the module that opens stores of a kind, such as `lakebed.lake.databases`."""
    return importlib.import_module(_MODULES[kind])
