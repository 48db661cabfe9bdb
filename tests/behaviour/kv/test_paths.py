"""Databases of one folder by many paths: its own, a relative one, a link's, a URL; each is one database by all of them.

Clones name their parents by URL, and parents pin what their clones read, so a path that was taken for another database
would lose or hide rows. Every verb goes by another path than the one before it; a dictionary for each database and
checkpoint says what is there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from lakebed import kv
from lakebed.errors import InvalidRequest

STEPS = 60
DATABASES_MAX = 6
SMALL = kv.DatabaseOptions(
    l0_sst_bytes=3_000, l0_compaction_count=3, run_compaction_count=2, run_file_bytes=4_000, block_bytes=400,
    background=False,
)  # fmt: skip
BY_HAND = kv.ReaderOptions(background=False)
EVERYTHING = kv.CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))

Rows = dict[bytes, bytes]


class Databases:
    """The databases, and what each holds."""

    def __init__(self, folder: Path, rng: random.Random, handles: ExitStack) -> None:
        self.rng = rng
        (folder / "a real%20place").mkdir()
        (folder / "link").symlink_to("a real%20place")
        self.places = [f"{folder}/a real%20place", f"{folder}/link", f"file://{folder}/link", "link",
                       f"{folder}/link/../a real%20place", f"file://{folder}/a real%20place"]  # fmt: skip
        self.rows: dict[str, Rows] = {"0": {}}
        self.checkpoints: dict[str, dict[str, Rows]] = {"0": {}}
        self.handles = handles
        self.count = 0

    def path(self, name: str) -> str:
        """One of its paths."""
        return f"{self.rng.choice(self.places)}/{name}.kv{self.rng.choice(('', '/'))}"

    def write(self, name: str) -> None:
        """Some rows; sometimes the process dies, and sometimes it has compacted before."""
        database = kv.open(self.path(name), options=SMALL, take_over=True)
        for _ in range(self.rng.randrange(30)):
            self.count += 1
            key, value = b"%03d" % self.rng.randrange(60), b"%d " % self.count * self.rng.randrange(1, 40)
            database.put(key, value, await_durable=False)
            self.rows[name][key] = value
        database.flush(memtable=self.rng.random() < 0.5)
        if self.rng.random() < 0.4:
            database.compact(full=True)
        if self.rng.random() < 0.7:
            database.close()
        else:
            self.handles.callback(database.abandon)

    def read(self, name: str) -> None:
        """All rows, and those of every checkpoint."""
        for checkpoint, rows in [(None, self.rows[name]), *self.checkpoints[name].items()]:
            with kv.open_reader(self.path(name), checkpoint, options=BY_HAND) as reader:
                assert dict(reader.scan()) == rows, (name, checkpoint)

    def pin(self, name: str) -> None:
        """A checkpoint."""
        self.checkpoints[name][kv.admin.create_checkpoint(self.path(name)).id] = dict(self.rows[name])

    def clone(self, name: str) -> None:
        """A clone of the newest version, or of a checkpoint."""
        if len(self.rows) == DATABASES_MAX:
            return
        checkpoint = self.rng.choice([None, *self.checkpoints[name]])
        new = str(len(self.rows))
        kv.admin.create_clone(self.path(new), self.path(name), checkpoint, copy=self.rng.random() < 0.2)
        self.rows[new] = dict(self.rows[name] if checkpoint is None else self.checkpoints[name][checkpoint])
        self.checkpoints[new] = {}

    def restore(self, name: str) -> None:
        """A checkpoint is the newest version again."""
        if self.checkpoints[name]:
            checkpoint, rows = self.rng.choice(list(self.checkpoints[name].items()))
            kv.admin.restore(self.path(name), checkpoint, take_over=True)
            self.rows[name] = dict(rows)

    def begin_again(self, name: str) -> None:
        """Destroy one that nothing needs, and make another one there."""
        for checkpoint in self.checkpoints[name]:
            kv.admin.delete_checkpoint(self.path(name), checkpoint)
        self.checkpoints[name] = {}
        try:
            kv.admin.destroy(self.path(name), soft=False, take_over=True)
        except InvalidRequest:
            return  # a clone, or what was there before a restore, needs it
        kv.open(self.path(name), options=SMALL, after_destroy=True).close()
        self.rows[name] = {}

    def collect(self, name: str) -> None:
        """Delete everything that no version of it needs."""
        kv.admin.collect(self.path(name), options=EVERYTHING)

    def step(self) -> None:
        """Do something with one of them."""
        acts: list[Callable[[str], None]] = [
            self.write, self.write, self.read, self.pin, self.clone, self.restore, self.begin_again, self.collect,
            self.collect,
        ]  # fmt: skip
        self.rng.choice(acts)(self.rng.choice(list(self.rows)))


@pytest.fixture
def handles() -> Iterator[ExitStack]:
    """Ends what was left open."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("seed", [1, 2])
def test_every_path_is_the_same_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handles: ExitStack, seed: int
) -> None:
    """Nothing is lost or hidden, whatever path each verb takes, and no path makes a folder of its own."""
    monkeypatch.chdir(tmp_path)
    databases = Databases(tmp_path, random.Random(seed), handles)
    databases.write("0")
    for _ in range(STEPS):
        databases.step()
    for name in databases.rows:
        databases.read(name)
    assert sorted(os.listdir(tmp_path)) == ["a real%20place", "link"]
