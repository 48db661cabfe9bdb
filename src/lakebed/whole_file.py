"""A local file that a command was told to write: it appears whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_MARK_BYTES: Final = 8


def name_unfinished(target: Path) -> Path:
    """The name, next to a file, under which it is written before it gets its own; another one at each call.

    It has nothing of the file's name, which may be as long as a name can be, and may begin as that of a neighbour does.
    """
    return target.with_name(f".{secrets.token_hex(_MARK_BYTES)}.unfinished")


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
    unfinished = name_unfinished(target)
    try:
        with unfinished.open("wb") as sink:
            yield sink
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
