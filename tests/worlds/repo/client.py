"""A repository as workloads use it: its calls, what an answer means, and whether the repository is sound.

Owns: `RepositoryClient`, the one interface to a repository in process and behind a server; `LibraryClient`, the one in
process; the check at the end of a workload. Does not know: what is written, and which process is killed when
(`worlds.repo.workload`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

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
from lakebed.kv.ranges import prefix_end
from lakebed.repo.model.options import CollectionOptions, RangeOptions, RepositoryOptions
from lakebed.repo.objects.data import upload
from lakebed.repo.repository import Repository
from lakebed.repo.staging.cleanup import clean_once
from lakebed.repo.transport.transport import context_of
from worlds.promise import PromiseBroken
from worlds.waiting import pause

Expected = dict[str, dict[str, str]]
"""What a workload must see: path to checksum, by the reference it is seen at."""

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
"""The same without a compactor, which would go on making garbage while the end is checked."""

EVERYTHING: Final = CollectionOptions(grace=timedelta(0))
_BODY_BYTES_MAX: Final = 3_000


class Refused(Exception):
    """A call that was refused: nothing has happened. Its argument is the kind."""


class Unclear(Exception):
    """A call that may have happened, or not."""


class RepositoryClient(Protocol):
    """The calls of a workload. Each raises `Refused` or `Unclear`; any other error is a broken promise."""

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
        """Discard what is uncommitted."""
        ...

    def create_branch(self, name: str, source: str) -> None:
        """Create a branch."""
        ...

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        ...

    def create_tag(self, name: str, ref: str) -> None:
        """Create a tag."""
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
    """What the n-th write of a path holds."""
    line = f"{path} {number}\n".encode()
    return (line * (_BODY_BYTES_MAX // len(line)))[: random.Random(f"{path}{number}").randint(0, _BODY_BYTES_MAX)]


def checksum_of(body: bytes) -> str:
    """As an entry has it."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


@contextmanager
def told() -> Iterator[None]:
    """Translate errors of the library for a workload."""
    try:
        yield
    except (OutcomeUnknown, Unavailable, Fenced) as error:
        raise Unclear(str(error)) from error
    except (Conflict, InvalidRequest, NotFound, AlreadyExists, Rejected) as error:
        raise Refused(error.kind, str(error)) from error


class LibraryClient(RepositoryClient):
    """A repository in this process."""

    puts_many: bool = True

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    @told()
    def put(self, branch: str, path: str, body: bytes, *, only_if_absent: bool = False) -> None:
        self.repository.branch(branch).put(path, body, only_if_absent=only_if_absent)

    @told()
    def put_many(self, branch: str, bodies: Mapping[str, bytes]) -> None:
        item = self.repository.branch(branch)
        item.stage_many([(path, upload(context_of(self.repository), body)) for path, body in bodies.items()])

    @told()
    def delete(self, branch: str, paths: list[str]) -> None:
        if len(paths) == 1:
            self.repository.branch(branch).delete(paths[0])
        else:
            self.repository.branch(branch).delete_many(paths)

    @told()
    def clear(self, branch: str, prefix: str) -> None:
        self.repository.branch(branch).delete_prefix(prefix)

    @told()
    def commit(self, branch: str, message: str) -> str:
        return self.repository.branch(branch).commit(message).id

    @told()
    def merge(self, source: str, into: str) -> None:
        self.repository.branch(into).merge(source)

    @told()
    def revert(self, branch: str, ref: str) -> None:
        self.repository.branch(branch).revert(ref)

    @told()
    def reset(self, branch: str, *, prefix: str | None = None, hard: bool = False) -> None:
        item = self.repository.branch(branch)
        if hard:
            item.hard_reset(item.commit_id, force=True)
        else:
            item.reset(prefix=prefix)

    @told()
    def create_branch(self, name: str, source: str) -> None:
        self.repository.create_branch(name, version=source)

    @told()
    def delete_branch(self, name: str) -> None:
        self.repository.delete_branch(name)

    @told()
    def create_tag(self, name: str, ref: str) -> None:
        self.repository.create_tag(name, ref=ref)

    @told()
    def delete_tag(self, name: str) -> None:
        self.repository.delete_tag(name)

    @told()
    def names(self, kind: str, prefix: str) -> dict[str, str]:
        tags = self.repository.tags if kind == "tag" else self.repository.branches
        return {item.name: item.commit_id for item in tags(prefix=prefix)}

    @told()
    def head(self, branch: str) -> str:
        return self.repository.branch(branch).commit_id

    @told()
    def show(self, ref: str, prefix: str, *, bodies: bool = False) -> dict[str, str]:
        here = self.repository.ref(ref)
        checksums = {entry.path: entry.entry.checksum for entry in here.list(prefix) if entry.entry is not None}
        if bodies:
            checksums = {path: checksum_of(bytes(here.get(path))) for path in checksums}
        return checksums


def check_sound(repository: Repository, *, tidy: bool = True) -> int:
    """Check that the repository has no error, and with `tidy` that a collection leaves nothing; count of files read.

    Nothing else may work on it, not even its own compactor (`QUIET`). Raises `PromiseBroken`.
    """
    home = context_of(repository)
    repository.delete_retention()
    if tidy:
        while not clean_once(home).is_done:
            continue
        for _ in range(2):
            pause(0.01)  # names of one millisecond have no order
            repository.collect(EVERYTHING)
    report = CheckReport(home.name, deep=True)
    check_repository(home, Findings(report, store=home.name))
    bad = [finding for finding in report.findings if finding.severity != "info" or (tidy and finding.kind == "orphan")]
    if bad:
        raise PromiseBroken(f"{len(bad)} findings: {bad[:5]}")
    with home.key_value.snapshot() as snapshot:
        marks = home.keys.cleanup()
        left = [key for key, _ in snapshot.scan(marks, prefix_end(marks))]
        if tidy and left:
            raise PromiseBroken(f"marks of dropped tokens are left: {left[:5]}")
    return report.file_count
