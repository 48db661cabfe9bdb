"""Main becomes what a branch is, in one commit, and neither line deletes what the other one has from then on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.fsck.check import check_url
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing.between import Between
from lakebed.testing.clock import ManualClock
from worlds.table.foreign_verbs import foreign_rollback

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
EVER_MS = 2**60
Rows = dict[int, str]


def rows(values: Rows) -> pa.Table:
    """Rows from a dictionary."""
    return pa.table({"id": pa.array(values, pa.int64()), "name": pa.array(values.values(), pa.string())})


def read(table: Table, version: int | str | None = None) -> Rows:
    """What a version holds, as a dictionary."""
    rows = table.read(version=version)
    return dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))


def made(name: str, **options: str) -> Table:
    """A table with one row on a store of its own."""
    environment = Environment(clock=ManualClock(), rng=random.Random(name))
    store = open_store(f"memory://fast-forward-{name}/default.db/t", environment=environment)
    store.delete([meta.path for meta in store.list("")])
    table = Table.create(
        store, name="t", schema=SCHEMA, primary_keys="id", options={"bucket": "1", **options}, environment=environment
    )
    table.upsert(rows({1: "a"}))
    return table


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """A table with one row."""
    return made(request.node.name)


def shrink(table: Table) -> None:
    """Let everything go that may go."""
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1, older_than_ms=EVER_MS)
    table.collect(grace_ms=0)


def check(table: Table) -> None:
    """No file that a version of any branch needs is missing."""
    assert not [finding for finding in check_url(table.url, deep=True).findings if finding.severity != "info"]


@pytest.mark.parametrize("bucket", ["1", "-1"])
def test_main_becomes_what_the_branch_is(request: pytest.FixtureRequest, bucket: str) -> None:
    """Upserts, deletes and compactions of a branch appear in main at once, in one snapshot; older versions stay."""
    table = made(request.node.name, bucket=bucket)
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b", 3: "c"}))
    trial.delete("id = 1")
    trial.compact(full=True)
    before = table.latest()
    assert read(table) == {1: "a"}
    foretold = table.fast_forward("trial", dry_run=True)
    assert (foretold, table.latest()) == (trial.latest(), before)
    made_now = table.fast_forward("trial")
    assert (made_now.id, made_now) == (2, table.latest())
    assert read(table) == read(trial) == {2: "b", 3: "c"}
    assert read(table, 1) == {1: "a"}
    assert table.fast_forward("trial") == made_now
    table.upsert(rows({4: "d"}))
    assert read(table) == {2: "b", 3: "c", 4: "d"}
    assert read(trial) == {2: "b", 3: "c"}
    check(table)


def test_main_that_has_moved_is_refused(table: Table) -> None:
    """A commit to main after the fork is never lost: nothing changes, and the sentence says what to do."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    table.upsert(rows({9: "main's own"}))
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="Main has moved since the branch 'trial'") as refused:
            table.fast_forward("trial", dry_run=dry_run)
        assert refused.value.kind == "not_fast_forward"
    assert read(table) == {1: "a", 9: "main's own"}


@pytest.mark.parametrize("prefix", ["branch/branch-trial/tag/", "lakebed/published/", "manifest/"])
def test_a_writer_that_is_faster_wins(table: Table, prefix: str) -> None:
    """A commit to main at any moment before that of the publication is in main afterwards, and nothing else is."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    between = Between(
        table.store, kind="put", prefix=prefix, happens=lambda: table.upsert(rows({9: "main's own"})) and None
    )
    mine = Table.open(between, name="t", environment=table.context.environment)
    with pytest.raises(Conflict) as refused:
        mine.fast_forward("trial")
    assert refused.value.kind == "not_fast_forward"
    assert between.happened
    assert read(table) == {1: "a", 9: "main's own"}
    check(table)


def test_the_branch_goes_on_and_is_published_again(table: Table) -> None:
    """A second publication goes on from the first; after a commit of main's own it is refused."""
    trial = table.create_branch("trial")
    for number in (2, 3):
        trial.upsert(rows({number: "x"}))
        assert table.fast_forward("trial").id == number
        shrink(trial)
    assert read(table) == read(trial) == {1: "a", 2: "x", 3: "x"}
    table.upsert(rows({9: "main's own"}))
    trial.upsert(rows({4: "x"}))
    with pytest.raises(Conflict, match="Main has moved"):
        table.fast_forward("trial")
    check(table)


