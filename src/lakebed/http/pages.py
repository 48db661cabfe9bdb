"""Pages of lists: the page that a query asks for, and the reply that holds it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from lakebed.http.replies import encode

AMOUNT_DEFAULT: Final = 100
AMOUNT_MAX: Final = 1_000
"""Most rows of a page, so that no single request occupies the server for long."""

R = TypeVar("R")
T = TypeVar("T")


class Pagination(msgspec.Struct, frozen=True):
    """Where a page stands in its list."""

    has_more: bool
    next_offset: str
    """The value of ``after`` for the next page; empty on the last."""
    results: int
    max_per_page: int


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    pagination: Pagination
    results: list[T]


def join_page(rows: Sequence[bytes], *, following: str) -> bytes:
    """A `Page` as JSON, made of rows that are JSON already.

    Args:
        following: the value of ``after`` for the next page; empty: there is none.
    """
    pagination = encode(Pagination(following != "", following, len(rows), AMOUNT_MAX))
    return b'{"pagination":%b,"results":[%b]}' % (pagination, b",".join(rows))


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The page of a list that a query asks for."""

    prefix: str = ""
    after: str = ""
    """Only rows after this one; empty: from the start."""
    amount: int = AMOUNT_DEFAULT

    @property
    def probe(self) -> int:
        """How many rows to read: one more than the page has, which shows whether there is a next page."""
        return self.amount + 1


def page_of(rows: Sequence[R], *, amount: int, key: Callable[[R], str], row: Callable[[R], T]) -> Page[T]:
    """A page of at most `amount` rows.

    Args:
        rows: from the page's start, in order; one more than `amount` when there is a next page.
        key: the value of ``after`` with which the page after a row begins.
        row: makes a row of the reply.
    """
    return page_of_many(rows, amount=amount, key=key, results=lambda shown: [row(item) for item in shown])


def page_of_many(
    rows: Sequence[R], *, amount: int, key: Callable[[R], str], results: Callable[[Sequence[R]], list[T]]
) -> Page[T]:
    """As `page_of`, but `results` makes all rows of the reply at once."""
    has_more = len(rows) > amount
    page = rows[:amount] if has_more else rows
    next_token = key(page[-1]) if has_more else ""
    return Page(Pagination(has_more, next_token, len(page), AMOUNT_MAX), results(page))
