"""Options of single columns that merge engines read: ``fields.<column>.<what>``. Pure.

Owns: their names, `ColumnFunction` and `SequenceGroup`, and the check of a new table's. An option of a column that the
table does not have, or of a kind that no engine here reads, is refused when a table is made and ignored in a table of
another client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.engines.functions import FUNCTIONS, Function, Retracts, Settings
from lakebed.table.engines.key_rows import KeyRows
from lakebed.table.model import DataField, TableSchema
from lakebed.table.option_values import parse_boolean, parse_names
from lakebed.table.types import Type, parse_type

PREFIX: Final = "fields."
DEFAULT_FUNCTION: Final = "fields.default-aggregate-function"
FUNCTION: Final = "aggregate-function"
IGNORE_RETRACT: Final = "ignore-retract"
DISTINCT: Final = "distinct"
DELIMITER: Final = "list-agg-delimiter"
SEQUENCE_GROUP: Final = "sequence-group"

IGNORE_DELETE_NAMES: Final = (
    "ignore-delete",
    "first-row.ignore-delete",
    "deduplicate.ignore-delete",
    "partial-update.ignore-delete",
)
"""The option and its older names, which have the same effect with every engine."""


def ignores_deletes(options: Mapping[str, str]) -> bool:
    """Whether a table leaves deletes out."""
    return any(is_true(options, name) for name in IGNORE_DELETE_NAMES)


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Whether a boolean option is set and true. Raises `InvalidRequest`: another text."""
    text = options.get(name)
    try:
        return text is not None and parse_boolean(text)
    except InvalidRequest as error:
        raise refused(f"Option {name!r} = {text!r} is invalid: {error.message}", name) from error


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """The aggregate function of a column, with its settings."""

    column: str
    name: str
    function: Function
    settings: Settings
    ignores_retracts: bool
    rounds: bool
    """Whether results are rounded, so that they depend on which rows were merged before."""

    @property
    def takes_retracts(self) -> bool:
        """Whether rows may be taken back."""
        return self.ignores_retracts or self.function.retracts is not Retracts.NO

    @property
    def retracts_apart(self) -> bool:
        """Whether rows that are taken back may be merged before the rows that they take back."""
        if self.ignores_retracts:
            # A null in place of rows that were left out is a value for these two.
            return self.name not in ("last_value", "first_value")
        return self.function.retracts is Retracts.EXACT

    def values(self, column: pa.ChunkedArray | pa.Array, rows: KeyRows) -> pa.Array:
        """The values of the keys. Raises `InvalidRequest`: a row is taken back that the function cannot."""
        if self.ignores_retracts:
            rows = rows.only(~rows.retracts)
        elif not self.takes_retracts and (rows.retracts & rows.counts).any():
            raise InvalidRequest(
                f"Column {self.column!r} is aggregated by {self.name}, which cannot take a row back, and files of the "
                f"table hold deletes; set its option '{PREFIX}{self.column}.{IGNORE_RETRACT}' = 'true' to leave "
                "them out.",
                kind="unsupported_retract",
                column=self.column,
            )
        return self.function.values(rows.of(column), rows, self.settings)


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Columns that are taken together from the row that is newest by other columns."""

    sequence: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns, without those of `sequence`."""


def function_of(schema: TableSchema, field: DataField, *, default: str | None) -> ColumnFunction | None:
    """The aggregate function of a column; None: it has none.

    Raises `InvalidRequest`: a function that does not exist here, or that does not take the column's type.
    """
    options, name = schema.options, field.name
    option = f"{PREFIX}{name}.{FUNCTION}"
    chosen = options.get(option) or options.get(DEFAULT_FUNCTION) or default
    if chosen is None:
        return None
    function = FUNCTIONS.get(chosen)
    if function is None:
        hint = " To count rows, sum a column of ones." if chosen == "count" else ""
        raise refused(
            f"Option {option!r} asks for the aggregate function {chosen!r}, which this version of lakebed does not "
            f"have; there are {', '.join(FUNCTIONS)}.{hint}",
            option,
        )
    kind = parse_type(field.type)
    if not function.takes(kind):
        raise refused(
            f"Option {option!r} aggregates column {name!r} by {chosen}, which does not take {field.type}.", option
        )
    settings = Settings(
        delimiter=options.get(f"{PREFIX}{name}.{DELIMITER}", ","),
        distinct=is_true(options, f"{PREFIX}{name}.{DISTINCT}"),
    )
    if chosen == "listagg" and settings.distinct and not settings.delimiter:
        raise refused(
            f"Option '{PREFIX}{name}.{DISTINCT}' needs a delimiter that is not empty.", f"{PREFIX}{name}.{DELIMITER}"
        )
    return ColumnFunction(
        name,
        chosen,
        function,
        settings,
        is_true(options, f"{PREFIX}{name}.{IGNORE_RETRACT}"),
        chosen == "product" and _has_fraction(kind),
    )


