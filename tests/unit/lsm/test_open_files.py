"""What open files hold: little of each while the cache is small, more of those that are searched often."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from lakebed.lsm import file_reader
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.format import Pages, Tail, decode_tail
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, FileSet, Kind, Row, Run
from lakebed.lsm.view import View
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

ENVIRONMENT = Environment()
OPTIONS = FileOptions(block_bytes=1500, page_bytes=200)
FILE_COUNT = 8


def draw_keys(rng: random.Random) -> list[bytes]:
    """Keys of which many begin alike, for longer than a word, and some are odd."""
    stems = [b"", b"user/", b"user/" * 5, b"\0\0", b"\xff" * 9, b"k" * 40]
    return sorted({rng.choice(stems) + rng.randbytes(rng.randrange(1, 4)) for _ in range(2500)} - {b""})


def draw_rows(rng: random.Random, key: bytes) -> list[Row]:
    """One value, or a few versions, or so many that they go on in further blocks; the newest first."""
    count = rng.choice([1] * 60 + [2, 3, 40])
    return [
        Row(key, sequence, int(Kind.PUT), b"%d of " % sequence + key[:9] + bytes(rng.randrange(40)), None)
        for sequence in range(count, 0, -1)
    ]


def files_in(store: ObjectStore, *, cache_bytes: int) -> FileStore:
    """Files in a store."""
    cache = BlockCache(cache_bytes)
    return FileStore(store, path_of=str, cache=cache, options=OPTIONS, environment=ENVIRONMENT)


def write(files: FileStore, rows: list[Row]) -> FileMeta:
    """A file of sorted rows."""
    writer = files.writer(mint_file_id(environment=ENVIRONMENT))
    writer.write(batch_of(rows))
    return writer.finish()


def store_of(kind: str, tmp_path: Path) -> ObjectStore:
    """A folder, whose files are mapped, or a store that is read by requests."""
    return open_store(str(tmp_path) if kind == "mapped" else f"memory://{uuid.uuid4().hex}")


def write_run(store: ObjectStore, seed: int) -> tuple[dict[bytes, list[Row]], FileSet]:
    """A run of several files, and the rows of each of its keys."""
    rng = random.Random(seed)
    versions = {key: draw_rows(rng, key) for key in draw_keys(rng)}
    keys, files = list(versions), files_in(store, cache_bytes=0)
    metas, size = [], 1 + len(keys) // FILE_COUNT
    for first in range(0, len(keys), size):
        metas.append(write(files, [row for key in keys[first : first + size] for row in versions[key]]))
    return versions, FileSet(runs=(Run("run", tuple(metas)),))


def smallest_cache(store: ObjectStore, file_set: FileSet, *, loaded: float = 0.0) -> int:
    """Bytes in which all files stay open, and the loaded directories of a share of them."""
    size_bytes = 0
    for meta in file_set.runs[0].files:
        tail = files_in(store, cache_bytes=0).reader(meta).tail()
        assert tail.pages is not None
        size_bytes += tail.size_bytes + 400 + int(loaded * tail.pages.loaded_bytes)
    return size_bytes


@pytest.mark.parametrize("kind", ["mapped", "remote"])
def test_a_directory_says_the_same_where_it_is_stored_and_loaded(tmp_path: Path, kind: str) -> None:
    """Of each page its key and entry, and of each key its page, alone, in its block, and with many."""
    store = store_of(kind, tmp_path)
    versions, file_set = write_run(store, 1)
    for meta in file_set.runs[0].files:
        stored, loaded = (files_in(store, cache_bytes=0).reader(meta).tail().pages for _ in range(2))
        assert stored is not None
        assert loaded is not None
        loaded.load()
        assert stored.keys is None
        everything = range(len(stored))
        assert [stored[page] for page in everything] == loaded.keys == [loaded[page] for page in everything]
        assert list(stored.entries(0, len(stored))) == list(loaded.entries(0, len(loaded)))
        assert stored.take(everything).tobytes() == loaded.table.tobytes()
        near = sorted({*versions, *(key + b"\0" for key in versions), *(key[:-1] for key in versions)})
        assert all(stored.find(key) == loaded.find(key) for key in near)
        for key in near:
            block = stored.entry(max(stored.find(key), 0))[4]
            if key >= stored.first_keys[block]:
                assert stored.find_within(block, key) == loaded.find_within(block, key)


def view_of(files: FileStore, file_set: FileSet, *, sequence: int | None = None) -> View:
    """A view of files alone."""
    return View(memtables=(), file_set=file_set, sequence=sequence, operator=None, environment=ENVIRONMENT, files=files)


@pytest.mark.parametrize("kind", ["mapped", "remote"])
@pytest.mark.parametrize("share", [0, 0.4, 1, 1.3, 4])
def test_reads_equal_a_dictionary_whatever_the_cache_holds(tmp_path: Path, kind: str, share: float) -> None:
    """Gets, many at once, neighbours, absent keys and ranges, at two moments, of files that are open, in part or not.

    Args:
        share: of the cache in which all files stay open, without any loaded directory.
    """
    store = store_of(kind, tmp_path)
    versions, file_set = write_run(store, int(10 * share))
    rng = random.Random(int(10 * share))
    files = files_in(store, cache_bytes=int(share * smallest_cache(store, file_set)))
    for sequence in (None, 2):
        model = {
            key: rows[0].value if sequence is None else rows[-min(len(rows), sequence)].value
            for key, rows in versions.items()
        }
        absent = [key + b"\0" for key in model if key + b"\0" not in model]
        keys, view = list(model), view_of(files, file_set, sequence=sequence)
        for _ in range(3):
            some = [*rng.sample(keys, 100), *rng.sample(absent, 30), b"\xff" * 50]
            assert [key for key in some if view.get(key) != model.get(key)] == []
            assert view.get_many(some) == list(map(model.get, some))
            assert view.get_many(some[90:105]) == list(map(model.get, some[90:105]))
            low = rng.randrange(len(keys) - 200)
            assert view.get_many(keys[low : low + 200]) == list(map(model.get, keys[low : low + 200]))
            for start in (keys[low], keys[low] + b"\0", b"\0"):
                pairs = [(key, model[key]) for key in keys if start <= key][:150]
                assert [pair for pair, _ in zip(view.scan(start), pairs, strict=False)] == pairs
                assert list(view.scan(start, pairs[-1][0])) == pairs[:-1]
        assert sum(1 for _ in view.scan()) == len(keys)
        assert files.cache.size_bytes <= files.cache.bytes_max


@pytest.mark.parametrize("kind", ["mapped", "remote"])
@pytest.mark.parametrize("loaded", [0, 0.5, 3])
def test_a_file_is_opened_once_where_all_open_files_fit_in(
    tmp_path: Path, kind: str, loaded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of reads of all files open each once, and load no directory twice, however few may be loaded.

    Args:
        loaded: of the directories of pages, the share for which the cache has space in addition.
    """
    store = store_of(kind, tmp_path)
    versions, file_set = write_run(store, 3)
    opened: list[str] = []
    loads: list[Pages] = []
    load = Pages.load
    files = files_in(store, cache_bytes=smallest_cache(store, file_set, loaded=2 * loaded))

    def note_opened(*args: Any, path: str, **how: Any) -> Tail:
        opened.append(path)
        return decode_tail(*args, path=path, **how)

    def note_loaded(pages: Pages) -> None:
        loads.append(pages)
        load(pages)

    monkeypatch.setattr(file_reader, "decode_tail", note_opened)
    monkeypatch.setattr(Pages, "load", note_loaded)
    view, rng, keys = view_of(files, file_set), random.Random(4), list(versions)
    for _ in range(20):
        some = rng.sample(keys, 100)
        assert view.get_many(some) == [versions[key][0].value for key in some]
        assert all(view.get(key) == versions[key][0].value for key in some)
        assert view.get(some[0] + b"\xff" * 9) is None
        assert next(iter(view.scan(some[0])))[0] == some[0]
    assert len(opened) == len(set(opened)) == len(file_set.runs[0].files)
    tails = [files.reader(meta).tail() for meta in file_set.runs[0].files]
    loaded_count = sum(tail.pages is not None and tail.pages.keys is not None for tail in tails)
    assert len(loads) <= FILE_COUNT + (FILE_COUNT - loaded_count), "what was taken back was loaded again"
    assert loaded_count == FILE_COUNT if loaded == 3 else loaded_count < FILE_COUNT
    assert (loaded_count > 0) == (loaded > 0)
    assert files.cache.size_bytes <= files.cache.bytes_max


