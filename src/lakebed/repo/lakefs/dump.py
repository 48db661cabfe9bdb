"""Dump a repository for lakeFS: ranges, metaranges and the three lists of references that lakeFS's server restores.

Owns: the conversion of our records to lakeFS's, and which commits keep their ids. Each of our ranges becomes one range
of lakeFS. A range, metarange or object is written once, however many commits have it.

Ids: lakeFS computes a commit's id from its text, its parents and its metarange's id. So a commit can keep its id only
if the dump has the same metarange: if the commit came from lakeFS, in the namespace that it came from. All other
commits get a new id from lakeFS; `DumpReport` maps them.

Invariants: everything that a file names is written before the file. The manifest is written last, so a dump that ended
early does not count. A dump pins nothing: what it names in the repository's own namespace is kept while a branch or tag
of the repository needs it. docs/design/0072-moving-from-lakefs.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from lakebed.errors import NotFound
from lakebed.lsm.columns import keys_of
from lakebed.objects.port import STREAM_CHUNK_BYTES, ObjectStore
from lakebed.repo.lakefs.messages import (
    FULL,
    PARENTS_SWITCHED,
    RELATIVE,
    LakefsCommit,
    LakefsEntry,
    LakefsRange,
    LakefsReference,
    encode_lakefs_commit,
    encode_lakefs_entry,
    encode_lakefs_range,
    encode_lakefs_reference,
    lakefs_commit_id,
)
from lakebed.repo.lakefs.metaranges import MANIFEST_PATH, RefsDump, hash_properties, hash_rows, lakefs_range_path
from lakebed.repo.lakefs.sstable_writer import encode_sstable
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.layout import LAKEFS_FOLDER
from lakebed.repo.model.model import Commit, Entry, MetarangeRef, RangeMeta
from lakebed.repo.objects.data import stream
from lakebed.repo.outside.foreign import is_foreign
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import list_branches
from lakebed.repo.references.commits import Walk
from lakebed.repo.references.tags import list_tags

_FILE: Final = "file://"
_LOCAL: Final = "local://"
_SCHEMAS: Final = {"commit": "CommitData", "branch": "BranchData", "tag": "TagData"}
_COPIES_AT_ONCE: Final = 8


class DumpReport(msgspec.Struct, frozen=True):
    """What a dump has written."""

    refs: RefsDump
    commit_count: int
    branch_count: int
    tag_count: int
    copied_count: int
    """How many objects were copied."""
    commit_ids: dict[str, str]
    """The ids of commits that have another id in lakeFS: lakeFS's by ours."""


def dump_refs(
    context: RepositoryContext, target: ObjectStore | None = None, *, progress: Callable[[int], None] | None = None
) -> DumpReport:
    """Write a dump for `lakectl refs-restore`: every commit of a branch or tag, with its ancestors.

    Staged changes are not included.

    Args:
        target: a storage namespace of lakeFS. Objects that are below it are named at their places. The repository's
            other objects are copied into it. Other imported objects are named by URL. None: the repository's own
            namespace; nothing is copied.
        progress: called with the number of commits written so far.

    Raises:
        NotFound: kind ``object_gone``: an object that must be copied is missing.
        Corruption: a record or range is damaged.
        Unavailable, OutcomeUnknown: the store failed; dump again.
    Cost: 1 GET and 1 PUT a range, 1 PUT a state, 1 GET and 1 PUT an object that is copied; about 30 us an entry.
    """
    return _Dump(context, target or context.store, progress=progress).run()


