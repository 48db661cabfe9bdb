"""Conditional writes: a batch that is written if some keys have expected values.

Owns: `write_if`, which `Database.set_if` and `Database.write_if` share. Invariant: under the lock, just before the rows
enter the memtable, every expected key has its expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from lakebed.errors import Conflict, LakebedError
from lakebed.kv.batch import WriteBatch
from lakebed.kv.read_core import raise_explained
from lakebed.kv.writer import WriterCore
from lakebed.lsm.view import Ends, View


def append_batch(
    writer: WriterCore, batch: WriteBatch, *, await_durable: bool, check: Callable[[], None] | None = None
) -> None:
    """Write a checked batch; `check` as for `WriterCore.append_rows`."""
    kinds, expires = batch.columns(writer.now_ms())
    writer.append_rows(batch.keys, batch.values, kinds, expires, check=check, await_durable=await_durable)


def write_if(
    writer: WriterCore, batch: WriteBatch, expected: Mapping[bytes, bytes | None], *, await_durable: bool
) -> None:
    """Write a batch if every expected key has its value. The arguments are already checked. As `Database.write_if`."""
    writer.check_not_fenced()
    if batch.keys:
        try:  # nearly always the caller has just read the expected keys
            check = partial(_check_in_memory, writer, expected)
            append_batch(writer, batch, check=check, await_durable=await_durable)
            return
        except _Overtaken:
            pass
    tree = writer.tree
    while True:
        with writer.lock:
            view = tree.view_locked()
            since = tree.last_sequence
            tree.hold_history(since)
            unsure = {key: value for key, value in expected.items() if not tree.surely_is(key, value)}
        ends = Ends(writer.now_ms())
        try:
            _check_values(writer, view.noting(ends), unsure, await_durable=await_durable)
            if not batch.keys:
                if await_durable:
                    writer.confirm_view(view, *expected)
                return
            check = partial(_check_unchanged, writer, expected, since, ends)
            append_batch(writer, batch, check=check, await_durable=await_durable)
            return
        except _Overtaken:
            continue
        finally:
            with writer.lock:
                tree.release_history(since)


def _check_in_memory(writer: WriterCore, expected: Mapping[bytes, bytes | None]) -> None:
    """Raise `_Overtaken` unless memory alone shows that every key has its expected value. Under the lock."""
    surely_is = writer.tree.surely_is
    for key, value in expected.items():
        if not surely_is(key, value):
            raise _Overtaken


def _check_values(
    writer: WriterCore, view: View, expected: Mapping[bytes, bytes | None], *, await_durable: bool
) -> None:
    """Raise `Conflict` for a key that has another value than expected."""
    for key, value in expected.items():
        try:
            row = view.get_row(key)
        except LakebedError as error:
            raise_explained(writer, error)
        if (None if row is None else row.value) != value:
            if await_durable:
                writer.confirm_view(view, key)
            raise Conflict(
                f"The key {key!r} has another value than the one expected: read it and decide again.",
                kind="unexpected_value",
                key=key,
            )


def _check_unchanged(writer: WriterCore, expected: Iterable[bytes], since: int, ends: Ends) -> None:
    """Raise `_Overtaken` if a key was written since a sequence, or one of the values has expired. Under the lock.

    A value below operands may expire too, although the combined value of its key has no end. Also raise if the rows
    written since are not in memory any more: then everything has to be read again.
    """
    if ends.first_ms is not None and writer.now_ms() >= ends.first_ms:
        raise _Overtaken
    try:
        if any(writer.tree.written_since(key, since) for key in expected):
            raise _Overtaken
    except Conflict as error:
        raise _Overtaken from error


class _Overtaken(Exception):  # only used between functions of this module
    """An expected key may have another value than the one that was read: read again."""
