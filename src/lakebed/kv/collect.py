"""The collector. It reads a database, gets a plan of what may be deleted, and has the sweeper delete it.

Owns: `collect_garbage`, its step function `collect_once`, and `Collector`, which serves many databases in one process.

Invariants:
- The order is list, read, seal versions, decide, raise the boundary, sweep, detach; `lakebed.kv.reclaim` says why.
- A collection of a database with nothing to collect writes nothing.
- Any number of collectors may run at the same time, and each may sleep at any step: each deletes what its own manifest
  allows, and these objects stay deletable.
- No clock is trusted alone. What ends by time (a checkpoint, the grace of a destruction) counts as ended by the earlier
  of two times: our time and the store's, which is the time of an object there. So a collector with a fast clock deletes
  nothing that is live, and one with a slow clock deletes it later.
- Unreadable manifests protect objects: a missing or damaged one those that existed before its checkpoint, one of a
  newer format all objects.

Source: "Garbage Collector"; docs/design/0011-collection.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import msgspec

from lakebed.errors import Corruption, LakebedError, NotFound
from lakebed.kv.checkpoint import without_expired
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import ProgressCall, find_objects, store_name, take_apart, with_old_probes
from lakebed.kv.layout import MANIFEST_FOLDER, manifest_path, parse_manifest
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import ExternalDatabase, Manifest
from lakebed.kv.options import CollectorOptions
from lakebed.kv.pins import release_pin
from lakebed.kv.reclaim import (
    Found,
    Pinned,
    detachable,
    ids_of_pins,
    is_over,
    is_taken_apart,
    needs_sealing,
    plan_collection,
    with_versions_sealed,
)
from lakebed.objects.reserve import freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport
from lakebed.reclaim.sweep import Sweep, Sweeper, report_of

_READS_MAX: Final = 8
"""Most pinned manifests that are read concurrently."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The result of one collection of one database."""

    report: CollectionReport
    gone: bool = False
    """Whether it needs no collector any more: there is no database, or only the tombstone of a destroyed one."""
    detached: tuple[str, ...] = ()
    """URLs of ancestors that the database does not need any more."""
    error: LakebedError | None = None
    """Why the database was not collected. Then `report` is empty, with this as its warning."""


