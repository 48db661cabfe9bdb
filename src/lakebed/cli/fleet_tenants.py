"""Commands of ``lakebed fleet`` on tenants and their timelines: create, list, branch, pin, restore, drop."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict

from lakebed.cli import json_output, output
from lakebed.cli.arguments import duration_ms
from lakebed.cli.command import Confirmed, Deletion
from lakebed.cli.fleet_context import FleetCommand, TenantCommand, TimelineCommand, TimelineOption
from lakebed.cli.grammar import argument, option, pairs
from lakebed.errors import InvalidRequest, NotFound
from lakebed.fleet.model import MAIN, Policy, TenantRecord
from lakebed.fleet.records import check_drop
from lakebed.texts import whole_number

TimelineName = Annotated[str, argument("TIMELINE", help="A timeline or branch of the tenant.")]
Lsn = Annotated[int | None, option("--lsn", min=0, help="At this LSN. Default: the last one that was written.")]
Setting = Annotated[
    list[str] | None,
    argument("KEY=VALUE", help="A setting, such as retain_rows=1000, retain_ms=3600000 or commit_bytes=1000000."),
]


class Create(TenantCommand, name="create"):
    """Create a tenant, and attach it to a node."""

    policy: Annotated[
        list[str] | None,
        option("--policy", metavar="KEY=VALUE", help="A setting, such as retain_rows=1000; repeat it for more."),
    ] = None

    def run(self) -> None:
        policy = _policy(Policy(), self.policy)
        with self.fleet() as fleet:
            tenant = fleet.create_tenant(self.tenant, policy=policy)
            record = tenant.record()
        self.result(of_tenant(record), f"Created the tenant {self.tenant} on the node {record.preferred or '-'}.")


class Drop(Deletion, TenantCommand, name="drop"):
    """Delete a tenant with all its timelines, layers and logs."""

    def run(self) -> None:
        with self.open_tenant() as tenant:
            record = tenant.record()
            if self.dry_run:
                text = f"Would drop the tenant {self.tenant} with {output.count(len(record.timelines), 'timeline')}."
                self.result({**of_tenant(record), "dry_run": True}, text)
                return
            self.ask(f"Drop the tenant {self.tenant} with everything it has?")
            tenant.drop()
            is_gone = False
            try:
                record = tenant.record()
            except NotFound:
                is_gone = True
        text = f"Dropped the tenant {self.tenant}."
        if not is_gone:
            text = (
                f"The tenant {self.tenant} is being dropped: nothing is read or written any more, and its objects and "
                f"logs go once its nodes have acknowledged. lakebed fleet tenants {self.lake} shows when it is gone."
            )
        self.result({**of_tenant(record), "is_gone": is_gone, "dry_run": False}, text)


class Tenants(FleetCommand, name="tenants"):
    """List the tenants: node, newest committed transaction, rows of main in it, timelines, state."""

    def run(self) -> None:
        with self.fleet() as fleet:
            records = fleet.tenants()
        self.grid(
            [of_tenant(record) for record in records],
            ("tenant", "node", "transaction", "committed rows", "timelines", "open", "state"),
            [
                (
                    record.tenant,
                    record.preferred or "-",
                    str(record.committed),
                    f"{_main_lsn(record):,}",
                    str(max(1, len(record.timelines))),
                    str(len(record.transactions)),
                    _state(record),
                )
                for record in records
            ],
            right=("transaction", "committed rows", "timelines", "open"),
            less=("open", "timelines", "committed rows"),
            sentences=("state",),
            empty="No tenant. Create one: lakebed fleet create LAKE TENANT",
        )


class Timelines(TenantCommand, name="timelines"):
    """List the timelines of a tenant, with its branches and pins: what can be read of each."""

    def run(self) -> None:
        with self.open_tenant() as tenant:
            timelines = tenant.timelines()
        names = {timeline.id: timeline.name for timeline in timelines}
        self.grid(
            [asdict(timeline) for timeline in timelines],
            ("timeline", "kind", "newest", "committed", "readable from", "branched at", "size", "expires"),
            [
                (
                    timeline.name,
                    "pin" if timeline.is_read_only else "branch" if timeline.parent else "timeline",
                    str(timeline.lsn),
                    str(timeline.committed_lsn),
                    str(timeline.cutoff),
                    f"{names.get(timeline.parent, timeline.parent)}@{timeline.branch_lsn}" if timeline.parent else "-",
                    output.size(timeline.size_bytes),
                    output.ago(timeline.expires_ms),
                )
                for timeline in timelines
            ],
            right=("newest", "committed", "readable from", "size"),
            less=("expires", "size", "committed"),
            empty="No timeline.",
        )


class CreateTimeline(TenantCommand, name="create-timeline"):
    """Create an empty timeline."""

    name: TimelineName

    def run(self) -> None:
        with self.open_tenant() as tenant:
            timeline = tenant.create_timeline(self.name).status()
        self.result(asdict(timeline), f"Created the timeline {self.name}.")


class Branch(TimelineCommand, name="branch"):
    """Create a timeline that begins with another one's rows up to an LSN, and shares its files."""

    branch: Annotated[str, argument("BRANCH", help="The name of the branch.")]
    lsn: Lsn = None

    def run(self) -> None:
        with self.open_timeline() as timeline:
            branch = timeline.branch(self.branch, lsn=self.lsn).status()
        self.result(asdict(branch), f"Branched {self.timeline} at LSN {branch.branch_lsn} as {self.branch}.")


