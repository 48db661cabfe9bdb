"""Local files that are written whole, and what is no file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakebed.whole_file import write_whole


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    """A file is replaced when all of it is written; an error before that leaves the old one, and no other file."""
    file = tmp_path / ("x" * 250)
    for body in (b"old", b"new"):
        with write_whole(file) as sink:
            sink.write(body)
    with pytest.raises(ZeroDivisionError), write_whole(file) as sink:
        sink.write(bytes([1 // 0]))
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What a symbolic link names is written, also where nothing is yet."""
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    for body in (b"old", b"new"):
        with write_whole(link) as sink:
            sink.write(body)
        assert file.read_bytes() == body
    assert link.is_symlink()


@pytest.mark.parametrize("through_link", [False, True])
def test_what_is_no_file_is_written_to(tmp_path: Path, through_link: bool) -> None:
    """A named pipe receives the bytes, and is one afterwards: no file takes its place."""
    pipe, place = tmp_path / "pipe", tmp_path / "place"
    os.mkfifo(pipe)
    if through_link:
        place.symlink_to(pipe)
    with ThreadPoolExecutor(1) as others:
        read = others.submit(pipe.read_bytes)
        with write_whole(place if through_link else pipe) as sink:
            sink.write(b"bytes")
        if not pipe.is_fifo():
            os.close(os.open(pipe, os.O_WRONLY))
        assert read.result() == b"bytes"
    assert pipe.is_fifo()
