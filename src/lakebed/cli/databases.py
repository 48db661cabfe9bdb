"""The group ``lakebed kv``: checkpoints, clones, restore, destroy, collect, compact, manifests. Keys are in `keys.py`.

Names of commands and options are those of the checkpoints and clones proposal; ``--path`` stands before the command.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakebed.cli import args, facts, keys, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.errors import NotFound

if TYPE_CHECKING:
    from lakebed.kv.model import Checkpoint
    from lakebed.kv.versions import ManifestSummary

__all__ = ["app"]

app = args.new_app("Databases: keys and values with checkpoints, clones, readers, restore and a collector.")
keys.register(app)

Id = Annotated[str, typer.Option("--id", "-i", help="The checkpoint's UUID, or its name.")]
Lifetime = Annotated[
    str | None,
    typer.Option("--lifetime", "-l", help="Its end: '7days 30min 10s', P7D. Default: never."),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also from an owner whose lease is live: its process is fenced.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")]
Every = Annotated[str, typer.Option("--interval", help="With --watch: time between two looks.")]


@app.callback()
def choose(
    context: typer.Context,
    path: Annotated[
        str | None, typer.Option("--path", help="Where the database is: a folder or a URL such as s3://bucket/orders.")
    ] = None,
) -> None:
    """Remember which database the command is about."""
    context.obj = path


# ---- checkpoints


@app.command("create-checkpoint")
def create_checkpoint(
    context: typer.Context,
    lifetime: Lifetime = None,
    source: Annotated[
        str | None, typer.Option("--source", "-s", help="Pin what this checkpoint pins. Default: the latest version.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="A name for it, unique among the live ones.")] = None,
    json: Json = False,
) -> None:
    """Pin the current state, or that of another checkpoint."""
    from lakebed.kv.options import CheckpointOptions

    lives = _lifetime(lifetime)
    options = CheckpointOptions(lifetime=lives, source=source, name=name)
    made = keys.database(context).create_checkpoint(options)
    shown = made.id if name is None else f"{name} ({made.id})"
    ends = "never ends" if lives is None else f"ends in {say.span(round(1000 * lives.total_seconds()))}"
    text = f"The checkpoint {shown} pins version {made.manifest_id} and {ends}."
    say.result(json, {"id": made.id, "manifest_id": made.manifest_id}, text)


@app.command("refresh-checkpoint")
def refresh_checkpoint(
    context: typer.Context,
    id: Id,
    lifetime: Lifetime = None,
    force: Annotated[bool, typer.Option("--force", help="Also one that a clone or writer holds.")] = False,
    json: Json = False,
) -> None:
    """Give a checkpoint a new lifetime, counted from now."""
    found = keys.database(context).refresh_checkpoint(id, _lifetime(lifetime), force=force)
    ends = "never ends" if found.expires_at_ms is None else f"ends {say.ago(found.expires_at_ms)}"
    say.result(json, of_checkpoint(found), f"The checkpoint {found.name or found.id} {ends}.")


@app.command("delete-checkpoint")
def delete_checkpoint(
    context: typer.Context,
    id: Id,
    force: Annotated[bool, typer.Option("--force", help="Also one that a clone, reader or writer holds.")] = False,
    json: Json = False,
) -> None:
    """Remove a checkpoint: what only it held goes with the next collection."""
    gone = keys.database(context).delete_checkpoint(id, force=force)
    say.result(json, of_checkpoint(gone), f"Deleted the checkpoint {gone.name or gone.id}.")


@app.command("list-checkpoints")
def list_checkpoints(
    context: typer.Context,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Only those of this name.")] = None,
    json: Json = False,
) -> None:
    """List the live checkpoints, oldest first, whoever holds them."""
    found = keys.database(context).list_checkpoints(name)
    if json:
        say.document([of_checkpoint(one) for one in found])
        return
    say.grid(
        ("id", "name", "version", "owner", "made", "expires"),
        [
            (
                one.id,
                one.name or "-",
                str(one.manifest_id),
                str(one.owner),
                say.ago(one.created_at_ms),
                "never" if one.expires_at_ms is None else say.ago(one.expires_at_ms),
            )
            for one in found
        ],
        right=("version",),
        empty="No checkpoint. Make one: lakebed kv --path URL create-checkpoint",
    )


# ---- clones, restore, destroy


@app.command("create-clone")
def create_clone(
    context: typer.Context,
    parent: Annotated[str, typer.Option("--from", metavar="URL", help="The database to fork.")],
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Start from this checkpoint. Default: from the latest version.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the files; needed when the stores differ.")] = False,
    json: Json = False,
) -> None:
    """Make the database at --path a clone: it shares files and has writes of its own."""
    admin = keys.database(context)
    admin.create_clone(parent, checkpoint, copy=copy)
    text = f"{admin.place.url} is a clone of {parent}."
    say.result(json, {"url": admin.place.url, "parent": parent, "checkpoint": checkpoint}, text)


@app.command("restore")
def restore(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Go back to this checkpoint, by UUID or name.")],
    keep_for: Annotated[str, typer.Option("--keep-for", help="How long the present stays restorable.")] = "7 d",
    take_over: TakeOver = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make an older state the newest one; the present stays pinned for a while."""
    admin = keys.database(context)
    say.ask(f"Restore {admin.place.url} to {checkpoint}? Its writer is fenced.", yes=yes, json=json)
    kept = _lifetime(keep_for)
    assert kept is not None
    made = admin.restore(checkpoint, keep_for=kept, take_over=take_over)
    text = f"{admin.place.url} is what {checkpoint} pins, as version {made.id}; the present stays for {keep_for}."
    say.result(json, facts.of_version(made), text)


