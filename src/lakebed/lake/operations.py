"""Operations on a whole lake: ls, history, pins, why, collect. Each is one loop over stores of every kind.

Invariants: an unreadable store does not prevent the listing of the others. Only `collect` deletes. Does not know: the
kinds of stores; each kind has an adapter in `lakebed.lake.adapters`.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lakebed.errors import LakebedError, NotFound
from lakebed.lake.adapters.databases import DatabaseAdapter
from lakebed.lake.adapters.port import Collection, StoreAdapter, StoreSummary
from lakebed.lake.adapters.repositories import RepositoryAdapter
from lakebed.lake.adapters.tables import TableAdapter
from lakebed.lake.adapters.tenants import TenantAdapter
from lakebed.lake.marker import MARKER_PATH
from lakebed.lake.names import WAREHOUSE_SUFFIX, StoreName
from lakebed.lake.stores import Stores, call_each, list_table_folders, path_in
from lakebed.objects.path import join_path
from lakebed.objects.port import ObjectStore, has_object
from lakebed.objects.probe import leftover_probes
from lakebed.objects.reserve import RESERVE_PATH, freeing_space, keep_reserve
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable, Explanation, Listing, Pin, Version
from lakebed.reclaim.sweep import Sweeper
from lakebed.texts import list_some

_ADAPTERS: Final[dict[str, StoreAdapter]] = {
    "table": TableAdapter(),
    "database": DatabaseAdapter(),
    "repository": RepositoryAdapter(),
    "tenant": TenantAdapter(),
}
"""By kind, in the order of `Stores.stores`."""


def ls(lake: Stores, *, disk: bool = True) -> list[StoreSummary]:
    """List every store with its newest version, rows, bytes and pins, by kind, sorted by name.

    An unreadable store is listed with its `problem`.

    Args:
        disk: also add up the bytes of all objects of each store.

    Cost: for each store, that of its adapter's `summary`; with `disk` also 1 LIST a thousand objects.
    """
    summaries = call_each(lake, lambda store: _summary(lake, store, disk=disk), lake.stores())
    return Listing(summary for summary in summaries if summary is not None)


def _summary(lake: Stores, store: StoreName, *, disk: bool) -> StoreSummary | None:
    adapter = _ADAPTERS[store.kind]
    try:
        summary = adapter.summary(lake, store.name)
        if summary is None or not disk:
            return summary
        return replace(summary, disk_bytes=adapter.disk_bytes(lake, store.name))
    except LakebedError as problem:
        return StoreSummary(store.kind, store.name, None, None, None, 0, 0, problem=problem.message)


def history(lake: Stores, name: str) -> list[Version]:
    """Return the readable versions of a store, oldest first, pinned ones included. Raises `NotFound`."""
    store = lake.find(name)
    return Listing(_ADAPTERS[store.kind].versions(lake, store.name))


def pins(lake: Stores, name: str | None = None) -> list[Pin]:
    """Return everything that keeps a version alive, in one store or in all, with the bytes that only it holds.

    Cost: as `ls`, and the file lists of every pinned version.
    """
    stores = lake.stores() if name is None else [lake.find(name)]
    pin_lists = call_each(lake, lambda store: _ADAPTERS[store.kind].pins(lake, store.name), stores)
    return Listing(pin for pin_list in pin_lists for pin in pin_list)


def why(lake: Stores, where: str) -> Explanation:
    """Explain which pins need an object, or when it may be deleted.

    Args:
        where: the object's URL, or its path relative to the lake's root.

    Raises:
        InvalidRequest: the URL lies outside this lake.
        NotFound: kind ``object_not_found``: there is no such object. The error has similar names.
    """
    path = path_in(lake, where)
    if not has_object(lake.store, path):
        raise no_such_object(lake.store, path, explanation=_explain_missing(lake, path))
    return _explain(lake, path) or Explanation(
        path, (), "No store of the lake contains this object, so lakebed neither needs nor deletes it."
    )


def _explain_missing(lake: Stores, path: str) -> Explanation | None:
    """Explain which pins need a missing object; None when its store does not know."""
    try:
        return _explain(lake, path)
    except NotFound:
        return None


def _explain(lake: Stores, path: str) -> Explanation | None:
    if path == MARKER_PATH:
        return Explanation(path, (), "This is the marker of the lake: it stays as long as the lake does.")
    if path == RESERVE_PATH:
        return Explanation(
            path, (), "This is disk space held back for deletions: a deletion on a full disk gives it up."
        )
    explanations = (adapter.why(lake, path) for adapter in _ADAPTERS.values())
    return next((explanation for explanation in explanations if explanation is not None), None)


@freeing_space()
def collect(lake: Stores, collection: Collection) -> list[CollectionReport]:
    """Delete what is no longer needed, by each store's own retention settings. As `Lake.collect`.

    Returns:
        One report for each deleting step: first the stores by kind, in order of their names; last the probes of
        processes that died while they created a store, if there are any.
    """
    reports = [report for adapter in _ADAPTERS.values() for report in adapter.collect(lake, collection)]
    reports += _collect_probes(lake, collection)
    if not collection.dry_run:
        keep_reserve(lake.store)
    return reports


def _collect_probes(lake: Stores, collection: Collection) -> list[CollectionReport]:
    """Delete the probes of processes that died. Cost: 1 LIST of the root and 1 of each folder that may be a store's."""
    top = [folder for folder in lake.store.list_with_delimiter("").folders if not folder.endswith(WAREHOUSE_SUFFIX)]

    def probes(folder: str) -> list[Deletable]:
        store = lake.store.sub(folder) if folder else lake.store
        metas = leftover_probes(store, environment=lake.environment, dry_run=collection.dry_run)
        return [
            Deletable(join_path(folder, meta.path), meta.size_bytes, "its process died while probing") for meta in metas
        ]

    folders = ["", *top, *(name.folder for name in list_table_folders(lake))]
    deletables = tuple(deletable for batch in call_each(lake, probes, folders) for deletable in batch)
    if not deletables:
        return []
    sweeper = Sweeper(lake.store, collection.progress)
    return [sweeper.sweep(CollectionPlan("lake", (), deletables), dry_run=collection.dry_run)]


