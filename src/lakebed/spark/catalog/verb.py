"""The verbs of the catalog: their requests and replies as text, and the session in which they run.

Owns: `Verb`, `Session` and `handle`. Invariants: `handle` never raises. A reply contains no credentials. A verb is a
struct whose fields are the message's body, so an unknown or invalid field is refused before anything runs.
"""

from __future__ import annotations

import base64
import os
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from lakebed.decoding import decode_json, json_decoder
from lakebed.errors import Conflict, InternalError, InvalidRequest, LakebedError, NotFound
from lakebed.lake.lake import Lake, open_lake
from lakebed.runtime import Environment
from lakebed.spark.plan.carried import transfer_schema
from lakebed.table.codec.snapshot_json import decode_snapshot, encode_snapshot
from lakebed.table.model.model import Snapshot, TableSchema
from lakebed.table.model.types import fields_of_arrow, parse_type
from lakebed.table.table import Table

VERBS: Final[dict[str, type[Verb]]] = {}
"""Every declared verb by its name."""

INLINE: Final = "base64:"
"""The prefix of an Arrow stream in a reply. A path never begins with it."""

INLINE_BYTES_MAX: Final = 32 << 10
"""Most Arrow bytes that a reply contains. For more bytes, a file takes no more time than base64."""

TABLE_REPLACED: Final = "table_replaced"
"""The kind of the error if another table has the name now."""
COLUMNS_CHANGED: Final = "columns_changed"
"""The kind of the error if another writer changed the columns meanwhile."""

V = TypeVar("V", bound="Verb")


class Session:
    """The lakes that a process has opened, and its folder for Arrow files. Thread-safe.

    Args:
        folder: folder of the files that replies name; only this user may read it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lakes: dict[str, Lake] = {}
        self._lock = Environment().runtime.lock()

    @classmethod
    def temporary(cls) -> Session:
        """Create a session with a private folder below the machine's temporary folder."""
        return cls(Path(tempfile.mkdtemp(prefix=f"lakebed-bridge-{os.getpid()}-")))

    def lake(self, url: str) -> Lake:
        """Open a lake, or return the open one. Raises as `open_lake`."""
        with self._lock:
            lake = self._lakes.get(url)
        if lake is None:
            lake = open_lake(url)
            with self._lock:
                lake = self._lakes.setdefault(url, lake)
        return lake

    def store_rows(self, rows: pa.Table) -> str:
        """Return rows as an Arrow stream: in base64 after `INLINE`, or for a large stream the path of a new file.

        The reader deletes the file.
        """
        transfer_rows = _carry_schema(rows.schema)
        if rows.schema != transfer_rows:
            rows = rows.cast(transfer_rows, safe=False)
        if rows.nbytes > INLINE_BYTES_MAX:
            path = self.folder / f"{uuid.uuid4().hex}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows)
            return str(path)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, rows.schema) as stream:
            stream.write_table(rows)
        return INLINE + base64.b64encode(buffer.getvalue()).decode()


@lru_cache(maxsize=64)
def _carry_schema(schema: pa.Schema) -> pa.Schema:
    return transfer_schema(fields_of_arrow(schema))


