"""Restore a dump of lakeFS: its commits, branches and tags become those of a bare repository.

Owns: the conversion of lakeFS's records to ours, and the order of writes. A commit keeps lakeFS's id. Its entries are
written as our ranges, one commit at a time, as a change of its first parent's entries. Objects stay at their places,
and are named by URL like imported objects. Commits are recorded in batches. Then branches and tags are recorded in one
write, which expects that the repository is still bare, and that no collection has begun meanwhile.

Invariants: nothing is visible before that write. A restore that ended early is repeated from its beginning, and leaves
only orphans. If a file that the dump names is missing or damaged, the restore fails: a repository never has a part of a
history. docs/design/0072-moving-from-lakefs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import pyarrow as pa

from lakebed.errors import Conflict, Corruption, InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.lakefs.messages import (
    FULL,
    PARENTS_SWITCHED,
    RELATIVE,
    LakefsCommit,
    LakefsRange,
    LakefsReference,
    decode_lakefs_commit,
    decode_lakefs_entry,
    decode_lakefs_reference,
    split_value,
)
from lakebed.repo.lakefs.metaranges import LakefsNamespace, RefsDump, check_dump
from lakebed.repo.model.entry import address_ulid, encode_entry
from lakebed.repo.model.model import Branch, Commit, Entry, MetarangeRef, Tag
from lakebed.repo.model.names import check_branch_name, check_path, check_tag_name
from lakebed.repo.model.rows import Interval, join_intervals, rows_of
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.records import encode_record, new_token, write_unique
from lakebed.repo.records.reflog import reflog_line
from lakebed.repo.references.branches import is_bare, list_branches
from lakebed.repo.references.commits import is_commit_id
from lakebed.repo.references.tags import list_tags, refuse_deleted

_COMMITS_WRITTEN: Final = 1_000
"""Most commits of one write."""
_ROWS_OF_BATCH: Final = 8_192
_SCHEME: Final = "://"
_LOCAL: Final = "local://"
_DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"


class RestoreReport(msgspec.Struct, frozen=True):
    """What a restore has made."""

    commit_count: int
    branch_count: int
    tag_count: int
    object_count: int
    """At the head of the default branch."""


def check_bare(context: RepositoryContext) -> None:
    """Refuse a repository that has a branch or a tag.

    Raises:
        InvalidRequest: kind ``not_bare``.
    Cost: 1 snapshot.
    """
    with context.key_value.snapshot() as snapshot:
        if not is_bare(context, snapshot=snapshot):
            raise _not_bare(context)


def is_restored(context: RepositoryContext, source: LakefsNamespace, dump: RefsDump) -> bool:
    """Whether the repository is not bare, and has every branch and tag of a dump at the dump's commit.

    Raises as `restore_refs`. Cost: 1 snapshot, and 2 GET if the repository is not bare.
    """
    with context.key_value.snapshot() as snapshot:
        branches = {name: branch.commit_id for name, branch in list_branches(context, hidden=True, snapshot=snapshot)}
        tags = {name: tag.commit_id for name, tag in list_tags(context, snapshot=snapshot)}
    if not branches:
        return False
    for refs, id in ((branches, dump.branches_meta_range_id), (tags, dump.tags_meta_range_id)):
        references = map(decode_lakefs_reference, source.records(id))
        if any(refs.get(reference.name) != reference.commit_id for reference in references):
            return False
    return True


def restore_refs(
    context: RepositoryContext,
    source: LakefsNamespace,
    dump: RefsDump,
    *,
    committer: str = "",
    progress: Callable[[int], None] | None = None,
) -> RestoreReport:
    """Restore the history of a dump into a bare repository.

    Args:
        source: the storage namespace of the dump. Its objects stay there, and are named there.
        committer: the committer in the lines of the reference log.
        progress: called with the number of commits read so far.

    Raises:
        NotFound: kind ``range_not_found``: a file of lakeFS is missing.
        InvalidRequest: kind ``not_bare``, ``invalid_dump``, ``read_only_repository``, ``no_default_branch``: the dump
            has no branch of the name of the repository's default branch; ``invalid_path``, ``invalid_branch_name``,
            ``invalid_tag_name``, ``invalid_url``: a name or address that no repository can have;
            ``import_not_allowed``: the namespace may not be read.
        Conflict: kind ``collection_began``: run it again.
        Corruption: a file of lakeFS is damaged.
    Cost: 1 GET for each range and metarange of lakeFS and about 20 us for each of their rows that a commit changes; 1
    PUT a range that changes and 1 PUT a commit.
    """
    check_not_read_only(context)
    check_dump(dump)
    check_bare(context)
    return _Restore(context, source, dump, committer=committer, progress=progress).run()


def load_references(
    source: LakefsNamespace, dump: RefsDump, *, repository: str, default_branch: str
) -> tuple[list[LakefsReference], list[LakefsReference], dict[str, LakefsCommit]]:
    """Load branches, tags and commits (by id) of a dump, and check that a repository can have them.

    Raises as `restore_refs`. Cost: 1 GET for each range and metarange of the three.
    """
    check_dump(dump)
    branches = list(map(decode_lakefs_reference, source.records(dump.branches_meta_range_id)))
    tags = list(map(decode_lakefs_reference, source.records(dump.tags_meta_range_id)))
    commits = {commit.id: commit for commit in map(decode_lakefs_commit, source.records(dump.commits_meta_range_id))}
    for branch in branches:
        check_branch_name(branch.name)
    for tag in tags:
        check_tag_name(tag.name)
    for reference in (*branches, *tags):
        if reference.commit_id not in commits:
            raise Corruption(
                f"The dump names the commit {reference.commit_id} by {reference.name}, and does not have it: make "
                "the dump again.",
                path=source.url,
            )
    if default_branch not in (branch.name for branch in branches):
        names = ", ".join(branch.name for branch in branches[:5]) or "none"
        raise InvalidRequest(
            f"The default branch of repository {repository} is {default_branch}, and the branches of the dump are "
            f"{names}: create the repository with one of them as its default branch.",
            kind="no_default_branch",
            branch=default_branch,
        )
    return branches, tags, commits


class _Restore:
    def __init__(
        self,
        context: RepositoryContext,
        source: LakefsNamespace,
        dump: RefsDump,
        *,
        committer: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._context = context
        self._source = source
        self._dump = dump
        self._committer = committer
        self._progress = progress
        self._is_in_place = source.url == context.store.root_url
        self._boundary = context.key_value.get(context.keys.boundary)
        self._commits: dict[str, Commit] = {}
        self._metaranges: dict[str, MetarangeRef] = {"": EMPTY_METARANGE}

    def run(self) -> RestoreReport:
        record = self._context.record
        branches, tags, commits = load_references(
            self._source, self._dump, repository=self._context.name, default_branch=record.default_branch
        )
        pending: list[tuple[bytes, bytes]] = []
        for commit in _parents_first(commits):
            own_commit = self._commits[commit.id] = self._convert(commit)
            pending.append((self._context.keys.commit(commit.id), encode_record(own_commit)))
            if len(pending) == _COMMITS_WRITTEN:
                self._context.key_value.write(pending)
                pending = []
            if self._progress is not None:
                self._progress(len(self._commits))
        self._publish(branches, tags, pending)
        head = next(branch for branch in branches if branch.name == self._context.record.default_branch)
        objects = self._commits[head.commit_id].metarange.entry_count
        return RestoreReport(len(commits), len(branches), len(tags), objects)

    # ---- commits

    def _convert(self, commit: LakefsCommit) -> Commit:
        """Convert a commit whose parents are converted to our record."""
        if not is_commit_id(commit.id):
            raise Corruption(f"The dump has a commit {commit.id!r}, which is no id.", path=self._source.url)
        switched = commit.version >= PARENTS_SWITCHED or len(commit.parents) < 2
        parents = commit.parents if switched else (commit.parents[1], commit.parents[0], *commit.parents[2:])
        records = [self._commits[parent] for parent in parents]
        base = records[0] if records else None
        return Commit(
            parents=parents,
            metarange=self._metarange_of(commit.metarange_id, base),
            message=commit.message,
            committer=commit.committer,
            created_at_ms=commit.created_at_ms,
            generation=1 + max((record.generation for record in records), default=0),
            metadata=commit.metadata,
            stored_at_ms=max([self._context.now_ms(), *(record.stored_at_ms or 0 for record in records)]),
            lakefs_metarange_id=commit.metarange_id,
        )

    def _metarange_of(self, metarange_id: str, base: Commit | None) -> MetarangeRef:
        """Write a commit's entries, as a change of its first parent's. A metarange of lakeFS is written only once."""
        metarange = self._metaranges.get(metarange_id)
        if metarange is not None:
            return metarange
        old_ranges = () if base is None else self._source.ranges(base.lakefs_metarange_id)
        new = self._source.ranges(metarange_id)
        old_ids, new_ids = {range_.id for range_ in old_ranges}, {range_.id for range_ in new}
        removed_ranges = [range_ for range_ in old_ranges if range_.id not in new_ids]
        added_ranges = [range_ for range_ in new if range_.id not in old_ids]
        changes = Changes(clears=_spans(removed_ranges), rows=lambda: self._rows(added_ranges), by_value=True)
        application = apply_changes(
            self._context.committed, EMPTY_METARANGE if base is None else base.metarange, changes
        )
        self._metaranges[metarange_id] = application.ref
        return application.ref

    def _rows(self, ranges: list[LakefsRange]) -> Iterator[pa.RecordBatch]:
        for range_ in ranges:
            rows = self._source.rows(range_.id)
            for first in range(0, len(rows), _ROWS_OF_BATCH):
                batch = rows[first : first + _ROWS_OF_BATCH]
                paths = [self._path(key) for key, _ in batch]
                yield rows_of(paths, [encode_entry(self._entry(value)) for _, value in batch])

    def _path(self, key: bytes) -> bytes:
        try:
            return check_path(key.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"The path {key!r} of the dump is not UTF-8, which a repository's paths are: rename the object in "
                "lakeFS, and make the dump again.",
                kind="invalid_path",
            ) from error

    def _entry(self, value: bytes) -> Entry:
        entry = decode_lakefs_entry(split_value(value)[1])
        return Entry(
            address=self._address(entry.address, entry.address_type),
            size_bytes=entry.size_bytes,
            checksum=entry.etag.strip('"'),
            modified_ms=entry.modified_ms,
            content_type=entry.content_type or _DEFAULT_CONTENT_TYPE,
            metadata=entry.metadata,
        )

    def _address(self, address: str, kind: int) -> str:
        """The address of an object: a URL, or for an upload of this repository itself the path."""
        if kind == FULL or (kind != RELATIVE and _SCHEME in address):
            url = "file://" + address.removeprefix(_LOCAL) if address.startswith(_LOCAL) else address
            parse_url(url)
            return url
        if self._is_in_place and address_ulid(address) is not None:
            return address
        return f"{self._source.url}/{address}"

    # ---- the end

    def _publish(
        self, branches: list[LakefsReference], tags: list[LakefsReference], commits: list[tuple[bytes, bytes]]
    ) -> None:
        context, now_ms = self._context, self._context.now_ms()
        keys = context.keys
        puts = [
            reflog_line(
                context, branch.name, before=None, after=branch.commit_id, what="restore", committer=self._committer
            )
            for branch in branches
        ]
        expected: dict[bytes, bytes | None] = {keys.boundary: self._boundary, keys.deleted: None}
        for branch in branches:
            record = Branch(branch.commit_id, new_token(context.environment), created_at_ms=now_ms)
            puts.append((keys.branch(branch.name), encode_record(record)))
            expected[keys.branch(branch.name)] = None
        for tag in tags:
            puts.append((keys.tag(tag.name), encode_record(Tag(tag.commit_id, now_ms))))
            expected[keys.tag(tag.name)] = None
        try:
            write_unique(context.key_value, [*puts, *commits], expected=expected)
        except Conflict:
            refuse_deleted(context)
            check_bare(context)
            raise Conflict(
                f"A collection of repository {context.name} began during the restore and may have deleted what it had "
                "written: run the restore again.",
                kind="collection_began",
                repository=context.name,
            ) from None


def _parents_first(commits: dict[str, LakefsCommit]) -> Iterator[LakefsCommit]:
    """Iterate over all commits, each after its parents.

    Raises `Corruption` if a parent is missing, or a commit descends from itself.
    """
    children: dict[str, list[str]] = {}
    missing = {}
    for commit in commits.values():
        parents = set(commit.parents)
        for parent in parents:
            if parent not in commits:
                raise Corruption(
                    f"The commit {commit.id} of the dump names a parent {parent}, which the dump does not have: make "
                    "the dump again.",
                    path=commit.id,
                )
            children.setdefault(parent, []).append(commit.id)
        missing[commit.id] = len(parents)
    ready = [id for id, count in missing.items() if not count]
    done_count = 0
    while ready:
        id = ready.pop()
        done_count += 1
        yield commits[id]
        for child in children.get(id, ()):
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    if done_count != len(commits):
        raise Corruption("A commit of the dump descends from itself: make the dump again.", path="commits")


def _spans(ranges: list[LakefsRange]) -> tuple[Interval, ...]:
    return join_intervals((range_.first_key, range_.last_key + b"\0") for range_ in ranges)


def _not_bare(context: RepositoryContext) -> InvalidRequest:
    return InvalidRequest(
        f"Repository {context.name} has branches or tags, and refs can only be restored into a bare repository: create "
        "one.",
        kind="not_bare",
        repository=context.name,
    )