_NEAREST_MAX: Final = 3
_INTERNAL: Final = ("_", "lakebed.json")
"""Prefixes of names that are not stores. Such an object is found when it is requested, but never proposed."""
_COMPARED_MAX: Final = 1000
"""How many names of a folder are compared with the requested name: those that sort next to it."""


def no_such_object(store: ObjectStore, path: str, *, explanation: Explanation | None) -> NotFound:
    """Return the error for a missing object. It names the pins in `explanation`, if any, which need the object."""
    sentence = f"There is no object {path} in {store.root_url}"
    if explanation is not None and explanation.pins:
        holders = ", ".join(f"{pin.kind} {pin.name}" for pin in explanation.pins[:_NEAREST_MAX])
        more_count = len(explanation.pins) - _NEAREST_MAX
        holders_text = f"{holders}{f' and {more_count} more' if more_count > 0 else ''}"
        return NotFound(
            f"{sentence}, and {holders_text} cannot be read without it: `lakebed fsck` finds what else is missing.",
            kind="object_not_found",
            path=path,
            nearest=[],
        )
    folder, names = _deepest(store, path)
    if folder == path:
        first = next(iter(store.list(path)), None)
        hint = (
            "It is an empty folder."
            if first is None
            else f"It is a folder: name an object in it, such as {first.path}."
        )
        return NotFound(f"{sentence}. {hint}", kind="object_not_found", path=path, nearest=names[:_NEAREST_MAX])
    path_start = "/".join(path.split("/")[: folder.count("/") + 2 if folder else 1])
    start = max(0, bisect_left(names, path_start) - _COMPARED_MAX // 2)
    nearest = difflib.get_close_matches(path_start, names[start : start + _COMPARED_MAX], n=_NEAREST_MAX, cutoff=0.6)
    if nearest:
        hint = f" Did you mean {' or '.join(nearest)}?"
    else:
        names = [name for name in names if not name.startswith(_INTERNAL)]
        hint = f" {folder or 'It'} has {list_some(names, count_max=_NEAREST_MAX)}."
    return NotFound(f"{sentence}.{hint if names else ''}", kind="object_not_found", path=path, nearest=nearest)


def _deepest(store: ObjectStore, path: str) -> tuple[str, Sequence[str]]:
    """Return the deepest existing folder of a path, and its sorted contents."""
    parts = path.split("/")
    for count in range(len(parts), -1, -1):
        folder = "/".join(parts[:count])
        level = store.list_with_delimiter(folder)
        names = sorted([*(meta.path for meta in level.objects), *level.folders])
        if names:
            return folder, names
    return "", ()
