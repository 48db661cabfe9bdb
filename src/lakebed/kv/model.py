"""Manifest, checkpoints and owners of a database. Pure data.

Owns: the field names of the manifest, which are on disk. DO NOT CHANGE them; add optional fields only. Code that does
not know a field that is used refuses the manifest, so that no rewrite drops the field. Units are part of the names. All
times are Unix milliseconds, UTC; a time that is null never comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec

from lakebed.lsm.model import FileMeta, FileSet, Run


class Owner(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The owner of a checkpoint. The kind decides which of the other fields apply."""

    kind: Literal["user", "writer", "reader", "clone", "compactor"]
    epoch: int | None = None
    """writer, compactor: its epoch."""
    host: str | None = None
    """reader: the host on which it runs."""
    pid: int | None = None
    """reader: its process id."""
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
    """Unique among live checkpoints."""

    def is_live(self, now_ms: int) -> bool:
        """Whether the checkpoint has not expired. An expired one is dead at once, even while it is still listed."""
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


class ExternalDatabase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ancestor that owns files of this database."""

    url: str
    source_checkpoint: str
    """The ancestor's checkpoint from which this database's pin was made."""
    pin: str
    """This database's checkpoint in the ancestor's manifest, by id."""
    file_ids: tuple[str, ...]
    """Files of the ancestor that this database's manifest, or one of its checkpoints, may name."""


class CloneSource(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The version from which a clone was requested to start. A retry must request the same."""

    url: str
    """The immediate parent."""
    checkpoint: str | None
    """The requested checkpoint, by id; null: the latest version at that time."""
    name: str | None = None
    """The name of the requested checkpoint; null: it was requested by id. A retry may come after the name expired."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work under way whose files are not published yet. Files with ids from `start_id` on are not garbage."""

    id: str
    kind: Literal["compaction", "load"]
    start_id: str
    """A ULID minted before the job's first file."""
    epoch: int
    """Epoch of the role that runs the job. The next epoch of the role removes the job."""
    started_at_ms: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One complete version of a database."""

    manifest_id: int
    write_id: str
    created_at_ms: int
    initialized: bool
    """False while a clone is being made. It cannot be opened yet."""
    writer_epoch: int
    compactor_epoch: int
    replay_after_wal_id: int
    """All rows of log objects up to this id are in files."""
    wal_id_last_seen: int
    """All log objects up to this id belong to this version. The log may have grown since."""
    last_sequence: int
    """Largest sequence in files."""
    newest_l0_id: str
    """No writer will publish a file with this id or a smaller one any more."""
    content_since: int = 0
    """The first of the consecutive manifests with the same content: the same files and the same end of the log.

    Its id is the id of the version, because the manifests after it changed checkpoints, epochs or jobs only.
    """
    readable_since: int = 1
    """Manifests below this id are readable only through a checkpoint. The collector may delete the others."""
    destroyed_at_ms: int | None = None
    l0: tuple[FileMeta, ...] = ()
    runs: tuple[Run, ...] = ()
    jobs: tuple[Job, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    external_databases: tuple[ExternalDatabase, ...] = ()
    source: CloneSource | None = None
    merge_operator: str | None = None
    """Name of the operator of all merge rows."""
    wal_enabled: bool = True
    previous_write_ids: tuple[str, ...] = ()
    """Write ids of the preceding manifests, newest first (at most 64), so that the collector need not read them."""

    @property
    def file_set(self) -> FileSet:
        """The files of this version."""
        return FileSet(self.l0, self.runs)

    def has_content_of(self, other: Manifest) -> bool:
        """Whether both manifests name the same files and the same end of the log."""
        return (
            max(self.wal_id_last_seen, self.replay_after_wal_id)
            == max(other.wal_id_last_seen, other.replay_after_wal_id)
            and self.l0 == other.l0
            and self.runs == other.runs
        )

    def checkpoint(self, id_or_name: str) -> Checkpoint | None:
        """Return a checkpoint by id or by name, expired or not; None if there is none."""
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
