"""A lake: one URL, its marker and its tables.

Owns: opening and making a lake, finding tables by name, and the questions asked of a whole lake (`ls`, `history`,
`pins`, `why`, `clean`). A lake is a warehouse folder of Paimon's, ``<db>.db/<table>``, with a marker ``lakebed.json``.

Invariants:
- Opening writes nothing, but for the marker of a lake that `create` makes in an empty folder.
- A warehouse of another client is opened as it is; the first table made in it by lakebed adds the marker.
- The store is probed before the first marker: one that ignores create-only puts is refused.

Does not know: how any store keeps its versions; it asks them through the `Versioned` contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound
from lakebed.lake.drop import drop_table, is_dropped, leftover
from lakebed.lake.marker import MARKER_PATH, check_marker, encode_marker
from lakebed.lake.names import TableName, nearest_names, parse_table_name, split_path
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.objects.probe import probe_create_only
from lakebed.reclaim.model import Pin, ReclaimReport, Verdict, Version
from lakebed.runtime import Environment
from lakebed.table.model import DataField
from lakebed.table.table import Table

__all__ = ["Lake", "StoreSummary", "open_lake"]

_DATABASE_SUFFIX = ".db"
_CONCURRENT_TABLES_MAX = 8


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store of a lake, as `Lake.ls` lists it."""

    kind: str
    """``table``."""
    name: str
    version: str | None
    """Id of the newest version; None when nothing was ever written."""
    changed_ms: int | None
    """When that version was made, Unix ms, UTC."""
    row_count: int
    size_bytes: int
    """Of the data files that the newest version needs."""
    pin_count: int
    """Named pins: tags."""
    problem: str | None = None
    """Why the store could not be read, in one sentence; the numbers are then zero."""


def open_lake(
    url: str,
    *,
    create: bool = True,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
) -> Lake:
    """Open the lake at a URL, or make one there.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``memory://name``, ``file:///path`` or a plain path.
        create: make a lake where there is nothing yet; False: `NotFound` instead.
        storage_options: settings and credentials of the object store, beside its usual environment variables.
        environment: clock, randomness and concurrency.

    Raises:
        InvalidRequest: the folder holds something else, or the store ignores create-only puts.
        NotFound: nothing there and not `create`.
        UnsupportedFormat: the lake needs a newer lakebed.
        Unavailable: the store does not answer, or the folder may not be written.

    Cost: 1 GET (1 LIST more without a marker; the probe and 1 PUT to make one).
    """
    environment = environment or Environment()
    store = open_store(url, storage_options=storage_options, environment=environment, create=create)
    return Lake.open(store, create=create, environment=environment)


