"""What is left of deleted repositories: their objects and records.

Owns: the order in which they go. A repository is gone from the moment its record is, and its branches go in the same
write, so no write to it is acknowledged after that. What was being uploaded or read then goes on for a while, so its
remains are left alone for `CollectionOptions.grace`. Then: records; objects, the marker last; records again, for what
was written meanwhile; the note that it was deleted. Its namespace is free from then on.

Invariants: a crash anywhere leaves the note, and the next sweep continues. Of two that run at once, one that sleeps
takes nothing of the repository that has the folder next; but when it sleeps between its last look and the one request
behind it, the marker (docs/design/0018). Imported objects are not touched, for they are elsewhere; nor is what lakeFS
had in a namespace that was shared with it. Does not know: how a repository is deleted (`lakebed.repo.repositories`).
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
    """Delete what is left of repositories that were deleted before `CollectionOptions.grace`.

    Returns:
        One report a repository, by the name it had.
    Cost: of each 1 PUT, 1 HEAD, 1 DELETE, 3 GET, 1 LIST and 1 DELETE a thousand objects, and 2 scans of its records.
    """
    age_ms = round(CollectionOptions().grace.total_seconds() * 1000)
    catalog = local_catalog(repositories)
    reports = []
    for deleted in repositories.deleted():
        store = catalog.store.sub(namespace_folder(deleted.record.namespace, root_url=repositories.url))
        old_ms = deleted.deleted_at_ms + age_ms
        # The store's clock counts too: ours may have been set forward. A dry run writes nothing, so it does not ask.
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
    # The folder is another repository's only when the note is gone. So what was listed before a look that finds the
    # note is the old one's; names with an id are not given again, but others are, such as the marker's.
    report = sweeper.sweep(plan, is_current=lambda: catalog.key_value.get(note) is not None)
    if report.deleted_count < len(plan.doomed):
        return report
    _delete_records(catalog.key_value, keys)
    catalog.key_value.delete(note)
    return report


def _state_sharing(key_value: KeyValue, store: ObjectStore, deleted: DeletedRepository, *, note: bytes) -> bool:
    """Let the note say that the namespace is shared, where the marker alone does: the marker goes before the note.

    Returns False where the note has changed meanwhile, or is gone: another sweep continues.
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
    # What a sweep puts to learn the store's time is counted by none: a dry run shows what the sweep then deletes.
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
