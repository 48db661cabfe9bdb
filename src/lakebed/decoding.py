"""Decoding into types: the decoders of msgspec, of which one is made at a time.

Owns: the decoder of each type. Every other module decodes into a type, or converts to one, through this one
(`tests/tidy/test_layers.py`).

Invariants: a decoder is made under one lock of the process, with those of all types inside its type, and nothing is
decoded into a type before. A fork waits until none is being made.

Why: msgspec learns the fields of a struct when it meets it for the first time, and up to 0.22 shows what it has learned
so far to all threads. A thread that decodes the same struct meanwhile reads types that are not there yet, and the
process ends with a segmentation fault. A real lock is right under a simulated runtime too: its holder calls nothing of
lakebed's.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import msgspec
from typing_extensions import Buffer

T = TypeVar("T")

_LOCK: Final = threading.RLock()
_UNKNOWN: Final = re.compile(
    r"contains unknown (field) `([^`]*)`|^Invalid enum (value) '(.*?)'(?: - at `.*`)?$", re.DOTALL
)
_JSON: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_MSGPACK: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}

os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of JSON into a type. Thread-safe. Cost: after the first call for a type one look-up."""
    decoder = _JSON.get(kind)
    if decoder is None:
        with hold_type_lock():
            decoder = _JSON[kind] = msgspec.json.Decoder(kind)
    return decoder


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """The decoder of MessagePack into a type. Thread-safe. Cost: after the first call for a type one look-up."""
    decoder = _MSGPACK.get(kind)
    if decoder is None:
        with hold_type_lock():
            decoder = _MSGPACK[kind] = msgspec.msgpack.Decoder(kind)
    return decoder


def decode_json(body: Buffer | str, kind: type[T], *, make_other: Callable[[type, Any], Any] | None = None) -> T:
    """Decode JSON into a type.

    Args:
        make_other: makes the values of types that msgspec does not know, from the type and what stands in JSON.

    Raises: msgspec.ValidationError: a value has another type. msgspec.DecodeError, UnicodeDecodeError: it is no JSON.
    """
    decoder = json_decoder(kind)
    return decoder.decode(body) if make_other is None else msgspec.json.decode(body, type=kind, dec_hook=make_other)


def decode_msgpack(body: Buffer, kind: type[T]) -> T:
    """Decode MessagePack into a type. Raises as `decode_json`."""
    return msgpack_decoder(kind).decode(body)


def find_unknown_part(error: Exception) -> tuple[str, str] | None:
    """What a type does not have, if that is why something was not decoded: a newer lakebed wrote it. Pure.

    Returns ``field`` and its name, or ``value`` and one that is none of those which are known.
    """
    unknown = _UNKNOWN.search(str(error))
    return None if unknown is None else (unknown[1] or unknown[3], unknown[2] or unknown[4] or "")


def convert(members: Any, kind: type[T]) -> T:
    """Make a value of a type from dictionaries, lists and plain values. Raises `msgspec.ValidationError`."""
    json_decoder(kind)
    return msgspec.convert(members, kind)


def hold_type_lock() -> AbstractContextManager[Any]:
    """Hold this while msgspec learns a type."""
    return _LOCK
