"""What writes the changelog files of a table: the option ``changelog-producer``. Pure.

Owns: `Producer`, `producer_of`, `check_producer`, and the least level whose rows a producer's changelog contains.
"""

from __future__ import annotations

import enum
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import (
    CHANGELOG_PRODUCER,
    COMPACTION_SORTED_RUN_TRIGGER,
    DELETION_VECTORS,
    LEVEL_COUNT,
    MERGE_ENGINE,
    TableOptions,
)


class Producer(enum.Enum):
    """What writes changelog files. The values are those of the option."""

    NONE = "none"
    INPUT = "input"
    """Each write logs the rows as they were written."""
    FULL_COMPACTION = "full-compaction"
    """Each compaction into the highest level logs how the rows there changed."""
    LOOKUP = "lookup"
    """Compactions of other clients, which look up older rows. lakebed reads such changelogs and does not write them."""


PRODUCERS: Final = {producer.value: producer for producer in Producer}


def producer_of(schema: TableSchema) -> Producer:
    """The producer of a table; a table without primary key has none."""
    if not schema.primary_keys:
        return Producer.NONE
    return PRODUCERS[TableOptions(schema.options).get(CHANGELOG_PRODUCER)]


def level_count_of(options: TableOptions) -> int:
    """Number of levels of a bucket, level 0 included."""
    return options.get(LEVEL_COUNT) or options.get(COMPACTION_SORTED_RUN_TRIGGER) + 1


def least_logged_level(producer: Producer, schema: TableSchema) -> int:
    """The least level whose rows a producer's changelogs contain. A later compaction logs the rows below it."""
    if producer is Producer.FULL_COMPACTION:
        return level_count_of(TableOptions(schema.options)) - 1
    return 1 if producer is Producer.LOOKUP else 0


def check_producer(schema: TableSchema) -> None:
    """Refuse a producer that a table cannot have.

    Raises `InvalidRequest`: the table has no primary key; the merge engine keeps the first row of a key, whose written
    rows are not its changes; or deletion vectors would mark rows of the highest level before a full compaction.
    """
    options = TableOptions(schema.options)
    producer = PRODUCERS[options.get(CHANGELOG_PRODUCER)]
    if producer is Producer.NONE:
        return
    if not schema.primary_keys:
        raise _option_error(
            producer, "needs a primary key: an append table is read by what its snapshots add. Leave the option out."
        )
    if options.get(MERGE_ENGINE) == "first-row" and producer is not Producer.LOOKUP:
        raise _option_error(
            producer,
            "is not possible with merge-engine = first-row, whose rows never change once they are there. Leave one of "
            "the two options out.",
        )
    if producer is Producer.FULL_COMPACTION and options.get(DELETION_VECTORS):
        raise _option_error(
            producer,
            "is not possible with deletion-vectors.enabled = true, where every compaction marks older rows. Leave one "
            "of the two options out.",
        )


def _option_error(producer: Producer, why: str) -> InvalidRequest:
    name = CHANGELOG_PRODUCER.name
    return InvalidRequest(f"Option {name!r} = '{producer.value}' {why}", kind="invalid_option", option=name)
