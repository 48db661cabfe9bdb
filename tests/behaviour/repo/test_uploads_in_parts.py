"""Uploads in parts, as a repository keeps them: whose they are, races of their ends, and how long they are remembered.

What S3 says of them: tests/behaviour/server/s3/test_multipart.py.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from lakebed.errors import Conflict, NotFound
from lakebed.repo.heads import multipart
from lakebed.repo.heads.multipart import WantedPart
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.runtime import Environment
from lakebed.testing import ManualClock, RecordingStore
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.staging import BRANCH, StagedBranch

R = TypeVar("R")

PATHS = ("a", "m", "m/1", "z")
ENDS = ("put", "abort", "complete", "trim")


class Interrupted(KeyValueWrapper):
    """Lets something happen right before the next write, once."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(MemoryKeyValue(environment=environment))
        self.before_write: Callable[[], object] | None = None

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call, after what happens."""
        if call.changes and self.before_write is not None:
            happens, self.before_write = self.before_write, None
            happens()
        return perform()


class Uploads:
    """A repository, its clock, and short calls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        environment = Environment(clock=self.clock, rng=random.Random(1))
        self.records = Interrupted(environment)
        self.branch = StagedBranch(key_value=self.records, environment=environment)
        self.home: RepositoryContext = self.branch.home

    def begin(self, path: str = "a", *, branch: str = BRANCH) -> str:
        """Begin an upload."""
        return multipart.begin_upload(
            self.home, branch=branch, path=path, content_type="text/plain", metadata={}, owner=""
        )

    def put(self, upload: str, number: int, body: bytes, *, path: str = "a") -> WantedPart:
        """Put a part."""
        _, raw = multipart.open_upload(self.home, upload, branch=BRANCH, path=path)
        stored = data.upload(self.home, body)
        multipart.put_part(self.home, upload, number=number, stored=stored, expected=raw)
        return WantedPart(number, hashlib.md5(body).hexdigest())

    def abort(self, upload: str, *, path: str = "a") -> None:
        """Abort an upload."""
        multipart.abort_upload(self.home, upload, branch=BRANCH, path=path)

    def complete(self, upload: str, *wanted: WantedPart, path: str = "a") -> Entry:
        """Complete an upload."""
        return multipart.complete_upload(self.home, upload, branch=BRANCH, path=path, wanted=wanted)

    def end(self, how: str, upload: str, part: WantedPart) -> object:
        """Do one of `ENDS`."""
        if how == "put":
            return self.put(upload, 2, b"more")
        if how == "abort":
            return self.abort(upload)
        if how == "complete":
            return self.complete(upload, part)
        return multipart.trim_uploads(self.home, now_ms=self.home.now_ms() + 8 * DAY_MS)

    def listed(self, branch: str | None = None, prefix: str = "") -> list[tuple[str, str]]:
        """Branches and paths of the open uploads, in their order."""
        rows = multipart.list_uploads(self.home, branch=branch, prefix=prefix)
        return [(upload.branch, upload.path) for _, upload in rows]

    def shown(self) -> list[str]:
        """The paths that the branch shows."""
        with self.branch.view() as view:
            return [line.path for line in view.list()]

    def record_count(self, upload: str) -> int:
        """How many records of parts there are."""
        with self.home.key_value.snapshot() as snapshot:
            start = self.home.keys.parts(upload)
            return len(list(snapshot.scan(start, start + b"\xff")))

    def staged_count(self) -> int:
        """How many entries were counted."""
        counters = self.home.counters
        counters.set_counted(BRANCH, {}, sealed_count=0)
        counts = counters.counts(BRANCH)
        assert counts is not None
        return counts.staged_entries


@pytest.fixture
def uploads() -> Uploads:
    """An empty repository."""
    return Uploads()


def test_an_upload_is_of_one_branch_and_path(uploads: Uploads) -> None:
    """Its id alone opens nothing: not for a path or a branch before it, nor after it."""
    upload = uploads.begin("m")
    for path in PATHS:
        if path == "m":
            assert multipart.load_upload(uploads.home, upload, branch=BRANCH, path=path)[0].path == "m"
            continue
        with raises(NotFound, "upload_not_found"):
            multipart.load_upload(uploads.home, upload, branch=BRANCH, path=path)
    for branch in ("a", "z"):
        with raises(NotFound, "upload_not_found"):
            multipart.load_upload(uploads.home, upload, branch=branch, path="m")


