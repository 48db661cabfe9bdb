"""The timelines of one tenant on a node, and where their files are.

Owns: the `Timeline` objects, and the paths of files by their ids. Invariants: the mapping of timelines is
replaced, never changed, so readers need no lock; a path is recorded before its file is written or read.

Does not know: states, steps, and transactions except as the publisher's owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lakebed.errors import NotFound
from lakebed.fleet.layout import ID_MARK
from lakebed.fleet.model import Manifest, TimelineIndex
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.indices import all_paths
from lakebed.fleet.node.publisher import GrantedPublisher
from lakebed.fleet.node.timeline import Timeline
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.lsm.files import FileStore
from lakebed.objects.port import ObjectStore

_PATHS_KEPT: Final = 1_024
"""Paths of files that no timeline names any longer, kept for reads that began before. A commit drops the excess."""


class TimelineSet:
    """The timelines of one tenant.

    Attributes:
        transaction: the open transaction; None: nothing may be written.
        timelines: by id.
    """

    def __init__(self, context: NodeContext, tenant: str) -> None:
        self.transaction: OpenTransaction | None = None
        self.timelines: dict[str, Timeline] = {}
        self._context = context
        self._tenant = tenant
        self._paths: dict[str, str] = {}
        self._names: tuple[Manifest | None, dict[str, str]] = (None, {})
        """A base, and the ids of its timelines by name."""

    def find(self, name: str, base: Manifest) -> Timeline | None:
        """Return a timeline of a base, by name or id. Cost: two lookups."""
        if name.startswith(ID_MARK):
            return self.timelines.get(name[1:])
        names = self._names
        if names[0] is not base:
            names = self._names = base, {index.name: index.id for index in base.timelines}
        return self.timelines.get(names[1].get(name, name))

    def show(self, indices: Mapping[str, TimelineIndex], *, anew: bool) -> None:
        """Replace the timelines by exactly these.

        Args:
            anew: the timelines belong to another base than before. All objects are made again, and take over the rows
                in memory above their files.
        """
        self._paths |= all_paths(self._tenant, indices.values())
        named_count = sum(len(ids) for timeline_index in indices.values() for ids in timeline_index.origins.values())
        if len(self._paths) > _PATHS_KEPT + 2 * named_count:
            self._paths = all_paths(self._tenant, indices.values())
        old_timelines = self.timelines
        new = {} if anew else {id: timeline for id, timeline in old_timelines.items() if id in indices}
        for id, index in indices.items():
            if id not in new:
                new[id] = self._new(index)
                if id in old_timelines:
                    new[id].adopt(old_timelines[id])
        for id in old_timelines.keys() | new.keys():
            self.note_rows(id, new.get(id))
        self.timelines = new

    def _new(self, index: TimelineIndex) -> Timeline:
        context = self._context
        publisher = GrantedPublisher(self, index.id, tenant=self._tenant, environment=context.environment)
        files = FileStore(
            context.storage,
            path_of=publisher.path_of,
            locate=self._locate,
            cache=context.cache,
            options=context.file_options,
            environment=context.environment,
        )
        return Timeline(
            index, tenant=self._tenant, files=files, publisher=publisher, log=context.log, options=context.options
        )

    def note_path(self, file_id: str, path: str) -> None:
        """Record the path of a new file."""
        self._paths[file_id] = path

    def _locate(self, file_id: str) -> tuple[ObjectStore, str]:
        path = self._paths.get(file_id)
        if path is None:
            raise NotFound(f"The file {file_id} of {self._tenant} is not named any more.", kind="object_not_found")
        return self._context.storage, path

    def note_rows(self, id: str, timeline: Timeline | None) -> None:
        """Report the memory of a timeline's rows to the memory budget."""
        self._context.budget.note(self._tenant, id, 0 if timeline is None else timeline.unflushed_bytes)

    def forget_files(self, before: Manifest, after: Manifest) -> None:
        """Drop handles and cached blocks of files that no timeline names any longer."""
        removed_ids = _ids(before.timelines) - _ids(after.timelines)
        if removed_ids:
            for timeline in self.timelines.values():
                timeline.forget(removed_ids)


def _ids(indices: Iterable[TimelineIndex]) -> set[str]:
    return {file.id for index in indices for file in index.files.files()}