class Verb(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. A subclass declares its fields and `run`, and is registered by `register_verb` under a name."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        """Answer the request. Raises `LakebedError`."""
        raise NotImplementedError


def register_verb(name: str) -> Callable[[type[V]], type[V]]:
    """Register a verb under a name."""

    def register(verb: type[V]) -> type[V]:
        VERBS[name] = verb
        return verb

    return register


class Resolved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The schema of a table with which Spark analysed a statement. It gives the names of columns their meaning.

    Attributes:
        schema_id: the schema's id in the table or the branch.
        time_ms: when that schema was stored, Unix ms. It differs for another table of the same name.
    """

    schema_id: int
    time_ms: int

    @classmethod
    def of(cls, schema: TableSchema) -> Resolved:
        """Return the fields that identify a schema."""
        return cls(schema_id=schema.id, time_ms=schema.time_ms)

    def schema(self, table: Table) -> TableSchema:
        """Return the schema. Raises `Conflict`: another table has the name. Cost: 1 GET, unless it is the newest."""
        try:
            schema = table.context.schemas.load(self.schema_id)
        except LakebedError as missing:
            if self.schema_id <= table.schema.id:
                raise
            raise self._replacement_error(table) from missing
        if schema.time_ms != self.time_ms:
            raise self._replacement_error(table)
        return schema

    def _replacement_error(self, table: Table) -> Conflict:
        return Conflict(
            f"The table {table.name} was dropped and created again after the statement had begun. Nothing was changed: "
            "run the statement again, and make DataFrames of the table again.",
            kind=TABLE_REPLACED,
        )

    def check_columns(self, table: Table, names: Iterable[str] | None = None) -> None:
        """Check that columns are those with which the statement was analysed. Raises `Conflict` otherwise.

        Args:
            names: names of columns; None: all of the schema. Names that the schema lacks are ignored.
        """
        schema, newest = self.schema(table), table.refresh()
        if schema.id == newest.id:
            return
        for name in (field.name for field in schema.fields) if names is None else names:
            old_field, new_field = schema.field_by_name(name), newest.field_by_name(name)
            if old_field is None:
                continue
            if (
                new_field is None
                or new_field.id != old_field.id
                or (new_field.type != old_field.type and parse_type(old_field.type).is_nested)
            ):
                raise Conflict(
                    f"The column {name} of {table.name} was changed, renamed, dropped or added again while the "
                    "statement ran. Nothing was changed: run the statement again.",
                    kind=COLUMNS_CHANGED,
                    column=name,
                )


class TableVerb(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a table or one of its branches.

    Attributes:
        resolved: from the reply of `Load`. A request with it is refused if another table has the name now.
    """

    table: str
    branch: str | None = None
    resolved: Resolved | None = None

    def open_table(self, session: Session, lake_url: str) -> Table:
        """Open the table. Raises as `open_any`, and as `Resolved.schema`. Cost: 1 LIST + 1 GET."""
        table = self.open_any(session, lake_url)
        if self.resolved is not None:
            self.resolved.schema(table)
        return table

    def open_any(self, session: Session, lake_url: str) -> Table:
        """Open the table that has the name now. Raises `NotFound`. Cost: 1 LIST + 1 GET."""
        try:
            return session.lake(lake_url).table(self.table, branch=self.branch)
        except NotFound as missing:
            if missing.facts.get("branch") is None:
                raise
            # Not the error of a missing table, for which Spark has a separate exception.
            raise NotFound(missing.message, kind="branch_not_found", branch=self.branch) from missing

    def check_columns(self, table: Table, names: Iterable[str] | None = None) -> None:
        """Raise as `Resolved.check_columns`."""
        if self.resolved is not None:
            self.resolved.check_columns(table, names)


class _Request(msgspec.Struct, frozen=True):
    id: int
    verb: str
    lake: str
    body: msgspec.Raw


_REQUEST: Final = json_decoder(_Request)
_encode: Callable[[Any], bytes] = msgspec.json.encode


def handle(line: bytes, session: Session) -> bytes:
    """Run one request. Return the line that answers it, without the line's end."""
    try:
        request = _REQUEST.decode(line)
    except msgspec.MsgspecError as error:
        return _encode_error(0, InvalidRequest(f"The request is not readable: {error}.", kind="invalid_message"))
    try:
        verb_type = VERBS.get(request.verb)
        if verb_type is None:
            raise InvalidRequest(
                f"There is no verb {request.verb!r} in this lakebed: use the jar of the same version.",
                kind="unknown_verb",
            )
        try:
            verb = decode_json(request.body, verb_type)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(
                f"The request {request.verb!r} is not readable: {error}.", kind="invalid_message"
            ) from error
        return _encode({"id": request.id, "ok": verb.run(session, request.lake)})
    except LakebedError as error:
        return _encode_error(request.id, error)
    except Exception as error:
        # A defect of this process: the caller gets a sentence, standard error the traceback.
        traceback.print_exc()
        return _encode_error(
            request.id, InternalError(f"{request.verb} failed in lakebed: {type(error).__name__}: {error}")
        )


def _encode_error(request_id: int, error: LakebedError) -> bytes:
    group = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == LakebedError.__module__)
    return _encode({"id": request_id, "error": {"kind": error.kind, "group": group, "message": error.message}})


def snapshot_text(snapshot: Snapshot | None) -> str | None:
    """Encode a snapshot for a reply. Later requests return it, so that all of them see the same version."""
    return None if snapshot is None else encode_snapshot(snapshot).decode()


def snapshot_of(text: str | None) -> Snapshot | None:
    """Decode the text that `snapshot_text` returned."""
    return None if text is None else decode_snapshot(text.encode(), path="request")
