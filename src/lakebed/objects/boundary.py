"""The boundary of a numbered log. Ids below it are never used again, and their winners are recorded.

A create-only put does not know deleted ids. A writer that stalls long enough could re-create a collected id and believe
that it committed. And a writer that won, then stalled while its id was collected, must not believe that it lost. So
before ids below ``B`` are deleted, a marker is created that lists (id, write id) of every id that it passes: the ids in
``[from, B)`` that existed, where ``from`` is the ``B`` of the previous marker.

Invariants:
- Markers form one chain, ``<folder>/<place in the chain as 20 digits>``. Each is create-only and durable, and begins
  where the previous one ends. So two collectors cannot list the same ids. Otherwise the later one might find an object
  that a late writer re-created after the earlier one's deletion, and record it as the winner.
- A marker is raised only if an id >= B exists, so the next free id is never passed.
- The newest `MARKER_COUNT_KEPT` markers are kept. A writer that stalls for longer gets `OutcomeUnknown`.

Format: docs/format/numbered-log.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from lakebed.errors import AlreadyExists, Conflict, Corruption, NotFound, UnsupportedFormat
from lakebed.objects.create_once import create_once
from lakebed.objects.path import join_path
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.runtime import Environment

MARKER_COUNT_KEPT: Final = 64

LOOKS_MAX: Final = 1_000
"""How often state is read again that other processes change at the same time."""

_FORMAT: Final = 1
_DIGITS: Final = 20

CreateOutcome = Literal["open", "won", "lost", "forgotten"]
"""The outcome of (id, write id) according to the markers.

