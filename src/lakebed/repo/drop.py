"""Delete the remains of deleted repositories: their objects and records.

Owns: the order of the deletes. A repository is gone from the moment its record is deleted. Its branches are deleted in
the same write, so no later write to it is acknowledged. Uploads and reads may still be running then, so the remains
stay for `CollectionOptions.grace`. After that a sweep deletes, in this order: the records; the objects, the marker
last; the records again, for rows written meanwhile; the note that the repository was deleted. Then the namespace is
free.

Invariants: a crash anywhere leaves the note, and the next sweep continues. If a sweep sleeps while another one
finishes, it deletes nothing of the repository that has the folder next. The one exception: if it sleeps between its
last check and the one request after that, it may delete the marker (docs/design/0018). Imported objects are elsewhere,
and are not deleted. Nor are lakeFS's files in a namespace that was shared with it. Does not know: how a repository is
deleted (`lakebed.repo.repositories`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec

from lakebed.errors import Conflict
from lakebed.key_value.port import KeyValue
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.repo.model.layout import CLOCK_PATH, MARKER_PATH, Keys, deletion_key, made_ulid
from lakebed.repo.model.model import DeletedRepository
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.outside.namespace import check_namespace, is_of_lakefs, is_shared_namespace, namespace_folder
from lakebed.repo.records.context import earlier_ms
from lakebed.repo.records.records import encode_record, replace_record
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.catalog import LocalCatalog

_KEYS_AT_ONCE: Final = 10_000


def sweep_deleted(
    repositories: Repositories, *, dry_run: bool = False, progress: Callable[[Any], None] | None = None
) -> list[CollectionReport]:
    """Delete the remains of repositories that were deleted longer ago than `CollectionOptions.grace`.

    Returns:
        One report for each repository, with the name that it had.
    Cost: for each 1 PUT, 1 HEAD, 1 DELETE, 3 GET, 1 LIST and 1 DELETE a thousand objects, and 2 scans of its records.
    """
    age_ms = round(CollectionOptions().grace.total_seconds() * 1000)
    catalog = local_catalog(repositories)
    reports = []
    for deleted in repositories.deleted():
        store = catalog.store.sub(namespace_folder(deleted.record.namespace, root_url=repositories.url))
        old_ms = deleted.deleted_at_ms + age_ms
        # The store's clock counts, too: ours may have been set forward. A dry run does not ask it: that needs a write.
        if catalog.environment.clock.now_ms() >= old_ms and (
            dry_run or earlier_ms(store, catalog.environment) >= old_ms
        ):
            reports.append(_sweep(catalog, store, deleted, dry_run=dry_run, progress=progress))
    return reports


def _sweep(
    catalog: LocalCatalog,
    store: ObjectStore,
    deleted: DeletedRepository,
    *,
    dry_run: bool,
    progress: Callable[[Any], None] | None,
) -> CollectionReport:
    sweeper = Sweeper(store, progress)
    try:
        check_namespace(store, deleted.record, name=deleted.name)
    except Conflict as problem:
        plan = CollectionPlan(deleted.name, (), (), warnings=(f"Nothing is deleted: {problem.message}",))
        return sweeper.sweep(plan, dry_run=dry_run)
    if dry_run:
        return sweeper.sweep(_plan(store, deleted), dry_run=True)
    keys, note = Keys(deleted.record.uid), deletion_key(deleted.record.uid)
    if not _state_sharing(catalog.key_value, store, deleted, note=note):
        return sweeper.sweep(CollectionPlan(deleted.name, (), ()))
    _delete_records(catalog.key_value, keys)
    sweeper.delete_all([Deletable(CLOCK_PATH, 0, "it told the time")])
    plan = _plan(store, deleted)
    # The folder belongs to another repository only after the note is gone. So if the note still exists, everything that
    # was listed before is the old repository's. Names with an id are never used again; others, such as the marker, are.
    report = sweeper.sweep(plan, is_current=lambda: catalog.key_value.get(note) is not None)
    if report.deleted_count < len(plan.doomed):
        return report
    _delete_records(catalog.key_value, keys)
    catalog.key_value.delete(note)
    return report


def _state_sharing(key_value: KeyValue, store: ObjectStore, deleted: DeletedRepository, *, note: bytes) -> bool:
    """If only the marker says that the namespace is shared, record it in the note, because the marker is deleted first.

    Returns False if the note has changed meanwhile, or is gone: another sweep continues.
    """
    record = deleted.record
    if record.is_shared or not is_shared_namespace(store, record):
        return True
    shared_record = msgspec.structs.replace(deleted, record=msgspec.structs.replace(record, is_shared=True))
    raw = key_value.get(note)
    return raw is not None and replace_record(key_value, note, encode_record(shared_record), expected=raw)


def _plan(store: ObjectStore, deleted: DeletedRepository) -> CollectionPlan:
    why = f"repository {deleted.name} was deleted"
    uid, is_shared = deleted.record.uid, is_shared_namespace(store, deleted.record)
    metas = (meta for meta in store.list() if not (is_shared and is_of_lakefs(meta.path, uid=uid)))
    # The object that a sweep puts to learn the store's time is not counted, so that a dry run shows the same objects.
    deletable = [Deletable(meta.path, meta.size_bytes, why) for meta in metas if meta.path != CLOCK_PATH]
    deletable.sort(key=lambda target: (made_ulid(target.path) is None, target.path == MARKER_PATH))
    return CollectionPlan(deleted.name, (), tuple(deletable))


def _delete_records(key_value: KeyValue, keys: Keys) -> None:
    while True:
        with key_value.snapshot() as snapshot:
            batch = [key for key, _ in islice(snapshot.scan(*prefix_range(keys.root)), _KEYS_AT_ONCE)]
        if not batch:
            return
        key_value.write(deletes=batch)
