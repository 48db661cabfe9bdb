"""Bodies of requests with one number that no such number can be."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from msgspec import inspect

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


def numbers_in(body: Any) -> set[str]:
    """Where a body has numbers, as `numbers_of` names it; names of a dictionary that may be any are ``*``."""
    return {".".join("*" if isinstance(step, int) else str(step) for step in path) for path, _ in _numbers(body, ())}


def numbers_of(type_: Any) -> set[str]:
    """Where a body of a declared type may have numbers: names of members, ``*`` for one of a list or a dictionary."""
    return set(_declared(inspect.type_info(type_), ()))


def _declared(type_: Any, path: tuple[str, ...]) -> Iterator[str]:
    match type_:
        case inspect.IntType() | inspect.FloatType():
            yield ".".join(path)
        case inspect.UnionType(types):
            for member in types:
                yield from _declared(member, path)
        case inspect.StructType():
            for field in type_.fields:
                yield from _declared(field.type, (*path, "*" if type_.array_like else field.encode_name))
        case inspect.DictType():
            yield from _declared(type_.value_type, (*path, "*"))
        case inspect.CollectionType():
            yield from _declared(type_.item_type, (*path, "*"))
        case inspect.TupleType(items):
            for item in items:
                yield from _declared(item, (*path, "*"))
