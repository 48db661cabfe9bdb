"""What a lakebed server offers beyond the interface of lakeFS: the methods of the facade, as messages. Pure data.

Owns: the table that the client and the server share. A verb is a method of `Repository`, `Reference` or `Branch`: its
message holds the method's arguments under their own names (and ``ref`` or ``branch``: of what), its reply what the
method returns, as JSON. So the facade over HTTP is the facade, with the same records, times and errors. A list is asked
for in pages: ``after`` the last row of the page before.

Invariants: names and fields are the interface between versions: DO NOT CHANGE them; add fields with a default. Does not
know: how a message travels, or who answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from lakebed.reclaim.model import Pin, ReclaimPlan, ReclaimReport, Verdict, Version
from lakebed.repo.compact import Compaction
from lakebed.repo.heads import CommitWithId
from lakebed.repo.hooks import Webhook
from lakebed.repo.importing import Import, ImportSource
from lakebed.repo.model import DeletedRepository, Difference, Entry, Tag
from lakebed.repo.protection import ProtectionRule
from lakebed.repo.reflog import ReflogLine
from lakebed.repo.repository import NamedCommit
from lakebed.repo.retention import RetentionRules
from lakebed.repo.staging.listing import Listed

__all__ = [
    "HOME_VERBS",
    "PAGE_COUNT_MAX",
    "PATHS_MAX",
    "VERBS",
    "BranchPaths",
    "PathsAt",
    "RepositoryFacts",
    "Verb",
]

R = TypeVar("R")

PAGE_COUNT_MAX: Final = 5_000
"""Most rows of a page."""

PATHS_MAX: Final = 100_000
"""Most paths of a message."""

Subject = Literal["repository", "reference", "branch"]
Role = Literal["read", "write", "admin"]
Effort = Literal["look", "write", "compute", "long"]
"""How a server runs it: a short read; a write that waits for the store; what computes; what may take minutes."""

Texts = dict[str, str]
Paths = Annotated[list[str], Meta(max_length=PATHS_MAX)]
Amount = Annotated[int, Meta(le=PAGE_COUNT_MAX)]
Milliseconds = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]


@dataclass(frozen=True)
class Verb(Generic[R]):
    """One method of the facade.

    Attributes:
        name: the method.
        on: what it is a method of; the message says which.
        takes: the struct of its message.
        gives: what the reply is decoded to; None: it has no body.
        needs: the least role of the access key.
        effort: how it is run.
        is_list: the reply is a page: so many rows as were asked for, or the last.
        summary: one sentence, for the description of the interface.
    """

    name: str
    on: Subject
    takes: type[msgspec.Struct]
    gives: Any
    needs: Role
    effort: Effort
    summary: str
    is_list: bool = False

    @property
    def reads(self) -> bool:
        """Whether it changes nothing, so that it may be asked for again."""
        return self.needs == "read" or self.name in _READS_OF_ADMINS


_READS_OF_ADMINS: Final = {"webhooks", "plan_reclaim", "deleted"}


class RepositoryFacts(msgspec.Struct, frozen=True):
    """What a repository is."""

    name: str
    id: str
    url: str
    namespace: str
    default_branch: str
    created_at_ms: int
    metadata: Texts
    is_read_only: bool


# ---- messages


class Nothing(msgspec.Struct, frozen=True):
    """No argument."""


class OfReference(msgspec.Struct, frozen=True):
    """Which reference."""

    ref: str


class OfBranch(msgspec.Struct, frozen=True):
    """Which branch."""

    branch: str


class NamePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of names."""

    prefix: str = ""
    after: str | None = None
    amount: Amount = PAGE_COUNT_MAX


class BranchPage(NamePage, frozen=True, kw_only=True):
    """A page of branches."""

    hidden: bool = False


class PathPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what is ordered by path."""

    prefix: str = ""
    after: str = ""
    delimiter: str = ""
    amount: Amount = PAGE_COUNT_MAX


class ListPage(PathPage, frozen=True, kw_only=True):
    """A page of objects."""

    ref: str


class StatusPage(PathPage, frozen=True, kw_only=True):
    """A page of what is uncommitted."""

    branch: str


class DiffPage(PathPage, frozen=True, kw_only=True):
    """A page of differences."""

    left: str
    right: str
    kind: str = "three_dot"


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of commits."""

    ref: str
    after: str | None = None
    amount: Amount = PAGE_COUNT_MAX
    since_ms: Milliseconds | None = None
    stop_at: str | None = None
    first_parent: bool = False
    paths: Paths = []
    prefixes: Paths = []


class PathAt(msgspec.Struct, frozen=True):
    """A path of a reference."""

    ref: str
    path: str


class PathsAt(msgspec.Struct, frozen=True):
    """Paths of a reference."""

    ref: str
    paths: Paths


class Signing(msgspec.Struct, frozen=True):
    """A path, and for how long its URL is good."""

    ref: str
    path: str
    expires_in_s: Annotated[int, Meta(ge=1, le=7 * 86_400)] = 3600


class TwoReferences(msgspec.Struct, frozen=True):
    """Two references."""

    left: str
    right: str


class BranchLife(msgspec.Struct, frozen=True):
    """A branch, and who is named in the log of its moves."""

    name: str
    committer: str = ""


class BranchStart(msgspec.Struct, frozen=True):
    """A new branch."""

    name: str
    source: str | None = None
    hidden: bool = False
    committer: str = ""


class TagStart(msgspec.Struct, frozen=True):
    """A new tag."""

    name: str
    ref: str | None = None
    owner: str = ""
    lifetime_ms: Milliseconds | None = None


class Name(msgspec.Struct, frozen=True):
    """A tag or pin."""

    name: str


class PinStart(msgspec.Struct, frozen=True):
    """A new pin."""

    name: str
    version: str | None = None
    lifetime_ms: Milliseconds | None = None


class AtVersion(msgspec.Struct, frozen=True):
    """A version, and who brings it back."""

    version: str
    committer: str | None = None


class ReflogOf(msgspec.Struct, frozen=True):
    """Whose moves, since when."""

    branch: str | None = None
    since_ms: Milliseconds | None = None


class Pattern(msgspec.Struct, frozen=True):
    """A pattern of branches."""

    pattern: str


class Protection(msgspec.Struct, frozen=True):
    """What is refused on the branches that a pattern matches."""

    pattern: str
    blocked: list[str]


class Retention(msgspec.Struct, frozen=True):
    """Rules of retention, in days."""

    default_days: int
    branch_days: dict[str, int] = {}


class Webhooks(msgspec.Struct, frozen=True):
    """All webhooks."""

    hooks: list[Webhook]


class ObjectPath(msgspec.Struct, frozen=True):
    """A path of the storage namespace."""

    path: str


class Collection(msgspec.Struct, frozen=True):
    """What a collection may take; an absent age is a day."""

    min_age_s: Annotated[float, Meta(ge=-(1 << 40), le=1 << 40)] | None = None
    dry_run: bool = False