Not passed; passed as ours; passed as another writer's; not recorded any longer.
"""


@dataclass(frozen=True, slots=True)
class Marker:
    """One step of the boundary: the ids in ``[passed_from, below)`` were passed, with their winners."""

    below: int
    passed_from: int
    winners: Mapping[int, str | None]
    """Write id of every id that existed; None if its writer, another client, gave none."""


def encode_marker(marker: Marker) -> bytes:
    """Return the marker as JSON."""
    winners = [[number, marker.winners[number]] for number in sorted(marker.winners)]
    return msgspec.json.encode(
        {"format": _FORMAT, "below": marker.below, "from": marker.passed_from, "winners": winners}
    )


def decode_marker(body: Any, *, path: str) -> Marker:
    """Parse a marker from JSON. Raises `Corruption` and `UnsupportedFormat`, both with ``path``."""
    try:
        fields = msgspec.json.decode(body)
        if fields["format"] != _FORMAT:
            raise UnsupportedFormat(
                f"{path} is a boundary marker of format {fields['format']}, and this lakebed knows {_FORMAT}: upgrade",
                path=path,
            )
        winners = {int(number): None if write_id is None else str(write_id) for number, write_id in fields["winners"]}
        return Marker(int(fields["below"]), int(fields["from"]), winners)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise Corruption(f"{path} is not a boundary marker", path=path) from error


_NONE: Final = (0, Marker(0, 0, {}))
"""The newest marker before any marker is raised."""


def _is_place(name: str) -> bool:
    return len(name) == _DIGITS and name.isascii() and name.isdecimal()


class Boundary:
    """The markers of one log.

    Args:
        folder: the folder of the markers, in which other clients do not delete unknown files.
    """

    def __init__(self, store: ObjectStore, folder: str, *, environment: Environment) -> None:
        self._store = store
        self._folder = folder
        self._environment = environment
        # Markers never change, so the newest one seen stays valid while its object exists. It is deleted when there are
        # many newer ones, or with the log, which may then be created again with other markers at the same places.
        self._newest: tuple[int, Marker] = _NONE
        self._object: ObjectMeta | None = None
        self.was_read = False
        """Whether the markers were read before."""

    def path(self, place: int) -> str:
        """Path of the marker at a place in the chain."""
        return join_path(self._folder, f"{place:0{_DIGITS}d}")

    def newest(self) -> tuple[int, Marker]:
        """Return the newest marker and its place; place 0 and an empty marker if none was raised.

        Cost: 1 LIST, and 1 GET for a marker that was not seen yet; 1 LIST more after the log was deleted.
        """
        for _ in range(LOOKS_MAX):
            last_seen, listed_object = self._newest, self._object
            metas = self._metas(after=max(last_seen[0] - 1, 0))
            self.was_read = True
            if metas and metas[-1][1] == listed_object:
                return last_seen
            if not metas:
                self._newest, self._object = _NONE, None
                if listed_object is None:
                    return self._newest
                continue  # the log was deleted, and may have been made again with fewer markers
            place, meta = metas[-1]
            newest_marker = self._load(place)
            if newest_marker is not None:  # else it was removed as too old meanwhile: newer ones exist
                self._newest, self._object = (place, newest_marker), meta
                return self._newest
        raise Conflict(
            f"The newest marker in {self._folder} was listed {LOOKS_MAX} times and gone each time that it was read: "
            "others delete faster than this can look, or the store lists what it does not have. Try again.",
            kind="newest_unsettled",
            path=self._folder,
        )

    @property
    def seen_below(self) -> int:
        """The boundary as last seen. The real one may be higher, or lower in a log that was made again. Cost: 0."""
        return self._newest[1].below

    def current(self) -> int:
        """Return the boundary, below which ids are never used again; 0 if no marker was raised. Cost: as `newest`."""
        return self.newest()[1].below

    def create_outcome(self, number: int, write_id: str | None) -> CreateOutcome:
        """Return the outcome of a create, by its write id (None: of a client that gives none), from the markers.

        Cost: as `newest`; for an id that was passed also 1 GET for each marker raised since.
        """
        marker = self._find_passing(number)
        if not isinstance(marker, Marker):
            return marker
        return "won" if number in marker.winners and marker.winners[number] == write_id else "lost"

    def has_other_winner(self, number: int, write_id: str | None) -> bool:
        """Whether the markers name another winner of a number than this write id.

        False for a number that did not exist when it was passed: other clients delete numbers before that, and may put
        them back. Cost: as `create_outcome`.
        """
        marker = self._find_passing(number)
        return isinstance(marker, Marker) and number in marker.winners and marker.winners[number] != write_id

    def _find_passing(self, number: int) -> Marker | Literal["open", "forgotten"]:
        place, marker = self.newest()
        if marker.below <= number:
            return "open"
        while marker.passed_from > number:
            place -= 1
            older = self._load(place)
            if older is None or older.below != marker.passed_from:
                return "forgotten"
            marker = older
        return marker

    def raise_to(self, marker: Marker, *, after: int) -> bool:
        """Create the marker that follows the one at place `after`, and remove those that are too old.

        Returns:
            False if another collector was first. List the ids to pass again, from its marker on.

        Cost: 1 PUT and 1 LIST, and 1 DELETE if there are too many.
        """
        body = encode_marker(marker)
        try:
            create_once(self._store, self.path(after + 1), body, environment=self._environment)
        except AlreadyExists:
            return False
        places = self._places()
        if len(places) > MARKER_COUNT_KEPT:
            self._store.delete(self.path(place) for place in places[:-MARKER_COUNT_KEPT])
        # No place is left if the log was deleted in between. A later place means that we stalled so long that our
        # marker was created again.
        return bool(places) and places[-1] < after + MARKER_COUNT_KEPT

    def _places(self) -> list[int]:
        return [place for place, _ in self._metas(after=0)]

    def _metas(self, *, after: int) -> list[tuple[int, ObjectMeta]]:
        start_after = self.path(after) if after else None
        numbered = (
            (meta.path.rpartition("/")[2], meta) for meta in self._store.list(self._folder, start_after=start_after)
        )
        return [(int(name), meta) for name, meta in numbered if _is_place(name)]

    def _load(self, place: int) -> Marker | None:
        path = self.path(place)
        try:
            return decode_marker(self._store.get(path), path=path)
        except NotFound:
            return None
