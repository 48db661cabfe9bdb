"""Commands on a whole lake: ls, history, pins, why, clean, fsck."""

from __future__ import annotations

import os
from typing import Annotated

from lakebed.cli import args, exits, facts, say
from lakebed.cli.args import DryRun, Json, LakeUrl, RepairStatistics, Yes
from lakebed.cli.grammar import Exit, Group, argument, option
from lakebed.cli.repairs import run_repair

__all__ = ["register"]

SomeStore = Annotated[
    str | None,
    argument("STORE", help="Only this store: flights, database:serving, repository:analytics."),
]


def register(app: Group) -> None:
    """Add the commands to an app."""
    for command in (ls, history, pins, why, fsck):
        app.command()(command)
    app.command("collect", formerly=["clean"])(clean)


def ls(
    lake: LakeUrl,
    disk: Annotated[
        bool, option("--disk/--no-disk", help="Add up the bytes of all objects, which lists each store.")
    ] = True,
    json: Json = False,
) -> None:
    """List the stores of a lake: newest version, rows, bytes, pins."""
    opened = args.open_lake(lake)
    stores = opened.ls(disk=disk)
    if json:
        say.document(
            [
                {
                    "kind": store.kind,
                    "name": store.name,
                    "version": store.version,
                    "changed_ms": store.changed_ms,
                    "rows": store.row_count,
                    "rows_exact": store.row_count_is_exact,
                    "bytes": store.size_bytes,
                    "shared_bytes": store.shared_bytes,
                    "disk_bytes": store.disk_bytes,
                    "pins": store.pin_count,
                    "problem": store.problem,
                }
                for store in stores
            ]
        )
    else:
        shares = any(store.shared_bytes for store in stores)
        say.grid(
            (
                *("kind", "name", "version", "changed", "rows", "size"),
                *(["shared"] if shares else []),
                *(["on disk"] if disk else []),
                "pins",
            ),
            [
                (store.kind, store.name, "unreadable", *["-"] * (4 + shares + disk))
                if store.problem
                else (
                    store.kind,
                    store.name,
                    store.version or "-",
                    say.ago(store.changed_ms),
                    _rows(store.row_count, is_exact=store.row_count_is_exact),
                    say.size(store.size_bytes),
                    *([say.size(store.shared_bytes)] if shares else []),
                    *([say.size(store.disk_bytes)] if disk else []),
                    str(store.pin_count),
                )
                for store in stores
            ],
            right=("version", "rows", "size", "shared", "on disk", "pins"),
            less=("shared", "on disk", "changed", "rows", "pins", "size"),
            empty=f"The lake {opened.url} is empty. Make a table: lakebed table create {lake} NAME --column ...\n"
            f"Or a database: lakebed kv put {lake} NAME KEY VALUE\n"
            f"Or a repository: lakebed repo create {lake} NAME",
        )
        for store in stores:
            if store.problem:
                say.sentence(f"error: {store.kind} {store.name}: {store.problem}")
    if any(store.problem for store in stores):
        raise Exit(exits.FAULTY)


def _rows(number: int | None, *, is_exact: bool) -> str:
    return "-" if number is None else f"{number:,}" if is_exact else f"<= {number:,}"


def history(lake: LakeUrl, store: SomeStore = None, json: Json = False) -> None:
    """List the versions that can be read, oldest first, pinned ones included."""
    opened = args.open_lake(lake)
    names = [store] if store else [str(found) for found in opened.stores()]
    versions = [version for name in names for version in opened.history(name)]
    if json:
        say.document([facts.of_version(version) for version in versions])
        return
    say.grid(
        ("store", "version", "made", "what"),
        [
            (version.store, _short_id(version.id), say.ago(version.created_ms), say.brief(version.summary))
            for version in versions
        ],
        right=("version",),
        less=("made",),
        sentences=("what",),
        empty="Nothing was ever written here.",
    )


