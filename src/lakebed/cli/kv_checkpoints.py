"""Commands of ``lakebed kv`` on checkpoints, a database's tags: tag, refresh-tag, drop-tag, tags, why."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from lakebed.cli import json_output, output
from lakebed.cli.arguments import duration
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.kv_context import DatabaseCommand
from lakebed.kv.checkpoint import checkpoint_to_delete
from lakebed.kv.model import Checkpoint
from lakebed.kv.options import CheckpointOptions
from lakebed.kv.versions import versions_of

CheckpointName = Annotated[str, argument("CHECKPOINT", help="The checkpoint's name, or its UUID.")]
Lifetime = Annotated[
    str | None,
    option("--lifetime", "-l", help="End it after this time: '7days 30min 10s', P7D. Default: never."),
]


class Tag(DatabaseCommand, name="tag"):
    """Create a checkpoint of the present version, or of that of another checkpoint."""

    checkpoint: Annotated[
        str | None,
        argument("CHECKPOINT", help="A name for it, unique among the live ones. Default: none."),
    ] = None
    lifetime: Lifetime = None
    source: Annotated[
        str | None, option("--source", "-s", help="Pin what this checkpoint pins. Default: the latest version.")
    ] = None

    def run(self) -> None:
        lives = _lifetime(self.lifetime)
        options = CheckpointOptions(lifetime=lives, source=self.source, name=self.checkpoint)
        admin = self.database()
        checkpoint = admin.create_checkpoint(options)
        version = str(admin.show_manifest(checkpoint.manifest_id).content_since)
        checkpoint_text = checkpoint.id if self.checkpoint is None else f"{self.checkpoint} ({checkpoint.id})"
        ends = "never ends" if lives is None else f"ends in {output.span(round(1000 * lives.total_seconds()))}"
        text = f"The checkpoint {checkpoint_text} pins version {version} and {ends}."
        self.result({"id": checkpoint.id, "version": version, "manifest_id": checkpoint.manifest_id}, text)


class RefreshTag(DatabaseCommand, name="refresh-tag"):
    """Give a checkpoint a new lifetime, from now on."""

    checkpoint: CheckpointName
    lifetime: Lifetime = None
    force: Annotated[bool, option("--force", help="Change a checkpoint that a clone or writer holds too.")] = False

    def run(self) -> None:
        checkpoint = self.database().refresh_checkpoint(self.checkpoint, _lifetime(self.lifetime), force=self.force)
        ends = "never ends" if checkpoint.expires_at_ms is None else f"ends {output.ago(checkpoint.expires_at_ms)}"
        self.result(of_checkpoint(checkpoint), f"The checkpoint {checkpoint.name or checkpoint.id} {ends}.")


class DropTag(Deletion, DatabaseCommand, name="drop-tag"):
    """Drop a checkpoint. The next collection deletes what only it kept."""

    checkpoint: CheckpointName
    force: Annotated[bool, option("--force", help="Drop a checkpoint that a clone, reader or writer holds too.")] = (
        False
    )

    def run(self) -> None:
        admin = self.database()
        if self.dry_run:
            checkpoint = checkpoint_to_delete(admin.location, admin.show_manifest(), self.checkpoint, force=self.force)
            version = admin.show_manifest(checkpoint.manifest_id).content_since
            text = f"Would drop the checkpoint {checkpoint.name or checkpoint.id} of version {version}."
            self.result({**of_checkpoint(checkpoint), "dry_run": True}, text)
            return
        self.ask(f"Drop the checkpoint {self.checkpoint} of {admin.location.url}?")
        deleted_checkpoint = admin.delete_checkpoint(self.checkpoint, force=self.force)
        self.result(
            of_checkpoint(deleted_checkpoint),
            f"Dropped the checkpoint {deleted_checkpoint.name or deleted_checkpoint.id}.",
        )


class Tags(DatabaseCommand, name="tags"):
    """List the live checkpoints, oldest first, of all owners."""

    only: Annotated[str | None, option("--name", "-n", help="Only those of this name.")] = None

    def run(self) -> None:
        admin = self.database()
        checkpoints = admin.list_checkpoints(self.only)
        versions = versions_of(admin.location, checkpoints)
        self.grid(
            [{**of_checkpoint(checkpoint), "version": versions[checkpoint.id]} for checkpoint in checkpoints],
            ("id", "name", "version", "owner", "created", "expires"),
            [
                (
                    checkpoint.id,
                    checkpoint.name or "-",
                    versions[checkpoint.id],
                    str(checkpoint.owner),
                    output.ago(checkpoint.created_at_ms),
                    "never" if checkpoint.expires_at_ms is None else output.ago(checkpoint.expires_at_ms),
                )
                for checkpoint in checkpoints
            ],
            right=("version",),
            less=("owner", "created", "expires"),
            empty="No checkpoint. Create one: lakebed kv tag LAKE NAME",
        )


class Why(DatabaseCommand, name="why"):
    """Show which checkpoints keep a version, and until when."""

    version: Annotated[
        str, argument("VERSION", help="A version's number (`lakebed history`), or a checkpoint by name or UUID.")
    ]

    def run(self) -> None:
        explanation = self.database().why_version(self.version)
        json_output.print_explanation(explanation, json=self.json, is_version=True)


def of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's facts."""
    owner = checkpoint.owner
    return {
        "id": checkpoint.id,
        "name": checkpoint.name,
        "manifest_id": checkpoint.manifest_id,
        "created_ms": checkpoint.created_at_ms,
        "expires_ms": checkpoint.expires_at_ms,
        "owner": {"kind": owner.kind, "epoch": owner.epoch, "host": owner.host, "pid": owner.pid, "url": owner.url},
    }


def _lifetime(text: str | None) -> timedelta | None:
    return None if text is None else duration(text)
