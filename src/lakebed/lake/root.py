"""`LakeRoot`: the location of a lake, which the modules of databases, repositories and tenants take as an argument."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment


@dataclass(frozen=True, slots=True)
class LakeRoot:
    """The location of a lake, and the settings that its stores are opened with."""

    store: ObjectStore
    """The lake's root."""
    environment: Environment
    storage_options: dict[str, str] | None
    is_probed: bool
    """Whether the object store is known to honour create-only puts."""
