"""Listings, ranges and streams of small stores, every case of them, against plain Python."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Final

import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects import StoreLimits, open_store
from lakebed.objects.accounting import coalesce
from lakebed.objects.port import ObjectStore

NAMES: Final = ("a", "a.b/c", "a/b", "b/a/a", "b/a/b", "b/a.c", "b/b", "ba/a", "c", "é/a")

Open = Callable[[StoreLimits], ObjectStore]


@pytest.fixture(params=["memory", "local"])
def open_with(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a store with these limits: always the same one."""
    url = f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path)
    return lambda limits: open_store(url, limits=limits, durable=False)


def put_names(store: ObjectStore) -> list[str]:
    """Put an object of each name; the names that can be there, in order."""
    names = [name for name in NAMES if name != "a"]  # on a local folder it is a file or a folder
    for name in names:
        store.put(name, name.encode())
    return sorted(names)


def test_a_listing_is_what_is_below_and_behind(open_with: Open) -> None:
    """For every folder and every name to begin behind, whole or in pages, of the store and of a view."""
    names = put_names(open_with(StoreLimits()))
    folders = ["", "a", "a.b", "b", "b/a", "ba", "é", "none", "a/b"]
    for page_count, folder in product((1, 2, 3, 1000), folders):
        store = open_with(StoreLimits(list_page_count=page_count))
        below = [name for name in names if not folder or name.startswith(folder + "/")]
        for start in [None, "A", "b/a", "b/az", *names, "zz"]:
            expected = [name for name in below if start is None or name > start]
            listed = list(store.list(folder, start_after=start))
            assert [meta.path for meta in listed] == expected, (page_count, folder, start)
            assert [meta.size_bytes for meta in listed] == [len(name.encode()) for name in expected]
            assert list(store.list_paths(folder, start_after=start)) == expected, (page_count, folder, start)
        if folder:
            view, skip = store.sub(folder), len(folder) + 1
            assert [meta.path for meta in view.list()] == [name[skip:] for name in below]
            assert list(view.list_paths()) == [name[skip:] for name in below]


def test_a_level_is_what_lies_directly_below(open_with: Open) -> None:
    """Objects in order, and folders, each once, for the store and for a view of each folder."""
    store = open_with(StoreLimits())
    names = put_names(store)
    for folder in ["", "a", "a.b", "b", "b/a", "none"]:
        lead = f"{folder}/" if folder else ""
        below = [name.removeprefix(lead) for name in names if name.startswith(lead)]
        objects = [name for name in below if "/" not in name]
        folders = sorted({name.partition("/")[0] for name in below if "/" in name})
        level = store.list_with_delimiter(folder)
        assert [meta.path for meta in level.objects] == [lead + name for name in objects]
        assert sorted(level.folders) == [lead + name for name in folders]
        level = store.sub(folder).list_with_delimiter() if folder else level
        assert ([meta.path for meta in level.objects], sorted(level.folders)) == (objects, folders)


def test_deletions_take_what_they_name(open_with: Open) -> None:
    """Nothing else goes: no name below, before or behind, and what is missing or a folder is no error."""
    store = open_with(StoreLimits())
    names = put_names(store)
    for gone in ["b/a", "b", "none", "b/a/a", "a/b/c", *names]:
        store.delete([gone])
        names = [name for name in names if name != gone]
        assert list(store.list_paths()) == names


@pytest.mark.parametrize("size_bytes", range(8))
def test_ranges_and_streams_are_slices(open_with: Open, size_bytes: int) -> None:
    """Of every object of up to seven bytes, for every range and every size of chunks; a stream is as many reads."""
    store = open_with(StoreLimits(coalesce_gap_bytes_max=0))
    body = bytes(range(size_bytes))
    store.put("a", body)
    assert bytes(store.get("a")) == body
    for start, end in product(range(-1, 10), range(-1, 12)):
        if 0 <= start < min(end, size_bytes):
            assert bytes(store.get("a", byte_range=(start, end))) == body[start:end]
            (part,) = store.get_ranges("a", [(start, end)])
            assert bytes(part) == body[start:end]
        else:
            with pytest.raises(InvalidRequest):
                store.get("a", byte_range=(start, end))
            with pytest.raises(InvalidRequest):
                store.get_ranges("a", [(start, end)])
            continue
        for chunk_bytes in range(1, 10):
            chunks = [bytes(chunk) for chunk in store.get_stream("a", byte_range=(start, end), chunk_bytes=chunk_bytes)]
            assert b"".join(chunks) == body[start:end]
            assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
            assert 0 < len(chunks[-1]) <= chunk_bytes
    for chunk_bytes in range(1, 10):
        with store.count() as counts:
            chunks = [bytes(chunk) for chunk in store.get_stream("a", chunk_bytes=chunk_bytes)]
        assert chunks == [body[at : at + chunk_bytes] for at in range(0, size_bytes, chunk_bytes)]
        assert (counts.head, counts.get) == (1, len(chunks))
    for wrong in (0, -1):
        with pytest.raises(InvalidRequest):
            store.get_stream("a", chunk_bytes=wrong)


def test_joined_ranges_cover_what_was_asked_and_no_more_than_gaps() -> None:
    """Two ranges are one exactly when no more bytes than the gap lie between them, whatever their order and overlap."""
    rng = random.Random(7)
    for _ in range(300):
        gap_bytes = rng.randrange(5)
        ranges = [
            (start, start + rng.randrange(1, 6)) for start in (rng.randrange(30) for _ in range(rng.randrange(6)))
        ]
        merged = coalesce(ranges, gap_bytes_max=gap_bytes)
        asked = {byte for start, end in ranges for byte in range(start, end)}
        read = {byte for start, end in merged for byte in range(start, end)}
        between = {
            byte
            for byte in range(min(asked, default=0), max(asked, default=0))
            if byte not in asked
            and min(after for after in asked if after > byte) - max(before for before in asked if before < byte) - 1
            <= gap_bytes
        }
        assert read == asked | between
        assert all(after[0] - before[1] > gap_bytes for before, after in pairwise(merged))
        assert all(any(start <= begin and last <= end for start, end in merged) for begin, last in ranges)


def test_several_ranges_are_each_their_slice(open_with: Open) -> None:
    """In the order in which they were asked for, read together or not; as many requests as there are joined ranges."""
    rng = random.Random(3)
    body = rng.randbytes(60)
    for gap_bytes in (0, 1, 7):
        store = open_with(StoreLimits(coalesce_gap_bytes_max=gap_bytes))
        store.put("a", body)
        for _ in range(60):
            starts = [rng.randrange(50) for _ in range(rng.randrange(6))]
            ranges = [(start, start + rng.randrange(1, 10)) for start in starts]
            with store.count() as counts:
                parts = [bytes(part) for part in store.get_ranges("a", ranges)]
            assert parts == [body[start:end] for start, end in ranges]
            assert counts.get == len(coalesce(ranges, gap_bytes_max=gap_bytes))
            assert counts.bytes_read == sum(end - start for start, end in coalesce(ranges, gap_bytes_max=gap_bytes))
