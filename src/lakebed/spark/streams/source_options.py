"""Options of the data source as values. Imports no PySpark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.objects import open_store
from lakebed.table.table import Table
from lakebed.texts import format_value

P = ParamSpec("P")
T = TypeVar("T")

PINNED: Final = "lakebed.snapshot"
"""The newest snapshot at the time when a DataFrame was made; 0: there was none."""


def without_frames(method: Callable[P, T]) -> Callable[P, T]:
    """Let an error of lakebed leave a method without the frames below: Spark shows the user the whole traceback."""

    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except LakebedError as error:
            raise error.with_traceback(None) from None

    return wrapper


def open_table(options: Mapping[str, str]) -> Table:
    """Open the table that the options name."""
    store = open_store(options["path"])
    return Table.open(store, name=store.root_url.rpartition("/")[2], branch=options.get("branch"))


def check_options(options: Mapping[str, str], known: Sequence[str], verb: str) -> None:
    """Check the names of options. Raises `InvalidRequest` for an unknown one."""
    for name in options:
        if name.lower() not in known and name != PINNED:
            raise InvalidRequest(
                f"{verb}.format('lakebed') has no option {name!r}: it has {', '.join(known)}.", kind="unknown_option"
            )


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return a number >= 1. Raises `InvalidRequest`."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not int(text[:9]) >= 1:
        raise InvalidRequest(
            f"The option {name}={format_value(text)} is invalid: use a number, at least 1.", kind="invalid_option"
        )
    return int(text[:9])


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false. Raises `InvalidRequest`."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(
            f"The option {name}={format_value(text)} is invalid: use true or false.", kind="invalid_option"
        )
    return text == "true"
