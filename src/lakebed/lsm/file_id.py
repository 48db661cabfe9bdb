"""Names of sorted files: ULIDs, whose text sorts as their time does, minted greater than whatever was there before.

Owns: the 26 letters (Crockford's base 32: 48 bits of Unix milliseconds, then 80 random bits) and the order in which a
process mints them. Invariants: an id is greater than the one it was minted after, whatever the clock does; the order
of texts is the order of numbers.
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
"""An id that cannot come from the clock steps on by a random number of this many bits, so that two processes which mint
after the same id do not mint the same one."""


def mint_file_id(after: str | None = None, *, environment: Environment) -> str:
    """A new id of the present time, or of just after `after` when the clock is not beyond it.

    Args:
        after: an id that the new one must exceed; None: any will do.

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
    """The smallest id of a time: files whose ids are below it were minted before.

    Args:
        time_ms: Unix milliseconds, UTC; what is before 1970 counts as 1970.
    """
    return _text(min(max(time_ms, 0), _TIME_MS_MAX) << _RANDOM_BITS)


def file_id_time_ms(file_id: str) -> int:
    """When an id was minted: Unix milliseconds, UTC, by the minter's clock. Raises `InvalidRequest`."""
    return _parse(file_id) >> _RANDOM_BITS


def is_file_id(text: str) -> bool:
    """Whether a text is an id, as a name in a folder may be something else."""
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
