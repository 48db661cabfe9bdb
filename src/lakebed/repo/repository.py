"""`Repository`: the facade of one repository.

Owns: nothing: each method builds a verb (`lakebed.repo.verbs`). Invariants: it holds no state but its transport, so any
number of them may be open in a process. It answers the contract of versioned stores
(`lakebed.reclaim.versioned.Versioned`): a version is a commit of the default branch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from lakebed.arguments import check_arguments
from lakebed.closing import Closing
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Explanation, Pin, Version
from lakebed.repo.branch import Branch
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.lakefs.dump import DumpReport, dump_refs
from lakebed.repo.lakefs.metaranges import RefsDump
from lakebed.repo.lakefs.restore import RestoreReport
from lakebed.repo.model.model import Difference, Tag
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.ranges import diff_sides, log_of_range
from lakebed.repo.records.hooks import Hooks, Webhook
from lakebed.repo.records.protection import Blocked, ProtectionRule
from lakebed.repo.records.reflog import ReflogLine
from lakebed.repo.records.retention import RetentionRules
from lakebed.repo.reference import Reference
from lakebed.repo.transport.transport import OverTransport, Transport
from lakebed.repo.verbs.differences import DiffScope
from lakebed.repo.verbs.lakefs import DumpRefs, RestoreRefs
from lakebed.repo.verbs.reading import CommonAncestor, Head, Reflog
from lakebed.repo.verbs.references import (
    Branches,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    NamedCommit,
    Tags,
    UndeleteBranch,
)
from lakebed.repo.verbs.settings import (
    DeleteRetention,
    Protect,
    Protected,
    Retention,
    SetRetention,
    SetWebhooks,
    Unprotect,
    Webhooks,
)
from lakebed.repo.verbs.versions import (
    Collect,
    Pins,
    PinVersion,
    PlanCollection,
    Restore,
    Unpin,
    Versions,
    Why,
    WhyVersion,
)

__all__ = ["NamedCommit", "Repository"]


@check_arguments
class Repository(OverTransport, Closing):
    r"""One repository. Thread-safe. Close it, or use it in a ``with``, when `lakebed.repo.open` gave it.

    Args:
        close: called by `close`; None: the caller closes what is below it.

    Examples:
        >>> import lakebed.repo
        >>> with lakebed.repo.open("memory://doc-lake/analytics.repo") as repo:
        ...     main = repo.branch("main")
        ...     entry = main.put("events/1.csv", b"id\n1\n", content_type="text/csv")
        ...     commit = main.commit("first events", committer="ann")
        ...     [listed.path for listed in repo.ref("main").list("events/")], commit.commit.message
        (['events/1.csv'], 'first events')
    """

    def __init__(self, transport: Transport, *, close: Callable[[], None] | None = None) -> None:
        super().__init__(transport)
        self._close = close
        self._is_closed = False

    # ---- what it is

    @property
    def name(self) -> str:
        """Its name."""
        return self._transport.facts.name

    @property
    def id(self) -> str:
        """Its ULID, which no other repository has, also after it was deleted and made again."""
        return self._transport.facts.id

    @property
    def url(self) -> str:
        """Where its objects are; of a repository behind a server as the server sees it."""
        return self._transport.facts.url

    @property
    def namespace(self) -> str:
        """Where its objects are, as given at its creation: a folder relative to the storage, or ``local://``."""
        return self._transport.facts.namespace

    @property
    def default_branch(self) -> str:
        """The name of its default branch."""
        return self._transport.facts.default_branch

    @property
    def created_at_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self._transport.facts.created_at_ms

    @property
    def metadata(self) -> dict[str, str]:
        """The user's own, as it was when the repository was opened."""
        return dict(self._transport.facts.metadata)

    @property
    def is_read_only(self) -> bool:
        """Whether nothing in it can be changed."""
        return self._transport.facts.is_read_only

    def __repr__(self) -> str:
        return f"Repository({self.name!r}, url={self._transport.url!r}{', closed' if self._is_closed else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Repository, (self._transport,)

    # ---- references

    def ref(self, text: str) -> Reference:
        """Reading at a branch, tag, commit or abbreviation, with ``~n``, ``^n``, ``@`` or ``$`` behind it.

        Raises `InvalidRequest` for a malformed reference; whether it exists shows when it is used.
        """
        return Reference(self._transport, text)

    def branch(self, name: str | None = None) -> Branch:
        """A branch, to read and write; by default the default branch. Whether it is there shows when it is used."""
        return Branch(self._transport, self.default_branch if name is None else name)

    def branches(self, *, prefix: str = "", after: str | None = None, hidden: bool = False) -> Iterator[NamedCommit]:
        """Branches in the order of their names, of one moment; `hidden`: also those that are hidden. Cost: 1 scan."""
        return self._transport.rows(Branches(prefix=prefix, after=after, hidden=hidden), amount=None)

    def create_branch(
        self, name: str, *, version: str | Reference | None = None, hidden: bool = False, committer: str = ""
    ) -> Branch:
        """Make a branch at the commit of a reference (default: of the default branch); what is staged is not in it.

        Arguments and errors as `lakebed.repo.references.branches.create_branch`.
        """
        start = None if version is None else str(version)
        self._transport.call(CreateBranch(name=name, source=start, hidden=hidden, committer=committer))
        return self.branch(name)

    def delete_branch(self, name: str, *, committer: str = "") -> None:
        """Delete a branch, with what is staged on it. Errors as `lakebed.repo.references.branches.delete_branch`."""
        self._transport.call(DeleteBranch(name=name, committer=committer))

    def undelete_branch(self, name: str, *, committer: str = "") -> Branch:
        """Bring a deleted branch back at the commit it had. Errors as `branches.undelete_branch`."""
        self._transport.call(UndeleteBranch(name=name, committer=committer))
        return self.branch(name)

    def tags(self, *, prefix: str = "", after: str | None = None) -> Iterator[NamedCommit]:
        """Tags in the order of their names, of one moment. Cost: 1 scan."""
        return self._transport.rows(Tags(prefix=prefix, after=after), amount=None)

    def create_tag(
        self, name: str, *, ref: str | Reference | None = None, owner: str = "", lifetime_ms: int | None = None
    ) -> Tag:
        """Give the commit of a reference (default: of the default branch) a name.

        Arguments and errors as `lakebed.repo.references.tags.create_tag`.
        """
        at = None if ref is None else str(ref)
        return self._transport.call(CreateTag(name=name, ref=at, owner=owner, lifetime_ms=lifetime_ms))

    def delete_tag(self, name: str) -> None:
        """Remove a tag. Errors as `lakebed.repo.references.tags.delete_tag`."""
        self._transport.call(DeleteTag(name=name))

    def filesystem(self) -> Any:
        """The repository as a file system of fsspec, for pandas, DuckDB and pyarrow: see `lakebed.repo.fs`.

        Raises `ModuleNotFoundError` when fsspec is not installed.
        """
        # By name: the file system is a layer above repositories, and only its users load it.
        module = importlib.import_module("lakebed.repo.fs")
        return module.RepositoryFileSystem(source=self, skip_instance_cache=True)

    # ---- history

    def log(self, ref: str | Reference | None = None, **filters: Any) -> Iterator[CommitWithId]:
        """Commits behind a reference, by default behind the default branch, or of a range such as ``main~3..main``.

        Arguments as `Reference.log`.
        """
        text = self.default_branch if ref is None else str(ref)
        return log_of_range(lambda ref, **rest: self.ref(ref).log(**rest), text, **filters)

    def diff(
        self,
        left: str | Reference,
        right: str | Reference | None = None,
        *,
        kind: DiffScope | None = None,
        prefix: str = "",
        after: str = "",
        delimiter: str = "",
        amount: int | None = None,
    ) -> Iterator[Difference]:
        """How two references differ, or the sides of a range.

        Args:
            left, right: two references; or as `left` alone ``one..other``, which compares the two as they are, or
                ``one...other``, which shows what the other did since they parted.
            kind: of two references: ``three_dot`` (the default) or ``two_dot``.
            prefix, after, delimiter, amount: as `lakebed.repo.verbs.differences.Diff`, and so are errors.
        """
        first, other, scope = diff_sides(str(left), None if right is None else str(right), kind)
        return self.ref(first).diff(other, kind=scope, prefix=prefix, after=after, delimiter=delimiter, amount=amount)

    def merge_base(self, left: str | Reference, right: str | Reference) -> str | None:
        """Id of the best common ancestor of two references; None: none. Errors as `lakebed.repo.references.refs`."""
        return self._transport.call(CommonAncestor(left=str(left), right=str(right)))

    def reflog(self, branch: str | None = None, *, since_ms: int | None = None) -> Iterator[ReflogLine]:
        """Where a branch, or every branch, has been, oldest first, deleted branches included."""
        lines = self._transport.call(Reflog(branch=branch, since_ms=since_ms))
        return iter(lines)

    # ---- moving

    def restore_refs(
        self,
        dump: RefsDump | None = None,
        *,
        url: str | None = None,
        committer: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> RestoreReport:
        """Take the commits, branches and tags of a dump of lakeFS over, into a bare repository.

        Args:
            dump: its ids, as ``lakectl refs-dump`` prints them; None: those that lakeFS has left in the namespace.
            url: the storage namespace that the dump is of, where the objects stay; None: the repository's own.
            storage_options: settings and credentials of that namespace, where they are not those of the storage.

        Raises and costs as `lakebed.repo.lakefs.restore.restore_refs`.
        """
        restored = RestoreRefs(dump=dump, url=url, committer=committer)
        return self._transport.call(restored, storage_options=storage_options)

    def dump_refs(
        self, target: ObjectStore | None = None, *, progress: Callable[[int], None] | None = None
    ) -> DumpReport:
        """Write commits, branches and tags as ``lakectl refs-restore`` restores them.

        Args:
            target: a storage namespace of lakeFS, into which the objects are copied; not over HTTP. None: the
                repository's own namespace, where they are.

        Raises and costs as `lakebed.repo.lakefs.dump.dump_refs`.
        """
        if target is None:
            return self._transport.call(DumpRefs())
        return dump_refs(self._transport.context, target, progress=progress)

    # ---- settings

    def protect(self, pattern: str, *, blocked: Sequence[Blocked] = get_args(Blocked)) -> ProtectionRule:
        """Protect the branches that a pattern matches. Arguments as `lakebed.repo.records.protection.protect`."""
        return self._transport.call(Protect(pattern=pattern, blocked=list(blocked)))

    def unprotect(self, pattern: str) -> None:
        """Remove the rule of a pattern. Raises `NotFound`."""
        self._transport.call(Unprotect(pattern=pattern))

    def protected(self) -> tuple[ProtectionRule, ...]:
        """The rules of protected branches, sorted by pattern."""
        return self._transport.call(Protected())

    def retention(self) -> RetentionRules | None:
        """For how long commits stay active behind their branches; None: without a limit."""
        return self._transport.call(Retention())

    def set_retention(self, *, default_days: int, branch_days: Mapping[str, int] = {}) -> RetentionRules:
        """Replace the rules of retention. Arguments and errors as `lakebed.repo.records.retention.store_retention`."""
        return self._transport.call(SetRetention(default_days=default_days, branch_days=dict(branch_days)))

    def delete_retention(self) -> None:
        """Remove the rules: nothing expires any more."""
        self._transport.call(DeleteRetention())

    @property
    def hooks(self) -> Hooks:
        """What runs before and after commits and merges in this process."""
        return self._transport.context.hooks

    def webhooks(self) -> tuple[Webhook, ...]:
        """The webhooks that run before and after commits and merges, in every process."""
        return self._transport.call(Webhooks())

    def set_webhooks(self, hooks: Sequence[Webhook]) -> None:
        """Replace all webhooks. Errors as `lakebed.repo.records.hooks.set_webhooks`."""
        self._transport.call(SetWebhooks(hooks=list(hooks)))

    # ---- versions

    def versions(self) -> Iterator[Version]:
        """Commits of the default branch, oldest first. As `lakebed.repo.verbs.versions.Versions`."""
        versions = self._transport.call(Versions())
        return iter(versions)

    def at(self, version: str) -> Reference:
        """Reading at one version: a commit, a pin's name, or any other reference, as it is now.

        Raises:
            NotFound: kind ``reference_not_found``.
        """
        return self.ref(self._transport.call(Head(ref=version)).id)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive by a tag. As `lakebed.repo.verbs.versions.PinVersion`."""
        return self._transport.call(PinVersion(name=name, version=version, lifetime_ms=lifetime_ms))

    def pins(self) -> list[Pin]:
        """Tags, and branches other than the default one. As `lakebed.repo.verbs.versions.Pins`."""
        return self._transport.call(Pins())

    def unpin(self, name: str) -> None:
        """Remove a tag. As `lakebed.repo.verbs.versions.Unpin`."""
        self._transport.call(Unpin(name=name))

    def restore(self, version: str, *, committer: str | None = None) -> Version:
        """Make an older version the newest, in a new commit. As `lakebed.repo.verbs.versions.Restore`."""
        return self._transport.call(Restore(version=version, committer=committer))

    def plan_collection(self, options: CollectionOptions | None = None) -> CollectionPlan:
        """What a collection would delete now; deletes nothing. As `lakebed.repo.collect.collect.plan_collection`."""
        return self._transport.call(PlanCollection(grace_s=_grace_s(options)))

    def collect(
        self,
        options: CollectionOptions | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> CollectionReport:
        """Delete what nothing needs. As `lakebed.repo.collect.collect.collect_garbage`."""
        collection = Collect(grace_s=_grace_s(options), dry_run=dry_run)
        return self._transport.call(collection, progress=progress)

    def why(self, path: str) -> Explanation:
        """Who needs an object of the storage namespace, or when it may go. As `lakebed.repo.collect.why.why`."""
        return self._transport.call(Why(path=path))

    def why_version(self, version: str) -> Explanation:
        """Who keeps the objects of a version, and until when. As `lakebed.repo.collect.why.why_version`."""
        return self._transport.call(WhyVersion(version=version))

    # ---- the end

    def close(self) -> None:
        """Close the repositories that `lakebed.repo.open` opened with it; else nothing. Again is a no-op."""
        if self._close is not None:
            self._close()
            self._is_closed = True


def _grace_s(options: CollectionOptions | None) -> float | None:
    return None if options is None else options.grace.total_seconds()
