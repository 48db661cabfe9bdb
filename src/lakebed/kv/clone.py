"""Clones: a new database that starts from a version of another database and shares its files.

Owns: `create_clone`, the order of its steps, and what a retry after a crash at any step does.

Invariants:
- Everything that a clone's manifest names is pinned. Pins in the parent and in every ancestor that owns a file exist
  before the manifest does, live for `PIN_LIFETIME`, and become permanent before the clone may be opened. Each time, the
  pin in the parent comes first, and the others follow concurrently. If one fails, all new pins are removed.
- The first manifest decides between concurrent calls: it is create-only, and names the source, the pins, and
  ``initialized=false``. A call with the same source joins it. Any other raises `AlreadyExists`.
- The last update requires that the manifest still names exactly the pins that were made permanent. An attempt that
  slept while another replaced dead pins begins again.
- A crash leaks at most pins that expire, and the objects in the unfinished clone's own folder, which its retry uses.

The cost depends on the ancestors and on the log's tail, and not on the number of rows. Source: "Clones". The steps are
in docs/design/0009-databases.md; docs/design/0012-clones-and-destroy.md describes the failures at each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.kv.checkpoint import find_checkpoint, lifetime_in_ms
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import SST_FOLDER, parse_sst, wal_path
from lakebed.kv.locations import Locations, entries_of_files, file_ids
from lakebed.kv.manifests import ManifestLog, describe_folder
from lakebed.kv.model import Checkpoint, CloneSource, ExternalDatabase, Manifest
from lakebed.kv.pins import find_pin, keep_pin, pin_ancestor, pin_parent, release_pin
from lakebed.kv.wal import WalLog
from lakebed.kv.wal_record import decode_record
from lakebed.objects.create_once import create_once
from lakebed.objects.path import parse_url
from lakebed.runtime import map_in_pool

T = TypeVar("T")
R = TypeVar("R")

PIN_LIFETIME: Final = timedelta(hours=1)
"""How long pins of an unfinished clone live, and so how long they keep files after a crash.

Steps that take longer extend the pins on the way. A shorter lifetime only makes a slow retry begin again.
"""

_TRIES_MAX: Final = 16
"""How often concurrent calls may make an attempt begin again."""

_GONE_KINDS: Final = frozenset({"invalid_db_state", "database_not_found"})
"""Kinds of the errors that say that a parent has no live checkpoint of a name, or is gone itself."""

_COPIES_MAX: Final = 8
"""Most objects that are copied concurrently, and are in memory together."""

_ANCESTORS_MAX: Final = 8
"""Most ancestors whose manifests are changed concurrently."""


def create_clone(
    location: DatabaseLocation,
    parent_url: str | os.PathLike[str],
    checkpoint: str | None = None,
    *,
    copy: bool = False,
    pin_lifetime: timedelta = PIN_LIFETIME,
) -> Manifest:
    """Create a database that starts from a version of another, without copying its files.

    A version may have any number of clones at the same time. The call is idempotent: after a crash at any step the same
    call finishes the clone, and for a finished clone it returns at once.

    Args:
        location: the clone's folder: empty, or with this clone, unfinished.
        parent_url: the database to start from.
        checkpoint: a checkpoint of the parent, by id or name; None: the latest version, with everything durable.
        copy: copy the files too, and depend on no other database. Only this works for a clone on another store.
        pin_lifetime: lifetime of the pins in the ancestors until the clone is finished.

    Raises:
        AlreadyExists: another database is there, or another caller was faster to begin this one.
        InvalidRequest: the folder contains something else, is the parent's or below it, or is on another store; kind
            ``invalid_db_state``: the parent is destroyed or unfinished, or the checkpoint is unknown or has expired.
        NotFound: there is no parent.
        Conflict: other processes work on the same clone all the time.
        Corruption: an object of the parent's log is missing or damaged.

    Cost: about 17 requests, and 8 for each further ancestor that owns files (`_ANCESTORS_MAX` of them concurrently, in
    the time of one). 1 GET + 1 PUT for each object of the log that is not in files yet; with `copy` also 1 GET + 1 PUT
    for each file.
    """
    parent = location.other(os.fspath(parent_url))
    _check_places(location, parent, copy=copy)
    lifetime_in_ms(pin_lifetime)
    return _Attempt(location, parent, checkpoint, copy=copy, lifetime=pin_lifetime).run()


def _check_places(location: DatabaseLocation, parent: DatabaseLocation, *, copy: bool) -> None:
    if location.url == parent.url or location.url.startswith(parent.url + "/"):
        where = "onto itself" if location.url == parent.url else f"below itself, to {location.url}"
        raise InvalidRequest(
            f"The database {parent.url} cannot be cloned {where}: name a folder outside of it.",
            kind="clone_onto_itself",
            url=location.url,
        )
    if not copy and _store_of(location.url) != _store_of(parent.url):
        raise InvalidRequest(
            f"A clone shares the files of its parent, and {location.url} is on another store than {parent.url}: name a "
            "place on the same store, or copy the files with copy=True (--copy).",
            kind="other_store",
            url=location.url,
            parent_url=parent.url,
        )


def _store_of(url: str) -> tuple[str, str]:
    """Return what one set of credentials reaches: a bucket or container, local folders, or this process's memory."""
    location = parse_url(url)
    return location.scheme, "" if location.scheme in ("file", "memory") else location.place


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a clone: a version of the parent, and a pin in each database that owns a part of the version."""

    manifest: Manifest
    entries: tuple[ExternalDatabase, ...]
    """The entry of the parent comes first, even if it owns no file, because the log's tail is in the parent."""


