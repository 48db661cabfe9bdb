"""Commands on tags of a table: list, create, replace, rename, drop, expire."""

from __future__ import annotations

from typing import Annotated, Any

from lakebed.cli import arguments, json_output, output, table_output
from lakebed.cli.arguments import Timestamp
from lakebed.cli.command import Deletion
from lakebed.cli.context import BranchTableCommand
from lakebed.cli.grammar import argument, option
from lakebed.table.branch.travel import parse_time_ms

TagName = Annotated[str, argument("TAG", help="The tag's name.")]
Lifetime = Annotated[
    str | None, option("--lifetime", help="Delete the tag after this time: '7 d', '12h', 'P7D'. Default: never.")
]
SnapshotId = Annotated[int | None, option("--snapshot", help="Tag this snapshot. Default: the newest.")]
FromTag = Annotated[str | None, option("--tag", help="Tag the snapshot of this tag.")]


class Tags(BranchTableCommand, name="tags"):
    """List the tags, oldest snapshot first."""

    def run(self) -> None:
        table = self.open_branch()
        write_times_ms = table.context.tags.write_time_ms()
        records = [table_output.of_tag(tag, write_time_ms=write_times_ms.get(tag.name)) for tag in table.tags()]
        self.grid(
            records,
            ("tag", "snapshot", "committed", "stored", "created", "expires"),
            [
                (
                    tag["tag"],
                    str(tag["snapshot"]),
                    output.ago(tag["time_ms"]),
                    f"{tag['rows']:,}",
                    output.ago(tag["created_ms"]),
                    "never" if tag["expires_ms"] is None else output.ago(tag["expires_ms"]),
                )
                for tag in records
            ],
            right=("snapshot", "stored"),
            less=("created", "stored", "committed"),
            empty=f"The table {self.table} has no tag. Create one: lakebed table tag {self.lake} {self.table} TAG",
        )


class _Tagging(BranchTableCommand):
    """A command that points a tag at a snapshot."""

    name: TagName
    snapshot: SnapshotId = None
    tag: FromTag = None
    timestamp: Timestamp = None
    lifetime: Lifetime = None

    def source(self) -> dict[str, Any]:
        """Return what to tag, and for how long."""
        return {
            "snapshot_id": self.snapshot,
            "tag": self.tag,
            "timestamp_ms": self.timestamp,
            "lifetime_ms": arguments.duration_ms(self.lifetime),
        }


class CreateTag(_Tagging, name="tag"):
    """Pin a snapshot under a name: it stays readable until the tag is deleted."""

    if_not_exists: Annotated[bool, option("--if-not-exists", help="Succeed if the tag already exists.")] = False

    def run(self) -> None:
        tag = self.open_branch().create_tag(self.name, if_not_exists=self.if_not_exists, **self.source())
        self.result(table_output.of_tag(tag), f"The tag {tag.name} pins snapshot {tag.snapshot.id} of {self.table}.")


class ReplaceTag(_Tagging, name="replace-tag"):
    """Point an existing tag at another snapshot; the newest by default."""

    def run(self) -> None:
        tag = self.open_branch().replace_tag(self.name, **self.source())
        self.result(
            table_output.of_tag(tag), f"The tag {tag.name} pins snapshot {tag.snapshot.id} of {self.table} now."
        )


class RenameTag(BranchTableCommand, name="rename-tag"):
    """Rename a tag."""

    name: TagName
    to: Annotated[str, argument("NEW", help="Its new name.")]

    def run(self) -> None:
        tag = self.open_branch().rename_tag(self.name, self.to)
        self.result(table_output.of_tag(tag), f"The tag {self.name} is called {tag.name} now.")


class DropTag(Deletion, BranchTableCommand, name="drop-tag"):
    """Drop tags, and delete the files that nothing else needs."""

    name: Annotated[list[str], argument("TAG", help="The tag's name; several, for several tags.")]
    if_exists: Annotated[bool, option("--if-exists", help="Succeed if the tag does not exist.")] = False

    def run(self) -> None:
        table = self.open_branch()
        self.ask(f"Drop {output.count(len(self.name), 'tag')} of {self.table} ({', '.join(self.name)})?")
        report = table.delete_tag(*self.name, if_exists=self.if_exists, dry_run=self.dry_run)
        json_output.print_report(report, json=self.json)


class ExpireTags(Deletion, BranchTableCommand, name="expire-tags"):
    """Delete the tags whose lifetime is over, and the files that nothing else needs."""

    older_than: Annotated[
        str | None,
        option("--older-than", help="Also delete tags made before this time, regardless of their lifetime."),
    ] = None

    def run(self) -> None:
        table = self.open_branch()
        self.ask(f"Delete the expired tags of {self.table}? (--dry-run lists them.)")
        older_than_ms = None if self.older_than is None else parse_time_ms(self.older_than)
        report = table.expire_tags(older_than_ms=older_than_ms, dry_run=self.dry_run)
        json_output.print_report(report, json=self.json)