def test_few_keys_of_a_file_load_nothing(tmp_path: Path) -> None:
    """A directory is loaded once it was searched as often as that costs, and what the cache counts grows by it."""
    store = open_store(str(tmp_path))
    versions, file_set = write_run(store, 5)
    files = files_in(store, cache_bytes=1 << 24)
    meta = file_set.runs[0].files[0]
    reader = files.reader(meta)
    keys = [key for key in versions if meta.first_key <= key <= meta.last_key]
    pages = reader.tail().pages
    assert pages is not None
    former_bytes = files.cache.size_bytes
    assert reader.find_value(reader.tail(), keys[0]) is not None
    assert pages.keys is None
    for _ in range(len(pages)):
        reader.find_value(reader.tail(), keys[0])
    assert pages.keys is not None
    assert pages.loaded_bytes >= 80 * len(pages) + sum(map(len, pages.keys)) - sum(map(len, pages.first_keys))
    assert files.cache.size_bytes >= former_bytes + pages.loaded_bytes


def test_filters_of_many_files_are_asked_together(tmp_path: Path) -> None:
    """Of a hundred mapped files, once all are open; before that a call looks for one that is not open, not for all."""
    files = files_in(open_store(str(tmp_path)), cache_bytes=1 << 22)
    keys = [b"%05d" % (2 * number) for number in range(600)]
    parts = [keys[first : first + 6] for first in range(0, 600, 6)]
    metas = [write(files, [Row(key, 1, int(Kind.PUT), key, None) for key in part]) for part in parts]
    view = view_of(files, FileSet(runs=(Run("run", tuple(metas)),)))
    levels, asked = view.levels, [b"%05d" % number for number in range(1_210)]
    expected = [key if number % 2 == 0 and number < 1_200 else None for number, key in enumerate(asked)]
    assert [view.get(key) for key in asked[:-300]] == expected[:-300]
    assert view.filters() is None
    awaited = levels._awaited
    assert awaited is not None
    assert awaited[0].files[awaited[1]].first_key > asked[-300]
    for _ in range(3):
        assert view.get_many(asked) == expected
    assert levels._filter is not None
    assert [len(some) for _, some in view.filters() or ()] == [100]
    files.forget(metas[50].id)
    assert view.get_many(asked[::-7]) == expected[::-7]
