"""Bad input: each is reported in one clear sentence, with the error's class, kind and exit code; nothing changes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from lakebed import kv
from lakebed.cli import exits
from lakebed.cli.main import run
from lakebed.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.kv import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions, admin
from lakebed.kv.claim import first_manifest
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import CloneSource
from lakebed.lsm.model import KEY_BYTES_MAX
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase

BY_HAND = DatabaseOptions(background=False)
READ_BY_HAND = ReaderOptions(background=False)
EVERYTHING = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
UNKNOWN_ID = "7c1cf6ad-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class World:
    """A folder with databases in every state, and a folder that is not a database."""

    folder: Path
    expired: str

    def at(self, name: str) -> str:
        """A URL."""
        return str(self.folder / name)

    def state(self) -> dict[str, str]:
        """Every file, with what is in it; empty folders too."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a folder"
            for path in self.folder.rglob("*")
        }


def raised_format(body: bytes) -> bytes:
    """A manifest as a later lakebed might write it."""
    changed = body.replace(b'"min_reader":1,"min_writer":1', b'"min_reader":9,"min_writer":9')
    start = body.index(b'"checksum":"') + len(b'"checksum":"')
    return changed[:start] + b"%016x" % xxhash.xxh3_64_intdigest(changed[start + 17 :]) + changed[start + 16 :]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """``orders``, ``pinned`` by a clone ``fork``, ``gone``, ``half`` a clone, ``newer``, ``notes``, ``table``."""
    folder = tmp_path / "world"
    made = World(folder, "")
    for name in ("orders", "gone", "newer"):
        with kv.open(made.at(name), options=BY_HAND, durable=False) as db:
            for number in range(10):
                db.put(b"%d" % number, b"value")
            db.flush(memtable=True)
            db.put(b"in the log", b"value")
    admin.create_checkpoint(made.at("orders"), CheckpointOptions(name="first"))
    expired = admin.create_checkpoint(made.at("orders"), CheckpointOptions(lifetime=timedelta(milliseconds=1))).id
    admin.create_clone(made.at("fork"), made.at("orders"))
    admin.destroy(made.at("gone"), soft=True)
    half = DatabaseLocation.at(made.at("half"))
    begun = first_manifest(half, options=BY_HAND)
    ManifestLog(half).create(
        msgspec.structs.replace(
            begun, initialized=False, source=CloneSource(DatabaseLocation.at(made.at("orders")).url, None)
        )
    )
    newest = max((folder / "newer" / "manifest").iterdir())
    newest.write_bytes(raised_format(newest.read_bytes()))
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.txt").write_text("mine")
    return World(folder, expired)


def reading(world: World, name: str, checkpoint: str | None = None) -> Any:
    """Open a reader and let it go."""
    kv.open_reader(world.at(name), checkpoint, options=READ_BY_HAND).close()


def writing(world: World, name: str, **settings: Any) -> Any:
    """Open to write."""
    return kv.open(world.at(name), options=BY_HAND, durable=False, **settings)


