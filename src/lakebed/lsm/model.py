"""Rows, files, runs and sets of files. Pure data.

Owns: the schema of a row, the limits of keys and values, and what a version knows of a file without opening it. The
structs are part of the manifests of the stores above, so their field names are on disk: DO NOT CHANGE them.

Invariants: rows are sorted by (key ascending, sequence descending), keys compare as unsigned bytes; the files of one
run do not overlap and are sorted by key; in a `FileSet` newer data comes before older.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from lakebed.errors import InvalidRequest

KEY_BYTES_MAX: Final = 65_535
"""Longest key. Every block's first key is in the index of its file, so keys should be short."""

VALUE_BYTES_MAX: Final = 256 << 20
"""Longest value: a block, a batch and an Arrow column hold it whole."""


class Kind(IntEnum):
    """What a row does to its key. On disk: DO NOT CHANGE."""

    PUT = 0
    DELETE = 1
    """A tombstone: its value is empty."""
    MERGE = 2
    """An operand, combined with what is older by the database's merge operator."""


class RowsDecide(Enum):
    """That a key may be there, and a value is not the whole answer: its rows have to be read."""

    ROWS_DECIDE = 0


ROWS_DECIDE: Final = RowsDecide.ROWS_DECIDE


class Row(NamedTuple):
    """One row, where rows are handled one at a time."""

    key: bytes
    sequence: int
    kind: int
    """A `Kind`, as a plain number."""
    value: bytes
    """Empty for a tombstone."""
    expires_at_ms: int | None
    """Unix milliseconds, UTC; None: never."""


ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("sequence", pa.uint64(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("expires_at_ms", pa.int64()),  # Unix ms, UTC; null: never. Readable before, gone from then on
    ]
)
"""Columns of sorted files, logs and windows of rows. No two rows share (key, sequence)."""


class FileMeta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A sorted file, as versions name it: enough to skip it, and to open it with one ranged GET of its tail."""

    id: str
    """A ULID (`lakebed.lsm.file_id`); also its name."""
    size_bytes: int
    tail_offset: int
    """Where blocks end and filter, index, statistics and footer begin, in bytes."""
    row_count: int
    first_key: bytes
    last_key: bytes
    """Inclusive."""
    min_sequence: int
    max_sequence: int
    tombstone_count: int = 0
    merge_count: int = 0
    """Rows of kind `Kind.MERGE`."""
    expiring_count: int = 0
    """Rows with a TTL."""
    through_sequence: int | None = None
    """The ceiling: rows with a larger sequence are in the file, but not in the version that names it. A branch names
    the files of its parent with a ceiling. The other fields describe the whole file: under a ceiling, counts are upper
    bounds and ranges may be too wide. None: no ceiling; then the field is not encoded."""

    @property
    def ceiling(self) -> int | None:
        """The ceiling if it hides rows; None if the version has all rows of the file."""
        through = self.through_sequence
        return None if through is None or through >= self.max_sequence else through

    def through(self, sequence: int) -> FileMeta:
        """The file with a ceiling at `sequence`; the file itself if it has no row above."""
        if self.max_sequence <= sequence or (self.ceiling is not None and self.ceiling <= sequence):
            return self
        return msgspec.structs.replace(self, through_sequence=sequence)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sorted files that do not overlap, in the order of their keys: together one larger sorted file."""

    id: str
    """A ULID, minted when the run was written; of two runs the one that comes first in the set is newer."""
    files: tuple[FileMeta, ...]

    @property
    def size_bytes(self) -> int:
        """Sum over its files."""
        return sum(file.size_bytes for file in self.files)


class FileSet(msgspec.Struct, frozen=True):
    """All files of one version: level-0 files (they overlap), newest first, then runs, newest first."""

    l0: tuple[FileMeta, ...] = ()
    runs: tuple[Run, ...] = ()

    def files(self) -> list[FileMeta]:
        """Every file, newest first."""
        return [*self.l0, *(file for run in self.runs for file in run.files)]

    def through(self, sequence: int) -> FileSet:
        """The set as a branch at `sequence` names it: a ceiling for files with newer rows, none with only newer rows.

        The set must keep the history since `sequence` (`Tree.retain_since_sequence`); otherwise rows that the branch
        needs may be gone.
        """
        l0 = _through(self.l0, sequence)
        runs = ((run.id, _through(run.files, sequence)) for run in self.runs)
        return FileSet(l0, tuple(Run(id, files) for id, files in runs if files))

    @property
    def size_bytes(self) -> int:
        """Sum over all files."""
        return sum(file.size_bytes for file in self.files())


def _through(files: tuple[FileMeta, ...], sequence: int) -> tuple[FileMeta, ...]:
    return tuple(file.through(sequence) for file in files if file.min_sequence <= sequence)


def check_key(key: object, *, bytes_max: int = KEY_BYTES_MAX, advice: str = "put what is long into the value") -> bytes:
    """The key, if it is valid. Raises `InvalidRequest`; for a key of more than `bytes_max` bytes with advice."""
    if not isinstance(key, bytes):
        raise InvalidRequest(
            f"A key is bytes, and {type(key).__name__} was given: convert it to bytes first.", kind="wrong_type"
        )
    if not key:
        raise InvalidRequest("The key is empty: a key has at least one byte.", kind="empty_key")
    if len(key) > bytes_max:
        raise InvalidRequest(
            f"The key has {len(key):,} bytes, and {bytes_max:,} are possible: {advice}.",
            kind="oversized_key",
        )
    return key


def check_value(
    value: object, *, bytes_max: int = VALUE_BYTES_MAX, advice: str = "split it over several keys"
) -> bytes:
    """The value, if it is valid; it may be empty. Raises `InvalidRequest`, as `check_key`."""
    if not isinstance(value, bytes):
        raise InvalidRequest(
            f"A value is bytes, and {type(value).__name__} was given: convert it to bytes first.", kind="wrong_type"
        )
    if len(value) > bytes_max:
        raise InvalidRequest(
            f"The value has {len(value):,} bytes, and {bytes_max:,} are possible: {advice}.",
            kind="oversized_value",
        )
    return value
