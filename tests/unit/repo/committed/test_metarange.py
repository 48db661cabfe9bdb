"""Reading metaranges: what is asked of the store, and what damage is called."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.errors import Corruption
from lakebed.repo.committed import range_writer
from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.layout import metarange_path, range_path
from lakebed.repo.model.model import MetarangeRef
from worlds.errors import raises


def answers(committed: Committed, ref: MetarangeRef, paths: list[bytes]) -> list[Any]:
    """What every way of reading says."""
    metarange = committed.open(ref)
    scanned = [batch.to_pylist() for batch in metarange.rows()]
    cut = [batch.to_pylist() for batch in metarange.rows(paths[1], paths[-1])]
    return [[metarange.get(path) for path in paths], metarange.get_many(paths), scanned, cut]


def test_single_paths_cost_one_block_of_one_range(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """The first path costs list, tail and block; one of another range its tail and block; one seen before nothing."""
    values = rows.values(range(0, 1000, 2))
    ref = rows.write(opened_on(repository_store), values)
    committed = opened_on(repository_store)
    metarange, paths = committed.open(ref), sorted(values)
    for path, get_count in [(paths[3], 3), (paths[400], 2), (paths[3], 0), (b"zzz", 0), (b"a", 0)]:
        with repository_store.count() as requests:
            assert metarange.get(path) == values.get(path)
        assert (requests.get, requests.total) == (get_count, get_count)
    assert committed.open(ref).get(paths[400]) == values[paths[400]]


def test_a_path_between_two_ranges_is_in_none(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Where a path lies behind one range and before the next, no range is asked."""
    ref = rows.write(opened_on(repository_store), rows.values(range(0, 1000, 2)))
    committed = opened_on(repository_store)
    metarange = committed.open(ref)
    gap = metarange.ranges()[3].file.last_key + b"\0"
    with committed.count() as counts, repository_store.count() as requests:
        assert metarange.get(gap) is None
        assert metarange.get_many([gap]) == [None]
        assert not list(metarange.rows(gap, gap + b"\0"))
    assert (counts.ranges_read, requests.total) == (0, 0)


