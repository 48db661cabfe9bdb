"""What may be staged, checked all at once or one by one, with the same outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.staging.entries import VALUE_BYTES_MAX, check_entry, pairs_of, validate_columns
from worlds.errors import raises

OLD, NEW = file_id_at(1_000), file_id_at(2_000)


@dataclass(frozen=True)
class Shape:
    """Further facts of an entry that decide how it is checked."""

    content_type: str = "text/csv"
    is_tagged: bool = False

    def entry(self, address: str) -> Entry:
        """An entry of this shape."""
        return Entry(address, 1, "0" * 32, 5, self.content_type, {"is": "tagged"} if self.is_tagged else {})


SHAPES = {"plain": Shape(), "with metadata": Shape(is_tagged=True), "a long type": Shape("x/" + "y" * 5_000)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_oldest_upload_is_told(shape: Shape) -> None:
    """A collector may have taken it: the write that stages it is checked against that. Other addresses have no age."""
    entries = [shape.entry(address) for address in (f"data/{NEW}", f"data/{OLD}", "s3://bucket/key")]
    pairs = list(zip(["b", "a", "c"], entries, strict=True))
    keys, values, oldest = validate_columns(pairs)
    assert (keys, oldest) == ([b"b", b"a", b"c"], OLD)
    assert [decode_entry(value, where="p") for value in values] == entries
    assert validate_columns(pairs[2:])[2] is None
    assert validate_columns(())[2] is None


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_of_a_path_that_repeats_the_last_entry_counts(shape: Shape) -> None:
    """It is staged once; the upload that it replaces is checked all the same."""
    keys, values, oldest = validate_columns([("a", shape.entry(f"data/{OLD}")), ("a", shape.entry(f"data/{NEW}"))])
    assert (keys, oldest) == ([b"a"], OLD)
    assert [decode_entry(value, where="p").address for value in values] == [f"data/{NEW}"]


@pytest.mark.parametrize("address", ["data/x", "elsewhere", ""])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_address_that_is_none_is_refused(shape: Shape, address: str) -> None:
    """Neither an upload nor a URL: nothing is staged."""
    with raises(InvalidRequest, "invalid_address"):
        validate_columns([("a", shape.entry(f"data/{NEW}")), ("b", shape.entry(address))])


@pytest.mark.parametrize(
    "change", [{"checksum": 5}, {"content_type": None}, {"modified_ms": "5"}, {"metadata": ()}], ids=str
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fields_of_other_types_are_refused(shape: Shape, change: dict[str, Any]) -> None:
    """The constructor of an entry does not look: what could not be read again is never staged."""
    odd = msgspec.structs.replace(Shape().entry(f"data/{NEW}"), **change)
    with pytest.raises(InvalidRequest):
        validate_columns([("a", shape.entry(f"data/{NEW}")), ("b", odd)])
    validate_columns([("a", shape.entry(f"data/{NEW}")), ("b", Shape().entry(f"data/{NEW}"))])


LONG = "x" * (VALUE_BYTES_MAX // 4)
EXTREMES: dict[str, dict[str, Any]] = {
    "size": {"size_bytes": (1 << 64) - 1},
    "size of too many bits": {"size_bytes": 1 << 64},
    "negative size": {"size_bytes": -1},
    "size that is no number": {"size_bytes": "1"},
    "late time": {"modified_ms": (1 << 64) - 1},
    "time of too many bits": {"modified_ms": 1 << 64},
    "early time": {"modified_ms": -(1 << 63)},
    "time before all": {"modified_ms": -(1 << 63) - 1},
    "long texts": {"address": f"s3://{LONG}", "checksum": LONG, "content_type": LONG},
    "texts that are too long": {"address": f"s3://{LONG}", "checksum": LONG, "content_type": LONG * 2},
    "a checksum that is too long": {"checksum": LONG * 5},
    "a type that is too long": {"content_type": LONG * 5},
    "half a character in the address": {"address": "s3://\ud800"},
    "half a character": {"checksum": "\ud800"},
    "half a character of a type": {"content_type": "\ud800"},
    "an address that is no text": {"address": b"s3://bucket/key"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("change", EXTREMES.values(), ids=EXTREMES)
def test_an_entry_is_checked_among_others_as_alone(shape: Shape, change: dict[str, Any]) -> None:
    """At the limits of every field: what is refused alone is refused in a batch, for the same reason."""
    usual = shape.entry(f"data/{NEW}")
    odd = msgspec.structs.replace(Shape().entry("s3://bucket/key"), **change)
    refusal: InvalidRequest | None = None
    try:
        expected = check_entry(odd, "odd")[0]
    except InvalidRequest as error:
        refusal = error
    if refusal is None:
        assert decode_entry(expected, where="odd") == odd
        keys, values, _ = validate_columns([("odd", odd), ("usual", usual)])
        assert dict(zip(keys, values, strict=True))[b"odd"] == expected
        return
    for batch in ([odd], [odd, usual], [usual, odd]):
        with pytest.raises(InvalidRequest) as caught:
            validate_columns([("odd" if entry is odd else "usual", entry) for entry in batch])
        assert (caught.value.kind, caught.value.message) == (refusal.kind, refusal.message)


@pytest.mark.parametrize("among", [0, 1, 2])
def test_what_is_no_entry_is_refused(among: int) -> None:
    """Among any number of entries."""
    entries: list[Any] = [Shape().entry(f"data/{NEW}")] * among + ["no entry"]
    with raises(InvalidRequest, "wrong_type", match="str was given for 'p"):
        validate_columns([(f"p{number}", entry) for number, entry in enumerate(entries)])


def columns(**others: Any) -> pa.Table:
    """Two entries as columns, some of them others; None: without that one."""
    usual: dict[str, Any] = {
        "path": ["a", "b"],
        "address": [f"data/{OLD}", "s3://bucket/key"],
        "size_bytes": [1, 2],
        "checksum": ["c", ""],
        "modified_ms": [3, 4],
    }
    return pa.table({name: column for name, column in {**usual, **others}.items() if column is not None})


TYPES: dict[str, dict[str, Any]] = {
    "the needed ones": {},
    "types": {"content_type": ["text/csv", None]},
    "other types of columns": {
        "path": pa.array(["a", "b"], pa.large_string()),
        "size_bytes": pa.array([1, 2], pa.uint8()),
        "content_type": pa.array([None, "text/csv"], pa.large_string()),
    },
    "metadata": {"metadata": pa.array([[("k", "v"), ("l", "w")], None], pa.map_(pa.string(), pa.string()))},
}


@pytest.mark.parametrize("others", TYPES.values(), ids=TYPES)
def test_columns_are_entries(others: dict[str, Any]) -> None:
    """As their rows say; without a type or metadata as an entry that is made without."""
    table = columns(**others)
    expected = []
    for row in table.to_pylist():
        fields = {name: value for name, value in row.items() if value is not None}
        if "metadata" in fields:
            fields["metadata"] = dict(fields["metadata"])
        expected.append((fields.pop("path"), Entry(**fields)))
    assert list(pairs_of(table)) == expected
    assert [pair for batch in table.to_batches() for pair in pairs_of(batch)] == expected


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"checksum": None}, ": checksum missing, none unknown."),
        ({"checksum": None, "path": None}, ": path, checksum missing, none unknown."),
        ({"etag": ["", ""], "mtime": [1, 2]}, ": none missing, etag, mtime unknown."),
        ({"checksum": None, "etag": ["", ""]}, ": checksum missing, etag unknown."),
        ({"size_bytes": [1, None]}, "The column size_bytes of entries has nulls."),
        ({"size_bytes": ["1", "2"]}, "The column size_bytes of entries is of string, and integers are needed."),
        ({"modified_ms": [1.5, 2.5]}, "The column modified_ms of entries is of double, and integers are needed."),
        ({"path": [1, 2]}, "The column path of entries is of int64, and text are needed."),
        ({"content_type": [1, 2]}, "The column content_type of entries is of int64, and text are needed."),
        ({"metadata": ["x", "y"]}, "The column metadata of entries is of string, and a map of texts is needed."),
    ],
    ids=str,
)
def test_wrong_columns_are_named(others: dict[str, Any], says: str) -> None:
    """What is missing, what is too much, and what has another type."""
    with raises(InvalidRequest, "invalid_columns") as caught:
        pairs_of(columns(**others))
    assert caught.value.message.endswith(says)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_entry_has_at_most_64_kib(shape: Shape) -> None:
    """With its type and metadata, encoded; one byte more is refused, alone and among others."""
    usual = shape.entry(f"data/{NEW}")
    grown = msgspec.structs.replace(Shape().entry("s3://bucket/key"), metadata={"note": "x" * 60_000})
    missing = 65_536 - len(check_entry(grown, "p")[0])
    fits = msgspec.structs.replace(grown, metadata={"note": "x" * (60_000 + missing)})
    assert len(check_entry(fits, "p")[0]) == 65_536
    assert len(validate_columns([("p", fits), ("q", usual)])[0]) == 2
    larger = msgspec.structs.replace(grown, metadata={"note": "x" * (60_001 + missing)})
    with raises(InvalidRequest, "oversized_metadata"):
        check_entry(larger, "p")
    with raises(InvalidRequest, "oversized_metadata"):
        validate_columns([("q", usual), ("p", larger)])