def test_another_branch_of_the_same_name_does_not_go_on(table: Table) -> None:
    """What main has of a deleted branch is not taken for the next one of that name."""
    table.create_tag("start")
    table.create_branch("trial").upsert(rows({2: "b"}))
    table.fast_forward("trial")
    table.delete_branch("trial")
    table.create_branch("trial", tag="start").upsert(rows({3: "c"}))
    with pytest.raises(Conflict, match="Main has moved"):
        table.fast_forward("trial")
    assert read(table) == {1: "a", 2: "b"}
    check(table)


def test_schemas_of_the_branch_become_those_of_main(table: Table) -> None:
    """Columns that were added in the branch are main's afterwards; when both were changed it is refused."""
    trial = table.create_branch("trial")
    trial.add_column("more", "INT")
    trial.upsert(pa.table({"id": [2], "name": ["b"], "more": pa.array([7], pa.int32())}))
    other = table.create_branch("other")
    other.add_column("other", "STRING")
    other.upsert(pa.table({"id": [3], "name": ["c"], "other": ["x"]}))
    table.fast_forward("trial")
    assert table.schema.fields == trial.schema.fields
    assert table.read(where="id = 2").to_pylist() == [{"id": 2, "name": "b", "more": 7}]
    with pytest.raises(Conflict, match="Main has moved"):
        table.fast_forward("other")
    check(table)


def test_a_branch_without_commits_gives_its_schemas(table: Table) -> None:
    """Columns that were added in the branch are main's also when no row was written since, and after a publication."""
    trial = table.create_branch("trial")
    trial.add_column("more", "INT")
    head = table.latest()
    assert table.fast_forward("trial", dry_run=True) == head
    assert table.refresh().fields[-1].name == "name"
    assert table.fast_forward("trial") == head
    assert table.refresh().fields[-1].name == "more"
    trial.upsert(pa.table({"id": [2], "name": ["b"], "more": pa.array([7], pa.int32())}))
    published = table.fast_forward("trial")
    trial.add_column("most", "INT")
    assert table.fast_forward("trial") == published
    assert table.refresh().fields == trial.schema.fields
    check(table)


def test_both_schemas_changed(table: Table) -> None:
    """Main's own column is not lost."""
    trial = table.create_branch("trial")
    trial.add_column("more", "INT")
    table.add_column("mine", "STRING")
    with pytest.raises(Conflict, match="The columns or options of main were changed"):
        table.fast_forward("trial")
    assert table.refresh().fields[-1].name == "mine"


@pytest.mark.parametrize("change", ["column", "option"])
@pytest.mark.parametrize("is_changed", [False, True], ids=["branch-as-it-was", "branch-changed"])
def test_main_has_a_schema_of_its_own(table: Table, change: str, is_changed: bool) -> None:
    """A change of main's columns or options after the fork is as a commit: nothing is published over it."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    if is_changed:
        trial.add_column("more", "INT")
    for number in range(2):
        if change == "column":
            table.add_column(f"mine_{number}", "INT")
        else:
            table.set_options({"snapshot.time-retained": f"{number + 1} d"})
    before = (table.latest(), table.schema)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="main") as refused:
            table.fast_forward("trial", dry_run=dry_run)
        assert refused.value.kind == "not_fast_forward"
    reopened = Table.open(table.store, name="t", environment=table.context.environment)
    assert (reopened.latest(), reopened.schema) == before
    assert read(table) == {1: "a"}


@pytest.mark.parametrize("prefix", ["branch/branch-trial/tag/", "lakebed/published/"])
def test_a_schema_of_main_that_is_faster(table: Table, prefix: str) -> None:
    """Main's column is added while a publication is prepared: nothing is published over it."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    between = Between(table.store, kind="put", prefix=prefix, happens=lambda: table.add_column("mine", "INT") and None)
    with pytest.raises(Conflict, match="main") as refused:
        Table.open(between, name="t", environment=table.context.environment).fast_forward("trial")
    assert refused.value.kind == "not_fast_forward"
    assert between.happened
    assert read(table) == {1: "a"}


