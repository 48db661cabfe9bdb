"""Commands on tags: list, create, replace, rename, delete, expire."""

from __future__ import annotations

from typing import Annotated

from lakebed.cli import args, facts, say
from lakebed.cli.args import Branch, DryRun, Json, LakeUrl, Lifetime, TableName, TagName, Timestamp, Yes
from lakebed.cli.grammar import Group, argument, option

__all__ = ["register"]

SnapshotId = Annotated[int | None, option("--snapshot", help="Tag this snapshot. Default: the newest.")]
FromTag = Annotated[str | None, option("--tag", help="Tag what this tag holds.")]


def register(app: Group) -> None:
    """Add the commands to the group of table commands."""
    for command in (tags, replace_tag, rename_tag, expire_tags):
        app.command()(command)
    app.command("tag", formerly=["create-tag"])(create_tag)
    app.command("drop-tag", formerly=["delete-tag"])(delete_tag)


def tags(lake: LakeUrl, table: TableName, branch: Branch = None, json: Json = False) -> None:
    """List the tags, oldest snapshot first."""
    opened = args.open_table(lake, table, branch=branch)
    written = opened.tagger.written_ms()
    found = [facts.of_tag(tag, written_ms=written.get(tag.name)) for tag in opened.tags()]
    if json:
        say.document(found)
        return
    say.grid(
        ("tag", "snapshot", "committed", "stored", "made", "expires"),
        [
            (
                tag["tag"],
                str(tag["snapshot"]),
                say.ago(tag["time_ms"]),
                f"{tag['rows']:,}",
                say.ago(tag["created_ms"]),
                "never" if tag["expires_ms"] is None else say.ago(tag["expires_ms"]),
            )
            for tag in found
        ],
        right=("snapshot", "stored"),
        less=("made", "stored", "committed"),
        empty=f"The table {table} has no tag. Make one: lakebed table tag {lake} {table} TAG",
    )


def create_tag(
    lake: LakeUrl,
    table: TableName,
    name: TagName,
    snapshot: SnapshotId = None,
    tag: FromTag = None,
    timestamp: Timestamp = None,
    lifetime: Lifetime = None,
    if_not_exists: Annotated[bool, option("--if-not-exists", help="Be content with a tag that is there.")] = False,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Pin a snapshot under a name: it stays readable until the tag is deleted."""
    made = args.open_table(lake, table, branch=branch).create_tag(
        name,
        snapshot_id=snapshot,
        tag=tag,
        timestamp_ms=timestamp,
        time_retained_ms=args.duration_ms(lifetime),
        if_not_exists=if_not_exists,
    )
    say.result(json, facts.of_tag(made), f"The tag {made.name} pins snapshot {made.snapshot.id} of {table}.")


def replace_tag(
    lake: LakeUrl,
    table: TableName,
    name: TagName,
    snapshot: SnapshotId = None,
    tag: FromTag = None,
    timestamp: Timestamp = None,
    lifetime: Lifetime = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Point a tag that is there at another snapshot; the newest by default."""
    made = args.open_table(lake, table, branch=branch).replace_tag(
        name, snapshot_id=snapshot, tag=tag, timestamp_ms=timestamp, time_retained_ms=args.duration_ms(lifetime)
    )
    say.result(json, facts.of_tag(made), f"The tag {made.name} pins snapshot {made.snapshot.id} of {table} now.")


def rename_tag(
    lake: LakeUrl,
    table: TableName,
    name: TagName,
    to: Annotated[str, argument("NEW", help="Its new name.", formerly=["--to"])],
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Give a tag another name."""
    made = args.open_table(lake, table, branch=branch).rename_tag(name, to)
    say.result(json, facts.of_tag(made), f"The tag {name} is called {made.name} now.")


def delete_tag(
    lake: LakeUrl,
    table: TableName,
    name: Annotated[list[str], argument("TAG", help="The tag's name; several, for several tags.", formerly=["--name"])],
    if_exists: Annotated[bool, option("--if-exists", help="Be content when it is not there.")] = False,
    branch: Branch = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete tags, and the files that nothing else needs."""
    opened = args.open_table(lake, table, branch=branch)
    if not dry_run:
        say.ask(f"Delete {say.count(len(name), 'tag')} of {table} ({', '.join(name)})?", yes=yes, json=json)
    report = opened.delete_tag(*name, if_exists=if_exists, dry_run=dry_run)
    facts.print_reports([report], json=json, single=True)


def expire_tags(
    lake: LakeUrl,
    table: TableName,
    older_than: Annotated[
        str | None,
        option("--older-than", help="Also delete tags made before this time, whatever their lifetime."),
    ] = None,
    branch: Branch = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete the tags whose lifetime is over, and the files that nothing else needs."""
    opened = args.open_table(lake, table, branch=branch)
    if not dry_run:
        say.ask(f"Delete the expired tags of {table}? (--dry-run lists them.)", yes=yes, json=json)
    report = opened.expire_tags(older_than_ms=args.time_ms(older_than), dry_run=dry_run)
    facts.print_reports([report], json=json, single=True)
