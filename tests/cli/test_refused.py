"""Commands that are refused: one sentence, an exit code, and nothing is changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

import lakebed
from lakebed import kv
from lakebed.cli import exits

WRONG: list[tuple[str, str]] = [
    ("table create LAKE new", "--column"),
    ("table create LAKE new -c id", "'id'"),
    ("table create LAKE new -c 'id NOTYPE'", "NOTYPE"),
    ("table create LAKE new -c 'id BIGINT' -o bukket=2", "bucket"),
    ("table create LAKE new -c 'id BIGINT' -o bucket", "KEY=VALUE"),
    ("table create LAKE new -c 'id BIGINT' --primary-key nope", "nope"),
    ("table create LAKE ../new -c 'id BIGINT'", "../new"),
    ("table create LAKE '' -c 'id BIGINT'", ""),
    ("table create LAKE a.b.c -c 'id BIGINT'", "a.b.c"),
    ("table add-column LAKE flights id INT", "id"),
    ("table drop-column LAKE flights nope", "nope"),
    ("table drop-column LAKE flights id", "id"),
    ("table rename-column LAKE flights delay carrier", "carrier"),
    ("table widen-column LAKE flights delay INT", "INT"),
    ("table set-option LAKE flights bukket=3", "bucket"),
    ("table set-option LAKE flights bucket", "KEY=VALUE"),
    ("table unset-option LAKE flights snapshot.time-retaned", "snapshot.time-retained"),
    ("table branch LAKE flights 12", "branch name '12'"),
    ("table read LAKE flights --version 1 --tag jan", "not both"),
    ("table read LAKE flights --version 1 --timestamp 2999-01-01", ""),
    ("table read LAKE flights --timestamp noon", "noon"),
    ("table read LAKE flights --where 'nope > 3'", "nope"),
    ("table read LAKE flights --where 'id >'", ""),
    ("table read LAKE flights --columns nope", "nope"),
    ("table read LAKE flights --format xml", "xml"),
    ("table read LAKE flights --format csv --json", "--json"),
    ("table read LAKE flights --limit -1", "-1"),
    ("table rollback LAKE flights", "--version"),
    ("table rollback LAKE flights --version 1 --timestamp 2013-01-01", ""),
    ("table system LAKE flights snapshot", "snapshots"),
    ("table tag LAKE flights 2013", "2013"),
    ("table tag LAKE flights a/b", "a/b"),
    ("table tag LAKE flights snapshot.3", "snapshot.3"),
    ("table tag LAKE flights ' '", ""),
    ("table tag LAKE flights x --timestamp yesterday", "yesterday"),
    ("table tag LAKE flights x --lifetime soon", "soon"),
    ("table tag LAKE flights x --snapshot 1 --tag jan", ""),
    ("table tag LAKE flights", "Missing argument TAG"),
]
"""Each with a part of what is said; the exit code is 2."""
TAKEN: list[tuple[str, str]] = [
    ("table create LAKE flights -c 'id BIGINT'", "flights"),
    ("table tag LAKE flights jan", "jan"),
]
MISSING: list[tuple[str, str]] = [
    ("table create LAKE new --like /nowhere/a.csv", "/nowhere/a.csv"),
    ("table describe LAKE flihgts", "Did you mean flights?"),
    ("table tags LAKE fligths", "Did you mean flights?"),
    ("table read LAKE flights --tag jna", "Did you mean jan?"),
    ("table read LAKE flights --version jna", "Did you mean jan?"),
    ("table read LAKE flights --timestamp 1999-01-01", ""),
    ("table drop-tag LAKE flights jna --dry-run", "Did you mean jan?"),
    ("table read LAKE flights --branch dve", "Did you mean dev?"),
    ("table read LAKE flights --version 99", "it has snapshots 1 to 2"),
    ("table tag LAKE flights x --snapshot 99", "99"),
    ("table tag LAKE flights x --tag nope", "nope"),
    ("table tag LAKE flights x --timestamp 1999-01-01", ""),
    ("table rollback LAKE flights --tag nope", "nope"),
    ("kv get LAKE serving k --checkpoint weekyl", "Did you mean weekly?"),
    ("repo show LAKE analytics mian", "Did you mean main?"),
    ("repo show LAKE anlytics main", "Did you mean analytics?"),
    ("repo drop-tag LAKE analytics v2 --yes", "Did you mean v1?"),
    ("history LAKE servign", "Did you mean serving?"),
]
"""Tables, tags, versions, branches, checkpoints, repositories and stores: answered with the nearest name."""


@pytest.fixture
def world(lake: str) -> str:
    """A lake with tables (flights has a branch dev), a database (checkpoint weekly) and a repository (tag v1)."""
    lakebed.open(lake).table("flights").create_branch("dev")
    with kv.open(f"{lake}/serving.kv", durable=False) as database:
        database.put(b"k", b"v")
        database.create_checkpoint(kv.CheckpointOptions(name="weekly"))
    with lakebed.open(lake).open_repositories() as home:
        home.create("analytics").create_tag("v1")
    return lake


def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(
    cli: Callable[..., Any], world: str, state_of: Callable[[str], dict[str, str]]
) -> None:
    """Names, versions, times, formats, options and types that are wrong, taken or missing."""
    before = state_of(f"{world}/default.db")
    for lines, code in ((WRONG, exits.USAGE), (TAKEN, exits.CONFLICT), (MISSING, exits.NOT_FOUND)):
        for line, words in lines:
            answer = cli(*(world if word == "LAKE" else word for word in shlex.split(line)))
            assert (answer.code, answer.out) == (code, ""), (line, answer)
            assert len(answer.err.splitlines()) == 1, (line, answer)
            assert words in answer.err, (line, answer)
    assert state_of(f"{world}/default.db") == before
