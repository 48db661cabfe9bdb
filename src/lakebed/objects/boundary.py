"""The boundary of a numbered log: below it, ids are never used again, and their winners are on record.

A create-only put forgets deleted ids: a writer that stalls long enough could re-create a collected id and believe
that it committed; and one that truly won, then stalled while its id was collected, must not believe that it lost. So
before ids below ``B`` are deleted, a marker ``<folder>/<B as 20 digits>`` is created that lists (id, write id) of every
id it passes: those in ``[from, B)`` that were there, where ``from`` is the marker before it.

Invariants:
- Markers are create-only and durable, and raised only when an id >= B exists: so the next free id is never passed.
- A marker lists nothing below the marker before it: what a late writer re-created there is never taken for a winner.
- The newest `MARKER_COUNT_KEPT` markers stay; a writer that slept through more gets `OutcomeUnknown`.

Format: docs/format/numbered-log.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from lakebed.errors import AlreadyExists, Corruption, NotFound, UnsupportedFormat
from lakebed.objects.create_once import create_once
from lakebed.objects.path import join_path
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

__all__ = ["MARKER_COUNT_KEPT", "Boundary", "Marker", "Verdict", "decode_marker", "encode_marker", "judge"]

MARKER_COUNT_KEPT: Final = 64

_FORMAT: Final = 1
_DIGITS: Final = 20

Verdict = Literal["open", "won", "lost", "forgotten"]
"""What the markers say of (id, write id): not passed; passed as ours; passed otherwise; no longer on record."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One step of the boundary: ids in ``[passed_from, below)`` were passed, and these were their winners."""

    below: int
    passed_from: int
    winners: Mapping[int, str | None]
    """Write id of every id that was there; None where its writer gave none (another client's)."""


def encode_marker(marker: Marker) -> bytes:
    """The marker's JSON."""
    winners = [[number, marker.winners[number]] for number in sorted(marker.winners)]
    return msgspec.json.encode(
        {"format": _FORMAT, "below": marker.below, "from": marker.passed_from, "winners": winners}
    )


def decode_marker(body: Any, *, path: str) -> Marker:
    """The marker in a JSON body. Raises `Corruption` and `UnsupportedFormat`, both with ``path``."""
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


def judge(markers: list[Marker], number: int, write_id: str) -> Verdict:
    """What all markers above an id say about who won it."""
    above = [marker for marker in markers if marker.below > number]
    if not above:
        return "open"
    # Collectors may overlap, and the later one finds less: whoever lists the id knows.
    listed = [marker.winners[number] for marker in above if number in marker.winners]
    if listed:
        return "won" if write_id in listed else "lost"
    return "lost" if any(marker.passed_from <= number for marker in above) else "forgotten"


class Boundary:
    """The markers of one log.

    Args:
        store: where the log lives.
        folder: where its markers live: not where other clients clean away strangers.
    """

    def __init__(self, store: ObjectStore, folder: str, *, environment: Environment) -> None:
        self._store = store
        self._folder = folder
        self._environment = environment

    def path(self, below: int) -> str:
        """Path of a marker."""
        return join_path(self._folder, f"{below:0{_DIGITS}d}")

    def markers_above(self, number: int) -> list[int]:
        """Marker numbers above an id, ascending. Cost: 1 LIST."""
        start_after = None if number < 0 else self.path(number)
        names = (meta.path.rpartition("/")[2] for meta in self._store.list(self._folder, start_after=start_after))
        return [int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdecimal()]

    def current(self) -> int:
        """Ids below this are never used again; 0 when no marker was raised. Cost: 1 LIST."""
        return max(self.markers_above(-1), default=0)

    def verdict(self, number: int, write_id: str) -> Verdict:
        """What the markers say of a create that just happened. Cost: 1 LIST, and 1 GET a marker above the id."""
        above = self.markers_above(number)
        return judge(self._load(above), number, write_id) if above else "open"

    def _load(self, belows: list[int]) -> list[Marker]:
        markers: list[Marker] = []
        for below in belows:
            path = self.path(below)
            try:
                markers.append(decode_marker(self._store.get(path), path=path))
            except NotFound:
                continue  # removed as too old since it was listed
        # All of them gone: something passed the id, and nobody remembers what.
        return markers or [Marker(belows[-1], belows[-1], {})]

    def store_marker(self, marker: Marker) -> None:
        """Create a marker and remove those that are too old.

        Another collector's marker of the same number serves as well. Cost: 1 PUT, 1 LIST, and 1 DELETE when there are too many.
        """
        try:
            create_once(self._store, self.path(marker.below), encode_marker(marker), environment=self._environment)
        except AlreadyExists:
            # It passed the same ids, and was raised before anybody who raised it deleted any.
            return
        stale = self.markers_above(-1)[:-MARKER_COUNT_KEPT]
        if stale:
            self._store.delete(self.path(below) for below in stale)
