"""What becomes of a row and the next one of its key, by merge engine, as SQL for DuckDB.

Owns: `Functions`, how the columns of a table of the model are merged; it is the oracle, and knows nothing of the code.
Invariant: merging is applied one row at a time, so a function is here only if its result is a state for the next row.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from worlds.sql.columns import KINDS, Column, Kind

SMALL: Final = replace(KINDS["BIGINT"], values=(0, 1, -1, 7))
"""Numbers of which no program makes a sum that a column cannot hold."""
_WORD: Final = replace(KINDS["STRING"], values=("a", "b", "", " ", "it's", "\U0001f600"))
_FLAG: Final = KINDS["BOOLEAN"]
_LIST: Final = KINDS["ARRAY<INT>"]

_BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("INT", "BIGINT", "DATE", "STRING", "DECIMAL(38, 10)", "TIMESTAMP"), ("max", "min")),
    "BOOLEAN": ("bool_and", "bool_or"),
    "ARRAY<INT>": ("collect",),
}
_ANY_KIND: Final = ("last_value", "last_non_null_value", "first_value", "first_non_null_value")
NEWEST: Final = "last_non_null_value"
SEQUENCE: Final = "sequence"

_EXPRESSIONS: Final = {
    "last_value": "src.{c}",
    "last_non_null_value": "coalesce(src.{c}, t.{c})",
    "first_value": "t.{c}",
    "first_non_null_value": "coalesce(t.{c}, src.{c})",
    "sum": "coalesce(t.{c} + src.{c}, t.{c}, src.{c})",
    "max": "coalesce(greatest(t.{c}, src.{c}), t.{c}, src.{c})",
    "min": "coalesce(least(t.{c}, src.{c}), t.{c}, src.{c})",
    "bool_and": "coalesce(t.{c} AND src.{c}, t.{c}, src.{c})",
    "bool_or": "coalesce(t.{c} OR src.{c}, t.{c}, src.{c})",
    "collect": "CASE WHEN t.{c} IS NULL THEN src.{c} WHEN src.{c} IS NULL THEN t.{c} "
    "ELSE list_concat(t.{c}, src.{c}) END",
    "listagg": "CASE WHEN coalesce(trim(src.{c}), '') = '' AND coalesce(trim(t.{c}), '') = '' THEN NULL "
    "WHEN coalesce(trim(src.{c}), '') = '' THEN t.{c} WHEN coalesce(trim(t.{c}), '') = '' THEN src.{c} "
    "ELSE t.{c} || ',' || src.{c} END",
}
"""By function, for a key that has the row `t` and gets the row `src`."""
# Of a group: a row without a sequence does not belong to it, and two of them are no row of it at all.
_IS_NEWER: Final = "(src.{s} IS NOT NULL AND (t.{s} IS NULL OR src.{s} >= t.{s}))"
_GROUPED: Final = f"CASE WHEN {_IS_NEWER} THEN src.{{c}} WHEN t.{{s}} IS NOT NULL THEN t.{{c}} END"
_GROUPED_SUM: Final = (
    "CASE WHEN t.{s} IS NULL AND src.{s} IS NOT NULL THEN src.{c} WHEN t.{s} IS NULL THEN NULL "
    "WHEN src.{s} IS NULL THEN t.{c} ELSE coalesce(t.{c} + src.{c}, t.{c}, src.{c}) END"
)


@dataclass
class Functions:
    """How columns are merged, by their numbers; the others are of the engine's own way."""

    names: dict[int, str] = field(default_factory=dict)
    sequence: int | None = None
    """The column that orders the rows of a group."""

    def options(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return the options of a new table."""
        named = {column.number: column.name for column in columns}
        names = {f"fields.{named[number]}.aggregate-function": name for number, name in self.names.items()
            if name not in (NEWEST, SEQUENCE)}  # fmt: skip
        grouped = [named[number] for number in self.names if number != self.sequence]
        if self.sequence is not None:
            names[f"fields.{named[self.sequence]}.sequence-group"] = ",".join(grouped)
        return names

    def has_option(self, column: Column) -> bool:
        """Whether an option of the table names a column."""
        name = self.names.get(column.number)
        return name is not None and (self.sequence is not None or name != NEWEST)

    def expression(self, column: Column, columns: Sequence[Column]) -> str:
        """Return a column's value of a key that has two rows."""
        name = self.names.get(column.number, NEWEST)
        if self.sequence is None or column.number not in self.names:
            return _EXPRESSIONS[name].format(c=column.name)
        (sequence,) = (item.name for item in columns if item.number == self.sequence)
        form = _GROUPED_SUM if name == "sum" else _GROUPED
        return form.format(c=column.name, s=sequence)


def added_kinds(engine: str, *, is_grouped: bool) -> tuple[tuple[str, Kind, str], ...]:
    """Return columns that a table of an engine has beside the random ones: name, type, function."""
    if engine == "aggregation":
        return (("n", SMALL, "sum"), ("w", _WORD, "listagg"), ("f", _FLAG, "bool_or"), ("l", _LIST, "collect"))
    if is_grouped:
        return (("s", SMALL, SEQUENCE), ("g", _WORD, NEWEST), ("n", SMALL, "sum"))
    return ()


def random_function(rng: random.Random, kind: Kind) -> str:
    """Return a function for a column of the engine ``aggregation``."""
    return rng.choice((*_ANY_KIND, *_BY_KIND.get(kind.spark, ()) * 2))
