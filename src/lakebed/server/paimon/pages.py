"""Pages of the protocol's lists: the number of rows, the row after which they begin, and a pattern for names. Pure.

Owns: page tokens. A token contains the list that it continues (its path and patterns) and the name of the last row. A
token of another list is refused, because it would skip rows.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest
from lakebed.http.pages import AMOUNT_MAX
from lakebed.server.site import RepositoryCall

T = TypeVar("T")

_TOKEN_CHARACTERS_MAX: Final = 8_192
_AMOUNT_MAX: Final = 2**31 - 1


class _Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    of: str
    after: str


@dataclass(frozen=True, slots=True)
class PageOf:
    """A requested page of a list."""

    of: str
    """The list: its path and patterns."""
    after: str | None
    """Only rows whose name sorts after this one; None: from the start."""
    amount: int

    @classmethod
    def asked(cls, call: RepositoryCall, *patterns: str, amount: str = "maxResults") -> PageOf:
        """Parse the page that a request asks for.

        Args:
            patterns: names of the parameters that select the list's rows.
            amount: name of the parameter that limits the page.

        Raises `InvalidRequest`: an invalid token, or one of another list; an invalid amount.
        """
        rows_max = call.integer(amount, default=0, low=-_AMOUNT_MAX, high=_AMOUNT_MAX)
        values = [call.query.get(name) or "" for name in patterns]
        list_name = "\0".join([call.scope["path"], *values])
        token = call.query.get("pageToken") or None
        after = None if token is None else _decode(token, list_name)
        return cls(list_name, after, min(rows_max, AMOUNT_MAX) if rows_max > 0 else AMOUNT_MAX)

    def cut(self, names: Iterable[str], row_of: Callable[[str], T | None]) -> tuple[list[T], str | None]:
        """Return the rows of the page, and the token of the next one; None: it is the last.

        Args:
            names: the names of all rows, ascending.
            row_of: makes a row; None: it does not exist any longer. Called only for rows of the page.
        """
        names_after = (name for name in names if self.after is None or name > self.after)
        rows = ((name, row) for name in names_after if (row := row_of(name)) is not None)
        page = list(islice(rows, self.amount + 1))
        if len(page) <= self.amount:
            return [row for _, row in page], None
        token = msgspec.json.encode(_Token(self.of, page[self.amount - 1][0]))
        return [row for _, row in page[: self.amount]], urlsafe_b64encode(token).decode()


def _decode(token: str, list_name: str) -> str:
    try:
        if len(token) > _TOKEN_CHARACTERS_MAX:
            raise ValueError(token[:20])
        decoded_token = decode_json(urlsafe_b64decode(token.encode()), _Token)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise InvalidRequest("The pageToken is not one of this server: begin the list again.", kind="page") from error
    if decoded_token.of != list_name:
        raise InvalidRequest(
            "The pageToken belongs to another list, or to one with another pattern: begin this list again.",
            kind="page",
        )
    return decoded_token.after


def pattern_of(text: str | None) -> Callable[[str], bool]:
    """Return a function that matches names with a pattern of SQL's LIKE, with backslash as escape; None: match all.

    Cost for a name: at most its length times that of the pattern. A regular expression could take years.
    """
    if not text:
        return lambda _: True
    parts = re.findall(r"\\.|.", text, re.DOTALL)
    return lambda name: _is_like(name, parts)


def _is_like(name: str, parts: Sequence[str]) -> bool:
    """Match greedily: each ``%`` takes the shortest text, and only the last ``%`` is extended when the match fails."""
    position = part = 0
    retry: tuple[int, int] | None = None
    while position < len(name):
        if part < len(parts) and parts[part] == "%":
            part += 1
            retry = position, part
        elif part < len(parts) and (parts[part] == "_" or parts[part][-1] == name[position]):
            position, part = position + 1, part + 1
        elif retry is not None:
            position, part = retry[0] + 1, retry[1]
            retry = position, part
        else:
            return False
    return all(rest == "%" for rest in parts[part:])
