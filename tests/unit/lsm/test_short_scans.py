"""Scans that begin at a key read their first rows one by one from pages: they say what whole scans say."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from itertools import chain
from pathlib import Path

import pytest

from lakebed.clock import Clock
from lakebed.lsm.block import Compression
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable, batch_of
from lakebed.lsm.model import FileMeta, FileSet, Kind, Row, Run
from lakebed.lsm.operators import find_operator
from lakebed.lsm.short_scan import Newest, Source, merge_sources
from lakebed.lsm.view import FEW_ROWS, SHORT_SCAN_ROWS, View
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

KEYS = [b"key %04d" % number for number in range(900)]


def draw_row(rng: random.Random, key: bytes, sequence: int, now_ms: int) -> Row:
    """A put, with an end or without, a deletion, or an operand."""
    kind = rng.choice([Kind.PUT, Kind.PUT, Kind.PUT, Kind.DELETE, Kind.MERGE])
    value = b"" if kind == Kind.DELETE else b"%d" % rng.randrange(1000)
    end_ms = now_ms + rng.choice([-1, 0, 1, 1000]) if kind == Kind.PUT and rng.random() < 0.2 else None
    return Row(key, sequence, int(kind), value, end_ms)


def write(files: FileStore, rows: list[Row], *, environment: Environment) -> FileMeta:
    """A file of rows in any order."""
    writer = files.writer(mint_file_id(environment=environment))
    writer.write(batch_of(sorted(rows, key=lambda row: (row.key, -row.sequence))))
    return writer.finish()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("compression", ["lz4", None])
def test_short_scans_say_what_whole_scans_say(
    tmp_path: Path, seed: int, compression: Compression | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over memtable, level 0 and a run of several files, with every kind of row, as of several sequences."""
    monkeypatch.setattr("lakebed.lsm.view.SHORT_SCAN_ROWS", (FEW_ROWS, SHORT_SCAN_ROWS)[seed])  # batches follow soon
    rng = random.Random(seed)
    clock: Clock = ManualClock()
    environment = Environment(clock=clock)
    files = FileStore(
        open_store(str(tmp_path), environment=environment),
        path_of="sst/{}.sst".format,
        cache=BlockCache(rng.choice([0, 1 << 20])),
        options=FileOptions(block_bytes=600, page_bytes=150, compression=compression),
        environment=environment,
    )
    now_ms, sequence = clock.now_ms(), 0
    written: list[FileMeta] = []
    parts = [KEYS[:400], KEYS[400:], rng.sample(KEYS, 300), rng.choices(KEYS[100:130], k=200)]
    for keys in parts:
        rows = []
        for key in keys:
            sequence += 1
            rows.append(draw_row(rng, key, sequence, now_ms))
        written.append(write(files, rows, environment=environment))
    memtable = Memtable(sequence + 1)
    for key in rng.sample(KEYS, 350):
        memtable.extend([key], [rng.choice([None, b"5"])])
    for as_of in (None, sequence - 250):
        view = View(
            memtables=[memtable],
            file_set=FileSet((written[3], written[2]), (Run("r", tuple(written[:2])),)),
            sequence=as_of,
            operator=find_operator("append"),
            environment=environment,
            files=files,
        )
        # Keys that are new since the last scan, until there are many, and some that were taken back.
        late = [key + b"!" for key in rng.sample(KEYS, 40)] + rng.sample(KEYS, 20)
        memtable.extend(late, [b"late"] * len(late))
        memtable.take_back(memtable.row_count - 15, memtable.row_count - 5)
        whole = list(view.scan())
        assert len(whole) > 2 * FEW_ROWS
        bounds = [b"key", KEYS[0], KEYS[115], KEYS[399], KEYS[400], b"key 0115!", KEYS[-1], b"z"]
        for limit in (1, 50, 600):
            assert list(chain.from_iterable(view.scan_pieces(None, None, reverse=False, limit=limit))) == whole[:limit]
        for start in [*bounds, *rng.sample(KEYS, 2)]:
            for end in (None, start + b"\0", b"key 0500"):
                expected = [pair for pair in whole if pair[0] >= start and (end is None or pair[0] < end)]
                assert list(view.scan(start, end)) == expected
                assert list(view.scan(start, end, reverse=True)) == expected[::-1]
                for limit in (1, rng.randrange(2, 100), 600):
                    pieces = view.scan_pieces(start, end, reverse=False, limit=limit)
                    assert list(chain.from_iterable(pieces)) == expected[:limit]
                    pieces = view.scan_pieces(start, end, reverse=True, limit=limit)
                    assert list(chain.from_iterable(pieces)) == expected[::-1][:limit]


def test_the_newest_place_of_a_key_counts(tmp_path: Path) -> None:
    """Of a key in a memtable, in two files, and in a run, all with puts alone."""
    environment = Environment(clock=ManualClock())
    files = FileStore(
        open_store(str(tmp_path), environment=environment),
        path_of="sst/{}.sst".format,
        cache=BlockCache(0),
        options=FileOptions(block_bytes=600, page_bytes=150),
        environment=environment,
    )
    metas = [
        write(files, [Row(key, 1000 * age + n, int(Kind.PUT), b"%d" % age, None) for n, key in enumerate(keys)],
              environment=environment)
        for age, keys in ((1, KEYS), (2, KEYS[::2]), (3, KEYS[::3]))
    ]  # fmt: skip
    memtable = Memtable(5000)
    memtable.extend(KEYS[::5], [b"4"] * len(KEYS[::5]))
    view = View(
        memtables=[memtable],
        file_set=FileSet((metas[2], metas[1]), (Run("r", (metas[0],)),)),
        sequence=memtable.last_sequence,
        operator=None,
        environment=environment,
        files=files,
    )
    for start in (0, 1, 7, 800):
        ages = [b"4" if n % 5 == 0 else b"3" if n % 3 == 0 else b"2" if n % 2 == 0 else b"1" for n in range(900)]
        assert list(view.scan(KEYS[start])) == list(zip(KEYS, ages, strict=True))[start:]


class Deletions(Source):
    """Deleted rows without an end, of which it counts those that were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def find(self, low: bytes, row_count: int) -> tuple[bytes | None, None]:
        return b"%08d" % (self.taken + row_count), None

    def take(self, place: None, low: bytes, bound: bytes | None, newest: Newest) -> bool:
        assert bound is not None
        keys = [b"%08d" % number for number in range(self.taken, int(bound))]
        newest.update({key: [Row(key, 1, int(Kind.DELETE), b"", None)] for key in keys})
        self.taken += len(keys)
        return True


def test_rows_that_give_nothing_are_soon_left_to_batches() -> None:
    """However many deletions follow one another, no more than some hundred of their rows are made one by one."""
    source = Deletions()
    ends: list[bytes | None] = []

    def run() -> Generator[Iterable[tuple[bytes, bytes]], None, None]:
        end = yield from merge_sources([source], start=b"", end=None, resolve=lambda rows: None, count=FEW_ROWS)
        ends.append(end)

    assert list(run()) == []
    assert FEW_ROWS <= source.taken <= 2 * FEW_ROWS
    assert ends == [b"%08d" % source.taken]
