"""Probes: objects that are put to find out whether a store honours create-only puts, and what its time is.

Owns: the name of the probe object.

Create-only puts are tested once, before the first object that depends on them. They decide every commit, so a store
that ignores the condition (some S3-compatible servers do) would let two writers overwrite each other. Such a store is
refused before anything else is stored.

A lake probes its own root, and a database outside of a lake its folder. A table's collection determines the time in the
table's folder. A process that dies between the put and the delete of a probe leaves the probe. Every reader of a folder
ignores such objects (`is_probe`), and the collection of a lake or a database deletes those that are older than an hour
(`leftover_probes`).
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.ids import new_uuid
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.runtime import Environment

_PREFIX: Final = "lakebed-probe-"
PROBE_AGE_MS_MIN: Final = 3_600_000
"""A probe that is older than this (milliseconds) belongs to a dead process, because probing takes two requests."""


def is_probe(path: str) -> bool:
    """Return whether a path, relative to the probed folder, is that of a probe."""
    return path.startswith(_PREFIX)


def leftover_probes(store: ObjectStore, *, environment: Environment, dry_run: bool = False) -> tuple[ObjectMeta, ...]:
    """Return the probes directly in a folder that are older than `PROBE_AGE_MS_MIN`, by our clock and by the store's.

    Args:
        dry_run: use only our clock, because asking the store writes.

    Cost: 1 LIST, and that of `store_time_ms` if there are probes.
    """
    probes = [meta for meta in store.list_with_delimiter("").objects if is_probe(meta.path)]
    before_ms = environment.clock.now_ms() - PROBE_AGE_MS_MIN
    old = tuple(meta for meta in probes if meta.modified_ms < before_ms)
    if not old or dry_run:
        return old
    before_ms = min(before_ms, store_time_ms(store, environment=environment) - PROBE_AGE_MS_MIN)
    return tuple(meta for meta in old if meta.modified_ms < before_ms)


def probe_create_only(store: ObjectStore, *, environment: Environment | None = None) -> None:
    """Create one object twice, and check that the second put is refused.

    Raises:
        InvalidRequest: kind ``create_only_ignored``: the store overwrote the object.

    Cost: 2 PUT + 1 DELETE.
    """
    path = f"{_PREFIX}{new_uuid((environment or Environment()).rng)}"
    try:
        store.put(path, b"first", create_only=True, durable=False)
        store.put(path, b"second", create_only=True, durable=False)
    except AlreadyExists:  # also if the first put raised it: a client may have repeated it after a lost reply
        return
    finally:
        store.delete([path])
    raise InvalidRequest(
        f"The store at {store.root_url} ignores create-only puts (it overwrote an existing object), so two "
        "writers could destroy each other's commits. Use a store that honours If-None-Match on PUT.",
        kind="create_only_ignored",
        url=store.root_url,
    )


@runtime_checkable
class StorageClock(Protocol):
    """A store whose objects have the times of their writers, in a storage that has a time of its own."""

    def storage_ms(self) -> int:
        """Return the time of the storage, in Unix milliseconds."""


def store_time_ms(store: ObjectStore, *, environment: Environment) -> int:
    """Return the store's time, in Unix milliseconds. Cost: 1 PUT + 1 HEAD + 1 DELETE, or that of `StorageClock`."""
    if isinstance(store, StorageClock):
        return store.storage_ms()
    path = f"{_PREFIX}{new_uuid(environment.rng)}"
    try:
        store.put(path, b"", create_only=True, durable=False)
        return store.head(path).modified_ms
    finally:
        store.delete([path])