Asking = Callable[[World], Any]
CALLS: dict[str, tuple[Asking, type[LakebedError], str]] = {
    "read unknown checkpoint": (lambda w: reading(w, "orders", UNKNOWN_ID), InvalidRequest, "invalid_db_state"),
    "read expired checkpoint": (lambda w: reading(w, "orders", w.expired), InvalidRequest, "invalid_db_state"),
    "read no text": (lambda w: reading(w, "orders", 7), InvalidRequest, ""),  # type: ignore[arg-type]
    "read nothing": (lambda w: reading(w, "nothing"), NotFound, "database_not_found"),
    "read notes": (lambda w: reading(w, "notes"), NotFound, "database_not_found"),
    "read newer": (lambda w: reading(w, "newer"), UnsupportedFormat, "unsupported_format"),
    "read gone": (lambda w: reading(w, "gone"), InvalidRequest, "invalid_db_state"),
    "read half": (lambda w: reading(w, "half"), InvalidRequest, "invalid_db_state"),
    "write notes": (lambda w: writing(w, "notes"), InvalidRequest, "not_a_database"),
    "write nothing": (lambda w: writing(w, "nothing", create=False), NotFound, "database_not_found"),
    "write newer": (lambda w: writing(w, "newer"), UnsupportedFormat, "unsupported_format"),
    "write gone": (lambda w: writing(w, "gone"), InvalidRequest, "invalid_db_state"),
    "write half": (lambda w: writing(w, "half"), InvalidRequest, "invalid_db_state"),
    "write half anew": (lambda w: writing(w, "half", after_destroy=True), InvalidRequest, "invalid_db_state"),
    "pin nothing": (lambda w: admin.create_checkpoint(w.at("nothing")), NotFound, "database_not_found"),
    "pin gone": (lambda w: admin.create_checkpoint(w.at("gone")), InvalidRequest, "invalid_db_state"),
    "pin half": (lambda w: admin.create_checkpoint(w.at("half")), InvalidRequest, "invalid_db_state"),
    "pin newer": (lambda w: admin.create_checkpoint(w.at("newer")), UnsupportedFormat, "unsupported_format"),
    "pin of unknown": (
        lambda w: admin.create_checkpoint(w.at("orders"), CheckpointOptions(source=UNKNOWN_ID)),
        InvalidRequest,
        "invalid_db_state",
    ),
    "pin of expired": (
        lambda w: admin.create_checkpoint(w.at("orders"), CheckpointOptions(source=w.expired)),
        InvalidRequest,
        "invalid_db_state",
    ),
    "pin for no time": (
        lambda w: admin.create_checkpoint(w.at("orders"), CheckpointOptions(lifetime=timedelta(0))),
        InvalidRequest,
        "invalid_lifetime",
    ),
    "pin a taken name": (
        lambda w: admin.create_checkpoint(w.at("orders"), CheckpointOptions(name="first")),
        AlreadyExists,
        "",
    ),
    "refresh unknown": (
        lambda w: admin.refresh_checkpoint(w.at("orders"), UNKNOWN_ID),
        InvalidRequest,
        "invalid_db_state",
    ),
    "refresh expired": (
        lambda w: admin.refresh_checkpoint(w.at("orders"), w.expired),
        InvalidRequest,
        "invalid_db_state",
    ),
    "delete unknown": (
        lambda w: admin.delete_checkpoint(w.at("orders"), UNKNOWN_ID),
        InvalidRequest,
        "invalid_db_state",
    ),
    "delete a clone's": (
        lambda w: admin.delete_checkpoint(w.at("orders"), admin.list_checkpoints(w.at("orders"))[-1].id),
        InvalidRequest,
        "",
    ),
    "restore unknown": (lambda w: admin.restore(w.at("orders"), UNKNOWN_ID), NotFound, ""),
    "restore expired": (lambda w: admin.restore(w.at("orders"), w.expired), LakebedError, ""),
    "restore gone": (lambda w: admin.restore(w.at("gone"), "first"), LakebedError, ""),
    "clone nothing": (lambda w: admin.create_clone(w.at("new"), w.at("nothing")), NotFound, "database_not_found"),
    "clone gone": (lambda w: admin.create_clone(w.at("new"), w.at("gone")), InvalidRequest, "invalid_db_state"),
    "clone half": (lambda w: admin.create_clone(w.at("new"), w.at("half")), InvalidRequest, "invalid_db_state"),
    "clone of unknown": (
        lambda w: admin.create_clone(w.at("new"), w.at("orders"), UNKNOWN_ID),
        InvalidRequest,
        "invalid_db_state",
    ),
    "clone of expired": (
        lambda w: admin.create_clone(w.at("new"), w.at("orders"), w.expired),
        InvalidRequest,
        "invalid_db_state",
    ),
    "clone onto a database": (
        lambda w: admin.create_clone(w.at("newer"), w.at("orders")),
        UnsupportedFormat,
        "unsupported_format",
    ),
    "clone onto another": (
        lambda w: admin.create_clone(w.at("orders"), w.at("fork")),
        AlreadyExists,
        "database_exists",
    ),
    "clone onto gone": (lambda w: admin.create_clone(w.at("gone"), w.at("orders")), AlreadyExists, "database_exists"),
    "clone onto itself": (
        lambda w: admin.create_clone(w.at("orders"), w.at("orders")),
        InvalidRequest,
        "clone_onto_itself",
    ),
    "clone onto notes": (lambda w: admin.create_clone(w.at("notes"), w.at("orders")), InvalidRequest, ""),
    "clone elsewhere": (
        lambda w: admin.create_clone("memory://elsewhere/x", w.at("orders")),
        InvalidRequest,
        "other_store",
    ),
    "destroy pinned": (lambda w: admin.destroy(w.at("orders"), soft=False), InvalidRequest, "invalid_deletion"),
    "destroy nothing": (lambda w: admin.destroy(w.at("nothing"), soft=True), NotFound, "database_not_found"),
    "destroy notes": (lambda w: admin.destroy(w.at("notes"), soft=False), NotFound, "database_not_found"),
    "destroy newer": (lambda w: admin.destroy(w.at("newer"), soft=False), UnsupportedFormat, "unsupported_format"),
    "collect nothing": (lambda w: admin.collect(w.at("nothing")), NotFound, "database_not_found"),
    "collect newer": (
        lambda w: admin.collect(w.at("newer"), options=EVERYTHING),
        UnsupportedFormat,
        "unsupported_format",
    ),
    "compact gone": (lambda w: admin.compact(w.at("gone"), full=True), InvalidRequest, "invalid_db_state"),
    "compact half": (lambda w: admin.compact(w.at("half"), full=True), InvalidRequest, "invalid_db_state"),
    "a cache below nothing": (
        lambda w: kv.open(w.at("orders"), options=DatabaseOptions(cache_bytes=-1)),
        InvalidRequest,
        "invalid_option",
    ),
    "blocks of nothing": (
        lambda w: kv.open(w.at("orders"), options=DatabaseOptions(block_bytes=0)),
        InvalidRequest,
        "invalid_option",
    ),
    "show what was never": (lambda w: admin.show_manifest(w.at("orders"), 99), NotFound, "manifest_not_found"),
}