class _Attempt:
    """One call of `create_clone`."""

    def __init__(
        self,
        location: DatabaseLocation,
        parent: DatabaseLocation,
        checkpoint: str | None,
        *,
        copy: bool,
        lifetime: timedelta,
    ) -> None:
        self._location = location
        self._parent = parent
        self._copy = copy
        self._lifetime = lifetime
        self._log = ManifestLog(location)
        self._asked = checkpoint

    def run(self) -> Manifest:
        """Run the steps that an earlier attempt has not finished."""
        for _ in range(_TRIES_MAX):
            current = self._log.find_latest()
            secured: Manifest | None
            if current is None:
                secured = self._begin()
            else:
                self._check_same(current)
                if current.initialized:
                    return current
                secured = self._secure(current)
            if secured is not None and self._copy_over(secured):
                manifest = self._finish(secured)
                if manifest is not None:
                    return manifest
        raise Conflict(
            f"Other processes are making the clone {self._location.url}: wait for them, then call this again.",
            url=self._location.url,
        )

    # Whose clone it is

    def _source(self) -> CloneSource:
        """Return the requested source, with the checkpoint by id: a name may pass to another checkpoint."""
        if self._asked is None:
            return CloneSource(self._parent.url, None)
        now_ms = self._parent.environment.clock.now_ms()
        manifest = ManifestLog(self._parent).latest()
        checkpoint = find_checkpoint(manifest, self._asked, now_ms=now_ms, url=self._parent.url)
        name = None if self._asked.lower() == checkpoint.id else self._asked
        self._asked = checkpoint.id
        return CloneSource(self._parent.url, checkpoint.id, name)

    def _asks_for(self, source: CloneSource) -> bool:
        """Whether this call requests the checkpoint from which the clone was begun. If so, keep its id from then on.

        A name that no live checkpoint has any more denotes the checkpoint that it denoted when the clone was begun.
        """
        if self._asked is None or source.checkpoint is None:
            return self._asked == source.checkpoint
        if self._asked.lower() != source.checkpoint:
            try:
                is_same = self._source().checkpoint == source.checkpoint
            except (InvalidRequest, NotFound) as error:
                if source.name != self._asked or error.kind not in _GONE_KINDS:
                    raise
                is_same = True
            if not is_same:
                return False
        self._asked = source.checkpoint
        return True

    def _check_same(self, current: Manifest) -> None:
        source = current.source
        is_ours = source is not None and source.url == self._parent.url and current.destroyed_at_ms is None
        if is_ours and source is not None:
            is_ours = self._asks_for(source)
        if is_ours and not current.initialized and file_ids(current):
            is_ours = self._copy == (not any(entry.file_ids for entry in current.external_databases))
        if is_ours:
            return
        if current.destroyed_at_ms is not None:
            reason = "a database that was destroyed"
        elif source is None:
            reason = "a database that is not a clone"
        else:
            version = "its latest version" if source.checkpoint is None else f"its checkpoint {source.checkpoint}"
            reason = f"{'a clone' if current.initialized else 'an unfinished clone'} of {source.url} from {version}"
        raise AlreadyExists(
            f"There is {reason} at {self._location.url} already: choose another place for this clone of "
            f"{self._parent.url}.",
            kind="database_exists",
            url=self._location.url,
        )

    # Pins and the first manifest

    def _begin(self) -> Manifest | None:
        """Take the pins, then create the first manifest and return it; None: another call created one."""
        kind, words = describe_folder(self._location)
        if kind == "database":
            return None
        if kind != "nothing":
            raise InvalidRequest(
                f"No clone can be made at {self._location.url}: {words}. Name an empty folder.",
                kind="not_a_database",
                url=self._location.url,
                there=kind,
            )
        source = self._source()
        base = self._pin()
        try:
            # The parent's store was probed for create-only puts when the parent was created.
            if _store_of(self._location.url) != _store_of(self._parent.url):
                self._location.probe()
            return self._log.create(self._manifest_on(base, source))
        except (AlreadyExists, InvalidRequest):
            self._release(base.entries)
            raise

    def _pin(self) -> _Start:
        """Take pins in the parent, then in every further ancestor that owns a file."""
        checkpoint = pin_parent(
            self._parent, checkpoint=self._asked, clone_url=self._location.url, lifetime=self._lifetime
        )
        entries = [ExternalDatabase(self._parent.url, self._asked or checkpoint.id, checkpoint.id, ())]
        try:
            manifest = ManifestLog(self._parent).load(checkpoint.manifest_id)
            if not self._copy:
                owners = entries_of_files(manifest, file_ids(manifest))
                pins, failure = self._pin_in_each([(entry.url, entry.pin) for entry, _ in owners])
                entries += [
                    ExternalDatabase(entry.url, entry.pin, pin, ids)
                    for (entry, ids), pin in zip(owners, pins, strict=True)
                    if pin is not None
                ]
                if failure is not None:
                    raise failure
                foreign_ids = {id for entry in entries for id in entry.file_ids}
                own_ids = tuple(file.id for file in manifest.file_set.files() if file.id not in foreign_ids)
                entries[0] = msgspec.structs.replace(entries[0], file_ids=own_ids)
        except LakebedError:
            self._release(entries)
            raise
        return _Start(manifest, tuple(entries))

    def _pin_in(self, url: str, *, source: str) -> str:
        return pin_ancestor(
            self._location.other(url), source=source, clone_url=self._location.url, lifetime=self._lifetime
        )

    def _pin_in_each(self, sources: Sequence[tuple[str, str]]) -> tuple[list[str | None], LakebedError | None]:
        """Take a pin in each ancestor, several concurrently.

        Args:
            sources: for each ancestor its URL, and the pin there from which ours is made.

        Returns:
            Our pins, in the order of `sources`, None for one that was not made; and the first error. After an error the
            others are still awaited, so that the pins that they made can be removed.
        """

        def pin(source: tuple[str, str]) -> str | LakebedError:
            try:
                return self._pin_in(source[0], source=source[1])
            except LakebedError as failure:
                return failure

        pinned_entries = self._in_each(pin, sources)
        failure = next((answer for answer in pinned_entries if isinstance(answer, LakebedError)), None)
        return [None if isinstance(answer, LakebedError) else answer for answer in pinned_entries], failure

    def _in_each(self, call: Callable[[T], R], ancestors: Sequence[T]) -> list[R]:
        """Call a function for each ancestor, several concurrently. Return the results in order."""
        return map_in_pool(self._location.environment.runtime, call, ancestors, worker_count_max=_ANCESTORS_MAX)

    def _release(self, entries: Sequence[ExternalDatabase]) -> None:
        """Remove our pins. Pins in databases that cannot be reached now expire."""

        def release(entry: ExternalDatabase) -> None:
            with suppress(LakebedError):
                release_pin(self._location.other(entry.url), entry.pin, clone=self._location, decided=self._log.seen)

        self._in_each(release, entries)

    def _manifest_on(self, base: _Start, source: CloneSource) -> Manifest:
        """Return the manifest of the unfinished clone."""
        return msgspec.structs.replace(
            base.manifest,
            initialized=False,
            writer_epoch=base.manifest.writer_epoch + 1,
            readable_since=1,
            destroyed_at_ms=None,
            jobs=(),
            checkpoints=(),
            external_databases=base.entries,
            source=source,
        )

    # Joining an unfinished attempt

    def _secure(self, current: Manifest) -> Manifest | None:
        """Extend the pins by a lifetime from now. Return the unfinished manifest; None: it was changed, read again."""
        entries = current.external_databases
        if self._keep(current, 0, lifetime=self._lifetime) is None:
            base = self._pin()
            return self._rewrite(current, lambda manifest: self._rebase(manifest, base), base.entries, entries[1:])
        dead = self._keep_others(current, lifetime=self._lifetime)
        if not dead:
            return current
        pins, failure = self._pin_in_each([(entries[index].url, entries[index].source_checkpoint) for index in dead])
        secured_entries = list(entries)
        pinned_entries: list[ExternalDatabase] = []
        for index, pin in zip(dead, pins, strict=True):
            if pin is not None:
                secured_entries[index] = msgspec.structs.replace(entries[index], pin=pin)
                pinned_entries.append(secured_entries[index])
        if failure is not None:
            self._release(pinned_entries)
            raise failure
        return self._rewrite(
            current,
            lambda manifest: msgspec.structs.replace(manifest, external_databases=tuple(secured_entries)),
            pinned_entries,
            (),
        )

    def _keep(self, manifest: Manifest, index: int, *, lifetime: timedelta | None) -> Checkpoint | None:
        """Extend one of the manifest's pins, by its index; that in the parent is the first. None: the pin is dead."""
        entry = manifest.external_databases[index]
        try:
            return keep_pin(self._location.other(entry.url), entry.pin, lifetime=lifetime, must_be_open=index == 0)
        except InvalidRequest:  # the parent was destroyed before its pin was permanent, so no other pin is permanent
            self._release(manifest.external_databases)
            raise

    def _keep_all(self, manifest: Manifest, *, lifetime: timedelta | None) -> bool:
        """Extend all pins of the manifest, that in the parent first (see 0012); False: one of them is dead."""
        if self._keep(manifest, 0, lifetime=lifetime) is None:
            return False
        return not self._keep_others(manifest, lifetime=lifetime)

    def _keep_others(self, manifest: Manifest, *, lifetime: timedelta | None) -> list[int]:
        """Extend the pins in further ancestors, several concurrently. Return the indices of dead pins."""
        other_places = range(1, len(manifest.external_databases))
        pins = self._in_each(lambda index: self._keep(manifest, index, lifetime=lifetime), other_places)
        return [index for index, pin in zip(other_places, pins, strict=True) if pin is None]

    def _rebase(self, manifest: Manifest, base: _Start) -> Manifest:
        assert manifest.source is not None
        return self._manifest_on(base, manifest.source)

    def _rewrite(
        self,
        current: Manifest,
        change: Callable[[Manifest], Manifest],
        new_entries: Sequence[ExternalDatabase],
        old_entries: Sequence[ExternalDatabase],
    ) -> Manifest | None:
        """Put other pins into the unfinished manifest, if it still names the pins that were found dead."""
        is_ours = False

        def change_if_ours(manifest: Manifest) -> Manifest | None:
            nonlocal is_ours
            is_ours = _is_unfinished_with(manifest, current.external_databases)
            return change(manifest) if is_ours else None

        rewritten = self._log.update(change_if_ours, fresh=True)
        self._release(old_entries if is_ours else new_entries)
        return rewritten if is_ours else None

    def _copy_over(self, manifest: Manifest) -> bool:
        """Copy the log's tail, and with `copy` the files; False: pins died in between, read the manifest again."""
        try:
            self._each(self._copy_log, self._missing_logs(manifest), manifest)
            if self._copy:
                self._copy_files(manifest)
        except _PinsDied:
            return False
        except NotFound as missing:
            # Pinned objects are not deleted, so either the pins died, or the parent is damaged.
            if self._keep(manifest, 0, lifetime=self._lifetime) is None:
                return False
            path = missing.facts.get("path")
            raise Corruption(
                f"The database {self._parent.url} cannot be cloned from this version: {path} is missing.", path=path
            ) from missing
        return True

    def _each(self, copy_one: Callable[[int], None], items: Sequence[int], manifest: Manifest) -> None:
        """Copy several items concurrently, and extend the pins on the way."""
        if not items:
            return
        pool = self._location.environment.runtime.pool(_COPIES_MAX)
        clock = self._location.environment.clock
        half_life_s = (lifetime_in_ms(self._lifetime) or 0) / 2000
        renew_at_s = clock.monotonic_s() + half_life_s
        try:
            for start in range(0, len(items), _COPIES_MAX):
                if clock.monotonic_s() >= renew_at_s:
                    if not self._keep_all(manifest, lifetime=self._lifetime):
                        raise _PinsDied
                    renew_at_s = clock.monotonic_s() + half_life_s
                for _ in pool.map(copy_one, items[start : start + _COPIES_MAX]):
                    pass
        finally:
            pool.close()

    def _missing_logs(self, manifest: Manifest) -> list[int]:
        tail = range(manifest.replay_after_wal_id + 1, manifest.wal_id_last_seen + 1)
        if not tail:
            return []
        wal_ids = set(WalLog(self._location).ids(manifest.replay_after_wal_id))
        return [wal_id for wal_id in tail if wal_id not in wal_ids]

    def _copy_log(self, wal_id: int) -> None:
        path = wal_path(wal_id)
        body = self._parent.store.get(path)
        decode_record(body, path=path, id=wal_id)  # a damaged record must not be copied
        create_once(self._location.store, path, body, environment=self._location.environment)

    def _copy_files(self, manifest: Manifest) -> None:
        parent_log = ManifestLog(self._parent)
        pin = manifest.external_databases[0].pin
        checkpoint = find_pin(parent_log.latest(), pin)
        if checkpoint is None:
            raise _PinsDied
        locations = Locations(self._parent, parent_log.load(checkpoint.manifest_id))
        sst_ids = {parse_sst(meta.path) for meta in self._location.store.list(SST_FOLDER)}
        files = [file for file in manifest.file_set.files() if file.id not in sst_ids]

        def copy_file(index: int) -> None:
            store, path = locations.locate(files[index].id)
            body = memoryview(store.get(path)).cast("B")
            stated_bytes = files[index].size_bytes
            if body.nbytes != stated_bytes:
                raise Corruption(
                    f"{path} in {store.root_url} has {body.nbytes} bytes, and its version says {stated_bytes}.",
                    path=path,
                    offset=min(body.nbytes, stated_bytes),
                )
            create_once(self._location.store, path, body, environment=self._location.environment)

        self._each(copy_file, range(len(files)), manifest)

    def _finish(self, manifest: Manifest) -> Manifest | None:
        """Make the pins permanent, or unnecessary, then mark the clone as finished; None: read the manifest again."""
        entries = manifest.external_databases
        if not self._copy and not self._keep_all(manifest, lifetime=None):
            return None
        is_ours = False

        def change(newest: Manifest) -> Manifest | None:
            nonlocal is_ours
            is_ours = _is_unfinished_with(newest, entries)
            if not is_ours:
                return None
            return msgspec.structs.replace(
                newest,
                initialized=True,
                readable_since=newest.manifest_id + 1,
                external_databases=() if self._copy else entries,
            )

        current = self._log.update(change)
        if self._copy and is_ours:
            self._release(entries)
        return current if is_ours else None


class _PinsDied(Exception):
    """The version that is being copied is not pinned any more."""


def _is_unfinished_with(manifest: Manifest, entries: tuple[ExternalDatabase, ...]) -> bool:
    is_unfinished = not manifest.initialized and manifest.destroyed_at_ms is None
    return is_unfinished and manifest.external_databases == entries
