"""Opening a source by the name of its format.

Owns: `FORMATS`. The modules of Delta and Iceberg are loaded when a source of theirs is opened: their libraries are
optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.table.imports.model import Source, SourceVersion
from lakebed.table.imports.parquet_folder import open_parquet

FORMATS: Final = ("parquet", "delta", "iceberg")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How a source is opened."""

    version: int | str | None = None
    """A version of a Delta table, or the snapshot id or reference name of an Iceberg table; None: the newest."""
    catalog: str | None = None
    """Iceberg: the name of a configured catalog; the source is a table's identifier there."""
    storage_options: Mapping[str, str] | None = None
    """Settings of the object store, in lakebed's spelling. The libraries of the formats use them."""


def versions_of(
    format: str, url: str, *, like: ObjectStore, options: SourceOptions | None = None
) -> list[SourceVersion]:
    """The versions that a source still has, oldest first; the last one is the newest.

    Arguments and errors as `open_source`. The files of versions that a Delta log names may have been deleted.
    """
    options = options or SourceOptions()
    _check_format(format, options)
    if format == "parquet":
        raise InvalidRequest("A folder of Parquet files has no versions: import it as it is.", kind="invalid_source")
    if options.catalog is None:
        url = str(parse_url(url))
    if format == "delta":
        from lakebed.table.imports.delta import delta_versions

        return delta_versions(url, storage_options=options.storage_options)
    from lakebed.table.imports.iceberg import iceberg_versions

    return iceberg_versions(url, catalog=options.catalog, storage_options=options.storage_options, like=like)


def open_source(format: str, url: str, *, like: ObjectStore, options: SourceOptions | None = None) -> Source:
    """Open a source: list the files of one version.

    Args:
        format: one of `FORMATS`.
        url: a folder, or as `SourceOptions.catalog` says.
        like: a store; the source's files are reached with its settings.

    Raises `InvalidRequest`: an unknown format, a version where the format has none, a library that is not installed,
    or a feature of the format that cannot be imported; `NotFound`: no such table or version.
    """
    options = options or SourceOptions()
    _check_format(format, options)
    if format == "parquet":
        if options.version is not None:
            raise InvalidRequest("A folder of Parquet files has no versions: leave it out.", kind="invalid_source")
        return open_parquet(url, like=like)
    if options.catalog is None:
        url = str(parse_url(url))
    if format == "delta":
        from lakebed.table.imports.delta import open_delta

        return open_delta(url, version=options.version, storage_options=options.storage_options)
    from lakebed.table.imports.iceberg import open_iceberg

    return open_iceberg(
        url, version=options.version, catalog=options.catalog, storage_options=options.storage_options, like=like
    )


def _check_format(format: str, options: SourceOptions) -> None:
    if format not in FORMATS:
        raise InvalidRequest(
            f"The format {format!r} cannot be imported: use {', '.join(FORMATS)}.", kind="unknown_format"
        )
    if options.catalog is not None and format != "iceberg":
        raise InvalidRequest("A catalog is for the format iceberg only: leave it out.", kind="invalid_source")