class CollectionPlan(msgspec.Struct, frozen=True):
    """What a collection might take."""

    min_age_s: Annotated[float, Meta(ge=-(1 << 40), le=1 << 40)] | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are somewhere already."""

    branch: str
    path: str
    url: str
    checksum: str | None = None
    content_type: str
    metadata: Texts | None = None
    only_if_absent: bool = False


class BranchPaths(msgspec.Struct, frozen=True):
    """Paths of a branch."""

    branch: str
    paths: Paths


class BranchPrefix(msgspec.Struct, frozen=True):
    """A prefix of a branch; empty: all of it."""

    branch: str
    prefix: str


class Copy(msgspec.Struct, frozen=True):
    """What is copied, and where to."""

    branch: str
    source: str
    path: str
    ref: str | None = None


class CommitStart(msgspec.Struct, frozen=True, kw_only=True):
    """A new commit."""

    branch: str
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    paths: Paths | None = None
    prefixes: Paths | None = None
    allow_empty: bool = False
    created_at_ms: Milliseconds | None = None


class MergeStart(msgspec.Struct, frozen=True, kw_only=True):
    """A merge."""

    branch: str
    source: str
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    squash: bool = False
    prefix: str = ""
    allow_empty: bool = False


class PickStart(msgspec.Struct, frozen=True, kw_only=True):
    """One commit, to be undone or made again."""

    branch: str
    ref: str
    parent_number: int | None = None
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    allow_empty: bool = False


class RebaseStart(msgspec.Struct, frozen=True, kw_only=True):
    """Upon what a branch goes on."""

    branch: str
    onto: str
    committer: str | None = None
    strategy: str | None = None


class Reset(msgspec.Struct, frozen=True):
    """What of the uncommitted is given up: all, a path, or what is below a prefix."""

    branch: str
    path: str | None = None
    prefix: str | None = None


class HardReset(msgspec.Struct, frozen=True):
    """Where a branch goes."""

    branch: str
    ref: str
    force: bool = False


class ImportStart(msgspec.Struct, frozen=True, kw_only=True):
    """What is imported."""

    branch: str
    sources: Annotated[list[ImportSource], Meta(max_length=PATHS_MAX)]
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    replace: bool = False


class CompactStart(msgspec.Struct, frozen=True):
    """Which branch is compacted."""

    branch: str
    force: bool = True


class RepositoryStart(msgspec.Struct, frozen=True, kw_only=True):
    """A new repository."""

    name: str
    namespace: str | None = None
    default_branch: str = "main"
    metadata: Texts | None = None
    committer: str | None = None
    read_only: bool = False


class NewMetadata(msgspec.Struct, frozen=True):
    """Metadata that replaces what a repository had."""

    name: str
    metadata: Texts


class MetadataChange(msgspec.Struct, frozen=True):
    """Keys of a repository's metadata that are set, and keys that are removed."""

    name: str
    changed: Texts
    removed: list[str] = []


# ---- the table

