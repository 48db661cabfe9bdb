"""Procedures: the implementation of ``CALL lake.sys.NAME(...)``, with the names and arguments of Paimon's procedures.

Owns: `PROCEDURES`, with one declaration for each: parameters, columns of the result, and the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lakebed.duration import parse_duration_ms
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.lake.imports import import_table
from lakebed.lake.lake import Lake
from lakebed.lake.names import nearest_names
from lakebed.reclaim.model import CollectionReport
from lakebed.spark.catalog.arguments import Arguments, Parameter, arguments_of
from lakebed.spark.catalog.verb import Session, Verb, register_verb
from lakebed.table.collect import orphans
from lakebed.table.exports.model import ExportOptions
from lakebed.table.exports.run import export_table
from lakebed.table.imports.model import ImportOptions
from lakebed.table.imports.sources import SourceOptions
from lakebed.table.model.model import Snapshot, Tag
from lakebed.table.table import Table

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure on one table."""

    doc: str
    parameters: tuple[Parameter, ...]
    columns: pa.Schema
    run: Callable[[Table, Arguments], Rows] | None
    on_lake: Callable[[Lake, Arguments], Rows] | None = None
    """Called instead of `run` by a procedure that may create its table."""


def _require(name: str) -> Parameter:
    return Parameter(name, "string", is_optional=False)


_TABLE: Final = _require("table")
_TAG: Final = _require("tag")
_BRANCH: Final = _require("branch")
_SNAPSHOT: Final = Parameter("snapshot", "bigint")
_RETAINED: Final = Parameter("time_retained", "string")
_OLDER_THAN: Final = Parameter("older_than", "timestamp")
_TIMESTAMP: Final = Parameter("timestamp", "timestamp", is_optional=False)
_FORMAT: Final = _require("format")
_VERSION: Final = Parameter("version", "string")
_CATALOG: Final = Parameter("catalog", "string")
_DRY_RUN: Final = Parameter("dry_run", "boolean")
_IF_NOT_EXISTS: Final = Parameter("if_not_exists", "boolean")
_OR_REPLACE: Final = Parameter("or_replace", "boolean")
_IF_EXISTS: Final = Parameter("if_exists", "boolean")