class _Dump:
    def __init__(
        self, context: RepositoryContext, target: ObjectStore, *, progress: Callable[[int], None] | None
    ) -> None:
        self._context = context
        self._target = target
        self._progress = progress
        self._is_in_place = target.root_url == context.store.root_url
        self._ranges: dict[str, LakefsRange] = {}
        self._metaranges: dict[str, str] = {}
        self._copied: set[str] = set()
        self._known = {
            meta.path.rpartition("/")[2] for meta in target.list(LAKEFS_FOLDER) if meta.path != MANIFEST_PATH
        }
        self._commits: dict[str, LakefsCommit] = {}
        """lakeFS's records of the written commits, by our ids."""

    def run(self) -> DumpReport:
        context = self._context
        with context.key_value.snapshot() as snapshot:
            branch_list = list_branches(context, hidden=True, snapshot=snapshot)
            branches = {name: branch.commit_id for name, branch in branch_list}
            tags = {name: tag.commit_id for name, tag in list_tags(context, snapshot=snapshot)}
            heads = {*branches.values(), *tags.values()}
            commits = list(Walk(context, heads, snapshot=snapshot)) if heads else []
            expired = {id for id, _ in commits if snapshot.get(context.keys.expired(id)) is not None}
        for id, commit in reversed(commits):  # parents first
            self._commits[id] = self._convert(id, commit, is_whole=id not in expired)
            if self._progress is not None:
                self._progress(len(self._commits))
        refs = RefsDump(
            commits_meta_range_id=self._write_records(
                "commit", {commit.id: encode_lakefs_commit(commit) for commit in self._commits.values()}
            ),
            tags_meta_range_id=self._write_records("tag", self._references(tags)),
            branches_meta_range_id=self._write_records("branch", self._references(branches)),
        )
        self._target.put(MANIFEST_PATH, msgspec.json.format(msgspec.json.encode(refs), indent=2))
        changed_ids = {id: commit.id for id, commit in self._commits.items() if id != commit.id}
        return DumpReport(refs, len(commits), len(branches), len(tags), len(self._copied), changed_ids)

    def _references(self, named: Mapping[str, str]) -> dict[str, bytes]:
        return {
            name: encode_lakefs_reference(LakefsReference(name, self._commits[commit_id].id))
            for name, commit_id in named.items()
        }

    # ---- commits

    def _convert(self, id: str, commit: Commit, *, is_whole: bool) -> LakefsCommit:
        """Convert a commit whose parents are written to lakeFS's record, with its id in lakeFS."""
        parents = tuple(self._commits[parent].id for parent in commit.parents)
        generation = 1 + max((self._commits[parent].generation for parent in commit.parents), default=0)
        lakefs_commit = LakefsCommit(
            id="",
            committer=commit.committer,
            message=commit.message,
            created_at_ms=commit.created_at_ms,
            metarange_id=commit.lakefs_metarange_id,
            metadata=commit.metadata,
            parents=parents,
            version=PARENTS_SWITCHED,
            generation=generation,
        )
        is_there = commit.lakefs_metarange_id in self._known or not (
            commit.lakefs_metarange_id or commit.metarange.entry_count
        )
        if is_there:
            swapped = msgspec.structs.replace(lakefs_commit, parents=(*parents[1::-1], *parents[2:]), version=0)
            for candidate in (lakefs_commit, swapped):
                if lakefs_commit_id(candidate) == id:
                    return msgspec.structs.replace(candidate, id=id)
        metarange_id = self._write_metarange(commit.metarange, is_whole=is_whole)
        lakefs_commit = msgspec.structs.replace(lakefs_commit, metarange_id=metarange_id)
        return msgspec.structs.replace(lakefs_commit, id=lakefs_commit_id(lakefs_commit))

    def _write_metarange(self, ref: MetarangeRef, *, is_whole: bool) -> str:
        """Write lakeFS's metarange with the same entries, and return its id; empty: there are no entries."""
        if ref.file is None:
            return ""
        id = self._metaranges.get(ref.id)
        if id is None:
            metarange = self._context.committed.open(ref)
            ranges = [self._write_range(ref, meta, is_whole=is_whole) for meta in metarange.ranges()]
            id = self._metaranges[ref.id] = self._write_list(ranges, {})
        return id

    def _write_range(self, ref: MetarangeRef, meta: RangeMeta, *, is_whole: bool) -> LakefsRange:
        range_id = self._ranges.get(meta.id)
        if range_id is not None:
            return range_id
        rows: list[tuple[bytes, bytes]] = []
        uploads: list[Entry] = []
        for batch in self._context.committed.open(ref).rows_of(meta):
            for path, value in zip(keys_of(batch.column(0)), keys_of(batch.column(1)), strict=True):
                entry = decode_entry(value, where=meta.file.id)
                rows.append((path, encode_lakefs_entry(lakefs_entry(entry, namespace=self._target.root_url))))
                if not (self._is_in_place or is_foreign(entry.address) or entry.address in self._copied):
                    uploads.append(entry)
        self._copy(uploads, is_whole=is_whole)
        new_id = self._ranges[meta.id] = self._write(rows, {"type": "ranges"})
        return new_id

    def _copy(self, entries: Iterable[Entry], *, is_whole: bool) -> None:
        """Copy the objects of uploads to the target, each to the same path."""
        unique = list({entry.address: entry for entry in entries}.values())
        if not unique:
            return
        pool = self._context.environment.runtime.pool(_COPIES_AT_ONCE)
        try:
            for address in pool.map(lambda entry: self._copy_object(entry, is_whole=is_whole), unique):
                self._copied.add(address)
        finally:
            pool.close()

    def _copy_object(self, entry: Entry, *, is_whole: bool) -> str:
        with suppress(NotFound):
            if self._target.head(entry.address).size_bytes == entry.size_bytes:
                return entry.address  # an earlier dump has copied it; the bytes at an address never change
        try:
            self._target.put_stream(entry.address, stream(self._context, entry, chunk_bytes=STREAM_CHUNK_BYTES))
        except NotFound:
            if is_whole:
                raise
            # The objects of an expired commit may be gone, here as in lakeFS.
        return entry.address

    # ---- files

    def _write_records(self, kind: str, values: Mapping[str, bytes]) -> str:
        """Write records by name as the only range of a metarange, and return the metarange's id."""
        metadata = {"entity": kind, "schema_name": f"io.treeverse.lakefs.graveler.{_SCHEMAS[kind]}"}
        rows = sorted((name.encode(), value) for name, value in values.items())
        ranges = [self._write(rows, {**metadata, "type": "ranges"})] if rows else []
        return self._write_list(ranges, metadata)

    def _write_list(self, ranges: Iterable[LakefsRange], metadata: Mapping[str, str]) -> str:
        rows = [(range_.last_key, encode_lakefs_range(range_)) for range_ in ranges]
        return self._write(rows, {**metadata, "type": "metaranges"}).id

    def _write(self, rows: list[tuple[bytes, bytes]], properties: Mapping[str, str]) -> LakefsRange:
        """Write a range's file, unless the target has it."""
        digest = hashlib.sha256()
        hash_rows(digest, rows)
        hash_properties(digest, properties)
        id = digest.hexdigest()
        if id not in self._known:
            self._target.put(lakefs_range_path(id), encode_range_file(rows, properties))
            self._known.add(id)
        first, last = (rows[0][0], rows[-1][0]) if rows else (b"", b"")
        return LakefsRange(id, first, last, _size_of(rows), len(rows))


