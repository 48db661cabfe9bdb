"""The settings of databases: what they are when nobody says, and which values are taken."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from lakebed.errors import InvalidRequest
from lakebed.kv.limits import check_database_options
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from worlds.errors import raises

GUIDE: Final = Path(__file__).parents[3] / "docs" / "guide" / "databases.md"
UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
GIB: Final = 1 << 30


def value_of(text: str) -> Any:
    """What a cell of the guide's tables means."""
    number, unit = re.fullmatch(r"([\d,]*) ?(\w*)", text).groups()  # type: ignore[union-attr]
    if not number:
        return {"None": None, "True": True, "False": False}[unit]
    whole = int(number.replace(",", ""))
    return timedelta(seconds=whole) if unit == "s" else whole * UNITS[unit]


@pytest.mark.parametrize("options", [DatabaseOptions(), ReaderOptions(), CheckpointOptions(), CollectorOptions()])
def test_defaults_are_those_of_the_guide(options: Any) -> None:
    """Each setting has its row in the guide's table, and the row its value."""
    _, _, table = GUIDE.read_text().partition(f"| `{type(options).__name__}` | default |\n")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table.partition("\n\n")[0], re.MULTILINE)
    assert asdict(options) == {name: value_of(text) for name, text in rows}


LEAST: Final = {
    "wal_flush_interval_ms": 1,
    "wal_flush_spacing_ms": 0,
    "wal_bytes_max": 1,
    "flush_interval_max_ms": 1,
    "l0_sst_bytes": 1,
    "unflushed_bytes_max": 1,
    "l0_count_max": 2,
    "l0_compaction_count": 2,
    "run_compaction_count": 2,
    "run_file_bytes": 1,
    "block_bytes": 1,
    "filter_bits_per_key": 0,
    "file_count_max": 1,
    "manifest_poll_interval_ms": 1,
    "cache_bytes": 0,
    "row_cache_bytes": 0,
    "transaction_history_bytes_max": 0,
}
SMALL: Final = DatabaseOptions(l0_compaction_count=2)


@pytest.mark.parametrize("option", LEAST)
def test_each_number_has_a_least_value(option: str) -> None:
    """That is taken; one less, a fraction and a text are refused by the setting's name."""
    check_database_options(replace(SMALL, **{option: LEAST[option]}))
    for wrong in (LEAST[option] - 1, -1, 2.5, "9"):
        with raises(InvalidRequest, "invalid_option", option=option):
            check_database_options(replace(SMALL, **{option: wrong}))


def test_a_memtable_has_a_greatest_size() -> None:
    """A GiB is taken, and a byte more is not."""
    check_database_options(DatabaseOptions(l0_sst_bytes=GIB))
    with raises(InvalidRequest, "invalid_option", option="l0_sst_bytes"):
        check_database_options(DatabaseOptions(l0_sst_bytes=GIB + 1))


def test_writers_never_wait_for_a_merge_that_does_not_come() -> None:
    """Level 0 may have as many files as are merged, and not fewer."""
    check_database_options(DatabaseOptions(l0_compaction_count=7, l0_count_max=7))
    with raises(InvalidRequest, "invalid_option", option="l0_count_max"):
        check_database_options(DatabaseOptions(l0_compaction_count=7, l0_count_max=6))


def test_options_of_another_kind_are_refused() -> None:
    """Those of a reader open no writer."""
    options: Any = ReaderOptions()
    with raises(InvalidRequest, "wrong_type"):
        check_database_options(options)
