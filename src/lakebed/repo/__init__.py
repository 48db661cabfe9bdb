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

_HOMES = {
    "Access": ("lakebed.repo.options", "Access"),
    "Branch": ("lakebed.repo.branch", "Branch"),
    "CollectionOptions": ("lakebed.repo.options", "CollectionOptions"),
    "Commit": ("lakebed.repo.model", "Commit"),
    "CommitWithId": ("lakebed.repo.heads", "CommitWithId"),
    "DiffKind": ("lakebed.repo.model", "DiffKind"),
    "Difference": ("lakebed.repo.model", "Difference"),
    "Entry": ("lakebed.repo.model", "Entry"),
    "HookCall": ("lakebed.repo.hooks", "HookCall"),
    "ImportSource": ("lakebed.repo.importing", "ImportSource"),
    "Listed": ("lakebed.repo.staging.listing", "Listed"),
    "NamedCommit": ("lakebed.repo.verbs.references", "NamedCommit"),
    "ProtectionRule": ("lakebed.repo.protection", "ProtectionRule"),
    "RangeOptions": ("lakebed.repo.options", "RangeOptions"),
    "Reference": ("lakebed.repo.reference", "Reference"),
    "Repositories": ("lakebed.repo.repositories", "Repositories"),
    "Repository": ("lakebed.repo.repository", "Repository"),
    "RepositoryOptions": ("lakebed.repo.options", "RepositoryOptions"),
    "RetentionRules": ("lakebed.repo.retention", "RetentionRules"),
    "Tag": ("lakebed.repo.model", "Tag"),
    "Webhook": ("lakebed.repo.hooks", "Webhook"),
    "open": ("lakebed.repo.opening", "open_repository"),
    "open_all": ("lakebed.repo.opening", "open_repositories"),
}


if not TYPE_CHECKING:  # a checker of types would believe that every name is here

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'lakebed.repo' has no attribute {name!r}")
        module, attribute = _HOMES[name]
        value = globals()[name] = getattr(importlib.import_module(module), attribute)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
