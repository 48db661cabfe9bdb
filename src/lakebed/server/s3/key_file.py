"""The S3 key of a server: a file with 32 random bytes, hexadecimal, from which the secrets of access keys are made.

Owns: its form, DO NOT CHANGE, and its creation. Invariant: only the owner of the file may read it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.ids import new_uuid
from lakebed.runtime import Environment

_KEY_BYTES: Final = 32
_FORM: Final = re.compile(rb"[0-9a-f]{64}\n?")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def load_or_make_key(path: str | os.PathLike[str], *, environment: Environment) -> bytes:
    """The key in a file, which is made when it is missing.

    Raises:
        InvalidRequest: kind ``invalid_s3_key``: the file cannot be read or made, others may read it, or it holds
            something else.
    """
    file = Path(path)
    try:
        _make(
            file,
            environment.rng.getrandbits(8 * _KEY_BYTES).to_bytes(_KEY_BYTES, "big"),
            mark=new_uuid(environment.rng),
        )
        mode, raw = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise _invalid(file, f"it cannot be read or made ({error})") from error
    if os.name == "posix" and mode & _OTHERS:
        raise _invalid(file, f"others may read it: chmod 600 {file}")
    if _FORM.fullmatch(raw) is None:
        raise _invalid(file, f"it does not hold {2 * _KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(raw.decode("ascii"))


def _make(file: Path, key: bytes, *, mark: str) -> None:
    """Make the file, whole or not at all, unless it is there.

    Args:
        mark: of the name under which it is written first. Numbers of processes would not do: in a container every
            server has the same one, and what a crash left would stop all later ones.
    """
    if file.exists():
        return
    new = file.with_name(f"{file.name}.{mark}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as opened:
            opened.write(key.hex() + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(new, file)  # not over one that another process made at this moment
        except FileExistsError:
            return
    finally:
        os.unlink(new)


def _invalid(file: Path, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The S3 key {file} cannot be used: {what}. Name another file; one that is missing is made.",
        kind="invalid_s3_key",
    )