def test_open_uploads_are_listed_by_branch_and_prefix(uploads: Uploads) -> None:
    """In the order of branches and paths, of one path in that of their beginnings; ended ones are left out."""
    uploads.branch.home.key_value.set(uploads.home.keys.branch("a"), uploads.records.get(uploads.branch.key) or b"")
    uploads.branch.home.key_value.set(uploads.home.keys.branch("z"), uploads.records.get(uploads.branch.key) or b"")
    for path in reversed(PATHS):
        for branch in ("z", BRANCH, "a"):
            uploads.begin(path, branch=branch)
            uploads.clock.advance(1)
    uploads.abort(uploads.begin("aborted"), path="aborted")
    ended = uploads.begin("ended")
    uploads.complete(ended, uploads.put(ended, 1, b"x", path="ended"), path="ended")
    every = [(branch, path) for branch in ("a", BRANCH, "z") for path in PATHS]
    assert uploads.listed() == every
    for branch in ("a", BRANCH, "z"):
        assert uploads.listed(branch, "m") == [(branch, path) for path in ("m", "m/1")]
    assert uploads.listed("none") == []
    assert uploads.listed(prefix="z") == [("a", "z"), (BRANCH, "z"), ("z", "z")]
    first, second = (name for name, upload in multipart.list_uploads(uploads.home, branch=BRANCH, prefix="")[:2])
    again = uploads.begin("a")
    assert [name for name, _ in multipart.list_uploads(uploads.home, branch=BRANCH, prefix="")][:3] == [
        first, again, second,
    ]  # fmt: skip


def test_parts_are_listed_in_the_order_of_their_numbers(uploads: Uploads) -> None:
    """After a number, those that are larger; 0: all."""
    upload = uploads.begin()
    for number in (10, 1, 9, 10_000, 2):
        uploads.put(upload, number, b"x" * number)
    numbers = [1, 2, 9, 10, 10_000]
    for after in (0, 1, 2, 5, 9, 10, 10_000):
        assert [
            (number, part.size_bytes) for number, part in multipart.list_parts(uploads.home, upload, after=after)
        ] == [(number, number) for number in numbers if number > after]


@pytest.mark.parametrize("how", ["abort", "complete", "trim"])
def test_what_ended_keeps_no_part(uploads: Uploads, how: str) -> None:
    """However it ended, also when its parts are more than are removed at once."""
    upload = uploads.begin()
    part = uploads.put(upload, 1, b"x")
    for number in (2, 3, 4):
        uploads.put(upload, number, b"more")
    assert uploads.record_count(upload) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "_KEYS_AT_ONCE", 2)
        uploads.end(how, upload, part)
    assert uploads.record_count(upload) == 0
    assert uploads.listed() == []


@pytest.mark.parametrize("first", ["abort", "complete"])
@pytest.mark.parametrize("late", ENDS)
def test_of_two_ends_one_wins(uploads: Uploads, late: str, first: str) -> None:
    """The one that comes later, between the other's look and its write, hears how the upload ended."""
    upload = uploads.begin()
    part = uploads.put(upload, 1, b"x")
    ended: list[object] = []

    def end_first() -> None:
        uploads.clock.advance(1)
        ended.append(uploads.end(first, upload, part))

    uploads.records.before_write = end_first
    if late == "trim":
        assert uploads.end(late, upload, part) == 0
    elif (late, first) == ("complete", "complete"):
        assert [uploads.end(late, upload, part)] == ended
    else:
        with raises(NotFound, "upload_not_found"):
            uploads.end(late, upload, part)
    assert len(ended) == 1
    assert uploads.record_count(upload) == 0
    assert uploads.shown() == (["a"] if first == "complete" else [])
    assert uploads.staged_count() == (1 if first == "complete" else 0)


@pytest.mark.parametrize("how", ["put", "abort", "complete"])
def test_another_refusal_is_not_taken_for_a_race(uploads: Uploads, how: str) -> None:
    """A store that was fenced says so, and nothing is said of the upload."""
    upload = uploads.begin()
    part = uploads.put(upload, 1, b"x")

    def refuse() -> None:
        raise Conflict("another writer has the database", kind="fenced_writer")

    uploads.records.before_write = refuse
    with raises(Conflict, "fenced_writer"):
        uploads.end(how, upload, part)
    assert uploads.listed() == [(BRANCH, "a")]


def test_an_upload_needs_its_branch(uploads: Uploads) -> None:
    """At its begin, and at its end before anything is joined."""
    with raises(NotFound, "branch_not_found"):
        uploads.begin(branch="missing")
    upload = uploads.begin()
    wanted = [uploads.put(upload, number, b"x" * multipart.PART_BYTES_MIN) for number in (1, 2)]
    uploads.home.key_value.delete(uploads.branch.key)
    with uploads.home.store.count() as counts, raises(NotFound, "branch_not_found"):
        uploads.complete(upload, *wanted)
    assert counts.total == 0