def test_a_repetition_after_main_has_changed_its_schema(table: Table) -> None:
    """What is published already is not published again: a repetition says so whatever main's schema is."""
    table.create_branch("trial").upsert(rows({2: "b"}))
    done = table.fast_forward("trial")
    table.add_column("mine", "INT")
    assert table.fast_forward("trial") == done
    Table.open(table.store, name="t", branch="trial", environment=table.context.environment).upsert(rows({3: "c"}))
    with pytest.raises(Conflict, match="main"):
        table.fast_forward("trial")


@pytest.mark.parametrize("first", ["main", "branch"])
def test_neither_line_deletes_what_the_other_has(table: Table, first: str) -> None:
    """Rewriting, expiring and cleaning in one line leaves every version of the other readable, and its tags."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    trial.upsert(rows({3: "c"}))
    trial.create_tag("in-branch")
    table.fast_forward("trial")
    table.create_tag("in-main")
    item, other = (table, trial) if first == "main" else (trial, table)
    expected = {1: "a", 2: "b", 3: "c"}
    for _ in range(2):
        item.overwrite(rows({7: "new"}))
        item.delete_tag(*(tag.name for tag in item.tags()))
        shrink(item)
        assert read(other) == expected
        assert read(other, "in-branch" if other is trial else "in-main") == expected
        check(table)
    assert read(item) == {7: "new"}
    shrink(other)
    table.delete_branch("trial")
    shrink(table)
    assert read(table) == ({7: "new"} if item is table else expected)
    check(table)
    assert not [name for name in table.context.tags.all_names() if name.startswith("lakebed.")]
    assert not list(table.store.list("lakebed/published"))


def test_files_that_come_back_are_kept_for_tags(table: Table) -> None:
    """A file that main had, lost and has again lives in two stretches: tags in both keep it."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    table.fast_forward("trial")
    table.create_tag("with-b")
    trial.overwrite(rows({5: "e"}))
    table.fast_forward("trial")
    trial.rollback_to_as_latest(2)
    table.fast_forward("trial")
    assert read(table) == {1: "a", 2: "b"}
    table.overwrite(rows({6: "f"}))
    table.delete_branch("trial")
    shrink(table)
    assert (read(table), read(table, "with-b")) == ({6: "f"}, {1: "a", 2: "b"})
    check(table)


def test_a_tag_that_outlives_a_rollback_of_another_client(table: Table) -> None:
    """Main goes back to the fork below its boundary and is published again: what a tag has of the first time stays."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))
    table.create_tag("start")
    table.fast_forward("trial")
    table.create_tag("with-b")
    for number in (3, 4):
        table.upsert(rows({number: "x"}))
    table.expire(retain_max=1, retain_min=1, older_than_ms=EVER_MS)
    path = table.context.layout.tag("with-b")
    kept = bytes(table.store.get(path))
    foreign_rollback(table, "start")
    table.store.put(path, kept)  # made while the other client rolled back, which deletes the tags that it listed
    table = Table.open(table.store, name="t", environment=table.context.environment)
    table.fast_forward("trial")
    assert read(table) == read(table, "with-b") == {1: "a", 2: "b"}
    table.overwrite(rows({6: "f"}))
    table.delete_branch("trial")
    shrink(table)
    assert (read(table), read(table, "with-b")) == ({6: "f"}, {1: "a", 2: "b"})
    check(table)


def test_a_version_that_expires_meanwhile_is_refused(table: Table) -> None:
    """The branch's expiry and the publication see each other: main never gets a version whose files go."""
    trial = table.create_branch("trial")
    trial.upsert(rows({2: "b"}))

    def meanwhile() -> None:
        trial.overwrite(rows({3: "c"}))
        trial.expire(retain_max=1, retain_min=1, older_than_ms=EVER_MS)

    between = Between(table.store, kind="put", prefix="branch/branch-trial/tag/", happens=meanwhile)
    with pytest.raises(Conflict):
        Table.open(between, name="t", environment=table.context.environment).fast_forward("trial")
    assert read(table) == {1: "a"}
    assert table.fast_forward("trial").id == 2
    assert read(table) == {3: "c"}
    check(table)