def check_sentence(text: str) -> None:
    """One line, that a person reads, with nothing of Python in it."""
    assert "\n" not in text, text
    assert 20 < len(text) < 450, text
    assert not re.search(r"Traceback|object at 0x|None,|\b(KeyError|ValueError|TypeError)\b", text), text


@pytest.mark.parametrize("asked", CALLS)
def test_a_wrong_call(world: World, asked: str) -> None:
    """The error's class, its kind and its sentence; and every file is what it was."""
    call, error, kind = CALLS[asked]
    before = world.state()
    with pytest.raises(error) as refusal:
        call(world)
    assert not kind or refusal.value.kind == kind
    check_sentence(str(refusal.value))
    assert world.state() == before


WORDS: dict[str, tuple[list[str], int]] = {
    "no lifetime": (["orders", "tag", "-l", "soon"], exits.USAGE),
    "half a lifetime": (["orders", "tag", "-l", "7"], exits.USAGE),
    "a lifetime below zero": (["orders", "tag", "-l", "-7d"], exits.USAGE),
    "no source": (["orders", "tag", "-s", UNKNOWN_ID], exits.NOT_FOUND),
    "get from no checkpoint": (["orders", "get", "k", "--checkpoint", "nope"], exits.NOT_FOUND),
    "scan of no checkpoint": (["orders", "scan", "--checkpoint", UNKNOWN_ID], exits.NOT_FOUND),
    "clone of no checkpoint": (["orders", "branch", "./new", "--checkpoint", "nope"], exits.NOT_FOUND),
    "a taken name": (["orders", "tag", "first"], exits.CONFLICT),
    "an empty key": (["orders", "put", "", "x"], exits.USAGE),
    "a key that is too long": (["orders", "put", "x" * (KEY_BYTES_MAX + 1), "x"], exits.USAGE),
    "no hexadecimal": (["orders", "put", "xyz", "00", "--encoding", "hex"], exits.USAGE),
    "a key that is too long to get": (["orders", "get", "x" * (KEY_BYTES_MAX + 1)], exits.USAGE),
    "get from newer": (["newer", "get", "k"], exits.FAULTY),
    "put into newer": (["newer", "put", "k", "v"], exits.FAULTY),
    "put into gone": (["gone", "put", "k", "v"], exits.USAGE),
    "put into half": (["half", "put", "k", "v"], exits.USAGE),
    "put into notes": (["notes", "put", "k", "v"], exits.USAGE),
    "get from nothing": (["nothing", "get", "k"], exits.NOT_FOUND),
    "restore to nothing": (["orders", "restore", UNKNOWN_ID, "--yes"], exits.NOT_FOUND),
    "destroy what is pinned": (["orders", "drop", "--hard", "--yes"], exits.USAGE),
    "clone onto a database": (["fork", "branch", "./orders"], exits.CONFLICT),
    "collect for no age": (["orders", "collect", "--grace", "old"], exits.USAGE),
}


