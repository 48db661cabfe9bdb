"""Tags made, moved and copied in the middle of other verbs, in orders chosen call by call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from lakebed.errors import Conflict, NotFound
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.table import Table
from lakebed.testing import Crashed
from lakebed.testing.between import Between
from worlds.meanwhile import Meanwhile
from worlds.table.foreign_verbs import foreign_rollback


def through(bench: Any, between: Between) -> Table:
    """The table as a process sees it whose calls are interposed."""
    return Table.open(between, name="t", environment=bench.environment)


def expire(bench: Any, *, keeping: int = 1) -> None:
    """All but the newest snapshots."""
    bench.reopen().expire(retain_max=keeping, retain_min=1, older_than_ms=0)


def check_tags(bench: Any) -> None:
    """Every tag has all its files."""
    stored = {meta.path for meta in bench.store.list("")}
    for tag in bench.table.tags():
        names = set(ReferencedFiles(bench.reopen().context).of(tag.snapshot).to_pylist())
        assert names <= stored, f"tag {tag.name} misses {sorted(names - stored)}"


@pytest.mark.parametrize("prefix", ["lakebed/reclaim/", "tag/tag-lakebed.pin.replace.", "tag/tag-x"])
def test_replacing_a_tag_is_not_disturbed_by_other_verbs(bench: Any, prefix: str) -> None:
    """Another verb that finishes what it finds, at any moment of a replacement, takes neither pin."""
    bench.write("a")
    bench.table.create_tag("x")
    bench.write("b", "a")
    expire(bench)
    bench.write("c", "b")
    between = Between(bench.store, kind="put", prefix=prefix, happens=lambda: expire(bench, keeping=9))
    table = through(bench, between)
    assert table.replace_tag("x", snapshot_id=2).snapshot.id == 2
    assert between.happened
    assert bench.table.tag("x").snapshot.id == 2
    check_tags(bench)
    assert "bucket-0/a" not in {meta.path for meta in bench.store.list("")}
    assert bench.table.context.tags.all_names() == ["x"]


@pytest.mark.parametrize("verb", ["create_tag", "rename_tag", "create_branch", "rollback_to_as_latest", "replace_tag"])
def test_nothing_is_built_on_a_tag_that_its_maker_will_withdraw(bench: Any, verb: str) -> None:
    """A tag put on a version that has just gone may be seen for a moment: what rests on it is refused."""
    bench.write("a")
    bench.write("b", "a")
    bench.table.create_tag("good")
    refused = []

    def build() -> None:
        other = bench.reopen()
        verbs = {
            "create_tag": lambda: other.create_tag("copy", snapshot_id=1),
            "rename_tag": lambda: other.rename_tag("late", "copy"),
            "create_branch": lambda: other.create_branch("fork", tag="late"),
            "rollback_to_as_latest": lambda: other.rollback_to_as_latest("late"),
            "replace_tag": lambda: other.replace_tag("good", tag="late"),
        }
        with pytest.raises(Conflict):
            verbs[verb]()
        refused.append(verb)

    late = Between(bench.store, kind="put", prefix="tag/tag-late", happens=build)
    hidden = Between(late, kind="get", prefix="snapshot/snapshot-1", happens=lambda: expire(bench))
    with pytest.raises(Conflict):
        through(bench, hidden).create_tag("late", snapshot_id=1)
    assert refused == [verb]
    check_tags(bench)
    assert bench.table.branches() == []
    assert bench.live() == ["b"]


def test_a_tag_whose_maker_died_while_its_version_went_is_withdrawn(bench: Any) -> None:
    """A tag that lands between the judgement and the end of an expiry was never acknowledged: it does not stay."""
    bench.write("a")
    bench.write("b", "a")

    def die() -> None:
        raise Crashed

    def tag() -> None:
        dying = Between(bench.store, kind="put", prefix="tag/tag-late", happens=die)
        with suppress(Crashed):
            through(bench, dying).context.tags.create("late", source=source)
        assert dying.happened

    source = bench.table.context.tags.source(snapshot_id=1)
    between = Between(bench.store, kind="delete", prefix="bucket-0/a", happens=tag)
    through(bench, between).expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert between.happened
    assert bench.table.tags() == []
    with pytest.raises(NotFound):
        bench.table.read(version="late")


def test_a_tag_made_from_a_tag_of_an_expired_version_stays(bench: Any) -> None:
    """The usual case: the version expired long ago, its tag holds it, and another may be made from it."""
    bench.write("a")
    bench.table.create_tag("x")
    bench.write("b", "a")
    expire(bench)
    bench.table.create_tag("y", snapshot_id=1)
    bench.table.delete_tag("x")
    check_tags(bench)
    assert [tag.name for tag in bench.table.tags()] == ["y"]


@pytest.mark.parametrize("verb", ["rollback_to", pytest.param("rollback_to_as_latest", marks=pytest.mark.long)])
def test_a_rollback_keeps_its_target_from_an_expiry_at_any_call(new_bench: Callable[..., Any], verb: str) -> None:
    """Another process deletes every older version: the rollback is refused, or is the newest with all its files."""
    outcomes = set()
    for number in range(0, 200, 2):
        bench = new_bench({})
        bench.write("a")
        bench.write("b", "a")
        bench.write("c", "b")
        store = Meanwhile(bench.store, partial(expire, bench), at=number, after=True)
        try:
            getattr(through(bench, store), verb)(1)
            outcomes.add("done")
            expected = ["a"]
        except (Conflict, NotFound):
            outcomes.add("refused")
            expected = ["c"]
        assert bench.live(bench.reopen()) == expected, f"call {number}"
        newest = bench.reopen().latest()
        stored = {meta.path for meta in bench.store.list("")}
        lost = set(ReferencedFiles(bench.reopen().context).of(newest).to_pylist()) - stored
        assert not lost, f"after call {number} the newest version lacks {sorted(lost)}"
        if store.happened is None:
            break
    assert outcomes == {"done", "refused"}
    assert store.happened is None


@pytest.mark.parametrize(("elsewhere", "behind"), [("commit", "tag/"), ("commit", "manifest/"), ("rollback", "tag/")])
def test_a_rollback_only_from_a_version_undoes_nothing_that_came_meanwhile(
    bench: Any, elsewhere: str, behind: str
) -> None:
    """Once it has looked, another client makes a newer or an older version the newest: refused, and that one stays."""
    for name in ("a", "b", "c"):
        bench.write(name)
    verbs: dict[str, Callable[[], object]] = {
        "commit": lambda: bench.write("d"),
        "rollback": lambda: foreign_rollback(bench.reopen(), 2),
    }
    between = Between(bench.store, kind="put", prefix=behind, happens=verbs[elsewhere])
    with pytest.raises(Conflict) as caught:
        through(bench, between).rollback_to(1, only_from=3)
    assert between.happened
    newest, live = {"commit": (4, ["a", "b", "c", "d"]), "rollback": (2, ["a", "b"])}[elsewhere]
    assert (caught.value.kind, caught.value.facts) == ("moved_on", {"newest": newest, "only_from": 3})
    assert (bench.reopen().latest().id, bench.live(bench.reopen())) == (newest, live)
    assert bench.reopen().context.tags.all_names() == []
