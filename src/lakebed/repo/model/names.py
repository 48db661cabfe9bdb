"""The names that repositories, branches, tags and paths may have, and the grammar of references. Pure.

Owns: the rules of names, which are those of the server's clients, and the grammar of references:
a name, then any number of steps ``~n`` and ``^n``, then at most one of ``@`` and ``$``.

Invariants: no name of a branch or tag can be read as a reference with steps or a mode. A name that was accepted once
stays valid, because it is stored.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from lakebed.errors import InvalidRequest, NotFound
from lakebed.texts import is_utf8, list_some

NAME_CHARACTERS_MAX: Final = 256
"""Longest name of a branch or tag."""

PATH_BYTES_MAX: Final = 1024
"""Longest path, in UTF-8: the limit of object stores for keys."""

RESERVED_PREFIXES: Final = ("_lakefs/", "_lakebed/")
"""Paths below which only the system itself may write."""

STEP_COUNT_MAX: Final = 1_000_000
"""Largest number behind ``~`` or ``^``; a larger one is a typing error."""

ReferenceMode = Literal["@", "$"]
"""``@``: only committed data. ``$``: with staged changes."""

_REPOSITORY: Final = re.compile(r"[a-z0-9][a-z0-9-]{2,62}", re.ASCII)
_BRANCH: Final = re.compile(r"\w[-\w]*", re.ASCII)
_NOT_IN_TAGS: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{")
_TAG_ENDS: Final = (".", ".lock", "/", "@", "$")
_REFERENCES_KEPT_MAX: Final = 256
"""Most parsed references that are cached: most reads name the same few."""
_REFERENCE: Final = re.compile(r"(?P<name>[^~^\x00-\x20\x7f]+?)(?P<steps>(?:[~^][0-9]*)*)(?P<mode>[@$]?)")
_STEP: Final = re.compile(r"([~^])([0-9]*)")
_SURROUNDED_DOTS: Final = re.compile(r"(?:^|/)\.\.(?:/|$)")


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """A step from a commit to an ancestor."""

    kind: Literal["~", "^"]
    """``~``: along first parents, `count` times. ``^``: to parent number `count`; the first is 1."""
    count: int
    """0: stay."""


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """A parsed reference."""

    name: str
    """The name of a branch or tag, or a commit's id, perhaps abbreviated."""
    steps: tuple[ReferenceStep, ...] = ()
    """The steps, in the order of the text."""
    mode: ReferenceMode | None = None
    """The state of a branch to read; None: the default of the operation."""


def check_repository_name(name: object) -> str:
    """Return the name if a repository can have it. Raises `InvalidRequest` (``invalid_repository_name``)."""
    if not isinstance(name, str) or _REPOSITORY.fullmatch(name) is None:
        raise InvalidRequest(
            f"{_quote(name)} cannot be a repository's name: it has 3 to 63 lower-case letters, digits and hyphens, and "
            "begins with a letter or digit.",
            kind="invalid_repository_name",
        )
    return name


def missing_repository(name: str, *, names: Sequence[str], url: str) -> NotFound:
    """The error for a missing repository.

    Args:
        names: the existing repositories that the caller may see.
        url: where it was searched.
    """
    similar = difflib.get_close_matches(name, names, n=3)
    if similar:
        hint = f"Did you mean {' or '.join(similar)}?"
    elif names:
        hint = f"It has {list_some(names)}."
    else:
        hint = "It has none yet."
    return NotFound(
        f"There is no repository {name!r} at {url}. {hint}", kind="repository_not_found", repository=name, near=similar
    )


def deletion_error(name: str) -> NotFound:
    """The error for a handle whose repository was deleted."""
    return NotFound(
        f"Repository {name} was deleted: nothing is read from it or written to it. Open it again if another one "
        "has its name now.",
        kind="repository_not_found",
        repository=name,
    )


def check_branch_name(name: object) -> str:
    """Return the name if a branch can have it. Raises `InvalidRequest` (``invalid_branch_name``)."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX or _BRANCH.fullmatch(name) is None:
        raise InvalidRequest(
            f"{_quote(name)} cannot be a branch's name: it has 1 to {NAME_CHARACTERS_MAX} letters, digits, underscores "
            "and hyphens, and does not begin with a hyphen.",
            kind="invalid_branch_name",
        )
    return name


def check_tag_name(name: object) -> str:
    """Return the name if a tag can have it. Raises `InvalidRequest` (``invalid_tag_name``)."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= NAME_CHARACTERS_MAX
        or name.endswith(_TAG_ENDS)
        or _NOT_IN_TAGS.search(name) is not None
        or not is_utf8(name)
    ):
        raise InvalidRequest(
            f"{_quote(name)} cannot be a tag's name: it has 1 to {NAME_CHARACTERS_MAX} characters, none of them a "
            "space or one of ~ ^ : ? * [ \\, holds no .. or // or @{, and does not end with . / @ $ or .lock.",
            kind="invalid_tag_name",
        )
    return name


