"""Pages of files: long keys, many pages at once in parts, and damage of any one of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lakebed.errors import Corruption
from lakebed.lsm import file_reader
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.format import decode_tail
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, FileSet, Kind, Row
from lakebed.lsm.view import View
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import ManualClock


class Files:
    """One file with some rows, in memory or on a disk, and views of it."""

    def __init__(self, url: str, rows: dict[bytes, bytes], **options: int) -> None:
        self.environment = Environment(clock=ManualClock(), rng=random.Random(1))
        self.store: ObjectStore = open_store(url, environment=self.environment)
        self.options = FileOptions(**options)  # type: ignore[arg-type]
        writer = self.files().writer(mint_file_id(environment=self.environment))
        writer.write(
            batch_of([Row(key, 1 + at, int(Kind.PUT), rows[key], None) for at, key in enumerate(sorted(rows))])
        )
        self.meta: FileMeta = writer.finish()

    def files(self) -> FileStore:
        """Files of which nothing is cached."""
        return FileStore(
            self.store, path_of="{}.sst".format, cache=BlockCache(0), options=self.options, environment=self.environment
        )

    def view(self) -> View:
        """Of the file alone."""
        return View(
            memtables=[], file_set=FileSet((self.meta,)), sequence=None, operator=None, environment=self.environment,
            files=self.files(),
        )  # fmt: skip


@pytest.fixture(params=["memory", "disk"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place."""
    return f"memory://pages-{tmp_path.name}" if request.param == "memory" else str(tmp_path)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 300, 1_000])
def test_keys_of_any_length_are_found(url: str, size: int) -> None:
    """Alone and with others, where all of a page are equally long and where they are not."""
    for extra in (0, 1):
        rows = {b"%0*d" % (size + (number % 2) * extra, number % 10): b"v%d" % number for number in range(10)}
        view = Files(f"{url}/{size}-{extra}", rows, page_bytes=4_000).view()
        assert {key: view.get(key) for key in rows} == rows
        assert dict(zip(rows, view.get_many(list(rows)), strict=True)) == rows
        for key in rows:
            assert view.get(key + b"x") is view.get(key[:-1] + b"\xff") is None


@pytest.mark.parametrize("ahead_bytes", [1, 500, 1_000, 3_000, 1 << 20])
@pytest.mark.parametrize("seed", range(2))
def test_many_keys_are_read_in_parts(url: str, monkeypatch: pytest.MonkeyPatch, seed: int, ahead_bytes: int) -> None:
    """As many pages at once as fit in what may be read ahead, one at least: each key has its value, or none."""
    monkeypatch.setattr(file_reader, "AHEAD_BYTES_DEFAULT", ahead_bytes)
    rng = random.Random(seed)
    rows = {b"key %04d" % number: bytes(rng.randint(0, 60)) for number in range(0, 800, 2)}
    view = Files(url, rows, block_bytes=2_000, page_bytes=rng.choice([150, 400])).view()
    for count in (1, 5, 40, 300):
        keys = [b"key %04d" % rng.randrange(800) for _ in range(count)]
        assert view.get_many(keys) == [rows.get(key) for key in keys]
    assert dict(view.scan()) == rows


def test_damage_of_any_page_is_named(url: str) -> None:
    """Whichever byte of a file is another: what is read is right, or it is called damaged; nothing else is shown."""
    rows = {b"key %04d" % number: b"value %d" % number for number in range(120)}
    files = Files(url, rows, block_bytes=600, page_bytes=200)
    path = f"{files.meta.id}.sst"
    whole = bytes(files.store.get(path))
    keys = list(rows)
    damaged: list[object] = []
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        files.store.delete([path])
        files.store.put(path, whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        for read in (
            lambda: dict(zip(keys, files.view().get_many(keys), strict=True)),
            lambda: {key: files.view().get(key) for key in keys[::10]} | {key: rows[key] for key in keys},
            lambda: dict(files.view().scan()),
        ):
            try:
                assert read() == rows
            except Corruption as error:
                damaged.append(error.facts["path"])
    assert len(damaged) > 200
    assert set(damaged) == {path}


def test_a_file_that_ends_early_says_where(url: str) -> None:
    """At the byte behind the last that is there."""
    files = Files(url, {b"a": b"1"})
    body = memoryview(bytes(files.store.get(f"{files.meta.id}.sst")))[files.meta.tail_offset :]
    decode_tail(body, meta=files.meta, path="x")
    for length in (0, 1, 3, len(body) - 1):
        with pytest.raises(Corruption) as caught:
            decode_tail(body[:length], meta=files.meta, path="x")
        assert caught.value.facts["offset"] == files.meta.tail_offset + length
