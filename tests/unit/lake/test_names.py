"""Table names and the lake's marker, without any store."""

from __future__ import annotations

import pytest

from lakebed.errors import Corruption, InvalidRequest, UnsupportedFormat
from lakebed.lake.marker import check_marker, encode_marker
from lakebed.lake.names import TableName, nearest_names, parse_table_name, split_path


def test_names_have_a_place() -> None:
    """A plain name lies in the default database; printing a name gives back what was read."""
    assert parse_table_name("flights").folder == "default.db/flights"
    assert parse_table_name("db.flights").folder == "db.db/flights"
    for text in ("flights", "db.flights", "Flüge", "a-b_c"):
        assert str(parse_table_name(text)) == text
    assert parse_table_name("default.flights") == parse_table_name("flights")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "a.",
        ".a",
        "a.b.c",
        "..",
        "a..b",
        "../a",
        "a/b",
        "a\\b",
        "a$tags",
        "a\nb",
        " a",
        "a ",
        "x" * 201,
        "a#b",
        "a\udcff",
    ],
)
def test_names_that_cannot_be(text: str) -> None:
    """Empty, path-like and ambiguous names are refused with the name in the sentence."""
    with pytest.raises(InvalidRequest) as refused:
        parse_table_name(text)
    assert refused.value.kind == "invalid_table_name"
    assert repr(text) in refused.value.message


def test_paths_know_their_table() -> None:
    """A path inside a table's folder is split; any other has no table."""
    assert split_path("db.db/t/bucket-0/x") == (TableName("db", "t"), "bucket-0/x")
    assert split_path("default.db/t") == (TableName("default", "t"), "")
    for path in ("lakebed.json", "db.db", "other/t/x", ".db/t/x", ""):
        assert split_path(path) is None


def test_nearest_names() -> None:
    """The nearest come first; nothing near gives nothing."""
    assert nearest_names("flihgts", ["events", "flights", "flights2"])[0] == "flights"
    assert nearest_names("zzz", ["events"]) == []


def test_marker_of_this_version_is_accepted() -> None:
    """What this version writes, it reads."""
    check_marker(encode_marker(), url="memory://x")
    assert encode_marker() == b'{"format":1,"min_reader":1,"min_writer":1,"features":[]}'


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"format": "one"}', b"\xff\xfe"])
def test_damaged_marker(body: bytes) -> None:
    """Bytes that are not a marker are named as corruption, with the path."""
    with pytest.raises(Corruption) as broken:
        check_marker(body, url="memory://x")
    assert broken.value.facts["path"] == "lakebed.json"


@pytest.mark.parametrize(
    "body",
    [
        b'{"format": 2, "min_reader": 2, "min_writer": 2, "features": []}',
        b'{"format": 2, "min_reader": 1, "min_writer": 2, "features": []}',
        b'{"format": 1, "min_reader": 1, "min_writer": 1, "features": ["kv"]}',
    ],
)
def test_newer_marker(body: bytes) -> None:
    """A lake that needs more than this version knows is refused, never guessed at."""
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        check_marker(body, url="memory://x")


def test_newer_marker_that_old_readers_may_use() -> None:
    """A newer format that says it needs no more than this version is opened."""
    check_marker(b'{"format": 3, "min_reader": 1, "min_writer": 1, "features": [], "new": 1}', url="memory://x")
