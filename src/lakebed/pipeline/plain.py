"""Small local CSV files of a plain kind, read in this process to the rows that Spark's reader would give.

Owns: which files and values are plain. Invariant: a file is either read exactly as Spark's CSV reader reads it (default
options, a header, UTF-8, the session's time zone UTC), or not at all. `read_plain_csv` returns None for everything
whose meaning depends on details of that reader (quotes inside values, escapes, numbers in other notations, rows that do
not fit), and the caller uses Spark. So no row is rejected here. A test compares the two readers.
"""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

import lakebed.compute as pc

PLAIN_BYTES_MAX = 4 << 20
"""Most bytes of all files of one read. Above this a Spark job, which uses every core, is faster."""

_SUFFIXES = (".csv", ".tsv", ".txt")
_OPTIONS = {"sep": ",", "delimiter": ",", "nullvalue": "", "header": "true"}
"""The supported options, in lower case, with Spark's defaults (for ``header``, a pipeline's default)."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COLUMNS_MAX = 20_000
_BLANKS = "".join(map(chr, range(33)))
"""The characters that Java's trim removes. Spark skips a line that has only these."""

_WHOLE = r"\A-?[0-9]{1,20}\z"
_FRACTION = r"\A-?[0-9]{1,17}(\.[0-9]{1,17})?\z"
_DATE = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_TIME = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_DECIMAL = re.compile(r"decimal\( *([0-9]+) *, *([0-9]+) *\)")