def check_path(path: object, *, writing: bool = False) -> bytes:
    """Return a path's bytes, as in keys, if an object can have the path.

    Spaces, ``%``, ``+``, any letters, empty segments and a leading slash are valid: paths are names, not folders, and
    are not normalised.

    Args:
        writing: also refuse paths that only the system writes (`RESERVED_PREFIXES`).

    Raises:
        InvalidRequest: kind ``invalid_path`` or ``reserved_path``.
    """
    key = _path_bytes(path, "path")
    assert isinstance(path, str)
    if not key:
        raise InvalidRequest("The path is empty: an object's path has at least one character.", kind="invalid_path")
    if ".." in path and _SURROUNDED_DOTS.search(path) is not None:
        raise InvalidRequest(
            f"The path {_quote(path)} has a segment '..', which some clients resolve to the folder above: leave it "
            "out.",
            kind="invalid_path",
        )
    if writing and path.startswith(RESERVED_PREFIXES):
        raise InvalidRequest(
            f"The path {_quote(path)} is below {path.split('/', 1)[0]}/, which belongs to the system: choose another.",
            kind="reserved_path",
        )
    return key


def check_paths(paths: Sequence[str]) -> list[bytes]:
    """`check_path` for many paths to write, in order. Cost: about 0.1 us a path if all are valid."""
    if set(map(type, paths)) <= {str}:
        text = "\n".join(paths)
        reserved = any(prefix in text for prefix in RESERVED_PREFIXES)
        if "\0" not in text and ".." not in text and not reserved and is_utf8(text):
            keys = text.encode().split(b"\n") if paths else []
            if len(keys) == len(paths) and all(keys) and max(map(len, keys), default=0) <= PATH_BYTES_MAX:
                return keys
    # A path may be invalid, or has more than one line: check each, for the exact error.
    return [check_path(path, writing=True) for path in paths]


def check_prefix(prefix: object, *, writing: bool = False) -> bytes:
    """Return the bytes of a prefix of paths, which may be empty. Arguments and errors as `check_path`."""
    key = _path_bytes(prefix, "prefix")
    assert isinstance(prefix, str)
    if writing and prefix.startswith(RESERVED_PREFIXES):
        raise InvalidRequest(
            f"The prefix {_quote(prefix)} belongs to the system: choose another.", kind="reserved_path"
        )
    return key


def _path_bytes(path: object, what: str) -> bytes:
    if not isinstance(path, str):
        raise InvalidRequest(f"A {what} is text, and {type(path).__name__} was given.", kind="invalid_path")
    try:
        key = path.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"The {what} {_quote(path)} holds half a character: give valid Unicode.", kind="invalid_path"
        ) from error
    if len(key) > PATH_BYTES_MAX:
        raise InvalidRequest(
            f"The {what} has {len(key):,} bytes in UTF-8, and {PATH_BYTES_MAX:,} are possible: shorten it.",
            kind="invalid_path",
        )
    if b"\0" in key:
        raise InvalidRequest(f"The {what} {_quote(path)} holds a NUL character: leave it out.", kind="invalid_path")
    return key


def check_amount(amount: object) -> int | None:
    """Return a page's length, limited to a list's maximum; None: all. Raises `InvalidRequest` (``invalid_amount``)."""
    if amount is None:
        return None
    if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
        raise InvalidRequest(f"A page has 0 or more lines, and {amount!r} were asked for.", kind="invalid_amount")
    return min(amount, sys.maxsize)


def parse_reference(text: object) -> ReferenceText:
    """Parse a reference: ``name``, steps ``~n`` ``^n`` (without a number: 1), then at most one of ``@`` ``$``.

    Raises:
        InvalidRequest: kind ``invalid_reference``: it is empty, has spaces, or has other text behind its steps.
    """
    return _parse_reference(text) if isinstance(text, str) else _match_reference(text)


@lru_cache(_REFERENCES_KEPT_MAX)
def _parse_reference(text: str) -> ReferenceText:
    return _match_reference(text)


def _match_reference(text: object) -> ReferenceText:
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) and is_utf8(text) else None
    if match is None or len(match["name"]) > NAME_CHARACTERS_MAX or match["name"].endswith(("@", "$")):
        raise InvalidRequest(
            f"{_quote(text)} is not a valid reference: give the name of a branch or tag or the id of a commit, then "
            "any number of ~n and ^n, then at most one of @ and $.",
            kind="invalid_reference",
        )
    steps = []
    for kind, digits in _STEP.findall(match["steps"]):
        if len(digits) > len(str(STEP_COUNT_MAX)) or (digits and int(digits) > STEP_COUNT_MAX):
            raise InvalidRequest(
                f"The reference {_quote(text)} goes back more than {STEP_COUNT_MAX:,} commits at once: give a smaller "
                "number.",
                kind="invalid_reference",
            )
        steps.append(ReferenceStep(kind, int(digits) if digits else 1))
    mode: ReferenceMode | None = match["mode"] or None  # type: ignore[assignment]  # the pattern allows these two only
    return ReferenceText(match["name"], tuple(steps), mode)


def _quote(name: object) -> str:
    """A name as error messages quote it: shortened, with escapes for unprintable characters."""
    if not isinstance(name, str):
        return f"a value of type {type(name).__name__}"
    return repr(name) if len(name) <= 80 else repr(name[:77] + "...")
