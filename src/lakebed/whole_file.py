"""A local file that a command was told to write: it appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_NAME_CHARACTERS_MAX: Final = 100


@contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name at the end, and an error leaves what was there.

    A symbolic link stays, and what it names is written. What is no regular file, such as ``/dev/stdout`` or a named
    pipe, is written to as it is: a rename would put a file in the place of the device.

    Raises `OSError`: a folder, or it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as sink:
            yield sink
        return
    target = path.resolve()
    unfinished = target.with_name(f".{target.name[:_NAME_CHARACTERS_MAX]}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as sink:
            yield sink
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
