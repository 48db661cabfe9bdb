"""Merge operators: what each makes of operands, and how they are found."""

from __future__ import annotations

import itertools

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.lsm.operators import OPERATORS, MergeOperator, find_operator, register_operator


def int64(number: int) -> bytes:
    """8 bytes, as add_int64 reads them."""
    return number.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(
    ("name", "base", "operands", "expected"),
    [
        ("add_int64", None, [int64(2), int64(-5)], int64(-3)),
        ("add_int64", int64(10), [int64(-1)], int64(9)),
        ("add_int64", int64(2**63 - 1), [int64(1)], int64(-(2**63))),
        ("append", None, [b"a", b"b"], b"ab"),
        ("append", b"x", [b"a", b""], b"xa"),
        ("max", b"b", [b"a", b"b\0"], b"b\0"),
        ("max", None, [b"", b""], b""),
        ("min", b"b", [b"c", b"a\xff"], b"a\xff"),
        ("min", None, [b"b", b"a"], b"a"),
        ("last", b"b", [b"c", b"a"], b"a"),
    ],
)
def test_built_in_operators(name: str, base: bytes | None, operands: list[bytes], expected: bytes) -> None:
    """Each built-in operator says what its name says; the sum wraps."""
    assert find_operator(name).combine(b"key", base, operands) == expected


@pytest.mark.parametrize("name", ["add_int64", "append", "max", "min", "last"])
def test_built_in_operators_can_be_taken_in_steps(name: str) -> None:
    """Two steps are as good as one, and a combined operand replaces its operands: compaction relies on both."""
    operator = find_operator(name)
    assert operator.associative
    values = [int64(number) for number in (-7, 3, 2**62, 40)]
    for base, cut in itertools.product([None, int64(5)], range(1, 4)):
        whole = operator.combine(b"k", base, values)
        assert operator.combine(b"k", operator.combine(b"k", base, values[:cut]), values[cut:]) == whole
        assert operator.combine(b"k", base, [operator.combine(b"k", None, values[:cut]), *values[cut:]]) == whole
        assert operator.combine(b"k", base, [*values[:cut], operator.combine(b"k", None, values[cut:])]) == whole


def test_add_int64_refuses_other_lengths() -> None:
    """A wrong operand is refused when it is written, a wrong base when it is read, in one sentence each."""
    operator = find_operator("add_int64")
    operator.check(int64(1))
    with pytest.raises(InvalidRequest, match=r"adds numbers of 8 bytes .* and the operand has 3") as refused:
        operator.check(b"abc")
    assert refused.value.kind == "wrong_operand"
    with pytest.raises(InvalidRequest, match="the value below the operands has 0"):
        operator.combine(b"k", b"", [int64(1)])
    find_operator("append").check(b"anything")


def test_unknown_operator_names_the_known() -> None:
    """The error says what is registered and what to call."""
    with pytest.raises(InvalidRequest, match=r"'sum'.*add_int64, append.*register_operator") as refused:
        find_operator("sum")
    assert refused.value.kind == "unknown_operator"


def test_registering() -> None:
    """One name is one operator; registering it again does nothing, another under its name is refused."""
    operator = MergeOperator("test-longest", lambda key, base, operands: max([base or b"", *operands], key=len))
    try:
        register_operator(operator)
        register_operator(operator)
        assert find_operator("test-longest") is operator
        with pytest.raises(AlreadyExists, match="'test-longest'"):
            register_operator(MergeOperator("test-longest", lambda key, base, operands: b""))
        assert find_operator("test-longest") is operator
    finally:
        OPERATORS.pop("test-longest", None)
    with pytest.raises(InvalidRequest, match="needs a name"):
        register_operator(MergeOperator("", lambda key, base, operands: b""))
