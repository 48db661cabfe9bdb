"""The manifests of one database. The newest is read, and is changed by appending the next.

Owns: `ManifestLog`. Only it sets `manifest_id`, `write_id`, `created_at_ms`, `content_since` and `previous_write_ids`.

Invariants:
- Manifest N+1 is created once and never replaced, by a process that had read N. So ids have no gaps while the database
  lives, and the write ids that a manifest lists are those of the preceding manifests.
- A change is a pure function of a manifest, and checks its preconditions. After a lost race it is called again with the
  newest manifest. The log resolves a lost reply: either the change happened once, or the error says that the outcome is
  not known.
- A manifest below the boundary is never written again. A collector calls `raise_boundary` before it deletes manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from lakebed.errors import AlreadyExists, Conflict, Corruption, NotFound, UnsupportedFormat
from lakebed.ids import new_uuid
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import (
    BOUNDARY_FOLDER,
    MANIFEST_FOLDER,
    manifest_name,
    manifest_path,
    parse_manifest_name,
)
from lakebed.kv.manifest import FORMAT, DecodedManifest, decode_manifest, encode_manifest, find_write_id
from lakebed.kv.model import Manifest
from lakebed.objects.numbered_log import NumberedLog
from lakebed.objects.probe import is_probe
from lakebed.texts import list_some

PREVIOUS_WRITE_IDS_MAX: Final = 64
"""Write ids of older manifests that each manifest lists: about 2.5 KB."""

_FIRST_ID: Final = 1
_NAMES_SHOWN_MAX: Final = 3
_TRIES_MAX: Final = 1_000


class ManifestLog:
    """The manifests of one database. Thread-safe. Remembers the newest manifest that it saw."""

    def __init__(self, location: DatabaseLocation) -> None:
        self._location = location
        self._environment = location.environment
        self._log = NumberedLog(
            location.store,
            MANIFEST_FOLDER,
            name_of=manifest_name,
            id_of=parse_manifest_name,
            write_id_of=find_write_id,
            boundary_folder=BOUNDARY_FOLDER,
            environment=location.environment,
        )
        self._seen: DecodedManifest | None = None
        # Changes of one process wait for each other here, which is cheaper than lost races.
        self._changing = location.environment.runtime.lock()

    @property
    def seen(self) -> Manifest | None:
        """The newest manifest that was read or written through this log; others may be newer. Cost: nothing."""
        return None if self._seen is None else self._seen.manifest

    def latest(self) -> Manifest:
        """Return the newest manifest, also of a destroyed or unfinished database.

        Raises:
            NotFound: kind ``database_not_found``; the message says what is there instead.
            Corruption, UnsupportedFormat: the manifest cannot be read.

        Cost: 1 LIST, and 1 GET if it is not the one seen last; 1 LIST more if there is none.
        """
        manifest = self.find_latest()
        if manifest is None:
            raise _no_database(self._location)
        return manifest

    def find_latest(self) -> Manifest | None:
        """Return the newest manifest; None if there is none. Errors and cost as `latest`."""
        document = self._find_newest()
        return None if document is None else document.manifest

    def load(self, manifest_id: int) -> Manifest:
        """Return one manifest by id, whether or not anything still pins it.

        Raises:
            NotFound: kind ``manifest_not_found``.
            Corruption, UnsupportedFormat: the manifest cannot be read.
        Cost: 1 GET; nothing for the one seen last.
        """
        return self._load(manifest_id).manifest

    def ids(self) -> list[int]:
        """Return the ids of all manifests that exist, ascending. Cost: 1 LIST for each thousand."""
        return self._log.ids()

    def _find_newest(self) -> DecodedManifest | None:
        while (newest := self._log.latest()) is not None:
            try:
                document = self._load(newest)
            except NotFound:
                continue  # collected since the listing, so a newer one exists
            return self._remember(document)
        return None

    def _load(self, manifest_id: int) -> DecodedManifest:
        newest_seen = self._seen
        if newest_seen is not None and newest_seen.manifest.manifest_id == manifest_id:
            return newest_seen
        path = manifest_path(manifest_id)
        try:
            body = self._log.read(manifest_id)
        except NotFound as missing:
            raise NotFound(
                f"The database {self._location.url} has no version {manifest_id}: it was never made, or it was "
                "collected.",
                kind="manifest_not_found",
                path=path,
                manifest_id=manifest_id,
            ) from missing
        document = decode_manifest(body, path=path)
        if document.manifest.manifest_id != manifest_id:
            raise Corruption(
                f"{path} holds the version {document.manifest.manifest_id}: it was put in a wrong place", path=path
            )
        return document

    def _remember(self, document: DecodedManifest) -> DecodedManifest:
        newest_seen = self._seen
        if newest_seen is None or newest_seen.manifest.manifest_id < document.manifest.manifest_id:
            self._seen = document
        return document

    def create(self, first: Manifest) -> Manifest:
        """Create the first manifest at a path that never had one. Of several concurrent callers exactly one succeeds.

        Args:
            first: the manifest. The fields that only this class sets are replaced.

        Raises:
            AlreadyExists: kind ``database_exists``; another caller was faster, or the database existed before.
            OutcomeUnknown: the store gave no clear answer.
        Cost: 1 PUT + 1 LIST.
        """
        try:
            return self._append(first, after=None).manifest
        except Conflict as conflict:
            raise AlreadyExists(
                f"There is a database at {self._location.url} already: open it, or choose another place.",
                kind="database_exists",
                url=self._location.url,
            ) from conflict

    def update(self, change: Callable[[Manifest], Manifest | None], *, fresh: bool = False) -> Manifest:
        """Apply a change to the newest manifest and append the result.

        Args:
            change: returns the manifest that should follow its argument, or None if there is nothing to do. It is
                called again with a newer manifest after each lost race. It must not call this log's `update`. If it
                raises, the error is passed on and nothing has changed.
            fresh: read the newest manifest first. False begins with the one seen last, if there is one.

        Returns:
            The manifest that was appended; if `change` returned None, its argument.

        Raises:
            NotFound: kind ``database_not_found``.
            UnsupportedFormat: the newest manifest may be read but not followed by this lakebed.
            OutcomeUnknown: the store gave no clear answer, so the change may have happened, or may still happen. Call
                again, so that `change` can look for it. Kind ``boundary_forgotten``: this call slept during so many
                collections that its outcome is not recorded any more.

        Cost: 1 PUT + 1 LIST if no other process wrote since; with `fresh` and after a lost race 1 LIST + 1 GET before.
        """
        with self._changing:
            base = None if fresh else self._seen
            for _ in range(_TRIES_MAX):
                if base is None:
                    base = self._find_newest()
                    if base is None:
                        raise _no_database(self._location)
                next_manifest = change(base.manifest)
                if next_manifest is None:
                    return base.manifest
                try:
                    return self._append(next_manifest, after=base).manifest
                except Conflict:
                    base = None
            raise Conflict(
                f"A change of the database {self._location.url} lost {_TRIES_MAX:,} races. Nothing "
                "was changed: look which processes have it open, then try again.",
                kind="manifest_contention",
                url=self._location.url,
            )

    def _append(self, manifest: Manifest, *, after: DecodedManifest | None) -> DecodedManifest:
        previous: tuple[str, ...]
        if after is None:
            manifest_id, previous, content_since = _FIRST_ID, (), _FIRST_ID
        else:
            base = after.manifest
            manifest_id, previous = base.manifest_id + 1, (base.write_id, *base.previous_write_ids)
            content_since = base.content_since if manifest.has_content_of(base) else manifest_id
            self._refuse_newer(after)
        next_manifest = msgspec.structs.replace(
            manifest,
            manifest_id=manifest_id,
            write_id=new_uuid(self._environment.rng),
            created_at_ms=self._environment.clock.now_ms(),
            content_since=content_since,
            previous_write_ids=previous[:PREVIOUS_WRITE_IDS_MAX],
        )
        self._log.append(manifest_id, encode_manifest(next_manifest), write_id=next_manifest.write_id)
        return self._remember(DecodedManifest(next_manifest, FORMAT))

    def _refuse_newer(self, document: DecodedManifest) -> None:
        if document.min_writer > FORMAT:
            raise UnsupportedFormat(
                f"The database {self._location.url} was written by a newer lakebed (min_writer "
                f"{document.min_writer}): this one can read it; to write or delete, upgrade lakebed.",
                path=manifest_path(document.manifest.manifest_id),
                min_writer=document.min_writer,
            )

    def check_deletable(self) -> None:
        """Check that this lakebed may delete objects. Call it after `latest`, before objects are deleted.

        Raises `UnsupportedFormat`: this lakebed may read the manifest seen last but not write the next one, so it does
        not know either which objects the database does not need. Cost: nothing.
        """
        if self._seen is not None:
            self._refuse_newer(self._seen)

    def boundary(self) -> int:
        """Return the boundary, below which no id is ever used again; 0 before the first collection.

        Cost: 1 LIST, and 1 GET if it has moved.
        """
        return self._log.boundary()

    def raise_boundary(self, below: int, *, manifest: Manifest) -> None:
        """Ensure that no manifest below `below` is ever written again. Call it before any of them is deleted.

        Args:
            below: at most the id of `manifest`.
            manifest: the newest. The write ids in it are passed on, so that older manifests need not be read.

        Cost: 4 LIST + 1 PUT, and 1 GET for every `PREVIOUS_WRITE_IDS_MAX` manifests made since the last collection, of
        which the first is free.
        """
        self._log.raise_boundary(below, write_ids=self._load_write_ids(manifest, down_to=self._log.boundary()))

    def _load_write_ids(self, manifest: Manifest, *, down_to: int) -> dict[int, str | None]:
        write_ids: dict[int, str | None] = {}
        while True:
            write_ids[manifest.manifest_id] = manifest.write_id
            for age, write_id in enumerate(manifest.previous_write_ids, start=1):
                write_ids[manifest.manifest_id - age] = write_id
            lowest = manifest.manifest_id - len(manifest.previous_write_ids)
            if lowest <= max(down_to, _FIRST_ID):
                return write_ids
            try:
                manifest = self.load(lowest)
            except (NotFound, Corruption, UnsupportedFormat):
                return write_ids  # collected: a marker has the other write ids; or unreadable: the log reads it itself

    def withdraw_late(self) -> list[int]:
        """Delete manifests that were written after the boundary had passed them. As `NumberedLog.withdraw_late`."""
        return self._log.withdraw_late()


_ADVICE: Final = {
    "nothing": "Check the path, or create the database there.",
    "table": "Read it as a table, or name a database.",
    "lake": "Name one of its databases.",
    "other": "Check the path, or create a database in an empty folder.",
}


def describe_folder(location: DatabaseLocation) -> tuple[str, str]:
    """Describe the content of a folder that is not a database: a kind, and words for a message.

    Returns:
        Kind ``nothing``, ``database`` (its manifests have appeared since), ``table``, ``lake`` or ``other``.
    Cost: 1 LIST.
    """
    top = location.store.list_with_delimiter("")
    names = sorted(
        [*(f"{folder}/" for folder in top.folders), *(meta.path for meta in top.objects)], key=lambda name: name.lower()
    )
    names = [name for name in names if not is_probe(name)]
    if not names:
        return "nothing", "the folder is empty or missing"
    if f"{MANIFEST_FOLDER}/" in names and "schema/" not in names:
        return "database", f"the folder {MANIFEST_FOLDER!r} there holds no manifest that can be found"
    if "schema/" in names:  # a table has this folder even before its first write
        return "table", "it is a table"
    if "lakebed.json" in names or any(name.endswith(".db/") for name in names):
        return "lake", "it is a lake, whose databases and tables lie below it"
    listing = list_some(names, count_max=_NAMES_SHOWN_MAX)
    return "other", f"the folder holds {listing}"


def _no_database(location: DatabaseLocation) -> NotFound:
    kind, words = describe_folder(location)
    return NotFound(
        f"There is no database at {location.url}: {words}. {_ADVICE.get(kind, _ADVICE['other'])}",
        kind="database_not_found",
        url=location.url,
        there=kind,
    )
