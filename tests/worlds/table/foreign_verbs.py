"""The verbs of the format's Java implementation, as the operations on objects that it does.

Owns: rollback, expiry, tags and branches of another client; its commits are in `foreign`. Each follows the order of
the Java implementation (``RollbackHelper``, ``ExpireSnapshotsImpl``, ``TagManager``, ``FileSystemBranchManager``).

Invariants: no object of lakebed's own is read or written: no boundary, no pin, no unfinished deletion, no mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lakebed.errors import NotFound
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.layout import Layout, parse_schema, parse_snapshot, parse_tag
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table


def foreign_rollback(table: Table, target: int | str) -> None:
    """Roll back to a snapshot id or to a tag by name: later snapshots and tags go, their ids are used again.

    Raises:
        NotFound: no such snapshot or tag; nothing was changed.
    """
    store, layout = table.store, table.context.layout
    if isinstance(target, str):
        kept = decode_snapshot(store.get(layout.tag(target)), path=layout.tag(target)).id
        if kept not in _ids(store, layout):
            store.put(layout.snapshot(kept), _rewritten(store, layout.tag(target)))
            store.put(layout.earliest_hint, str(kept).encode())
    else:
        kept = target
        store.head(layout.snapshot(kept))
    store.put(layout.latest_hint, str(kept).encode())
    for snapshot_id in reversed(_ids(store, layout)):
        if snapshot_id > kept:
            store.delete([layout.snapshot(snapshot_id)])
    for name, snapshot in _tags(store, layout):
        if snapshot.id > kept:
            store.delete([layout.tag(name)])


def foreign_expire(table: Table, *, retain_max: int) -> None:
    """Keep the newest `retain_max` ids; delete what only the older snapshots need, tags considered."""
    store, layout = table.store, table.context.layout
    ids = _ids(store, layout)
    first = max(ids[-1] - retain_max + 1, ids[0])
    first = next(item for item in ids if item >= first)
    gone = [item for item in ids if item < first]
    doomed = [_snapshot(store, layout, item) for item in gone]
    store_paths = _named(table, doomed) - _named(table, _versions(table, without=gone))
    store.delete(sorted(store_paths))
    store.delete([layout.snapshot(item) for item in gone])
    store.put(layout.earliest_hint, str(first).encode())


def foreign_tag(table: Table, name: str, snapshot_id: int) -> None:
    """Tag a snapshot: its JSON, written anew. Raises `NotFound`."""
    table.store.put(table.context.layout.tag(name), _rewritten(table.store, table.context.layout.snapshot(snapshot_id)))


def foreign_delete_tag(table: Table, name: str) -> None:
    """Delete a tag and, when its snapshot has expired, the files that no other version needs."""
    store, layout = table.store, table.context.layout
    tagged = decode_snapshot(store.get(layout.tag(name)), path=layout.tag(name))
    store.delete([layout.tag(name)])
    if tagged.id not in _ids(store, layout):
        store.delete(sorted(_named(table, [tagged]) - _named(table, _versions(table, without=()))))


def foreign_branch(table: Table, name: str, tag: str) -> None:
    """A branch that starts from a tag: tag, snapshot and schemas are copied; no pin is left."""
    store, main, branch = table.store, table.context.layout, Layout(branch=name)
    snapshot_id = decode_snapshot(store.get(main.tag(tag)), path=main.tag(tag)).id
    store.put(branch.tag(tag), store.get(main.tag(tag)))
    store.put(branch.snapshot(snapshot_id), _rewritten(store, main.tag(tag)))
    for meta in list(store.list(main.schema_folder)):
        schema_id = parse_schema(meta.path)
        if schema_id is not None:
            store.put(branch.schema(schema_id), store.get(meta.path))


def _rewritten(store: ObjectStore, path: str) -> bytes:
    """A snapshot's or tag's members by another JSON writer, without those of a tag."""
    members = json.loads(bytes(store.get(path)))
    return json.dumps({key: members[key] for key in sorted(members) if not key.startswith("tag")}).encode()


def _ids(store: ObjectStore, layout: Layout) -> list[int]:
    result = (parse_snapshot(meta.path) for meta in list(store.list(layout.snapshot_folder)))
    return sorted(item for item in result if item is not None)


def _tags(store: ObjectStore, layout: Layout) -> list[tuple[str, Snapshot]]:
    result = []
    for meta in list(store.list(layout.tag_folder)):
        name = parse_tag(meta.path)
        if name is not None:
            result.append((name, decode_snapshot(store.get(meta.path), path=meta.path)))
    return result


def _snapshot(store: ObjectStore, layout: Layout, snapshot_id: int) -> Snapshot:
    path = layout.snapshot(snapshot_id)
    return decode_snapshot(store.get(path), path=path)


def _versions(table: Table, *, without: Iterable[int]) -> list[Snapshot]:
    """Every snapshot and tag of every branch, but some snapshots of this one."""
    store, gone = table.store, frozenset(without)
    folders = store.list_with_delimiter("branch").folders
    layouts = [Layout(), *(Layout(branch=folder.rpartition("branch-")[2]) for folder in folders)]
    result = []
    for layout in layouts:
        skipped = gone if layout.root == table.context.layout.root else frozenset()
        result += [_snapshot(store, layout, item) for item in _ids(store, layout) if item not in skipped]
        result += [snapshot for _, snapshot in _tags(store, layout)]
    return result


def _named(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    names = ReferencedFiles(table.context)
    items: set[str] = set()
    for snapshot in snapshots:
        try:
            items |= set(names.of(snapshot).to_pylist())
        except NotFound:
            continue  # a version that lost its files: another client does not look
    return items
