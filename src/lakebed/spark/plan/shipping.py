"""Ship to the tasks of a job: the store, the units of work of each task, and the entries of their files. Pure.

Owns: how a store is shipped (`ship`), how work is distributed over tasks (`pack_units`), and which files of a branch a
task may read (`locate`). Imports no PySpark, so processes without PySpark can plan and read too. Invariant: a store,
with its credentials, is never part of anything but a pickled function.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from lakebed.errors import InvalidRequest
from lakebed.objects.memory import absent
from lakebed.objects.path import is_url
from lakebed.objects.port import ObjectStore
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.task_store import EntryStore, TaskStore
from lakebed.table.model.model import Split
from lakebed.table.read.source_file import data_path

Unit = TypeVar("Unit")

TASK_BYTES_MAX = 128 << 20
OPEN_BYTES = 4 << 20
"""The cost of opening a file, in bytes that could be read meanwhile: it bounds how many small files make one task."""


def ship(store: ObjectStore, *, writes: bool = False) -> bytes:
    """Pickle a store for executors. Capture the bytes in a function; never put them into a column or a setting.

    Args:
        store: of a table; a folder of a branch is shipped as access to its bytes alone (`TaskStore`).
        writes: refuse a read-only store now, not after the job.

    Raises:
        InvalidRequest: a store in this process's memory; a commit or a protected branch, with `writes`.
        NotFound: the branch is gone.
    """
    bytes_url = store.root_url
    if isinstance(store, EntryStore):
        bytes_url = store.inside_url() or bytes_url
        store = store.for_tasks(writes=writes)
    if bytes_url.startswith("memory:"):
        raise InvalidRequest(
            f"The table is at {bytes_url}, in this process's memory, where Spark's workers cannot see it: keep "
            "tables for Spark in a folder or a bucket.",
            kind="memory_store",
            url=bytes_url,
        )
    return pickle.dumps(store)


def locate(
    store: ObjectStore, packs: Sequence[Sequence[Unit]], *, files: Callable[[Unit], Iterable[Sequence[str]]]
) -> list[Mapping[str, Entry]]:
    """Locate the files of each task, for stores whose paths are entries; empty for all others.

    Args:
        store: of the table, on the driver.
        packs: the units of each task.
        files: the files that a unit reads, each as its possible paths; see `split_files`.

    Raises `NotFound`: a file is gone. Cost: that of `EntryStore.entries` for all paths together; for other stores none.
    """
    url = store.root_url
    if not isinstance(store, EntryStore):
        return [{} for _ in packs]
    files_of_packs = [[file for unit in pack for file in files(unit)] for pack in packs]
    entries = store.entries(list(dict.fromkeys(path for pack in files_of_packs for file in pack for path in file)))
    for pack in files_of_packs:
        for file in pack:
            if not any(path in entries for path in file):
                raise absent(file[0], url)
    return [{path: entries[path] for file in pack for path in file if path in entries} for pack in files_of_packs]


def open_in_task(shipped: bytes, entries: Mapping[str, Entry] | None = None) -> ObjectStore:
    """Open a shipped store in a task, with the files of the task."""
    store: ObjectStore = pickle.loads(shipped)
    return store.with_entries(entries) if entries and isinstance(store, TaskStore) else store


def split_files(split: Split) -> list[tuple[str, ...]]:
    """Return the files of a split in its store, each as its possible paths."""
    data = [
        (data_path(split, file), *(f"{folder}/{file.file_name}" for folder in split.other_folders))
        for file in split.files
        if not file.external_path
    ]
    vectors = dict.fromkeys(place.path for place in split.vectors.values())
    return [*data, *((path,) for path in vectors if not is_url(path))]


def pack_units(units: Sequence[Unit], *, size_bytes: Callable[[Unit], int], task_count_min: int) -> list[list[Unit]]:
    """Group units into tasks: large ones alone, small neighbours together, at least as many as can run at once."""
    weights = [size_bytes(unit) + OPEN_BYTES for unit in units]
    task_bytes = min(TASK_BYTES_MAX, max(OPEN_BYTES, sum(weights) // max(1, task_count_min)))
    packs: list[list[Unit]] = []
    filled = 0
    for unit, weight in zip(units, weights, strict=True):
        if packs and filled + weight <= task_bytes:
            packs[-1].append(unit)
            filled += weight
        else:
            packs.append([unit])
            filled = weight
    return packs


def split_bytes(split: Split) -> int:
    """Return the encoded bytes of a split's files."""
    return sum(file.file_size for file in split.files)
