"""Tags: names that stay, for as long as they are meant to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.refs import resolve
from lakebed.repo.references.tags import create_tag, delete_tag, find_tag, list_tags, load_tag
from lakebed.repo.verbs.versions import Pins, PinVersion, Restore, Unpin, Versions
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import refused
from worlds.repo.memory_repository import MemoryRepository, contents, open_context, put
from worlds.repo.operations import commit, commit_text


@pytest.fixture
def home(clock: ManualClock) -> Iterator[RepositoryContext]:
    """A repository with one empty commit."""
    with open_context(MemoryRepository(environment=Environment(clock=clock))) as opened:
        yield opened


def test_a_tag_stays_where_it_is(home: RepositoryContext) -> None:
    """A tag names the commit it was given, even when the branch moves; after a delete the name is free."""
    made = commit_text(home, "main", "a", "1", message="first")
    create_tag(home, "v1.0/rc", commit_id=made.id, owner="ann")
    commit_text(home, "main", "a", "2", message="second")
    assert resolve(home, "v1.0/rc").commit_id == made.id
    assert contents(home, "v1.0/rc") == {"a": "1"}
    assert (load_tag(home, "v1.0/rc").owner, load_tag(home, "v1.0/rc").expires_at_ms) == ("ann", None)
    assert delete_tag(home, "v1.0/rc").commit_id == made.id
    refused(NotFound, "tag_not_found", delete_tag, home, "v1.0/rc")
    refused(NotFound, "tag_not_found", load_tag, home, "v1.0/rc")
    create_tag(home, "v1.0/rc", commit_id=load_branch(home, "main")[0].commit_id)


def test_what_cannot_be_a_tag_is_refused(home: RepositoryContext) -> None:
    """Taken names, names of branches, wrong names, missing commits, no lifetime: each has its kind."""
    head = load_branch(home, "main")[0].commit_id
    create_tag(home, "v1", commit_id=head)
    refused(AlreadyExists, "tag_exists", create_tag, home, "v1", commit_id=head)
    refused(AlreadyExists, "branch_exists", create_tag, home, "main", commit_id=head)
    refused(InvalidRequest, "invalid_tag_name", create_tag, home, "a b", commit_id=head)
    refused(NotFound, "commit_not_found", create_tag, home, "v2", commit_id="0" * 64)
    refused(InvalidRequest, "invalid_lifetime", create_tag, home, "v2", commit_id=head, lifetime_ms=0)
    assert [name for name, _ in list_tags(home)] == ["v1"]


def test_a_lifetime_ends(home: RepositoryContext, clock: ManualClock) -> None:
    """Afterwards no reader finds the tag, and its name can be given again, also to a branch."""
    head = load_branch(home, "main")[0].commit_id
    create_tag(home, "soon", commit_id=head, lifetime_ms=1000)
    create_tag(home, "later", commit_id=head, lifetime_ms=1000)
    clock.advance(0.999)
    assert resolve(home, "soon").kind == "tag"
    clock.advance(0.001)
    assert find_tag(home, "soon") is None
    assert list(list_tags(home)) == []
    refused(NotFound, "reference_not_found", resolve, home, "soon")
    refused(NotFound, "tag_not_found", delete_tag, home, "soon")
    create_tag(home, "soon", commit_id=head)
    create_branch(home, "later", source="main")
    assert resolve(home, "later").kind == "branch"


def test_a_process_whose_clock_is_ahead_gives_no_name_of_a_tag_away(home: RepositoryContext) -> None:
    """The tag of a week holds its commit: it has ended when it has by the store's clock too."""
    head = load_branch(home, "main")[0].commit_id
    kept = create_tag(home, "week", commit_id=head, lifetime_ms=7 * 86_400_000)
    clock = ManualClock(start_ms=home.now_ms() * 2)
    ahead = replace(home, environment=Environment(clock=clock))
    refused(AlreadyExists, "tag_exists", create_tag, ahead, "week", commit_id=head)
    assert load_tag(home, "week") == kept


def test_tags_are_listed_in_pages(home: RepositoryContext) -> None:
    """By prefix and behind a name, in the order of names."""
    head = load_branch(home, "main")[0].commit_id
    for name in ("v2", "v1", "other", "v10"):
        create_tag(home, name, commit_id=head)
    assert [name for name, _ in list_tags(home)] == ["other", "v1", "v10", "v2"]
    assert [name for name, _ in list_tags(home, prefix="v1")] == ["v1", "v10"]
    assert [name for name, _ in list_tags(home, prefix="v", after="v1")] == ["v10", "v2"]


def test_pins_are_tags_and_branches(home: RepositoryContext) -> None:
    """A branch pins the version it left the default branch at; only tags are taken away by unpin."""
    made = commit_text(home, "main", "a", "1", message="first")
    create_branch(home, "dev", source="main")
    commit_text(home, "dev", "b", "2", message="elsewhere")
    commit_text(home, "main", "a", "3", message="second")
    pin = PinVersion(name="keep", version="main~1").run(home)
    assert (pin.kind, pin.version) == ("tag", made.id)
    assert [(item.kind, item.name, item.version) for item in Pins().run(home)] == [
        ("tag", "keep", made.id),
        ("branch", "dev", made.id),
    ]
    refused(InvalidRequest, "pin_is_a_branch", Unpin(name="dev").run, home)
    refused(NotFound, "tag_not_found", Unpin(name="nobody").run, home)
    Unpin(name="keep").run(home)
    assert [item.name for item in Pins().run(home)] == ["dev"]


def test_versions_are_what_the_default_branch_was(home: RepositoryContext) -> None:
    """Oldest first, along first parents; those whose objects were collected are left out."""
    ids = [load_branch(home, "main")[0].commit_id]
    for number in range(3):
        put(home, "main", "a", f"{number}")
        ids.append(commit(home, "main", message=f"{number}").id)
    assert [version.id for version in Versions().run(home)] == ids
    home.key_value.set(home.keys.expired(ids[1]), b"")
    assert [version.id for version in Versions().run(home)] == [ids[0], *ids[2:]]


def test_a_restore_needs_a_clean_branch(home: RepositoryContext) -> None:
    """Nothing uncommitted is lost by it; an expired version does not come back."""
    first = commit_text(home, "main", "a", "1", message="first")
    second = commit_text(home, "main", "a", "2", message="second")
    put(home, "main", "b", "3")
    refused(InvalidRequest, "dirty_branch", Restore(version=first.id).run, home)
    third = commit(home, "main", message="third")
    home.key_value.set(home.keys.expired(second.id), b"")
    refused(InvalidRequest, "commit_expired", Restore(version=second.id).run, home)
    assert load_branch(home, "main")[0].commit_id == third.id
    restored = Restore(version=first.id).run(home)
    assert contents(home, "main") == {"a": "1"}
    assert restored.facts["parents"] == [third.id]
