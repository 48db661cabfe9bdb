"""The collection of a repository: list, look, subtract, expire, look again, sweep.

Owns: the order of its steps, which is what makes it safe:

1. The *boundary* is raised to `CollectionOptions.grace` ago. From now on no older upload can be staged: staging and
   publishing expect the boundary that they have read.
2. Objects whose names are older than the boundary are listed.
3. What is needed is marked in one snapshot of the records (`lakebed.repo.references.mark`), and commits that lose
   their objects get an ``expired`` mark. From now on nothing can be made that refers to them.
4. A second snapshot is marked. What was referred to between 3's snapshot and its marks is seen here: its mark goes.
   What 3 has kept is kept, for it has no mark.
5. What the listing has and neither needs is swept, by the shared sweeper; then the marks are made final.

What a branch or tag gave up within `CollectionOptions.grace` counts as referred to: a reader may be in the middle
of it (`lakebed.repo.records.superseded`).

So an object is deleted only if nothing refers to it at 4, and nothing can begin to: a new upload has a younger name, an
old one is refused, an old commit is marked, and a copy is a copy of bytes. A mark names the collection that made it
until it is final: of two that run at once, neither removes a mark that the other relies on.

Invariants: a collector may stop at any step, and any number may run; unreadable data protects everything;
imported objects are never deleted, nor is what has no name that a repository gives, or one of before it was made in a
namespace that was lakeFS's. A clock that is ahead refuses uploads and expires commits early by what it is ahead
of the store's: of the two clocks the earlier counts. Does not know: how to subtract (`Subtraction`), or to delete.
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
"""Objects of a listing that become one batch."""

_WRITE_COUNT_MAX: Final = 10_000
_TRIES_MAX: Final = 1_000


class Subtraction(Protocol):
    """Which listed objects no range and nothing staged names. One process does it here; Spark by the same columns."""

    def __call__(
        self,
        context: RepositoryContext,
        listed: pa.Table,
        *,
        ranges: Sequence[tuple[MetarangeRef, RangeMeta]],
        staged: pa.ChunkedArray,
    ) -> pa.Table:
        """The garbage.

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
    """`Subtraction` in this process. Cost: 1 GET a range; memory for what is listed and what one range names."""
    left = drop_named(listed, staged)
    for ref, meta in ranges:
        if not left.num_rows:
            break
        named = list(addresses_of_ranges(context.committed.open(ref), [meta]))
        left = drop_named(left, pa.Table.from_batches(named, schema=ADDRESS_SCHEMA).column("ulid"))
    return left