def pins(lake: LakeUrl, store: SomeStore = None, json: Json = False) -> None:
    """List everything that keeps a version alive, with the bytes that it alone holds."""
    found = args.open_lake(lake).pins(store)
    if json:
        say.document([facts.of_pin(pin) for pin in found])
        return
    owned = any(pin.owner for pin in found)
    say.grid(
        ("store", "kind", "name", "version", *(["owner"] if owned else []), "made", "expires", "alone"),
        [
            (
                pin.store,
                pin.kind,
                pin.name,
                _short_id(pin.version),
                *([pin.owner or "-"] if owned else []),
                say.ago(pin.created_ms),
                "never" if pin.expires_ms is None else say.ago(pin.expires_ms),
                say.size(pin.bytes_alone),
            )
            for pin in found
        ],
        right=("version", "alone"),
        less=("owner", "made", "expires", "alone"),
        empty="Nothing pins a version here.",
    )


def _short_id(version: str) -> str:
    """A commit by its beginning; other versions are numbers."""
    return version[:12] if len(version) == 64 else version


def why(
    lake: LakeUrl,
    object: Annotated[str, argument("OBJECT", help="The object's path in the lake, or its URL.")],
    json: Json = False,
) -> None:
    """Say which pins and versions need an object, or when it may go."""
    opened = args.open_lake(lake)
    here = os.path.abspath(object)  # as a shell completes it, from the folder one is in
    explanation = opened.why(here if os.path.exists(here) and f"file://{here}".startswith(f"{opened.url}/") else object)
    if json:
        say.document(
            {
                "path": explanation.path,
                "sentence": explanation.sentence,
                "pins": [facts.of_pin(pin) for pin in explanation.pins],
            }
        )
        return
    say.sentence(explanation.sentence)
    for pin in explanation.pins:
        say.sentence(f"  {pin.kind} {pin.name} (version {_short_id(pin.version)})")


def clean(
    lake: LakeUrl,
    orphans_older_than: Annotated[
        str,
        option("--orphans-older-than", metavar="AGE", help="Spare files that no version names while they are younger."),
    ] = "1 d",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete what nobody needs: expired tags, snapshots, checkpoints; orphans; remains of what was dropped."""
    opened = args.open_lake(lake)
    spared_ms = args.duration_ms(orphans_older_than) or 0
    before_ms = opened.environment.clock.now_ms() - spared_ms
    if not dry_run:
        say.ask(f"Clean the lake {opened.url}? (--dry-run shows what would go.)", yes=yes, json=json)
    with say.progress("cleaning") as progress:
        reports = opened.clean(dry_run=dry_run, orphans_older_than_ms=before_ms, progress=progress)
    problems = {report.problem_kind for report in reports if report.problem}
    if json:
        facts.print_reports(reports, json=True)
    else:
        facts.print_reports([report for report in reports if not facts.is_idle(report)], json=False)
        total = sum(facts.of_report(report)["bytes"] for report in reports)
        say.sentence(f"{'Would free' if dry_run else 'Freed'} {say.size(total)}.")
    if problems:
        by_kind = {"owned": exits.CONFLICT, "unavailable": exits.UNAVAILABLE}
        raise Exit(max(by_kind.get(str(kind), exits.FAULTY) for kind in problems))


def fsck(
    lake: Annotated[str, argument("LAKE", help="A lake, or one store's folder.", is_lake=True)],
    store: SomeStore = None,
    deep: Annotated[
        bool, option("--deep", help="Read every data file too: row counts, minima, maxima, checksums.")
    ] = False,
    repair_statistics: RepairStatistics = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="With --repair-statistics: read and compare, change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Check that everything a lake refers to is there and readable. Changes nothing unless told to repair."""
    if args.repairs_statistics(repair_statistics, deep=deep, dry_run=dry_run):
        run_repair(lake, store=store, dry_run=dry_run, json=json)
        return
    from lakebed.fsck.check import check_url  # Arrow is loaded only by commands that read data

    with say.progress("checking") as progress:
        report = check_url(lake, store=store, deep=deep, storage_options=args.storage_options(), progress=progress)
    facts.print_check(report, json=json)
    if report.error_count:
        raise Exit(exits.FAULTY)
