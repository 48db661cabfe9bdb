"""What may be staged, checked all at once or one by one, with the same outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.staging.entries import validate_columns

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
    with pytest.raises(InvalidRequest) as caught:
        validate_columns([("a", shape.entry(f"data/{NEW}")), ("b", shape.entry(address))])
    assert caught.value.kind == "invalid_address"


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
