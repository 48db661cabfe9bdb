"""A repository as lanes see it: what may be asked of it, what an answer means, and whether it is sound.

Owns: `Way`, the one interface to a repository that a library and a server have; `Library`, which is the library; the
check at the end of a storm. Does not know: what is written, and who is killed when (`worlds.repo.workload`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

from lakebed.clock import SystemClock
from lakebed.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unavailable,
)
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.repository import check_repository
from lakebed.kv.reading import prefix_end
from lakebed.repo.data import upload
from lakebed.repo.options import CollectionOptions, RangeOptions, RepositoryOptions
from lakebed.repo.repository import Repository
from lakebed.repo.staging.cleanup import clean_once

__all__ = [
    "EAGER",
    "EVERYTHING",
    "QUIET",
    "Library",
    "Refused",
    "State",
    "Unclear",
    "Way",
    "Wrong",
    "body_of",
    "check_sound",
    "checksum_of",
    "told",
]

State = dict[str, dict[str, str]]
"""What a lane must see: path to checksum, by the reference it is seen at."""

EAGER: Final = RepositoryOptions(
    ranges=RangeOptions(entry_count_min=4, raggedness=8, entry_count_max=64, block_bytes=1024),
    sealed_tokens_max=6,
    compaction_staged_min=12,
    compaction_tombstones_min=4,
    compaction_sealed_min=2,
    compaction_cooldown_ms=100,
)
"""Small ranges, and a compactor that always has something to do."""

QUIET: Final = replace(EAGER, background=False)
"""The same without a compactor, for a look at the end: it would go on making garbage."""

EVERYTHING: Final = CollectionOptions(min_age=timedelta(0))
_CLOCK: Final = SystemClock()
_BODY_BYTES_MAX: Final = 3_000


class Refused(Exception):
    """A call that was refused: nothing has happened. Its argument is the kind."""


class Unclear(Exception):
    """A call that may have happened, or not."""


class Wrong(AssertionError):
    """A promise is broken."""


class Way(Protocol):
    """How a lane reaches a repository. Every call raises `Refused` or `Unclear`; anything else is a wrong."""

    puts_many: bool
    """Whether `put_many` is there."""

    def put(self, branch: str, path: str, body: bytes, *, only_if_absent: bool = False) -> None:
        """Write an object."""
        ...

    def put_many(self, branch: str, bodies: Mapping[str, bytes]) -> None:
        """Write objects, all or none."""
        ...

    def delete(self, branch: str, paths: list[str]) -> None:
        """Delete objects, all or none."""
        ...

    def clear(self, branch: str, prefix: str) -> None:
        """Delete everything below a prefix."""
        ...

    def commit(self, branch: str, message: str) -> str:
        """Commit; the id."""
        ...

    def merge(self, source: str, into: str) -> None:
        """Merge."""
        ...

    def revert(self, branch: str, ref: str) -> None:
        """Undo a commit."""
        ...

    def reset(self, branch: str, *, prefix: str | None = None, hard: bool = False) -> None:
        """Give up what is uncommitted."""
        ...

    def create_branch(self, name: str, source: str) -> None:
        """Make a branch."""
        ...

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        ...

    def create_tag(self, name: str, ref: str) -> None:
        """Make a tag."""
        ...

    def delete_tag(self, name: str) -> None:
        """Delete a tag."""
        ...

    def names(self, kind: str, prefix: str) -> dict[str, str]:
        """Commits of branches or tags, by name."""
        ...

    def head(self, branch: str) -> str:
        """The commit of a branch."""
        ...

    def show(self, ref: str, prefix: str, *, bodies: bool = False) -> dict[str, str]:
        """Checksums by path; with `bodies` those of what is really read."""
        ...


def body_of(path: str, number: int) -> bytes:
    """What a lane's n-th write of a path holds."""
    line = f"{path} {number}\n".encode()
    return (line * (_BODY_BYTES_MAX // len(line)))[: random.Random(f"{path}{number}").randint(0, _BODY_BYTES_MAX)]


def checksum_of(body: bytes) -> str:
    """As an entry has it."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


@contextmanager
def told() -> Iterator[None]:
    """What an error of the library means to a lane."""
    try:
        yield
    except (OutcomeUnknown, Unavailable, Fenced) as error:
        raise Unclear(str(error)) from error
    except (Conflict, InvalidRequest, NotFound, AlreadyExists, Rejected) as error:
        raise Refused(error.kind, str(error)) from error


class Library:
    """A repository in this process."""

    puts_many = True

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def put(self, branch: str, path: str, body: bytes, *, only_if_absent: bool = False) -> None:
        """See `Way`."""
        with told():
            self.repository.branch(branch).put(path, body, only_if_absent=only_if_absent)

    def put_many(self, branch: str, bodies: Mapping[str, bytes]) -> None:
        """See `Way`."""
        with told():
            one = self.repository.branch(branch)
            one.stage_many([(path, upload(self.repository.context, body)) for path, body in bodies.items()])

    def delete(self, branch: str, paths: list[str]) -> None:
        """See `Way`."""
        with told():
            if len(paths) == 1:
                self.repository.branch(branch).delete(paths[0])
            else:
                self.repository.branch(branch).delete_many(paths)

    def clear(self, branch: str, prefix: str) -> None:
        """See `Way`."""
        with told():
            self.repository.branch(branch).delete_prefix(prefix)

    def commit(self, branch: str, message: str) -> str:
        """See `Way`."""
        with told():
            return self.repository.branch(branch).commit(message).id

    def merge(self, source: str, into: str) -> None:
        """See `Way`."""
        with told():
            self.repository.branch(into).merge(source)

    def revert(self, branch: str, ref: str) -> None:
        """See `Way`."""
        with told():
            self.repository.branch(branch).revert(ref)

    def reset(self, branch: str, *, prefix: str | None = None, hard: bool = False) -> None:
        """See `Way`."""
        with told():
            one = self.repository.branch(branch)
            if hard:
                one.hard_reset(one.commit_id, force=True)
            else:
                one.reset(prefix=prefix)

    def create_branch(self, name: str, source: str) -> None:
        """See `Way`."""
        with told():
            self.repository.create_branch(name, source=source)

    def delete_branch(self, name: str) -> None:
        """See `Way`."""
        with told():
            self.repository.delete_branch(name)

    def create_tag(self, name: str, ref: str) -> None:
        """See `Way`."""
        with told():
            self.repository.create_tag(name, ref=ref)

    def delete_tag(self, name: str) -> None:
        """See `Way`."""
        with told():
            self.repository.delete_tag(name)

    def names(self, kind: str, prefix: str) -> dict[str, str]:
        """See `Way`."""
        with told():
            found = self.repository.tags if kind == "tag" else self.repository.branches
            return {one.name: one.commit_id for one in found(prefix=prefix)}

    def head(self, branch: str) -> str:
        """See `Way`."""
        with told():
            return self.repository.branch(branch).commit_id

    def show(self, ref: str, prefix: str, *, bodies: bool = False) -> dict[str, str]:
        """See `Way`."""
        with told():
            here = self.repository.ref(ref)
            found = {one.path: one.entry.checksum for one in here.list(prefix) if one.entry is not None}
            if bodies:
                found = {path: checksum_of(bytes(here.get(path))) for path in found}
            return found


def check_sound(repository: Repository, *, tidy: bool = True) -> int:
    """The repository has no error; with `tidy` nothing is left after a collection either. Returns files looked at.

    Nobody else may work on it, not even its own compactor (`QUIET`). Raises `Wrong`.
    """
    home = repository.context
    repository.delete_retention()
    if tidy:
        while not clean_once(home).is_done:
            continue
        for _ in range(2):
            _CLOCK.sleep(0.01)  # names of one millisecond have no order
            repository.collect_garbage(EVERYTHING)
    report = CheckReport(home.name, deep=True)
    check_repository(home, Findings(report, store=home.name))
    bad = [one for one in report.findings if one.severity != "info" or (tidy and one.kind == "orphan")]
    if bad:
        raise Wrong(f"{len(bad)} findings: {bad[:5]}")
    with home.key_value.snapshot() as snapshot:
        marks = home.keys.cleanup()
        left = [key for key, _ in snapshot.scan(marks, prefix_end(marks))]
        if tidy and left:
            raise Wrong(f"marks of dropped tokens are left: {left[:5]}")
    return report.file_count