_OF_REPOSITORIES: Final[tuple[Verb[Any], ...]] = (
    Verb("describe", "repository", Nothing, RepositoryFacts, "read", "look", "What a repository is."),
    # reading
    Verb("stat", "reference", PathAt, Entry, "read", "look", "What is known of an object."),
    Verb("stat_many", "reference", PathsAt, dict[str, Entry], "read", "compute", "What is known of many objects."),
    Verb("exists", "reference", PathAt, bool, "read", "look", "Whether an object is there."),
    Verb("list", "reference", ListPage, list[Listed], "read", "compute", "Objects, by path.", is_list=True),
    Verb("head", "reference", OfReference, CommitWithId, "read", "look", "The commit a reference leads to."),
    Verb("log", "reference", LogPage, list[CommitWithId], "read", "compute", "Commits, backwards.", is_list=True),
    Verb(
        "blame_many",
        "reference",
        PathsAt,
        dict[str, CommitWithId],
        "read",
        "compute",
        "The commits that made paths what they are.",
    ),
    Verb("signed_url", "reference", Signing, str, "read", "write", "A URL of the storage for an object."),
    Verb("diff", "repository", DiffPage, list[Difference], "read", "compute", "How two references differ.", True),
    Verb("status", "branch", StatusPage, list[Difference], "read", "compute", "What is uncommitted.", True),
    Verb("merge_base", "repository", TwoReferences, str | None, "read", "compute", "The best common ancestor."),
    Verb("reflog", "repository", ReflogOf, list[ReflogLine], "read", "compute", "Where branches have been."),
    # branches and tags
    Verb("branches", "repository", BranchPage, list[NamedCommit], "read", "compute", "Branches, by name.", True),
    Verb("create_branch", "repository", BranchStart, None, "write", "write", "Make a branch."),
    Verb("delete_branch", "repository", BranchLife, None, "write", "write", "Delete a branch."),
    Verb("undelete_branch", "repository", BranchLife, None, "write", "write", "Bring a deleted branch back."),
    Verb("tags", "repository", NamePage, list[NamedCommit], "read", "compute", "Tags, by name.", True),
    Verb("create_tag", "repository", TagStart, Tag, "write", "write", "Give a commit a name."),
    Verb("delete_tag", "repository", Name, None, "write", "write", "Remove a tag."),
    # settings
    Verb("protect", "repository", Protection, ProtectionRule, "admin", "write", "Protect branches."),
    Verb("unprotect", "repository", Pattern, None, "admin", "write", "Take a protection away."),
    Verb("protected", "repository", Nothing, tuple[ProtectionRule, ...], "read", "look", "Protected branches."),
    Verb("retention", "repository", Nothing, RetentionRules | None, "read", "look", "The rules of retention."),
    Verb("set_retention", "repository", Retention, RetentionRules, "admin", "write", "Replace those rules."),
    Verb("delete_retention", "repository", Nothing, None, "admin", "write", "Let nothing expire any more."),
    Verb("webhooks", "repository", Nothing, tuple[Webhook, ...], "admin", "look", "The webhooks."),
    Verb("set_webhooks", "repository", Webhooks, None, "admin", "write", "Replace the webhooks."),
    # versions
    Verb("versions", "repository", Nothing, list[Version], "read", "compute", "Commits of the default branch."),
    Verb("pin", "repository", PinStart, Pin, "write", "write", "Keep a version alive."),
    Verb("pins", "repository", Nothing, list[Pin], "read", "compute", "What keeps versions alive."),
    Verb("unpin", "repository", Name, None, "write", "write", "Remove a pin."),
    Verb("restore", "repository", AtVersion, Version, "write", "compute", "Make an older version the newest."),
    Verb("why", "repository", ObjectPath, Verdict, "read", "long", "Who needs an object of the storage."),
    Verb("plan_reclaim", "repository", CollectionPlan, ReclaimPlan, "admin", "long", "What could be deleted."),
    Verb("collect_garbage", "repository", Collection, ReclaimReport, "admin", "long", "Delete what nothing needs."),
    # writing
    Verb("link", "branch", Link, Entry, "write", "write", "Stage an object whose bytes are there already."),
    Verb("delete_many", "branch", BranchPaths, int, "write", "write", "Delete objects, all at once."),
    Verb("delete_prefix", "branch", BranchPrefix, bool, "write", "write", "Delete what is below a prefix."),
    Verb("copy", "branch", Copy, Entry, "write", "long", "Copy an object, its bytes included."),
    Verb("commit", "branch", CommitStart, CommitWithId, "write", "compute", "Commit what is staged."),
    Verb("merge", "branch", MergeStart, CommitWithId, "write", "compute", "Merge a reference."),
    Verb("revert", "branch", PickStart, CommitWithId, "write", "compute", "Undo a commit by another."),
    Verb("cherry_pick", "branch", PickStart, CommitWithId, "write", "compute", "Make a commit's changes again."),
    Verb("rebase", "branch", RebaseStart, CommitWithId, "write", "long", "Make own commits again elsewhere."),
    Verb("reset", "branch", Reset, CommitWithId, "write", "compute", "Give up what is uncommitted."),
    Verb("hard_reset", "branch", HardReset, CommitWithId, "write", "compute", "Let a branch go to a commit."),
    Verb("import_objects", "branch", ImportStart, Import, "write", "long", "Commit objects of another place."),
    Verb("compact", "branch", CompactStart, Compaction, "write", "long", "Make what is staged sorted files."),
)
VERBS: Final[dict[str, Verb[Any]]] = {verb.name: verb for verb in _OF_REPOSITORIES}
"""Of one repository: ``POST /repositories/{repository}/verbs/<name>``."""

_OF_HOMES: Final[tuple[Verb[Any], ...]] = (
    Verb("list", "repository", NamePage, list[RepositoryFacts], "read", "compute", "Repositories.", True),
    Verb("create", "repository", RepositoryStart, RepositoryFacts, "write", "write", "Make a repository."),
    Verb("set_metadata", "repository", NewMetadata, None, "admin", "write", "Replace a repository's metadata."),
    Verb("update_metadata", "repository", MetadataChange, None, "admin", "write", "Change a repository's metadata."),
    Verb("deleted", "repository", Nothing, tuple[DeletedRepository, ...], "admin", "look", "What was deleted."),
)
HOME_VERBS: Final[dict[str, Verb[Any]]] = {verb.name: verb for verb in _OF_HOMES}
"""Of all repositories: ``POST /verbs/<name>``."""