# Spark SQL type -> (pattern of a plain value, the Arrow type in which Spark's columns are transferred)
_TYPES: Mapping[str, tuple[str, pa.DataType]] = {
    "boolean": (r"\A(true|false)\z", pa.bool_()),
    "tinyint": (_WHOLE, pa.int8()),
    "byte": (_WHOLE, pa.int8()),
    "smallint": (_WHOLE, pa.int16()),
    "short": (_WHOLE, pa.int16()),
    "int": (_WHOLE, pa.int32()),
    "integer": (_WHOLE, pa.int32()),
    "bigint": (_WHOLE, pa.int64()),
    "long": (_WHOLE, pa.int64()),
    "float": (_FRACTION, pa.float32()),
    "real": (_FRACTION, pa.float32()),
    "double": (_FRACTION, pa.float64()),
    "date": (_DATE, pa.date32()),
    "timestamp": (_TIME + r"Z?\z", pa.timestamp("us", tz="UTC")),
    "timestamp_ltz": (_TIME + r"Z?\z", pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (_TIME + r"\z", pa.timestamp("us")),
}


def read_plain_csv(paths: Sequence[str], *, schema: Mapping[str, str], options: Mapping[str, str]) -> pa.Table | None:
    """Return the rows of CSV files, or None if Spark must read them.

    Args:
        paths: local files; all of them together at most `PLAIN_BYTES_MAX`.
        schema: columns with Spark SQL types, in the files' order.
        options: options of Spark's reader.

    Returns one column for each entry of the schema, in order, in the Arrow types of
    `lakebed.spark.plan.types.arrow_schema_of`; rows in the order of files and lines.
    """
    settings = {**_OPTIONS, **{name.lower(): text for name, text in options.items()}}
    separator = settings["sep"] if "sep" in map(str.lower, options) else settings["delimiter"]
    understood = settings.keys() == _OPTIONS.keys() and settings["header"].lower() == "true" and len(separator) == 1
    if not understood or not separator.isascii() or separator in '"\\\r\n\0' or len(schema) > _COLUMNS_MAX:
        return None
    bodies = _bodies(paths)
    if bodies is None or len({name.lower() for name in schema}) < len(schema):
        return None
    parts = [_texts(body, list(schema), separator) for body in bodies]
    if not parts or any(part is None for part in parts):
        return None
    texts = pa.concat_tables([part for part in parts if part is not None])
    columns = [_convert(texts.column(name), kind, null_value=settings["nullvalue"]) for name, kind in schema.items()]
    if any(column is None for column in columns):
        return None
    return pa.table(columns, names=list(schema))


def _bodies(paths: Sequence[str]) -> list[bytes] | None:
    """Return the files' bytes; None if they are too large, or if Spark's result may depend on more than these."""
    if any("://" in path or not path.lower().endswith(_SUFFIXES) or glob.has_magic(path) for path in paths):
        return None
    # Spark ignores files whose names begin with these characters.
    if any(Path(path).name.startswith((".", "_")) or not Path(path).is_file() for path in paths):
        return None
    if sum(Path(path).stat().st_size for path in paths) > PLAIN_BYTES_MAX:
        return None
    bodies = [Path(path).read_bytes() for path in paths]
    return bodies if all(map(_is_plain, bodies)) else None


def _is_plain(body: bytes) -> bool:
    """Return whether a file has no escape, no NUL and no byte order mark.

    A carriage return must be part of a line's end, because alone it would end a line too.
    """
    if body[:1] <= b" " or body.startswith(_BYTE_ORDER_MARK) or any(mark in body for mark in (b"\\", b"\0")):
        return False
    return body.count(b"\r") == body.count(b"\r\n")


def _texts(body: bytes, names: list[str], separator: str) -> pa.Table | None:
    """Return every value of one file as text; None if its header, or a line, is not exactly as expected."""
    if b'"' in body and b'"' in _quote_pattern(separator).sub(b"", b"\n" + body):
        return None
    try:
        texts = csv.read_csv(
            io.BytesIO(body),
            read_options=csv.ReadOptions(use_threads=False, block_size=max(len(body), 1)),
            parse_options=csv.ParseOptions(
                delimiter=separator, double_quote=False, escape_char=False, newlines_in_values=False
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, check_utf8=True
            ),
        )
    except pa.ArrowInvalid:
        return None  # a row with too few or too many values, or text that is not UTF-8
    if texts.column_names != names:
        return None
    blank = None
    for column in texts.columns:
        empty = pc.equal(pc.utf8_trim(column, _BLANKS), "")
        blank = empty if blank is None else pc.and_(blank, empty)
    return None if blank is None or pc.any(blank).as_py() else texts


@lru_cache
def _quote_pattern(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of a value that is quoted from its first to its last character, without a quote inside.

    The value is not empty: Spark reads empty quotes as an empty text, not as null.
    """
    # The pattern begins with the quote, and looks back from there, so that the search is for a single byte.
    delimiter = re.escape(separator.encode())
    return re.compile(rb'"(?<=[\n' + delimiter + rb']")[^"\r\n]+"(?=' + delimiter + rb"|\r?\n|\Z)")


def plain_type(kind: str) -> pa.DataType | None:
    """Return the Arrow type in which Spark returns an SQL type; None for types that are not supported here."""
    kind = kind.strip().lower()
    if kind == "string":
        return pa.string()
    value = _TYPES.get(kind) or _decimal(kind)
    return None if value is None else value[1]


def _convert(texts: pa.ChunkedArray, kind: str, *, null_value: str) -> pa.ChunkedArray | None:
    """Convert a column to its type; None if a value is not plain."""
    is_null = pc.or_(pc.equal(texts, ""), pc.equal(texts, null_value))
    present_texts = pc.if_else(is_null, pa.scalar(None, pa.string()), texts)
    kind = kind.strip().lower()
    if kind == "string":
        return present_texts
    plain_type = _TYPES.get(kind) or _decimal(kind)
    if plain_type is None:
        return None
    pattern, target = plain_type
    if not pc.all(pc.match_substring_regex(present_texts, pattern), min_count=0).as_py():
        return None
    try:
        if pa.types.is_timestamp(target):
            return pc.utf8_rtrim(present_texts, "Z").cast(pa.timestamp("us")).cast(target)
        return present_texts.cast(target)
    except pa.ArrowInvalid:
        return None  # out of range, or not a day of the calendar


def _decimal(kind: str) -> tuple[str, pa.DataType] | None:
    match = _DECIMAL.fullmatch(kind)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= 38 or scale > precision:
        return None
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    return rf"\A-?[0-9]{{1,{max(precision - scale, 1)}}}{fraction}\z", pa.decimal128(precision, scale)
