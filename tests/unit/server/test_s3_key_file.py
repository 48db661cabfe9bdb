"""The file of the S3 key: what a crash leaves is in nobody's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakebed.runtime import Environment
from lakebed.server.serve import load_or_make_key


def test_a_start_that_crashed_stops_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container every server has the same number: a file that a crashed one left is not its successor's."""
    file = tmp_path / "s3.key"
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "link", lambda *names: os._exit(7))
        monkeypatch.setattr(os, "getpid", lambda: 1)
        load_or_make_key(file, environment=Environment())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [path.name for path in tmp_path.iterdir()] != ["s3.key"]
    monkeypatch.setattr(os, "getpid", lambda: 1)
    key = load_or_make_key(file, environment=Environment())
    assert load_or_make_key(file, environment=Environment()) == key
    assert file.stat().st_mode & 0o077 == 0
