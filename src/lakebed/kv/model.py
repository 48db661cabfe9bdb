"""Manifest, checkpoints and owners of a database. Pure data.

Owns: the field names of the manifest, which are on disk: DO NOT CHANGE them, add optional ones
(code that does not know one that is used refuses the manifest, so that no rewrite drops it); and every setting of a
database, reader and collector, each with its unit in its name. All times are Unix milliseconds, UTC; null is never.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec

from lakebed.lsm.model import FileMeta, FileSet, Run


class Owner(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """On whose behalf a checkpoint is held; which of the other fields count depends on the kind."""

    kind: Literal["user", "writer", "reader", "clone", "compactor"]
    epoch: int | None = None
    """writer, compactor: its epoch."""
    host: str | None = None
    """reader: where it runs."""
    pid: int | None = None
    """reader: its process."""
    url: str | None = None
    """clone: the database that shares these files."""

    def __str__(self) -> str:
        facts = {"writer": f" {self.epoch}", "compactor": f" {self.epoch}", "clone": f" {self.url}"}
        return self.kind + facts.get(self.kind, f" {self.host}:{self.pid}" if self.kind == "reader" else "")


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A pin on one manifest: its files, its ancestors' files and its log stay until the checkpoint is gone."""

    id: str
    """UUID, version 4, lower case."""
    manifest_id: int
    created_at_ms: int
    owner: Owner
    expires_at_ms: int | None = None
    name: str | None = None
    """Unique among the live ones."""

    def is_live(self, now_ms: int) -> bool:
        """Whether it has not expired; an expired one is dead at once, though it may still be listed."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


class ExternalDatabase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ancestor that owns files of ours."""

    url: str
    source_checkpoint: str
    """The ancestor's checkpoint from which our pin was made."""
    pin: str
    """Our checkpoint in the ancestor's manifest, by id."""
    file_ids: tuple[str, ...]
    """Files of the ancestor that our manifest, or one of our checkpoints, may name."""


class CloneSource(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a clone was asked to start from: a retry must ask for the same."""

    url: str
    """The immediate parent."""
    checkpoint: str | None
    """The checkpoint that was asked for, by id; null: whatever was the latest."""
    name: str | None = None
    """The name by which it was asked for; null: it was asked for by id. A retry may come when the name has expired."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work under way whose files are not published yet: files from `start_id` on are not garbage."""

    id: str
    kind: Literal["compaction", "load"]
    start_id: str
    """A ULID minted before the job's first file."""
    epoch: int
    """Of the role that runs it; the next epoch removes it."""
    started_at_ms: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One version of a database, whole."""

    manifest_id: int
    write_id: str
    created_at_ms: int
    initialized: bool
    """False while a clone is being made: it cannot be opened yet."""
    writer_epoch: int
    compactor_epoch: int
    replay_after_wal_id: int
    """Everything in the log up to here is in files."""
    wal_id_last_seen: int
    """Everything in the log up to here belongs to this version; the log may have gone on since."""
    last_sequence: int
    """Largest sequence in files."""
    newest_l0_id: str
    """No file with this id or a smaller one will be published by a writer any more."""
    content_since: int = 0
    """The first of the manifests in a row that have this very content, files and log alike: its id is the version's,
    for what comes after it changed checkpoints, epochs or jobs only."""
    readable_since: int = 1
    """Manifests below this one are readable only through a checkpoint: the collector may take them apart."""
    destroyed_at_ms: int | None = None
    l0: tuple[FileMeta, ...] = ()
    runs: tuple[Run, ...] = ()
    jobs: tuple[Job, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    external_databases: tuple[ExternalDatabase, ...] = ()
    source: CloneSource | None = None
    merge_operator: str | None = None
    """Name of the operator that all merge rows are meant for."""
    wal_enabled: bool = True
    previous_write_ids: tuple[str, ...] = ()
    """Write ids of the manifests just below, newest first (at most 64), so that the collector need not read them."""

    @property
    def file_set(self) -> FileSet:
        """Its files."""
        return FileSet(self.l0, self.runs)

    def has_content_of(self, other: Manifest) -> bool:
        """Whether both name the same files and the same end of the log."""
        return (
            max(self.wal_id_last_seen, self.replay_after_wal_id)
            == max(other.wal_id_last_seen, other.replay_after_wal_id)
            and self.l0 == other.l0
            and self.runs == other.runs
        )

    def checkpoint(self, id_or_name: str) -> Checkpoint | None:
        """A checkpoint by id or by name, expired or not; None if there is none."""
        for checkpoint in self.checkpoints:
            if id_or_name in (checkpoint.id, checkpoint.name):
                return checkpoint
        return None


class CheckpointScope(Enum):
    """Which writes a checkpoint of the writer includes."""

    ALL = "all"
    """Every write issued before the call; the log is flushed first."""
    ALL_UNFORCED = "all_unforced"
    """Every write issued before the call; waits for the flush that is due anyway."""
    DURABLE = "durable"
    """Only what was durable at the time of the call: at once."""


@dataclass(frozen=True, slots=True)
class CheckpointCreateResult:
    """A new checkpoint."""

    id: str
    manifest_id: int
