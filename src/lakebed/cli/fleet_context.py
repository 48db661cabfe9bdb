"""The fleet, the tenant and the timeline on which a command of ``lakebed fleet`` works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

from lakebed.cli.command import Command
from lakebed.cli.context import LakeCommand
from lakebed.cli.grammar import argument, option
from lakebed.errors import LakebedError
from lakebed.fleet.model import MAIN
from lakebed.lake.names import nearest_names

if TYPE_CHECKING:
    from lakebed.fleet.client import Tenant
    from lakebed.fleet.connect import Fleet
    from lakebed.fleet.timeline import Timeline

TenantName = Annotated[str, argument("TENANT", help="A tenant of the lake.")]
Node = Annotated[str, argument("NODE", help="A node of the fleet, by its name.")]
TimelineOption = Annotated[str, option("--timeline", help="A timeline, branch or pin of the tenant.")]


class FleetCommand(LakeCommand):
    """A command on the fleet of a lake, which must be running."""

    control: Annotated[
        str | None,
        option(
            "--control",
            metavar="URL",
            help="The control plane. Default: LAKEBED_FLEET_CONTROL, or the last address in the lake.",
        ),
    ] = None

    @contextmanager
    def fleet(self) -> Iterator[Fleet]:
        """Connect to the running fleet."""
        with self.open_lake().fleet(control=self.control) as fleet:
            yield fleet


class TenantCommand(FleetCommand):
    """A command on one tenant."""

    tenant: TenantName

    def hints(self, problem: LakebedError) -> Iterator[str]:
        """Yield similar names for a tenant that does not exist. Cost: 1 request."""
        if problem.kind != "tenant_not_found":
            return
        with suppress(LakebedError), self.fleet() as fleet:
            similar = nearest_names(self.tenant, [tenant.tenant for tenant in fleet.tenants() if not tenant.is_deleted])
            if similar:
                yield f"Did you mean {' or '.join(similar)}?"

    @contextmanager
    def open_tenant(self) -> Iterator[Tenant]:
        """Open the tenant."""
        with self.fleet() as fleet:
            yield fleet.tenant(self.tenant)


class TimelineCommand(TenantCommand):
    """A command on a timeline of a tenant."""

    timeline: TimelineOption = MAIN

    @contextmanager
    def open_timeline(self) -> Iterator[Timeline]:
        """Open the timeline."""
        with self.open_tenant() as tenant:
            yield tenant.timeline(self.timeline)


class StorageCommand(Command):
    """A command that runs a part of a fleet on a storage."""

    lake: Annotated[str | None, argument("LAKE", help="Where the lake is: a folder or a URL.", is_lake=True)]
    storage: Annotated[str | None, option("--storage", metavar="URL", help="The same as LAKE.", replaces=("lake",))] = (
        None
    )

    @property
    def url(self) -> str:
        """The URL of the storage."""
        storage = self.storage if self.storage is not None else self.lake
        assert storage is not None
        return storage