def test_what_cannot_be_published_is_refused(table: Table) -> None:
    """A missing branch, a branch of another client, main itself, and a branch in place of the table."""
    with pytest.raises(InvalidRequest, match="cannot be fast-forwarded to itself"):
        table.fast_forward("main")
    with pytest.raises(NotFound, match="no branch 'nope'"):
        table.fast_forward("nope")
    trial = table.create_branch("trial")
    assert table.fast_forward("trial") == table.latest()
    with pytest.raises(InvalidRequest, match="open the table without a branch"):
        trial.fast_forward("trial")
    for path in ("schema/schema-0", "snapshot/snapshot-1"):
        table.store.put(f"branch/branch-foreign/{path}", table.store.get(path))
    with pytest.raises(InvalidRequest, match="another client made it"):
        table.fast_forward("foreign")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_random_histories_of_two_lines(seed: int) -> None:
    """In any order of changes to the two branches, each reads what a dictionary says, and no needed file goes."""
    rng = random.Random(seed)
    table = made(f"random-{seed}")
    model: dict[str, Rows] = {"main": {1: "a"}}
    tagged: dict[str, Rows] = {}
    lines = {"main": table}
    for step in range(40):
        name = rng.choice(list(lines))
        line = lines[name]
        verb = rng.choice(["upsert", "upsert", "delete", "overwrite", "shrink", "tag", "publish", "publish", "branch"])
        if verb == "upsert":
            new = {rng.randrange(5): str(step)}
            line.upsert(rows(new))
            model[name] |= new
        elif verb == "overwrite":
            model[name] = {rng.randrange(5): str(step)}
            line.overwrite(rows(model[name]))
        elif verb == "delete":
            key = rng.randrange(5)
            line.delete(f"id = {key}")
            model[name].pop(key, None)
        elif verb == "shrink":
            shrink(line)
        elif verb == "tag" and name == "main":
            table.create_tag(f"tag{step}")
            tagged[f"tag{step}"] = dict(model["main"])
        elif verb == "branch":
            if "trial" in lines and rng.random() < 0.5:
                table.delete_branch("trial")
                del lines["trial"], model["trial"]
            elif "trial" not in lines:
                lines["trial"], model["trial"] = table.create_branch("trial"), dict(model["main"])
        elif verb == "publish" and "trial" in lines:
            with suppress(Conflict):
                table.fast_forward("trial")
                model["main"] = dict(model["trial"])
        for item, opened in lines.items():
            assert read(opened) == model[item], (step, verb, name, item)
        for tag, expected in tagged.items():
            assert read(table, tag) == expected, (step, verb, name, tag)
    check(table)


def test_the_command_says_what_it_did(table: Table, capsys: Any) -> None:
    """A dry run changes nothing, and the command names main's new snapshot."""
    from lakebed.cli.main import run

    table.create_branch("trial").upsert(rows({2: "b"}))
    lake = table.url.removesuffix("/default.db/t")
    assert run(["table", "fast-forward", lake, "t", "trial", "--dry-run"]) == 0
    assert "Would" in capsys.readouterr().out
    assert run(["table", "fast-forward", lake, "t", "trial"]) == 0
    assert "snapshot 2" in capsys.readouterr().out
    assert read(table) == {1: "a", 2: "b"}
