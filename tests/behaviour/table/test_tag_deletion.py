"""Deleting, replacing and expiring tags, and what they leave."""

from __future__ import annotations

import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.table.branch.consumers import store_consumer
from worlds.table.world import TableWorld, committed_world


@pytest.fixture
def made() -> TableWorld:
    """Eight snapshots, of which six expired; tags a, b, c on three of those."""
    world = committed_world(8, seed=8)
    for name, snapshot_id in (("a", 2), ("b", 4), ("c", 6)):
        world.hold(name, snapshot_id)
    world.table.expire(retain_max=2)
    for snapshot_id in range(1, 7):
        del world.main.snapshots[snapshot_id]
    world.check(collected=True)
    return world


@pytest.mark.parametrize("names", [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")])
def test_files_go_with_their_last_tag(made: TableWorld, names: tuple[str, ...]) -> None:
    """Exactly the files go that no other tag and no snapshot needs, for any tags that are deleted together."""
    before = made.stored()
    report = made.table.delete_tag(*names)
    assert (report.hidden_count, report.deleted_count) == (len(names), len(before - made.stored()))
    for name in names:
        del made.main.tags[name]
    made.check(collected=True)
    made.check_versions()


def test_all_or_nothing(made: TableWorld) -> None:
    """When one of several tags is missing, none is deleted, unless if_exists says so."""
    with pytest.raises(NotFound, match="missing"):
        made.table.delete_tag("a", "missing")
    made.check(collected=True)
    made.table.delete_tag("a", "missing", if_exists=True)
    del made.main.tags["a"]
    made.check(collected=True)


def test_hidden_pins_are_not_for_users(made: TableWorld) -> None:
    """A reserved name is refused."""
    with pytest.raises(InvalidRequest, match="reserved"):
        made.table.delete_tag("lakebed.pin.branch.x")


def test_a_dry_run_shows_the_plan(made: TableWorld) -> None:
    """The plan names what the deletion then deletes; bytes_alone is its sum."""
    before = made.stored()
    alone = made.table.bytes_alone("b")
    plan = made.table.delete_tag("b", dry_run=True).plan
    assert plan is not None
    assert made.stored() == before
    assert plan.bytes_freed == alone > 0
    made.table.delete_tag("b")
    assert before - made.stored() == {doomed.path for doomed in plan.doomed}


def test_a_tag_on_a_live_snapshot_frees_nothing(made: TableWorld) -> None:
    """Deleting the tag of a snapshot that lives deletes the tag's file only."""
    made.table.create_tag("now")
    assert made.table.bytes_alone("now") == 0
    assert made.table.delete_tag("now").deleted_count == 0
    made.check(collected=True)


def test_two_tags_on_one_version(made: TableWorld) -> None:
    """While one of two tags on a version is there, nothing goes; the second takes the files along."""
    made.table.create_tag("twin", tag="b")
    assert made.table.delete_tag("b").deleted_count == 0
    assert made.table.delete_tag("twin").deleted_count > 0
    del made.main.tags["b"]
    made.check(collected=True)


def test_replacing_lets_the_old_version_go(made: TableWorld) -> None:
    """Files that only the old version needed go when a tag is pointed elsewhere, also to another tag's version."""
    made.table.replace_tag("b", tag="c")
    made.main.tags["b"] = made.main.tags["c"]
    made.check(collected=True)
    made.check_versions()


def test_renaming_keeps_every_file(made: TableWorld) -> None:
    """A tag under another name holds the same version."""
    made.table.rename_tag("b", "z")
    made.main.tags["z"] = made.main.tags.pop("b")
    made.check(collected=True)
    made.check_versions()


def test_lifetimes(made: TableWorld) -> None:
    """A tag goes when its lifetime is over, not before, and its files with it; older_than takes the others too."""
    made.table.create_tag("brief", tag="b", lifetime_ms=60_000)
    made.table.delete_tag("b")
    made.main.tags["brief"] = made.main.tags.pop("b")
    made.clock.advance(59.0)
    made.table.expire_tags()
    made.check(collected=True)
    made.clock.advance(1.0)
    assert made.table.expire_tags(dry_run=True).plan is not None
    made.check(collected=True)
    made.table.expire_tags()
    del made.main.tags["brief"]
    made.check(collected=True)
    made.clock.advance(1.0)
    made.table.expire_tags(older_than_ms=made.clock.now_ms())
    made.main.tags.clear()
    made.check(collected=True)


def test_a_source_tag_that_was_pointed_elsewhere_is_no_source(made: TableWorld) -> None:
    """Regression: who tags another tag's version notices that the other tag lets go of it meanwhile."""
    source = made.table.context.tags.source(tag="b")
    made.table.replace_tag("b", tag="c")
    made.main.tags["b"] = made.main.tags["c"]
    with pytest.raises(Conflict):
        made.table.context.tags.create("too-late", source=source)
    made.check(collected=True)


def test_a_tag_whose_files_were_deleted_is_no_source(made: TableWorld) -> None:
    """A tag that another client wrote back after its deletion pins nothing: a further tag of it is withdrawn."""
    body = made.store.get("tag/tag-b")
    made.table.delete_tag("b")
    made.store.put("tag/tag-b", body)
    with pytest.raises(Conflict):
        made.table.create_tag("late", tag="b")
    assert "tag/tag-late" not in made.stored()


def test_why_names_the_holder(made: TableWorld) -> None:
    """`why` answers who needs an object, and for an orphan when it may go."""
    only_b = made.main.tags["b"][1] - made.main.tags["a"][1] - made.main.tags["c"][1] - made.main.needed_without("b")
    path = sorted(only_b)[0]
    verdict = made.table.why(path)
    assert [(pin.kind, pin.name) for pin in verdict.pins] == [("tag", "b")]
    assert "tag b" in verdict.sentence
    assert made.table.why("tag/tag-b").pins[0].name == "b"
    assert "newest" in made.table.why("snapshot/snapshot-8").sentence
    assert made.table.why(f"manifest/{made.table.tag('b').snapshot.base_manifest_list}").pins[0].name == "b"
    made.store.put("pt=a/bucket-0/stray.parquet", b"x")
    assert "orphan" in made.table.why("pt=a/bucket-0/stray.parquet").sentence
    with pytest.raises(NotFound):
        made.table.why("pt=a/bucket-0/nowhere.parquet")


def test_the_tables_own_plan(made: TableWorld) -> None:
    """`plan_collection` names expired snapshots and outlived tags by the table's options, and deletes nothing."""
    made.table.set_options({"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"})
    made.table.create_tag("brief", tag="b", lifetime_ms=1)
    made.clock.advance(1.0)
    before = made.stored()
    assert set(made.table.plan_collection().hide) == {"snapshot/snapshot-7", "tag/tag-brief"}
    assert made.stored() == before


def test_why_a_version_is_kept(made: TableWorld) -> None:
    """By retention, a consumer, a tag until it ends, the fork of a branch; of a branch its own."""
    table = made.table
    table.create_tag("week", snapshot_id=7, lifetime_ms=7 * 86_400_000)
    table.create_branch("dev")

    def ask(version: int | str) -> tuple[str, list[tuple[str, str]], str]:
        verdict = table.why_version(version)
        return verdict.path, [(pin.kind, pin.name) for pin in verdict.pins], verdict.sentence

    assert ask("b") == ("4", [("tag", "b")], "Version 4 has expired. Its files stay as long as it is pinned by tag b.")
    assert ask(8)[1] == [("snapshot", "8"), ("branch", "dev")]
    assert "newest snapshot" in ask(8)[2]
    path, pins, sentence = ask(7)
    assert (path, pins) == ("7", [("snapshot", "7"), ("tag", "week")])
    assert sentence.startswith("Version 7 has 1 newer snapshot: it goes when the table's retention says so.")
    expires = [pin.expires_ms for pin in table.why_version(7).pins]
    assert expires == [None, table.tag("week").expires_ms]
    store_consumer(table.store, table.context.layout, "reader", next_snapshot_id=7)
    assert ask(7)[1][-1] == ("consumer", "reader")
    assert "waits for a consumer" in ask(7)[2]
    assert ask("dev")[1] == [("snapshot", "8")]
    assert table.why_version("dev").pins[0].owner == "dev"
    for version, kind in ((3, "snapshot_not_found"), ("week2", "version_not_found")):
        with pytest.raises(NotFound) as raised:
            table.why_version(version)
        assert raised.value.kind == kind
