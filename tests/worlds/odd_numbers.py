"""Bodies of requests with one number that no such number can be."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

ODD: tuple[Any, ...] = (-1, 1 << 53, 1 << 60, (1 << 64) - 1, 1.5, "5", True, [1])


def odd_bodies(body: Any) -> Iterator[tuple[str, Any]]:
    """The body once for each of its numbers and each odd value, with a name for it."""
    for path, number in _numbers(body, ()):
        for odd in ODD:
            if isinstance(number, float) and odd != -1 and not isinstance(odd, str | bool | list):
                continue  # any positive number is a time
            changed = deepcopy(body)
            at = changed
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = odd
            yield f"{'.'.join(map(str, path))}={odd!r}", changed


def _numbers(body: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    steps = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for step, value in steps:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, step), value
        else:
            yield from _numbers(value, (*path, step))