def _columns(text: str) -> pa.Schema:
    """Parse the columns of a result: names with their types, followed by ``?`` if they may be null."""
    kinds = {"bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}
    pairs = [column.split() for column in text.split(",")]
    return pa.schema([pa.field(name, kinds[kind.rstrip("?")], nullable=kind.endswith("?")) for name, kind in pairs])


_TAGS: Final = _columns("tag_name string, snapshot_id bigint")
_SNAPSHOTS: Final = _columns("snapshot_id bigint, record_count bigint?")
_BRANCHES: Final = _columns("branch_name string")
_RECLAIMED: Final = _columns("hidden_count bigint, deleted_file_count bigint, deleted_bytes bigint, dry_run boolean")
_COMPACTED: Final = _columns(
    "snapshot_id bigint?, files_before bigint, files_after bigint, bytes_before bigint, bytes_after bigint"
)
_IMPORTED: Final = _columns(
    "snapshot_id bigint?, record_count bigint?, files_taken bigint, files_rewritten bigint, notes string"
)
_EXPORTED: Final = _columns("snapshot_id bigint?, record_count bigint, target_version string?")


def _tag_rows(*tags: Tag) -> Rows:
    return [{"tag_name": tag.name, "snapshot_id": tag.snapshot.id} for tag in tags]


def _snapshot_rows(snapshot: Snapshot) -> Rows:
    return [{"snapshot_id": snapshot.id, "record_count": snapshot.total_record_count}]


def _reclaim_rows(report: CollectionReport) -> Rows:
    return [
        {
            "hidden_count": report.hidden_count,
            "deleted_file_count": report.deleted_count,
            "deleted_bytes": report.deleted_bytes,
            "dry_run": report.dry_run,
        }
    ]


def _retention_ms(arguments: Arguments) -> int | None:
    text = arguments["time_retained"]
    return None if text is None else parse_duration_ms(text)


def _create_tag(table: Table, arguments: Arguments) -> Rows:
    name, snapshot_id, retained = arguments["tag"], arguments["snapshot"], _retention_ms(arguments)
    if_not_exists = bool(arguments["if_not_exists"])
    try:
        tag = table.create_tag(name, snapshot_id=snapshot_id, lifetime_ms=retained, if_not_exists=if_not_exists)
    except AlreadyExists:
        if not arguments["or_replace"]:
            raise
        tag = table.replace_tag(name, snapshot_id=snapshot_id, lifetime_ms=retained)
    return _tag_rows(tag)


def _create_tag_from_timestamp(table: Table, arguments: Arguments) -> Rows:
    retained = _retention_ms(arguments)
    return _tag_rows(table.create_tag(arguments["tag"], timestamp_ms=arguments["timestamp"], lifetime_ms=retained))


def _replace_tag(table: Table, arguments: Arguments) -> Rows:
    retained = _retention_ms(arguments)
    return _tag_rows(table.replace_tag(arguments["tag"], snapshot_id=arguments["snapshot"], lifetime_ms=retained))


def _delete_tag(table: Table, arguments: Arguments) -> Rows:
    names = [name.strip() for name in arguments["tag"].split(",")]
    rules = {"if_exists": bool(arguments["if_exists"]), "dry_run": bool(arguments["dry_run"])}
    return _reclaim_rows(table.delete_tag(*names, **rules))


def _expire_snapshots(table: Table, arguments: Arguments) -> Rows:
    report = table.expire(
        retain_max=arguments["retain_max"],
        retain_min=arguments["retain_min"],
        older_than_ms=arguments["older_than"],
        max_deletes=arguments["max_deletes"],
        dry_run=bool(arguments["dry_run"]),
    )
    return _reclaim_rows(report)


def _expire_tags(table: Table, arguments: Arguments) -> Rows:
    return _reclaim_rows(table.expire_tags(older_than_ms=arguments["older_than"], dry_run=bool(arguments["dry_run"])))


def _remove_orphan_files(table: Table, arguments: Arguments) -> Rows:
    older_than_ms, dry_run = arguments["older_than"], bool(arguments["dry_run"])
    return _reclaim_rows(orphans.remove_orphan_files(table.context, older_than_ms=older_than_ms, dry_run=dry_run))


def _compact(table: Table, arguments: Arguments) -> Rows:
    report = table.compact(full=bool(arguments["full"]), dry_run=bool(arguments["dry_run"]))
    return [
        {
            "snapshot_id": None if report.snapshot is None else report.snapshot.id,
            "files_before": report.files_before,
            "files_after": report.files_after,
            "bytes_before": report.bytes_before,
            "bytes_after": report.bytes_after,
        }
    ]


def _create_branch(table: Table, arguments: Arguments) -> Rows:
    table.create_branch(arguments["branch"], tag=arguments["tag"], snapshot_id=arguments["snapshot"])
    return [{"branch_name": arguments["branch"]}]


def _delete_branch(table: Table, arguments: Arguments) -> Rows:
    table.delete_branch(arguments["branch"])
    return [{"branch_name": arguments["branch"]}]


def _rename_branch(table: Table, arguments: Arguments) -> Rows:
    table.rename_branch(arguments["from_branch"], arguments["to_branch"])
    return [{"branch_name": arguments["to_branch"]}]


def _import_table(lake: Lake, arguments: Arguments) -> Rows:
    options = ImportOptions(
        in_place=bool(arguments["in_place"]),
        rewrite=bool(arguments["rewrite"]),
        append=bool(arguments["append"]),
        dry_run=bool(arguments["dry_run"]),
    )
    report = import_table(
        lake,
        arguments["table"],
        arguments["source"],
        format=arguments["format"],
        options=options,
        source_options=SourceOptions(version=arguments["version"], catalog=arguments["catalog"]),
    )
    return [
        {
            "snapshot_id": None if report.snapshot is None else report.snapshot.id,
            "record_count": report.row_count,
            "files_taken": report.taken_count,
            "files_rewritten": report.rewritten_count,
            "notes": " ".join((*report.reasons, *report.notes)),
        }
    ]


def _export_table(table: Table, arguments: Arguments) -> Rows:
    options = ExportOptions(
        version=arguments["version"], overwrite=bool(arguments["overwrite"]), catalog=arguments["catalog"]
    )
    report = export_table(table, arguments["target"], format=arguments["format"], options=options)
    return [
        {"snapshot_id": report.snapshot_id, "record_count": report.row_count, "target_version": report.target_version}
    ]


PROCEDURES: Final[dict[str, Procedure]] = {
    "create_tag": Procedure(
        "Create a tag of the newest snapshot, or of one by id.",
        (_TABLE, _TAG, _SNAPSHOT, _RETAINED, _IF_NOT_EXISTS, _OR_REPLACE),
        _TAGS,
        _create_tag,
    ),
    "create_tag_from_timestamp": Procedure(
        "Create a tag of the newest snapshot committed at or before a time.",
        (_TABLE, _TAG, _TIMESTAMP, _RETAINED),
        _TAGS,
        _create_tag_from_timestamp,
    ),
    "replace_tag": Procedure(
        "Point a tag at the newest snapshot, or at one by id.",
        (_TABLE, _TAG, _SNAPSHOT, _RETAINED),
        _TAGS,
        _replace_tag,
    ),
    "rename_tag": Procedure(
        "Rename a tag.",
        (_TABLE, _TAG, _require("target_tag")),
        _TAGS,
        lambda table, given: _tag_rows(table.rename_tag(given["tag"], given["target_tag"])),
    ),
    "delete_tag": Procedure(
        "Delete one tag, or several separated by commas, and the files that only they needed.",
        (_TABLE, _TAG, _DRY_RUN, _IF_EXISTS),
        _RECLAIMED,
        _delete_tag,
    ),
    "expire_tags": Procedure(
        "Delete tags past their lifetime, and those created before a time.",
        (_TABLE, _OLDER_THAN, _DRY_RUN),
        _RECLAIMED,
        _expire_tags,
    ),
    "trigger_tag_automatic_creation": Procedure(
        "Create the automatic tags that are due.",
        (_TABLE,),
        _TAGS,
        lambda table, given: _tag_rows(*table.trigger_automatic_tags()),
    ),
    "rollback": Procedure(
        "Make an older version the newest; delete later snapshots and tags.",
        (_TABLE, _require("version")),
        _SNAPSHOTS,
        lambda table, given: _snapshot_rows(table.rollback_to(given["version"])),
    ),
    "rollback_to_timestamp": Procedure(
        "Make the version of a time the newest; delete later snapshots and tags.",
        (_TABLE, _TIMESTAMP),
        _SNAPSHOTS,
        lambda table, given: _snapshot_rows(table.rollback_to(timestamp_ms=given["timestamp"])),
    ),
    "rollback_to_as_latest": Procedure(
        "Make an older version the newest; keep all history.",
        (_TABLE, _require("version")),
        _SNAPSHOTS,
        lambda table, given: _snapshot_rows(table.rollback_to_as_latest(given["version"])),
    ),
    "expire_snapshots": Procedure(
        "Expire the oldest snapshots, and delete every file that nothing needs then.",
        (
            _TABLE,
            Parameter("retain_max", "int"),
            Parameter("retain_min", "int"),
            _OLDER_THAN,
            Parameter("max_deletes", "int"),
            _DRY_RUN,
        ),
        _RECLAIMED,
        _expire_snapshots,
    ),
    "remove_orphan_files": Procedure(
        "Delete files that nothing references, last written before a time (default: a day ago).",
        (_TABLE, _OLDER_THAN, _DRY_RUN),
        _RECLAIMED,
        _remove_orphan_files,
    ),
    "compact": Procedure(
        "Rewrite small and overlapping files as fewer, larger ones.",
        (_TABLE, Parameter("full", "boolean"), _DRY_RUN),
        _COMPACTED,
        _compact,
    ),
    "create_branch": Procedure(
        "Create a branch of the newest snapshot, of a tag, or of a snapshot by id.",
        (_TABLE, _BRANCH, Parameter("tag", "string"), _SNAPSHOT),
        _BRANCHES,
        _create_branch,
    ),
    "delete_branch": Procedure("Delete a branch.", (_TABLE, _BRANCH), _BRANCHES, _delete_branch),
    "rename_branch": Procedure(
        "Rename a branch.",
        (_TABLE, _require("from_branch"), _require("to_branch")),
        _BRANCHES,
        _rename_branch,
    ),
    "fast_forward": Procedure(
        "Make a branch's newest version main's, in one commit.",
        (_TABLE, _BRANCH),
        _SNAPSHOTS,
        lambda table, given: _snapshot_rows(table.fast_forward(given["branch"])),
    ),
    "import_table": Procedure(
        "Import a folder of Parquet files, a Delta table or an Iceberg table into a new or empty table.",
        (
            _TABLE,
            _require("source"),
            _FORMAT,
            _VERSION,
            _CATALOG,
            Parameter("in_place", "boolean"),
            Parameter("rewrite", "boolean"),
            Parameter("append", "boolean"),
            _DRY_RUN,
        ),
        _IMPORTED,
        None,
        on_lake=_import_table,
    ),
    "export_table": Procedure(
        "Write a version of a table as Parquet files, as a Delta table or as an Iceberg table.",
        (_TABLE, _require("target"), _FORMAT, _VERSION, _CATALOG, Parameter("overwrite", "boolean")),
        _EXPORTED,
        _export_table,
    ),
}


@register_verb("list_procedures")
class ListProcedures(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the procedures."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        return {"names": sorted(PROCEDURES)}


@register_verb("describe_procedure")
class DescribeProcedure(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe a procedure."""

    procedure: str

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        procedure = procedure_of(self.procedure)
        parameters = [
            {"name": parameter.name, "type": parameter.type, "optional": parameter.is_optional}
            for parameter in procedure.parameters
        ]
        return {"doc": procedure.doc, "parameters": parameters}


@register_verb("call")
class Call(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a procedure.

    Attributes:
        branch: the branch of the table that the arguments name.
    """

    procedure: str
    arguments: dict[str, Any]
    branch: str | None = None

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        procedure = procedure_of(self.procedure)
        arguments = arguments_of(self.procedure, procedure.parameters, self.arguments)
        lake = session.lake(lake_url)
        if procedure.run is not None:
            rows = procedure.run(lake.table(str(arguments["table"]), branch=self.branch), arguments)
        else:
            assert procedure.on_lake is not None
            if self.branch is not None:
                raise InvalidRequest(
                    f"{self.procedure} works on the main branch, and the table {arguments['table']} is named with the "
                    f"branch {self.branch}: name it without.",
                    kind="unsupported_branch",
                )
            rows = procedure.on_lake(lake, arguments)
        return {"rows": session.store_rows(pa.Table.from_pylist(rows, schema=procedure.columns))}


def procedure_of(name: str) -> Procedure:
    """Return a procedure. Raises `NotFound` with similar names."""
    procedure = PROCEDURES.get(name)
    if procedure is None:
        similar = nearest_names(name, PROCEDURES) or sorted(PROCEDURES)
        raise NotFound(
            f"There is no procedure {name!r}: did you mean {', '.join(similar)}? SHOW PROCEDURES lists all.",
            kind="procedure_not_found",
            procedure=name,
        )
    return procedure
