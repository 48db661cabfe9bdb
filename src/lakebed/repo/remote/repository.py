"""`RemoteRepository`: one repository behind a server.

Owns: the facade of one repository over HTTP; methods, arguments, results and errors are those of
`lakebed.repo.repository.Repository`. Invariants: it holds what the repository was when it was opened, and nothing that
changes. Does not know: how a request travels.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, get_args

from lakebed.reclaim.model import Pin, ReclaimPlan, ReclaimReport, Verdict, Version
from lakebed.repo.differences import DiffScope
from lakebed.repo.heads import CommitWithId
from lakebed.repo.hooks import Webhook
from lakebed.repo.model import Difference, Tag
from lakebed.repo.options import CollectionOptions
from lakebed.repo.protection import Blocked, ProtectionRule
from lakebed.repo.ranges import diff_sides, log_of_range
from lakebed.repo.reflog import ReflogLine
from lakebed.repo.remote.branch import RemoteBranch
from lakebed.repo.remote.client import Client
from lakebed.repo.remote.reference import RemoteReference, only_local
from lakebed.repo.remote.verbs import RepositoryFacts
from lakebed.repo.repository import NamedCommit
from lakebed.repo.retention import RetentionRules

__all__ = ["RemoteRepository"]


class RemoteRepository:
    """One repository behind a server; made by `lakebed.repo.open` of a server's URL. Thread-safe, can be pickled.

    Args:
        client: of the server.
        facts: what the repository is.
        close: called by `close`; None: whoever gave it closes what is below it.
    """

    def __init__(self, client: Client, facts: RepositoryFacts, *, close: Callable[[], None] | None = None) -> None:
        self._client = client
        self._facts = facts
        self._close = close

    @property
    def client(self) -> Client:
        """Of the server."""
        return self._client

    @property
    def facts(self) -> RepositoryFacts:
        """What the repository was when it was opened."""
        return self._facts

    # ---- what it is

    @property
    def home(self) -> NoReturn:
        """Not here: the server has it. Raises `InvalidRequest` (``not_over_http``)."""
        only_local("A repository's home")

    @property
    def name(self) -> str:
        """Its name."""
        return self._facts.name

    @property
    def id(self) -> str:
        """Its ULID, which no other repository has, also after it was deleted and made again."""
        return self._facts.id

    @property
    def url(self) -> str:
        """Where its objects are, as the server sees it."""
        return self._facts.url

    @property
    def namespace(self) -> str:
        """Where its objects are, as it was said when it was made."""
        return self._facts.namespace

    @property
    def default_branch(self) -> str:
        """The name of its default branch."""
        return self._facts.default_branch

    @property
    def created_at_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self._facts.created_at_ms

    @property
    def metadata(self) -> dict[str, str]:
        """The user's own, as it was when the repository was opened."""
        return dict(self._facts.metadata)

    @property
    def is_read_only(self) -> bool:
        """Whether nothing in it can be changed."""
        return self._facts.is_read_only

    def __repr__(self) -> str:
        return f"RemoteRepository({self.name!r}, server={self._client.endpoint!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteRepository, (self._client, self._facts))

    def _call(self, verb: str, **message: Any) -> Any:
        return self._client.call(verb, repository=self.name, **message)

    # ---- references

    def ref(self, text: str) -> RemoteReference:
        """Reading at a branch, tag, commit or abbreviation. As `Repository.ref`. Cost: none."""
        return RemoteReference(self._client, self.name, text)

    def branch(self, name: str | None = None) -> RemoteBranch:
        """A branch, to read and write; by default the default branch. As `Repository.branch`. Cost: none."""
        return RemoteBranch(self._client, self.name, self.default_branch if name is None else name)

    def branches(self, *, prefix: str = "", after: str | None = None, hidden: bool = False) -> Iterator[NamedCommit]:
        """Branches in the order of their names. As `Repository.branches`. Cost: 1 request a page."""
        return self._client.rows(
            "branches", repository=self.name, prefix=prefix, after=after, hidden=hidden, amount=None
        )

    def create_branch(
        self, name: str, *, source: str | RemoteReference | None = None, hidden: bool = False, committer: str = ""
    ) -> RemoteBranch:
        """Make a branch at the commit of a reference. As `Repository.create_branch`. Cost: 1 request."""
        start = None if source is None else str(source)
        self._call("create_branch", name=name, source=start, hidden=hidden, committer=committer)
        return self.branch(name)

    def delete_branch(self, name: str, *, committer: str = "") -> None:
        """Delete a branch, with what is staged on it. As `Repository.delete_branch`. Cost: 1 request."""
        self._call("delete_branch", name=name, committer=committer)

    def undelete_branch(self, name: str, *, committer: str = "") -> RemoteBranch:
        """Bring a deleted branch back. As `Repository.undelete_branch`. Cost: 1 request."""
        self._call("undelete_branch", name=name, committer=committer)
        return self.branch(name)

    def tags(self, *, prefix: str = "", after: str | None = None) -> Iterator[NamedCommit]:
        """Tags in the order of their names. As `Repository.tags`. Cost: 1 request a page."""
        return self._client.rows("tags", repository=self.name, prefix=prefix, after=after, amount=None)

    def create_tag(
        self, name: str, *, ref: str | RemoteReference | None = None, owner: str = "", lifetime_ms: int | None = None
    ) -> Tag:
        """Give the commit of a reference a name. As `Repository.create_tag`; its owner is by default the access key.

        Cost: 1 request.
        """
        at = None if ref is None else str(ref)
        made: Tag = self._call("create_tag", name=name, ref=at, owner=owner, lifetime_ms=lifetime_ms)
        return made

    def delete_tag(self, name: str) -> None:
        """Remove a tag. As `Repository.delete_tag`. Cost: 1 request."""
        self._call("delete_tag", name=name)

    def filesystem(self) -> Any:
        """The repository as a file system of fsspec, for pandas, DuckDB and pyarrow: see `lakebed.repo.fs`.

        Raises `ModuleNotFoundError` when fsspec is not installed.
        """
        # By name: the file system is a face above repositories, and loaded only by those who use it.
        module = importlib.import_module("lakebed.repo.fs")
        return module.RepositoryFileSystem(home=self, skip_instance_cache=True)

    # ---- history

    def log(self, ref: str | RemoteReference | None = None, **filters: Any) -> Iterator[CommitWithId]:
        """Commits behind a reference, by default behind the default branch. As `Repository.log`."""
        text = self.default_branch if ref is None else str(ref)
        return log_of_range(lambda one, **rest: self.ref(one).log(**rest), text, **filters)

    def diff(
        self,
        left: str | RemoteReference,
        right: str | RemoteReference | None = None,
        *,
        kind: DiffScope | None = None,
        prefix: str = "",
        after: str = "",
        delimiter: str = "",
        amount: int | None = None,
    ) -> Iterator[Difference]:
        """How two references differ, or the sides of a range. As `Repository.diff`. Cost: 1 request a page."""
        one, other, scope = diff_sides(str(left), None if right is None else str(right), kind)
        return self.ref(one).diff(other, kind=scope, prefix=prefix, after=after, delimiter=delimiter, amount=amount)

    def merge_base(self, left: str | RemoteReference, right: str | RemoteReference) -> str | None:
        """Id of the best common ancestor of two references; None: there is none. Cost: 1 request."""
        found: str | None = self._call("merge_base", left=str(left), right=str(right))
        return found

    def reflog(self, branch: str | None = None, *, since_ms: int | None = None) -> Iterator[ReflogLine]:
        """Where a branch, or every branch, has been. As `Repository.reflog`. Cost: 1 request."""
        return iter(self._call("reflog", branch=branch, since_ms=since_ms))

    # ---- settings

    def protect(self, pattern: str, *, blocked: Sequence[Blocked] = get_args(Blocked)) -> ProtectionRule:
        """Protect the branches that a pattern matches. As `Repository.protect`. Cost: 1 request."""
        made: ProtectionRule = self._call("protect", pattern=pattern, blocked=list(blocked))
        return made

    def unprotect(self, pattern: str) -> None:
        """Remove the rule of a pattern. Raises `NotFound`. Cost: 1 request."""
        self._call("unprotect", pattern=pattern)

    def protected(self) -> tuple[ProtectionRule, ...]:
        """The rules of protected branches, sorted by pattern. Cost: 1 request."""
        found: tuple[ProtectionRule, ...] = self._call("protected")
        return found

    def retention(self) -> RetentionRules | None:
        """For how long commits stay active behind their branches; None: for ever. Cost: 1 request."""
        found: RetentionRules | None = self._call("retention")
        return found

    def set_retention(self, *, default_days: int, branch_days: Mapping[str, int] = {}) -> RetentionRules:
        """Replace the rules of retention. As `Repository.set_retention`. Cost: 1 request."""
        made: RetentionRules = self._call("set_retention", default_days=default_days, branch_days=dict(branch_days))
        return made

    def delete_retention(self) -> None:
        """Remove the rules: nothing expires any more. Cost: 1 request."""
        self._call("delete_retention")

    @property
    def hooks(self) -> NoReturn:
        """Not here: functions run in the server's process; use webhooks. Raises `InvalidRequest`."""
        only_local("A hook that is a function")

    def webhooks(self) -> tuple[Webhook, ...]:
        """The webhooks that run before and after commits and merges. Cost: 1 request."""
        found: tuple[Webhook, ...] = self._call("webhooks")
        return found

    def set_webhooks(self, hooks: Sequence[Webhook]) -> None:
        """Replace all webhooks. As `Repository.set_webhooks`. Cost: 1 request."""
        self._call("set_webhooks", hooks=list(hooks))

    # ---- versions

    def versions(self) -> Iterator[Version]:
        """Commits of the default branch, oldest first. Cost: 1 request."""
        return iter(self._call("versions"))

    def at(self, version: str) -> RemoteReference:
        """Reading at one version, as it stands now. As `Repository.at`. Cost: 1 request."""
        return self.ref(self.ref(version).head().id)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive by a tag. As `Repository.pin`. Cost: 1 request."""
        made: Pin = self._call("pin", name=name, version=version, lifetime_ms=lifetime_ms)
        return made

    def pins(self) -> list[Pin]:
        """Tags, and branches other than the default one. Cost: 1 request."""
        found: list[Pin] = self._call("pins")
        return found

    def unpin(self, name: str) -> None:
        """Remove a tag. As `Repository.unpin`. Cost: 1 request."""
        self._call("unpin", name=name)

    def fork(self, name: str, *, version: str | None = None) -> RemoteBranch:
        """A branch that starts from a version, by default the newest. As `create_branch`."""
        return self.create_branch(name, source=version)

    def restore(self, version: str, *, committer: str | None = None) -> Version:
        """Make an older version the newest, in a new commit. As `Repository.restore`. Cost: 1 request."""
        made: Version = self._call("restore", version=version, committer=committer)
        return made

    def plan_reclaim(self, options: CollectionOptions | None = None) -> ReclaimPlan:
        """What a collection would delete now; deletes nothing. As `Repository.plan_reclaim`. Cost: 1 request."""
        found: ReclaimPlan = self._call("plan_reclaim", min_age_s=_age_s(options))
        return found

    def collect_garbage(
        self,
        options: CollectionOptions | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> ReclaimReport:
        """Delete what nothing needs, on the server's side. As `Repository.collect_garbage`.

        `progress` is not called: the server tells the result. Cost: 1 request, for as long as it takes.
        """
        found: ReclaimReport = self._call("collect_garbage", min_age_s=_age_s(options), dry_run=dry_run)
        return found

    def why(self, path: str) -> Verdict:
        """Who needs an object of the storage namespace, or when it may go. Cost: 1 request."""
        found: Verdict = self._call("why", path=path)
        return found

    # ---- the end

    def close(self) -> None:
        """Hang up, when `lakebed.repo.open` gave it; else nothing. Again is fine."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> RemoteRepository:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _age_s(options: CollectionOptions | None) -> float | None:
    return None if options is None else options.min_age.total_seconds()