def lakefs_entry(entry: Entry, *, namespace: str) -> LakefsEntry:
    """Convert an entry to lakeFS's form.

    Args:
        namespace: URL of the storage namespace to which addresses are relative.
    """
    address, kind = entry.address, RELATIVE
    if is_foreign(address):
        if address.startswith(f"{namespace}/"):
            address = address.removeprefix(f"{namespace}/")
        else:
            kind = FULL
            if address.startswith(_FILE):
                address = _LOCAL + address.removeprefix(_FILE)
    return LakefsEntry(
        address=address,
        modified_ms=entry.modified_ms,
        size_bytes=entry.size_bytes,
        etag=entry.checksum,
        metadata=entry.metadata,
        address_type=kind,
        content_type=entry.content_type,
    )


def encode_range_file(rows: Sequence[tuple[bytes, bytes]], properties: Mapping[str, str]) -> bytes:
    """Encode the file of a range or metarange of lakeFS. `COMPUTED_PROPERTIES` are added to the properties."""
    first, last = (rows[0][0], rows[-1][0]) if rows else (b"", b"")
    computed = {
        "min_key": first.decode(errors="surrogateescape"),
        "max_key": last.decode(errors="surrogateescape"),
        "count": str(len(rows)),
        "estimated_size_bytes": str(_size_of(rows)),
    }
    return encode_sstable(rows, properties={**properties, **computed})


def _size_of(rows: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for key, value in rows)
