"""The collection of a repository: raise the boundary, list, mark twice, subtract, delete.

Owns: the order of the steps, which makes a collection safe:

1. Raise the *boundary* to `CollectionOptions.grace` ago. From now on no older upload can be staged: staging and
   publishing expect the boundary that they have read.
2. List the objects whose names are older than the boundary.
3. Mark what is needed in one snapshot of the records (`lakebed.repo.references.mark`). Write an ``expired`` mark for
   each commit that loses its objects. From now on nothing new can refer to these commits.
4. Mark a second snapshot. It shows the commits that were referred to between the snapshot of step 3 and its marks:
   remove their marks. Commits that step 3 kept stay kept, because they have no mark.
5. Delete the listed objects that neither snapshot needs, with the shared sweeper. Then make the marks final.

A state that a branch or tag has given up within `CollectionOptions.grace` counts as referred to, because a reader may
still be reading it (`lakebed.repo.records.superseded`).

So an object is deleted only if nothing refers to it at step 4, and nothing can refer to it later: a new upload has a
younger name, an old upload is refused, an old commit is marked, and a copy copies the bytes. Until a mark is final, it
names the collection that made it. So of two concurrent collections, neither removes a mark that the other relies on.

Invariants:

- A collector may stop at any step, and any number may run at once.
- If anything is unreadable, nothing is deleted.
- Never deleted are imported objects and objects with a name that no repository gives. In a namespace that was lakeFS's,
  neither are objects from before the repository was created.
- The earlier of this process's clock and the store's counts: by a clock that is ahead, uploads would be refused, and
  commits expired, too early.

Does not know: how to subtract (`Subtraction`), or how to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, Protocol

import pyarrow as pa

from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.file_id import file_id_at, is_file_id, mint_file_id
from lakebed.objects.port import ObjectMeta
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Sweep, Sweeper, batches, report_of
from lakebed.repo.collect.addresses import ADDRESS_SCHEMA, LISTED_SCHEMA, addresses_of, addresses_of_ranges, drop_named
from lakebed.repo.model.layout import (
    DATA_FOLDER,
    DERIVED_FOLDER,
    METARANGE_FOLDER,
    RANGE_FOLDER,
    UPLOAD_FOLDER,
    made_ulid,
    metarange_path,
    name_ulid,
    range_path,
)
from lakebed.repo.model.model import MetarangeRef, RangeMeta
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.outside.namespace import is_shared_namespace, start_ulid
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.superseded import trim_superseded
from lakebed.repo.references.history import index_history
from lakebed.repo.references.mark import Marked, mark
from lakebed.repo.staging.cleanup import clean_orphans_once

_LISTED_COUNT: Final = 65_536
"""Most objects of a listing in one batch."""

_WRITE_COUNT_MAX: Final = 10_000
_TRIES_MAX: Final = 1_000


class Subtraction(Protocol):
    """Finds the listed objects that no range and no staged entry names: `subtract_here`, or Spark, on equal columns."""

    def __call__(
        self,
        context: RepositoryContext,
        listed: pa.Table,
        *,
        ranges: Sequence[tuple[MetarangeRef, RangeMeta]],
        staged: pa.ChunkedArray,
    ) -> pa.Table:
        """Return the rows of `listed` that are garbage.

        Args:
            listed: of `LISTED_SCHEMA`.
            ranges: every range whose objects are needed, once, with a metarange that has it.
            staged: ULIDs that staged entries name.
        """


def subtract_here(
    context: RepositoryContext,
    listed: pa.Table,
    *,
    ranges: Sequence[tuple[MetarangeRef, RangeMeta]],
    staged: pa.ChunkedArray,
) -> pa.Table:
    """`Subtraction` in this process. Cost: 1 GET a range; memory for the listing and the addresses of one range."""
    remaining = drop_named(listed, staged)
    for ref, meta in ranges:
        if not remaining.num_rows:
            break
        named_addresses = list(addresses_of_ranges(context.committed.open(ref), [meta]))
        remaining = drop_named(remaining, pa.Table.from_batches(named_addresses, schema=ADDRESS_SCHEMA).column("ulid"))
    return remaining


@freeing_space()
def collect_garbage(
    context: RepositoryContext,
    *,
    options: CollectionOptions | None = None,
    dry_run: bool = False,
    subtract: Subtraction = subtract_here,
    progress: Callable[[Any], None] | None = None,
) -> CollectionReport:
    """Delete the objects, ranges and metaranges of a repository that nothing needs, and staged rows without a branch.

    Afterwards index the history, if no background does that.

    Args:
        options: how old garbage must be.
        dry_run: only report what would be deleted; write nothing.
        subtract: compares the listing with the ranges.
        progress: called after each batch of deletes.

    Raises:
        InvalidRequest: the grace is below zero.
        Unavailable, OutcomeUnknown: the store failed; what was deleted was garbage.
    Cost: 1 LIST a thousand objects, 2 snapshots, 1 GET of the marker and 1 a range of kept commits, 1 DELETE a
    thousand. Source: lakeFS garbage collection, committed and uncommitted; docs/design/0018-collection.md.
    """
    collection = _Collection(context, options or CollectionOptions(), subtract=subtract)
    if dry_run:
        return report_of(collection.plan(), Sweep(), hidden_count=0, dry_run=True)
    plan = collection.prepare()
    if collection.is_unsure:
        return report_of(plan, Sweep(), hidden_count=0, dry_run=False)
    report = Sweeper(context.store, progress).sweep(plan)
    if len(report.warnings) == len(plan.warnings):
        collection.finalize_marks()
    while not clean_orphans_once(context).is_done:
        pass  # orphaned rows of the records are garbage, too, and perhaps no background looks for them
    while trim_superseded(context):
        pass
    index_history(context)
    return report


def plan_collection(context: RepositoryContext, *, options: CollectionOptions | None = None) -> CollectionPlan:
    """Plan what a collection would delete now; write nothing. Cost: as `collect_garbage`, without its writes."""
    return _Collection(context, options or CollectionOptions(), subtract=subtract_here).plan()


@dataclass(frozen=True, slots=True)
class _Listed:
    """The listed objects: those below the boundary."""

    objects: pa.Table
    """Objects below ``data/``, of `LISTED_SCHEMA`."""
    files: tuple[ObjectMeta, ...]
    """Ranges and metaranges, and what nothing names: puts to signed URLs, which linking copies, and derived objects."""
    boundary: str

    def is_gone(self, path: str, paths: Set[str]) -> bool:
        """Whether a range or metarange did not exist at the listing; `paths` are those of `files`."""
        return path not in paths and _is_older(name_ulid(path), self.boundary)


class _Collection:
    """One run of a collection."""

    def __init__(self, context: RepositoryContext, options: CollectionOptions, *, subtract: Subtraction) -> None:
        if options.grace.total_seconds() < 0:
            raise InvalidRequest(
                f"A grace of {options.grace} lies in the future: give zero or more.", kind="invalid_grace"
            )
        self._context = context
        self._grace_ms = round(options.grace.total_seconds() * 1000)
        self._subtract = subtract
        record = context.record
        self._mismatch: Conflict | None = None
        is_shared = True
        try:
            is_shared = is_shared_namespace(context.store, record, checked_as=context.name)
        except Conflict as problem:
            self._mismatch = problem
        # Older objects existed before the repository was created.
        self._since = start_ulid(record.uid) if is_shared else ""
        self._run_id = mint_file_id(environment=context.environment).encode()
        self._marked: list[str] = []
        self._gone: list[str] = []
        self.is_unsure = False

    def plan(self) -> CollectionPlan:
        """Plan as if the boundary were raised and nothing happened meanwhile."""
        now_ms = self._context.now_ms()
        listing = self._list(self._boundary(now_ms))
        with self._context.key_value.snapshot() as snapshot:
            return self._guard(lambda: self._plan_reclaim(listing, self._mark(snapshot, now_ms), snapshot))

    def prepare(self) -> CollectionPlan:
        """Do steps 1 to 4, and plan the deletes of step 5."""
        now_ms = self._context.earlier_ms()
        boundary = self._raise_boundary(self._boundary(now_ms))
        listing = self._list(boundary)
        return self._guard(lambda: self._judge(listing, now_ms=now_ms))

    def finalize_marks(self) -> None:
        """Make the marks final, and delete the records of unreachable commits. Their marks stay, to refuse old ids."""
        keys, key_value = self._context.keys, self._context.key_value
        for commit_id in self._marked:
            self._change_mark(commit_id, b"")
        for batch in batches(self._gone, _WRITE_COUNT_MAX):
            key_value.write(deletes=[keys.commit(commit_id) for commit_id in batch])

    def _guard(self, judge: Callable[[], CollectionPlan]) -> CollectionPlan:
        """Return an empty plan with a warning if something is unreadable, or the objects do not match the records."""
        try:
            if self._mismatch is not None:
                raise self._mismatch
            return judge()
        except (Conflict, Corruption, NotFound, UnsupportedFormat) as problem:
            self.is_unsure = True
            return CollectionPlan(self._context.name, (), (), warnings=(f"Nothing is deleted: {problem.message}",))

    def _boundary(self, now_ms: int) -> str:
        raw = self._context.key_value.get(self._context.keys.boundary)
        return max(file_id_at(now_ms - self._grace_ms), "" if raw is None else raw.decode())

    def _raise_boundary(self, boundary_wanted: str) -> str:
        """Raise the boundary to at least `boundary_wanted`, and return it. Concurrent collections never lower it."""
        key_value, key = self._context.key_value, self._context.keys.boundary
        for _ in range(_TRIES_MAX):
            raw = key_value.get(key)
            if raw is not None and raw.decode() >= boundary_wanted:
                return raw.decode()
            try:
                key_value.set_if(key, boundary_wanted.encode(), expected=raw)
            except Conflict:
                continue
            return boundary_wanted
        raise Conflict(
            f"Other collections of repository {self._context.name} raised its boundary {_TRIES_MAX} times meanwhile. "
            "Nothing was deleted: try again.",
            kind="boundary_contention",
        )

    def _list(self, boundary: str) -> _Listed:
        store = self._context.store
        files = [
            meta
            for folder in (RANGE_FOLDER, METARANGE_FOLDER, UPLOAD_FOLDER, DERIVED_FOLDER)
            for meta in store.list(folder)
            if self._since <= (made_ulid(meta.path) or boundary) < boundary
        ]
        return _Listed(pa.Table.from_batches(self._objects(boundary), schema=LISTED_SCHEMA), tuple(files), boundary)

    def _objects(self, boundary: str) -> Iterator[pa.RecordBatch]:
        named_metas = (
            (meta.path.removeprefix(f"{DATA_FOLDER}/"), meta) for meta in self._context.store.list(DATA_FOLDER)
        )
        older = takewhile(lambda pair: pair[0] < boundary, named_metas)  # the names sort by their times
        for batch in batches((pair for pair in older if is_file_id(pair[0]) and pair[0] >= self._since), _LISTED_COUNT):
            ulids, sizes = [ulid for ulid, _ in batch], [meta.size_bytes for _, meta in batch]
            yield pa.RecordBatch.from_arrays([pa.array(ulids), pa.array(sizes, pa.int64())], schema=LISTED_SCHEMA)

    def _judge(self, listing: _Listed, *, now_ms: int) -> CollectionPlan:
        context = self._context
        with context.key_value.snapshot() as snapshot:
            first = self._mark(snapshot, now_ms)
            prefix = context.keys.expired()
            final = {key[len(prefix) :].decode() for key, value in snapshot.scan(*prefix_range(prefix)) if not value}
        self._marked = sorted(first.expired - final)
        self._write_marks()
        with context.key_value.snapshot() as snapshot:
            second = self._mark(snapshot, now_ms)
            for commit_id in self._marked:
                if commit_id in second.active:
                    self._change_mark(commit_id, None)  # referred to before it was marked; its objects still exist
            second.commits = first.commits | second.commits
            second.active |= first.active
            second.remembered |= first.remembered
            self._gone = sorted(set(second.commits) - second.remembered)
            return self._plan_reclaim(listing, second, snapshot)

    def _mark(self, snapshot: KeyValueSnapshot, now_ms: int) -> Marked:
        return mark(self._context, snapshot, now_ms=now_ms, grace_ms=self._grace_ms)

    def _write_marks(self) -> None:
        """Write this collection's marks, also over those of a collection that died or that runs concurrently."""
        keys, key_value = self._context.keys, self._context.key_value
        for batch in batches(self._marked, _WRITE_COUNT_MAX):
            key_value.write([(keys.expired(commit_id), self._run_id) for commit_id in batch])

    def _change_mark(self, commit_id: str, value: bytes | None) -> None:
        """Change a commit's mark if it is of this collection. None removes it; an empty value makes it final."""
        with suppress(Conflict):
            self._context.key_value.set_if(self._context.keys.expired(commit_id), value, expected=self._run_id)

    def _plan_reclaim(self, listing: _Listed, marks: Marked, snapshot: KeyValueSnapshot) -> CollectionPlan:
        """Plan to delete what is listed and not needed."""
        context = self._context
        files: set[str] = set()
        for ref in marks.metaranges_to_keep():
            if ref.file is not None:
                files.add(metarange_path(ref.file.id))
                files.update(range_path(range_meta.file.id) for range_meta in context.committed.open(ref).ranges())
        needed_ranges: dict[str, tuple[MetarangeRef, RangeMeta]] = {}
        for ref in marks.metaranges_with_objects():
            needed_ranges.update(
                (range_meta.file.id, (ref, range_meta)) for range_meta in context.committed.open(ref).ranges()
            )
        paths = {meta.path for meta in listing.files}
        for ref in marks.superseded:
            if ref.file is None or listing.is_gone(metarange_path(ref.file.id), paths):
                continue
            files.add(metarange_path(ref.file.id))
            for range_meta in context.committed.open(ref).ranges():
                files.add(range_path(range_meta.file.id))
                if not listing.is_gone(range_path(range_meta.file.id), paths):
                    needed_ranges.setdefault(range_meta.file.id, (ref, range_meta))
        garbage = self._subtract(
            context, listing.objects, ranges=list(needed_ranges.values()), staged=_read_staged(context, marks, snapshot)
        )
        deletable = [
            Deletable(f"{DATA_FOLDER}/{ulid}", size_bytes, "no kept commit and nothing staged names it")
            for ulid, size_bytes in zip(
                *(garbage.column(name).to_pylist() for name in garbage.column_names), strict=True
            )
        ]
        deletable += [
            Deletable(meta.path, meta.size_bytes, _why_garbage(meta.path))
            for meta in listing.files
            if meta.path not in files
        ]
        kept_counts = {"named": listing.objects.num_rows - garbage.num_rows}
        plan = CollectionPlan(
            context.name, (), tuple(deletable), {reason: count for reason, count in kept_counts.items() if count}
        )
        lost_count = len(marks.expired & marks.remembered)
        if not lost_count:
            return plan
        sentence = (
            f"{lost_count:,} commits are older than the rules of retention: they stay in the log without their objects."
        )
        return replace(plan, warnings=(sentence,))


def _why_garbage(path: str) -> str:
    if path.startswith(f"{DERIVED_FOLDER}/"):
        return "it was made for Iceberg's clients, and is made again when they ask"
    return "no commit, no compacted staging area and no upload needs it"


def _is_older(ulid: str, boundary: str) -> bool:
    return is_file_id(ulid) and ulid < boundary


def _read_staged(context: RepositoryContext, marks: Marked, snapshot: KeyValueSnapshot) -> pa.ChunkedArray:
    """The ULIDs that entries under the branches' tokens name."""
    ulids: list[pa.Array] = [pa.array([], pa.string())]
    for token in marks.tokens:
        prefix = context.keys.token(token.id)
        for batch in snapshot.scan_arrow(*prefix_range(prefix)):
            ulids.append(addresses_of(batch.column(1), where=f"the staging token {token.id}").column(0))
    return pa.chunked_array(ulids, pa.string())
