"""``ingest``: files (CSV, JSON or Parquet; also zipped) into a table, or as a view for later steps.

Metrics: into a table: ``table``, ``snapshot``, and what it did to files (see `..measure`); as a view: ``view``, and for
CSV and JSON ``rows``. ``files_read`` counts input files if they are local. With ``bad_rows: drop`` also
``rows_dropped``, and the first of them in ``dropped``.

Every row of CSV and JSON is checked against the schema before it is used. A row that does not fit stops the run here
(or is left out and counted), whatever columns later steps read.

Idempotent: the commit carries the run's identity. A view commits nothing; a resumed run makes it again when it needs
it.

The schema of CSV and JSON is given, or it is inferred once and then pinned in the lake, so that tomorrow's file cannot
change a type silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import AlreadyExists, Corruption, InvalidRequest, NotFound
from lakebed.pipeline.bad_rows import BadRows
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.files import FORMATS, FileReading, find_files, format_of, unpack
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.measure import commit_metrics
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.rows import LocalRows, Rows

_DECIDED_BY_BAD_ROWS = ("mode", "columnnameofcorruptrecord")


@dataclass(frozen=True, slots=True)
class _Source:
    """The files of a step, and how they are read."""

    step: PlannedStep
    context: RunContext
    names: Mapping[str, str]
    """Paths with the names that messages show."""
    reading: FileReading
    files_read: int

    @classmethod
    def of(cls, step: PlannedStep, context: RunContext) -> _Source:
        settings, location, engine = step.settings, context.location(step), context.engine()
        file_format = str(settings["format"] or format_of(settings["from"]))
        files = find_files(settings["from"], location=location)
        names = unpack(files, context.scratch_folder, location=location)
        reading = FileReading(file_format, settings["options"], settings["schema"], location)
        if reading.schema is None and file_format != "parquet":
            schema = _pin_schema(step, context, infer=lambda: engine.infer_schema([*names], reading))
            reading = replace(reading, schema=schema)
        return cls(step, context, names, reading, len(files))

    @property
    def is_checked(self) -> bool:
        """Whether rows of these files can be bad; Parquet files have their own types."""
        return self.reading.file_format != "parquet"

    def plain(self) -> LocalRows | None:
        """Read the rows in this process, if possible. Then all of them fit."""
        if self.reading.file_format != "csv":
            return None
        return self.context.engine().read_plain([*self.names], self.reading)

    def read_unchecked(self) -> Rows:
        """Read the rows with Spark. Their use fails at a bad row."""
        return self.context.engine().read_files([*self.names], self.reading)

    def check(self) -> BadRows:
        """Find the bad rows.

        Raises `InvalidRequest`: there are bad rows, and they must not be dropped. Names the step's line, files and
        lines.
        """
        bad_rows = self.context.engine().check_files(self.names, self.reading)
        if bad_rows.bad_count and self.step.settings["bad_rows"] == "stop":
            raise InvalidRequest(
                f"{self.reading.location}: {self.step.name} stopped the run: "
                f"{bad_rows.sentence()}. Correct them, or say `bad_rows: drop` to leave such rows out and count them.",
                kind="bad_rows",
                step=self.step.name,
                rows=bad_rows.row_count,
                bad_rows=bad_rows.bad_count,
                first=bad_rows.first,
            )
        return bad_rows

    def fitting(self) -> tuple[Rows, BadRows | None]:
        """Return the rows that fit, and the result of the check; None: there was nothing to check."""
        plain_frame = self.plain()
        if plain_frame is not None:
            return plain_frame, BadRows(plain_frame.arrow.num_rows)
        if not self.is_checked:
            return self.read_unchecked(), None
        bad_rows = self.check()
        if bad_rows.bad_count:
            return self.context.engine().without_bad_rows(self.names, self.reading), bad_rows
        return self.read_unchecked(), bad_rows

    def shape(self, rows: Rows) -> Rows:
        select, engine = self.step.settings["select"], self.context.engine()
        if select is not None:
            rows = engine.query(select, views={"files": rows}, location=self.reading.location)
        return engine.cache_rows(rows) if self.step.settings["cache"] else rows


@dataclass(frozen=True, slots=True)
class _PinnedSchema:
    """``<lake>/_lakebed/pipelines/<pipeline>/schema-<digest>.json``: a schema that was inferred once.

    It is only created, never replaced: of two runs that infer at the same time, one creates it, and both use it.
    """

    format: int
    source: str
    """The source that was read (``from`` of the step)."""
    columns: dict[str, str]
    """Column to Spark SQL type, in order."""


def _pin_schema(step: PlannedStep, context: RunContext, *, infer: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    """Return the columns of a step's files, which the first run that read them pinned.

    A step is identified by its pipeline, kind and target (not by file names, which change daily).

    Raises `Corruption`: the pinned schema is damaged; names its path.
    """
    target = step.settings["into"] or step.settings["as"]
    digest = hashlib.sha256(f"{step.kind}\0{target}".encode()).hexdigest()[:16]
    path = f"_lakebed/pipelines/{context.plan.pipeline}/schema-{digest}.json"
    store = context.lake.store
    try:
        return _decode_schema(bytes(memoryview(store.get(path))), path)
    except NotFound:
        pinned_schema = _PinnedSchema(1, step.settings["from"], dict(infer()))
    try:
        store.put(path, msgspec.json.encode(pinned_schema), create_only=True)
    except AlreadyExists:
        return _decode_schema(bytes(memoryview(store.get(path))), path)
    return pinned_schema.columns


def _decode_schema(body: bytes, path: str) -> Mapping[str, str]:
    try:
        return decode_json(body, _PinnedSchema).columns
    except msgspec.MsgspecError as error:
        raise Corruption(f"The pinned schema {path} is damaged: {error}.", path=path) from error


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Read, check, and name the view; or append to the table with at most one Spark job and one commit."""
    settings = step.settings
    source = _Source.of(step, context)
    if settings["as"] is not None:
        rows, bad_rows = source.fitting()
        view_rows = source.shape(rows)
        context.name_view(settings["as"], lambda: view_rows)
        return {
            "view": settings["as"],
            "files_read": source.files_read,
            "content": context.content(step),
            **_counts(bad_rows),
        }
    return _append(source)


