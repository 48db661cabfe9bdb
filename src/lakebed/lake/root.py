"""`LakeRoot`: where a lake is, as the modules of databases, repositories and tenants take it."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment


@dataclass(frozen=True, slots=True)
class LakeRoot:
    """Where a lake is, and what its stores are opened with."""

    store: ObjectStore
    """The lake's root."""
    environment: Environment
    storage_options: dict[str, str] | None
    is_probed: bool
    """The store is known to honour create-only puts."""
