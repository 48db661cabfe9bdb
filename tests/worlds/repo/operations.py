"""Verbs as functions of a context, for tests that run many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.heads.importing import ImportSource
from lakebed.repo.model.model import Difference
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.verbs.commit import Commit
from lakebed.repo.verbs.differences import Diff, Status
from lakebed.repo.verbs.imports import ImportObjects
from lakebed.repo.verbs.log import Log, LogPage
from lakebed.repo.verbs.merge import Merge
from lakebed.repo.verbs.pick import CherryPick, Revert
from lakebed.repo.verbs.rebase import Rebase
from lakebed.repo.verbs.reset import HardReset, Reset
from worlds.repo.memory_repository import put


def commit(
    context: RepositoryContext, branch: str, *, allow_empty_message: bool = False, **fields: Any
) -> CommitWithId:
    """Run `Commit`."""
    return Commit(branch=branch, **fields).run(context, allow_empty_message=allow_empty_message)


def commit_text(context: RepositoryContext, branch: str, path: str, text: str, *, message: str) -> CommitWithId:
    """Stage an object with a text, and run `Commit`."""
    put(context, branch, path, text)
    return commit(context, branch, message=message)


def merge(context: RepositoryContext, source: str, *, into: str, **fields: Any) -> CommitWithId:
    """Run `Merge`."""
    return Merge(branch=into, source=source, **fields).run(context)


def revert(context: RepositoryContext, branch: str, **fields: Any) -> CommitWithId:
    """Run `Revert`."""
    return Revert(branch=branch, **fields).run(context)


def cherry_pick(context: RepositoryContext, branch: str, **fields: Any) -> CommitWithId:
    """Run `CherryPick`."""
    return CherryPick(branch=branch, **fields).run(context)


def rebase(context: RepositoryContext, branch: str, **fields: Any) -> CommitWithId:
    """Run `Rebase`."""
    return Rebase(branch=branch, **fields).run(context)


def reset(context: RepositoryContext, branch: str) -> CommitWithId:
    """Run `Reset` of everything."""
    return Reset(branch=branch).run(context)


def reset_path(context: RepositoryContext, branch: str, *, path: str) -> CommitWithId:
    """Run `Reset` of a path."""
    return Reset(branch=branch, path=path).run(context)


def reset_prefix(context: RepositoryContext, branch: str, *, prefix: str) -> CommitWithId:
    """Run `Reset` of a prefix."""
    return Reset(branch=branch, prefix=prefix).run(context)


def hard_reset(context: RepositoryContext, branch: str, **fields: Any) -> CommitWithId:
    """Run `HardReset`."""
    return HardReset(branch=branch, **fields).run(context)


def log(context: RepositoryContext, ref: str, *, amount: int | None = None, **fields: Any) -> Iterator[CommitWithId]:
    """The commits of `Log`."""
    return Log(ref=ref, **fields).rows(context, amount=amount)


def log_page(context: RepositoryContext, ref: str, *, amount: int, is_last: bool = False, **fields: Any) -> LogPage:
    """A page of `Log`."""
    return Log(ref=ref, amount=amount, **fields).page(context, is_last=is_last)


def diff_refs(
    context: RepositoryContext, left: str, right: str, *, amount: int | None = None, **fields: Any
) -> Iterator[Difference]:
    """The differences of `Diff`."""
    return Diff(left=left, right=right, **fields).rows(context, amount=amount)


def diff_uncommitted(
    context: RepositoryContext, branch: str, *, amount: int | None = None, **fields: Any
) -> Iterator[Difference]:
    """The differences of `Status`."""
    return Status(branch=branch, **fields).rows(context, amount=amount)


def start_import(
    context: RepositoryContext,
    branch: str,
    *,
    sources: Sequence[ImportSource],
    message: str = "Import objects",
    force: bool = False,
    **fields: Any,
) -> str:
    """Start `ImportObjects`."""
    imported = ImportObjects(branch=branch, sources=list(sources), message=message, **fields)
    return imported.start(context, force=force)
