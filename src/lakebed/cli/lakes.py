"""Commands on a whole lake: ls, history, pins, why, collect."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

from lakebed.cli import arguments, exits, json_output, output
from lakebed.cli.command import Deletion
from lakebed.cli.context import LakeCommand
from lakebed.cli.grammar import argument, option
from lakebed.cli.json_output import short_id

SomeStore = Annotated[
    str | None,
    argument("STORE", help="Only this store: flights, database:serving, repository:analytics, tenant:orders."),
]


class Ls(LakeCommand, name="ls"):
    """List the stores of a lake: newest version, rows, bytes, pins."""

    disk: Annotated[
        bool, option("--disk/--no-disk", help="Add up the bytes of all objects, which lists each store.")
    ] = True

    def run(self) -> None:
        target = self.open_lake()
        lake, stores = self.lake, target.ls(disk=self.disk)
        if self.json:
            output.document(
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
            output.grid(
                (
                    *("kind", "name", "version", "changed", "rows", "size"),
                    *(["shared"] if shares else []),
                    *(["on disk"] if self.disk else []),
                    "pins",
                ),
                [
                    (store.kind, store.name, "unreadable", *["-"] * (4 + shares + self.disk))
                    if store.problem
                    else (
                        store.kind,
                        store.name,
                        store.version or "-",
                        output.ago(store.changed_ms),
                        _rows(store.row_count, is_exact=store.row_count_is_exact),
                        output.size(store.size_bytes),
                        *([output.size(store.shared_bytes)] if shares else []),
                        *([output.size(store.disk_bytes)] if self.disk else []),
                        str(store.pin_count),
                    )
                    for store in stores
                ],
                right=("version", "rows", "size", "shared", "on disk", "pins"),
                less=("shared", "on disk", "changed", "rows", "pins", "size"),
                empty=f"The lake {target.url} is empty. Create a table: lakebed table create {lake} NAME --column ...\n"
                f"Or a database: lakebed kv put {lake} NAME KEY VALUE\n"
                f"Or a repository: lakebed repo create {lake} NAME",
            )
            for store in stores:
                if store.problem:
                    output.sentence(f"error: {store.kind} {store.name}: {store.problem}")
        if any(store.problem for store in stores):
            raise exits.Exit(exits.FAULTY)


def _rows(number: int | None, *, is_exact: bool) -> str:
    return "-" if number is None else f"{number:,}" if is_exact else f"<= {number:,}"


class History(LakeCommand, name="history"):
    """List the versions that can be read, oldest first, including pinned ones."""

    store: SomeStore = None

    def run(self) -> None:
        lake = self.open_lake()
        names = [self.store] if self.store else [str(store) for store in lake.stores()]
        versions = [version for name in names for version in lake.history(name)]
        self.grid(
            [json_output.of_version(version) for version in versions],
            ("store", "version", "created", "what"),
            [
                (
                    version.store,
                    short_id(version.id),
                    output.ago(version.created_ms),
                    output.brief(version.summary),
                )
                for version in versions
            ],
            right=("version",),
            less=("created",),
            sentences=("what",),
            empty="There is no version to read: nothing was written here yet, or it was destroyed.",
        )


class Pins(LakeCommand, name="pins"):
    """List what keeps versions alive, and the bytes that only it holds."""

    store: SomeStore = None

    def run(self) -> None:
        pins = self.open_lake().pins(self.store)
        has_owners = any(pin.owner for pin in pins)
        self.grid(
            [asdict(pin) for pin in pins],
            ("store", "kind", "name", "version", *(["owner"] if has_owners else []), "created", "expires", "alone"),
            [
                (
                    pin.store,
                    pin.kind,
                    pin.name,
                    short_id(pin.version),
                    *([pin.owner or "-"] if has_owners else []),
                    output.ago(pin.created_ms),
                    "never" if pin.expires_ms is None else output.ago(pin.expires_ms),
                    output.size(pin.bytes_alone),
                )
                for pin in pins
            ],
            right=("version", "alone"),
            less=("owner", "created", "expires", "alone"),
            empty="Nothing pins a version here.",
        )


class Why(LakeCommand, name="why"):
    """Show which pins and versions need an object, or when it may be deleted."""

    object: Annotated[str, argument("OBJECT", help="The object's path in the lake, or its URL.")]

    def run(self) -> None:
        lake = self.open_lake()
        here = os.path.abspath(self.object)  # a shell completes paths relative to the current folder
        explanation = lake.why(
            here if os.path.exists(here) and f"file://{here}".startswith(f"{lake.url}/") else self.object
        )
        json_output.print_explanation(explanation, json=self.json)


class Collect(Deletion, LakeCommand, name="collect"):
    """Delete what nothing needs: expired tags, snapshots, checkpoints; orphans; dropped stores.

    `Lake.collect` of the Python library does the same.
    """

    grace: Annotated[
        str, option("--grace", metavar="AGE", help="Keep files younger than this, even if no version names them.")
    ] = "1 d"

    def run(self) -> None:
        lake, grace_ms = self.open_lake(), arguments.duration_ms(self.grace)
        self.ask(f"Collect the lake {lake.url}? (--dry-run shows what would be deleted.)")
        with output.progress("collecting") as progress:
            reports = lake.collect(grace_ms=grace_ms, dry_run=self.dry_run, progress=progress)
        problems = {report.problem_kind for report in reports if report.problem}
        if self.json:
            json_output.print_reports(reports, json=True)
        else:
            json_output.print_reports([report for report in reports if not json_output.is_idle(report)], json=False)
            total = sum(json_output.of_report(report)["bytes"] for report in reports)
            output.sentence(f"{'Would free' if self.dry_run else 'Freed'} {output.size(total)}.")
        if problems:
            by_kind = {"owned": exits.CONFLICT, "unavailable": exits.UNAVAILABLE}
            raise exits.Exit(max(by_kind.get(str(kind), exits.FAULTY) for kind in problems))
