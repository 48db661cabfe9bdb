"""What an import reads and reports: sources, their files, options and the report. Data, no I/O.

Invariants: a `SourceFile` can be pickled, with its reader, so that tasks of Spark can rewrite it. A source is one
version: its files are listed when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lakebed.objects.port import ObjectStore
from lakebed.table.model.model import DataField, Snapshot
from lakebed.texts import format_count, format_size


class RowReader(Protocol):
    """Reads the rows of one file as the source's format defines them. Picklable."""

    def read(self, store: ObjectStore) -> Iterator[pa.Table]:
        """The rows in parts, with the source's columns.

        Args:
            store: any store; files elsewhere are opened with its settings.
        """


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One data file of a source."""

    url: str
    """URL of the object, taken literally: ``file:///folder/name``, ``s3://bucket/folder/name``."""
    size_bytes: int
    reader: RowReader
    partition: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Values of the source's partition columns; a null scalar for null."""
    must_rewrite: str | None = None
    """Why its bytes cannot become a data file, as the rest of the sentence "The file ..."; None: they can."""
    field_ids: Mapping[tuple[str, ...], int | None] | None = None
    """The ids that the columns must have in the file, by path; None: columns are found by name."""
    must_have: frozenset[str] = frozenset()
    """Columns that the file must have, else it is rewritten: their values may be stored elsewhere."""
    deletes: bytes | tuple[str, ...] | None = None
    """Which of its rows are deleted, if that may differ in another version; None: no rows."""
    file_count: int = 1
    """Number of the source's files that are read together."""
    reads_every_instant: bool = False
    """Whether its reader returns INT96 timestamps unchanged; else they are checked (`int96`)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One version of a table of another format."""

    format: str
    url: str
    version: str | None
    """The version of a Delta table, or the snapshot id of an Iceberg table; None: the format has none."""
    fields: tuple[DataField, ...]
    """The columns of a table that is created for it."""
    partition_keys: tuple[str, ...]
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...] = ()
    """Messages about what is not imported."""
    history: str | None = None
    """The message about earlier versions, which an import of one version leaves out."""
    is_strict: bool = False
    """Refuse a file that does not fit the table unless rewriting is requested.

    For formats without a schema of their own, where such a file is a mistake.
    """


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """A version that a source has kept."""

    version: str | None
    """The number of a Delta version, or the snapshot id of an Iceberg table.

    None: the source as it is now, whose columns were changed after its newest version.
    """
    own_tag: str | None
    """The tag that its import gets; None: no tag, because the source has no name for it either."""
    tags: tuple[str, ...] = ()
    """The source's own tags of this version."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are taken over."""

    in_place: bool = False
    """Register the files where they are. lakebed never deletes them; the table is damaged if their owner does."""
    rewrite: bool = False
    """Read and write the rows of files whose bytes do not fit, also where the format's rules do not require it."""
    append: bool = False
    """Add to a table that already has rows."""
    dry_run: bool = False
    """Only report what would be done."""


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """The progress of an import, in bytes of its source."""

    done_count: int
    total_count: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or would do."""

    table: str
    format: str
    source: str
    version: str | None
    row_count: int | None
    """Rows imported; None in a dry run with files that must be read to count them."""
    size_bytes: int
    """Size of the source's files."""
    taken_count: int
    """Files whose bytes became data files: copied, or registered in place."""
    rewritten_count: int
    """Files whose rows were read and written."""
    reasons: Mapping[str, int]
    """The reasons why files were rewritten, with the number of files."""
    in_place: bool
    dry_run: bool
    notes: tuple[str, ...] = ()
    snapshot: Snapshot | None = None

    @property
    def sentence(self) -> str:
        """The report in one sentence."""
        verb = "would import" if self.dry_run else "imported"
        rows = "" if self.row_count is None else f"{format_count(self.row_count, 'row')} in "
        how = "registered in place" if self.in_place else "copied unchanged"
        version = "" if self.version is None else f", version {self.version}"
        parts = [f"{self.taken_count:,} {how}"] if self.taken_count else []
        parts += [f"{self.rewritten_count:,} rewritten"] if self.rewritten_count else []
        files = format_count(self.taken_count + self.rewritten_count, "file")
        shares = f" ({', '.join(parts)})" if parts else ""
        return (
            f"{self.table}: {verb} {rows}{files}{shares}, {format_size(self.size_bytes)}, from the {self.format} "
            f"source {self.source}{version}."
        )
