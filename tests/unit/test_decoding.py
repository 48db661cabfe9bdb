"""Types are learned by one thread at a time: what another thread decodes meanwhile does not end the process."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec
import pytest

from lakebed.decoding import convert, decode_json, decode_msgpack, hold_type_lock, json_decoder, msgpack_decoder

STEPS = 50
STEP_S = 0.01
"""In so many steps of the clock a thread gets as far as it can: on a machine that stands still for a while they stand
still too, where one long step would end before another thread had begun."""

is_learning = threading.Event()
is_other_here = threading.Event()
is_other_learning = threading.Event()
were_together: list[bool] = []


def learn() -> type[int]:
    """The type of a field, evaluated while msgspec learns the struct that it is in."""
    is_learning.set()
    assert is_other_here.wait(60)
    were_together.append(any(is_other_learning.wait(STEP_S) for _ in range(STEPS)))
    return int


def learn_other() -> type[int]:
    """The same, of a struct of another thread."""
    is_other_learning.set()
    return int


def make_kind(field_type: str) -> Any:
    """A struct that msgspec does not know, whose only field takes time to be learned."""
    return msgspec.defstruct("Kind", [("number", field_type)], module=__name__)


def test_a_thread_waits_while_another_learns_a_type() -> None:
    """Up to 0.22 msgspec ends the process when a thread meets a type that another one is learning."""
    numbers = []

    def decode(kind: Any) -> None:
        numbers.append(decode_json(b'{"number": 7}', kind).number)

    def come_and_decode() -> None:
        is_other_here.set()
        decode(make_kind("learn_other()"))

    first = threading.Thread(target=decode, args=(make_kind("learn()"),))
    first.start()
    assert is_learning.wait(60)
    second = threading.Thread(target=come_and_decode)
    second.start()
    for thread in (first, second):
        thread.join(60)
    assert numbers == [7, 7]
    assert were_together == [False]


def test_a_fork_waits_until_a_type_is_learned() -> None:
    """A child process begins without a type that is half known, and can learn others."""
    holds, forked = threading.Event(), threading.Event()
    was_forked = []

    def hold() -> None:
        with hold_type_lock():
            holds.set()
            was_forked.append(any(forked.wait(STEP_S) for _ in range(STEPS)))

    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if decode_json(b"[1]", tuple[int, ...]) == (1,) else 2
        finally:
            os._exit(status)
    forked.set()
    holder.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert was_forked == [False]


class Row(msgspec.Struct):
    """A value."""

    key: str
    count: int = 0


def test_values_of_a_type() -> None:
    """JSON, MessagePack and dictionaries give the same value, by one decoder; others are refused."""
    row = Row("a", 3)
    assert decode_json(b'{"key": "a", "count": 3}', Row) == row
    assert decode_json('{"key": "a", "count": 3}', Row) == row
    assert decode_msgpack(msgspec.msgpack.encode(row), Row) == row
    assert convert({"key": "a", "count": 3}, Row) == row
    assert json_decoder(Row) is json_decoder(Row)
    assert msgpack_decoder(Row) is msgpack_decoder(Row)
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'{"key": 1}', Row)
    with pytest.raises(msgspec.ValidationError):
        convert({}, Row)


def test_values_that_msgspec_does_not_know() -> None:
    """They are made by a function of the caller's."""
    assert decode_json(b"[1, 2]", complex, make_other=lambda kind, parts: kind(*parts)) == 1 + 2j