class Pin(TimelineCommand, name="pin"):
    """Keep an LSN of a timeline readable under a name."""

    pin: Annotated[str, argument("PIN", help="The name of the pin.")]
    lsn: Lsn = None
    lifetime: Annotated[
        str | None, option("--lifetime", help="The pin ends after this time: '7days'. Default: never.")
    ] = None

    def run(self) -> None:
        lifetime_ms = duration_ms(self.lifetime)
        with self.open_timeline() as timeline:
            view = timeline.pin(self.pin, lsn=self.lsn, lifetime_ms=lifetime_ms)
        ends = "never ends" if lifetime_ms is None else f"ends in {output.span(lifetime_ms)}"
        self.result(
            {"pin": self.pin, "timeline": self.timeline, "lsn": view.lsn, "lifetime_ms": lifetime_ms},
            f"The pin {self.pin} keeps {self.timeline} at LSN {view.lsn} and {ends}.",
        )


class Restore(Confirmed, TenantCommand, name="restore"):
    """Make an older version the newest; what is there now is kept as a timeline."""

    version: Annotated[str, argument("VERSION", help="A version's number, TIMELINE@LSN, or the name of a pin.")]

    def run(self) -> None:
        self.ask(f"Go back to version {self.version} of the tenant {self.tenant}?")
        with self.open_tenant() as tenant:
            version = tenant.restore(self.version)
        text = f"{MAIN} of the tenant {self.tenant} is version {version.id} now: what version {self.version} was."
        self.result(json_output.of_version(version), text)


class Why(TenantCommand, name="why"):
    """Show which pins and branches keep a version, and until when."""

    version: Annotated[
        str, argument("VERSION", help="A version's number (`lakebed history`), TIMELINE@LSN, or a pin or branch.")
    ]

    def run(self) -> None:
        with self.open_tenant() as tenant:
            explanation = tenant.why_version(self.version)
        json_output.print_explanation(explanation, json=self.json, is_version=True)


class Detach(TenantCommand, name="detach"):
    """Give a branch files of its own, so that nothing of its ancestors is kept for it."""

    name: TimelineName

    def run(self) -> None:
        with self.open_tenant() as tenant:
            tenant.timeline(self.name).detach()
        self.result({"timeline": self.name}, f"The timeline {self.name} shares no file with its ancestors any more.")


class DropTimeline(Deletion, TenantCommand, name="drop-timeline"):
    """Drop a timeline, branch or pin: what only it held is deleted. Not main: restore it, or drop the tenant."""

    name: TimelineName

    def run(self) -> None:
        with self.open_tenant() as tenant:
            timeline = tenant.timeline(self.name).status()
            facts = {**asdict(timeline), "dry_run": self.dry_run}
            check_drop(timeline.name)
            if self.dry_run:
                self.result(facts, f"Would drop the timeline {self.name}.")
                return
            self.ask(f"Drop the timeline {self.name} of the tenant {self.tenant}?")
            tenant.timeline(self.name).drop()
        self.result(facts, f"Dropped the timeline {self.name}.")


class PolicyOf(TenantCommand, name="policy"):
    """Show the settings of a tenant, or change some: KEY=VALUE."""

    settings: Setting = None

    def run(self) -> None:
        with self.open_tenant() as tenant:
            policy = tenant.record().policy
            if self.settings:
                policy = tenant.set_policy(_policy(policy, self.settings)).policy
        facts = asdict(policy)
        if self.json:
            output.document(facts)
        else:
            output.facts([(name, _setting(name, value)) for name, value in facts.items()])


class Commit(TimelineCommand, name="commit"):
    """Commit what a timeline has, so that it becomes a version; writes are durable without it."""

    timeline: TimelineOption = MAIN

    def run(self) -> None:
        with self.open_timeline() as timeline:
            timeline.catch_up()
            txn = timeline.checkpoint()
        text = f"Everything of the tenant {self.tenant} is committed, newest in transaction {txn}."
        self.result({"transaction": txn}, text)


def of_tenant(record: TenantRecord) -> dict[str, Any]:
    """Return a tenant's facts."""
    relocation = record.relocation
    return {
        "tenant": record.tenant,
        "node": record.preferred,
        "committed": record.committed,
        "lsn": _main_lsn(record),
        "timelines": len(record.timelines),
        "attachments": [
            {"node": attachment.node, "generation": attachment.generation, "mode": str(attachment.mode)}
            for attachment in record.attachments
        ],
        "open_transactions": len(record.transactions),
        "relocation": None if relocation is None else {"source": relocation.source, "target": relocation.target},
        "created_ms": record.created_ms,
        "state": _state(record),
    }


def _main_lsn(record: TenantRecord) -> int:
    progress = record.timelines.get(record.names.get(MAIN, MAIN))
    return 0 if progress is None else progress.lsn


def _state(record: TenantRecord) -> str:
    if record.is_deleted:
        return "being dropped"
    if record.relocation is not None:
        return f"moving from {record.relocation.source} to {record.relocation.target}"
    if record.preferred is None:
        return "waits for a node"
    return "served"


def _setting(name: str, value: int) -> str:
    if name.endswith("_bytes") or "_bytes_" in name:
        return f"{value} ({output.size(value)})"
    if name.endswith("_ms"):
        return f"{value} ({output.span(value)})"
    return f"{value:,}"


def _policy(policy: Policy, texts: list[str] | None) -> Policy:
    """Return the settings with some changes. Raises `InvalidRequest`."""
    changes: dict[str, int] = {}
    for key, value in pairs(texts, like="retain_rows=1000").items():
        if key not in policy.__struct_fields__:
            raise InvalidRequest(
                f"A tenant has no setting {key}: use {', '.join(policy.__struct_fields__)}.", kind="unknown_setting"
            )
        number = whole_number(value)
        if number is None:
            raise InvalidRequest(
                f"{key} is {value!r}: use a whole number of rows, bytes or milliseconds.", kind="invalid_setting"
            )
        changes[key] = number
    return msgspec.structs.replace(policy, **changes)
