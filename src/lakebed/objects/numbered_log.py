"""The commit primitive: a folder of numbered objects, where the next number may only be created, never replaced.

Owns: finding the newest number, the append that decides races, and the fence before deletions.

Invariants:
- Only the create-only put of number n decides which writer won n. The write id inside the payload identifies it.
- A lost reply is resolved in two steps: repeat the put of the same number, body and write id until the number is
  taken, and then read it back.
- With a boundary, no append through this class uses a deleted number again. Gaps are legal.
- Hints only save requests, and are never trusted alone.

A client that creates such objects by other means ignores the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from typing_extensions import Buffer

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.boundary import LOOKS_MAX, Boundary, CreateOutcome, Marker
from lakebed.objects.create_once import create_once, until_answered
from lakebed.objects.path import join_path
from lakebed.objects.port import ObjectStore, has_object
from lakebed.runtime import Environment

_HINT_BYTES_MAX: Final = 32


class NumberedLog:
    """Numbered objects in one folder. Thread-safe. Caches only the newest number that it saw, in order to start there.

    Args:
        folder: the folder, relative to the store.
        name_of: returns the file name of a number. With padded names (text order is number order) `latest` is one LIST.
        id_of: returns the number of a file name; None for other files.
        write_id_of: returns the write id inside a payload; None if it has none.
        boundary_folder: folder of the markers; None for a log whose numbers are never deleted, or fenced otherwise.
        latest_hint_path: an object with the newest number as text, written after each append for other clients.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        name_of: Callable[[int], str],
        id_of: Callable[[str], int | None],
        write_id_of: Callable[[Buffer], str | None],
        boundary_folder: str | None = None,
        latest_hint_path: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._name_of = name_of
        self._id_of = id_of
        self._write_id_of = write_id_of
        self._environment = environment or Environment()
        self._hint_path = latest_hint_path
        self._boundary = (
            None if boundary_folder is None else Boundary(store, boundary_folder, environment=self._environment)
        )
        self._padded = name_of(9) < name_of(10)
        self._seen: int | None = None

    @property
    def seen(self) -> int | None:
        """The newest number that this object has seen. Other writers may have added newer ones, or deleted it."""
        return self._seen

    def path(self, number: int) -> str:
        """Return the path of a number's object."""
        return join_path(self._folder, self._name_of(number))

    def latest(self, *, exact: bool = True) -> int | None:
        """Return the newest number; None for an empty log.

        Args:
            exact: False does not read the boundary. Then a newest number after a gap (from another client's rollback)
                may be missed. This is enough for a writer: its append of a wrong number is a `Conflict`, which updates
                this log.

        Cost: padded names: 1 LIST. Others: 2 HEADs (the last seen number exists, the next does not), 1 LIST of the
        boundary (and 1 GET of a new marker), and 1 HEAD for each number appended since. The first time also 1 GET of
        the hint. If neither memory nor hint helps, 1 LIST for 1000 numbers.
        """
        number = self._latest_padded() if self._padded else self._latest_probed(exact)
        self._seen = number
        return number

    def newest(self, *, exact: bool = True) -> tuple[int, Buffer] | None:
        """Return the newest number with its payload; None for an empty log.

        Cost: as `latest`, with one GET instead of one HEAD.
        """
        look = self._latest_padded if self._padded else self._latest_listed
        start = None if self._padded else self._start()
        number = look() if start is None else self._climb(start, exact)
        for _ in range(LOOKS_MAX):
            self._seen = number
            if number is None:
                return None
            body = self._read_if_there(number)
            if body is not None:
                return number, body
            number = look()
        raise Conflict(
            f"The newest object in {self._folder} was listed {LOOKS_MAX} times and gone each time that it was read: "
            "others delete faster than this can look, or the store lists what it does not have. Try again.",
            kind="newest_unsettled",
            path=self._folder,
        )

    def _latest_padded(self) -> int | None:
        if self._seen is not None and self._seen > 0:
            number = self._last_listed(start_after=self.path(self._seen - 1))
            if number is not None:
                return number
        return self._last_listed()

    def _last_listed(self, *, start_after: str | None = None) -> int | None:
        """Return the last number of a padded log's listing. Skip other files after it one by one."""
        paths = list(self._store.list_paths(self._folder, start_after=start_after))
        numbers = (self._id_of(path.rpartition("/")[2]) for path in reversed(paths))
        return next((number for number in numbers if number is not None), None)

    def _latest_probed(self, exact: bool) -> int | None:
        start = self._start()
        if start is not None:
            number = self._climb(start, exact)
            if number != start or self.exists(number):
                return number
        return self._latest_listed()

    def _start(self) -> int | None:
        return self._seen if self._seen is not None else self._read_hint()

    def _climb(self, start: int, exact: bool) -> int:
        """Return the last number that is reached from `start` without a gap. Repeat this from a higher marker."""
        number = start
        while True:
            while self.exists(number + 1):
                number += 1
            if self._boundary is None or not exact:
                return number
            # The next numbers may have been deleted while newer ones exist. A marker passed them before that.
            boundary = self._boundary.current()
            if boundary <= number:
                return number
            if not self.exists(boundary):
                return max(self._ids(), default=number)
            number = boundary

    def _latest_listed(self) -> int | None:
        return max(self._ids(), default=None)

    def _read_hint(self) -> int | None:
        if self._hint_path is None:
            return None
        try:
            text = bytes(self._store.get(self._hint_path))
        except NotFound:
            return None
        # Another client may be writing it in place. A prefix of a number is a number too, so hints are checked.
        if len(text) > _HINT_BYTES_MAX or not text.strip().isdigit():
            return None
        return int(text)

    def earliest(self) -> int | None:
        """Return the oldest existing number; None for an empty log. Cost: as `ids`; padded names: 1 LIST."""
        if self._padded:
            return next((number for number in self._list() if number is not None), None)
        return min(self._ids(), default=None)

    def ids(self) -> list[int]:
        """Return all numbers, ascending; gaps are legal. Cost: 1 LIST for 1000."""
        return sorted(self._ids())

    def exists(self, number: int) -> bool:
        """Whether the number exists now. Cost: 1 HEAD."""
        return has_object(self._store, self.path(number))

    def read(self, number: int) -> Buffer:
        """Read a number's payload. Raises `NotFound`. Cost: 1 GET."""
        return self._store.get(self.path(number))

    def _read_if_there(self, number: int) -> Buffer | None:
        try:
            return self.read(number)
        except NotFound:
            return None

    def _ids(self) -> list[int]:
        return [number for number in self._list() if number is not None]

    def _list(self) -> Iterable[int | None]:
        return (self._id_of(path.rpartition("/")[2]) for path in self._store.list_paths(self._folder))

    def append(
        self, number: int, payload: Buffer, *, write_id: str, hints: bool = True, store: ObjectStore | None = None
    ) -> None:
        """Create one number. When this returns, the payload is durable and won its number.

        Args:
            number: usually `latest` + 1.
            write_id: unique to this change and inside the payload (``write_id_of(payload) == write_id``). Every attempt
                of one change uses the same write id.
            hints: False leaves the hint to the caller, which calls `store_hint` when no reply waits for it.
            store: the log's store as this put needs it; None: as it is.

        Raises:
            Conflict: the number belongs to another write id, or the boundary passed it: read again and try the next.
            OutcomeUnknown: the store gave no clear answer, or too many markers have passed the number since.
            Unavailable: only of `LASTING_KINDS`, and without an effect. With any other kind the outcome is unknown.
        Cost: 1 PUT, with a boundary 1 LIST, with a hint 1 PUT. After an unclear answer 1 PUT for each attempt and 1
            GET.
        """
        assert self._write_id_of(payload) == write_id, "the payload does not carry its write id"
        path = self.path(number)
        exists: AlreadyExists | None = None
        try:
            create_once(
                store or self._store,
                path,
                payload,
                environment=self._environment,
                is_ours=lambda body: self._write_id_of(body) == write_id,
            )
        except AlreadyExists as error:
            # Perhaps our put won, was passed and collected, and a late writer created the number again.
            exists = error
        conflict = Conflict(f"{path} belongs to another writer: read the newest and try again", path=path, id=number)
        match self._create_outcome(number, write_id):
            case "forgotten":
                raise OutcomeUnknown(
                    f"{path} was passed by the boundary so long ago that its winner is not recorded: look, then retry",
                    kind="boundary_forgotten",
                    path=path,
                    id=number,
                )
            case "lost":
                if exists is None:
                    self.withdraw(number, write_id)
                self._seen = max(self._seen or 0, self.free_from())  # the newest number is at least this
                raise conflict from exists
            case "open" if exists is not None:
                raise conflict from exists
        if self._seen is None or self._seen < number:
            self._seen = number
        if hints:
            self.store_hint()

    def create_outcome(self, number: int, write_id: str | None) -> CreateOutcome:
        """Return the outcome of a create according to the boundary's markers; see `Boundary.create_outcome`."""
        return "open" if self._boundary is None else self._boundary.create_outcome(number, write_id)

    def has_other_winner(self, number: int, write_id: str | None) -> bool:
        """Whether the boundary's markers name another winner; see `Boundary.has_other_winner`."""
        return self._boundary is not None and self._boundary.has_other_winner(number, write_id)

    def free_from(self) -> int:
        """Return a number below which none may be created. The real bound may be higher.

        It may also be lower, if the log was deleted and made again. A caller that would leave a gap must check this
        first (`boundary`). Cost: 1 LIST the first time, then nothing.
        """
        if self._boundary is None:
            return 0
        return self._boundary.seen_below if self._boundary.was_read else self._boundary.current()

    def _create_outcome(self, number: int, write_id: str) -> CreateOutcome:
        boundary = self._boundary
        if boundary is None:
            return "open"
        return until_answered(
            lambda: boundary.create_outcome(number, write_id),
            what=f"{self.path(number)} was created, and whether the boundary had passed it is not known",
            environment=self._environment,
        )

    def withdraw(self, number: int, write_id: str) -> None:
        """Delete our own file from where no create can succeed: below the boundary, or in a log that is gone.

        A no-op if it is missing or another writer's. Cost: 1 GET + 1 DELETE.
        """
        with suppress(Unavailable):  # it lost anyway, and below the boundary a collection will find the file
            body = self._read_if_there(number)
            if body is not None and self._write_id_of(body) == write_id:
                self._store.delete([self.path(number)])

    def store_hint(self) -> None:
        """Write the hint with the newest number that this object has seen. Best effort. Cost: 1 PUT, or nothing."""
        if self._hint_path is None or self._seen is None:
            return
        with suppress(Unavailable, OutcomeUnknown):  # the append is valid; readers of a stale hint check it
            self._store.put(self._hint_path, str(self._seen).encode(), durable=False)

    def withdraw_late(self) -> list[int]:
        """Delete creates that landed below the boundary and whose writers have died. Return their numbers.

        Such a file was never acknowledged. Objects that it references may be gone, and only this call deletes it.

        Cost: 2 LISTs, and 1 GET for each number that still exists below the boundary.
        """
        if self._boundary is None:
            return []
        boundary = self._boundary.current()
        late = []
        for number in (candidate for candidate in self.ids() if candidate < boundary):
            body = self._read_if_there(number)
            if body is not None and self._boundary.create_outcome(number, self._write_id_of(body)) == "lost":
                self._store.delete([self.path(number)])
                late.append(number)
        return late

    def boundary(self) -> int:
        """Return the number below which none is used again; 0 without markers. Cost: 1 LIST."""
        return 0 if self._boundary is None else self._boundary.current()

    def raise_boundary(self, below: int, *, write_ids: Mapping[int, str | None] | None = None) -> None:
        """Guarantee that no number below `below` is used again, and record the winners of the numbers that it passes.

        Must return before any of them is deleted. A no-op if the boundary is already there.

        Args:
            write_ids: write ids that the caller has already read, by number.

        Raises:
            InvalidRequest: no number >= `below` exists (the newest can never be passed), or the log has no boundary.
        Cost: 2 LISTs, 1 GET for each passed number that is not in `write_ids`, 1 PUT and 1 LIST of the boundary.
        """
        if self._boundary is None:
            raise InvalidRequest(f"{self._folder} never deletes numbers: it has no boundary", kind="no_boundary")
        for _ in range(LOOKS_MAX):
            place, newest = self._boundary.newest()
            if below <= newest.below:
                return
            marker = Marker(below, newest.below, self._winners(newest.below, below, write_ids or {}))
            if self._boundary.raise_to(marker, after=place):
                return
        raise Conflict(
            f"The boundary of {self._folder} was raised by others {LOOKS_MAX} times, each time to less than {below}. "
            "Nothing was deleted: try again.",
            kind="boundary_contention",
            path=self._folder,
        )

    def _winners(self, passed_from: int, below: int, write_ids: Mapping[int, str | None]) -> dict[int, str | None]:
        """Return the write ids of all existing numbers in ``[passed_from, below)``."""
        ids = self._ids()
        newest = max(ids, default=None)
        if newest is None or newest < below:
            raise InvalidRequest(
                f"the boundary of {self._folder} cannot be raised to {below}: the newest number is {newest}",
                kind="boundary_too_high",
            )
        winners: dict[int, str | None] = {}
        for number in sorted(number for number in ids if passed_from <= number < below):
            if number in write_ids:
                winners[number] = write_ids[number]
                continue
            body = self._read_if_there(number)
            if (
                body is not None
            ):  # another collector passed it meanwhile: its marker records the winner, and ours will fail
                winners[number] = self._write_id_of(body)
        return winners

    def delete(self, ids: Iterable[int], *, fenced: bool = True) -> None:
        """Delete numbers. Deleting a missing one is a no-op.

        Args:
            fenced: True: refuse numbers at or above the boundary. False is for a log without readers of old numbers.

        Raises:
            InvalidRequest: a number is not below the boundary.
        Cost: 1 LIST if fenced, and 1 DELETE for 1000.
        """
        numbers = sorted(ids)
        if not numbers:
            return
        if fenced and numbers[-1] >= (boundary := self.boundary()):
            raise InvalidRequest(
                f"{self.path(numbers[-1])} is not below the boundary {boundary}: raise the boundary before deleting",
                kind="not_fenced",
                id=numbers[-1],
            )
        self._store.delete(self.path(number) for number in numbers)
        if self._seen is not None and numbers[0] <= self._seen <= numbers[-1]:
            self._seen = None
