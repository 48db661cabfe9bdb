"""Repositories: branches, a staging area that is compacted, commits and merges over a data lake.

The names below are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use

if TYPE_CHECKING:
    from lakebed.repo.branch import Branch
    from lakebed.repo.heads.heads import CommitWithId
    from lakebed.repo.heads.importing import ImportSource
    from lakebed.repo.lakefs.dump import DumpReport
    from lakebed.repo.lakefs.metaranges import RefsDump
    from lakebed.repo.lakefs.restore import RestoreReport
    from lakebed.repo.model.model import Commit, Difference, DiffKind, Entry, Tag
    from lakebed.repo.model.options import Access, CollectionOptions, RangeOptions, RepositoryOptions
    from lakebed.repo.opening import open_repositories as open_all
    from lakebed.repo.opening import open_repository
    from lakebed.repo.records.hooks import HookCall, Webhook
    from lakebed.repo.records.protection import ProtectionRule
    from lakebed.repo.records.retention import RetentionRules
    from lakebed.repo.reference import Reference
    from lakebed.repo.repositories import Repositories
    from lakebed.repo.repository import Repository
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
    "DumpReport",
    "Entry",
    "HookCall",
    "ImportSource",
    "Listed",
    "NamedCommit",
    "ProtectionRule",
    "RangeOptions",
    "Reference",
    "RefsDump",
    "Repositories",
    "Repository",
    "RepositoryOptions",
    "RestoreReport",
    "RetentionRules",
    "Tag",
    "Webhook",
    "open_all",
]
"""Without `open`: ``from lakebed.repo import *`` must not replace the built-in function."""

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "repo.branch": ("Branch",),
            "repo.heads.heads": ("CommitWithId",),
            "repo.records.hooks": ("HookCall", "Webhook"),
            "repo.heads.importing": ("ImportSource",),
            "repo.lakefs.dump": ("DumpReport",),
            "repo.lakefs.metaranges": ("RefsDump",),
            "repo.lakefs.restore": ("RestoreReport",),
            "repo.model.model": ("Commit", "DiffKind", "Difference", "Entry", "Tag"),
            "repo.opening": ("open_repositories", "open_repository"),
            "repo.model.options": ("Access", "CollectionOptions", "RangeOptions", "RepositoryOptions"),
            "repo.records.protection": ("ProtectionRule",),
            "repo.reference": ("Reference",),
            "repo.repositories": ("Repositories",),
            "repo.repository": ("Repository",),
            "repo.records.retention": ("RetentionRules",),
            "repo.staging.listing": ("Listed",),
            "repo.verbs.references": ("NamedCommit",),
        },
        renamed={"open": "open_repository", "open_all": "open_repositories"},
    )
