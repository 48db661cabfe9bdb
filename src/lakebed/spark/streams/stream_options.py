"""Options of a stream as settings, for the data source and for the catalog. Imports no PySpark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from lakebed.errors import InvalidRequest
from lakebed.spark.plan.change_rows import CHANGELOG, KIND
from lakebed.spark.streams.source_options import flag, number
from lakebed.table.changes.stream import Start, StreamSettings
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.model.model import TableSchema
from lakebed.texts import format_value

CONSUMER: Final = "consumer"
LIMITS: Final = {
    "files": "maxFilesPerTrigger",
    "rows": "maxRowsPerTrigger",
    "bytes": "maxBytesPerTrigger",
    "snapshots": "maxSnapshotsPerTrigger",
}
OWN_OPTIONS: Final = ("mode", "changes", "removals", CONSUMER, *LIMITS.values())
"""Options that only a stream has."""


def stream_settings(options: Mapping[str, str]) -> StreamSettings:
    """Return the settings in options, whose names may have any case. Raises `InvalidRequest`: an invalid value."""
    options_by_name = {name.lower(): value for name, value in options.items()}
    mode = _one_of(options_by_name, "mode", get_args(Start))
    removals = _one_of(options_by_name, "removals", ("fail", "skip"))
    for name, needs in (("version", "from-snapshot"), ("timestamp", "from-timestamp")):
        if name in options_by_name and mode != needs:
            raise InvalidRequest(
                f"The option {name} is for streams with mode={needs}, and this one has mode={mode}: give both or none.",
                kind="invalid_option",
            )
    return StreamSettings(
        start=mode,  # type: ignore[arg-type]
        version=options_by_name.get("version"),
        timestamp=options_by_name.get("timestamp"),
        changes=flag(options_by_name, "changes", False),
        removals="skip" if removals == "skip" else "fail",
    )


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = given.get(name, values[0])
    if value not in values:
        raise InvalidRequest(
            f"The option {name}={format_value(value)} is invalid: use {', '.join(values)}.", kind="invalid_option"
        )
    return value


def limits_of(options: Mapping[str, str]) -> Limits:
    """Return the limits of a batch. Raises `InvalidRequest`: one of them is not a number >= 1."""
    options_by_name = {name.lower(): value for name, value in options.items()}
    limits = {limit: number(options_by_name, name.lower(), 0) or None for limit, name in LIMITS.items()}
    return Limits(files=limits["files"], rows=limits["rows"], bytes=limits["bytes"], snapshots=limits["snapshots"])


def stream_columns(schema: TableSchema, settings: StreamSettings) -> tuple[str, ...]:
    """Return the columns of a stream. Raises `InvalidRequest`: the table has a column with a name that changes need."""
    names = tuple(field.name for field in schema.fields)
    if not settings.changes:
        return names
    refuse_names(schema, KIND.name)
    return (*names, KIND.name)


def refuse_names(schema: TableSchema, *added: str) -> None:
    """Refuse a table with columns whose names changes need."""
    taken_names = [field.name for field in schema.fields if field.name in added]
    if taken_names:
        raise InvalidRequest(
            f"The table has a column {taken_names[0]!r}, the name of a column that is added to its changes: rename the "
            "table's column.",
            kind="name_taken",
            column=taken_names[0],
        )


CHANGELOG_NAMES: Final = tuple(field.name for field in CHANGELOG)
