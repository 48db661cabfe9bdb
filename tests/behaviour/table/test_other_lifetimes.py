"""Index files, statistics and changelogs that other clients' snapshots name: how long each stays."""

from __future__ import annotations

import pytest

from worlds.binary_rows import encode_row
from worlds.table.foreign import Extras, foreign_commit
from worlds.table.world import TableWorld

CHANGELOG = {"manifest/manifest-list-one-c", "manifest/manifest-one-c", "pt=a/bucket-0/changelog-1.parquet"}
CARRIED = {"manifest/index-manifest-one", "index/index-1", "statistics/stats-1"}
OWN = {"manifest/index-manifest-three", "index/index-2", "statistics/stats-2"}


@pytest.fixture
def made() -> TableWorld:
    """Snapshot 2 is another client's, names everything and has a tag; 3 carries it on; 4 has files of its own."""
    world = TableWorld(4)
    world.commit()
    item = Extras(("index-1",), "stats-1", (encode_row(["a"], ["STRING"]), "changelog-1.parquet"))
    for name, extras in (("one", item), ("two", Extras()), ("three", Extras(("index-2",), "stats-2"))):
        changes, _, _ = world._change(world.table, add_count=1, delete_count=0)
        foreign_commit(world.table, changes, merges=False, name=name, extras=extras)
    world.table.create_tag("held", snapshot_id=2)
    return world


def left(world: TableWorld, paths: set[str]) -> set[str]:
    """Those of some paths that are there."""
    return paths & {meta.path for meta in world.store.list("")}


def test_expiry_keeps_what_a_tag_names(made: TableWorld) -> None:
    """Index files, statistics and changelog stay with the tag of their snapshot, and go with it."""
    made.table.expire(retain_max=1)
    assert left(made, CARRIED | CHANGELOG) == CARRIED | CHANGELOG
    made.table.delete_tag("held")
    assert left(made, CARRIED | CHANGELOG) == set()
    assert left(made, OWN) == OWN


def test_expiry_keeps_what_is_carried_on(made: TableWorld) -> None:
    """What a later snapshot carries on stays when the snapshot that wrote it goes; its changelog goes with it."""
    made.table.delete_tag("held")
    made.table.expire(retain_max=2)
    assert left(made, CARRIED | CHANGELOG) == CARRIED
    made.table.expire(retain_max=1)
    assert left(made, CARRIED) == set()


def test_a_rollback_deletes_what_came_later(made: TableWorld) -> None:
    """A rollback takes the later index files and statistics away and carries its target's on."""
    snapshot = made.table.rollback_to("tag.held")
    assert (snapshot.index_manifest, snapshot.statistics) == ("index-manifest-one", "stats-1")
    assert left(made, OWN) == set()
    assert left(made, CARRIED | CHANGELOG) == CARRIED | CHANGELOG


def test_a_kept_changelog_keeps_its_files(made: TableWorld) -> None:
    """A changelog that another client kept beyond its snapshot has its files, after the deletion of any tags."""
    made.table.expire(retain_max=1)
    made.store.put("changelog/changelog-2", bytes(made.store.get("tag/tag-held")))
    report = made.table.delete_tag("held")
    assert report.kept["of a kept changelog"] == len(CHANGELOG)
    assert left(made, CARRIED | CHANGELOG) == CHANGELOG
