"""The check of one table with all its branches: versions, manifests, files, runs, tags, hints, deletions, orphans.

Owns: when a table is sound. For every version (snapshot or tag) of every branch:

- its schema, lists and manifests exist, of the stated size, and decode; counts agree with the entries;
- its data files exist, of the stated size; with ``deep`` they decode and agree with the manifest (`files.py`);
- its deletion vectors mark rows of live files; with ``deep`` they decode and mark rows that exist (`files.py`);
- in each bucket, files of one level above 0 do not overlap (`files.py`).

And for the table: misleading hints, unfinished deletions, files that no version names, and what Iceberg's clients read
(`orphans.py`). Invariants: reads only; an object that many versions share is read once and reported once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.bounded_cache import BoundedCache
from lakebed.errors import NotFound
from lakebed.fsck.files import Seen, check_data_files, check_runs, check_vectors
from lakebed.fsck.model import Findings
from lakebed.fsck.orphans import check_iceberg, list_external, report_orphans, report_unnamed
from lakebed.objects.path import is_url
from lakebed.objects.port import ObjectMeta
from lakebed.table.branch.candidates import Role, paths_of
from lakebed.table.branch.manifest_reader import ManifestReader
from lakebed.table.branch.unfinished import Deletion, load_deletions
from lakebed.table.codec.manifest import ADD, fold
from lakebed.table.codec.snapshot_json import decode_snapshot, decode_tag
from lakebed.table.collect.referenced_files import ReferencedFiles, folder_namer
from lakebed.table.files.external import OwnFiles
from lakebed.table.model.layout import branch_of, parse_changelog, parse_schema, parse_snapshot, parse_tag
from lakebed.table.model.model import ManifestMeta, Snapshot, TableSchema, Tag
from lakebed.table.model.times import is_future
from lakebed.table.model.types import name_fields, parse_type
from lakebed.table.table import Table
from lakebed.texts import list_some

_CACHE_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of decoded manifests cached between versions; beyond it shared manifests are read again."""

_FEW = (Role.INDEX_MANIFEST, Role.INDEX, Role.STATISTICS)


@dataclass(frozen=True, slots=True)
class _Version:
    """A snapshot, tag or kept changelog, and its name in messages."""

    snapshot: Snapshot
    called: str


@dataclass(slots=True)
class _Used:
    """Referenced paths, and the data files among them."""

    paths: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    """URLs of files outside the table's folders of data, which may still be below the table's folder."""
    files: pa.Table | None = None
    """Live files of all versions so far: `ENTRY_SCHEMA` plus ``path``, ``needed_by`` and ``branch``; unique by path."""


def check_table(table: Table, findings: Findings) -> None:
    """Check a table with all its branches and report into `findings`."""
    metas_by_path = {meta.path: meta for meta in table.store.list("")}
    used_files = _Used()
    for branch in sorted({branch_of(path) for path in metas_by_path if parse_schema(path) is not None}):
        with findings.reading(f"branch/branch-{branch}", needed_by=f"branch {branch}"):
            branch_table = Table.open(
                table.store, name=table.name, branch=branch, environment=table.context.environment
            )
            _BranchCheck(
                branch_table,
                [path for path in metas_by_path if branch_of(path) == branch],
                metas_by_path,
                used_files,
                findings,
            ).run()
    outside: dict[str, ObjectMeta] | None = None
    with findings.reading("", needed_by="the table"):
        outside = list_external(table, metas_by_path, used_files.external)
    if used_files.files is not None and outside is None:
        used_files.files = used_files.files.filter(pc.is_null(used_files.files["external_path"]))
    if used_files.files is not None:
        _check_sizes(used_files.files, {**metas_by_path, **(outside or {})}, findings)
        findings.report.file_count += used_files.files.num_rows
        findings.report.size_bytes += pc.sum(used_files.files["file_size"]).as_py() or 0
        if findings.report.deep:
            check_data_files(table, used_files.files, findings)
    needed_paths = used_files.paths | (set() if used_files.files is None else set(used_files.files["path"].to_pylist()))
    report_orphans(table, metas_by_path, needed=needed_paths, urls=used_files.external, findings=findings)
    check_iceberg(table, metas_by_path, findings)
    report_unnamed(table, outside or {}, used_files.external, findings)


