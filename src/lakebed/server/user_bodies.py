"""The bodies of requests and replies about users, groups, policies and credentials.

Names and fields are those of lakeFS's clients: DO NOT CHANGE them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lakebed.server.bodies import Seconds
from lakebed.server.identity import NAME_PATTERN

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class UserCreation(msgspec.Struct, frozen=True):
    """``POST /auth/users``."""

    id: Name
    invite_user: bool | None = None


class GroupCreation(msgspec.Struct, frozen=True):
    """``POST /auth/groups``."""

    id: Name
    description: Annotated[str, Meta(max_length=1_024)] | None = None


class GroupRow(msgspec.Struct, frozen=True):
    """A group."""

    id: str
    name: str
    description: str
    creation_date: Seconds


class GroupAcl(msgspec.Struct, frozen=True):
    """What the members of a group may do, as a word: the policies of one of the groups that are there at first."""

    permission: Literal["Read", "Write", "Super", "Admin"]


class StatementBody(msgspec.Struct, frozen=True):
    """A statement of a policy."""

    effect: str
    resource: str
    """A name, in which ``*`` stands for any text and ``?`` for a character; or a JSON list of names."""
    action: Annotated[list[str], Meta(min_length=1, max_length=1_000)]
    condition: dict[str, dict[str, list[str]]] | UnsetType | None = UNSET
    """Not supported: it must be left out, or be empty."""


class PolicyBody(msgspec.Struct, frozen=True):
    """A policy."""

    id: Name
    statement: Annotated[list[StatementBody], Meta(min_length=1, max_length=1_000)]
    creation_date: Seconds | UnsetType = UNSET


class CredentialsRow(msgspec.Struct, frozen=True):
    """An access key of a user, without its secret, which is not stored."""

    access_key_id: str
    creation_date: Seconds


class CredentialsWithSecret(msgspec.Struct, frozen=True):
    """A new access key of a user with its secret, which is shown only here."""

    access_key_id: str
    secret_access_key: str
    creation_date: Seconds


class CommPrefsInput(msgspec.Struct, frozen=True, rename="camel"):
    """``POST /setup_comm_prefs``: nothing of it is kept."""

    feature_updates: bool
    security_updates: bool


class UsageReport(msgspec.Struct, frozen=True):
    """The requests of a month."""

    year: int
    month: int
    count: int


class InstallationUsageReport(msgspec.Struct, frozen=True):
    """``GET /usage-report/summary``: requests are not counted by month, so there are no reports."""

    installation_id: str
    reports: list[UsageReport]
