"""Input files of an ingest step: find local files, detect their format, unpack archives.

Owns: paths with ``*``, and ``.zip`` (Spark reads ``.gz`` itself). Invariants: a local pattern without a match is an
error, never an empty read; a URL (``s3a://...``) is passed to Spark unchanged. An archive is unpacked on the driver's
disk, so a cluster needs it unpacked beforehand.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakebed.pipeline.nodes import SourceLocation

FORMATS = ("csv", "json", "parquet")

_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class FileReading:
    """How Spark reads the input files of a step."""

    file_format: str
    """One of `FORMATS`."""
    options: Mapping[str, str]
    """Options of Spark's reader."""
    schema: Mapping[str, str] | None
    """Columns with Spark SQL types, in the files' order; None: the files know them (Parquet), or they are inferred."""
    location: SourceLocation
    """Location of the step, for errors."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The schema of files that have one given."""
        assert self.schema is not None, "only CSV and JSON files are read with a schema"
        return self.schema


def find_files(pattern: str, *, location: SourceLocation) -> list[str]:
    """Return the files that a path, a pattern or a URL names, sorted.

    Raises `InvalidRequest`: no local file matches; names the step's line.
    """
    if "://" in pattern:
        return [pattern]
    if not glob.has_magic(pattern) and not Path(pattern).exists():
        pattern = os.path.normpath(pattern)  # "lake/../in.csv" is there before the lake is
    paths = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    if not paths or not Path(paths[0]).exists():
        raise location.error(f"there is no file '{pattern}' (looked in {Path.cwd()}).")
    return [str(Path(path).absolute()) for path in paths]


def format_of(pattern: str) -> str | None:
    """Return csv, json or parquet by the name's ending, without ``.gz`` or ``.zip``; None: the ending is unknown."""
    suffixes = [suffix.lower() for suffix in Path(pattern).suffixes]
    while suffixes and suffixes[-1] in (".gz", ".zip", ".bz2", ".zst"):
        suffixes.pop()
    return _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None


def unpack(paths: Sequence[str], scratch: Path, *, location: SourceLocation) -> dict[str, str]:
    """Return the paths to read, each ``.zip`` unpacked (once a run), with the names that messages show."""
    result: dict[str, str] = {}
    for path in paths:
        if path.lower().endswith(".zip") and "://" not in path:
            result |= _members(path, scratch, location)
        else:
            result[path] = path
    return result


def _members(path: str, scratch: Path, location: SourceLocation) -> dict[str, str]:
    folder = hashlib.sha256(path.encode()).hexdigest()[:12]
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir() and not _is_clutter(info.filename)]
            if not members:
                raise location.error(f"the archive '{path}' holds no file: name another one.")
            targets: dict[str, str] = {}
            for number, info in enumerate(members):
                # Numbered folders: members of the same name cannot collide, and names with ".." cannot escape.
                target = scratch / f"{folder}-{number}" / Path(info.filename).name
                if not target.exists() or target.stat().st_size != info.file_size:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as member, target.open("wb") as target_file:
                        shutil.copyfileobj(member, target_file, 1 << 20)
                targets[str(target)] = f"{path}: {info.filename}"
            return targets
    except zipfile.BadZipFile as error:
        raise location.error(f"the archive '{path}' is damaged: {error}.") from error


def _is_clutter(name: str) -> bool:
    return name.startswith("__MACOSX/") or Path(name).name.startswith(".")
