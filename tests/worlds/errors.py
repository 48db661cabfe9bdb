"""Errors of lakebed that tests expect, by their class and kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from lakebed.errors import LakebedError

E = TypeVar("E", bound=LakebedError)


@contextmanager
def raises(
    error: type[E] | tuple[type[E], ...], kind: str, *, match: str | None = None, **facts: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """As `pytest.raises`, for an error of this kind, with these among its facts."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert caught.value.kind == kind, caught.value
    assert {name: fact for name, fact in caught.value.facts.items() if name in facts} == facts


def refused(error: type[E], kind: str, act: Callable[..., object], *args: Any, **named: Any) -> E:
    """The error with which a call is refused."""
    with raises(error, kind) as caught:
        act(*args, **named)
    return caught.value


def kind_of(act: Callable[[], object]) -> str:
    """The kind of the error that a call ends with."""
    with pytest.raises(LakebedError) as caught:
        act()
    return caught.value.kind
