"""The group ``lakebed kv``: checkpoints, clones, restore, drop, collect, compact, manifests. Keys are in `keys.py`.

The verbs are those of every store: a tag of a database is a checkpoint, a branch is a clone. The names of the
checkpoints and clones proposal (``create-checkpoint``, ``--path`` before the command) still work.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from lakebed.cli import args, exits, facts, keys, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Exit, Group, argument, option
from lakebed.cli.keys import DatabaseName, KvLake, OtherPath
from lakebed.errors import AlreadyExists, InvalidRequest

if TYPE_CHECKING:
    from lakebed.errors import LakebedError
    from lakebed.kv.admin import DatabaseAdmin
    from lakebed.kv.collect import Collection
    from lakebed.kv.model import Checkpoint
    from lakebed.kv.versions import ManifestSummary

__all__ = ["app"]

app = Group(
    "kv",
    "Databases: keys and values. A tag is a checkpoint, which pins a version; a branch is a clone, which shares files.",
)
keys.register(app)

CheckpointName = Annotated[
    str, argument("CHECKPOINT", help="The checkpoint's name, or its UUID.", formerly=("--id", "-i"))
]
Lifetime = Annotated[
    str | None,
    option("--lifetime", "-l", help="Its end: '7days 30min 10s', P7D. Default: never."),
]
TakeOver = Annotated[bool, option("--take-over", help="Also from an owner whose lease is live: its process is fenced.")]
Watch = Annotated[bool, option("--watch", help="Go on until interrupted.")]
Every = Annotated[str, option("--interval", help="With --watch: time between two looks.")]


# ---- databases


@app.command()
def create(
    lake: KvLake,
    name: DatabaseName,
    after_destroy: Annotated[
        bool, option("--after-destroy", help="Make a new database where one was destroyed.")
    ] = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Make an empty database; `put` makes one too."""
    from lakebed.kv.options import DatabaseOptions

    admin = keys.database(lake, name, path)
    if admin.exists():
        raise AlreadyExists(f"There is a database at {admin.location.url} already.", url=admin.location.url)
    with admin.open(options=DatabaseOptions(background=False), after_destroy=after_destroy):
        pass
    url = admin.location.url
    say.result(json, {"url": url}, f"Made the database {name or url} at {url}.")


# ---- checkpoints