def _append(source: _Source) -> dict[str, Any]:
    step, context = source.step, source.context
    name, bad_rows = step.settings["into"], None
    # If bad rows are dropped, check rows first. Otherwise the write itself finds them, in one pass.
    rows: Rows | None = source.plain()
    if rows is None and step.settings["bad_rows"] == "drop":
        rows, bad_rows = source.fitting()
    rows = source.shape(source.read_unchecked() if rows is None else rows)
    if not context.has_table(name) and not context.declares_columns(name):
        context.create_like(name, rows, step=step)
    table = context.table(name, step=step)
    content = context.content(step)
    identity = context.increment(step, table, name=name, content=content)
    try:
        snapshot = context.engine().append(rows, table, location=context.location(step), **identity)
    except InvalidRequest:
        if source.is_checked and bad_rows is None and not isinstance(rows, LocalRows):
            source.check()  # raises a better error if bad rows are the reason
        raise
    metrics: dict[str, Any] = {"table": name, "files_read": source.files_read, "rows": 0, "content": content}
    metrics.update(_counts(bad_rows))
    if snapshot is not None:
        metrics.update(commit_metrics(table, snapshot, name=name, before=context.before()))
    return metrics


def _counts(bad_rows: BadRows | None) -> dict[str, Any]:
    if bad_rows is None:
        return {}
    counts: dict[str, Any] = {"rows": bad_rows.row_count - bad_rows.bad_count}
    if bad_rows.bad_count:
        counts.update(rows_dropped=bad_rows.bad_count, dropped=[asdict(row) for row in bad_rows.first])
    return counts


def recall(step: PlannedStep, context: RunContext) -> None:
    """Define the view again for a resumed run. The files are read and checked when a step uses the view."""
    view = step.settings["as"]
    if view is not None:
        context.name_view(view, lambda: _read_again(step, context))


def _read_again(step: PlannedStep, context: RunContext) -> Rows:
    source = _Source.of(step, context)
    rows, _ = source.fitting()
    return source.shape(rows)


def check(settings: Mapping[str, Any]) -> str | None:
    """Require a known format and one of ``into`` and ``as``; refuse a cached table and options of `bad_rows`."""
    if settings["format"] is None and format_of(settings["from"]) is None:
        return f"the name '{settings['from']}' has no known ending: add `format: csv`, `json` or `parquet`."
    if settings["cache"] and settings["as"] is None:
        return "only a view can be cached: 'cache' goes with 'as'."
    if (settings["into"] is None) == (settings["as"] is None):
        return "say where the rows go: either 'into' (a table) or 'as' (a view for later steps), not both."
    for name in settings["options"]:
        if name.lower() in _DECIDED_BY_BAD_ROWS:
            return f"the option '{name}' is set by the key 'bad_rows' (stop or drop): use that key."
    return None


KIND = StepKind(
    name="ingest",
    summary="read files into a table or a view",
    keys=(
        Key(
            "from",
            "text",
            "a file, a folder, a pattern such as `in/*.csv`, or a URL that Spark can read",
            required=True,
        ),
        Key("format", "text", "csv, json or parquet; by default, by the name's ending", choices=FORMATS),
        Key("options", "texts", "options of Spark's reader", default={}),
        Key("schema", "texts", "the files' columns with their Spark SQL types, in order"),
        Key(
            "bad_rows",
            "text",
            "what happens with a row that does not fit its schema: `stop` the run, or `drop` the row and count it",
            default="stop",
            choices=("stop", "drop"),
            is_later=True,
        ),
        Key("select", "query", "a SELECT over `files`, to shape the rows"),
        Key("into", "table", "the table to append to (or merge into, when it has a primary key)"),
        Key("as", "word", "the name of a view for later steps"),
        Key("cache", "flag", "keep the view's rows in memory: worth it when many steps read many rows", default=False),
    ),
    run=run,
    check=check,
    recall=recall,
    writes="into",
    reads_files=True,
)
