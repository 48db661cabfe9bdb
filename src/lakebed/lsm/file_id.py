"""Names of sorted files: ULIDs, whose text sorts by time. Each is minted greater than the existing ones.

Owns: the 26 characters (Crockford's base 32: 48 bits of Unix milliseconds, then 80 random bits) and the order in which
a process mints ids. Invariants: an id is greater than the one after which it was minted, whatever the clock does. The
order of texts is the order of numbers.
"""

from __future__ import annotations

import re
from typing import Final

from lakebed.errors import InternalError, InvalidRequest
from lakebed.runtime import Environment

FILE_ID_CHARACTERS: Final = 26
"""Length of an id. On disk: DO NOT CHANGE."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # on disk: DO NOT CHANGE
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_PAIR_SHIFTS: Final = range(5 * (FILE_ID_CHARACTERS - 2), -1, -10)
_VALUE_OF: Final = {letter: value for value, letter in enumerate(_ALPHABET)}
_PATTERN: Final = re.compile(f"[0-7][{_ALPHABET}]{{{FILE_ID_CHARACTERS - 1}}}", re.ASCII)

_RANDOM_BITS: Final = 80  # on disk: DO NOT CHANGE
_TIME_MS_MAX: Final = (1 << 48) - 1
_STEP_BITS: Final = 64
"""If the clock is not beyond the previous id, the new id is greater by a random number of this many bits. So two
processes that mint after the same id do not mint the same one."""


def mint_file_id(after: str | None = None, *, environment: Environment) -> str:
    """Mint an id of the present time, or just greater than `after` if the clock is not beyond it.

    Args:
        after: an id that the new one must exceed; None: no such id.

    Raises:
        InvalidRequest: `after` is not a valid id.
        InternalError: `after` is the last id there is.
    """
    now_ms = min(max(environment.clock.now_ms(), 0), _TIME_MS_MAX)
    number = now_ms << _RANDOM_BITS | environment.rng.getrandbits(_RANDOM_BITS)
    if after is not None:
        floor = _parse(after)
        if number <= floor:
            number = floor + 1 + environment.rng.getrandbits(_STEP_BITS)
            if number >> (_RANDOM_BITS + 48):
                raise InternalError(f"no file id is left after {after}", kind="file_ids_exhausted")
    return _text(number)


def file_id_at(time_ms: int) -> str:
    """Return the smallest id of a time. Files with smaller ids were minted before.

    Args:
        time_ms: Unix milliseconds, UTC; times before 1970 count as 1970.
    """
    return _text(min(max(time_ms, 0), _TIME_MS_MAX) << _RANDOM_BITS)


def file_id_time_ms(file_id: str) -> int:
    """Return when an id was minted: Unix milliseconds, UTC, by the minter's clock. Raises `InvalidRequest`."""
    return _parse(file_id) >> _RANDOM_BITS


def is_file_id(text: str) -> bool:
    """Whether a text is an id. A name in a folder may be something else."""
    return _PATTERN.fullmatch(text) is not None


def _parse(file_id: str) -> int:
    if not is_file_id(file_id):
        raise InvalidRequest(
            f"{file_id!r} is not a valid file id: one has {FILE_ID_CHARACTERS} characters, digits and capital letters "
            "without I, L, O and U, and the first is at most 7.",
            kind="invalid_file_id",
        )
    number = 0
    for letter in file_id:
        number = number << 5 | _VALUE_OF[letter]
    return number


def _text(number: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in _PAIR_SHIFTS])