def collect_garbage(
    location: DatabaseLocation,
    *,
    options: CollectorOptions | None = None,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> CollectionReport:
    """Delete what no version needs, a destroyed database whose grace is over, and probes of dead processes.

    This is safe while writers, readers, compactors, clones and other collectors run, with any `CollectorOptions.grace`.

    Args:
        dry_run: report what would be deleted, by our own clock only; write and delete nothing.
        progress: called after each batch of deletions.

    Returns:
        What was deleted and why, and how many objects stay for which reason. A missing pinned version is a warning.

    Raises:
        NotFound: there is no database.
        UnsupportedFormat: a newer lakebed wrote a pinned version or the newest manifest. Nothing was deleted.
        Corruption: the newest manifest is damaged. Nothing was deleted.

    Cost: 4 LIST (5 outside of a lake; 1 more for each thousand objects), 1 GET of the newest manifest, and 1 GET for
    each pinned one. If anything is deleted, also an update (1 PUT + 1 LIST), the boundary (1 PUT, 4 LIST, 1 GET for
    each 64 manifests passed), and 1 DELETE for each thousand objects.
    """
    return collect_once(location, options=options, dry_run=dry_run, progress=progress).report


def plan_garbage(location: DatabaseLocation, *, options: CollectorOptions | None = None) -> CollectionPlan:
    """Plan what `collect_garbage` would delete now. Delete nothing. Errors and cost as its dry run."""
    plan = collect_garbage(location, options=options, dry_run=True).plan
    assert plan is not None
    return plan


def collect_once(
    location: DatabaseLocation,
    *,
    options: CollectorOptions | None = None,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> Collection:
    """Run one collection, as `collect_garbage`; also report whether the database is gone. A step function."""
    with freeing_space():
        collection = _Round(location, options or CollectorOptions(), dry_run=dry_run, progress=progress).run()
    if collection.gone:
        location.drop_reserve()
    elif not dry_run:
        location.keep_reserve()
    return collection


class _Round:
    """One collection of one database."""

    def __init__(
        self, location: DatabaseLocation, options: CollectorOptions, *, dry_run: bool, progress: ProgressCall | None
    ) -> None:
        self._location = location
        self._name = store_name(location)
        self._log = ManifestLog(location)
        self._dry_run = dry_run
        self._progress = progress
        self._log_count_max = options.log_count_max
        self._grace_ms = options.grace // timedelta(milliseconds=1)
        self._destroyed_grace_ms = options.destroyed_grace // timedelta(milliseconds=1)
        self._loaded: dict[int, Manifest | None] = {}
        self._damaged: list[str] = []

    def run(self) -> Collection:
        objects = find_objects(self._location, log_count_max=self._log_count_max)
        manifest = self._log.latest()
        self._log.check_deletable()
        if not manifest.initialized and manifest.destroyed_at_ms is None:
            return self._leave_alone(objects)
        ended_ms, manifest = self._agree_on_time(objects, manifest)
        if is_over(manifest, now_ms=ended_ms, grace_ms=self._destroyed_grace_ms):
            return self._take_apart()
        manifest, pinned, plan = self._seal_versions(objects, manifest, ended_ms)
        plan = replace(plan, warnings=(*plan.warnings, *self._damaged))
        plan = with_old_probes(plan, self._location, dry_run=self._dry_run)
        if self._dry_run:
            return Collection(report_of(plan, Sweep(), hidden_count=0, dry_run=True))
        if any(parse_manifest(deletable.path) is not None for deletable in plan.doomed):
            self._log.raise_boundary(manifest.manifest_id, manifest=manifest)
        report = Sweeper(self._location.store, self._progress).sweep(plan)
        detached, unreached = self._detach(detachable(manifest, pinned), manifest)
        report = replace(report, warnings=(*report.warnings, *unreached))
        return Collection(report, is_taken_apart(objects, manifest, now_ms=ended_ms), detached)

    # Time

    def _agree_on_time(self, objects: Found, manifest: Manifest) -> tuple[int, Manifest]:
        """Return the latest time that our clock and the store's have both reached, and the newest manifest.

        The time of any object proves that the store's clock has reached this time. If something has ended by our clock,
        and no object is as late as its end, a manifest is written to get the store's time from it.
        """
        now_ms = self._location.environment.clock.now_ms()
        if self._dry_run:
            return now_ms, manifest
        ends = self._ends_ms(manifest, now_ms)
        seen_ms = max(
            (meta.modified_ms for metas in (objects.files, objects.logs, objects.manifests) for meta in metas),
            default=0,
        )
        if ends <= seen_ms:
            return min(now_ms, seen_ms), manifest
        manifest = self._log.update(lambda newest: with_versions_sealed(newest, now_ms=min(now_ms, seen_ms)))
        for meta in self._location.store.list(MANIFEST_FOLDER, start_after=manifest_path(manifest.manifest_id - 1)):
            if parse_manifest(meta.path) == manifest.manifest_id:
                seen_ms = max(seen_ms, meta.modified_ms)
        return min(now_ms, seen_ms), manifest

    def _ends_ms(self, manifest: Manifest, now_ms: int) -> int:
        """Return the latest end, of a checkpoint or a grace, that our clock has passed; 0 if there is none."""
        ends = [checkpoint.expires_at_ms for checkpoint in manifest.checkpoints if checkpoint.expires_at_ms is not None]
        if manifest.destroyed_at_ms is not None:
            ends.append(manifest.destroyed_at_ms + self._destroyed_grace_ms)
        return max((end for end in ends if end <= now_ms), default=0)

    # The manifest that decides

    def _seal_versions(
        self, objects: Found, current: Manifest, ended_ms: int
    ) -> tuple[Manifest, Pinned, CollectionPlan]:
        """Return *the* manifest that decides, the manifests that it pins, and the plan that they allow."""
        manifest = without_expired(current, ended_ms)
        pinned = self._load_pinned(manifest, ended_ms)
        plan = self._plan(objects, manifest, pinned)
        takes = bool(plan.doomed) or bool(detachable(manifest, pinned))
        if not needs_sealing(current, now_ms=ended_ms, takes=takes):
            return manifest, pinned, plan
        if self._dry_run:
            manifest = msgspec.structs.replace(
                with_versions_sealed(current, now_ms=ended_ms), manifest_id=current.manifest_id + 1
            )
        else:
            manifest = self._log.update(lambda newest: with_versions_sealed(newest, now_ms=ended_ms))
        pinned = self._load_pinned(manifest, ended_ms)
        return manifest, pinned, self._plan(objects, manifest, pinned)

    def _plan(self, objects: Found, manifest: Manifest, pinned_manifests: Pinned) -> CollectionPlan:
        return plan_collection(
            objects,
            manifest=manifest,
            pinned=pinned_manifests,
            now_ms=self._location.environment.clock.now_ms(),
            grace_ms=self._grace_ms,
            store=self._name,
        )

    def _load_pinned(self, manifest: Manifest, ended_ms: int) -> Pinned:
        pinned_ids = ids_of_pins(manifest, now_ms=ended_ms)
        self._loaded.setdefault(manifest.manifest_id, manifest)
        missing = sorted(pinned_ids - self._loaded.keys())
        if len(missing) < 2:
            self._loaded.update(map(self._load, missing))
        else:
            pool = self._location.environment.runtime.pool(_READS_MAX)
            try:
                self._loaded.update(pool.map(self._load, missing))
            finally:
                pool.close()
        return {manifest_id: self._loaded[manifest_id] for manifest_id in pinned_ids}

    def _load(self, manifest_id: int) -> tuple[int, Manifest | None]:
        try:
            return manifest_id, self._log.load(manifest_id)
        except NotFound:
            return manifest_id, None
        except Corruption as damage:
            self._damaged.append(str(damage))
            return manifest_id, None

    # Special cases: unfinished clones, destroyed databases, ancestors

    def _leave_alone(self, objects: Found) -> Collection:
        """Delete nothing of an unfinished clone: its creator may still run, and a retry uses what is there."""
        count = len(objects.files) + len(objects.logs) + len(objects.manifests)
        warning = (
            f"{self._location.url} is a clone that is not finished, and was left alone: make the same clone again to "
            "finish it, or destroy it."
        )
        plan = CollectionPlan(self._name, (), (), {"clone not finished": count}, (warning,))
        return Collection(report_of(plan, Sweep(), hidden_count=0, dry_run=self._dry_run))

    def _take_apart(self) -> Collection:
        report = take_apart(self._location, dry_run=self._dry_run, progress=self._progress)
        complete = report.plan is not None and report.deleted_count == len(report.plan.doomed)
        return Collection(report, gone=complete and not self._dry_run)

    def _detach(
        self, entries: tuple[ExternalDatabase, ...], decided_manifest: Manifest
    ) -> tuple[tuple[str, ...], list[str]]:
        """Remove our pins in ancestors, then their entries in our manifest.

        A crash in between leaves an entry, which the next collection removes.

        Returns:
            URLs of ancestors that are not needed any more, and the reasons why further unneeded ones could not be
            released.
        """
        released_pins: dict[str, str] = {}
        unreached: list[str] = []
        for entry in entries:
            try:
                release_pin(self._location.other(entry.url), entry.pin, clone=self._location, decided=decided_manifest)
                released_pins[entry.pin] = entry.url
            except LakebedError as error:
                unreached.append(f"The checkpoint {entry.pin} in {entry.url} is needed no more and stays: {error}")

        def change(manifest: Manifest) -> Manifest | None:
            remaining = tuple(entry for entry in manifest.external_databases if entry.pin not in released_pins)
            if len(remaining) == len(manifest.external_databases):
                return None
            return msgspec.structs.replace(manifest, external_databases=remaining)

        if released_pins:
            self._log.update(change)
        return tuple(released_pins.values()), unreached


class Collector:
    """Collects many databases in one process, each until it is gone."""

    def __init__(
        self,
        locations: Iterable[DatabaseLocation],
        *,
        options: CollectorOptions | None = None,
        dry_run: bool = False,
        progress: ProgressCall | None = None,
    ) -> None:
        self._locations = {location.url: location for location in locations}
        self._options = options or CollectorOptions()
        self._dry_run = dry_run
        self._progress = progress

    @property
    def urls(self) -> tuple[str, ...]:
        """Databases that still need a collector."""
        return tuple(self._locations)

    def collect_once(self, progress: ProgressCall | None = None) -> dict[str, Collection]:
        """Collect each database once. Databases that are gone are not collected again.

        Args:
            progress: for this round, instead of the collector's own.

        Returns:
            The results by URL. If a database could not be collected, the reason is in `Collection.error` and in the
            warnings of its report, and the others are still collected.
        """
        progress = progress or self._progress
        collections: dict[str, Collection] = {}
        for url, location in list(self._locations.items()):
            try:
                collections[url] = collect_once(
                    location, options=self._options, dry_run=self._dry_run, progress=progress
                )
            except LakebedError as error:
                is_gone = isinstance(error, NotFound) and error.kind == "database_not_found"
                plan = CollectionPlan(store_name(location), (), (), {}, (f"{url} was not collected: {error}",))
                report = report_of(plan, Sweep(), hidden_count=0, dry_run=self._dry_run)
                collections[url] = Collection(report, gone=is_gone, error=error)
            if collections[url].gone:
                del self._locations[url]
        return collections

    def run(
        self,
        *,
        every: timedelta,
        until: Callable[[], bool],
        tell: Callable[[dict[str, Collection]], None] | None = None,
    ) -> None:
        """Collect in rounds until every database is gone, or `until` returns True before a round.

        Args:
            every: pause between two rounds.
            tell: called after each round with what `collect_once` returned.
        """
        clock = next((location.environment.clock for location in self._locations.values()), None)
        while clock is not None and self._locations and not until():
            collections = self.collect_once()
            if tell is not None:
                tell(collections)
            if self._locations:
                clock.sleep(every.total_seconds())