@app.command("tag", formerly=["create-checkpoint"])
def tag(
    lake: KvLake,
    name: DatabaseName,
    checkpoint: Annotated[
        str | None,
        argument(
            "CHECKPOINT", help="A name for it, unique among the live ones. Default: none.", formerly=("--name", "-n")
        ),
    ] = None,
    lifetime: Lifetime = None,
    source: Annotated[
        str | None, option("--source", "-s", help="Pin what this checkpoint pins. Default: the latest version.")
    ] = None,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Pin the current state, or that of another checkpoint: make a checkpoint."""
    from lakebed.kv.options import CheckpointOptions

    lives = _lifetime(lifetime)
    options = CheckpointOptions(lifetime=lives, source=source, name=checkpoint)
    admin = keys.database(lake, name, path)
    made = admin.create_checkpoint(options)
    version = str(admin.show_manifest(made.manifest_id).content_since)
    shown = made.id if checkpoint is None else f"{checkpoint} ({made.id})"
    ends = "never ends" if lives is None else f"ends in {say.span(round(1000 * lives.total_seconds()))}"
    text = f"The checkpoint {shown} pins version {version} and {ends}."
    say.result(json, {"id": made.id, "version": version, "manifest_id": made.manifest_id}, text)


@app.command("refresh-tag", formerly=["refresh-checkpoint"])
def refresh_tag(
    lake: KvLake,
    name: DatabaseName,
    checkpoint: CheckpointName,
    lifetime: Lifetime = None,
    force: Annotated[bool, option("--force", help="Also one that a clone or writer holds.")] = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Give a checkpoint a new lifetime, counted from now."""
    found = keys.database(lake, name, path).refresh_checkpoint(checkpoint, _lifetime(lifetime), force=force)
    ends = "never ends" if found.expires_at_ms is None else f"ends {say.ago(found.expires_at_ms)}"
    say.result(json, of_checkpoint(found), f"The checkpoint {found.name or found.id} {ends}.")


@app.command("drop-tag", formerly=["delete-checkpoint"])
def drop_tag(
    lake: KvLake,
    name: DatabaseName,
    checkpoint: CheckpointName,
    force: Annotated[bool, option("--force", help="Also one that a clone, reader or writer holds.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Remove a checkpoint: what only it held goes with the next collection."""
    admin = keys.database(lake, name, path)
    if dry_run:
        from lakebed.kv.checkpoint import find_checkpoint

        now_ms = admin.location.environment.clock.now_ms()
        found = find_checkpoint(admin.show_manifest(), checkpoint, now_ms=now_ms, url=admin.location.url)
        version = admin.show_manifest(found.manifest_id).content_since
        text = f"Would delete the checkpoint {found.name or found.id} of version {version}."
        say.result(json, {**of_checkpoint(found), "dry_run": True}, text)
        return
    say.ask(f"Delete the checkpoint {checkpoint} of {admin.location.url}?", yes=yes, json=json)
    gone = admin.delete_checkpoint(checkpoint, force=force)
    say.result(json, of_checkpoint(gone), f"Deleted the checkpoint {gone.name or gone.id}.")


@app.command("tags", formerly=["list-checkpoints"])
def tags(
    lake: KvLake,
    name: DatabaseName,
    only: Annotated[str | None, option("--name", "-n", help="Only those of this name.")] = None,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """List the live checkpoints, oldest first, whoever holds them."""
    from lakebed.kv.versions import versions_of

    admin = keys.database(lake, name, path)
    found = admin.list_checkpoints(only)
    versions = versions_of(admin.location, found)
    if json:
        say.document([{**of_checkpoint(one), "version": versions[one.id]} for one in found])
        return
    say.grid(
        ("id", "name", "version", "owner", "made", "expires"),
        [
            (
                one.id,
                one.name or "-",
                versions[one.id],
                str(one.owner),
                say.ago(one.created_at_ms),
                "never" if one.expires_at_ms is None else say.ago(one.expires_at_ms),
            )
            for one in found
        ],
        right=("version",),
        less=("owner", "made", "expires"),
        empty="No checkpoint. Make one: lakebed kv tag LAKE NAME",
    )


# ---- clones, restore, destroy


ClonedCheckpoint = Annotated[
    str | None, option("--checkpoint", help="Start from this checkpoint. Default: from the latest version.")
]
Copy = Annotated[bool, option("--copy", help="Copy the files; needed when the stores differ.")]


@app.command()
def branch(
    lake: KvLake,
    name: DatabaseName,
    new: Annotated[str, argument("BRANCH", help="The new database: a name in the same lake, or a URL.")],
    checkpoint: ClonedCheckpoint = None,
    copy: Copy = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Fork a database: make a clone, which shares its files and has writes of its own."""
    parent = keys.database(lake, name, path).location.url
    if lake is None and "/" not in new:
        raise InvalidRequest(f"With --path the clone is named by its URL: {new!r} has no folder.", kind="usage")
    admin = keys.database_at(new if lake is None or "/" in new else keys.url_of(lake, new))
    if admin.exists():  # `create_clone` finishes what a crash left, so it accepts a clone of the same parent
        raise AlreadyExists(
            f"There is a database at {admin.location.url} already, and no branch of {parent} was made: name another.",
            kind="database_exists",
            url=admin.location.url,
        )
    _clone(admin, parent, checkpoint=checkpoint, copy=copy, json=json)


@app.retired("create-clone", successor="lakebed kv branch LAKE NAME BRANCH")
def create_clone(
    lake: KvLake,
    name: DatabaseName,
    parent: Annotated[str, option("--from", metavar="URL", help="The database to fork.")],
    checkpoint: ClonedCheckpoint = None,
    copy: Copy = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Make the database at --path a clone: it shares files and has writes of its own."""
    _clone(keys.database(lake, name, path), parent, checkpoint=checkpoint, copy=copy, json=json)


def _clone(admin: DatabaseAdmin, parent: str, *, checkpoint: str | None, copy: bool, json: bool) -> None:
    admin.create_clone(parent, checkpoint, copy=copy)
    text = f"{admin.location.url} is a clone of {parent}."
    say.result(json, {"url": admin.location.url, "parent": parent, "checkpoint": checkpoint}, text)


@app.command()
def restore(
    lake: KvLake,
    name: DatabaseName,
    checkpoint: Annotated[
        str,
        argument(
            "CHECKPOINT",
            help="Go back to this checkpoint, by name or UUID, or to the version of this number (`lakebed history`).",
            formerly=["--checkpoint"],
        ),
    ],
    keep_for: Annotated[str, option("--keep-for", help="How long the present stays restorable.")] = "7 d",
    take_over: TakeOver = False,
    yes: Yes = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Make an older state the newest one; the present stays pinned for a while."""
    admin = keys.database(lake, name, path)
    say.ask(f"Restore {admin.location.url} to {checkpoint}? Its writer is fenced.", yes=yes, json=json)
    kept = _lifetime(keep_for)
    assert kept is not None
    made = admin.restore(checkpoint, keep_for=kept, take_over=take_over)
    text = f"{admin.location.url} is {checkpoint} again, as version {made.id}; the state before stays for {keep_for}."
    say.result(json, facts.of_version(made), text)


@app.command("drop", formerly=["destroy"])
def drop(
    lake: KvLake,
    name: DatabaseName,
    hard: Annotated[
        bool, option("--hard/--soft", help="At once, or by the collector after its grace (the default).")
    ] = False,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Destroy the database; refused while checkpoints pin it (--soft waits for them)."""
    admin = keys.database(lake, name, path)
    if not dry_run:
        say.ask(f"Destroy {admin.location.url} {'now' if hard else 'softly'}?", yes=yes, json=json)
    with say.progress("destroying") as progress:
        report = admin.destroy(soft=not hard, take_over=take_over, dry_run=dry_run, progress=progress)
    if hard or json:
        facts.print_reports([report], json=json, single=True)
        return
    stamped = "would be marked as destroyed" if dry_run else "is marked as destroyed"
    say.sentence(f"{admin.location.url} {stamped}: `lakebed kv collect` deletes its files when its grace is over.")


# ---- collecting and compacting


@app.command()
def collect(
    lake: KvLake,
    names: Annotated[list[str] | None, argument("NAME", help="Databases of it. Default: all.")] = None,
    min_age: Annotated[str, option("--min-age", help="Spare what is younger. Zero is safe, too.")] = "1 d",
    grace: Annotated[str, option("--grace", help="Time that a softly destroyed database stays.")] = "1 d",
    dry_run: DryRun = False,
    yes: Yes = False,
    watch: Watch = False,
    interval: Every = "10 min",
    path: Annotated[
        str | None,
        option(
            "--path", metavar="URL", help="A database that lies in no lake.", replaces=("lake",), note=keys.new_spelling
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Delete what no version needs any more: expired checkpoints, old versions, files, log objects.

    A database that cannot be collected is reported, and the others are collected all the same. With --watch, a database
    that was destroyed and is gone is watched no longer; the command ends when none is left.
    """
    from lakebed.kv.collect import Collector
    from lakebed.kv.options import CollectorOptions

    places = [keys.database_at(url).location for url in _urls(lake, names, path, json=json)]
    if not places:
        say.result(json, [], f"The lake {lake} has no database.")
        return
    options = CollectorOptions(min_age=_span(min_age), db_delete_grace=_span(grace))
    if not dry_run:
        what = say.count(len(places), "database") if len(places) > 1 else places[0].url
        say.ask(f"Collect the garbage of {what}? (--dry-run shows what would go.)", yes=yes, json=json)
    collector = Collector(places, options=options, dry_run=dry_run)
    pause_s = _span(interval).total_seconds()
    failures: list[LakebedError] = []
    while True:
        with say.progress("collecting") as progress:
            done = collector.collect_once(progress)
        for url, collection in done.items():
            _print_collection(url, collection, watch=watch, json=json)
        failed = [one.error for one in done.values() if one.error is not None]
        # A watch goes on past faults, which may pass; a path that never was a database is the caller's mistake.
        failures += [error for error in failed if not watch or error.kind == "database_not_found"]
        if not watch or not collector.urls:
            break
        say.flush()
        places[0].environment.clock.sleep(pause_s)
    if failures:
        raise Exit(exits.exit_code(failures[0]))


def _urls(lake: str | None, names: list[str] | None, path: str | None, *, json: bool) -> list[str]:
    """The databases that a collection is about; before it took names, the command took URLs."""
    first = path or lake or ""
    if path is not None:
        return [first, *(names or [])]
    if first.rstrip("/").endswith(keys.DATABASE_SUFFIX) or any("/" in name for name in names or ()):
        if not json:
            say.notes(["`lakebed kv collect URL...` is now `lakebed kv collect LAKE NAME...`."], json=False)
        return [first, *(names or [])]
    return [keys.url_of(first, name) for name in names or keys.names_of(first)]


def _print_collection(url: str, collection: Collection, *, watch: bool, json: bool) -> None:
    """What one round did to one database: its report, or on standard error why it was not collected."""
    error = collection.error
    if error is not None:
        sentence = f"{url} was not collected: {error.message}"
        say.error(type(error)(sentence, kind=error.kind, **error.facts), json=json)
        return
    if not watch or not facts.is_idle(collection.report):  # a log of a watch tells what happened
        facts.print_reports([collection.report], json=json, single=True)
    if watch and collection.gone and not json:
        say.sentence(f"{url} was destroyed, and nothing but its tombstone is left: its watch ends.")


@app.command()
def compact(
    lake: KvLake,
    name: DatabaseName,
    full: Annotated[bool, option("--full", help="Merge everything into one run.")] = False,
    watch: Watch = False,
    interval: Every = "5 s",
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Merge files, as a separate process beside the writer. Where no process writes, the log goes into files first."""
    from lakebed.kv.compactor import Compactor
    from lakebed.reclaim.sweep import Progress

    admin = keys.database(lake, name, path)
    if not watch:
        keys.flush_log(admin)
    compactor = Compactor(admin.location)
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
        admin.location.environment.clock.sleep(pause_s)
    files = admin.show_manifest().file_set
    summary = {"compactions": count, "l0": len(files.l0), "runs": len(files.runs), "bytes": files.size_bytes}
    done = say.count(count, "compaction") if count else "Nothing to compact"
    shape = f"{say.count(len(files.l0), 'file')} of level 0 and {say.count(len(files.runs), 'run')}"
    say.result(json, summary, f"{done}: {shape}, {say.size(files.size_bytes)}.")


# ---- manifests


@app.command("manifest", formerly=["show-manifest"])
def manifest(
    lake: KvLake,
    name: DatabaseName,
    id: Annotated[int | None, option("--id", "-i", min=1, help="Its number. Default: the newest.")] = None,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Print a manifest whole, as JSON."""
    import msgspec

    say.document(msgspec.to_builtins(keys.database(lake, name, path).show_manifest(id), str_keys=True))


@app.command("manifests", formerly=["list-manifests"])
def manifests(lake: KvLake, name: DatabaseName, path: OtherPath = None, json: Json = False) -> None:
    """List the manifests that are there, oldest first, and what pins them."""
    found = keys.database(lake, name, path).list_manifests()
    if json:
        say.document([of_entry(one) for one in found])
        return
    say.grid(
        ("manifest", "made", "size", "pinned by"),
        [
            (str(one.id), say.ago(one.created_ms), say.size(one.size_bytes), ", ".join(one.pinned_by) or _state(one))
            for one in found
        ],
        right=("manifest", "size"),
        less=("size", "made"),
        sentences=("pinned by",),
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
