"""What statements permit, held against a matcher that is too plain to be wrong."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.server.permissions import (
    ACTIONS,
    BUILT_IN,
    BUILT_IN_GROUPS,
    REPOSITORIES,
    Grants,
    Permission,
    Statement,
    parse_statement,
)
from worlds.errors import raises

ACTION = "fs:ReadObject"
TEXTS = st.text("ab/.", max_size=6)
PATTERNS = st.text("ab/*?.", max_size=6)


def agrees(pattern: str, text: str) -> bool:
    """Whether a pattern stands for a text, by trying everything."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(agrees(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and agrees(pattern[1:], text[1:])


def allow(*resources: str, actions: tuple[str, ...] = (ACTION,)) -> Statement:
    """A statement that allows."""
    return Statement("allow", actions, resources)


def deny(*resources: str, actions: tuple[str, ...] = (ACTION,)) -> Statement:
    """A statement that denies."""
    return Statement("deny", actions, resources)


@given(st.lists(st.tuples(st.booleans(), PATTERNS), max_size=4), TEXTS)
def test_what_is_permitted_is_allowed_and_not_denied(statements: list[tuple[bool, str]], text: str) -> None:
    """One statement allows, none denies: whatever their order."""
    grants = Grants("ann", [allow(pattern) if allows else deny(pattern) for allows, pattern in statements])
    matches = [allows for allows, pattern in statements if agrees(pattern, text)]
    assert grants.permits(Permission(ACTION, text)) == (bool(matches) and all(matches))
    assert not grants.permits(Permission("fs:WriteObject", text))


@given(st.lists(st.tuples(st.booleans(), PATTERNS), max_size=4), TEXTS, TEXTS)
def test_a_prefix_is_permitted_only_if_everything_below_it_is(
    statements: list[tuple[bool, str]], prefix: str, rest: str
) -> None:
    """What is permitted for a whole prefix is permitted for each name that begins with it."""
    grants = Grants("ann", [allow(pattern) if allows else deny(pattern) for allows, pattern in statements])
    if grants.permits(Permission(ACTION, prefix, is_prefix=True)):
        assert grants.permits(Permission(ACTION, prefix + rest))


def test_a_prefix_can_be_permitted() -> None:
    """The control of the test before: it is not refused always."""
    grants = Grants("ann", [allow("a/*"), deny("b/*")])
    assert grants.permits(Permission(ACTION, "a/", is_prefix=True))
    assert not grants.permits(Permission(ACTION, "a", is_prefix=True))


def test_an_unknown_action_is_permitted_to_nobody() -> None:
    """Also where every action of its kind is allowed on everything."""
    grants = Grants("ann", [allow("*", actions=("fs:*", "*"))])
    assert grants.permits(Permission("fs:ReadObject", "x"))
    assert not grants.permits(Permission("fs:FlyObject", "x"))


def test_the_user_stands_for_itself() -> None:
    """``${user}`` is the name of the user, in each resource."""
    statement = allow("arn:lakefs:auth:::user/${user}", actions=("auth:ReadCredentials",))
    resource = "arn:lakefs:auth:::user/ann"
    assert Grants("ann", [statement]).permits(Permission("auth:ReadCredentials", resource))
    assert not Grants("bob", [statement]).permits(Permission("auth:ReadCredentials", resource))


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    """A pattern that fails late is not tried in every way."""
    grants = Grants("ann", [allow("*a" * 200 + "b")])
    began_s = time.process_time()
    assert not grants.permits(Permission(ACTION, "a" * 1_024))
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(
    ("group", "role"), [("Admins", "admin"), ("SuperUsers", "write"), ("Developers", "write"), ("Viewers", "read")]
)
def test_groups_have_roles(group: str, role: str) -> None:
    """The groups of the beginning have a role in every repository, and a single exception takes it away."""
    statements = [statement for policy in BUILT_IN_GROUPS[group] for statement in BUILT_IN[policy]]
    grants = Grants("ann", statements)
    assert grants.role(None) == role
    assert grants.role("analytics") == role
    limited = Grants("ann", [*statements, deny(f"{REPOSITORIES}analytics/object/secret/*", actions=("fs:ReadObject",))])
    assert limited.role(None) is None
    assert limited.role("analytics") is None
    assert limited.role("other") == role


def test_a_role_in_a_repository_is_not_one_in_its_neighbour() -> None:
    """The name of a repository may be the beginning of another one's."""
    read = tuple(sorted(action for action in ACTIONS if action.startswith(("fs:Read", "fs:List"))))
    grants = Grants("ann", [allow(f"{REPOSITORIES}data", f"{REPOSITORIES}data/*", actions=read)])
    assert grants.role("data") == "read"
    assert grants.role("data2") is None
    assert grants.role(None) is None


GOOD: dict[str, Any] = {"effect": "allow", "actions": ["fs:ReadObject"], "resource": "*", "has_condition": False}


@pytest.mark.parametrize(
    "change",
    [
        {"effect": "permit"},
        {"effect": "Allow"},
        {"has_condition": True},
        {"actions": []},
        {"actions": ["fs:FlyObject"]},
        {"actions": ["fsx:ReadObject"]},
        {"actions": ["ReadObject"]},
        {"actions": ["*"]},
        {"actions": ["*:*"]},
        {"actions": ["fs:"]},
        {"actions": ["catalog:ReadTable"]},
        {"actions": ["fs:ReadObject", ""]},
        {"resource": ""},
        {"resource": "repository/data"},
        {"resource": "arn:aws:s3:::data"},
        {"resource": "arn:lakefs:fs:eu::repository/data"},
        {"resource": "arn:lakefs:fs:::repositories/data"},
        {"resource": "arn:lakefs:fs:::repository"},
        {"resource": "arn:lakefs:catalog:::table/x"},
        {"resource": "**x"},
        {"resource": "arn:lakefs:fs:::repository/${group}"},
        {"resource": "["},
        {"resource": "[]"},
        {"resource": '["*", 1]'},
        {"resource": '["*", "data"]'},
        {"resource": "arn:lakefs:fs:::repository/" + "a" * 3_000},
    ],
)
def test_what_cannot_be_enforced_is_refused(change: dict[str, Any]) -> None:
    """An unknown action, a condition or a resource that names nothing makes no statement."""
    parse_statement(**GOOD)
    with raises(InvalidRequest, "invalid_policy"):
        parse_statement(**{**GOOD, **change})


@pytest.mark.parametrize(
    "resource",
    [
        "*",
        "arn:lakefs:fs:::*",
        "arn:lakefs:fs:::repo*",
        "arn:lakefs:fs:::repository/data",
        "arn:lakefs:fs:::repository/data/object/a*/?.csv",
        "arn:lakefs:fs:::namespace/s3://bucket/*",
        "arn:lakefs:auth:::user/${user}",
        '["arn:lakefs:fs:::repository/a", "arn:lakefs:auth:::*"]',
    ],
)
def test_what_names_something_is_kept(resource: str) -> None:
    """Names of repositories, of what is in them, of places, users, groups and policies, with wildcards."""
    assert parse_statement(**{**GOOD, "resource": resource}).resources
