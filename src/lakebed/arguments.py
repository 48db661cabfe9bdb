"""Arguments of public verbs, checked by their declared types: a wrong one is one sentence, before anything is done.

Owns: `check_arguments`, with which a class checks its verbs, and `check_keywords` for ``**options``. The check reads
the words of annotations and knows those that are listed here; what has another annotation, such as rows, predicates
and times, checks itself. Truth values are not checked, as in Python.

Invariants: an argument of the declared type passes unchanged; numbers of numpy are numbers.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, Final, TypeVar

from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, did_you_mean, format_value

C = TypeVar("C", bound=type)
Long = int
"""What is stored, and other clients read: a whole number of 64 bits."""


def _are_texts(values: object) -> bool:
    return isinstance(values, Collection) and not isinstance(values, str) and all(isinstance(it, str) for it in values)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_long(value: object) -> bool:
    return isinstance(value, Integral) and _is_whole(value) and -LONG_MAX - 1 <= int(value) <= LONG_MAX


def _has_texts(value: object) -> bool:
    return _is_mapping(value) and all(map(_is_utf_8, [*value, *value.values()]))  # type: ignore[misc, attr-defined]


def _is_utf_8(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


_KINDS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "None": ("None", lambda value: value is None),
    "str": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", _is_whole),
    "Long": ("a whole number of 64 bits", _is_long),
    "Collection[str]": ("several texts", _are_texts),
    "Name": (
        "the name of a column, or the names on the way to a nested one",
        lambda value: isinstance(value, str) or (bool(value) and _are_texts(value)),
    ),
    "Columns": ("a mapping of names", _is_mapping),
    "Mapping[str, object]": ("a mapping of names", _is_mapping),
    "Mapping[str, str]": ("a mapping of names to texts", _has_texts),
}
"""By the words of an annotation: what an argument is, and whether a value is one."""


def check_arguments(cls: C) -> C:
    """Let every public method of a class refuse arguments of wrong types, with `InvalidRequest` (``wrong_type``).

    Cost: a few microseconds a call.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _check_calls(method))
    return cls


def check_keywords(given: Mapping[str, object], known: type) -> None:
    """Refuse keywords that a `TypedDict` does not declare, or of other types: Python lets ``**options`` take any.

    Raises `TypeError`: an unknown keyword; `InvalidRequest` (``wrong_type``).
    """
    for name, value in given.items():
        if name not in known.__annotations__:
            hint = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{name!r} is not a valid keyword argument: use {', '.join(known.__annotations__)}.{hint}")
        declared = known.__annotations__[name]
        _check(name, value, getattr(declared, "__forward_arg__", str(declared)))


def _check_calls(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(method).parameters.values()
    declared = {it.name: str(it.annotation) for it in parameters if it.kind is not it.VAR_KEYWORD}
    named = {name: annotation for name, annotation in declared.items() if _choices(annotation)}
    if not named:
        return method
    names = [it.name for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)][1:]
    rest = next((it.name for it in parameters if it.kind is it.VAR_POSITIONAL), None)

    @functools.wraps(method)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        for place, value in enumerate(args):
            name = names[place] if place < len(names) else rest
            if name in named:
                _check(name, value, named[name])
        for name, value in kwargs.items():
            if name in named:
                _check(name, value, named[name])
        return method(self, *args, **kwargs)

    return call


@functools.cache
def _choices(annotation: str) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    """What an argument may be; empty: anything."""
    words = annotation.split(" | ")
    return tuple(_KINDS[word] for word in words) if all(word in _KINDS for word in words) else ()


def _check(name: str, value: object, annotation: str) -> None:
    choices = _choices(annotation)
    if not choices or any(fits(value) for _, fits in choices):
        return
    if name.endswith("_ms") and isinstance(value, Real) and math.isfinite(value):  # such as time.time() * 1000
        return
    raise InvalidRequest(
        f"The argument {name!r} takes {' or '.join(words for words, _ in choices)}, and "
        f"{format_value(value)} ({type(value).__name__}) was given.",
        kind="wrong_type",
        argument=name,
    )
