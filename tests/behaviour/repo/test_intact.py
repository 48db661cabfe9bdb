"""Reads of objects whose bytes are not those that were stored or imported: an error, never other bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo
from lakebed.cli import exits
from lakebed.cli.main import run
from lakebed.errors import Corruption, InvalidRequest
from lakebed.objects.port import ObjectMeta
from lakebed.repo.heads.importing import ImportSource
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.repo.objects.intact import check_source, stream_object
from lakebed.repo.repository import Repository
from lakebed.repo.transport.transport import context_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

BODY = bytes(range(250)) * 40

READS: dict[str, Callable[[Any, str], object]] = {
    "get": lambda branch, path: branch.get(path),
    "range": lambda branch, path: branch.get(path, byte_range=(len(BODY) - 10, len(BODY))),
    "stream": lambda branch, path: b"".join(branch.stream(path)),
    "open": lambda branch, path: branch.open(path).read(),
    "store": lambda branch, path: branch.store().get(path),
    "store ranges": lambda branch, path: branch.store().get_ranges(path, [(0, 5), (len(BODY) - 5, len(BODY))]),
    "tasks": lambda branch, path: branch.store().for_tasks().with_entries({path: branch.stat(path)}).get(path),
}


@pytest.fixture(params=["process", "server"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    """A repository in this process, or the same behind a server."""
    if request.param == "process":
        with lakebed.repo.open(f"{tmp_path}/lake/some.repo", durable=False) as opened:
            yield opened
        return
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False, import_from=[str(tmp_path)])) as running:
        running.site.repositories.create("some")
        messages = running.started
        with lakebed.repo.open(
            f"{messages.endpoint}/some",
            access=lakebed.repo.Access(access_key=str(messages.access_key), secret=str(messages.secret)),
        ) as opened:
            yield opened


def touched(path: Path, body: bytes) -> None:
    """Write a file that is at least a nanosecond younger than before."""
    before_ns = path.stat().st_mtime_ns
    path.write_bytes(body)
    os.utime(path, ns=(before_ns + 1, before_ns + 1))


@pytest.mark.parametrize("harm", ["same size", "longer", "shorter", "empty"])
def test_an_imported_object_that_changed_is_not_read(repository: Repository, tmp_path: Path, harm: str) -> None:
    """With any size it has now, every way of reading ends with an error of its own kind."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(BODY)
    main = repository.branch("main")
    main.import_objects([ImportSource(str(source), "in")])
    for read in READS.values():
        read(main, "in/a")
    touched(
        source / "a",
        {"same size": BODY[::-1], "longer": BODY + b"more", "shorter": BODY[:100], "empty": b""}[harm],
    )
    for name, read in READS.items():
        with pytest.raises(Corruption) as raised:
            read(main, "in/a")
        assert raised.value.kind == "import_changed", name


def test_an_object_that_was_cut_is_damaged(repository: Repository, tmp_path: Path) -> None:
    """An object of the repository that is shorter than recorded is corrupt, however it is read; no wrong request."""
    main = repository.branch("main")
    main.put("a", BODY)
    (stored,) = (tmp_path / "lake" / "some.repo" / "data").iterdir()
    for body in (BODY[:-1], b"x", b""):
        stored.write_bytes(body)
        for read in READS.values():
            with pytest.raises(Corruption):
                read(main, "a")


def test_a_whole_read_sees_an_object_that_grew(tmp_path: Path) -> None:
    """The error names the object, its size and the size that it had."""
    with lakebed.repo.open(f"{tmp_path}/lake/some.repo", durable=False) as opened:
        main = opened.branch("main")
        main.put("a", b"1234")
        main.put("empty", b"")
        for path in ("a", "empty"):
            stored = Path(data.physical_url(context_of(opened), main.stat(path)).removeprefix("file://"))
            stored.write_bytes(b"123456")
            with pytest.raises(Corruption, match="has 6 now") as raised:
                main.get(path)
            assert (raised.value.kind, raised.value.facts["path"]) == ("wrong_size", main.stat(path).address)
        with pytest.raises(Corruption):
            list(main.stream("empty"))


