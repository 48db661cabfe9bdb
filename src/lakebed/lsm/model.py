"""Rows, files, runs and sets of files. Pure data.

Owns: the schema of a row, the limits of keys and values, and the facts about a file that a version records, so that
they are known without opening the file. The structs are part of the manifests of the stores above, so their field names
are on disk: DO NOT CHANGE them.

Invariants: rows are sorted by (key ascending, sequence descending), and keys compare as unsigned bytes. The files of
one run do not overlap and are sorted by key. In a `FileSet` newer data comes before older data.
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
"""Longest value. A block, a batch and an Arrow column contain it as a whole."""


class Kind(IntEnum):
    """The effect of a row on its key. On disk: DO NOT CHANGE."""

    PUT = 0
    DELETE = 1
    """A tombstone. Its value is empty."""
    MERGE = 2
    """An operand, which the database's merge operator combines with older rows."""


class RowsDecide(Enum):
    """The answer that a key may be there, but that its rows have to be read to know its value."""

    ROWS_DECIDE = 0


ROWS_DECIDE: Final = RowsDecide.ROWS_DECIDE


class Row(NamedTuple):
    """One row, for code that handles rows one at a time."""

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
        pa.field("expires_at_ms", pa.int64()),  # Unix ms, UTC, exclusive: from then on the row is gone; null: never
    ]
)
"""Columns of sorted files, logs and windows of rows. No two rows share (key, sequence)."""


class FileMeta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The entry of a sorted file in a version: enough to skip the file, or to open it by one ranged GET of its tail."""

    id: str
    """A ULID (`lakebed.lsm.file_id`), which is also the file's name."""
    size_bytes: int
    tail_offset: int
    """Offset in bytes at which blocks end and filter, index, statistics and footer begin."""
    row_count: int
    first_key: bytes
    last_key: bytes
    """The largest key, inclusive."""
    min_sequence: int
    max_sequence: int
    tombstone_count: int = 0
    merge_count: int = 0
    """Number of rows of kind `Kind.MERGE`."""
    expiring_count: int = 0
    """Number of rows with a TTL."""
    through_sequence: int | None = None
    """The ceiling: rows with a larger sequence are in the file, but not in the version that names it.

    A branch names the files of its parent with a ceiling. The other fields describe the whole file, so with a ceiling
    counts are upper bounds and ranges may be too wide. None: no ceiling; then the field is not encoded.
    """

    @property
    def ceiling(self) -> int | None:
        """The ceiling if it hides rows; None if the version has all rows of the file."""
        last_sequence = self.through_sequence
        return None if last_sequence is None or last_sequence >= self.max_sequence else last_sequence

    def through(self, sequence: int) -> FileMeta:
        """Return the file with a ceiling at `sequence`; the file itself if it has no row above the ceiling."""
        if self.max_sequence <= sequence or (self.ceiling is not None and self.ceiling <= sequence):
            return self
        return msgspec.structs.replace(self, through_sequence=sequence)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sorted files that do not overlap, in the order of their keys: together one larger sorted file."""

    id: str
    """A ULID, minted when the run was written. Of two runs, the one that comes first in the set is newer."""
    files: tuple[FileMeta, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of its files."""
        return sum(file.size_bytes for file in self.files)


class FileSet(msgspec.Struct, frozen=True):
    """All files of one version: files of level 0 (they overlap), newest first, then runs, newest first."""

    l0: tuple[FileMeta, ...] = ()
    runs: tuple[Run, ...] = ()

    def files(self) -> list[FileMeta]:
        """Return every file, newest first."""
        return [*self.l0, *(file for run in self.runs for file in run.files)]

    def through(self, sequence: int) -> FileSet:
        """Return the set for a branch at `sequence`.

        Files with newer rows get a ceiling. Files with only newer rows are left out. The set must keep the history
        since `sequence` (`Tree.retain_since_sequence`), otherwise rows that the branch needs may be gone.
        """
        l0 = _through(self.l0, sequence)
        runs = ((run.id, _through(run.files, sequence)) for run in self.runs)
        return FileSet(l0, tuple(Run(id, files) for id, files in runs if files))

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all files."""
        return sum(file.size_bytes for file in self.files())


def _through(files: tuple[FileMeta, ...], sequence: int) -> tuple[FileMeta, ...]:
    return tuple(file.through(sequence) for file in files if file.min_sequence <= sequence)


def check_key(key: object, *, bytes_max: int = KEY_BYTES_MAX, advice: str = "put what is long into the value") -> bytes:
    """Return the key if it is valid. Raises `InvalidRequest`; if the key is longer than `bytes_max` with `advice`."""
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
    """Return the value if it is valid. It may be empty. Raises `InvalidRequest`, as `check_key`."""
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
