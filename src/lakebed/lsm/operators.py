"""Merge operators, which combine operands written by ``merge`` and the value below them into one value.

Owns: `MergeOperator`, the registry by name, and the built-in operators. Invariants: a name denotes one operator in the
whole process, because a database stores only the name. An operator's `combine` can combine any operands that its
`check` accepts. Knows no rows, no files, no sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.errors import AlreadyExists, InvalidRequest

INT64_BYTES: Final = 8
INT64_MASK: Final = (1 << 64) - 1


def accept_any(operand: bytes) -> None:
    """Accept every operand."""


@dataclass(frozen=True, slots=True)
class MergeOperator:
    """How the operands of a key are combined.

    Examples:
        >>> longest = MergeOperator("longest", lambda key, base, operands: max([base or b"", *operands], key=len))
        >>> longest.combine(b"k", b"aa", [b"b", b"ccc"])
        b'ccc'
    """

    name: str
    """Stored with the database."""

    combine: Callable[[bytes, bytes | None, Sequence[bytes]], bytes]
    """(key, base, operands) -> value. The base is the value below, None when there is none; operands stand oldest
    first, at least one. Pure: the same arguments give the same value, in every process that opens the database. Two
    steps are as good as one, since compaction takes them where it can: combining ``a``, and then ``b`` with the result
    as base, is combining ``[*a, *b]``."""

    associative: bool = False
    """Whether the result of ``combine(key, None, operands)``, taken as one operand, stands for all of them whatever
    lies below. Compaction then shortens chains of operands before it reaches their base."""

    check: Callable[[bytes], None] = accept_any
    """Raises `InvalidRequest` for an operand that cannot be combined; called when it is written."""


def int64_from(stored: bytes, role: str) -> int:
    """Decode the number in 8 little-endian bytes. `role` names it in the error."""
    if len(stored) != INT64_BYTES:
        raise InvalidRequest(
            f"The operator add_int64 adds numbers of 8 bytes (little-endian, two's complement), and the {role} has "
            f"{len(stored):,}: write it with int.to_bytes(8, 'little', signed=True).",
            kind="wrong_operand",
        )
    return int.from_bytes(stored, "little")


def add_int64(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """Return the sum, modulo 2**64. It wraps, because a read must not fail for operands that were accepted singly."""
    total = 0 if base is None else int64_from(base, "value below the operands")
    for operand in operands:
        total += int64_from(operand, "operand")
    return (total & INT64_MASK).to_bytes(INT64_BYTES, "little")


def check_int64(operand: bytes) -> None:
    """Raise `InvalidRequest` unless the operand has 8 bytes."""
    int64_from(operand, "operand")


def append(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """Return the concatenation of the base and every operand."""
    return (base or b"") + b"".join(operands)


def largest(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """Return the largest of base and operands, as unsigned bytes."""
    return max(operands) if base is None else max(base, *operands)


def smallest(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """Return the smallest of base and operands, as unsigned bytes."""
    return min(operands) if base is None else min(base, *operands)


def last(key: bytes, base: bytes | None, operands: Sequence[bytes]) -> bytes:
    """Return the newest operand."""
    return operands[-1]


OPERATORS: Final[dict[str, MergeOperator]] = {
    operator.name: operator
    for operator in (
        MergeOperator("add_int64", add_int64, associative=True, check=check_int64),
        MergeOperator("append", append, associative=True),
        MergeOperator("max", largest, associative=True),
        MergeOperator("min", smallest, associative=True),
        MergeOperator("last", last, associative=True),
    )
}
"""The registered operators of this process, by name."""


def register_operator(operator: MergeOperator) -> None:
    """Make an operator known in this process. Registering the same operator again does nothing.

    Raises:
        AlreadyExists: another operator has this name.
        InvalidRequest: the name is empty.
    """
    if not operator.name:
        raise InvalidRequest("A merge operator needs a name: databases store it.", kind="wrong_operator")
    if OPERATORS.setdefault(operator.name, operator) != operator:
        raise AlreadyExists(
            f"Another merge operator is already registered as {operator.name!r}: databases know operators by their "
            "names, so take another name.",
            kind="operator_exists",
            operator=operator.name,
        )


def find_operator(name: str) -> MergeOperator:
    """Return the operator of a name.

    Raises:
        InvalidRequest: no operator has this name. The message names the registered ones.
    """
    operator = OPERATORS.get(name)
    if operator is None:
        raise InvalidRequest(
            f"No merge operator {name!r} is registered in this process, which knows {', '.join(sorted(OPERATORS))}: "
            "call lakebed.kv.register_operator before the database is opened.",
            kind="unknown_operator",
            operator=name,
        )
    return operator