@pytest.mark.parametrize("asked", WORDS)
def test_a_wrong_command(
    world: World, asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code, one sentence on standard error, the same as JSON; and every file is what it was."""
    words, code = WORDS[asked]
    monkeypatch.chdir(world.folder)
    before = world.state()
    command = ["kv", "--path", world.at(words[0]), *words[1:]]
    assert run(command) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert run([*command, "--json"]) == code
    error = json.loads(capsys.readouterr().err)["error"]
    check_sentence(error["message"])
    assert world.state() == before


def test_an_oversized_key_is_refused_by_every_verb() -> None:
    """A key that no put accepts is not answered as if it could be there: each verb says the same sentence."""
    manual = ManualDatabase.new()
    longest, key = b"k" * KEY_BYTES_MAX, b"k" * (KEY_BYTES_MAX + 1)
    batch = kv.WriteBatch()
    with manual.open() as db, db.transaction() as t, db.snapshot() as snapshot, ExitStack() as stack:
        db.put(longest, b"1")
        db.create_checkpoint(CheckpointOptions(name="first"))
        readers = [
            stack.enter_context(manual.reader(**settings))
            for settings in ({}, {"follow_latest": True}, {"checkpoint": "first"})
        ]
        calls: list[Callable[[], object]] = [
            lambda: db.put(key, b""),
            lambda: db.put(key, b"", ttl=timedelta(1)),
            lambda: db.delete(key),
            lambda: db.merge(key, b""),
            lambda: db.set_if(key, b"", expected=None),
            lambda: db.write_if(batch, expected={key: None}),
            lambda: db.get(key, linearizable=True),
            lambda: t.put(key, b""),
            lambda: t.delete(key),
            lambda: batch.put(key, b""),
            lambda: batch.delete(key),
            lambda: batch.merge(key, b""),
            lambda: batch.put_many([key], [b""]),
        ]
        for source in (db, t, snapshot, *readers):
            calls += [
                lambda source=source: source.get(key),  # type: ignore[misc]
                lambda source=source: source.get_many([b"a", key]),  # type: ignore[misc]
                lambda source=source: source.scan(key),  # type: ignore[misc]
                lambda source=source: source.scan(None, key, reverse=True),  # type: ignore[misc]
                lambda source=source: source.scan_prefix(key),  # type: ignore[misc]
                lambda source=source: source.scan_arrow(key, None),  # type: ignore[misc]
                lambda source=source: source.scan_arrow(prefix=key),  # type: ignore[misc]
            ]
            # Where the page behind the longest key begins.
            assert list(source.scan(longest + b"\0")) == []
        for call in calls:
            with raises(InvalidRequest, "oversized_key", match="65,536 bytes, and 65,535 are possible"):
                call()
        assert len(batch) == 0
        assert [db.get(longest), *db.get_many([longest])] == [b"1", b"1"]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (b"", "empty_key"),
        ("key", "wrong_type"),
        (None, "wrong_type"),
        (7, "wrong_type"),
        ([b"key"], "wrong_type"),
        (bytearray(b"key"), "wrong_type"),
        (memoryview(b"key"), "wrong_type"),
        (memoryview(b"keys")[::2], "wrong_type"),
        (np.array([1, 2]), "wrong_type"),
        (np.array([[1, 2]])[:, ::2], "wrong_type"),
    ],
)
def test_a_key_of_many_that_is_none(key: Any, kind: str) -> None:
    """Among valid keys too: also what can be joined with bytes, or compared with them, or neither, is no key."""
    with ManualDatabase.new().open() as db:
        db.put(b"key", b"1")
        for keys in ([key], [b"a", key], [key, b"key"], [b"k" * KEY_BYTES_MAX, key]):
            with raises(InvalidRequest, kind):
                db.get_many(keys)
        assert db.get_many([b"k" * KEY_BYTES_MAX, type("Key", (bytes,), {})(b"key"), b"key"]) == [None, b"1", b"1"]
        assert db.get_many(iter([])) == []
        for one in (None, 7):
            with raises(InvalidRequest, "wrong_type"):
                db.get_many(one)  # type: ignore[arg-type]


def test_opening_under_a_live_lease(world: World) -> None:
    """Conflict names the owner, for opening, restoring and destroying; the owner goes on writing."""
    with writing(world, "orders") as db:
        before = world.state()
        for call in (
            lambda: writing(world, "orders"),
            lambda: admin.restore(world.at("orders"), "first"),
            lambda: admin.destroy(world.at("orders"), soft=True),
        ):
            with raises(Conflict, "owned", match="owned by process") as refusal:
                call()
            check_sentence(str(refusal.value))
            assert world.state() == before
        db.put(b"k", b"v")


# ---- disks


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, where that may be had."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system, and not everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    """A write that does not fit fails at once with a full disk; durable rows stay; it goes on once space is free."""
    with mounted(tmp_path / "disk", "size=2m") as disk:
        url = str(disk / "orders")
        db = kv.open(url, options=BY_HAND)
        db.put(b"early", b"1")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            file.writelines(bytes(4096) for _ in range(1_000))
        with raises(OutcomeUnknown, "disk_full", match="the disk is full") as late:
            db.put(b"late", bytes(10_000))
        check_sentence(str(late.value))
        before = sorted(path.name for path in disk.rglob("*") if path.is_file() and path.name != "lease.json")
        for call in (
            lambda: admin.create_checkpoint(url),
            lambda: admin.create_clone(disk / "fork", url),
            lambda: kv.open(url, options=BY_HAND, take_over=True),
            lambda: kv.open(disk / "another", options=BY_HAND),
            lambda: db.flush(memtable=True),
        ):
            with raises((Unavailable, OutcomeUnknown), "disk_full", match="disk is full") as refusal:
                call()
            check_sentence(str(refusal.value))
        assert sorted(p.name for p in disk.rglob("*") if p.is_file() and p.name != "lease.json") == before
        with kv.open_reader(url, options=ReaderOptions(background=False, follow_latest=True)) as reader:
            assert dict(reader.scan()) == {b"early": b"1"}, "reading needs no room"
        filler.unlink()
        db.put(b"later", b"2")
        db.close()
        with kv.open(url, options=BY_HAND) as again:
            assert sorted(key for key, _ in again.scan()) == [b"early", b"late", b"later"]


def test_a_read_only_disk(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading works without a checkpoint of its own; every write is refused in one sentence."""
    with mounted(tmp_path / "disk", "size=8m") as disk:
        shutil.copytree(world.folder, disk / "world")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        url = str(disk / "world" / "orders")
        with kv.open_reader(url, options=ReaderOptions(background=False, follow_latest=True)) as reader:
            assert reader.get(b"in the log") == b"value"
        assert run(["kv", "--path", url, "get", "in the log"]) == exits.OK
        assert run(["kv", "--path", url, "scan", "--count"]) == exits.OK
        assert run(["kv", "--path", url, "put", "k", "v"]) == exits.USAGE
        assert "owner, mode and mount" in capsys.readouterr().err
        for call in (
            lambda: reading(World(disk / "world", ""), "orders"),
            lambda: admin.create_checkpoint(url),
            lambda: admin.create_clone(disk / "fork", url),
            lambda: kv.open(url, options=BY_HAND),
            lambda: kv.open(disk / "new", options=BY_HAND),
            lambda: admin.compact(url, full=True),
            lambda: admin.restore(url, "first"),
        ):
            with raises(InvalidRequest, "permission_denied", match="owner, mode and mount") as refusal:
                call()
            check_sentence(str(refusal.value))