def test_several_parts_are_a_new_object_and_one_is_itself(uploads: Uploads) -> None:
    """The new one is created where nothing may be; its checksum is that of S3."""
    upload = uploads.begin()
    bodies = [b"x" * multipart.PART_BYTES_MIN, b"", b"end"]
    wanted = [uploads.put(upload, number, body) for number, body in enumerate(bodies, 1) if body]
    recorded = RecordingStore(uploads.home.store)
    home = replace(uploads.home, store=recorded)
    entry = multipart.complete_upload(home, upload, branch=BRANCH, path="a", wanted=wanted)
    md5s = b"".join(hashlib.md5(body).digest() for body in bodies if body)
    assert (entry.size_bytes, entry.checksum) == (sum(map(len, bodies)), f"{hashlib.md5(md5s).hexdigest()}-2")
    assert [str(record.call) for record in recorded.changes()] == [f"put! {entry.address}"]
    assert bytes(data.read(home, entry)) == b"".join(bodies)
    single = uploads.begin("m")
    part = uploads.put(single, 7, b"whole", path="m")
    ((_, stored),) = multipart.list_parts(uploads.home, single)
    entry = uploads.complete(single, part, path="m")
    assert entry.address == stored.address
    assert bytes(data.read(home, entry)) == b"whole"
    assert uploads.staged_count() == 2


def test_an_open_upload_is_remembered_for_a_week_behind_its_last_part(uploads: Uploads) -> None:
    """Without a part, behind its begin; a day is not enough."""
    upload, bare = uploads.begin(), uploads.begin("bare")
    start_ms = uploads.home.now_ms()
    uploads.clock.advance(3 * 86_400)
    uploads.put(upload, 1, b"x")
    uploads.clock.advance(3600)
    uploads.put(upload, 2, b"x")
    last_ms = uploads.home.now_ms()
    trims = [
        (start_ms + 7 * DAY_MS - 1, 0, {"a", "bare"}),
        (start_ms + 7 * DAY_MS, 1, {"a"}),
        (last_ms + 7 * DAY_MS - 1, 0, {"a"}),
        (last_ms + 7 * DAY_MS, 1, set()),
    ]
    for now_ms, count, left in trims:
        assert multipart.trim_uploads(uploads.home, now_ms=now_ms) == count
        assert {path for _, path in uploads.listed()} == left
    for name, path in ((upload, "a"), (bare, "bare")):
        with raises(NotFound, "upload_not_found"):
            multipart.load_upload(uploads.home, name, branch=BRANCH, path=path)


def test_a_completed_upload_is_remembered_for_a_day(uploads: Uploads) -> None:
    """For callers whose reply was lost; however long ago it began."""
    ids = []
    for path in ("a", "m"):
        upload = uploads.begin(path)
        uploads.clock.advance(2 * 86_400)
        uploads.complete(upload, uploads.put(upload, 1, b"x", path=path), path=path)
        ids.append(upload)
    ends_ms = uploads.home.now_ms()
    assert multipart.trim_uploads(uploads.home) == 1
    assert multipart.trim_uploads(uploads.home, now_ms=ends_ms + DAY_MS - 1) == 0
    assert multipart.load_upload(uploads.home, ids[1], branch=BRANCH, path="m")[0].completed is not None
    assert multipart.trim_uploads(uploads.home, now_ms=ends_ms + DAY_MS) == 1
    assert multipart.trim_uploads(uploads.home, now_ms=ends_ms + DAY_MS) == 0


def test_the_time_of_the_store_is_asked_only_for_what_is_old(uploads: Uploads) -> None:
    """A process whose clock is set forward forgets nothing that by the store's is new."""
    upload = uploads.begin()
    part = uploads.put(upload, 1, b"x")
    uploads.complete(upload, part)
    uploads.begin("m")
    uploads.clock.advance(86_400)
    with uploads.home.store.count() as counts:
        assert multipart.trim_uploads(uploads.home) == 0
    assert counts.total == 0
    ahead = ManualClock(start_ms=uploads.home.now_ms() + 30 * DAY_MS)
    home = replace(uploads.home, environment=Environment(clock=ahead, rng=random.Random(1)))
    with uploads.home.store.count() as counts:
        assert multipart.trim_uploads(home) == 1, "a day by the store's time, and no week"
    assert (counts.put, counts.head) == (1, 1)
    assert uploads.listed() == [(BRANCH, "m")]
