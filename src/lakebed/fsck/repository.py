"""The check of one repository: branches, tags, commits, metaranges, ranges, objects, orphans.

Owns: when a repository is sound.

- Every branch, every tag and every line of the reference log that an undelete can use names a commit that exists and
  decodes, and so does every commit before it.
- The metarange of every commit, and the compacted one of every branch, exists, of the stated size, and so do its
ranges;
  they decode, and every object of ours that they name, and every staged one, exists with its size, unless retention
  expired the commit's objects.
- With ``deep`` the name of every range is the hash of its contents; every object of ours has the MD5 of its entry; and
  every imported object exists, with the size and the etag that it had; and what was made for Iceberg's clients has the
  digest in its name.

Objects that no version names are orphans, which a collection deletes. Without ``deep`` imported objects are only
counted. Invariants: reads only, and from the store, never from a cache of the process; what many versions share is read
once and reported once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import chain
from typing import Final, TypeVar

from lakebed.errors import Corruption, LakebedError, NotFound
from lakebed.fsck.model import Findings
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.columns import keys_of
from lakebed.lsm.model import FileMeta
from lakebed.objects.port import ObjectMeta
from lakebed.repo.committed.content_hash import range_hash
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import address_ulid, decode_entry
from lakebed.repo.model.layout import (
    DATA_FOLDER,
    DERIVED_FOLDER,
    METARANGE_FOLDER,
    NUMBER_OF_METADATA,
    RANGE_FOLDER,
    made_ulid,
    metarange_path,
    range_path,
)
from lakebed.repo.model.model import TOMBSTONE, Branch, Commit, Entry, MetarangeRef, RangeMeta, Tag
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.objects.intact import check_source, stream_object
from lakebed.repo.outside.foreign import is_foreign
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, read_records
from lakebed.repo.records.reflog import reflog
from lakebed.repo.references.commits import SHOWN_CHARACTERS
from lakebed.table.iceberg.derived import digest_of

R = TypeVar("R", Branch, Commit, Tag)

_CACHE_BYTES: Final = 16 << 20
_READS_AT_ONCE: Final = 8
_READ_CHUNK_BYTES: Final = 4 << 20
_MD5: Final = re.compile("[0-9a-f]{32}")
"""The form of a checksum of an upload through lakebed. Others come from a client or a store."""


def check_repository(home: RepositoryContext, findings: Findings) -> None:
    """Check a repository and report into `findings`.

    Cost: 1 snapshot of the records, 1 LIST a thousand objects, 1 GET a metarange; deep: every range and every object of
    ours once, and 1 HEAD an imported object.
    """
    # A cache of its own: the process's caches may differ from the store.
    cache = BlockCache(_CACHE_BYTES, runtime=home.environment.runtime)
    committed = Committed(home.store, options=home.options.ranges, cache=cache, environment=home.environment)
    try:
        with home.key_value.snapshot() as snapshot:
            _Check(home, findings, snapshot, committed).run()
    finally:
        committed.close()


class _Check:
    def __init__(
        self, home: RepositoryContext, findings: Findings, snapshot: KeyValueSnapshot, committed: Committed
    ) -> None:
        self._home = home
        self._committed = committed
        self._findings = findings
        self._snapshot = snapshot
        self._listed: dict[str, ObjectMeta] = {}
        self._commits: dict[str, Commit | None] = {}
        self._metaranges: dict[str, tuple[RangeMeta, ...]] = {}
        self._tokens: list[tuple[str, str]] = []
        self._read: set[str] = set()
        self._named: set[str] = set()
        self._import_count = 0

    def run(self) -> None:
        # Objects first: what is staged or committed after the listing is in the snapshot or in neither.
        for folder in (DATA_FOLDER, RANGE_FOLDER, METARANGE_FOLDER):
            self._listed.update((meta.path, meta) for meta in self._home.store.list(folder))
        heads = self._heads()
        expired = self._load_expired()
        for commit_id, ref_name in heads:
            self._check_history(commit_id, ref_name)
        for commit_id, commit in self._commits.items():
            if commit is not None:
                ref_name = f"the commit {commit_id[:SHOWN_CHARACTERS]}"
                self._check_metarange(commit.metarange, ref_name, objects_there=commit_id not in expired)
        self._findings.report.version_count += sum(commit is not None for commit in self._commits.values())
        self._check_staged()
        self._report_imports()
        self._report_orphans()
        self._check_derived()

    # ---- records

    def _heads(self) -> list[tuple[str, str]]:
        keys, heads = self._home.keys, []
        for name, branch in self._records(keys.branch(), Branch):
            heads.append((branch.commit_id, f"the branch {name}"))
            self._tokens += [(token.id, f"the branch {name}") for token in (branch.staging, *branch.sealed)]
            if branch.compacted is not None:
                self._check_metarange(branch.compacted, f"the staging area of {name}", objects_there=True)
        heads += [(tag.commit_id, f"the tag {name}") for name, tag in self._records(keys.tag(), Tag)]
        with self._findings.reading("reflog", needed_by="undelete"):
            since_ms = self._home.now_ms() - self._home.options.undelete_days * DAY_MS
            for line in reflog(self._home, since_ms=since_ms, snapshot=self._snapshot):
                heads += [
                    (commit_id, f"the reference log of {line.branch}")
                    for commit_id in (line.before, line.after)
                    if commit_id
                ]
        if not any(ref_name.startswith("the branch ") for _, ref_name in heads) and (heads or self._has_history()):
            self._findings.error("missing", "branches", "has no branch.")
        return heads

    def _has_history(self) -> bool:
        """Return whether there are commits other than those that a restore has written and not published yet.

        A bare repository has none. Called where nothing names a commit.
        """
        return any(
            commit.metarange.entry_count and not commit.lakefs_metarange_id
            for _, commit in self._records(self._home.keys.commit(), Commit)
        )

    def _records(self, prefix: bytes, kind: type[R]) -> Iterable[tuple[str, R]]:
        with self._findings.reading(prefix.decode(), needed_by="the repository"):
            yield from read_records(self._snapshot, prefix, kind)

    def _load_expired(self) -> set[str]:
        prefix = self._home.keys.expired()
        return {key[len(prefix) :].decode() for key, _ in self._snapshot.scan(*prefix_range(prefix))}

    def _check_history(self, commit_id: str, ref_name: str) -> None:
        queue = [(commit_id, ref_name)]
        while queue:
            next_id, needed_by = queue.pop()
            if next_id in self._commits:
                continue
            commit = self._commits[next_id] = self._load(next_id, needed_by)
            if commit is not None:
                queue += [(parent, f"the commit {next_id[:SHOWN_CHARACTERS]}") for parent in commit.parents]

    def _load(self, commit_id: str, needed_by: str) -> Commit | None:
        key = self._home.keys.commit(commit_id)
        shown_path = f"commits/{commit_id}"
        raw = self._snapshot.get(key)
        if raw is None:
            self._findings.missing(shown_path, needed_by)
            return None
        with self._findings.reading(shown_path, needed_by=needed_by):
            return decode_record(raw, Commit, key=key)
        return None

    # ---- committed data

    def _check_metarange(self, ref: MetarangeRef, ref_name: str, *, objects_there: bool) -> None:
        if ref.file is None:
            return
        path = metarange_path(ref.file.id)
        if ref.file.id not in self._metaranges:
            self._metaranges[ref.file.id] = ()
            if self._is_there(path, ref.file, ref_name):
                with self._findings.reading(path, needed_by=ref_name):
                    self._metaranges[ref.file.id] = self._committed.open(ref).ranges()
        for range_meta in self._metaranges[ref.file.id]:
            self._check_range(range_meta, ref, ref_name, objects_there=objects_there)

    def _is_there(self, path: str, file: FileMeta, ref_name: str) -> bool:
        """Return whether an object exists; its size is checked, and the object counted, once."""
        if path in self._named:
            return True
        self._named.add(path)
        meta = self._listed.get(path)
        self._findings.report.file_count += 1
        self._findings.report.size_bytes += file.size_bytes
        self._findings.step(len(self._listed))
        self._findings.check_object(path, meta, size_bytes=file.size_bytes, needed_by=ref_name)
        return meta is not None

    def _check_range(self, range_meta: RangeMeta, ref: MetarangeRef, ref_name: str, *, objects_there: bool) -> None:
        path = range_path(range_meta.file.id)
        if not self._is_there(path, range_meta.file, ref_name) or range_meta.file.id in self._read or not objects_there:
            return
        self._read.add(range_meta.file.id)
        with self._findings.reading(path, needed_by=ref_name):
            batches = list(self._committed.open(ref).rows_of(range_meta))
            if self._findings.report.deep and range_hash(batches) != range_meta.id:
                raise Corruption(f"{path} does not match the hash in its name.", path=path)
            rows = (zip(keys_of(batch.column(0)), keys_of(batch.column(1)), strict=True) for batch in batches)
            self._check_objects(((key, decode_entry(value, where=path)) for key, value in chain(*rows)), ref_name)

    def _check_objects(self, rows: Iterable[tuple[bytes, Entry]], ref_name: str) -> None:
        """Check the objects that entries name, each once; several at a time where they are read."""
        readable = [
            (key.decode(errors="backslashreplace"), entry)
            for key, entry in rows
            if self._is_new(entry) and self._is_whole(key.decode(errors="backslashreplace"), entry, ref_name)
        ]
        if self._findings.report.deep and readable:
            pool = self._home.environment.runtime.pool(_READS_AT_ONCE)
            try:
                for fault in pool.map(lambda row: self._fault_of(*row, ref_name), readable):
                    self._findings.step(len(self._listed))
                    if fault is not None:
                        self._findings.error(*fault)
            finally:
                pool.close()

    def _is_new(self, entry: Entry) -> bool:
        if entry.address in self._named or not (is_foreign(entry.address) or address_ulid(entry.address)):
            return False
        self._named.add(entry.address)
        return True

    def _is_whole(self, shown: str, entry: Entry, ref_name: str) -> bool:
        """Return whether an object of ours exists with its size; an imported one is only counted."""
        if is_foreign(entry.address):
            self._import_count += 1
            return True
        self._findings.report.file_count += 1
        self._findings.report.size_bytes += entry.size_bytes
        meta, size_bytes = self._listed.get(entry.address), entry.size_bytes
        return self._findings.check_object(
            entry.address, meta, size_bytes=size_bytes, needed_by=f"{shown} of {ref_name}"
        )

    def _fault_of(self, shown: str, entry: Entry, ref_name: str) -> tuple[str, str, str] | None:
        """Return what is wrong with an object's bytes: kind, path and sentence of a finding."""
        home = self._home
        try:
            if is_foreign(entry.address):
                store, path = home.foreign.locate(entry.address)
                check_source(entry, store.head(path))
                return None
            digest = hashlib.md5(usedforsecurity=False)
            for chunk in stream_object(home.store, entry.address, entry, chunk_bytes=_READ_CHUNK_BYTES):
                digest.update(chunk)
        except NotFound:
            kind = "import_gone" if is_foreign(entry.address) else "missing"
            return kind, entry.address, f"is missing, but {shown} of {ref_name} needs it."
        except LakebedError as problem:
            if problem.kind == "unavailable" and not is_foreign(entry.address):
                raise
            return problem.kind, entry.address, f"{problem.message.rstrip('.')} (it is {shown} of {ref_name})."
        # The etag of an encrypting bucket has the form of an MD5 without being one.
        etag = (self._listed[entry.address].etag or "").strip('"')
        if _MD5.fullmatch(entry.checksum) and entry.checksum not in (digest.hexdigest(), etag):
            sentence = f"has the MD5 {digest.hexdigest()}; {shown} of {ref_name} says {entry.checksum}."
            return "wrong_checksum", entry.address, sentence
        return None

    # ---- the rest

    def _check_staged(self) -> None:
        """Check the entries of a branch's tokens; entries of dropped tokens wait for the cleanup."""
        for token, ref_name in self._tokens:
            prefix = self._home.keys.token(token)
            entries = []
            for key, value in self._snapshot.scan(*prefix_range(prefix)):
                if value != TOMBSTONE:
                    shown_path = f"staging/{token}"
                    with self._findings.reading(shown_path, needed_by=ref_name):
                        entries.append((key[len(prefix) :], decode_entry(value, where=shown_path)))
            self._check_objects(entries, ref_name)

    def _report_imports(self) -> None:
        if self._import_count and not self._findings.report.deep:
            self._findings.add(
                "info",
                "imports_not_checked",
                "",
                f"has imported objects ({self._import_count:,}), which only --deep checks.",
                object_count=self._import_count,
            )

    def _report_orphans(self) -> None:
        """Report what crashes, resets and dropped branches left, and objects of commits that retention expired."""
        for path, meta in self._listed.items():
            if path not in self._named:
                self._findings.orphan(meta, "is named by no kept version and no staged entry.")

    def _check_derived(self) -> None:
        """Check what is kept for Iceberg's clients: with ``deep`` its bytes have the digest in its name."""
        if not self._findings.report.deep:
            return
        store = self._home.store
        for meta in store.list(DERIVED_FOLDER):
            if made_ulid(meta.path) is None:
                continue
            with self._findings.reading(meta.path, needed_by="Iceberg's clients"):
                try:
                    body = bytes(store.get(meta.path))
                except NotFound:  # collected meanwhile
                    continue
                name = meta.path.removeprefix(f"{DERIVED_FOLDER}/").removeprefix(NUMBER_OF_METADATA)
                if not name.startswith(f"{digest_of(body)}-"):
                    self._findings.error(
                        "wrong_checksum",
                        meta.path,
                        "has other bytes than it was written with: delete it, it is made again.",
                    )
