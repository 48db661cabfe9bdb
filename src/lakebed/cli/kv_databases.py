"""Commands of ``lakebed kv`` on whole databases: create, branch, restore, drop, manifests.

A branch of a database is a clone.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from lakebed.cli import json_output, output
from lakebed.cli.arguments import AfterDestroy, TakeOver, duration
from lakebed.cli.command import Confirmed, Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.kv_context import DatabaseCommand, database_at, url_of
from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.versions import ManifestSummary


class Create(DatabaseCommand, name="create"):
    """Create an empty database; `put` creates one too."""

    after_destroy: AfterDestroy = False

    def run(self) -> None:
        admin = self.database_to_create()
        if admin.exists():
            raise AlreadyExists(f"There is a database at {admin.location.url} already.", url=admin.location.url)
        with admin.open(options=DatabaseOptions(background=False), after_destroy=self.after_destroy):
            pass
        self.result(
            {"url": admin.location.url},
            f"Created the database {self.name or admin.location.url} at {admin.location.url}.",
        )


class Branch(DatabaseCommand, name="branch"):
    """Create a clone of a database. It shares its files and has its own writes."""

    new: Annotated[str, argument("BRANCH", help="The new database: a name in the same lake, or a URL.")]
    checkpoint: Annotated[
        str | None, option("--checkpoint", help="Start from this checkpoint. Default: from the latest version.")
    ] = None
    copy: Annotated[bool, option("--copy", help="Copy the files. This is needed if the stores differ.")] = False

    def run(self) -> None:
        parent = self.database().location.url
        if self.lake is None and "/" not in self.new:
            raise InvalidRequest(
                f"With --path the clone is named by its URL: {self.new!r} has no folder.", kind="usage"
            )
        url = self.new if self.lake is None or "/" in self.new else url_of(self.lake, self.new)
        admin = database_at(url, self.storage_options)
        if admin.exists():  # `create_clone` finishes what a crash left, so it accepts an existing clone of the parent
            raise AlreadyExists(
                f"There already is a database at {admin.location.url}, and no branch of {parent} was made: name "
                "another.",
                kind="database_exists",
                url=admin.location.url,
            )
        admin.create_clone(parent, self.checkpoint, copy=self.copy)
        self.result(
            {"url": admin.location.url, "parent": parent, "checkpoint": self.checkpoint},
            f"{admin.location.url} is a clone of {parent}.",
        )


class Restore(Confirmed, DatabaseCommand, name="restore"):
    """Make an older version the newest. The present one stays pinned for --lifetime."""

    checkpoint: Annotated[
        str,
        argument(
            "CHECKPOINT",
            help="Go back to this checkpoint, by name or UUID, or to the version of this number (`lakebed history`).",
        ),
    ]
    lifetime: Annotated[str, option("--lifetime", help="How long the present version can be restored.")] = "7 d"
    take_over: TakeOver = False

    def run(self) -> None:
        admin = self.database()
        self.ask(f"Restore {admin.location.url} to {self.checkpoint}? Its writer is fenced.")
        version = admin.restore(self.checkpoint, lifetime=duration(self.lifetime), take_over=self.take_over)
        self.result(
            json_output.of_version(version),
            f"{admin.location.url} is {self.checkpoint} again, as version {version.id}; the state before stays for "
            f"{self.lifetime}.",
        )


class Drop(Deletion, DatabaseCommand, name="drop"):
    """Destroy the database. This is refused while checkpoints pin it; --soft waits for them."""

    hard: Annotated[
        bool,
        option("--hard/--soft", help="Delete it at once, or let a collection delete it after the grace (the default)."),
    ] = False
    take_over: TakeOver = False

    def run(self) -> None:
        admin = self.database()
        self.ask(f"Destroy {admin.location.url} {'now' if self.hard else 'softly'}?")
        with output.progress("destroying") as progress:
            report = admin.destroy(
                soft=not self.hard, take_over=self.take_over, dry_run=self.dry_run, progress=progress
            )
        if self.hard or self.json:
            json_output.print_report(report, json=self.json)
            return
        stamped = "would be marked as destroyed" if self.dry_run else "is marked as destroyed"
        output.sentence(
            f"{admin.location.url} {stamped}: `lakebed kv collect` deletes its files when its grace is over."
        )


class Manifest(DatabaseCommand, name="manifest"):
    """Print a whole manifest, as JSON."""

    id: Annotated[int | None, option("--id", "-i", min=1, help="Its number. Default: the newest.")] = None

    def run(self) -> None:
        output.document(msgspec.to_builtins(self.database().show_manifest(self.id), str_keys=True))


class Manifests(DatabaseCommand, name="manifests"):
    """List the manifests, oldest first, and what pins them."""

    def run(self) -> None:
        manifests = self.database().list_manifests()
        self.grid(
            [of_entry(manifest) for manifest in manifests],
            ("manifest", "created", "size", "pinned by"),
            [
                (
                    str(manifest.id),
                    output.ago(manifest.created_ms),
                    output.size(manifest.size_bytes),
                    ", ".join(manifest.pinned_by) or _state(manifest),
                )
                for manifest in manifests
            ],
            right=("manifest", "size"),
            less=("size", "created"),
            sentences=("pinned by",),
            empty="No manifest.",
        )


def of_entry(entry: ManifestSummary) -> dict[str, Any]:
    """Return the facts of a listed manifest."""
    return {
        "manifest_id": entry.id,
        "created_ms": entry.created_ms,
        "bytes": entry.size_bytes,
        "newest": entry.is_newest,
        "readable": entry.is_readable,
        "pinned_by": list(entry.pinned_by),
    }


def _state(entry: ManifestSummary) -> str:
    return "(the newest)" if entry.is_newest else "-" if entry.is_readable else "(waits for the collector)"
