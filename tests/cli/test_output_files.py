"""Commands that write a file: what is no file is written to, and stays what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo

Cli = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a repository that has an object, and a named pipe."""
    with lakebed.repo.open_all(tmp_path / "repositories", durable=False) as made:
        made.create("analytics").branch("main").put("a", b"bytes")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def from_pipe(pipe: Path, command: Callable[[], Any]) -> bytes:
    """What a command writes to the pipe."""
    with ThreadPoolExecutor(1) as others:
        read = others.submit(pipe.read_bytes)
        answer = command()
        assert answer.code == 0, answer.err
        assert pipe.is_fifo()
        return read.result()


def test_an_object_goes_into_a_pipe(cli: Cli, place: Path) -> None:
    """`repo get` writes to a pipe as it is, and asks for no --force: nothing is overwritten."""
    get = ("repo", "get", place / "repositories", "analytics", "main", "a")
    assert from_pipe(place / "pipe", lambda: cli(*get, place / "pipe")) == b"bytes"
    (place / "file").write_bytes(b"old")
    assert "--force" in cli(*get, place / "file").err
    assert (place / "file").read_bytes() == b"old"
    assert cli(*get, place / "file", "--force", "--json").json["bytes"] == 5
    assert (place / "file").read_bytes() == b"bytes"


def test_rows_go_into_a_pipe(cli: Cli, lake: Path, place: Path) -> None:
    """`--output` of rows writes to a pipe as it is."""
    read = ("table", "read", lake, "flights", "--format", "csv", "--output", place / "pipe")
    assert b"carrier" in from_pipe(place / "pipe", lambda: cli(*read))
