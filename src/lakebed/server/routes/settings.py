"""Settings of a repository: protected branches, and how long objects of old commits are kept."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.replies import json
from lakebed.repo.records.protection import ProtectionRule, protect, rules_with_tag, set_protected, unprotect
from lakebed.repo.records.retention import delete_retention, load_retention, store_retention
from lakebed.server.bodies import (
    BranchProtectionPattern,
    BranchProtectionRule,
    GarbageCollectionRule,
    GarbageCollectionRules,
)
from lakebed.server.site import RepositoryCall

SETTINGS: Final = Routes[RepositoryCall]("repositories")
_PROTECTION: Final = "/repositories/{repository}/settings/branch_protection"
_RETENTION: Final = "/repositories/{repository}/settings/gc_rules"

# The paths of these settings before version 1 of lakeFS, which `lakectl` still uses.
_OLD_PROTECTION: Final = "/repositories/{repository}/branch_protection"
_OLD_RETENTION: Final = "/repositories/{repository}/gc/rules"


@SETTINGS.add("GET", _PROTECTION, "getBranchProtectionRules", needs="read", gives={200: list[BranchProtectionRule]})
@SETTINGS.add(
    "GET", _OLD_PROTECTION, "internalGetBranchProtectionRules", needs="read", gives={200: list[BranchProtectionRule]}
)
async def get_protection(call: RepositoryCall) -> Response:
    """List the patterns of protected branches."""
    context = await call.context()
    rules, tag = await call.look(rules_with_tag, context)
    reply = json([BranchProtectionRule(rule.pattern) for rule in rules])
    reply.headers["etag"] = f'"{tag}"'
    return reply


@SETTINGS.add(
    "PUT",
    _PROTECTION,
    "setBranchProtectionRules",
    needs="admin",
    parameters=(Parameter("If-Match", "Only if the rules have this ETag.", place="header"),),
    statuses={"protection_moved": 412},
    audited=True,
)
async def set_protection(call: RepositoryCall, body: list[BranchProtectionRule]) -> None:
    """Replace the patterns of protected branches."""
    context = await call.context()
    rules = tuple(map(ProtectionRule, dict.fromkeys(rule.pattern for rule in body)))  # `lakectl` may repeat a pattern
    await call.quick(set_protected, context, rules, expected=call.etags(b"if-match"))


@SETTINGS.add("GET", _RETENTION, "getGCRules", needs="read")
@SETTINGS.add("GET", _OLD_RETENTION, "internalGetGarbageCollectionRules", needs="read")
async def get_retention(call: RepositoryCall) -> GarbageCollectionRules:
    """Get how long objects of old commits are kept."""
    context = await call.context()
    rules = await call.look(load_retention, context)
    if rules is None:
        raise NotFound(f"Repository {context.name} has no retention rules.", kind="retention_not_found")
    return GarbageCollectionRules(
        rules.default_days, [GarbageCollectionRule(name, days) for name, days in sorted(rules.branch_days.items())]
    )


@SETTINGS.add("PUT", _RETENTION, "setGCRules", needs="admin", audited=True, frees_space=True)
@SETTINGS.add(
    "POST", _OLD_RETENTION, "internalSetGarbageCollectionRules", needs="admin", audited=True, frees_space=True
)
async def set_retention(call: RepositoryCall, body: GarbageCollectionRules) -> None:
    """Set how long objects of old commits are kept."""
    days = {rule.branch_id: rule.retention_days for rule in body.branches}
    await call.give_up(partial(store_retention, default_days=body.default_retention_days, branch_days=days))


@SETTINGS.add("DELETE", _RETENTION, "deleteGCRules", needs="admin", audited=True)
@SETTINGS.add("DELETE", _OLD_RETENTION, "internalDeleteGarbageCollectionRules", needs="admin", audited=True)
async def remove_retention(call: RepositoryCall) -> None:
    """Delete the retention rules: nothing expires."""
    context = await call.context()
    await call.quick(delete_retention, context)


@SETTINGS.add("POST", _OLD_PROTECTION, "internalCreateBranchProtectionRule", needs="admin", audited=True)
async def add_protection(call: RepositoryCall, body: BranchProtectionPattern) -> None:
    """Protect the branches that a pattern matches."""
    await call.quick(protect, await call.context(), body.pattern)


@SETTINGS.add("DELETE", _OLD_PROTECTION, "internalDeleteBranchProtectionRule", needs="admin", audited=True)
async def remove_protection(call: RepositoryCall, body: BranchProtectionPattern) -> None:
    """Remove the protection of a pattern."""
    await call.quick(unprotect, await call.context(), body.pattern)


@SETTINGS.add("GET", _OLD_PROTECTION + "/set_allowed", "createBranchProtectionRulePreflight", needs="admin")
async def may_protect(call: RepositoryCall) -> None:
    """Check whether the caller may protect branches."""
    await call.context()


@SETTINGS.add("GET", _OLD_RETENTION + "/set_allowed", "setGarbageCollectionRulesPreflight", needs="admin")
async def may_retain(call: RepositoryCall) -> None:
    """Check whether the caller may set retention rules."""
    await call.context()


def _declare_refusal(method: str, place: str, name: str) -> None:
    @SETTINGS.add(method, "/repositories/{repository}/gc/" + place, name, needs="admin", gives={}, tag="internal")
    async def refuse(call: RepositoryCall) -> None:
        """Refuse to prepare a collection by another program, which could take what is needed."""
        context = await call.context()
        raise InvalidRequest(
            f"Repository {context.name} prepares no collection for another program: that program would list the "
            "namespace by its own clock and delete what the prepared lists do not name, so also uploads that are "
            "committed meanwhile, and files of the repository besides objects. Collect with `lakebed repo collect`, or "
            f"POST /api/v1/repositories/{context.name}/verbs/collect.",
            kind="unsafe_collection",
            repository=context.name,
        )


for _method, _place, _name in (
    ("POST", "prepare_commits", "prepareGarbageCollectionCommits"),
    ("POST", "prepare_commits/async", "prepareGarbageCollectionCommitsAsync"),
    ("GET", "prepare_commits/status", "prepareGarbageCollectionCommitsStatus"),
    ("POST", "prepare_uncommited", "prepareGarbageCollectionUncommitted"),
):
    _declare_refusal(_method, _place, _name)