def test_a_source_that_changes_during_a_stream_is_noticed(tmp_path: Path) -> None:
    """The last chunk is not given when the source is another one by then."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(BODY)
    with lakebed.repo.open(f"{tmp_path}/lake/some.repo", durable=False) as opened:
        main = opened.branch("main")
        main.import_objects([ImportSource(str(source), "in")])
        entry = main.stat("in/a")
        store, path = context_of(opened).foreign.locate(entry.address)
        chunks = stream_object(store, path, entry, chunk_bytes=len(BODY) // 3)
        assert bytes(next(chunks)) == BODY[: len(BODY) // 3]
        touched(source / "a", BODY[::-1])
        with pytest.raises(Corruption, match="changed since"):
            list(chunks)


def test_a_restored_copy_with_its_time_is_the_same_object(tmp_path: Path) -> None:
    """A backup gives a file another inode: time and size decide."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(BODY)
    with lakebed.repo.open(f"{tmp_path}/lake/some.repo", durable=False) as opened:
        main = opened.branch("main")
        main.import_objects([ImportSource(str(source), "in")])
        shutil.copy2(source / "a", tmp_path / "backup")
        (source / "a").unlink()
        shutil.copy2(tmp_path / "backup", source / "a")
        assert main.get("in/a") == BODY


MD5 = "9e107d9d372bb6826bd81d3542a419d6"


@pytest.mark.parametrize(
    ("checksum", "etag", "later_ms", "is_same"),
    [
        (MD5, f'"{MD5}"', 5, True),
        (MD5, f'"{MD5[::-1]}"', 5, False),
        (MD5, f'"{MD5}-3"', 0, False),
        (MD5, f'"{MD5[::-1]}"', -5, True),  # linked later, with a checksum of the client's own
        (MD5, "1a-2b-3c", 5, True),  # no etag of a file
        (MD5, '"0x8DC1"', 5, True),
        ("0x8DC0", '"0x8DC1"', 5, False),
        ("1a-2b-3c", "ff-2b-3c", -5, True),
        ("1a-2b-3c", "1a-2c-3c", -5, False),  # an older file was moved there
        ("", '"0x8DC1"', 5, True),
        (MD5, None, 5, True),
    ],
)
def test_what_counts_as_another_etag(checksum: str, etag: str | None, later_ms: int, is_same: bool) -> None:
    """Etags of one form are compared; a checksum that a client has stated is not an etag."""
    entry = Entry("s3://bucket/a", 4, checksum, 1_000)
    meta = ObjectMeta("a", 4, 1_000 + later_ms, etag)
    if is_same:
        check_source(entry, meta)
        return
    with pytest.raises(Corruption):
        check_source(entry, meta)


def test_wrong_ranges_of_tasks_are_requests_not_damage(tmp_path: Path) -> None:
    """A range past the end that the object never had is the caller's mistake."""
    with lakebed.repo.open(f"{tmp_path}/lake/some.repo", durable=False) as opened:
        main = opened.branch("main")
        main.put("a", b"1234")
        store = main.store().for_tasks().with_entries({"a": main.stat("a")})
        for wrong in ((4, 5), (2, 2)):
            with pytest.raises(InvalidRequest):
                store.get("a", byte_range=wrong)


def test_the_command_ends_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`repo get` of a changed import and of a damaged object: stored data is damaged, the command is not wrong."""
    source, lake = tmp_path / "source", str(tmp_path / "lake")
    source.mkdir()
    (source / "a").write_bytes(b"row1\n")
    (tmp_path / "file").write_bytes(b"hello")
    assert run(["repo", "create", lake, "some"]) == 0
    assert run(["repo", "import", lake, "some", "main", str(source), "in"]) == 0
    assert run(["repo", "put", lake, "some", "main", "b", str(tmp_path / "file")]) == 0
    (stored,) = (tmp_path / "lake" / "some.repo" / "data").iterdir()
    (source / "a").write_bytes(b"row1 is longer\n")
    stored.write_bytes(b"h")
    capsys.readouterr()
    for path, words in (("in/a", "changed since"), ("b", "is damaged")):
        assert run(["repo", "get", lake, "some", "main", path]) == exits.FAULTY
        assert words in capsys.readouterr().err
