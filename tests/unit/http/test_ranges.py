"""Ranges as HTTP writes them."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest
from lakebed.http.ranges import content_range, parse_range
from worlds.errors import raises


@pytest.mark.parametrize("size_bytes", [0, 1, 2, 10])
@pytest.mark.parametrize("first", [None, 0, 1, 9, 10, 11])
@pytest.mark.parametrize("last", [None, 0, 1, 9, 10, 11])
def test_a_range_is_inside_the_object_or_refused(size_bytes: int, first: int | None, last: int | None) -> None:
    """Every header of one range gives a half-open range inside the object, a refusal with its size, or no range."""
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    wanted = set(range(first, (size_bytes if last is None else last + 1))) if first is not None else set()
    if first is None and last is not None:
        wanted = set(range(size_bytes - last, size_bytes))
    inside = sorted(wanted & set(range(size_bytes)))
    meaningless = (first is None and last is None) or (first is not None and last is not None and last < first)
    if meaningless:
        assert parse_range(header, size_bytes=size_bytes) is None
    elif inside:
        assert parse_range(header, size_bytes=size_bytes) == (inside[0], inside[-1] + 1)
    else:
        with raises(InvalidRequest, "range_not_satisfiable") as caught:
            parse_range(header, size_bytes=size_bytes)
        assert caught.value.facts == {"size_bytes": size_bytes}


@pytest.mark.parametrize("header", [None, "", "bytes", "bytes=1", "bytes=1-2,4-5", "items=1-2", "bytes=１-２"])
def test_what_is_no_single_range_means_everything(header: str | None) -> None:
    """Absent, malformed and multiple ranges are ignored."""
    assert parse_range(header, size_bytes=10) is None


def test_a_number_beyond_every_object_is_past_the_end() -> None:
    """However many digits a header has, it is compared with the size, and never refused as malformed."""
    digits = "9" * 30
    with raises(InvalidRequest, "range_not_satisfiable"):
        parse_range(f"bytes={digits}-", size_bytes=10)
    assert parse_range(f"bytes=4-{digits}", size_bytes=10) == (4, 10)
    assert parse_range(f"bytes=-{digits}", size_bytes=10) == (0, 10)


def test_a_reply_says_where_its_bytes_stand() -> None:
    """``Content-Range`` counts to the last byte, and names the size where nothing can be served."""
    assert content_range((0, 4), size_bytes=10) == "bytes 0-3/10"
    assert content_range(None, size_bytes=10) == "bytes */10"


def test_a_range_may_be_meant_of_one_object_alone() -> None:
    """``If-Range`` with another ETag asks for the whole object; with its own for the range."""
    assert parse_range("bytes=0-1", size_bytes=10, if_range='"a"', etag="a") == (0, 2)
    assert parse_range("bytes=0-1", size_bytes=10, if_range='"b"', etag="a") is None
