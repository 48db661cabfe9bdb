"""Decoding into types with msgspec. Decoders are made one at a time.

Owns: the decoder of each type. Every other module decodes into a type, or converts to a type, through this module
(`tests/tidy/test_layers.py`).

Invariants: a decoder, with the decoders of all types inside its type, is made under one lock of the process. Nothing is
decoded into a type before its decoder is made. A fork waits until no decoder is being made.

Why: msgspec learns the fields of a struct when it first meets the struct, and up to 0.22 all threads see what it has
learned so far. A thread that decodes the same struct at that time reads types that are not there yet, and the process
ends with a segmentation fault. The lock is a real one even under a simulated runtime, which is right because its holder
calls no code of lakebed.
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
    """Return the decoder from JSON into a type. Thread-safe. Cost: one look-up, after the first call for the type."""
    decoder = _JSON.get(kind)
    if decoder is None:
        with hold_type_lock():
            decoder = _JSON[kind] = msgspec.json.Decoder(kind)
    return decoder


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Return the decoder from MessagePack into a type. Thread-safe. Cost: as `json_decoder`."""
    decoder = _MSGPACK.get(kind)
    if decoder is None:
        with hold_type_lock():
            decoder = _MSGPACK[kind] = msgspec.msgpack.Decoder(kind)
    return decoder


def decode_json(body: Buffer | str, kind: type[T], *, make_other: Callable[[type, Any], Any] | None = None) -> T:
    """Decode JSON into a type.

    Args:
        make_other: makes a value of a type that msgspec does not know, from the type and the value in the JSON.

    Raises:
        msgspec.ValidationError: a value has another type.
        msgspec.DecodeError, UnicodeDecodeError: the body is not JSON.
    """
    decoder = json_decoder(kind)
    return decoder.decode(body) if make_other is None else msgspec.json.decode(body, type=kind, dec_hook=make_other)


def decode_msgpack(body: Buffer, kind: type[T]) -> T:
    """Decode MessagePack into a type. Raises as `decode_json`."""
    return msgpack_decoder(kind).decode(body)


def find_unknown_part(error: Exception) -> tuple[str, str] | None:
    """Return the part that a type does not have, if a decoding failed for this reason: a newer lakebed wrote it. Pure.

    Returns:
        ``field`` and the name of an unknown field, or ``value`` and a value that is not among the known ones.
    """
    match = _UNKNOWN.search(str(error))
    return None if match is None else (match[1] or match[3], match[2] or match[4] or "")


def convert(members: Any, kind: type[T]) -> T:
    """Make a value of a type from dictionaries, lists and plain values. Raises `msgspec.ValidationError`."""
    json_decoder(kind)
    return msgspec.convert(members, kind)


def hold_type_lock() -> AbstractContextManager[Any]:
    """Return the lock to hold while msgspec learns a type."""
    return _LOCK
