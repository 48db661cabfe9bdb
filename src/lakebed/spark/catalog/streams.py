"""Verbs on streams: where they begin, where a batch ends, and what it reads.

Invariant: an offset is a text that Spark keeps in its checkpoint and passes back. This module keeps no other state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.spark.catalog.arguments import time_ms_of
from lakebed.spark.catalog.changelog import PlanChanges
from lakebed.spark.catalog.plans import Readers, answer_with_changes, answer_with_splits
from lakebed.spark.catalog.verb import Session, TableVerb, register_verb
from lakebed.spark.plan.change_rows import ChangeRows, Committed, deletions_of
from lakebed.spark.streams.source_options import check_options
from lakebed.spark.streams.stream_options import CONSUMER, OWN_OPTIONS, limits_of, stream_settings
from lakebed.table.changes.stream import StreamOffset, StreamSettings, TableStream, created_ms
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.table import Table

_OPTIONS = ("branch", "version", "timestamp", *map(str.lower, OWN_OPTIONS))


class StreamVerb(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a stream.

    Attributes:
        schema_id: the schema whose columns it reads.
        options: the options of the stream.
        changes_after: None unless the stream reads what each snapshot changed; then the snapshot before the first.
    """

    schema_id: int
    options: dict[str, str]
    changes_after: int | None = None

    def settings(self) -> StreamSettings:
        """Parse the settings in the options. Raises `InvalidRequest`."""
        if self.changes_after is not None:
            return StreamSettings(start="from-snapshot", changes=True)
        check_options(self.options, _OPTIONS, "spark.readStream.table")
        settings = stream_settings(self.options)
        if settings.changes:
            raise InvalidRequest(
                "A stream of table() has the columns of the table, so changes=true is not for it: use "
                "spark.readStream.changes, or format('lakebed').",
                kind="invalid_option",
            )
        return (
            settings if settings.timestamp is None else replace(settings, timestamp=time_ms_of(str(settings.timestamp)))
        )

    def open_stream(self, table: Table) -> TableStream:
        """Open the stream."""
        return TableStream(table.context, self.settings(), schema=table.context.schemas.load(self.schema_id))

    def hold(self, table: Table, offset: StreamOffset) -> None:
        """Keep snapshots that are not read yet, if the options ask for this."""
        consumer = {name.lower(): value for name, value in self.options.items()}.get(CONSUMER)
        if consumer is not None:
            self.open_stream(table).hold(consumer, offset)


def text_of(offset: StreamOffset) -> str:
    """Encode an offset as text."""
    return msgspec.json.encode(offset.members()).decode()


def offset_of(text: str) -> StreamOffset:
    """Decode the result of `text_of`. Raises `InvalidRequest`."""
    try:
        return StreamOffset.of(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return StreamOffset.of(text)


@register_verb("stream_first")
class StreamFirst(StreamVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return where a new stream begins."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        stream = self.open_stream(table)
        first = stream.first() if self.changes_after is None else stream.after(self.changes_after)
        self.hold(table, first)
        return {"offset": text_of(first)}


@register_verb("stream_newest")
class StreamNewest(StreamVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return the newest snapshot; 0: there is none."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        return {"snapshot_id": self.open_stream(self.open_table(session, lake_url)).newest()}


@register_verb("stream_next")
class StreamNext(StreamVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return where the next batch ends.

    Attributes:
        start: where it begins.
        everything: ignore limits.
        until: the last snapshot to read; None: the newest.
    """

    start: str
    everything: bool = False
    until: int | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        stream = self.open_stream(self.open_table(session, lake_url))
        limits = Limits() if self.everything else limits_of(self.options)
        if self.changes_after is not None:
            limits = Limits(snapshots=limits.snapshots)
        start = offset_of(self.start)
        end = stream.advance(start, limits, until=self.until)
        return {"offset": self.start if end == start else text_of(end)}


@register_verb("stream_plan")
class StreamPlan(StreamVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan the reading of a batch.

    Attributes:
        start, end: offsets.
        columns, schemes, task_count_min: as in `Plan`.
    """

    start: str
    end: str
    columns: list[str]
    schemes: tuple[str, ...] = ()
    task_count_min: int = 1

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        schema = table.context.schemas.load(self.schema_id)
        columns = self.columns or [schema.fields[0].name]
        if self.changes_after is not None:
            after, until = (offset_of(text).snapshot for text in (self.start, self.end))
            changes = PlanChanges(
                table=self.table,
                branch=self.branch,
                schema_id=self.schema_id,
                columns=self.columns,
                task_count_min=self.task_count_min,
                after=after,
                until=until,
            )
            return changes.run(session, lake_url)
        batch = self.open_stream(table).plan(offset_of(self.start), offset_of(self.end), columns=columns)
        readers = Readers(self.schemes, self.task_count_min)
        if batch.units:
            rows = ChangeRows(batch.plan, tuple(columns), deletions_of(self.settings()))
            units = [Committed(unit, 0, 0) for unit in batch.units]
            return answer_with_changes(session, table.store, units, rows, readers=readers)
        return answer_with_splits(session, table.store, batch.splits, batch.plan, readers=readers)


@register_verb("stream_sink")
class StreamSink(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return what identifies the table into which a stream begins to write: the time of its creation, Unix ms."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        return {"created_ms": created_ms(self.open_table(session, lake_url).context)}


@register_verb("stream_done")
class StreamDone(StreamVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record that nothing before an offset will be read again."""

    end: str

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        self.hold(self.open_table(session, lake_url), offset_of(self.end))
        return {}
