"""The check of one database: manifests, checkpoints, files, log, ancestors, orphans.

Owns: when a database is sound. For the newest manifest and every manifest that a live checkpoint pins:

- it exists and decodes; its files exist, of the stated size, in their own folder or in an ancestor's;
- the files of a run do not overlap and are in the order of their keys; no sequence is above `last_sequence`;
- its part of the log exists without a gap and decodes, in the order of sequences;
- with ``deep`` every file is read: checksums, counts, keys and sequences as in the manifest, rows in order.

And for the database: every ancestor that shares files with it still has its pin, clones that pin it exist, unfinished
destructions and clones, files that no version names. Invariants: reads only; a file that many versions share is read
once and reported once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lakebed.errors import NotFound
from lakebed.fsck.model import Findings, Severity
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import (
    MANIFEST_FOLDER,
    SST_FOLDER,
    manifest_path,
    parse_manifest,
    parse_sst,
    parse_wal,
    sst_path,
    wal_path,
)
from lakebed.kv.locations import Locations
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest
from lakebed.kv.reclaim import Found, is_taken_apart
from lakebed.kv.wal import WalLog
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.model import FileMeta
from lakebed.lsm.sort import sort_rows
from lakebed.objects.port import ObjectMeta

_CACHE_BYTES: Final = 8 << 20
"""Blocks are read once, so only tails are worth keeping."""


def check_database(place: DatabaseLocation, findings: Findings) -> None:
    """Check a database and report into `findings`.

    Cost: 1 LIST a thousand objects, 1 GET a pinned manifest and log record; deep: every file once.
    """
    _Check(place, findings).run()


class _Check:
    def __init__(self, place: DatabaseLocation, findings: Findings) -> None:
        self._place = place
        self._findings = findings
        self._now_ms = place.environment.clock.now_ms()
        self._log = ManifestLog(place)
        self._wal = WalLog(place)
        self._listed = {meta.path: meta for meta in place.store.list("")}
        self._elsewhere: dict[str, dict[str, ObjectMeta]] = {}
        self._named: set[str] = set()
        self._checked: set[str] = set()
        self._checked_wal: set[int] = set()

    def run(self) -> None:
        ids = [id for id in map(parse_manifest, self._listed) if id is not None]
        if not ids:
            self._findings.error(
                "missing", MANIFEST_FOLDER, "has no manifest: restore it, or delete the folder if it is no database."
            )
            return
        newest = self._load(max(ids), "the database")
        objects = Found(tuple(self._listed.values()), (), ())
        if newest is None or not is_taken_apart(objects, newest, now_ms=self._now_ms):
            self._findings.report.database_count += 1  # a tombstone does not count as a database
        if newest is None:
            return
        if newest.destroyed_at_ms is not None:
            self._check_destroyed(newest)
            return
        if not newest.initialized:
            self._findings.add(
                "warning", "unfinished_clone", manifest_path(newest.manifest_id), "is of an unfinished clone."
            )
        versions = {newest.manifest_id: (newest, "the newest version")}
        for checkpoint in newest.checkpoints:
            self._add_pinned(checkpoint, versions)
        for manifest, version_name in versions.values():
            self._check_version(manifest, version_name, is_newest=manifest is newest)
        self._findings.report.version_count += len(versions)
        self._check_ancestors(newest)
        self._check_clones(newest)
        self._report_orphans(newest)

    # Versions

    def _load(self, manifest_id: int, needed_by: str) -> Manifest | None:
        with self._findings.reading(manifest_path(manifest_id), needed_by=needed_by):
            return self._log.load(manifest_id)
        return None

    def _add_pinned(self, checkpoint: Checkpoint, versions: dict[int, tuple[Manifest, str]]) -> None:
        version_name = f"the checkpoint {checkpoint.name or checkpoint.id} ({checkpoint.owner})"
        if not checkpoint.is_live(self._now_ms):
            path = manifest_path(checkpoint.manifest_id)
            self._findings.add("info", "expired_checkpoint", path, f"is held by {version_name}, which has expired.")
        elif checkpoint.manifest_id not in versions:
            manifest = self._load(checkpoint.manifest_id, version_name)
            if manifest is not None:
                versions[checkpoint.manifest_id] = (manifest, version_name)

    def _check_version(self, manifest: Manifest, version_name: str, *, is_newest: bool) -> None:
        path = manifest_path(manifest.manifest_id)
        locations = Locations(self._place, manifest)
        for file in manifest.file_set.files():
            self._check_file(file, manifest, locations, version_name)
        for run in manifest.runs:
            for left, right in zip(run.files, run.files[1:], strict=False):
                if left.last_key >= right.first_key:
                    self._findings.error(
                        "overlap", path, f"names the files {left.id} and {right.id} in one run, and their keys overlap."
                    )
        self._check_log(manifest, version_name, through=None if is_newest else manifest.wal_id_last_seen)

    def _check_log(self, manifest: Manifest, version_name: str, *, through: int | None) -> None:
        """Check the records that a version needs: without a gap, readable, with ascending sequences."""
        ids = [entry.id for entry in self._wal.entries(manifest.replay_after_wal_id, through=through)]
        last = max([*ids, manifest.wal_id_last_seen, manifest.replay_after_wal_id])
        for missing in sorted(set(range(manifest.replay_after_wal_id + 1, last + 1)) - set(ids)):
            self._findings.missing(wal_path(missing), version_name)
        sequence = manifest.last_sequence
        for wal_id in ids:
            if wal_id in self._checked_wal:
                continue
            self._checked_wal.add(wal_id)
            with self._findings.reading(wal_path(wal_id), needed_by=version_name):
                rows = self._wal.read(wal_id).rows
                if rows is None or not rows.num_rows:
                    continue
                first = rows.column("sequence")[0].as_py()
                if first <= sequence and manifest.replay_after_wal_id and self._follows(manifest):
                    self._findings.error(
                        "wrong_order",
                        wal_path(wal_id),
                        f"begins at sequence {first}, but sequence {sequence} precedes it.",
                    )
                sequence = max(sequence, rows.column("sequence")[-1].as_py())

    @staticmethod
    def _follows(manifest: Manifest) -> bool:
        """Return whether the log continues at the files' end: a restore keeps a higher sequence than its files."""
        return manifest.last_sequence == max((file.max_sequence for file in manifest.file_set.files()), default=0)

    # Files

    def _check_file(self, file: FileMeta, manifest: Manifest, locations: Locations, version_name: str) -> None:
        if file.id in self._checked:
            return
        self._checked.add(file.id)
        self._named.add(file.id)
        owner = locations.owner(file.id)
        is_own = owner == self._place.url
        shown_path = sst_path(file.id) if is_own else f"{owner}/{sst_path(file.id)}"
        meta = (self._listed if is_own else self._files_of(owner)).get(sst_path(file.id))
        report = self._findings.report
        report.file_count += 1
        report.size_bytes += file.size_bytes
        if file.max_sequence > manifest.last_sequence:
            self._findings.error(
                "wrong_sequence",
                shown_path,
                f"holds sequence {file.max_sequence}, but {version_name} ends at {manifest.last_sequence}.",
            )
        if (
            self._findings.check_object(shown_path, meta, size_bytes=file.size_bytes, needed_by=version_name)
            and report.deep
        ):
            with self._findings.reading(shown_path, needed_by=version_name):
                self._read_whole(file, locations, shown_path)
        self._findings.step(len(self._named))

    def _files_of(self, url: str) -> dict[str, ObjectMeta]:
        """Return an ancestor's files by path. Cost: 1 LIST a thousand, once."""
        if url not in self._elsewhere:
            store = self._place.open_url(url)
            self._elsewhere[url] = {meta.path: meta for meta in store.list(SST_FOLDER)}
        return self._elsewhere[url]

    def _read_whole(self, file: FileMeta, locations: Locations, shown: str) -> None:
        store, path = locations.locate(file.id)
        cache = BlockCache(_CACHE_BYTES, runtime=self._place.environment.runtime)
        reader = FileReader(store, path, meta=file, cache=cache)
        rows, first, last = 0, None, None
        smallest, largest = 1 << 64, 0
        for block in reader.batches(None, None):
            batch = block.batch
            rows += batch.num_rows
            order = sort_rows(batch)
            if order is not None and not np.array_equal(order, np.arange(batch.num_rows)):
                self._findings.error("wrong_order", shown, "has rows that are not in the order of their keys.")
            head, tail = batch.column("key")[0].as_py(), batch.column("key")[-1].as_py()
            if last is not None and head < last:
                self._findings.error("wrong_order", shown, "has blocks that are not in the order of their keys.")
            first, last = head if first is None else first, tail
            sequences = batch.column("sequence").to_numpy()
            smallest, largest = min(smallest, int(sequences.min())), max(largest, int(sequences.max()))
        actual = (rows, first, last, smallest, largest)
        stated_facts = (file.row_count, file.first_key, file.last_key, file.min_sequence, file.max_sequence)
        if actual != stated_facts:
            self._findings.error(
                "wrong_count",
                shown,
                f"holds {rows:,} rows from {first!r} to {last!r}, sequences {smallest} to {largest}, but its manifest "
                f"says otherwise ({file.row_count:,} rows).",
            )

    # Around the database

    def _check_ancestors(self, newest: Manifest) -> None:
        """Check that every ancestor with files of ours has a pin for us that does not expire."""
        for entry in newest.external_databases:
            path = manifest_path(newest.manifest_id)
            with self._findings.reading(path, needed_by=f"its ancestor {entry.url}"):
                pin = ManifestLog(self._place.other(entry.url)).latest().checkpoint(entry.pin)
                if pin is None or not pin.is_live(self._now_ms):
                    shares = bool(self._named & set(entry.file_ids))
                    severity: Severity = "error" if shares else "info"
                    relation = "shares files with" if shares else "needs no file any more of"
                    self._findings.add(
                        severity, "pin_lost", path, f"{relation} {entry.url}, which has no pin for it any more."
                    )

    def _check_clones(self, newest: Manifest) -> None:
        """Report pins whose clone is missing: they keep files that nothing needs."""
        for checkpoint in newest.checkpoints:
            url = checkpoint.owner.url
            if checkpoint.owner.kind != "clone" or url is None or not checkpoint.is_live(self._now_ms):
                continue
            try:
                ManifestLog(self._place.other(url)).latest()
            except NotFound:
                self._findings.add(
                    "warning",
                    "pin_of_nobody",
                    manifest_path(checkpoint.manifest_id),
                    f"is pinned ({checkpoint.id}) for the clone {url}, which is missing: "
                    "`lakebed kv drop-tag --force` frees it.",
                )

    def _check_destroyed(self, newest: Manifest) -> None:
        """Check what checkpoints still pin; the other files wait for the collector."""
        versions: dict[int, tuple[Manifest, str]] = {}
        for checkpoint in newest.checkpoints:
            self._add_pinned(checkpoint, versions)
        for manifest, version_name in versions.values():
            self._check_version(manifest, version_name, is_newest=False)
        self._findings.report.version_count += len(versions)
        files_left = [path for path in self._listed if parse_sst(path) is not None]
        if files_left:
            self._findings.add(
                "info", "destroyed", "", f"is destroyed; {len(files_left):,} of its files wait for the collector."
            )

    def _report_orphans(self, newest: Manifest) -> None:
        """Report files that no version names: crashes left them, or they were replaced and wait for the collector."""
        for path, meta in self._listed.items():
            file_id, wal_id = parse_sst(path), parse_wal(path)
            if (file_id is not None and file_id not in self._named) or (
                wal_id is not None
                and wal_id <= newest.replay_after_wal_id
                and wal_id not in self._checked_wal
                and meta.size_bytes != FENCE_BYTES  # fences are never deleted
            ):
                self._findings.orphan(meta)