@freeing_space()
def collect_garbage(
    context: RepositoryContext,
    *,
    options: CollectionOptions | None = None,
    dry_run: bool = False,
    subtract: Subtraction = subtract_here,
    progress: Callable[[Any], None] | None = None,
) -> CollectionReport:
    """Delete the objects, ranges and metaranges of a repository that nothing needs, and staged rows of no branch.

    Afterwards the history is indexed, where no background does that.

    Args:
        options: how old garbage has to be.
        dry_run: only say what would go; nothing is written.
        subtract: who compares the listing with the ranges.
        progress: called after each batch of deletes.

    Raises:
        InvalidRequest: a minimum age below zero.
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
        pass  # rows of records are garbage too, where no background looks for them
    while trim_superseded(context):
        pass
    index_history(context)
    return report


def plan_collection(context: RepositoryContext, *, options: CollectionOptions | None = None) -> CollectionPlan:
    """What a collection would delete now; writes nothing. Cost: as `collect_garbage`, without what it writes."""
    return _Collection(context, options or CollectionOptions(), subtract=subtract_here).plan()


@dataclass(frozen=True, slots=True)
class _Listed:
    """Objects below the boundary."""

    objects: pa.Table
    """Of `LISTED_SCHEMA`."""
    files: tuple[ObjectMeta, ...]
    """Ranges and metaranges, and what nothing names: puts to signed URLs, which linking copies, and derived objects."""
    boundary: str

    def is_gone(self, path: str, paths: Set[str]) -> bool:
        """Whether a range or metarange was not there; `paths`: of `files`."""
        return path not in paths and _is_older(name_ulid(path), self.boundary)


class _Collection:
    """One run."""

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
        # What is older was there before.
        self._since = start_ulid(record.uid) if is_shared else ""
        self._run_id = mint_file_id(environment=context.environment).encode()
        self._marked: list[str] = []
        self._gone: list[str] = []
        self.is_unsure = False

    def plan(self) -> CollectionPlan:
        """As if the boundary were raised and nothing happened meanwhile."""
        now_ms = self._context.now_ms()
        listed = self._list(self._boundary(now_ms))
        with self._context.key_value.snapshot() as snapshot:
            return self._guard(lambda: self._plan_reclaim(listed, self._mark(snapshot, now_ms), snapshot))

    def prepare(self) -> CollectionPlan:
        """Steps 1 to 4."""
        now_ms = self._context.earlier_ms()
        boundary = self._raise_boundary(self._boundary(now_ms))
        listed = self._list(boundary)
        return self._guard(lambda: self._judge(listed, now_ms=now_ms))

    def finalize_marks(self) -> None:
        """Make the marks final, and delete the records of unreachable commits; the marks stay for old ids."""
        keys, key_value = self._context.keys, self._context.key_value
        for commit_id in self._marked:
            self._change_mark(commit_id, b"")
        for some in batches(self._gone, _WRITE_COUNT_MAX):
            key_value.write(deletes=[keys.commit(commit_id) for commit_id in some])

    def _guard(self, judge: Callable[[], CollectionPlan]) -> CollectionPlan:
        """Plan with nothing to delete when something is unreadable, or the objects are not those of the records."""
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

    def _raise_boundary(self, wanted: str) -> str:
        """Raise the boundary; concurrent collections never lower it."""
        key_value, key = self._context.key_value, self._context.keys.boundary
        for _ in range(_TRIES_MAX):
            raw = key_value.get(key)
            if raw is not None and raw.decode() >= wanted:
                return raw.decode()
            try:
                key_value.set_if(key, wanted.encode(), expected=raw)
            except Conflict:
                continue
            return wanted
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
        named = ((meta.path.removeprefix(f"{DATA_FOLDER}/"), meta) for meta in self._context.store.list(DATA_FOLDER))
        older = takewhile(lambda pair: pair[0] < boundary, named)  # names are in the order of their times
        for some in batches((pair for pair in older if is_file_id(pair[0]) and pair[0] >= self._since), _LISTED_COUNT):
            ulids, sizes = [ulid for ulid, _ in some], [meta.size_bytes for _, meta in some]
            yield pa.RecordBatch.from_arrays([pa.array(ulids), pa.array(sizes, pa.int64())], schema=LISTED_SCHEMA)

    def _judge(self, listed: _Listed, *, now_ms: int) -> CollectionPlan:
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
                    self._change_mark(commit_id, None)  # named before it was marked, and its objects are there still
            second.commits = first.commits | second.commits
            second.active |= first.active
            second.remembered |= first.remembered
            self._gone = sorted(set(second.commits) - second.remembered)
            return self._plan_reclaim(listed, second, snapshot)

    def _mark(self, snapshot: KeyValueSnapshot, now_ms: int) -> Marked:
        return mark(self._context, snapshot, now_ms=now_ms, grace_ms=self._grace_ms)

    def _write_marks(self) -> None:
        """Ours, also over those of a collection that died, or that runs too."""
        keys, key_value = self._context.keys, self._context.key_value
        for some in batches(self._marked, _WRITE_COUNT_MAX):
            key_value.write([(keys.expired(commit_id), self._run_id) for commit_id in some])

    def _change_mark(self, commit_id: str, value: bytes | None) -> None:
        """Remove a mark of this collection, or make it final; leave those of others."""
        with suppress(Conflict):
            self._context.key_value.set_if(self._context.keys.expired(commit_id), value, expected=self._run_id)

    def _plan_reclaim(self, listed: _Listed, marked: Marked, snapshot: KeyValueSnapshot) -> CollectionPlan:
        """Listed minus needed."""
        context = self._context
        files: set[str] = set()
        for ref in marked.metaranges_to_keep():
            if ref.file is not None:
                files.add(metarange_path(ref.file.id))
                files.update(range_path(range_meta.file.id) for range_meta in context.committed.open(ref).ranges())
        needed: dict[str, tuple[MetarangeRef, RangeMeta]] = {}
        for ref in marked.metaranges_with_objects():
            needed.update(
                (range_meta.file.id, (ref, range_meta)) for range_meta in context.committed.open(ref).ranges()
            )
        paths = {meta.path for meta in listed.files}
        for ref in marked.superseded:
            if ref.file is None or listed.is_gone(metarange_path(ref.file.id), paths):
                continue
            files.add(metarange_path(ref.file.id))
            for range_meta in context.committed.open(ref).ranges():
                files.add(range_path(range_meta.file.id))
                if not listed.is_gone(range_path(range_meta.file.id), paths):
                    needed.setdefault(range_meta.file.id, (ref, range_meta))
        garbage = self._subtract(
            context, listed.objects, ranges=list(needed.values()), staged=_read_staged(context, marked, snapshot)
        )
        doomed = [
            Deletable(f"{DATA_FOLDER}/{ulid}", size_bytes, "no kept commit and nothing staged names it")
            for ulid, size_bytes in zip(
                *(garbage.column(name).to_pylist() for name in garbage.column_names), strict=True
            )
        ]
        doomed += [
            Deletable(meta.path, meta.size_bytes, _why_garbage(meta.path))
            for meta in listed.files
            if meta.path not in files
        ]
        kept = {"named": listed.objects.num_rows - garbage.num_rows}
        plan = CollectionPlan(
            context.name, (), tuple(doomed), {reason: count for reason, count in kept.items() if count}
        )
        lost = len(marked.expired & marked.remembered)
        if not lost:
            return plan
        sentence = (
            f"{lost:,} commits are older than the rules of retention: they stay in the log without their objects."
        )
        return replace(plan, warnings=(sentence,))


def _why_garbage(path: str) -> str:
    if path.startswith(f"{DERIVED_FOLDER}/"):
        return "it was made for Iceberg's clients, and is made again when they ask"
    return "no commit, no compacted staging area and no upload needs it"


def _is_older(ulid: str, boundary: str) -> bool:
    return is_file_id(ulid) and ulid < boundary


def _read_staged(context: RepositoryContext, marked: Marked, snapshot: KeyValueSnapshot) -> pa.ChunkedArray:
    """What entries under the branches' tokens name."""
    ulids: list[pa.Array] = [pa.array([], pa.string())]
    for token in marked.tokens:
        prefix = context.keys.token(token.id)
        for batch in snapshot.scan_arrow(*prefix_range(prefix)):
            ulids.append(addresses_of(batch.column(1), where=f"the staging token {token.id}").column(0))
    return pa.chunked_array(ulids, pa.string())
