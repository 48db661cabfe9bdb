"""Names and references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.repo.model.names import (
    ReferenceStep,
    ReferenceText,
    check_branch_name,
    check_path,
    check_prefix,
    check_repository_name,
    check_tag_name,
    parse_reference,
)
from worlds.errors import raises


@pytest.mark.parametrize("name", ["abc", "a-b", "0ab", "a" * 63, "my-repo-1"])
def test_names_of_repositories(name: str) -> None:
    """3 to 63 small letters, digits and hyphens."""
    assert check_repository_name(name) == name


@pytest.mark.parametrize("name", ["main", "a", "_", "feature-1", "A_b-", "a" * 256])
def test_names_of_branches(name: str) -> None:
    """Letters, digits, underscores and hyphens, no hyphen in front."""
    assert check_branch_name(name) == name


@pytest.mark.parametrize("name", ["v1.0", "v1", "release/2024-01", "a@b", "ü", "a$b", "x" * 256])
def test_names_of_tags(name: str) -> None:
    """Tags may hold dots, slashes and any letters."""
    assert check_tag_name(name) == name


@pytest.mark.parametrize("path", ["a", " ", "/", "//", "a/./b", "...", "a..b", "..a", "%2e%2e/", "ü", "x" * 1024])
def test_paths(path: str) -> None:
    """Any text without a step upwards is a path; its key is its UTF-8."""
    assert check_path(path) == path.encode()
    assert check_path(path, writing=True) == path.encode()


def test_reserved_paths_are_read_and_not_written() -> None:
    """What belongs to the system can be looked at."""
    for path in ("_lakefs/x", "_lakebed/x"):
        assert check_path(path) == path.encode()
        for check in (check_path, check_prefix):
            with raises(InvalidRequest, "reserved_path"):
                check(path, writing=True)
    assert check_path("_lakebed", writing=True) == b"_lakebed"


def test_prefixes_may_be_empty() -> None:
    """A prefix begins paths, and need not be one."""
    assert check_prefix("") == b""
    assert check_prefix("a/..") == b"a/.."
    with pytest.raises(InvalidRequest):
        check_prefix("a\0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main", ReferenceText("main")),
        ("main@", ReferenceText("main", mode="@")),
        ("main$", ReferenceText("main", mode="$")),
        ("v1.0~", ReferenceText("v1.0", (ReferenceStep("~", 1),))),
        ("a~2^^0@", ReferenceText("a", (ReferenceStep("~", 2), ReferenceStep("^", 1), ReferenceStep("^", 0)), "@")),
        ("a@b^2", ReferenceText("a@b", (ReferenceStep("^", 2),))),
        ("ref/x~0", ReferenceText("ref/x", (ReferenceStep("~", 0),))),
    ],
)
def test_references(text: str, expected: ReferenceText) -> None:
    """A name, steps, and what state is meant."""
    assert parse_reference(text) == expected


@given(st.text(max_size=20))
def test_every_text_is_a_reference_or_is_refused(text: str) -> None:
    """Nothing else is raised, and what was parsed says the same when it is written again."""
    try:
        parsed = parse_reference(text)
    except InvalidRequest:
        return
    steps = "".join(f"{step.kind}{step.count}" for step in parsed.steps)
    assert parse_reference(f"{parsed.name}{steps}{parsed.mode or ''}") == parsed


@given(st.text(max_size=20))
def test_names_never_read_as_anything_else(text: str) -> None:
    """A name that a branch or a tag can have is a reference to just that."""
    for check in (check_branch_name, check_tag_name):
        try:
            name = check(text)
        except InvalidRequest:
            continue
        assert parse_reference(name) == ReferenceText(name)


@pytest.mark.parametrize("letter", [chr(code) for code in range(0x80, 0x3001) if chr(code).isspace()], ids=ascii)
def test_a_tag_with_a_space_of_another_alphabet_is_read_by_its_name(letter: str) -> None:
    """What a tag may be called, a reference may name: else a tag would pin what nobody can read."""
    name = f"{letter}v{letter}1{letter}"
    assert parse_reference(f"{check_tag_name(name)}~2") == ReferenceText(name, (ReferenceStep("~", 2),))


REFUSED: dict[str, tuple[Callable[[Any], object], list[object]]] = {
    "invalid_repository_name": (
        check_repository_name,
        ["", "ab", "a" * 64, "-ab", "Abc", "a_b", "a.b", "a b", "äbc", "abc\n", None, 7],
    ),
    "invalid_branch_name": (
        check_branch_name,
        ["", "-a", "a/b", "a.b", "a@", "a~1", "a b", "ä", "main\n", "a" * 257, None],
    ),
    "invalid_tag_name": (
        check_tag_name,
        [
            *("", "@", "a@", "a$", "a.", "a/", "a.lock", "a..b", "a//b", "a@{b", "a b", "a\tb", "a\x7f", "x" * 257),
            *("\ud800", 1, *(f"a{letter}b" for letter in "~^:?*[\\")),
        ],
    ),
    "invalid_path": (
        check_path,
        ["", "..", "../a", "a/..", "a/../b", "/..", "a\0", "ü" * 513, "\udfff", None, b"a"],
    ),
    "invalid_reference": (
        parse_reference,
        ["", "~", "^1", "@", "$", "a@~1", "a$^", "a@@", "a$@", "a~x", "a b", "a\n", "a~1000001", "a~" + "9" * 99, None],
    ),
}
"""By the kind of the error: what checks a text, and what it refuses."""


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, (_, refused) in REFUSED.items() for text in refused])
def test_what_cannot_be_is_refused_with_its_kind(kind: str, text: object) -> None:
    """Names of repositories, branches and tags, paths and references."""
    with raises(InvalidRequest, kind):
        REFUSED[kind][0](text)
