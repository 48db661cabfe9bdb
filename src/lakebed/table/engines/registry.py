"""The merge engines of lakebed by the value of the option ``merge-engine``, and which tables they refuse.

An engine is loaded only when rows are merged or a table is created or written. Listing a table does not load the
engines, which takes 10 ms.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.table.engines.engine import Deletes, MergeEngine
from lakebed.table.engines.option_names import IGNORE_DELETE_NAMES, PREFIX, check_fields
from lakebed.table.model.changelog_options import check_producer
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import (
    AGGREGATION_REMOVE_ON_DELETE,
    DELETION_VECTORS,
    MERGE_ENGINE,
    PARTIAL_UPDATE_REMOVE_ON_DELETE,
    SEQUENCE_FIELD,
    TableOptions,
    option_error,
)


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """The location of an engine, and what is known of it without loading it."""

    module: str
    """Name of its module in this package."""
    class_name: str
    accepts: frozenset[str]
    """Options that this engine implements: from `MERGE_OPTIONS`, and beginnings of names such as ``fields.``.

    A table that sets another one is refused.
    """

    def load(self) -> type[MergeEngine]:
        """The engine. Cost: milliseconds, once a process."""
        module = importlib.import_module(f"lakebed.table.engines.{self.module}")
        return cast("type[MergeEngine]", getattr(module, self.class_name))


ENGINES: Final[dict[str, KnownEngine]] = {
    "deduplicate": KnownEngine("deduplicate", "Deduplicate", frozenset((SEQUENCE_FIELD.name,))),
    "partial-update": KnownEngine(
        "partial_update",
        "PartialUpdate",
        frozenset((SEQUENCE_FIELD.name, *IGNORE_DELETE_NAMES, PARTIAL_UPDATE_REMOVE_ON_DELETE.name, PREFIX)),
    ),
    "aggregation": KnownEngine(
        "aggregation", "Aggregation", frozenset((SEQUENCE_FIELD.name, AGGREGATION_REMOVE_ON_DELETE.name, PREFIX))
    ),
    "first-row": KnownEngine("first_row", "FirstRow", frozenset(IGNORE_DELETE_NAMES)),
}

MERGE_OPTIONS: Final = (
    SEQUENCE_FIELD.name,
    *IGNORE_DELETE_NAMES,
    PARTIAL_UPDATE_REMOVE_ON_DELETE.name,
    "partial-update.remove-record-on-sequence-group",
    AGGREGATION_REMOVE_ON_DELETE.name,
)
"""Options that change which rows of a key survive. `KnownEngine.accepts` lists those that an engine implements."""


_NO_DELETES: Final = {
    Deletes.REFUSED: "which takes no deletes",
    Deletes.IGNORE: "and ignores deletes (option ignore-delete)",
    Deletes.RETRACT: "where a delete takes values back and leaves the row (write with deletes= does that)",
}


def engine_name(options: Mapping[str, str]) -> str:
    """The name of the engine that some options ask for. lakebed may not have it."""
    return str(options.get(MERGE_ENGINE.name, MERGE_ENGINE.default)).strip().lower()


def find_engine(schema: TableSchema) -> KnownEngine:
    """The engine of a primary-key table, without loading it.

    Raises `UnsupportedFormat`: an engine that this version of lakebed does not have.
    """
    name = engine_name(schema.options)
    if name not in ENGINES:
        raise UnsupportedFormat(
            f"The table merges rows by the engine {name!r}; this version reads {', '.join(ENGINES)} only.",
            option=MERGE_ENGINE.name,
        )
    return ENGINES[name]


def engine_of(schema: TableSchema) -> MergeEngine:
    """The engine of a primary-key table, ready to merge its rows.

    Raises:
        UnsupportedFormat: an engine that this version of lakebed does not have.
        InvalidRequest: options that contradict each other or the schema.
    """
    return find_engine(schema).load().of(schema)


def check_mergeable(schema: TableSchema) -> None:
    """Refuse a primary-key table whose rows this version of lakebed would merge differently from what its options ask.

    Raises `UnsupportedFormat`: another engine, or an option of `MERGE_OPTIONS` that the engine does not implement.
    """
    accepts = find_engine(schema).accepts
    for name in MERGE_OPTIONS:
        value = schema.options.get(name, "")
        if name not in accepts and value.lower() not in ("false", ""):
            raise UnsupportedFormat(
                f"By the table's option {name} = {value} other rows of a key count than the last one; this version "
                "cannot read that.",
                option=name,
            )


def check_defined(options: Mapping[str, str]) -> None:
    """Refuse to create or to write a table with an engine that lakebed does not have. Raises `InvalidRequest`."""
    text = options.get(MERGE_ENGINE.name)
    if text is not None and engine_name(options) not in ENGINES:
        raise option_error(MERGE_ENGINE.name, text)


def check_marking(schema: TableSchema) -> None:
    """Refuse to create or to write a primary-key table whose compactions cannot mark the older rows of a key.

    Raises `InvalidRequest`: deletion vectors together with an engine or an option that excludes them.
    """
    if not TableOptions(schema.options).get(DELETION_VECTORS):
        return
    if engine_of(schema).keeps_levels_apart:
        raise InvalidRequest(
            f"Option {DELETION_VECTORS.name!r} = 'true' does not fit the merge engine "
            f"{engine_name(schema.options)!r}: it keeps the oldest row of a key, so there are no older rows to mark. "
            "Create the table without this option.",
            kind="unsupported_option",
            option=DELETION_VECTORS.name,
        )
    name = "deletion-vectors.bitmap64"
    if schema.options.get(name, "false").strip().lower() == "true":
        raise InvalidRequest(
            f"The table has a primary key and {name}=true: lakebed reads such vectors and does not write them, so it "
            "could not compact the table. Write it with the client that set the option.",
            kind="unsupported_option",
            option=name,
        )


def refuse_change_of_marking(schema: TableSchema, options: Mapping[str, str]) -> None:
    """Refuse options by which existing files would be read wrongly. Raises `InvalidRequest`."""
    old_value, new_value = (TableOptions(values).get(DELETION_VECTORS) for values in (schema.options, options))
    if old_value == new_value or (new_value and not schema.primary_keys):
        return
    why = (
        "cannot be turned off: other clients would return the rows again that the table's deletion vectors delete"
        if old_value
        else "of a table with a primary key is set when it is created: no vectors mark the older rows of its keys"
    )
    raise InvalidRequest(
        f"Option {DELETION_VECTORS.name!r} {why}. Create a new table and copy the rows instead.",
        kind="invalid_option",
        option=DELETION_VECTORS.name,
    )


def with_checked_engine(schema: TableSchema) -> TableSchema:
    """Return the schema after checking its engine.

    Raises `InvalidRequest`: options of its merge engine or its changelog contradict each other or its columns.
    """
    check_producer(schema)
    if schema.primary_keys and engine_name(schema.options) in ENGINES:
        engine_of(schema)
        check_fields(schema)
        check_marking(schema)
    return schema


def with_mergeable_columns(schema: TableSchema) -> TableSchema:
    """Return the schema after a column was added.

    Raises `InvalidRequest`: the merge engine has no function for the column, so the table could no longer be read.
    """
    if schema.primary_keys and engine_name(schema.options) in ENGINES:
        engine_of(schema)
    return schema


def check_deletes(schema: TableSchema, verb: str, *, removes: bool) -> None:
    """Refuse deletes that the merge engine does not accept.

    Args:
        verb: what is refused, for the message.
        removes: also refuse deletes that leave the row.

    Raises `InvalidRequest`: kinds ``no_primary_key``, ``unsupported_delete``.
    """
    if not schema.primary_keys:
        raise InvalidRequest(
            f"Cannot {verb}: the table has no primary key; delete by a predicate instead.", kind="no_primary_key"
        )
    does = engine_of(schema).deletes
    if does is Deletes.REMOVE or (does is not Deletes.REFUSED and not removes):
        return
    raise InvalidRequest(
        f"Cannot {verb}: the table merges rows by the engine {engine_name(schema.options)!r}, "
        f"{_NO_DELETES[does]}; overwrite the table or its partitions instead.",
        kind="unsupported_delete",
    )


def option_prefixes(options: Mapping[str, str]) -> tuple[str, ...]:
    """Beginnings of the option names that the engine named in some options implements; none of an unknown engine."""
    engine = ENGINES.get(engine_name(options))
    return () if engine is None else tuple(engine.accepts)
