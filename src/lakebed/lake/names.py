"""Names of stores and their folders. Pure.

- Tables: ``flights`` is in ``default.db/flights``, ``db.flights`` in ``db.db/flights``.
- Databases: ``serving`` is in ``serving.kv``.
- Repositories: ``analytics`` is in ``analytics.repo``. The records of all repositories are a database in
  ``_repositories``.
- Tenants: ``orders`` is in ``orders.tenant``. The records of all tenants are in ``_fleet``.

Stores of several kinds may have the same name; ``database:serving`` or ``table:serving`` selects one of them.

Invariants: a name never leads out of its lake (no separators, no ``..``), and is never the name of a system table
(no ``$``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from lakebed.errors import InvalidRequest

DEFAULT_DATABASE: Final = "default"
WAREHOUSE_SUFFIX: Final = ".db"
"""The suffix of a folder of tables, as in a warehouse of Paimon."""
DATABASE_SUFFIX: Final = ".kv"
"""The suffix of the folder of a (key-value) database. Other clients of a warehouse look only at ``.db`` folders."""
StoreKind = Literal["table", "database", "repository", "tenant"]
KINDS: Final[tuple[StoreKind, ...]] = ("table", "database", "repository", "tenant")
"""In the order in which a name without a kind is looked up."""
_FORBIDDEN: Final = frozenset('$#?%*:"<>|@')
_PART_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's name in two parts."""

    database: str
    table: str

    @property
    def folder(self) -> str:
        """The table's folder, relative to the lake's root."""
        return f"{self.database}{WAREHOUSE_SUFFIX}/{self.table}"

    def __str__(self) -> str:
        return self.table if self.database == DEFAULT_DATABASE else f"{self.database}.{self.table}"


def parse_table_name(text: str) -> TableName:
    """Read ``flights`` or ``db.flights``.

    Raises:
        InvalidRequest: the name is not text, is empty, looks like a path, has more than one dot, or has a forbidden
            character.
    """
    if not isinstance(text, str):
        raise _invalid(text, "is not a text")
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


@dataclass(frozen=True, slots=True, order=True)
class StoreName:
    """A store's kind and name."""

    kind: StoreKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_store_name(text: str) -> tuple[StoreKind | None, str]:
    """Split ``flights`` or ``table:flights`` into ``(kind or None, name)``.

    Raises `InvalidRequest` for an unknown kind.
    """
    kind, colon, name = text.partition(":")
    if not colon:
        return None, text
    for store_kind in KINDS:
        if kind == store_kind:
            return store_kind, name
    examples = [f"{store_kind}:{name}" for store_kind in KINDS]
    raise InvalidRequest(
        f"{text!r} does not name a kind of store: write {', '.join(examples[:-1])} or {examples[-1]}.",
        kind="invalid_store_name",
    )


def database_folder(name: str) -> str:
    """Return a database's folder, relative to the lake's root. Raises `InvalidRequest` for an invalid name."""
    problem = "reads as a path" if any(mark in name for mark in ("/", "\\", "..")) else _problem(name)
    if problem is None and "." in name:
        problem = "has a dot"
    if problem is not None:
        raise InvalidRequest(
            f"The database name {name!r} {problem}: write a plain name such as 'serving'.",
            kind="invalid_database_name",
            database=name,
        )
    return name + DATABASE_SUFFIX


def split_path(path: str) -> tuple[TableName, str] | None:
    """Split a path inside a lake into ``(table, path inside its folder)``; None when it is not in a table's folder."""
    database, _, rest = path.partition("/")
    table, _, inner_path = rest.partition("/")
    if not database.endswith(WAREHOUSE_SUFFIX) or database == WAREHOUSE_SUFFIX or not table:
        return None
    return TableName(database.removesuffix(WAREHOUSE_SUFFIX), table), inner_path


def split_top(path: str, suffix: str) -> tuple[str, str] | None:
    """Split a path inside a folder ``<name><suffix>`` of a lake into ``(name, path inside the folder)``.

    None: the path is not inside such a folder.
    """
    top, _, inner_path = path.partition("/")
    if not top.endswith(suffix) or top == suffix or not inner_path:
        return None
    return top.removesuffix(suffix), inner_path


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """Return at most three of `names` that are most similar to `name`, best first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)


def _problem(part: str) -> str | None:
    if not part.strip():
        return "is empty, or has an empty part"
    if part != part.strip():
        return "begins or ends with a space"
    forbidden = sorted(_FORBIDDEN.intersection(part))
    if forbidden:
        return f"contains {' '.join(forbidden)}"
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in part):
        return "contains a control character"
    if any("\ud800" <= char <= "\udfff" for char in part):
        return "contains bytes that are not UTF-8"
    if len(part.encode()) > _PART_BYTES_MAX:
        return f"is longer than {_PART_BYTES_MAX} bytes"
    return None


def _invalid(text: object, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"The table name {text!r} {problem}: write a plain name such as 'flights', or 'database.flights'.",
        kind="invalid_table_name",
        table=text,
    )
