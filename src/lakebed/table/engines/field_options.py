"""Options of single columns that merge engines read: ``fields.<column>.<what>``. Pure.

Owns: `ColumnFunction` and `SequenceGroup`. `option_names` owns the names, and the check of a new table's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.engines.functions import FUNCTIONS, Function, Retracts, Settings, has_order
from lakebed.table.engines.key_rows import KeyRows
from lakebed.table.engines.option_names import (
    DEFAULT_FUNCTION,
    DELIMITER,
    DISTINCT,
    FUNCTION,
    IGNORE_DELETE_NAMES,
    IGNORE_RETRACT,
    NESTED_KEY,
    PREFIX,
    SEQUENCE_GROUP,
    option_error,
)
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.option_values import parse_boolean, parse_names
from lakebed.table.model.types import Type, parse_type


def ignores_deletes(options: Mapping[str, str]) -> bool:
    """Whether a table ignores deletes."""
    return any(is_true(options, name) for name in IGNORE_DELETE_NAMES)


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Whether a boolean option is set and true. Raises `InvalidRequest`: another text."""
    text = options.get(name)
    try:
        return text is not None and parse_boolean(text)
    except InvalidRequest as error:
        raise option_error(f"Option {name!r} = {text!r} is invalid: {error.message}", name) from error


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """The aggregate function of a column, with its settings."""

    column: str
    name: str
    function: Function
    settings: Settings
    ignores_retracts: bool
    rounds: bool
    """Whether results are rounded, so that they depend on which rows were merged first."""

    @property
    def takes_retracts(self) -> bool:
        """Whether rows may be taken back."""
        return self.ignores_retracts or self.function.retracts is not Retracts.NO

    @property
    def retracts_apart(self) -> bool:
        """Whether a row that takes another one back may be merged before the row that it takes back."""
        if self.ignores_retracts:
            # For these two, the null of rows that are left out counts as a value.
            return self.name not in ("last_value", "first_value")
        return self.function.retracts is Retracts.EXACT

    def values(self, column: pa.ChunkedArray | pa.Array, rows: KeyRows) -> pa.Array:
        """The values of the keys. Raises `InvalidRequest`: a row is taken back, which the function cannot do."""
        if self.ignores_retracts:
            rows = rows.only(~rows.retracts)
        elif not self.takes_retracts and (rows.retracts & rows.counts).any():
            raise self.retract_error("files of the table hold deletes")
        return self.function.values(rows.of(column), rows, self.settings)

    def retract_error(self, why: str) -> InvalidRequest:
        """The error for a row that the function would have to take back."""
        return InvalidRequest(
            f"Column {self.column!r} is aggregated by {self.name}, which cannot take a row back, and {why}; set its "
            f"option '{PREFIX}{self.column}.{IGNORE_RETRACT}' = 'true' to leave them out.",
            kind="unsupported_retract",
            column=self.column,
        )


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Columns whose values come together from the row that is newest by other columns."""

    sequence: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns of the group, without those of `sequence`."""


def function_of(schema: TableSchema, field: DataField, *, default: str | None) -> ColumnFunction | None:
    """The aggregate function of a column; None: it has none.

    Raises `InvalidRequest`: the function does not exist here, or does not take the column's type.
    """
    options, name = schema.options, field.name
    option = f"{PREFIX}{name}.{FUNCTION}"
    function_name = options.get(option) or options.get(DEFAULT_FUNCTION) or default
    if function_name is None:
        return None
    function = FUNCTIONS.get(function_name)
    if function is None:
        hint = " To count rows, sum a column of ones." if function_name == "count" else ""
        raise option_error(
            f"Option {option!r} asks for the aggregate function {function_name!r}, which this version of lakebed does "
            f"not have; there are {', '.join(FUNCTIONS)}.{hint}",
            option,
        )
    kind = parse_type(field.type)
    if not function.takes(kind):
        hint = ""
        if not options.get(option):
            option = DEFAULT_FUNCTION
            hint = " Set the functions of the other columns by name, and leave out the default one."
        raise option_error(
            f"Option {option!r} aggregates column {name!r} by {function_name}, which does not take {field.type}.{hint}",
            option,
        )
    settings = Settings(
        delimiter=options.get(f"{PREFIX}{name}.{DELIMITER}", ","),
        distinct=is_true(options, f"{PREFIX}{name}.{DISTINCT}"),
        nested_key=_parse_nested_key(options, name, kind) if function_name == "nested_update" else (),
    )
    if function_name == "listagg" and settings.distinct and not settings.delimiter:
        raise option_error(
            f"Option '{PREFIX}{name}.{DISTINCT}' needs a delimiter that is not empty.", f"{PREFIX}{name}.{DELIMITER}"
        )
    return ColumnFunction(
        name,
        function_name,
        function,
        settings,
        is_true(options, f"{PREFIX}{name}.{IGNORE_RETRACT}"),
        function_name == "product" and _has_fraction(kind),
    )


def _parse_nested_key(options: Mapping[str, str], column: str, kind: Type) -> tuple[str, ...]:
    """The fields that are the key of rows in the arrays of a column; empty: these rows have no key.

    Raises `InvalidRequest`: a field that does not exist or whose type has no order, or an option of the function that
    would change its results and is not implemented.
    """
    option = f"{PREFIX}{column}.{NESTED_KEY}"
    for suffix in ("count-limit", "nested-sequence-field", "nested-key-null-strategy"):
        if f"{PREFIX}{column}.{suffix}" in options:
            raise option_error(
                f"Option '{PREFIX}{column}.{suffix}' of nested_update is not supported by this version of lakebed; "
                f"remove it, or aggregate column {column!r} by another function.",
                f"{PREFIX}{column}.{suffix}",
            )
    types = {field.name: field.type for field in kind.children[0].fields}
    names = parse_names(options.get(option, ""))
    for name in names:
        if name not in types:
            raise option_error(f"Option {option!r} names {name!r}, which is not a field of {kind.children[0]}.", option)
    for name in names or types:
        if not has_order(types[name]):
            raise option_error(
                f"Rows in column {column!r} are compared by their field {name!r}, which is {types[name]}, and values "
                f"of that type cannot be compared: name other fields in option {option!r}.",
                option,
            )
    return names


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
                raise option_error(f"Option {option!r} names {name!r}, which is not a column of the table.", option)
            if name in schema.primary_keys:
                raise option_error(f"Option {option!r} names {name!r}, which is part of the primary key.", option)
            if name in owner:
                raise option_error(f"Options {owner[name]!r} and {option!r} both name the column {name!r}.", option)
            if name in sequence and not has_order(parse_type(field.type)):
                raise option_error(
                    f"Option {option!r} orders rows by {name!r}, which is {field.type}; values of that type have no "
                    "order.",
                    option,
                )
            owner[name] = option
        groups.append(SequenceGroup(sequence, columns))
    return tuple(groups)
