"""The paths of a database, and how they are parsed. Pure.

Owns: the folder and file names (on disk: DO NOT CHANGE). Paths are relative to the database's root.

Invariants: numbers are padded to 20 digits, so that the order of names is the order of numbers. Each ``parse_``
function returns None for a path of another kind, so the files of a database in a folder below, or of another program,
are never taken for files of this database.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from lakebed.lsm.file_id import is_file_id

MANIFEST_FOLDER: Final = "manifest"
WAL_FOLDER: Final = "wal"
SST_FOLDER: Final = "sst"
BOUNDARY_FOLDER: Final = "boundary"
"""Markers of manifest ids that are never used again."""
LEASE_PATH: Final = "lease.json"

_DIGITS: Final = 20
_SST_SUFFIX: Final = ".sst"
_NUMBER: Final = re.compile(rf"([0-9]{{{_DIGITS}}})", re.ASCII)
_MANIFEST: Final = re.compile(rf"([0-9]{{{_DIGITS}}})\.manifest", re.ASCII)
_WAL: Final = re.compile(rf"([0-9]{{{_DIGITS}}})\.wal", re.ASCII)


def manifest_name(manifest_id: int) -> str:
    """Return the file name of a manifest."""
    return f"{manifest_id:0{_DIGITS}d}.manifest"


def manifest_path(manifest_id: int) -> str:
    """Return the path of a manifest."""
    return f"{MANIFEST_FOLDER}/{manifest_name(manifest_id)}"


def wal_name(wal_id: int) -> str:
    """Return the file name of a log object."""
    return f"{wal_id:0{_DIGITS}d}.wal"


def wal_path(wal_id: int) -> str:
    """Return the path of a log object."""
    return f"{WAL_FOLDER}/{wal_name(wal_id)}"


def sst_path(file_id: str) -> str:
    """Return the path of a sorted file that this database owns."""
    return f"{SST_FOLDER}/{file_id}{_SST_SUFFIX}"


def parse_manifest_name(name: str) -> int | None:
    """Parse the id in a manifest's file name."""
    return _number(_MANIFEST, name)


def parse_wal_name(name: str) -> int | None:
    """Parse the id in a log object's file name."""
    return _number(_WAL, name)


def parse_manifest(path: str) -> int | None:
    """Parse the id in a manifest's path."""
    return _inside(MANIFEST_FOLDER, path, parse_manifest_name)


def parse_wal(path: str) -> int | None:
    """Parse the id in a log object's path."""
    return _inside(WAL_FOLDER, path, parse_wal_name)


def parse_boundary(path: str) -> int | None:
    """Parse the position of a boundary marker in its chain from the marker's path."""
    return _inside(BOUNDARY_FOLDER, path, lambda name: _number(_NUMBER, name))


def parse_sst(path: str) -> str | None:
    """Parse the file id in a sorted file's path."""
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(_SST_SUFFIX)
    return stem if folder == SST_FOLDER and stem != name and is_file_id(stem) else None


def is_own(path: str) -> bool:
    """Whether a path is of one of the kinds above, which databases write."""
    return path == LEASE_PATH or any(
        parse(path) is not None for parse in (parse_manifest, parse_wal, parse_sst, parse_boundary)
    )


def _inside(folder: str, path: str, parse: Callable[[str], int | None]) -> int | None:
    prefix = folder + "/"
    return parse(path[len(prefix) :]) if path.startswith(prefix) else None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.fullmatch(text)
    return None if match is None else int(match[1])
