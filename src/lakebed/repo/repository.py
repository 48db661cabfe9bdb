"""`Repository`: the facade of one repository.

Owns nothing: each method builds a verb (`lakebed.repo.verbs`). Invariants: its only state is its transport, so any
number of them may be open in a process. It implements the contract of versioned stores
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
        """The name of the repository."""
        return self._transport.facts.name

    @property
    def id(self) -> str:
        """The repository's ULID. No other repository has it, not even one of the same name that is created later."""
        return self._transport.facts.id

    @property
    def url(self) -> str:
        """The URL of the folder of its objects. Behind a server it is the URL that the server uses."""
        return self._transport.facts.url

    @property
    def namespace(self) -> str:
        """The folder of its objects as it was given at creation: relative to the storage, or ``local://``."""
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
        """Texts of the user, as they were when the repository was opened."""
        return dict(self._transport.facts.metadata)

    @property
    def is_read_only(self) -> bool:
        """Whether all changes of the repository are refused."""
        return self._transport.facts.is_read_only

    def __repr__(self) -> str:
        return f"Repository({self.name!r}, url={self._transport.url!r}{', closed' if self._is_closed else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Repository, (self._transport,)

    # ---- references

    def ref(self, text: str) -> Reference:
        """Return a branch, tag or commit to read. ``~n``, ``^n``, ``@`` or ``$`` may stand behind the name.

        A commit may be abbreviated. Whether the reference exists is checked when it is used. Raises `InvalidRequest`
        for a malformed reference.
        """
        return Reference(self._transport, text)

    def branch(self, name: str | None = None) -> Branch:
        """Return a branch to read and write; None: the default branch. Whether it exists is checked when it is used."""
        return Branch(self._transport, self.default_branch if name is None else name)

    def branches(self, *, prefix: str = "", after: str | None = None, hidden: bool = False) -> Iterator[NamedCommit]:
        """Iterate over the branches in the order of their names, at one moment.

        Args:
            prefix: only names with this prefix.
            after: only names greater than this.
            hidden: also return hidden branches.

        Cost: 1 scan of the key-value store.
        """
        return self._transport.rows(Branches(prefix=prefix, after=after, hidden=hidden), amount=None)

    def create_branch(
        self, name: str, *, version: str | Reference | None = None, hidden: bool = False, committer: str = ""
    ) -> Branch:
        """Create a branch at the commit of a reference. What is staged on a branch is not copied.

        Args:
            name: of the branch.
            version: a reference; None: the default branch. ``branch$`` is refused, as staged changes have no commit.
            hidden: leave the branch out of listings by default; for branches of a transaction.
            committer: named in the reference log.

        Raises:
            AlreadyExists: kind ``branch_exists`` or ``tag_exists``: the name is taken.
            NotFound: kind ``reference_not_found``.
            InvalidRequest: kind ``invalid_branch_name``, ``invalid_source`` or ``read_only_repository``;
                ``commit_expired``: the objects of the commit were collected.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: about 5 reads and 1 write of the key-value store.
        """
        start = None if version is None else str(version)
        self._transport.call(CreateBranch(name=name, source=start, hidden=hidden, committer=committer))
        return self.branch(name)

    def delete_branch(self, name: str, *, committer: str = "") -> None:
        """Delete a branch with what is staged on it. `undelete_branch` brings the branch back at its commit.

        Raises:
            NotFound: kind ``branch_not_found``.
            InvalidRequest: kind ``default_branch``, ``protected_branch`` or ``read_only_repository``.
            Conflict: kind ``branch_moved``: the branch kept changing.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: 1 read and 1 write of the key-value store.
        """
        self._transport.call(DeleteBranch(name=name, committer=committer))

    def undelete_branch(self, name: str, *, committer: str = "") -> Branch:
        """Bring a deleted branch back at the commit it had. What was staged on it is gone.

        Raises:
            NotFound: kind ``branch_not_deleted``: no branch of that name was deleted in the last
                `RepositoryOptions.undelete_days`.
            AlreadyExists: kind ``branch_exists`` or ``tag_exists``: the name is taken again.
            InvalidRequest: kind ``invalid_branch_name``, ``read_only_repository`` or ``commit_expired``.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: 1 scan, 3 reads and 1 write of the key-value store.
        """
        self._transport.call(UndeleteBranch(name=name, committer=committer))
        return self.branch(name)

    def tags(self, *, prefix: str = "", after: str | None = None) -> Iterator[NamedCommit]:
        """Iterate over the tags in the order of their names, at one moment. Arguments as `branches`.

        Cost: 1 scan of the key-value store.
        """
        return self._transport.rows(Tags(prefix=prefix, after=after), amount=None)

    def create_tag(
        self, name: str, *, ref: str | Reference | None = None, owner: str = "", lifetime_ms: int | None = None
    ) -> Tag:
        """Give the commit of a reference a name.

        Args:
            name: of the tag.
            ref: a reference; None: the default branch.
            owner: for whom the tag is made; shown with pins.
            lifetime_ms: milliseconds after which the tag expires; None: never.

        Raises:
            AlreadyExists: kind ``tag_exists`` or ``branch_exists``: the name is taken.
            NotFound: kind ``reference_not_found`` or ``commit_not_found``.
            InvalidRequest: kind ``invalid_tag_name`` or ``invalid_lifetime``; ``commit_expired``: the objects of the
                commit were collected.
            Conflict: kind ``tag_moved``: another process changed the tag at the same moment.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: about 5 reads and 1 write of the key-value store.
        """
        ref_text = None if ref is None else str(ref)
        return self._transport.call(CreateTag(name=name, ref=ref_text, owner=owner, lifetime_ms=lifetime_ms))

    def delete_tag(self, name: str) -> None:
        """Delete a tag. A collection may later delete what only this tag kept.

        Raises:
            NotFound: kind ``tag_not_found``.
            InvalidRequest: no tag can have that name, or the repository is read-only.
            OutcomeUnknown: look whether it is there before you repeat the call.

        Cost: 1 read and 1 write of the key-value store.
        """
        self._transport.call(DeleteTag(name=name))

    def filesystem(self) -> Any:
        """Return the repository as a file system of fsspec, for pandas, DuckDB and pyarrow.

        Raises `ModuleNotFoundError` if fsspec is not installed.
        """
        # Imported by name: the file system is a layer above repositories, and only its users load it.
        module = importlib.import_module("lakebed.repo.fs")
        return module.RepositoryFileSystem(source=self, skip_instance_cache=True)

    # ---- history

    def log(self, ref: str | Reference | None = None, **filters: Any) -> Iterator[CommitWithId]:
        """Iterate over the commits behind a reference, or of a range such as ``main~3..main``.

        Args:
            ref: a reference or range; None: the default branch.
            **filters: as `Reference.log`, and so are order, errors and cost.
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
        """Iterate over the differences of two references, or of the sides of a range.

        Args:
            left, right: two references. Or only `left`, as ``one..other``, which compares the two as they are, or
                ``one...other``, which shows what the other side did since they parted.
            kind: of two references: ``three_dot`` (the default) or ``two_dot``.
            prefix, after, delimiter, amount: as `Reference.diff`, and so are errors.
        """
        first, second, scope = diff_sides(str(left), None if right is None else str(right), kind)
        return self.ref(first).diff(second, kind=scope, prefix=prefix, after=after, delimiter=delimiter, amount=amount)

    def merge_base(self, left: str | Reference, right: str | Reference) -> str | None:
        """Return the id of the best common ancestor of two references; None: there is none.

        Raises `NotFound` (``reference_not_found``).
        """
        return self._transport.call(CommonAncestor(left=str(left), right=str(right)))

    def reflog(self, branch: str | None = None, *, since_ms: int | None = None) -> Iterator[ReflogLine]:
        """Iterate over the moves of a branch, or (None) of all branches, oldest first.

        Deleted branches are included.
        """
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
        """Take over the commits, branches and tags of a dump of lakeFS, into a bare repository.

        Args:
            dump: the ids that ``lakectl refs-dump`` prints; None: those that lakeFS left in the namespace.
            url: the storage namespace of the dump, where the objects stay; None: the repository's own.
            committer: named in the reference log.
            storage_options: settings and credentials of that namespace, if they are not those of the storage.

        Raises:
            NotFound: kind ``range_not_found``: a file of lakeFS is missing.
            InvalidRequest: kind ``not_bare``, ``invalid_dump`` or ``read_only_repository``; ``no_default_branch``: the
                dump has no branch named as the repository's default branch; ``invalid_path``, ``invalid_branch_name``,
                ``invalid_tag_name`` or ``invalid_url``: a name or address that no repository can have;
                ``import_not_allowed``: the namespace may not be read.
            Conflict: kind ``collection_began``: run it again.
            Corruption: a file of lakeFS is damaged.

        Cost: 1 GET for each range and metarange of lakeFS, and about 20 us for each row that a commit changes; 1 PUT
            for each range that changes and each commit.
        """
        verb = RestoreRefs(dump=dump, url=url, committer=committer)
        return self._transport.call(verb, storage_options=storage_options)

    def dump_refs(
        self, target: ObjectStore | None = None, *, progress: Callable[[int], None] | None = None
    ) -> DumpReport:
        """Write the commits, branches and tags of the repository as a dump that ``lakectl refs-restore`` restores.

        Uncommitted changes are not in it.

        Args:
            target: a storage namespace of lakeFS, into which the objects are copied. Not possible over HTTP. None: the
                repository's own namespace, where the objects are; nothing is copied.
            progress: called with the number of commits that are written so far.

        Raises:
            NotFound: kind ``object_gone``: an object that has to be copied is missing.
            Corruption: a record or range is damaged.
            Unavailable, OutcomeUnknown: the store failed. Run it again.

        Cost: 1 GET and 1 PUT for each range, 1 PUT for each state, 1 GET and 1 PUT for each object that is copied;
            about 30 us for each entry.
        """
        if target is None:
            return self._transport.call(DumpRefs())
        return dump_refs(self._transport.context, target, progress=progress)

    # ---- settings

    def protect(self, pattern: str, *, blocked: Sequence[Blocked] = get_args(Blocked)) -> ProtectionRule:
        """Protect the branches that a pattern matches. Replace an existing rule of the same pattern.

        Args:
            pattern: a name, with ``*`` for any characters, ``?`` for one, ``[ab]`` for one of several.
            blocked: what is refused: ``staging_write``, ``commit``, ``delete``; by default all of them.

        Raises:
            InvalidRequest: kind ``invalid_protection``.
            Conflict: other processes changed the rules at the same time, again and again.

        Cost: 1 read and 1 write of the key-value store.
        """
        return self._transport.call(Protect(pattern=pattern, blocked=list(blocked)))

    def unprotect(self, pattern: str) -> None:
        """Remove the rule of a pattern. Raises `NotFound` if there is no such rule."""
        self._transport.call(Unprotect(pattern=pattern))

    def protected(self) -> tuple[ProtectionRule, ...]:
        """Return the rules of protected branches, sorted by pattern."""
        return self._transport.call(Protected())

    def retention(self) -> RetentionRules | None:
        """Return for how long commits keep their objects; None: without a limit."""
        return self._transport.call(Retention())

    def set_retention(self, *, default_days: int, branch_days: Mapping[str, int] = {}) -> RetentionRules:
        """Replace the rules of retention.

        Args:
            default_days: 0 to 36,500.
            branch_days: by name of a branch or pattern; each 0 to 36,500.

        Raises:
            InvalidRequest: kind ``invalid_retention``.
            OutcomeUnknown: look which rules there are before you repeat the call.

        Cost: 1 write of the key-value store.
        """
        return self._transport.call(SetRetention(default_days=default_days, branch_days=dict(branch_days)))

    def delete_retention(self) -> None:
        """Delete the rules of retention. From then on commits keep their objects."""
        self._transport.call(DeleteRetention())

    @property
    def hooks(self) -> Hooks:
        """The hooks that run before and after commits and merges in this process."""
        return self._transport.context.hooks

    def webhooks(self) -> tuple[Webhook, ...]:
        """Return the webhooks that run before and after commits and merges, in every process."""
        return self._transport.call(Webhooks())

    def set_webhooks(self, hooks: Sequence[Webhook]) -> None:
        """Replace all webhooks of the repository.

        Raises:
            InvalidRequest: kind ``invalid_hook``: a URL, an event or a timeout is not valid, a name repeats, or there
                are too many.

        Cost: 1 write of the key-value store.
        """
        self._transport.call(SetWebhooks(hooks=list(hooks)))

    # ---- versions

    def versions(self) -> Iterator[Version]:
        """Iterate over the commits of the default branch along first parents, oldest first.

        Commits whose objects were collected are left out. A bare repository has no versions.

        Cost: 1 snapshot, and 1 read of the key-value store for each commit. All are in memory.
        """
        versions = self._transport.call(Versions())
        return iter(versions)

    def at(self, version: str) -> Reference:
        """Return a version to read: a commit, the name of a pin, or any other reference as it is now.

        Raises:
            NotFound: kind ``reference_not_found``.
        """
        return self.ref(self._transport.call(Head(ref=version)).id)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version alive by a tag.

        Args:
            name: of the tag.
            version: a commit, or another reference; None: the head of the default branch.
            lifetime_ms: milliseconds after which the pin ends; None: never.

        Raises:
            InvalidRequest: the name is not valid. A name of digits is refused, as other stores take it for a version.
            NotFound: there is no such version.
            AlreadyExists: the name is taken.

        Cost: about 5 reads and 1 write of the key-value store.
        """
        return self._transport.call(PinVersion(name=name, version=version, lifetime_ms=lifetime_ms))

    def pins(self) -> list[Pin]:
        """Return what keeps versions: tags, then branches other than the default one, each sorted by name.

        Cost: 2 scans, and for each branch the commits back to where it left the default branch.
        """
        return self._transport.call(Pins())

    def unpin(self, name: str) -> None:
        """Delete a pin that is a tag.

        Raises:
            NotFound: kind ``tag_not_found``.
            InvalidRequest: kind ``pin_is_a_branch``: use `delete_branch`, which loses the commits that only the branch
                has.

        Cost: 2 reads and 1 write of the key-value store.
        """
        self._transport.call(Unpin(name=name))

    def restore(self, version: str, *, committer: str | None = None) -> Version:
        """Make an older version the newest, in a new commit of the default branch. All history stays.

        Args:
            version: a commit, or another reference.
            committer: author of the new commit.

        Raises:
            NotFound: kind ``reference_not_found``.
            InvalidRequest: kind ``dirty_branch``, ``protected_branch`` or ``commit_expired``.
            Rejected: kind ``hook_rejected``.
            Conflict: kind ``branch_moved``.

        Cost: 2 durable writes of the key-value store. No range is read or written.
        """
        return self._transport.call(Restore(version=version, committer=committer))

    def plan_collection(self, options: CollectionOptions | None = None) -> CollectionPlan:
        """Return what a collection would delete now. Delete nothing. Cost: as `collect`, without writes."""
        return self._transport.call(PlanCollection(grace_s=_grace_s(options)))

    def collect(
        self,
        options: CollectionOptions | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> CollectionReport:
        """Delete the objects, ranges and metaranges that nothing needs, and staged rows of deleted branches.

        Then index the history, if no background does that.

        Args:
            options: how old garbage has to be.
            dry_run: report what would be deleted; write nothing.
            progress: called after each batch of deletes.

        Raises:
            InvalidRequest: the grace is below zero.
            Unavailable, OutcomeUnknown: the store failed. What was deleted was garbage.

        Cost: 1 LIST and 1 DELETE for each thousand objects, 2 snapshots, 1 GET of the marker and 1 GET for each range
            of kept commits.
        """
        collection = Collect(grace_s=_grace_s(options), dry_run=dry_run)
        return self._transport.call(collection, progress=progress)

    def why(self, path: str) -> Explanation:
        """Explain what needs an object, or when it may be deleted.

        Args:
            path: relative to the repository's namespace: ``data/<ulid>``, a range, a metarange or an upload.

        Raises:
            Corruption: a record or range that the answer needs is damaged.

        Cost: 1 snapshot; for a range all metaranges, for an object all ranges of kept commits.
        """
        return self._transport.call(Why(path=path))

    def why_version(self, version: str) -> Explanation:
        """Explain which branches and tags keep the objects of a version, and until when.

        Args:
            version: a commit, or another reference as it is now.

        Returns:
            An explanation with the commit's id as its path and a pin for each branch and tag. `Pin.expires_ms` is when
            the branch's rule of retention, or the tag's lifetime, ends that; None: not by itself. A branch that gets
            another commit keeps it longer.

        Raises:
            NotFound: kind ``reference_not_found``.
            InvalidRequest: kind ``invalid_reference``.
            Corruption: a record that the answer needs is damaged.

        Cost: 1 snapshot; 4 us for each commit of the repository. No object is read.
        """
        return self._transport.call(WhyVersion(version=version))

    # ---- the end

    def close(self) -> None:
        """Close the repositories that `lakebed.repo.open` opened with this one.

        A second call does nothing, and neither does a repository that `Repositories` returned.
        """
        if self._close is not None:
            self._close()
            self._is_closed = True


def _grace_s(options: CollectionOptions | None) -> float | None:
    return None if options is None else options.grace.total_seconds()
