"""A folder of Parquet files as a source, with partitions by folders such as ``year=2026/month=1``.

Invariants:
- Every file that is not hidden (a name that begins with ``_`` or ``.``) must be Parquet, and all must have the columns
  of the first. A folder has no schema of its own, so a difference is a mistake until the caller says otherwise.
- All files have the same partition columns. Their types are the narrowest that prints every value as it is spelled:
  INT, BIGINT, DATE, else STRING.
- A folder that belongs to a table of another format is refused: its files include deleted rows.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import open_elsewhere, place_of
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.table.files.adopt import read_footer
from lakebed.table.files.data_file import open_data_file
from lakebed.table.imports.model import Source, SourceFile
from lakebed.table.model.types import arrow_type, fields_of_arrow

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES: Final = (".parquet", ".parq", ".pq")
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BATCH_ROWS: Final = 65_536
_OTHER_TABLES: Final = {
    "_delta_log": "a Delta table: import it with the format delta",
    "metadata": "an Iceberg table: import it with the format iceberg",
    "snapshot": "a table of the Paimon format: put it into a lake's folder, <database>.db/<table>",
}
"""Folders that belong to tables of other formats, and what to do instead."""


@dataclass(frozen=True, slots=True)
class PlainReader:
    """Reads the columns of a Parquet file by name."""

    url: str
    size_bytes: int
    constants: tuple[tuple[str, pa.Scalar], ...] = ()
    """Partition columns, added where the file lacks them."""

    def read(self, store: ObjectStore) -> Iterator[pa.Table]:
        """The columns of the file, and its partition columns."""
        place, path = place_of(store, self.url)
        data_file = open_data_file(place, path, size_bytes=self.size_bytes)
        for batch in data_file.batches(columns=data_file.column_names, row_groups=None, batch_rows=_BATCH_ROWS):
            yield with_constants(pa.Table.from_batches([batch]), self.constants)


def with_constants(rows: pa.Table, constants: Sequence[tuple[str, pa.Scalar]]) -> pa.Table:
    """Rows with constant columns added where they are missing."""
    names = set(rows.column_names)
    for name, value in constants:
        if name not in names:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def open_parquet(url: str, *, like: ObjectStore) -> Source:
    """List a folder of Parquet files. Arguments and errors as `open_source`. Cost: the listing, and one footer."""
    store = open_elsewhere(like, url)
    metas = _data_files(store)
    if not metas:
        raise NotFound(f"There is no Parquet file in {store.root_url}.", kind="source_not_found", url=store.root_url)
    texts = _partition_texts(store, [meta.path for meta in metas])
    types = _types(texts)
    first = metas[0]
    columns = read_footer(store, first.path, size_bytes=first.size_bytes).schema.to_arrow_schema()
    arrow_fields = [field.with_nullable(True) for field in columns]
    arrow_fields += [pa.field(name, arrow_type(kind)) for name, kind in types.items() if name not in columns.names]
    fields = fields_of_arrow(pa.schema(arrow_fields))
    # A partition column that is also in the files has its type there.
    types = {name: next(field.type for field in fields if field.name == name) for name in types}
    return Source(
        format="parquet",
        url=store.root_url,
        version=None,
        fields=fields,
        partition_keys=tuple(types),
        files=tuple(
            _file(f"{store.root_url}/{meta.path}", meta.size_bytes, dict(zip(types, row, strict=True)), types)
            for meta, row in zip(metas, texts[1], strict=True)
        ),
        is_strict=True,
    )


def _file(url: str, size_bytes: int, texts: dict[str, str | None], types: dict[str, str]) -> SourceFile:
    values = {name: _scalar(text, types[name]) for name, text in texts.items()}
    return SourceFile(url, size_bytes, PlainReader(url, size_bytes, tuple(values.items())), values)


def _data_files(store: ObjectStore) -> list[ObjectMeta]:
    """The files that are not hidden, by path."""
    top = store.list_with_delimiter("")
    for folder, description in _OTHER_TABLES.items():
        if folder in top.folders and (folder != "snapshot" or "schema" in top.folders):
            raise InvalidRequest(
                f"{store.root_url} has a folder {folder}, so it is {description}.",
                kind="other_format",
                url=store.root_url,
            )
    metas = []
    for meta in store.list(""):
        if any(part.startswith(("_", ".")) for part in meta.path.split("/")):
            continue
        if not meta.path.endswith(_SUFFIXES):
            raise InvalidRequest(
                f"{store.root_url} has a file {meta.path}, which is not Parquet by its name: move it elsewhere.",
                kind="not_parquet",
                path=meta.path,
            )
        metas.append(meta)
    return metas


def _partition_texts(store: ObjectStore, paths: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str | None, ...]]]:
    """The names of the partition columns, and the texts of their values in each path; None for null."""
    names: tuple[str, ...] | None = None
    rows = []
    for path in paths:
        pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
        here = tuple(unquote(name) for name, _, _ in pairs)
        if names is not None and here != names:
            raise InvalidRequest(
                f"{store.root_url}: the file {path} is in the partition columns ({', '.join(here)}), and {paths[0]} in "
                f"({', '.join(names)}): name a folder whose files have the same.",
                kind="mixed_partitions",
                path=path,
            )
        names = here
        rows.append(tuple(None if text == HIVE_NULL else unquote(text) for _, _, text in pairs))
    return names or (), rows


def _types(texts: tuple[tuple[str, ...], list[tuple[str | None, ...]]]) -> dict[str, str]:
    names, rows = texts
    return {name: _type({row[i] for row in rows} - {None}) for i, name in enumerate(names)}


def _type(values: set[str | None]) -> str:
    """The narrowest type that prints these values as they are spelled."""
    present_values = [value for value in values if value is not None]
    if present_values and all(_WHOLE.fullmatch(value) for value in present_values):
        largest = max(abs(int(value)) for value in present_values)
        return "INT" if largest < 2**31 else "BIGINT" if largest < 2**63 else "STRING"
    if present_values and all(_is_day(value) for value in present_values):
        return "DATE"
    return "STRING"


def _is_day(text: str) -> bool:
    if not _DAY.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _scalar(text: str | None, kind: str) -> pa.Scalar:
    target = arrow_type(kind)
    try:
        return pa.scalar(None, target) if text is None else pa.scalar(text, pa.string()).cast(target)
    except pa.ArrowException as wrong:
        raise InvalidRequest(
            f"A folder has the partition value {text!r}, and the column of that name in the files is {kind}: rename "
            "the folder.",
            kind="invalid_partition",
        ) from wrong
