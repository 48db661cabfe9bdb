"""Names of tables and where they lie: ``flights`` is ``default.db/flights``, ``db.flights`` is ``db.db/flights``. Pure.

Invariants: a name never leaves its lake (no separators, no ``..``) and never reads as a system table (no ``$``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lakebed.errors import InvalidRequest

__all__ = ["DEFAULT_DATABASE", "TableName", "nearest_names", "parse_table_name", "split_path"]

DEFAULT_DATABASE: Final = "default"
_SUFFIX: Final = ".db"
_FORBIDDEN: Final = frozenset('$#?%*:"<>|@')
_PART_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's name in two parts."""

    database: str
    table: str

    @property
    def folder(self) -> str:
        """Where the table lies, relative to the lake's root."""
        return f"{self.database}{_SUFFIX}/{self.table}"

    def __str__(self) -> str:
        return self.table if self.database == DEFAULT_DATABASE else f"{self.database}.{self.table}"


def parse_table_name(text: str) -> TableName:
    """Read ``flights`` or ``db.flights``.

    Raises:
        InvalidRequest: empty, path-like, or with more than one dot.
    """
    if any(mark in text for mark in ("/", "\\", "..")):
        raise _invalid(text, "reads as a path")
    parts = text.split(".")
    if len(parts) > 2:
        raise _invalid(text, "has more than one dot")
    for part in parts:
        problem = _problem(part)
        if problem:
            raise _invalid(text, problem)
    return TableName(parts[0], parts[1]) if len(parts) == 2 else TableName(DEFAULT_DATABASE, parts[0])


def split_path(path: str) -> tuple[TableName, str] | None:
    """``(table, path inside it)`` of a path inside a lake; None when it lies in no table's folder."""
    database, _, rest = path.partition("/")
    table, _, inside = rest.partition("/")
    if not database.endswith(_SUFFIX) or database == _SUFFIX or not table:
        return None
    return TableName(database.removesuffix(_SUFFIX), table), inside


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """At most three of `names` that look most like `name`, best first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)


def _problem(part: str) -> str | None:
    if not part.strip():
        return "is empty, or empty beside its dot"
    if part != part.strip():
        return "begins or ends with a space"
    forbidden = sorted(_FORBIDDEN.intersection(part))
    if forbidden:
        return f"holds {' '.join(forbidden)}"
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in part):
        return "holds a control character"
    if len(part.encode("utf-8", "surrogatepass")) > _PART_BYTES_MAX:
        return f"is longer than {_PART_BYTES_MAX} bytes"
    return None


def _invalid(text: str, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"The table name {text!r} {problem}: write a plain name such as 'flights', or 'database.flights'.",
        kind="invalid_table_name",
        table=text,
    )