class Lake:
    """One lake. Thread-safe; holds no state but its store.

    Attributes:
        store: the lake's root.
        environment: clock, randomness and concurrency, handed on to every store.
    """

    def __init__(self, store: ObjectStore, *, environment: Environment) -> None:
        self.store = store
        self.environment = environment

    @classmethod
    def open(cls, store: ObjectStore, *, create: bool = True, environment: Environment | None = None) -> Lake:
        """As `open_lake`, over a store that is already there."""
        lake = cls(store, environment=environment or Environment())
        if lake._is_marked():
            return lake
        top = store.list_with_delimiter("")
        if any(folder.endswith(_DATABASE_SUFFIX) for folder in top.folders):
            return lake
        if {"schema", "snapshot"} <= set(top.folders):
            raise InvalidRequest(
                f"{store.root_url} is a table, not a lake: open the folder above its '<database>.db'.",
                kind="not_a_lake",
                url=store.root_url,
            )
        names = sorted([*top.folders, *(meta.path for meta in top.objects)])
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise InvalidRequest(
                f"{store.root_url} is no lake: it holds {shown}, but neither {MARKER_PATH} nor a folder "
                "'<database>.db'. Name the folder of a lake, or an empty one to make a lake in.",
                kind="not_a_lake",
                url=store.root_url,
            )
        if not create:
            raise NotFound(
                f"There is no lake at {store.root_url}: the folder is empty or missing.",
                kind="lake_not_found",
                url=store.root_url,
            )
        lake._mark()
        return lake

    @property
    def url(self) -> str:
        """The lake's URL, without credentials and without final slash."""
        return self.store.root_url

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    # ---- tables

    def table(self, name: str, *, branch: str | None = None) -> Table:
        """Open a table.

        Args:
            name: ``flights`` (in database ``default``) or ``db.flights``.
            branch: one of its branches; None is main.

        Raises:
            InvalidRequest: not a table's name.
            NotFound: no such table (with the nearest names), or no such branch.
        Cost: 1 LIST + 1 GET.
        """
        wanted = parse_table_name(name)
        try:
            return Table.open(
                self.store.sub(wanted.folder), name=str(wanted), branch=branch, environment=self.environment
            )
        except NotFound as missing:
            if branch is not None and self.has_table(name):
                raise
            raise self._absent(str(wanted)) from missing

    def has_table(self, name: str) -> bool:
        """Whether there is such a table. Cost: 1 LIST."""
        folder = parse_table_name(name).folder
        return bool(self.store.list_with_delimiter(f"{folder}/schema").objects)

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Sequence[DataField],
        *,
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str = "",
        if_not_exists: bool = False,
    ) -> Table:
        """Make a table.

        Args:
            name: ``flights`` or ``db.flights``.
            schema: columns, as Arrow fields or as `DataField`.
            primary_keys: a table with a primary key holds each key once and is upserted; one without is appended to.
            partition_keys: columns whose values become folders; part of the primary key, when there is one.
            options: table options by their Paimon names, such as ``{"bucket": "4"}``.
            comment: for people.
            if_not_exists: open the table that is there instead of raising.

        Raises:
            AlreadyExists: the table is there, or the remains of one whose drop did not finish.
            InvalidRequest: a name, type, key or option that cannot be.
        Cost: 2 LIST + 1 PUT + the probe of the store.
        """
        wanted = parse_table_name(name)
        there = self.store.list_with_delimiter(wanted.folder)
        if f"{wanted.folder}/schema" in there.folders:
            if if_not_exists:
                return self.table(name)
            raise AlreadyExists(
                f"The lake {self.url} has a table {wanted} already: drop it first, or choose another name.",
                kind="table_exists",
                table=str(wanted),
            )
        if there.folders or there.objects:
            raise leftover(wanted, url=self.url)
        if not self._is_marked():
            self._mark()
        return Table.create(
            self.store.sub(wanted.folder),
            name=str(wanted),
            schema=schema,
            primary_keys=primary_keys,
            partition_keys=partition_keys,
            options=dict(options or {}),
            comment=comment,
            environment=self.environment,
        )

    def tables(self) -> list[str]:
        """Names of all tables, sorted. Cost: 1 LIST + 1 LIST a database + 1 LIST a table, the last ones at once."""
        names = [name for name in self._folders() if self.has_table(str(name))]
        return sorted(str(name) for name in names)

    def dropped(self) -> list[str]:
        """Names of tables whose drop did not finish; `clean` finishes it. Cost: as `tables`, and 1 HEAD each."""
        return [str(name) for name in self._dropped()]

    def folder_of(self, name: str) -> str:
        """Where a table lies, relative to the lake's root. Raises `InvalidRequest` for what is no table's name."""
        return parse_table_name(name).folder

    def drop_table(
        self,
        name: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> ReclaimReport:
        """Delete a table with everything in its folder.

        Args:
            force: also when tags or branches pin versions of it.
            dry_run: only say what would go.
            progress: called after each batch of deletes.

        Raises:
            NotFound: no such table.
            InvalidRequest: it has tags or branches and `force` is not given; names them.
        Cost: 1 LIST a thousand objects + 1 DELETE a thousand.
        """
        wanted = parse_table_name(name)
        if not self.has_table(name):
            if not is_dropped(self.store, wanted):
                raise self._absent(str(wanted))
        elif not force:
            table = self.table(name)
            held = [f"tag {tag.name}" for tag in table.tags()]
            held += [f"branch {branch.name}" for branch in table.branches()]
            if held:
                shown = ", ".join(held[:5]) + (", ..." if len(held) > 5 else "")
                raise InvalidRequest(
                    f"The table {wanted} is pinned by {shown}: delete these first, or drop it with force (--force).",
                    kind="table_pinned",
                    table=str(wanted),
                )
        return drop_table(self.store, wanted, environment=self.environment, dry_run=dry_run, progress=progress)

    # ---- questions to the whole lake

    def ls(self) -> list[StoreSummary]:
        """Every store with its newest version, rows, bytes and pins, sorted by name.

        A store that cannot be read is listed with its `problem`.
        Cost: a table: 3 LIST + 2 GET, and 1 GET for each manifest that is not cached.
        """
        return list(self._map(self._summary, self.tables()))

    def history(self, name: str) -> list[Version]:
        """Readable versions of a table, oldest first, pinned ones included. Cost: 2 LIST + 1 GET a version."""
        return list(self.table(name).versions())

    def pins(self, name: str | None = None) -> list[Pin]:
        """Everything that keeps a version alive, in one table or in all, with the bytes that each tag alone holds.

        Cost: as `ls`, and the manifests of every pinned version.
        """
        names = self.tables() if name is None else [str(parse_table_name(name))]
        return [pin for pins in self._map(self._pins, names) for pin in pins]

    def why(self, where: str) -> Verdict:
        """Who needs an object, or when it may go.

        Args:
            where: the object's URL, or its path relative to the lake's root.

        Raises:
            InvalidRequest: the URL lies outside this lake.
        """
        path = self.path_of(where)
        found = split_path(path)
        if found is None or not found[1]:
            if path == MARKER_PATH:
                return Verdict(path, (), "This is the marker of the lake: it stays as long as the lake does.")
            return Verdict(path, (), "This lies in no store of the lake, so lakebed neither needs nor deletes it.")
        name, inside = found
        if not self.has_table(str(name)):
            sentence = (
                "Its table was dropped: the next cleaning deletes it."
                if is_dropped(self.store, name)
                else "This lies in no store of the lake, so lakebed neither needs nor deletes it."
            )
            return Verdict(path, (), sentence)
        return self.table(str(name)).why(inside)

    def clean(
        self,
        *,
        dry_run: bool = False,
        orphans_older_than_ms: int | None = None,
        progress: Callable[[Any], None] | None = None,
    ) -> list[ReclaimReport]:
        """Delete what nobody needs any more, by each table's own retention settings.

        In each table: tags whose lifetime is over, snapshots past their retention, files that nobody names. Then the
        remains of dropped tables.

        Args:
            dry_run: only say what would go.
            orphans_older_than_ms: files that nobody names go when last changed before this Unix time (ms, UTC); None is
                a day ago, so that a running writer keeps the files that it is about to commit.
            progress: called after each batch of deletes.

        Returns:
            One report a deleting step, tables in order of their names.
        """
        reports: list[ReclaimReport] = []
        for name in self.tables():
            table = self.table(name)
            reports.append(table.expire_tags(dry_run=dry_run))
            reports.append(table.expire(dry_run=dry_run, progress=progress))
            reports.append(table.remove_orphan_files(older_than_ms=orphans_older_than_ms, dry_run=dry_run))
        for folder in self._dropped():
            reports.append(
                drop_table(self.store, folder, environment=self.environment, dry_run=dry_run, progress=progress)
            )
        return reports

    def path_of(self, where: str) -> str:
        """The path inside this lake of a URL or a relative path. Raises `InvalidRequest` for a URL outside of it."""
        if "://" not in where and not where.startswith("/"):
            return where.strip("/")
        url = where if "://" in where else f"file://{where}"
        inside = url.removeprefix(self.url + "/")
        if inside == url:
            raise InvalidRequest(f"{where} does not lie in the lake {self.url}.", kind="outside_lake", url=where)
        return inside.strip("/")

    # ---- inside

    def _is_marked(self) -> bool:
        try:
            body = self.store.get(MARKER_PATH)
        except NotFound:
            return False
        check_marker(body, url=self.url)
        return True

    def _mark(self) -> None:
        probe_create_only(self.store, environment=self.environment)
        try:
            self.store.put(MARKER_PATH, encode_marker(), create_only=True)
        except AlreadyExists:
            self._is_marked()  # another process made the lake meanwhile; its marker must suit us too

    def _folders(self) -> list[TableName]:
        """Every folder where a table may lie. Cost: 1 LIST + 1 LIST a database."""
        names = []
        for database in self.store.list_with_delimiter("").folders:
            if database.endswith(_DATABASE_SUFFIX) and database != _DATABASE_SUFFIX:
                for folder in self.store.list_with_delimiter(database).folders:
                    found = split_path(folder)
                    if found is not None:
                        names.append(found[0])
        return sorted(names)

    def _dropped(self) -> list[TableName]:
        return [name for name in self._folders() if not self.has_table(str(name)) and is_dropped(self.store, name)]

    def _summary(self, name: str) -> StoreSummary:
        try:
            table = self.table(name)
            newest = table.latest()
            pin_count = len(table.tags())
            if newest is None:
                return StoreSummary("table", name, None, None, 0, 0, pin_count)
            sizes = table.reader.live_entries(newest).column("file_size")
        except LakebedError as problem:
            return StoreSummary("table", name, None, None, 0, 0, 0, problem=problem.message)
        size_bytes = pc.sum(sizes).as_py() or 0
        return StoreSummary(
            "table", name, str(newest.id), newest.time_ms, newest.total_record_count, size_bytes, pin_count
        )

    def _pins(self, name: str) -> list[Pin]:
        table = self.table(name)
        return [
            replace(pin, bytes_alone=table.bytes_alone(pin.name)) if pin.kind == "tag" else pin for pin in table.pins()
        ]

    def _map(self, function: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
        pool = self.environment.runtime.pool(_CONCURRENT_TABLES_MAX)
        try:
            return list(pool.map(function, names))
        finally:
            pool.close()

    def _absent(self, name: str) -> NotFound:
        names = self.tables()
        near = nearest_names(name, names)
        if near:
            there = f"Did you mean {' or '.join(near)}?"
        elif names:
            there = f"It has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        else:
            there = "It has no table yet."
        return NotFound(
            f"The lake {self.url} has no table {name}. {there}", kind="table_not_found", table=name, nearest=near
        )
