"""The process that reads and writes rows for a JVM's tasks: requests on standard input, answers on standard output.

The JVM starts it as ``python -m lakebed.spark.worker``. The process serves one task after the other, and ends when its
input closes.

A request is one byte, then frames. A frame is a length (4 bytes, big-endian) and a pickle.

- ``R`` reads. The first frame has the store, the plan, the number of columns before the columns with the place of each
  row (None: the rows have no place), and whether the place has a position. The second frame has the pack of splits. The
  answer is an Arrow stream and another 0 byte.
- ``W`` writes. The frame has the store, the `WriteTask`, and whether the rows are changes. An Arrow stream follows. The
  answer is a frame.

Each answer begins with one byte: 0 for success; or 1, then a length and a text, the message with which the task fails.

Invariants: credentials arrive only on standard input. Mistakes in rows are part of the answer, not failures.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO, Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import LakebedError
from lakebed.runtime import Environment
from lakebed.spark.catalog.writes import OPERATION
from lakebed.spark.plan.carried import transfer_rows, transfer_schema
from lakebed.spark.plan.change_rows import ChangeRows
from lakebed.spark.plan.found_rows import FILE_COLUMN, POSITION_COLUMN, FoundRows, found_rows
from lakebed.spark.plan.plan import Pack
from lakebed.spark.plan.shipping import open_in_task
from lakebed.spark.tasks.tasks import LASTING
from lakebed.spark.tasks.write_tasks import WriteTask
from lakebed.table.engines.sequence import delete_columns
from lakebed.table.model.model import BucketChange
from lakebed.table.read.read import POSITION, ReadPlan, read_with_positions
from lakebed.table.write.write import TableWriter

READ: Final = b"R"
WRITE: Final = b"W"
Plan = ReadPlan | ChangeRows
_DONE: Final = b"\x00"
_FAILED: Final = b"\x01"


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the source ends."""
    while verb := source.read(1):
        request = pickle.loads(_frame(source))
        if verb == READ:
            pack: Pack = pickle.loads(_frame(source))
            shipped_store, plan, width, numbers = request
            _read(shipped_store, plan, pack, sink, width=width, numbers=numbers)
        else:
            shipped_store, task, has_operations = request
            _write(shipped_store, task, has_operations, source, sink)
        sink.flush()


def _read(shipped_store: bytes, plan: Plan, pack: Pack, sink: BinaryIO, *, width: int | None, numbers: bool) -> None:
    rows_schema = transfer_schema(plan.fields)
    rows = _rows(shipped_store, plan, pack, rows_schema)
    carried_schema = rows_schema
    if width is not None:
        carried_schema = pa.schema([*list(rows_schema)[:width], FILE_COLUMN, *([POSITION_COLUMN] if numbers else [])])
        assert isinstance(plan, ReadPlan), "changes are in no file"
        prepare = _rows_with_positions if numbers else _rows_with_names
        rows = prepare(shipped_store, plan, carried_schema, pack, rows_schema)
    try:
        first = next(rows, None)
    except (LakebedError, OSError) as error:
        _fail(sink, error)
        return
    sink.write(_DONE)
    # A later error ends the process, and with it the stream, which fails the task.
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), carried_schema) as stream:
        if first is not None:
            stream.write_batch(first)
        for batch in rows:
            stream.write_batch(batch)
    sink.write(_DONE)  # a stream that was cut off looks like one that ended


def _rows(shipped_store: bytes, plan: Plan, pack: Any, carried_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (
        plan.read(shipped_store, pack)
        if isinstance(plan, ChangeRows)
        else pack.read(shipped_store, plan, carried_schema)
    )


def _rows_with_names(
    shipped_store: bytes, plan: ReadPlan, answer_schema: pa.Schema, pack: Pack, carried_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the first columns of rows that need no merge, and the name of each row's file."""
    for split in pack.splits:
        for file in split.files:
            alone = replace(pack, splits=(replace(split, files=(file,)),))
            for rows in _rows(shipped_store, plan, alone, carried_schema):
                names = pa.repeat(pa.scalar(file.file_name), rows.num_rows)
                columns = rows.columns[: len(answer_schema) - 1]
                yield pa.RecordBatch.from_arrays([*columns, names], schema=answer_schema)


def _rows_with_positions(
    shipped_store: bytes, plan: ReadPlan, answer_schema: pa.Schema, pack: Pack, carried_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the same as `_rows_with_names`, and the number of each row in its file."""
    store = open_in_task(shipped_store, pack.entries)
    for split in pack.splits:
        for file, table in read_with_positions(store, split, plan=plan):
            for batch in table.to_batches():
                rows = transfer_rows(batch.select(list(plan.columns)), carried_schema)
                names = pa.repeat(pa.scalar(file.file_name), rows.num_rows)
                columns = [*rows.columns[: len(answer_schema) - 2], names, batch.column(POSITION)]
                yield pa.RecordBatch.from_arrays(columns, schema=answer_schema)


def _write(shipped_store: bytes, task: WriteTask, has_operations: bool, source: BinaryIO, sink: BinaryIO) -> None:
    result: list[BucketChange | FoundRows] | LakebedError
    places: list[pa.Table] = []
    failure: Exception | None = None
    batches = pa.ipc.open_stream(pa.PythonFile(source, "r"))
    try:
        writer = task.writer(open_in_task(shipped_store), Environment())
        for batch in batches:
            if has_operations and not task.schema.primary_keys:
                _replace(writer, pa.Table.from_batches([batch]), places)
            elif has_operations:
                _change(writer, task, pa.Table.from_batches([batch]))
            else:
                task.add(writer, batch)
        result = [*found_rows(places), *writer.finish()]
    except LASTING as error:
        result = error
    except (LakebedError, OSError) as error:
        failure = error
    for _ in batches:
        pass  # read the rest of the stream of a task that has failed
    if failure is not None:
        _fail(sink, failure)
        return
    sink.write(_DONE)
    body = pickle.dumps(result)
    sink.write(struct.pack(">I", len(body)) + body)


def _change(writer: TableWriter, task: WriteTask, rows: pa.Table) -> None:
    """Write rows and delete keys. Spark sends each key only once."""
    is_deleted = rows[OPERATION]
    rows = rows.drop_columns([OPERATION])
    keys = rows.filter(is_deleted).select(list(delete_columns(task.schema)))
    if keys.num_rows:
        writer.delete(keys)
    written_rows = rows.filter(pc.invert(is_deleted))
    if written_rows.num_rows:
        writer.write(written_rows)


def _replace(writer: TableWriter, rows: pa.Table, places: list[pa.Table]) -> None:
    """Write rows of a table without a primary key. Append the places of the rows that they replace to `places`."""
    is_deleted = rows[OPERATION]
    place = [FILE_COLUMN.name, POSITION_COLUMN.name]
    deleted_rows = rows.filter(is_deleted).select(place)
    if deleted_rows.num_rows:
        places.append(deleted_rows)
    written_rows = rows.filter(pc.invert(is_deleted)).drop_columns([OPERATION, *place])
    if written_rows.num_rows:
        writer.write(written_rows)


def _fail(sink: BinaryIO, error: Exception) -> None:
    body = str(error).encode()
    sink.write(_FAILED + struct.pack(">I", len(body)) + body)


def _frame(source: BinaryIO) -> bytes:
    (length,) = struct.unpack(">I", source.read(4))
    return source.read(length)


def main() -> None:
    """Serve the process that started this one."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that Python code prints must not become part of an answer
    sys.stdin.close()
    serve(source, sink)


if __name__ == "__main__":
    main()
