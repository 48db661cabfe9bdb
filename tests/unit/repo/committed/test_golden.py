"""Ranges, metaranges and values of released formats open, hold what they held, and would be named as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakebed.objects import open_store
from lakebed.repo.committed.content_hash import EMPTY_METARANGE_ID
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import decode_entry, encode_entry
from lakebed.repo.model.model import Entry, MetarangeRef
from lakebed.repo.model.options import RangeOptions

GOLDEN = Path(__file__).parents[3] / "golden" / "repo"
OPTIONS = RangeOptions(entry_count_min=3, raggedness=10, entry_count_max=25, block_bytes=1024)


@pytest.fixture
def golden() -> tuple[MetarangeRef, list[tuple[bytes, bytes, Entry]]]:
    """The reference, and path, value and entry of every row."""
    ref = msgspec.json.decode((GOLDEN / "metarange.json").read_bytes(), type=MetarangeRef)
    rows = [
        (bytes.fromhex(path), bytes.fromhex(value), msgspec.convert(entry, Entry))
        for path, value, entry in json.loads((GOLDEN / "rows.json").read_text())
    ]
    return ref, rows


def test_own_metarange(golden: Any, opened_on: Callable[..., Committed], rows: Any) -> None:
    """A metarange of several ranges reads as a whole, path by path and many at once as it was written."""
    ref, said = golden
    metarange = opened_on(open_store(str(GOLDEN))).open(ref)
    values = {path: value for path, value, _ in said}
    assert rows.read(metarange) == values
    assert [metarange.get(path) for path in values] == metarange.get_many(list(values)) == list(values.values())
    assert metarange.get(b"data/part-0605") is None
    assert [part.ends_open for part in metarange.ranges()] == [False] * (ref.range_count - 1) + [True]
    assert ref.range_count > 4


def test_own_values(golden: Any) -> None:
    """Every value decodes to its entry, and the entry would be encoded so today: names of ranges rest on it."""
    for path, value, entry in golden[1]:
        assert decode_entry(value, where=str(path)) == entry
        assert encode_entry(entry) == value


def test_own_names(golden: Any, rows: Any, committed: Committed, opened_on: Callable[..., Committed]) -> None:
    """The same rows with the same settings give the same ids today, and so does nothing."""
    ref, said = golden
    committed = opened_on(open_store("memory://golden-repo"), options=OPTIONS)
    again = rows.write(committed, {path: value for path, value, _ in said})
    assert again.id == ref.id
    assert again.size_bytes == ref.size_bytes
    golden_ranges = opened_on(open_store(str(GOLDEN))).open(ref).ranges()
    assert [part.id for part in committed.open(again).ranges()] == [golden_part.id for golden_part in golden_ranges]
    assert EMPTY_METARANGE_ID == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
