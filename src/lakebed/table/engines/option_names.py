"""Names of the options of merge engines, and the columns that they name. Pure.

Owns: the names, and the check of a new table's options. An option without effect is refused when a table is created,
and ignored in a table of another client: one that belongs to a column that the table does not have, or that no engine
here reads.

Knows no engine: a table is opened and listed without loading them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import TableSchema
from lakebed.table.model.option_values import check_listed, parse_names

PREFIX: Final = "fields."
DEFAULT_FUNCTION: Final = "fields.default-aggregate-function"
FUNCTION: Final = "aggregate-function"
IGNORE_RETRACT: Final = "ignore-retract"
DISTINCT: Final = "distinct"
DELIMITER: Final = "list-agg-delimiter"
NESTED_KEY: Final = "nested-key"
SEQUENCE_GROUP: Final = "sequence-group"

IGNORE_DELETE_NAMES: Final = (
    "ignore-delete",
    "first-row.ignore-delete",
    "deduplicate.ignore-delete",
    "partial-update.ignore-delete",
)
"""The option and its older names. All have the same effect with every engine."""


def columns_of_options(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """``(option, column)`` for every column that an option for columns names."""
    for option, text in options.items():
        if not option.startswith(PREFIX) or option == DEFAULT_FUNCTION:
            continue
        columns, _, suffix = option[len(PREFIX) :].rpartition(".")
        yield from ((option, name) for name in parse_names(columns))
        if suffix == SEQUENCE_GROUP:
            yield from ((option, name) for name in parse_names(text))


def check_listed_columns(options: Mapping[str, str], columns: Collection[str]) -> None:
    """Refuse options that list column names if they would have to name a column with a comma.

    Raises `InvalidRequest`.
    """
    for option, text in options.items():
        column_lists = (
            [text] if option in ("bucket-key", "sequence.field") or option.endswith(f".{SEQUENCE_GROUP}") else []
        )
        if option.startswith(PREFIX) and option != DEFAULT_FUNCTION:
            column_lists.append(option[len(PREFIX) :].rpartition(".")[0])
        for names in column_lists:
            check_listed(names, columns, what=f"Option {option!r}")


def refuse_named(options: Mapping[str, str], name: str) -> None:
    """Raise `InvalidRequest` if an option names a column that is to be dropped."""
    option = next((option for option, column in columns_of_options(options) if column == name), None)
    if option is not None:
        raise InvalidRequest(
            f"Column {name!r} cannot be dropped while option {option!r} names it: remove the option first.",
            kind="invalid_schema_change",
            column=name,
        )


def with_renamed(options: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The options of a table after a column was renamed.

    Raises `InvalidRequest`: an option names the column, and cannot express its new name.
    """

    def rename(names: str) -> str:
        return ",".join(new if name == old else name for name in parse_names(names))

    new_options = dict(options)
    for option in dict.fromkeys(option for option, column in columns_of_options(options) if column == old):
        text = new_options.pop(option)
        if parse_names(new) != (new,):
            raise InvalidRequest(
                f"Column {old!r} cannot be renamed to {new!r} while option {option!r} names it: options separate names "
                "by commas and ignore spaces around them. Choose another name, or remove the option first.",
                kind="invalid_schema_change",
                column=old,
            )
        columns, _, suffix = option[len(PREFIX) :].rpartition(".")
        new_options[f"{PREFIX}{rename(columns)}.{suffix}"] = rename(text) if suffix == SEQUENCE_GROUP else text
    return new_options


def check_fields(schema: TableSchema) -> None:
    """Refuse options of columns that have no effect. Raises `InvalidRequest`."""
    known_suffixes = (FUNCTION, IGNORE_RETRACT, DISTINCT, DELIMITER, NESTED_KEY, SEQUENCE_GROUP)
    for option, name in columns_of_options(schema.options):
        suffix = option.rpartition(".")[2]
        if suffix not in known_suffixes:
            raise option_error(
                f"Option {option!r} is not supported by this version of lakebed; of columns there are "
                f"{', '.join(known_suffixes)}.",
                option,
            )
        if schema.field_by_name(name) is None:
            raise option_error(f"Option {option!r} names {name!r}, which is not a column of the table.", option)
        if suffix == SEQUENCE_GROUP and schema.options.get("merge-engine") != "partial-update":
            raise option_error(f"Option {option!r} needs option 'merge-engine' = 'partial-update'.", option)


def option_error(sentence: str, option: str) -> InvalidRequest:
    """The error for options that contradict each other or the schema."""
    return InvalidRequest(sentence, kind="invalid_option", option=option)
