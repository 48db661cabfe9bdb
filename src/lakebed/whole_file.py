"""A local file that a command writes. The file appears whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_MARK_BYTES: Final = 8


def name_unfinished(target: Path) -> Path:
    """Return a temporary path in the folder of a file, under which the file is written first; a new one at each call.

    The temporary name contains no part of the file's name, which may already have the maximum length, and may share its
    beginning with other files in the folder.
    """
    return target.with_name(f".{secrets.token_hex(_MARK_BYTES)}.unfinished")


@contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name at the end. After an error, the earlier file at the path remains.

    A symbolic link stays, and its target is written. An existing path that is not a regular file, such as
    ``/dev/stdout`` or a named pipe, is written to directly: a rename would replace the device by a file.

    Raises `OSError`: the path is a folder, or cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as sink:
            yield sink
        return
    target = path.resolve()
    unfinished = name_unfinished(target)
    try:
        with unfinished.open("wb") as sink:
            yield sink
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
