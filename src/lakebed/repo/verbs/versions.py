"""Verbs of the contract of versioned stores: versions, pins, restores, and what a collection takes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta

from lakebed.reclaim.model import Explanation, Pin, ReclaimPlan, ReclaimReport, Version
from lakebed.repo.collect import collect_garbage, plan_collection
from lakebed.repo.context import RepositoryContext
from lakebed.repo.options import CollectionOptions
from lakebed.repo.verbs.message import Milliseconds, Verb, verb
from lakebed.repo.versions import list_pins, list_versions, pin_version, restore_version, unpin
from lakebed.repo.why import why

Seconds = Annotated[float, Meta(ge=-(1 << 40), le=1 << 40)]


@verb("versions", role="read", effort="compute", gives=list[Version])
class Versions(Verb[list[Version]], frozen=True):
    """Commits of the default branch, oldest first."""

    def run(self, context: RepositoryContext) -> list[Version]:
        return list(list_versions(context))


@verb("pin", role="write", effort="write", gives=Pin, changes=("name", "version"))
class PinVersion(Verb[Pin], frozen=True, kw_only=True):
    """Keep a version alive by a tag."""

    name: str
    version: str | None = None
    lifetime_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext) -> Pin:
        return pin_version(context, self.name, version=self.version, lifetime_ms=self.lifetime_ms)


@verb("pins", role="read", effort="compute", gives=list[Pin])
class Pins(Verb[list[Pin]], frozen=True):
    """What keeps versions alive: tags, and branches other than the default one."""

    def run(self, context: RepositoryContext) -> list[Pin]:
        return list_pins(context)


@verb("unpin", role="write", effort="write", gives=None, changes=("name",))
class Unpin(Verb[None], frozen=True, kw_only=True):
    """Remove a pin."""

    name: str

    def run(self, context: RepositoryContext) -> None:
        unpin(context, self.name)


@verb("restore", role="write", effort="compute", gives=Version, changes=("version",), author="committer")
class Restore(Verb[Version], frozen=True, kw_only=True):
    """Make an older version the newest, in a new commit."""

    version: str
    committer: str | None = None

    def run(self, context: RepositoryContext) -> Version:
        return restore_version(context, self.version, committer=self.committer)


@verb("why", role="read", effort="long", gives=Explanation)
class Why(Verb[Explanation], frozen=True, kw_only=True):
    """Who needs an object of the storage, or when it may go."""

    path: str

    def run(self, context: RepositoryContext) -> Explanation:
        return why(context, self.path)


@verb("plan_reclaim", role="admin", effort="long", gives=ReclaimPlan, changes_nothing=True)
class PlanReclaim(Verb[ReclaimPlan], frozen=True, kw_only=True):
    """What a collection would delete now."""

    min_age_s: Seconds | None = None
    """None: the default, a day."""

    def run(self, context: RepositoryContext) -> ReclaimPlan:
        return plan_collection(context, options=_options(self.min_age_s))


@verb("collect_garbage", role="admin", effort="long", gives=ReclaimReport)
class CollectGarbage(Verb[ReclaimReport], frozen=True, kw_only=True):
    """Delete what nothing needs."""

    min_age_s: Seconds | None = None
    """None: the default, a day."""
    dry_run: bool = False

    def run(self, context: RepositoryContext, *, progress: Callable[[Any], None] | None = None) -> ReclaimReport:
        return collect_garbage(context, options=_options(self.min_age_s), dry_run=self.dry_run, progress=progress)


def _options(min_age_s: float | None) -> CollectionOptions | None:
    return None if min_age_s is None else CollectionOptions(min_age=timedelta(seconds=min_age_s))
