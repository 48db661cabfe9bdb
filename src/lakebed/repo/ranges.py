"""Ranges of commits, in Git's syntax: ``main~1..main``.

Owns: `sides_of` and `log_of_range`. In a log, ``left..right`` means the commits behind the right side that are not
behind the left side. In a difference, ``left..right`` compares the two as they are, and ``left...right`` shows the
changes of the right side since the two parted. Uses only logs, so it works the same in process and through a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from lakebed.errors import InvalidRequest
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.verbs.differences import DiffScope
from lakebed.texts import format_value

_RANGE: Final = re.compile(r"(.*?)(\.{2,})(.*)", re.DOTALL)
_SCOPES: Final[dict[str, DiffScope]] = {"..": "two_dot", "...": "three_dot"}

Log = Callable[..., Iterator[CommitWithId]]
"""``log(reference, **filters)``, as `Repository.log` for one reference."""


def sides_of(text: str) -> tuple[str, str, str] | None:
    """Split a range into left side, dots and right side; None: a single reference.

    Raises:
        InvalidRequest: kind ``invalid_range``: a side is missing, or there are more than three dots.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    left, dots, right = match.groups()
    if not left or not right or dots not in _SCOPES:
        raise InvalidRequest(
            f"{format_value(text)} is not a range: write two references with two dots between them, such as "
            "main~1..main (with three dots a difference shows what the right side did since the two parted).",
            kind="invalid_range",
            text=text,
        )
    return left, dots, right


def diff_sides(left: str, right: str | None, kind: DiffScope | None) -> tuple[str, str, DiffScope]:
    """The two sides of a difference, and its scope. Two references are compared ``three_dot`` unless `kind` is given.

    Raises:
        InvalidRequest: kind ``invalid_range``: only one reference is given, or a range with another argument.
    """
    sides = sides_of(left)
    if sides is None and right is not None:
        return left, right, kind or "three_dot"
    if sides is None or right is not None or kind not in (None, _SCOPES[sides[1]]):
        raise InvalidRequest(
            f"A difference is of two references or of one range such as main~1..main, not of {format_value(left)}"
            f"{'' if right is None else f' and {format_value(right)}'}{'' if kind is None else f' as {kind}'}.",
            kind="invalid_range",
            text=left,
        )
    return sides[0], sides[2], _SCOPES[sides[1]]


def log_of_range(log: Log, text: str, *, amount: int | None = None, **filters: Any) -> Iterator[CommitWithId]:
    """Iterate over the log of a reference, or of a range: commits behind its right side and not behind its left side.

    Args:
        text: a reference or a range.
        amount, filters: as `Reference.log`.

    Raises:
        InvalidRequest: kind ``invalid_range``.
    Cost: the log of both sides, once, back to the oldest generation that has a commit of the range; with filters also
        the filtered log as far.
    """
    sides = sides_of(text)
    if sides is None:
        yield from log(text, amount=amount, **filters)
        return
    left, dots, right = sides
    if dots != "..":
        raise InvalidRequest(
            f"The log of {format_value(text)} is not known: write {left}..{right} for the commits behind {right} "
            f"that are not behind {left}.",
            kind="invalid_range",
            text=text,
        )
    if amount is not None and amount < 1:
        raise InvalidRequest(f"A log has at least 1 commit, and {amount} were asked for.", kind="invalid_amount")
    commits = _behind_right_only(log(left), log(right))
    if not any(value for value in filters.values()):
        yield from islice(commits, amount)
        return
    generations = {node.id: node.commit.generation for node in commits}
    oldest = min(generations.values(), default=0)
    if generations:
        filtered_log = log(right, **filters)
        nodes = (node for node in _until(filtered_log, oldest) if node.id in generations)
        yield from islice(nodes, amount)


def _until(commits: Iterator[CommitWithId], generation: int) -> Iterator[CommitWithId]:
    for node in commits:
        if node.commit.generation < generation:
            return
        yield node


def _behind_right_only(left: Iterator[CommitWithId], right: Iterator[CommitWithId]) -> Iterator[CommitWithId]:
    """Iterate over the commits of the right log that are not in the left log. Both are ordered by falling generation.

    A path of commits of the range leads from the right side's head to each of them. So the walk ends when every parent
    of a commit of the range was examined.
    """
    behind_left: set[str] = set()
    at_left = next(left, None)
    wanted_ids: set[str] | None = None
    for node in right:
        if wanted_ids is not None and node.id not in wanted_ids:
            continue
        wanted_ids = (wanted_ids or set()) - {node.id}
        while at_left is not None and at_left.commit.generation >= node.commit.generation:
            behind_left.add(at_left.id)
            at_left = next(left, None)
        if node.id not in behind_left:
            yield node
            wanted_ids.update(node.commit.parents)
        if not wanted_ids:
            return
