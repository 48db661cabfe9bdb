"""Checks of the arguments of public verbs against their declared types, before a verb has any effect.

Owns: `check_arguments`, which a class applies to its verbs, `check_function` for one function of a module,
`check_keywords` for ``**options``, and `check_limit`. A check reads the text of an annotation and knows the texts that
are listed here. Verbs check arguments with other annotations themselves, such as rows, predicates and times. Booleans
are not checked: as in Python, any value is true or false.

Invariants: an argument of the declared type passes unchanged. NumPy's numbers count as numbers. A wrong argument raises
an error of one sentence.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Final, TypeVar, cast

from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, did_you_mean, format_value

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[object], bool]
Long = int
"""A whole number of 64 bits: for values that are stored and that other clients read."""


def _are_texts(values: object) -> bool:
    return (
        isinstance(values, Collection)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_long(value: object) -> bool:
    return isinstance(value, Integral) and _is_whole(value) and -LONG_MAX - 1 <= int(value) <= LONG_MAX


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _has_texts(value: object) -> bool:
    return _is_mapping(value) and all(map(_is_utf_8, [*value, *value.values()]))  # type: ignore[misc, attr-defined]


def _is_utf_8(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_a(name: str) -> Check:
    """Return a check whether a value is of the class of this name, which may be loaded on first use only."""
    return lambda value: any(it.__name__ == name for it in type(value).__mro__)


def _are_several(name: str) -> Check:
    fits = _is_a(name)
    return lambda value: isinstance(value, Collection) and all(map(fits, value))


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


_OPTIONS: Final = ("CollectionOptions", "CollectorOptions", "ReaderOptions", "RepositoryOptions")
_FUNCTIONS: Final = (
    "ProgressCall",
    "Callable[[Any], None]",
    "Callable[[CompactProgress], None]",
    "Callable[[CopyProgress], None]",
    "Callable[[Progress], None]",
    "Callable[[int, int], None]",
    "Callable[[int], None]",
)

_KINDS: Final[Mapping[str, tuple[str, Check]]] = {
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
    "Mapping[str, int]": (
        "a mapping of names to whole numbers",
        lambda value: _is_mapping(value) and all(map(_is_whole, value.values())),  # type: ignore[attr-defined]
    ),
    "Sequence[str]": ("several texts", _are_texts),
    "Sequence[Blocked]": ("several texts", _are_texts),
    "Sequence[ImportSource]": ("several ImportSource", _are_several("ImportSource")),
    "Sequence[Webhook]": ("several Webhook", _are_several("Webhook")),
    "Iterable[str]": ("several texts", _is_iterable),
    "Mapping[str, Entry]": ("a mapping of paths to entries", _is_mapping),
    "Iterable[tuple[str, Entry]]": ("pairs of a path and an entry", _is_iterable),
    "pa.RecordBatch": ("a RecordBatch", _is_a("RecordBatch")),
    "pa.Table": ("a Table of Arrow", _is_a("Table")),
    "os.PathLike[str]": ("a path", lambda value: isinstance(value, os.PathLike)),
    "Url": ("a URL", lambda value: isinstance(value, (str, os.PathLike))),
    "ObjectStore": ("an object store", lambda value: hasattr(value, "list_with_delimiter")),
    "Environment": ("an Environment", _is_a("Environment")),
    "DuckDBPyConnection": ("a connection of DuckDB", lambda value: hasattr(value, "register")),
    "RefsDump": ("a RefsDump", _is_a("RefsDump")),
    "Reference": ("a reference", _is_a("Reference")),
    **{name: (name, _is_a(name)) for name in _OPTIONS},
    **dict.fromkeys(_FUNCTIONS, ("a function", callable)),
}
"""By the text of an annotation: words for what the argument is, and the check whether a value is such an argument."""


def check_arguments(cls: C) -> C:
    """Make every public method of a class refuse arguments of wrong types with `InvalidRequest` (``wrong_type``).

    Cost: a few microseconds a call.
    """
    for name, method in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(method):
            setattr(cls, name, _check_calls(method))
        elif isinstance(method, classmethod):
            setattr(cls, name, classmethod(_check_calls(method.__func__)))
    return cls


def check_function(function: F) -> F:
    """As `check_arguments`, for a function of a module."""
    return _check_calls(function, is_method=False)


def check_keywords(given: Mapping[str, object], known: type) -> None:
    """Refuse keywords that a `TypedDict` does not declare or that have another type: ``**options`` accepts any.

    Raises `TypeError`: an unknown keyword; `InvalidRequest` (``wrong_type``).
    """
    for name, value in given.items():
        if name not in known.__annotations__:
            hint = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{name!r} is not a valid keyword argument: use {', '.join(known.__annotations__)}.{hint}")
        annotation = known.__annotations__[name]
        check_argument(name, value, getattr(annotation, "__forward_arg__", str(annotation)))


def _check_calls(method: F, *, is_method: bool = True) -> F:
    parameters = inspect.signature(method).parameters.values()
    annotations = {
        parameter.name: str(parameter.annotation)
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    choices_by_name = {name: annotation for name, annotation in annotations.items() if _choices(annotation)}
    if not choices_by_name:
        return method
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    rest_name = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), None)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for place, value in enumerate(args):
            if is_method and not place:  # self, or the class
                continue
            name = names[place] if place < len(names) else rest_name
            if name in choices_by_name:
                check_argument(name, value, choices_by_name[name])
        for name, value in kwargs.items():
            if name in choices_by_name:
                check_argument(name, value, choices_by_name[name])
        return method(*args, **kwargs)

    return cast("F", call)


@functools.cache
def _choices(annotation: str) -> tuple[tuple[str, Check], ...]:
    """Return the alternatives of an annotation. Empty: the argument is not checked."""
    words = annotation.split(" | ")
    return tuple(_KINDS[word] for word in words) if all(word in _KINDS for word in words) else ()


def check_argument(name: str, value: object, annotation: str) -> None:
    """Refuse an argument that does not match its annotation, with the error of `check_arguments`."""
    choices = _choices(annotation)
    if not choices or any(fits(value) for _, fits in choices):
        return
    if name.endswith("_ms") and _is_finite(value):  # such as time.time() * 1000
        return
    raise InvalidRequest(
        f"The argument {name!r} takes {' or '.join(words for words, _ in choices)}, and "
        f"{format_value(value)} ({type(value).__name__}) was given.",
        kind="wrong_type",
        argument=name,
    )


def check_limit(limit: int | None) -> int | None:
    """Return a limit of rows, reduced to the largest possible count; None: all rows.

    Raises `InvalidRequest`: the limit is not a count.
    """
    if limit is None:
        return None
    if (type(limit) is not int and not _is_whole(limit)) or limit < 0:
        raise InvalidRequest(
            f"limit={format_value(limit)} is invalid: use a number of rows, 0 or more.", kind="invalid_limit"
        )
    return min(int(limit), sys.maxsize)
