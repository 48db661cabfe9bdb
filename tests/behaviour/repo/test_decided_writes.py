"""Writes that are decided by what a branch shows, and moves of the branch to another state at the same time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pytest

from lakebed import Table
from lakebed.errors import LakebedError
from lakebed.repo.heads.multipart import WantedPart, begin_upload, complete_upload, open_upload, put_part
from lakebed.repo.heads.write import delete_many, stage_if_absent, stage_if_match, update_metadata
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.staging.protocol import DECIDED_PATH
from lakebed.repo.staging.view import at_reference
from lakebed.repo.transport.local_objects import local_store
from worlds.repo.memory_repository import (
    MemoryRepository,
    Pause,
    Trap,
    contents,
    entry_of,
    open_context,
    put,
    remove,
    uncommitted_of,
)
from worlds.repo.operations import cherry_pick, commit, hard_reset, merge, rebase, reset, reset_prefix, revert

R = TypeVar("R")
Write = Callable[[RepositoryContext, str], object]

OLD = {"topic": {"base": "old", "topic": "old"}, "main": {"base": "old"}}
"""What each branch shows before a move."""


def make_place() -> tuple[MemoryRepository, Mapping[str, str]]:
    """A repository whose branches main and topic do not show ``late``, and whose branch dev does; ids of its commits.

    Main had it, and deleted it.
    """
    place = MemoryRepository()
    with open_context(place) as home:
        put(home, "main", "base", "old")
        commit(home, "main", message="base")
        create_branch(home, "dev", source="main")
        create_branch(home, "topic", source="main")
        put(home, "dev", "late", "theirs")
        on_dev = commit(home, "dev", message="on dev").id
        put(home, "topic", "topic", "old")
        commit(home, "topic", message="on topic")
        put(home, "main", "late", "theirs")
        had = commit(home, "main", message="with it").id
        remove(home, "main", "late")
        dropped = commit(home, "main", message="without it").id
    return place, {"dev": on_dev, "had": had, "dropped": dropped}


MOVES: dict[str, Callable[[RepositoryContext, Mapping[str, str]], object]] = {
    "merge": lambda home, ids: merge(home, "dev", into="topic"),
    "pick": lambda home, ids: cherry_pick(home, "topic", ref=ids["dev"]),
    "rebase": lambda home, ids: rebase(home, "topic", onto="dev"),
    "revert": lambda home, ids: revert(home, "main", ref=ids["dropped"]),
    "hard reset": lambda home, ids: hard_reset(home, "main", ref=ids["had"]),
}


def put_if_absent(home: RepositoryContext, branch: str) -> None:
    """Create the object that every move brings."""
    stage_if_absent(home, branch=branch, path="late", entry=entry_of(home, "mine"))


def put_if_match(home: RepositoryContext, branch: str) -> None:
    """Write it if there is none."""
    stage_if_match(
        home, branch=branch, path="late", entry=entry_of(home, "mine"), matches=lambda visible: visible is None
    )


def upload_if_absent(home: RepositoryContext, branch: str) -> None:
    """Complete an upload of it if there is none."""
    upload = begin_upload(home, branch=branch, path="late", content_type="", metadata={"text": "mine"}, owner="")
    _, raw = open_upload(home, upload, branch=branch, path="late")
    stored = data.upload(home, b"mine")
    put_part(home, upload, number=1, stored=stored, expected=raw)
    complete_upload(
        home,
        upload,
        branch=branch,
        path="late",
        wanted=[WantedPart(1, stored.checksum)],
        matches=lambda visible: visible is None,
    )


def try_to(act: Callable[[], object]) -> str | None:
    """Act; the kind of the refusal."""
    try:
        act()
    except LakebedError as error:
        return error.kind
    return None


@pytest.mark.parametrize(
    ("move", "branch", "write"),
    [
        ("merge", "topic", put_if_absent),
        ("merge", "topic", put_if_match),
        ("merge", "topic", upload_if_absent),
        ("pick", "topic", put_if_absent),
        ("rebase", "topic", put_if_absent),
        ("revert", "main", put_if_absent),
        ("hard reset", "main", put_if_absent),
    ],
)
def test_one_of_a_move_and_a_conditional_put_finds_the_other(move: str, branch: str, write: Write) -> None:
    """A put that found nothing hides nothing that the move brings, before whichever step of the move it comes."""
    at, outcomes = 0, set[tuple[str | None, str | None]]()
    while True:
        place, ids = make_place()
        kinds: list[str | None] = []
        with open_context(place) as home:
            assert contents(home, branch) == OLD[branch]
            pause = Pause(at, lambda home=home, kinds=kinds: kinds.append(try_to(partial(write, home, branch))))
            with open_context(place, trap=pause) as slow:
                refusal = try_to(partial(MOVES[move], slow, ids))
            if not pause.has_sprung:
                break
            [write_refusal] = kinds
            shown = "mine" if write_refusal is None else "theirs"
            assert contents(home, branch) == {**OLD[branch], "late": shown}, at
            outcomes.add((refusal, write_refusal))
        at += 1
    assert ("dirty_branch", None) in outcomes
    assert all((refusal is None) != (write_refusal is None) for refusal, write_refusal in outcomes)


def test_a_delete_of_what_was_seen_does_not_hide_what_a_merge_brings() -> None:
    """Before whichever step of the merge it comes: of the two, the second finds the other and is refused."""
    at, outcomes = 0, set[tuple[str | None, str | None]]()
    while True:
        place, kinds = MemoryRepository(), list[str | None]()
        with open_context(place) as home:
            put(home, "main", "a", "old")
            commit(home, "main", message="base")
            create_branch(home, "dev", source="main")
            put(home, "dev", "a", "new")
            commit(home, "dev", message="new")
            with at_reference(home, "main") as view:
                entry = view.get("a")
            assert entry is not None
            delete = partial(delete_many, home, branch="main", paths=["a"], addresses=[entry.address])
            pause = Pause(at, lambda delete=delete, kinds=kinds: kinds.append(try_to(delete)))
            with open_context(place, trap=pause) as slow:
                refusal = try_to(lambda slow=slow: merge(slow, "dev", into="main"))
            if not pause.has_sprung:
                break
            assert contents(home, "main") == ({"a": "new"} if refusal is None else {}), at
            outcomes.add((refusal, *kinds))
        at += 1
    assert outcomes == {("dirty_branch", None), (None, "path_changed")}


def test_metadata_is_not_put_on_bytes_that_a_merge_replaces() -> None:
    """What changes metadata names the bytes that it saw."""
    at = 0
    while True:
        place = MemoryRepository()
        with open_context(place) as home:
            put(home, "main", "a", "old")
            commit(home, "main", message="base")
            create_branch(home, "dev", source="main")
            put(home, "dev", "a", "new")
            commit(home, "dev", message="new")
            change = partial(update_metadata, home, branch="main", path="a", metadata={"k": "v"})
            pause = Pause(at, change)
            with open_context(place, trap=pause) as slow:
                refusal = try_to(lambda slow=slow: merge(slow, "dev", into="main"))
            if not pause.has_sprung:
                break
            with at_reference(home, "main") as view:
                entry = view.get("a")
            text = b"new" if refusal is None else b"old"
            assert entry is not None
            assert entry.checksum == hashlib.md5(text).hexdigest(), at
        at += 1
    assert at > 3


def test_a_commit_of_a_table_and_a_merge_into_its_branch_do_not_hide_each_other() -> None:
    """Both change the table: of the two, one is refused or comes on top of the other, and every row is there."""
    at, outcomes = 0, set[str | None]()
    while True:
        place, rows = MemoryRepository(), pa.table({"id": [1]})
        with open_context(place) as home:
            Table.create(local_store(home, "main", "t"), name="t", schema=rows.schema).append(rows)
            commit(home, "main", message="a row")
            create_branch(home, "dev", source="main")
            Table.open(local_store(home, "dev", "t"), name="t").append(pa.table({"id": [2]}))
            commit(home, "dev", message="another")
            pause = Pause(
                at, lambda home=home: Table.open(local_store(home, "main", "t"), name="t").append(pa.table({"id": [3]}))
            )
            with open_context(place, trap=pause) as slow:
                refusal = try_to(lambda slow=slow: merge(slow, "dev", into="main"))
            shown = sorted(Table.open(local_store(home, "main", "t"), name="t").read()["id"].to_pylist())
            if not pause.has_sprung:
                break
            assert shown == ([1, 2, 3] if refusal is None else [1, 3]), at
            outcomes.add(refusal)
        at += 1
    assert "dirty_branch" in outcomes


class Pauses(Trap):
    """Several pauses of one process."""

    def __init__(self, *pauses: Pause) -> None:
        super().__init__()
        self.pauses = pauses

    def pass_by(self, perform: Callable[[], R], *, changes: bool) -> R:
        """Make a call, perhaps later."""
        for pause in self.pauses:
            perform = partial(pause.pass_by, perform, changes=changes)
        return perform()


def append_row(home: RepositoryContext, number: int) -> None:
    """Append a row to the table in the branch main."""
    Table.open(local_store(home, "main", "t"), name="t").append(pa.table({"id": [number]}))


def reset_table(home: RepositoryContext) -> None:
    """Discard what is staged of the table."""
    reset_prefix(home, "main", prefix="t/")


@pytest.mark.parametrize(
    ("slow_act", "meanwhile"),
    [(reset_table, partial(append_row, number=3)), (partial(append_row, number=3), reset_table)],
    ids=["in the reset", "in the append"],
)
def test_a_commit_by_others_during_a_reset_of_a_table_takes_no_snapshot_without_its_files(
    slow_act: Callable[[RepositoryContext], object], meanwhile: Callable[[RepositoryContext], object]
) -> None:
    """A reset and an append of one table, and then a commit, at random steps: the table can be read in all states."""

    def act_meanwhile(first: int, second: int) -> int:
        """Let two others act before these calls; how many calls there were."""
        place = MemoryRepository()
        with open_context(place) as home:
            Table.create(local_store(home, "main", "t"), name="t", schema=pa.schema([("id", pa.int64())]))
            append_row(home, 1)
            commit(home, "main", message="a row")
            append_row(home, 2)
            acts = (
                Pause(first, lambda: try_to(partial(meanwhile, home))),
                Pause(second, lambda: try_to(partial(commit, home, "main", message="meanwhile"))),
            )
            with open_context(place, trap=Pauses(*acts)) as slow:
                try_to(partial(slow_act, slow))
            for reference in ("main", "main@"):
                table = Table.open(local_store(home, reference, "t"), name="t")
                rows = sorted(table.read()["id"].to_pylist())
                assert rows in ([1], [1, 2], [1, 3], [1, 2, 3]), (first, second, reference)
            return acts[0].call_count

    draw = random.Random(7)
    call_count = act_meanwhile(1_000, 1_000)
    for _ in range(30):
        first = draw.randrange(call_count // 3, call_count)
        act_meanwhile(first, draw.randrange(first + 1, call_count + 10))


def test_blind_puts_during_a_merge_stay_on_top_of_it() -> None:
    """They were decided by nothing that the branch showed, so the merge goes through, as before."""
    place, _ = make_place()
    with open_context(place) as home:
        at = 0
        while True:
            pause = Pause(at, partial(put, home, "topic", "other", str(at)))
            with open_context(place, trap=pause) as slow:
                refusal = try_to(lambda slow=slow: merge(slow, "dev", into="topic"))
            if refusal is None:
                break
            assert refusal == "dirty_branch"
            reset(home, "topic")
            at += 1
        assert pause.has_sprung
        assert contents(home, "topic") == {**OLD["topic"], "late": "theirs", "other": str(at)}


def test_the_mark_of_a_decision_is_never_shown() -> None:
    """It is no object, no difference, and goes with its token: with a commit, and where what was staged went again."""
    place, _ = make_place()
    with open_context(place) as home:
        put_if_absent(home, "topic")
        token = load_branch(home, "topic")[0].staging.id
        mark = home.keys.token(token) + DECIDED_PATH
        assert home.key_value.get(mark) == b""
        assert contents(home, "topic") == {**OLD["topic"], "late": "mine"}
        assert [path for path, _ in uncommitted_of(home, "topic").items()] == ["late"]
        remove(home, "topic", "late")
        assert home.key_value.get(mark) == b""
        assert (contents(home, "topic"), uncommitted_of(home, "topic")) == (OLD["topic"], {})
        merge(home, "dev", into="topic")
        assert contents(home, "topic") == {**OLD["topic"], "late": "theirs"}
        put(home, "topic", "more", "1")
        commit(home, "topic", message="more")
        assert contents(home, "topic@") == {**OLD["topic"], "late": "theirs", "more": "1"}