def _has_fraction(kind: Type) -> bool:
    return kind.root == "DECIMAL" and bool(kind.scale)


def sequence_groups(schema: TableSchema) -> tuple[SequenceGroup, ...]:
    """The groups of ``fields.<sequence columns>.sequence-group``.

    Raises `InvalidRequest`: a group names a column that does not exist, a key column, or one of another group.
    """
    groups: list[SequenceGroup] = []
    owner: dict[str, str] = {}
    for option, text in schema.options.items():
        if not (option.startswith(PREFIX) and option.endswith(f".{SEQUENCE_GROUP}")):
            continue
        sequence = parse_names(option[len(PREFIX) : -len(SEQUENCE_GROUP) - 1])
        columns = tuple(name for name in parse_names(text) if name not in sequence)
        for name in dict.fromkeys((*sequence, *columns)):
            field = schema.field_by_name(name)
            if field is None:
                raise refused(f"Option {option!r} names {name!r}, which is not a column of the table.", option)
            if name in schema.primary_keys:
                raise refused(f"Option {option!r} names {name!r}, which is part of the primary key.", option)
            if name in owner:
                raise refused(f"Options {owner[name]!r} and {option!r} both name the column {name!r}.", option)
            if name in sequence and not _has_order(parse_type(field.type)):
                raise refused(
                    f"Option {option!r} orders rows by {name!r}, which is {field.type}; values of that type have no "
                    "order.",
                    option,
                )
            owner[name] = option
        groups.append(SequenceGroup(sequence, columns))
    return tuple(groups)


def _has_order(kind: Type) -> bool:
    return not kind.is_nested and kind.root not in ("VARIANT", "BLOB")


def named_columns(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """``(option, column)`` for every column that an option of columns names."""
    for option, text in options.items():
        if not option.startswith(PREFIX) or option == DEFAULT_FUNCTION:
            continue
        columns, _, what = option[len(PREFIX) :].rpartition(".")
        yield from ((option, name) for name in parse_names(columns))
        if what == SEQUENCE_GROUP:
            yield from ((option, name) for name in parse_names(text))


def refuse_named(options: Mapping[str, str], name: str) -> None:
    """Raise `InvalidRequest` if an option names a column that is to be dropped."""
    option = next((option for option, column in named_columns(options) if column == name), None)
    if option is not None:
        raise InvalidRequest(
            f"Column {name!r} cannot be dropped while option {option!r} names it: remove the option first.",
            kind="invalid_schema_change",
            column=name,
        )


def with_renamed(options: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The options of a table after a column has got another name."""

    def renamed(names: str) -> str:
        return ",".join(new if name == old else name for name in parse_names(names))

    changed = dict(options)
    for option in dict.fromkeys(option for option, column in named_columns(options) if column == old):
        text = changed.pop(option)
        columns, _, what = option[len(PREFIX) :].rpartition(".")
        changed[f"{PREFIX}{renamed(columns)}.{what}"] = renamed(text) if what == SEQUENCE_GROUP else text
    return changed


def check_fields(schema: TableSchema) -> None:
    """Refuse options of columns that have no effect. Raises `InvalidRequest`."""
    known = (FUNCTION, IGNORE_RETRACT, DISTINCT, DELIMITER, SEQUENCE_GROUP)
    for option, name in named_columns(schema.options):
        what = option.rpartition(".")[2]
        if what not in known:
            raise refused(
                f"Option {option!r} is not supported by this version of lakebed; of columns there are "
                f"{', '.join(known)}.",
                option,
            )
        if schema.field_by_name(name) is None:
            raise refused(f"Option {option!r} names {name!r}, which is not a column of the table.", option)
        if what == SEQUENCE_GROUP and schema.options.get("merge-engine") != "partial-update":
            raise refused(f"Option {option!r} needs option 'merge-engine' = 'partial-update'.", option)


def refused(sentence: str, option: str) -> InvalidRequest:
    """The error for options that contradict each other or the schema."""
    return InvalidRequest(sentence, kind="invalid_option", option=option)
