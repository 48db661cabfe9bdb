"""Plans as replies: which reader reads which files, and what a worker reads.

Invariant: a file for Spark's reader either lacks a column, or has it with its present type, under the name that the
column had when the file was written. Spark's reader can rename a column, but the jar does not cast.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakebed.objects.port import ObjectStore
from lakebed.spark.catalog.verb import Session
from lakebed.spark.plan.change_rows import ChangeRows, Committed, pack_changes
from lakebed.spark.plan.plan import NativeScan, ReaderPlan, packs_to_arrow, plan_readers
from lakebed.spark.plan.shipping import ship
from lakebed.spark.plan.types import spark_json
from lakebed.table.files.planned_files import columns_of
from lakebed.table.model.model import DataField, Split, TableSchema
from lakebed.table.read.read import ReadPlan


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers that the JVM has."""

    schemes: tuple[str, ...]
    """The schemes of Hadoop's file systems (``file``, ``s3a``, ``gs``) that it has."""
    task_count_min: int
    """Number of tasks that can run at once."""


def answer_with_splits(
    session: Session,
    store: ObjectStore,
    splits: Sequence[Split],
    plan: ReadPlan,
    *,
    readers: Readers,
    width: int | None = None,
    numbers: bool = False,
) -> dict[str, Any]:
    """Answer with splits, each for its reader.

    Args:
        width: number of columns before an additional column with the name of each row's file; None: no such column.
        numbers: add a further column with the number of each row in its file. Then workers read all files.
    """
    readers_plan = _read_by(store, splits, plan, readers)
    return {
        "units": session.store_rows(readers_plan.to_arrow()),
        "scans": [spark_json(_file_fields(native, readers_plan.fields)) for native in readers_plan.natives],
        "reader": _pickle(ship(store), plan, width, numbers) if readers_plan.packs else "",
    }


def answer_with_changes(
    session: Session, store: ObjectStore, units: Sequence[Committed], rows: ChangeRows, *, readers: Readers
) -> dict[str, Any]:
    """Answer with units of changes, which workers read."""
    packs = pack_changes(store, units, task_count_min=readers.task_count_min)
    return {
        "units": session.store_rows(packs_to_arrow(packs)),
        "scans": [],
        "reader": _pickle(ship(store), rows, None, False) if packs else "",
    }


def _pickle(*request: object) -> str:
    return base64.b64encode(pickle.dumps(request)).decode()


def _read_by(store: ObjectStore, splits: Sequence[Split], plan: ReadPlan, readers: Readers) -> ReaderPlan:
    """Choose the readers. lakebed reads the files for which a column's type has changed since they were written."""
    plain_splits, changed_splits = _split_by_types(splits, plan)
    reader_plan = plan_readers(
        store, plain_splits, plan, reaches=readers.schemes.__contains__, task_count_min=readers.task_count_min
    )
    if not changed_splits:
        return reader_plan
    other_readers = plan_readers(store, changed_splits, plan, reaches=None, task_count_min=readers.task_count_min)
    return replace(reader_plan, packs=(*reader_plan.packs, *other_readers.packs))


def _split_by_types(splits: Sequence[Split], plan: ReadPlan) -> tuple[list[Split], list[Split]]:
    """Divide the splits into those whose files have the present types, and the others."""
    changed_ids = {schema_id for schema_id, schema in plan.schemas.items() if _has_other_types(schema, plan)}
    if not changed_ids:
        return list(splits), []
    plain_splits: list[Split] = []
    changed_splits: list[Split] = []
    for split in splits:
        _, files = columns_of([split.files], ("schema_id",))
        is_changed = not changed_ids.isdisjoint(files.column("schema_id").unique().to_pylist())
        (changed_splits if is_changed else plain_splits).append(split)
    return plain_splits, changed_splits


def _has_other_types(schema: TableSchema, plan: ReadPlan) -> bool:
    types = {field.id: field.type for field in schema.fields}
    return any(types.get(field.id, field.type) != field.type for field in plan.decoded)


def _file_fields(native: NativeScan, fields: Sequence[DataField]) -> tuple[DataField, ...]:
    """Return the columns under the files' names. A column that they lack gets a name that no file has, and is null."""
    columns = {column.field.id: column.stored for column in native.columns}
    stored_fields = []
    for field in fields:
        file_field = columns[field.id]
        name = f"__lakebed_absent_{field.id}" if file_field is None else file_field.name
        stored_fields.append(DataField(field.id, name, field.type, nullable=field.nullable or file_field is None))
    return tuple(stored_fields)
