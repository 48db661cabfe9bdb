"""Types: text, JSON and Arrow, and what widens to what."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.model.model import DataField
from lakebed.table.model.types import (
    FIELD_ID_KEY,
    arrow_schema,
    arrow_type,
    can_widen,
    fields_of_arrow,
    json_of_type,
    parse_type,
    text_of_type,
    type_of_arrow,
    type_of_json,
)

TEXTS = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(10, 2)": pa.decimal128(10, 2),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIME(3)": pa.time32("ms"),
    "TIMESTAMP(0)": pa.timestamp("s"),
    "TIMESTAMP(3)": pa.timestamp("ms"),
    "TIMESTAMP(6)": pa.timestamp("us"),
    "TIMESTAMP(9)": pa.timestamp("ns"),
    "TIMESTAMP_LTZ(6)": pa.timestamp("us", tz="UTC"),
    "ARRAY<INT NOT NULL>": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "ROW<a: INT, b: STRING NOT NULL>": pa.struct([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_arrow(text: str) -> None:
    """Text to Arrow and back is the same type."""
    assert arrow_type(text) == TEXTS[text]
    assert type_of_arrow(TEXTS[text]) == text
    assert type_of_json(json_of_type(parse_type(text + " NOT NULL"))) == parse_type(text + " NOT NULL") or "ROW" in text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("integer", "INT"),
        ("decimal", "DECIMAL(10, 0)"),
        ("NUMERIC(5)", "DECIMAL(5, 0)"),
        ("varchar(2147483647)", "STRING"),
        ("VARCHAR(10) NOT NULL", "VARCHAR(10) NOT NULL"),
        ("double precision", "DOUBLE"),
        ("TIMESTAMP", "TIMESTAMP(6)"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "TIMESTAMP_LTZ(3)"),
        ("map<string,array<int>>", "MAP<STRING, ARRAY<INT>>"),
        ("ROW<`odd name`@3 INT, b@4: ROW<c@5: BIGINT>>", "ROW<`odd name`@3: INT, b@4: ROW<c@5: BIGINT>>"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    """Every spelling has one canonical text, which parses to itself."""
    assert str(parse_type(text)) == canonical
    assert str(parse_type(canonical)) == canonical


@pytest.mark.parametrize(
    "text", ["", "NUMBER", "INT(3)", "DECIMAL(39)", "DECIMAL(5, 6)", "ARRAY<>", "ARRAY<INT", "INT INT"]
)
def test_no_type(text: str) -> None:
    """A text that is not a type is refused with examples."""
    with pytest.raises(InvalidRequest, match="is not a valid type"):
        parse_type(text)


def test_nested_json_keeps_ids() -> None:
    """Nested types in schema files carry the ids of their fields."""
    parsed = parse_type("ROW<a@3: INT NOT NULL, m@4: MAP<STRING NOT NULL, ARRAY<INT>>>")
    spelled = json_of_type(parsed)
    assert spelled["fields"][0] == {"id": 3, "name": "a", "type": "INT NOT NULL"}
    assert type_of_json(spelled) == parsed


def test_arrow_schema_carries_ids() -> None:
    """Field ids travel as Parquet's own metadata."""
    schema = arrow_schema([DataField(7, "a", "INT", nullable=False)])
    assert (schema.field("a").metadata[FIELD_ID_KEY], schema.field("a").nullable) == (b"7", False)


def test_narrow_arrow_types() -> None:
    """Arrow types without counterpart take the narrowest that holds them; others are refused."""
    assert [field.type for field in fields_of_arrow(pa.schema([("a", pa.uint32()), ("b", pa.large_string())]))] == [
        "BIGINT",
        "STRING",
    ]
    with pytest.raises(InvalidRequest, match=r"finer than TIME, which counts milliseconds: cast .* time32\[ms\]"):
        type_of_arrow(pa.time64("us"))
    with pytest.raises(InvalidRequest, match="no counterpart"):
        type_of_arrow(pa.uint64())


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("INT", "FLOAT", False),
        ("INT", "DOUBLE", True),
        ("BIGINT", "DOUBLE", False),
        ("INT", "DECIMAL(10, 0)", True),
        ("INT", "DECIMAL(10, 1)", False),
        ("DECIMAL(5, 2)", "DECIMAL(7, 3)", True),
        ("DECIMAL(5, 2)", "DECIMAL(5, 3)", False),
        ("VARCHAR(5)", "STRING", True),
        ("STRING", "VARCHAR(5)", False),
        ("TIMESTAMP(3)", "TIMESTAMP(6)", True),
        ("TIMESTAMP(3)", "TIMESTAMP_LTZ(6)", False),
        ("DATE", "TIMESTAMP(3)", True),
    ],
)
def test_widening(old: str, new: str, allowed: bool) -> None:
    """A type widens exactly when the new one holds every old value."""
    assert can_widen(parse_type(old), parse_type(new)) is allowed


def test_a_type_is_given_as_text_or_as_arrow() -> None:
    """What is neither is refused with a sentence that shows both."""
    assert text_of_type("DECIMAL(10, 2)") == "DECIMAL(10, 2)"
    assert text_of_type(pa.decimal128(10, 2)) == "DECIMAL(10, 2)"
    with pytest.raises(InvalidRequest, match=r'"BIGINT".*pa\.int64\(\)'):
        text_of_type(int)  # type: ignore[arg-type]
