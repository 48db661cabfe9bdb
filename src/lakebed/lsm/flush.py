"""A memtable becomes a file of level 0.

Invariants: one memtable, one file, however large; the file keeps what `compact_rows` keeps when something older may lie
below, so tombstones stay, and so does what has expired: whether it has, this process's clock alone does not decide.
"""

from __future__ import annotations

from lakebed.lsm.file_writer import FileWriter
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.merge import merge_windows
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.resolve import compact_rows


def encode_memtable(
    memtable: Memtable,
    *,
    files: FileStore,
    file_id: str,
    operator: MergeOperator | None,
    retain_since_sequence: int | None,
) -> FileWriter | None:
    """Form a memtable's file; nothing is in the store before `FileWriter.finish`. None when there are no rows to keep.

    Args:
        memtable: no longer written to.
        files: where the file will be.
        operator: combines operands; None leaves them as they are.
        retain_since_sequence: as `lakebed.lsm.resolve.compact_rows`; None keeps the newest version of each key only.

    Cost: no request; some 0.3 us a row.
    """
    pieces = memtable.sorted(sequence=memtable.last_sequence)
    writer = files.writer(file_id)
    for window in merge_windows([[piece] for piece in pieces]):
        rows = compact_rows(
            window, now_ms=None, bottom=False, retain_since_sequence=retain_since_sequence, operator=operator
        )
        if rows.num_rows:
            writer.write(rows)
    return writer if writer.row_count else None
