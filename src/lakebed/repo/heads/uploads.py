"""Put several independent small objects on a branch, with the syncs and the write of one object.

Owns: the order of the steps. All bytes are put, then synced together, then one write stages all rows: a row never
refers to bytes that are not durable. The rows are written together or not at all. If that fails because of one row, or
because the branch moved, each row is staged alone and has its own outcome.

Invariant: an upload is acknowledged under the same conditions as by `lakebed.repo.heads.write.stage`. After a write
with unknown outcome, no row is written a second time, because another process may have replaced it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.repo.heads.write import stage, stage_many
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext


@dataclass(frozen=True, slots=True)
class SmallUpload:
    """An object to be written, unconditionally.

    Attributes:
        read: returns its bytes. A `LakebedError` that it raises is the upload's outcome.
    """

    path: str
    read: Callable[[], Buffer]
    content_type: str
    metadata: Mapping[str, str]


def upload_many(context: RepositoryContext, branch: str, uploads: Sequence[SmallUpload]) -> list[Entry | LakebedError]:
    """Store objects and stage them, in this order: if a path repeats, its last object stays.

    Returns:
        The outcome of each upload: its entry, or its error, of `data.upload` or `stage`.

    Raises:
        Unavailable, OutcomeUnknown, Fenced: the error concerns all uploads.
    Cost: 1 PUT an object, 1 sync of all of them, and 1 write of the key-value store.
    """
    bodies: list[tuple[Buffer, str, dict[str, str]]] = []
    failures: dict[int, LakebedError] = {}
    for number, upload in enumerate(uploads):
        try:
            metadata = data.check_metadata(upload.metadata, content_type=upload.content_type)
            bodies.append((upload.read(), upload.content_type, metadata))
        except LakebedError as error:
            failures[number] = error
    paths = [upload.path for number, upload in enumerate(uploads) if number not in failures]
    staged_entries = iter(
        _stage_each(context, branch, list(zip(paths, data.upload_each(context, bodies), strict=True)))
    )
    return [failures[number] if number in failures else next(staged_entries) for number in range(len(uploads))]


def _stage_each(
    context: RepositoryContext, branch: str, pairs: Sequence[tuple[str, Entry]]
) -> list[Entry | LakebedError]:
    if len(pairs) > 1:
        try:
            stage_many(context, branch=branch, entries=pairs)
        except (InvalidRequest, NotFound, Conflict):  # nothing was written, and it is unknown which row caused it
            pass
        else:
            return [entry for _, entry in pairs]
    outcomes: list[Entry | LakebedError] = []
    for path, entry in pairs:
        try:
            stage(context, branch=branch, path=path, entry=entry)
        except (InvalidRequest, NotFound, Conflict) as error:
            outcomes.append(error)
        else:
            outcomes.append(entry)
    return outcomes