@app.command("destroy")
def destroy(
    context: typer.Context,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="At once, or by the collector after its grace (the default).")
    ] = False,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Destroy the database; refused while checkpoints pin it (--soft waits for them)."""
    admin = keys.database(context)
    if not dry_run:
        say.ask(f"Destroy {admin.place.url} {'now' if hard else 'softly'}?", yes=yes, json=json)
    with say.progress("destroying") as progress:
        report = admin.destroy(soft=not hard, take_over=take_over, dry_run=dry_run, progress=progress)
    if hard or json:
        facts.print_reports([report], json=json, single=True)
        return
    stamped = "would be marked as destroyed" if dry_run else "is marked as destroyed"
    say.sentence(f"{admin.place.url} {stamped}: `lakebed kv collect` deletes its files when its grace is over.")


# ---- collecting and compacting


@app.command("collect")
def collect(
    context: typer.Context,
    urls: Annotated[list[str] | None, typer.Argument(metavar="[URL...]", help="More databases.")] = None,
    min_age: Annotated[str, typer.Option("--min-age", help="Spare what is younger. Zero is safe, too.")] = "1 d",
    grace: Annotated[str, typer.Option("--grace", help="Time that a softly destroyed database stays.")] = "1 d",
    dry_run: DryRun = False,
    watch: Watch = False,
    interval: Every = "10 min",
    json: Json = False,
) -> None:
    """Delete what nobody needs any more: expired checkpoints, old versions, files, log objects."""
    from lakebed.kv.options import CollectorOptions

    own = keys.chosen(context)
    places = [keys.database_at(url) for url in [*([own] if own else []), *(urls or [])]]
    if not places:
        raise keys.no_path("collect")
    options = CollectorOptions(min_age=_span(min_age), db_delete_grace=_span(grace))
    pause_s = _span(interval).total_seconds()
    while True:
        for admin in list(places):
            try:
                with say.progress("collecting") as progress:
                    report = admin.collect_garbage(options, dry_run=dry_run, progress=progress)
            except NotFound:
                if not watch:
                    raise
                places.remove(admin)  # it was destroyed and is gone: nothing to watch any more
                continue
            if not watch or not facts.is_idle(report):  # a log of a watch tells what happened
                facts.print_reports([report], json=json, single=True)
        if not watch or not places:
            return
        sys.stdout.flush()
        places[0].place.environment.clock.sleep(pause_s)


@app.command("compact")
def compact(
    context: typer.Context,
    full: Annotated[bool, typer.Option("--full", help="Merge everything into one run.")] = False,
    watch: Watch = False,
    interval: Every = "5 s",
    json: Json = False,
) -> None:
    """Merge files, as a separate process beside the writer."""
    from lakebed.kv.compactor import Compactor
    from lakebed.reclaim.sweep import Progress

    admin = keys.database(context)
    compactor = Compactor(admin.place)
    pause_s = _span(interval).total_seconds()
    count = 0
    while True:
        row_count = sum(file.row_count for file in admin.show_manifest().file_set.files())
        with say.progress("compacting") as bar:

            def tell(rows_read: int, bytes_written: int, bar: Any = bar, row_count: int = row_count) -> None:
                if bar is not None:
                    bar(Progress(rows_read, max(row_count, rows_read), bytes_written))

            if full:
                count += compactor.compact_full(tell)
                full = False  # once; with --watch it goes on as the planner sees fit
            while compactor.compact_once(tell):
                count += 1
        if not watch:
            break
        admin.place.environment.clock.sleep(pause_s)
    files = admin.show_manifest().file_set
    summary = {"compactions": count, "l0": len(files.l0), "runs": len(files.runs), "bytes": files.size_bytes}
    done = say.count(count, "compaction") if count else "Nothing to compact"
    shape = f"{say.count(len(files.l0), 'file')} of level 0 and {say.count(len(files.runs), 'run')}"
    say.result(json, summary, f"{done}: {shape}, {say.size(files.size_bytes)}.")


# ---- manifests


@app.command("show-manifest")
def show_manifest(
    context: typer.Context,
    id: Annotated[int | None, typer.Option("--id", "-i", min=1, help="Its number. Default: the newest.")] = None,
    json: Json = False,
) -> None:
    """Print a manifest whole, as JSON."""
    import msgspec

    say.document(msgspec.to_builtins(keys.database(context).show_manifest(id), str_keys=True))


@app.command("list-manifests")
def list_manifests(context: typer.Context, json: Json = False) -> None:
    """List the manifests that are there, oldest first, and what pins them."""
    found = keys.database(context).list_manifests()
    if json:
        say.document([of_entry(one) for one in found])
        return
    say.grid(
        ("version", "made", "size", "pinned by"),
        [
            (str(one.id), say.ago(one.created_ms), say.size(one.size_bytes), ", ".join(one.pinned_by) or _state(one))
            for one in found
        ],
        right=("version", "size"),
        empty="No manifest.",
    )


def of_entry(entry: ManifestSummary) -> dict[str, Any]:
    """A listed manifest's facts."""
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


def of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's facts."""
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
    milliseconds = args.duration_ms(text)
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _span(text: str) -> timedelta:
    found = _lifetime(text)
    assert found is not None
    return found
