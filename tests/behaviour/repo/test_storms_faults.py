"""A disk that is full, and processes that fork while repositories are open."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.repo import open_all
from worlds.repo.client import QUIET, check_sound

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB, which only root may mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root mounts file systems")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, leave: int) -> Path:
    """A file that leaves so many bytes."""
    stats = os.statvfs(folder)
    path = folder / "filler"
    with path.open("wb") as file:
        for _ in range(max(0, stats.f_bavail * stats.f_frsize - leave) // 4096):
            file.write(b"\0" * 4096)
    return path


@pytest.mark.parametrize("leave", [0, 40_000, 2 * MIB])
def test_a_full_disk(small_disk: Path, leave: int) -> None:
    """On a full disk every call says so; nothing is torn; with free space all goes on without opening again."""
    kept: dict[str, bytes] = {}
    unclear: dict[str, bytes] = {}
    with open_all(small_disk / "lake", options=QUIET) as home:
        repository = home.create("storm")
        main = repository.branch("main")
        for number in range(20):
            kept[f"before/{number}"] = b"%d" % number
            main.put(f"before/{number}", kept[f"before/{number}"])
        main.commit("before")
        filler = fill(small_disk, leave=leave)
        errors: list[LakebedError] = []
        for number in range(60):
            path, body = f"full/{number}", bytes([number]) * (200_000 if number % 2 else 500)
            try:
                main.put(path, body)
                kept[path] = body
                main.commit(f"full {number}")
            except LakebedError as error:
                errors.append(error)
                if path not in kept:
                    unclear[path] = body
        assert errors
        assert all(isinstance(error, Unavailable | OutcomeUnknown) for error in errors), errors
        assert all("disk is full" in error.message for error in errors), errors
        for path in list(kept)[:20]:
            # A write may wait for space: what it wrote is not shown before it is durable.
            with suppress_full_disk():
                assert bytes(main.get(path)) == kept[path]
        filler.unlink()
        for number in range(20):
            kept[f"after/{number}"] = b"%d" % number
            main.put(f"after/{number}", kept[f"after/{number}"])
        main.commit("after")
        assert_holds(main, kept, unclear)
        repository.collect()
    with open_all(small_disk / "lake", options=QUIET) as home:
        repository = home.repository("storm")
        assert_holds(repository.branch("main"), kept, unclear)
        check_sound(repository)


@contextmanager
def suppress_full_disk() -> Iterator[None]:
    """A call may say that the disk is full, and nothing else."""
    try:
        yield
    except Unavailable as error:
        if "disk is full" not in error.message:
            raise


def assert_holds(branch: Any, kept: dict[str, bytes], unclear: dict[str, bytes]) -> None:
    """What was acknowledged is there; of the rest only what is whole."""
    present = {entry.path: bytes(branch.get(entry.path)) for entry in branch.list()}
    assert kept.items() <= present.items()
    assert present.items() <= {**unclear, **kept}.items()


LIMITED = """
import json, resource, sys
from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.repo import open_all
from worlds.repo.client import QUIET, check_sound
with open_all(sys.argv[1], options=QUIET) as home:
    repository = home.create("storm")
    main = repository.branch("main")
    main.put("before", b"1")
    main.commit("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    told = []
    main.put("small", b"2")
    for write in (
        lambda: main.put("large", b"x" * 100_000),
        lambda: main.put("streamed", iter([b"x" * 20_000] * 8)),
        lambda: main.stage_many((f"many/{n:05d}", main.stat("before")) for n in range(2_000)),
    ):
        try:
            write()
            told.append("nothing")
        except (Unavailable, OutcomeUnknown) as error:
            told.append(error.message)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    main.put("after", b"x" * 100_000)
    main.commit("after")
    paths = [one.path for one in main.list() if not one.path.startswith("many/")]
    check_sound(repository)
    print(json.dumps([told, paths]))
"""


def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    """Where no larger file may be written, the error is clear, and once that is lifted all goes on."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "lake")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    messages, paths = json.loads(done.stdout)
    assert paths == ["after", "before", "small"]
    assert len(messages[0]) > 20, messages
    assert len(messages[1]) > 20, messages


def in_child(context: Any, body: Callable[[Any], None]) -> Any:
    """What a forked child says."""
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send(body(theirs))
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")
        theirs.close()
        os._exit(0)

    child = context.Process(target=run)
    child.start()
    assert ours.poll(60), "the child hangs"
    messages = ours.recv()
    child.join()
    return messages


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    """A forked child with open repositories gets an error that says to open its own; its parent goes on unharmed."""
    context = multiprocessing.get_context("fork")
    with open_all(tmp_path / "lake", options=QUIET) as home:
        repository = home.create("storm")
        main = repository.branch("main")
        main.put("parent", b"1")
        calls: dict[str, Callable[[Any], Any]] = {
            "put": lambda _: main.put("child", b"x"),
            "commit": lambda _: main.commit("child"),
            "get": lambda _: bytes(main.get("parent")),
            "branch": lambda _: repository.create_branch("child"),
            "list": lambda _: [entry.path for entry in main.list()],
            "close": lambda _: home.close(),
            "collect": lambda _: repository.collect(),
        }
        for name, call in calls.items():
            messages = in_child(context, call)
            if name != "close":
                assert str(messages).startswith(("Closed", "InvalidRequest", "Conflict")), (name, messages)
                assert "fork" in str(messages), (name, messages)
            main.put(f"after {name}", b"2")
        assert [branch.name for branch in repository.branches()] == ["main"]
        main.commit("parent")
        assert bytes(main.get("parent")) == b"1"
        assert not main.exists("child")
    with open_all(tmp_path / "lake", options=QUIET) as home:
        assert home.repository("storm").branch("main").exists("after collect")
