"""Ranges and prefixes of keys, checked and turned into half-open bounds.

Invariant: a range that ends before it starts is empty, not an error.
"""

from __future__ import annotations

from lakebed.errors import InvalidRequest
from lakebed.lsm.model import KEY_BYTES_MAX, check_key

Bounds = tuple[bytes | None, bytes | None]
"""``[start, end)``; None: open."""


def check_range(start: object, end: object) -> Bounds | None:
    """Both ends of ``[start, end)``; None for an empty range.

    Raises `InvalidRequest` for an end that is not bytes, or is longer than a key can be. One more zero byte is
    accepted, because a page that follows the longest key begins there.
    """
    for name, bound in (("start", start), ("end", end)):
        if bound is not None and not isinstance(bound, bytes):
            raise InvalidRequest(
                f"The {name} of a scan is bytes or None, and {type(bound).__name__} was given: convert it first.",
                kind="wrong_type",
            )
        if bound is not None and len(bound) > KEY_BYTES_MAX:
            check_key(bound.removesuffix(b"\0"))
    assert start is None or isinstance(start, bytes)
    assert end is None or isinstance(end, bytes)
    if end is not None and end <= (start or b""):
        return None
    return start or None, end


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key after all that begin with `prefix`; None if no such key exists."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def check_prefix(prefix: object) -> Bounds:
    """Return the range of all keys that begin with `prefix`.

    Raises `InvalidRequest` if it is not bytes, or too long.
    """
    if not isinstance(prefix, bytes):
        raise InvalidRequest(
            f"A prefix is bytes, and {type(prefix).__name__} was given: convert it to bytes first.", kind="wrong_type"
        )
    if len(prefix) > KEY_BYTES_MAX:
        check_key(prefix)
    return prefix or None, prefix_end(prefix)
