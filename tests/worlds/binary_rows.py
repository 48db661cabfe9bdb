"""One row in the format's BinaryRow: what tables encode and decode by whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows, encode_rows
from lakebed.table.model.types import arrow_type


def encode_row(values: Sequence[Any], types: Sequence[str]) -> bytes:
    """One BinaryRow of Python values (None is null).

    Raises `InvalidRequest`: a value does not fit its type.
    """
    if not types:
        return EMPTY_ROW
    columns = []
    for value, text in zip(values, types, strict=True):
        try:
            columns.append(pa.array([value], type=arrow_type(text)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(f"{value!r} does not fit type {text}.", kind="schema_mismatch") from error
    row: bytes = encode_rows(columns, types)[0].as_py()
    return row


def decode_row(row: bytes, types: Sequence[str]) -> tuple[Any, ...]:
    """The Python values of one BinaryRow; inverse of `encode_row`."""
    if not types:
        return ()
    return tuple(column[0].as_py() for column in decode_rows(pa.array([row], pa.binary()), types))