def test_many_paths_ask_each_range_once(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """Paths are grouped by range, whether they are few or nearly all, and come back in their order."""
    values = rows.values(range(0, 4000, 2))
    ref = rows.write(opened_on(repository_store), values)
    every = sorted({*values, *rows.values(range(1, 4000, 6)), b"a", b"zzz"})
    for paths in (every, every[::50], every[700:760], every[:1], []):
        committed = opened_on(repository_store)
        metarange = committed.open(ref)
        ranges = metarange.ranges()
        asked = {part.id for path in paths for part in ranges if part.file.first_key <= path <= part.file.last_key}
        with committed.count() as counts, repository_store.count() as requests:
            assert metarange.get_many(paths) == [values.get(path) for path in paths]
        assert counts.ranges_read == len(asked)
        assert requests.total <= 6 * len(asked)


def test_a_scan_opens_only_ranges_that_overlap(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """For any bounds, just the ranges with rows between them are opened, and nothing else comes out."""
    values = rows.values(range(0, 1000, 2))
    committed = opened_on(repository_store)
    metarange = committed.open(rows.write(committed, values))
    ranges, chance = metarange.ranges(), random.Random(5)
    edges = [None, b"", b"zzz", *(path for part in ranges for path in (part.file.first_key, part.file.last_key))]
    edges += sorted(rows.values(chance.choices(range(1001), k=20)))
    for _ in range(120):
        start, end = chance.choice(edges), chance.choice(edges)
        with committed.count() as counts:
            result = rows.read(metarange, start, end)
        inside = {k: v for k, v in values.items() if (start is None or k >= start) and (end is None or k < end)}
        assert result == inside
        if start is not None and end is not None and start >= end:
            assert counts.ranges_read == 0
            continue
        overlapping = [
            part
            for part in ranges
            if (start is None or part.file.last_key >= start) and (end is None or part.file.first_key < end)
        ]
        assert counts.ranges_read == len(overlapping)


def test_a_scan_of_many_ranges_asks_once_a_range_and_reads_ahead(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """From the third range on a range is one request; who stops early has read a few ranges, not all."""
    ref = rows.write(opened_on(repository_store), rows.values(range(4000)))
    committed = opened_on(repository_store)
    metarange = committed.open(ref)
    count = len(metarange.ranges())
    assert count > 30
    with repository_store.count() as requests:
        assert sum(batch.num_rows for batch in metarange.rows()) == 4000
    assert requests.total <= (count - 2) + 2 * 8
    with committed.count() as counts:
        scan = metarange.rows()
        assert next(scan).num_rows
        assert counts.ranges_read == 1
        assert sum(batch.num_rows for batch in islice(scan, 20))
        scan.close()
    assert counts.ranges_read < 20


def test_a_page_that_is_listed_again_comes_from_the_cache(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """A bounded stretch, also one that goes on in the next range, is read from the store once."""
    ref = rows.write(opened_on(repository_store), rows.values(range(1000)))
    committed = opened_on(repository_store)
    metarange = committed.open(ref)
    edge, end = metarange.ranges()[4], metarange.ranges()[6].file.first_key
    page = rows.read(metarange, edge.file.first_key, end)
    with repository_store.count() as requests:
        assert rows.read(metarange, edge.file.first_key, end) == page
    assert requests.total == 0
    assert len(page) > edge.entry_count


def test_rows_are_views_of_what_was_read(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """Reading again what the cache holds allocates no memory for paths and values."""
    committed = opened_on(repository_store)
    metarange = committed.open(rows.write(committed, rows.values(range(40))))
    part = metarange.ranges()[0]
    paths = sorted(rows.values(range(40)))[:8]
    assert [metarange.get(path) for path in paths]
    before = pa.total_allocated_bytes()
    result = list(metarange.rows_of(part, paths[0], paths[4]))
    assert sum(batch.num_rows for batch in result) == 4
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("cache_bytes", [0, 8 << 20])
def test_every_damaged_byte_is_noticed(
    cache_bytes: int, rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Whichever byte of a range or metarange changes, or wherever it is cut: the same answers, or Corruption."""
    ref = rows.write(opened_on(repository_store), rows.values(range(60)))
    ranges = opened_on(repository_store).open(ref).ranges()
    paths = sorted(rows.values(range(0, 60, 7)))
    expected = answers(opened_on(repository_store), ref, paths)
    chance, noticed = random.Random(3), 0
    for name in (metarange_path(ref.file.id), range_path(ranges[1].file.id)):
        body = bytes(repository_store.get(name))
        places = sorted(chance.sample(range(len(body)), 150))
        damages = [body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :] for at in places]
        damages += [body[: places[9]], body[:-1], b"", body + b"\0"]
        for damaged in damages:
            repository_store.put(name, damaged)
            try:
                assert answers(opened_on(repository_store, cache_bytes=cache_bytes), ref, paths) == expected
            except Corruption as error:
                noticed += error.facts["path"] == name
        repository_store.put(name, body)
    assert noticed == 2 * 154 - 1  # what stands behind the end of a range is never read


def test_a_missing_range_is_named(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """A deleted range is Corruption by every way of reading, never an absent path."""
    committed = opened_on(repository_store)
    ref = rows.write(committed, rows.values(range(400)))
    ranges = committed.open(ref).ranges()
    name = range_path(ranges[3].file.id)
    repository_store.delete([name])
    metarange, path = opened_on(repository_store).open(ref), ranges[3].file.first_key
    for read in (
        lambda: metarange.get(path),
        lambda: metarange.get_many([path]),
        lambda: metarange.get_many(sorted(rows.values(range(400)))),
        lambda: list(metarange.rows()),
        lambda: list(metarange.rows(path, path + b"\0")),
        lambda: list(metarange.rows_of(ranges[3])),
    ):
        with raises(Corruption, "missing_range", match=name) as caught:
            read()
        assert "restore" in str(caught.value)
    assert metarange.get(ranges[2].file.first_key) is not None
    repository_store.delete([metarange_path(ref.file.id)])
    with pytest.raises(Corruption, match=ref.file.id):
        opened_on(repository_store).open(ref).get(path)


def test_a_metarange_that_is_not_its_reference_is_noticed(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """A whole file that says other things than the reference, or itself, is Corruption."""
    committed = opened_on(repository_store)
    ref = rows.write(committed, rows.values(range(400)))
    wrong = msgspec.structs.replace(ref, range_count=ref.range_count + 1)
    with pytest.raises(Corruption, match="were written to it"):
        committed.open(wrong).ranges()
    other = rows.write(committed, rows.values(range(100)))
    wrong = msgspec.structs.replace(ref, file=msgspec.structs.replace(other.file, id=ref.file.id))
    with pytest.raises(Corruption):
        opened_on(repository_store).open(wrong).ranges()


def test_a_metarange_whose_ranges_overlap_is_noticed(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any
) -> None:
    """Ranges that do not follow each other would hide paths, so they are refused when the list is read."""
    committed = opened_on(repository_store)
    part = committed.open(rows.write(committed, rows.values(range(3)))).ranges()[0]
    for first, last in [(b"z", b"a"), (b"a", b"b")]:
        writer = committed.writer()
        file = msgspec.structs.replace(part.file, first_key=first, last_key=last)
        writer.reuse(msgspec.structs.replace(part, file=file, ends_open=False))
        ref = writer.finish()
        assert ref.file is not None
        if first < last:
            assert committed.open(ref).ranges()[0].file == file
            continue
        with pytest.raises(Corruption, match="recorded as from"):
            committed.open(ref).ranges()


def test_a_range_whose_name_is_no_text_is_damage(
    rows: Any, opened_on: Callable[..., Committed], repository_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any unreadable part of a list of ranges is a `Corruption`, bytes that are not text included."""
    committed = opened_on(repository_store)
    encode = range_writer.encode_range_meta
    monkeypatch.setattr(
        range_writer, "encode_range_meta", lambda one: encode(one).replace(one.id.encode(), b"\xff" * 64)
    )
    ref = rows.write(committed, rows.values(range(3)))
    with pytest.raises(Corruption, match="cannot be read"):
        committed.open(ref).ranges()


def test_the_list_of_ranges_is_read_once(rows: Any, opened_on: Callable[..., Committed], repository_store: Any) -> None:
    """Opening costs nothing; what the cache holds serves every handle of the same metarange."""
    ref = rows.write(opened_on(repository_store), rows.values(range(400)))
    committed = opened_on(repository_store)
    with repository_store.count() as requests:
        handles: list[Metarange] = [committed.open(ref) for _ in range(3)]
        assert requests.total == 0
        assert len({handle.ranges() for handle in handles}) == 1
    assert requests.total == 1