class _BranchCheck:
    """The check of one branch. `ours` are the paths that belong to it, `listed` those of the whole table."""

    def __init__(self, table: Table, ours: list[str], listed: Container[str], used: _Used, findings: Findings) -> None:
        self._table = table
        self._ours = ours
        self._listed = listed
        self._used = used
        self._findings = findings
        # A reader of its own: the process's caches may differ from the store.
        cache = BoundedCache(_CACHE_BYTES_MAX, runtime=table.context.environment.runtime)
        context = table.context
        self._reader = ManifestReader(context.store, context.layout, environment=context.environment, cache=cache)
        self._branch = branch = replace(context, manifests=self._reader)
        self._vectors: Seen = set()
        self._folders_of = folder_namer(branch)
        self._names = ReferencedFiles(branch)
        self._own_files = OwnFiles(table.store, self._folders_of)

    def run(self) -> None:
        for path in self._ours:
            schema_id = parse_schema(path)
            if schema_id is not None:
                self._check_schema(schema_id, "the table")
        self._check_field_ids(self._table.schema)
        versions = self._versions()
        self._findings.report.version_count += len(versions)
        seen_paths: set[str] = set()
        for version in versions:
            # A tag and its snapshot name the same lists: once is enough.
            key = f"{version.snapshot.base_manifest_list} {version.snapshot.delta_manifest_list}"
            if key not in seen_paths:
                seen_paths.add(key)
                self._check_version(version)
            self._findings.step(len(versions))
        self._check_changelogs()
        self._check_histories(versions)
        self._check_times(versions)
        self._check_hints()
        self._check_deletions()

    # ---- versions

    def _versions(self) -> list[_Version]:
        versions: list[_Version] = []
        for path in self._ours:
            snapshot_id, tag = parse_snapshot(path), parse_tag(path)
            if snapshot_id is None and tag is None:
                continue
            with self._findings.reading(path, needed_by="the table"):
                body = self._table.store.get(path)
                if tag is not None:
                    decoded_tag = decode_tag(body, name=tag, path=path)
                    versions.append(_Version(decoded_tag.snapshot, f"tag {tag}"))
                    self._check_lifetime(decoded_tag, path)
                    continue
                snapshot = decode_snapshot(body, path=path)
                if snapshot.id != snapshot_id:
                    self._findings.error("wrong_id", path, f"says that it is snapshot {snapshot.id}.")
                versions.append(_Version(snapshot, f"snapshot {snapshot.id}"))
        return sorted(versions, key=lambda version: (version.snapshot.id, version.called))

    def _check_schema(self, schema_id: int, version_name: str) -> None:
        path = self._table.context.layout.schema(schema_id)
        with self._findings.reading(path, needed_by=version_name):
            self._table.context.schemas.load(schema_id)

    def _check_field_ids(self, newest: TableSchema) -> None:
        """Report columns and fields inside of them that have one id, which older versions wrote."""
        names: dict[int, list[str]] = {}
        for column in newest.fields:
            names.setdefault(column.id, []).append(column.name)
            for name, field_id in name_fields(column.name, parse_type(column.type)):
                names.setdefault(field_id, []).append(name)
        for field_id, names_of_id in names.items():
            if len(names_of_id) > 1:
                self._findings.add(
                    "warning",
                    "field_id_twice",
                    self._table.context.layout.schema(newest.id),
                    f"gives {list_some(names_of_id)} the same field id {field_id}: clients of Paimon and Iceberg "
                    "cannot open the table, or take values of one for those of the other. Copy its rows to a new "
                    "table.",
                    columns=names_of_id,
                )

    def _check_version(self, version: _Version) -> None:
        snapshot, title = version.snapshot, version.called
        self._check_schema(snapshot.schema_id, title)
        base = self._metas(snapshot.base_manifest_list, snapshot.base_manifest_list_size, title)
        delta = self._metas(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, title)
        self._check_changelog(snapshot, title)
        self._check_few(snapshot, title)
        base_entries = None if base is None else self._entries(base, title)
        delta_entries = None if delta is None else self._entries(delta, title)
        if base_entries is None or delta_entries is None:
            return
        live_entries = fold(pa.concat_tables([base_entries, delta_entries]))
        kinds = live_entries.column("kind").to_numpy()
        if not (kinds == ADD).all():
            lonely = int((kinds != ADD).sum())
            self._findings.add(
                "warning",
                "lonely_delete",
                self._table.context.layout.manifest(snapshot.delta_manifest_list),
                f"deletes {lonely} files that {title} does not have.",
            )
            live_entries = live_entries.filter(pa.array(kinds == ADD))
        self._check_counts(snapshot, title, live_entries, delta_entries)
        check_runs(live_entries, schema=self._table.schema, called=title, findings=self._findings)
        self._use_files(title, live_entries)

    def _metas(self, name: str, size_bytes: int | None, version_name: str) -> list[ManifestMeta] | None:
        """Return the manifests that a list names; None when it is unreadable."""
        path = self._table.context.layout.manifest(name)
        self._used.paths.add(path)
        with self._findings.reading(path, needed_by=version_name):
            return self._reader.metas(name, size_bytes=size_bytes)
        return None

    def _entries(self, metas: Iterable[ManifestMeta], version_name: str) -> pa.Table | None:
        """Return the entries of manifests; None when one is unreadable."""
        tables: list[pa.Table] | None = [self._reader.concat_entries([])]
        for meta in metas:
            path = self._table.context.layout.manifest(meta.file_name)
            self._used.paths.add(path)
            entries = None
            with self._findings.reading(path, needed_by=version_name):
                entries = self._reader.entries(meta)
            tables = None if tables is None or entries is None else [*tables, entries]
        return None if tables is None else pa.concat_tables(tables)

    def _check_counts(self, snapshot: Snapshot, version_name: str, live_entries: pa.Table, delta: pa.Table) -> None:
        """Check that a snapshot's counts are those of its files, and that the buckets of its files exist."""
        path = self._table.context.layout.snapshot(snapshot.id)
        total = pc.sum(live_entries["row_count"]).as_py() or 0
        if total != snapshot.total_record_count:
            sentence = f"{version_name} states {snapshot.total_record_count:,} rows; its files have {total:,}."
            self._findings.error("wrong_count", path, sentence)
        signs = np.where(delta.column("kind").to_numpy() == ADD, 1, -1)
        change = int((delta.column("row_count").to_numpy() * signs).sum())
        if change != snapshot.delta_record_count:
            self._findings.error(
                "wrong_count",
                self._table.context.layout.manifest(snapshot.delta_manifest_list),
                f"{version_name} states a change of {snapshot.delta_record_count:+,} rows; its files say {change:+,}.",
            )
        buckets, totals = live_entries.column("bucket").to_numpy(), live_entries.column("total_buckets").to_numpy()
        outside = int(((totals > 0) & (buckets >= totals)).sum())
        if outside:
            self._findings.error(
                "wrong_bucket", path, f"{version_name} has {outside} files in buckets that it does not have."
            )

    def _use_files(self, version_name: str, live_entries: pa.Table) -> None:
        """Note the data files of a version by their paths."""
        self._used.external.update(live_entries["external_path"].drop_null().to_pylist())
        if live_entries.num_rows == 0:
            return
        if pc.sum(pc.list_value_length(live_entries["extra_files"])).as_py():
            self._use_paths(live_entries)
            place, field = live_entries.schema.get_field_index("extra_files"), live_entries.schema.field("extra_files")
            live_entries = live_entries.set_column(place, field, pa.array([[]] * live_entries.num_rows, field.type))
        files = live_entries.append_column("path", pa.array(self._paths(live_entries), pa.string())).append_column(
            "needed_by", pa.array([version_name] * live_entries.num_rows, pa.string())
        )
        files = files.append_column("branch", pa.array([self._table.branch] * live_entries.num_rows, pa.string()))
        if self._used.files is None:
            self._used.files = files
        else:
            is_known = pc.is_in(files["path"], value_set=self._used.files["path"].combine_chunks())
            self._used.files = pa.concat_tables([self._used.files, files.filter(pc.invert(is_known))])

    def _paths(self, live_entries: pa.Table) -> list[str]:
        """Return the path of each file; of a missing one, the path where it would be written today."""
        named_paths = paths_of(live_entries, self._folders_of)
        paths: list[str | None] = live_entries["external_path"].to_pylist()
        for row, path in zip(named_paths["row"].to_pylist(), named_paths["path"].to_pylist(), strict=True):
            if paths[row] is None or (paths[row] not in self._listed and path in self._listed):
                paths[row] = path
        return [path for path in paths if path is not None]

    # ---- other files of a version

    def _check_changelogs(self) -> None:
        """Check changelogs that outlived their snapshots: their own list, else the delta list."""
        for path in self._ours:
            if parse_changelog(path) is None:
                continue
            with self._findings.reading(path, needed_by="the table"):
                snapshot = decode_snapshot(self._table.store.get(path), path=path)
                version_name = f"changelog {snapshot.id}"
                if snapshot.changelog_manifest_list:
                    self._check_changelog(snapshot, version_name)
                else:
                    self._use_list(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, version_name)

    def _check_changelog(self, snapshot: Snapshot, version_name: str) -> None:
        """Note the changelog files of a version. Those of a snapshot exist; other clients expire those of a tag."""
        if not snapshot.changelog_manifest_list:
            return
        entries = self._use_list(snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size, version_name)
        if entries is None or not version_name.startswith("snapshot "):
            return
        for path, external in zip(self._paths(entries), entries["external_path"].to_pylist(), strict=True):
            if external is None and path not in self._listed:
                self._findings.missing(path, version_name)

    def _use_list(self, name: str, size_bytes: int | None, version_name: str) -> pa.Table | None:
        """Note the files that a list names; return its entries, or None when they are unreadable."""
        metas = self._metas(name, size_bytes, version_name)
        entries = None if metas is None else self._entries(metas, version_name)
        if entries is not None and entries.num_rows:
            self._use_paths(entries)
            self._used.external.update(entries["external_path"].drop_null().to_pylist())
        return entries

    def _use_paths(self, entries: pa.Table) -> None:
        """Note all paths of entries, including extra files next to external files."""
        named_paths = paths_of(entries, self._folders_of, own_outside=self._own_files.among)["path"].to_pylist()
        self._used.paths.update(named_paths)
        self._used.external.update(filter(is_url, named_paths))

    def _check_few(self, snapshot: Snapshot, version_name: str) -> None:
        """Check index manifest, index files and statistics, which a version names one by one."""
        if not (snapshot.index_manifest or snapshot.statistics):
            return
        owner = self._table.context.layout.manifest(snapshot.index_manifest) if snapshot.index_manifest else ""
        with self._findings.reading(owner, needed_by=version_name):
            for path in self._names.of(snapshot, _FEW).to_pylist():
                self._used.paths.add(path)
                with self._findings.reading(path, needed_by=version_name):
                    self._table.store.head(path)
            check_vectors(
                self._branch, snapshot, self._findings, seen=self._vectors, listed=self._listed, called=version_name
            )

    # ---- the branch

    def _check_histories(self, versions: Iterable[_Version]) -> None:
        """Check that a tag has the state of its snapshot; another client's rollback may have reused the id."""
        states: dict[int, str] = {}
        for version in versions:
            state = version.snapshot.base_manifest_list + version.snapshot.delta_manifest_list
            if states.setdefault(version.snapshot.id, state) != state:
                number = version.snapshot.id
                sentence = f"{version.called} and another version are both snapshot {number}, with different content."
                self._findings.add("warning", "two_histories", "", sentence)

    def _check_lifetime(self, tag: Tag, path: str) -> None:
        now_ms = self._table.context.environment.clock.now_ms()
        if tag.create_time_ms is not None and is_future(tag.create_time_ms, now_ms=now_ms):
            sentence = f"tag {tag.name} was made in the future; its lifetime counts from when its file was written."
            self._findings.add("warning", "time_in_the_future", path, sentence)

    def _check_times(self, versions: list[_Version]) -> None:
        """Report commit times in the future, or before those of older snapshots: a writer's clock was wrong."""
        now_ms = self._table.context.environment.clock.now_ms()
        snapshots = [version.snapshot for version in versions if version.called.startswith("snapshot ")]
        snapshots.sort(key=lambda snapshot: snapshot.id)
        future = [snapshot.id for snapshot in snapshots if is_future(snapshot.time_ms, now_ms=now_ms)]
        folder = self._table.context.layout.snapshot_folder
        if future:
            sentence = (
                f"snapshots {future[0]} to {future[-1]} ({len(future)}) have commit times in the future: a writer's "
                "clock was ahead. Reading by time does not find them; expiry by time takes the times of their files, "
                "and expiry by order (--by-order) uses none."
            )
            self._findings.add("warning", "time_in_the_future", folder, sentence, ids=future)
        early = [after.id for before, after in pairwise(snapshots) if after.time_ms < before.time_ms]
        if early:
            sentence = (
                f"snapshots {', '.join(map(str, early[:8]))} have commit times before those of the snapshots they "
                "follow: the clock of another client was behind. Reading by time may miss them."
            )
            self._findings.add("warning", "time_out_of_order", folder, sentence, ids=early)

    def _check_hints(self) -> None:
        """Check hints: they may be old, but a hint that is not a number, or too high, misleads other clients."""
        ids = [snapshot_id for path in self._ours if (snapshot_id := parse_snapshot(path)) is not None]
        for path in (self._table.context.layout.latest_hint, self._table.context.layout.earliest_hint):
            try:
                text = bytes(self._table.store.get(path)).decode("utf-8", "replace").strip()
            except NotFound:
                continue
            if not text.isdecimal() or (ids and int(text) > max(ids)):
                sentence = f"says {text!r}, which is not a snapshot: the next commit repairs it."
                self._findings.add("warning", "wrong_hint", path, sentence)

    def _check_deletions(self) -> None:
        """Report deletions that are running, or whose process ended."""
        for deletion in load_deletions(self._table.store, self._table.context.layout):
            folder = self._table.context.layout.reclaim_folder
            if isinstance(deletion, Deletion):
                sentence = f"a deletion ({deletion.kind}) did not finish; the next expiry or cleaning finishes it."
                self._findings.add("warning", "unfinished_deletion", folder, sentence, id=deletion.id)
            else:
                self._findings.error(deletion.kind, str(deletion.facts.get("path", folder)), deletion.message)


def _check_sizes(files: pa.Table, metas_by_path: dict[str, ObjectMeta], findings: Findings) -> None:
    """Check that every data file exists with the size in its manifest."""
    columns = [files[name].to_pylist() for name in ("path", "file_size", "needed_by")]
    for path, size_bytes, needed_by in zip(*columns, strict=True):
        findings.check_object(path, metas_by_path.get(path), size_bytes=size_bytes, needed_by=needed_by)
