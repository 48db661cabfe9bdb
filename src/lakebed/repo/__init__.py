"""Repositories: branches, a staging area that is compacted, commits and merges over a data lake.

The names below are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakebed.repo.branch import Branch
    from lakebed.repo.heads import CommitWithId
    from lakebed.repo.hooks import HookCall, Webhook
    from lakebed.repo.importing import ImportSource
    from lakebed.repo.model import Commit, Difference, DiffKind, Entry, Tag
    from lakebed.repo.opening import open_repositories as open_all
    from lakebed.repo.opening import open_repository
    from lakebed.repo.options import Access, CollectionOptions, RangeOptions, RepositoryOptions
    from lakebed.repo.protection import ProtectionRule
    from lakebed.repo.reference import Reference
    from lakebed.repo.repositories import Repositories
    from lakebed.repo.repository import Repository
    from lakebed.repo.retention import RetentionRules
    from lakebed.repo.staging.listing import Listed
    from lakebed.repo.verbs.references import NamedCommit

    open = open_repository

__all__ = [
    "Access",
    "Branch",
    "CollectionOptions",
    "Commit",
    "CommitWithId",
    "DiffKind",
    "Difference",
    "Entry",
    "HookCall",
    "ImportSource",
    "Listed",
    "NamedCommit",
    "ProtectionRule",
    "RangeOptions",
    "Reference",
    "Repositories",
    "Repository",
    "RepositoryOptions",
    "RetentionRules",
    "Tag",
    "Webhook",
    "open_all",
]
"""Without `open`: ``from lakebed.repo import *`` must leave the built-in one in place."""

_NAMES = {
    "branch": ("Branch",),
    "heads": ("CommitWithId",),
    "hooks": ("HookCall", "Webhook"),
    "importing": ("ImportSource",),
    "model": ("Commit", "DiffKind", "Difference", "Entry", "Tag"),
    "opening": ("open_repositories", "open_repository"),
    "options": ("Access", "CollectionOptions", "RangeOptions", "RepositoryOptions"),
    "protection": ("ProtectionRule",),
    "reference": ("Reference",),
    "repositories": ("Repositories",),
    "repository": ("Repository",),
    "retention": ("RetentionRules",),
    "staging.listing": ("Listed",),
    "verbs.references": ("NamedCommit",),
}
_MODULES = {name: f"lakebed.repo.{module}" for module, names in _NAMES.items() for name in names}
_OTHER_NAMES = {"open": "open_repository", "open_all": "open_repositories"}


if not TYPE_CHECKING:  # a checker of types would believe that every name is here

    def __getattr__(name: str) -> Any:
        attribute = _OTHER_NAMES.get(name, name)
        if attribute not in _MODULES:
            raise AttributeError(f"module 'lakebed.repo' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[attribute]), attribute)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
