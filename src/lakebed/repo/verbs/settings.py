"""Verbs on a repository's settings: protected branches, retention, webhooks."""

from __future__ import annotations

from typing import cast

import msgspec

from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import Webhook, set_webhooks, webhooks
from lakebed.repo.records.protection import Blocked, ProtectionRule, protect, protected, unprotect
from lakebed.repo.records.retention import RetentionRules, delete_retention, load_retention, store_retention
from lakebed.repo.verbs.message import Verb, look_first, verb


@look_first
@verb("protect", role="admin", effort="write", gives=ProtectionRule, changes=("pattern",))
class Protect(Verb[ProtectionRule], frozen=True, kw_only=True):
    """Protect the branches that a pattern matches."""

    pattern: str
    blocked: list[str]

    def run(self, context: RepositoryContext) -> ProtectionRule:
        return protect(context, self.pattern, blocked=cast(tuple[Blocked, ...], tuple(self.blocked)))


@look_first
@verb("unprotect", role="admin", effort="write", gives=None, changes=("pattern",))
class Unprotect(Verb[None], frozen=True, kw_only=True):
    """Remove the protection rule of a pattern."""

    pattern: str

    def run(self, context: RepositoryContext) -> None:
        unprotect(context, self.pattern)


@look_first
@verb("protected", role="read", effort="look", gives=tuple[ProtectionRule, ...])
class Protected(Verb[tuple[ProtectionRule, ...]], frozen=True):
    """The rules of protected branches, sorted by pattern."""

    def run(self, context: RepositoryContext) -> tuple[ProtectionRule, ...]:
        return protected(context)


@look_first
@verb("retention", role="read", effort="look", gives=RetentionRules | None)
class Retention(Verb[RetentionRules | None], frozen=True):
    """The rules of retention."""

    def run(self, context: RepositoryContext) -> RetentionRules | None:
        return load_retention(context)


@look_first
@verb("set_retention", role="admin", effort="write", gives=RetentionRules, frees_space=True)
class SetRetention(Verb[RetentionRules], frozen=True, kw_only=True):
    """Replace the rules of retention, in days."""

    default_days: int
    branch_days: dict[str, int] = msgspec.field(default_factory=dict)

    def run(self, context: RepositoryContext) -> RetentionRules:
        return store_retention(context, default_days=self.default_days, branch_days=self.branch_days)


@look_first
@verb("delete_retention", role="admin", effort="write", gives=None)
class DeleteRetention(Verb[None], frozen=True):
    """Remove the rules of retention, so that nothing expires any more."""

    def run(self, context: RepositoryContext) -> None:
        delete_retention(context)


@look_first
@verb("webhooks", role="admin", effort="look", gives=tuple[Webhook, ...], changes_nothing=True)
class Webhooks(Verb[tuple[Webhook, ...]], frozen=True):
    """The webhooks that run before and after commits and merges."""

    def run(self, context: RepositoryContext) -> tuple[Webhook, ...]:
        return webhooks(context.key_value, keys=context.keys)


@look_first
@verb("set_webhooks", role="admin", effort="write", gives=None)
class SetWebhooks(Verb[None], frozen=True, kw_only=True):
    """Replace all webhooks."""

    hooks: list[Webhook]

    def run(self, context: RepositoryContext) -> None:
        set_webhooks(context.key_value, keys=context.keys, hooks=self.hooks)
