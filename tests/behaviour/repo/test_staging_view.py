"""Views: one moment of a reference, over many layers."""

from __future__ import annotations

import pytest

from lakebed.errors import Closed, NotFound
from lakebed.repo.refs import resolve
from lakebed.repo.staging.view import READ_LAYERS, View, open_view
from worlds.repo.staging import BRANCH, StagingScene


def shown(view: View) -> dict[str, str]:
    """What a view shows."""
    return {line.path: line.entry.metadata["is"] for line in view.list() if line.entry is not None}


def layers_touched() -> float:
    """Tokens that single reads have looked into, by this process."""
    line = next(
        (line for line in READ_LAYERS.lines() if line.startswith('lakebed_repo_read_layers_sum{operation="get"}')), " 0"
    )
    return float(line.rsplit(" ", 1)[1])


def test_a_view_does_not_change() -> None:
    """Whatever is written, sealed, compacted or cleaned up later, a view shows its moment."""
    scene = StagingScene({"a": "1"})
    scene.put("b", "1")
    with open_view(scene.home, resolve(scene.home, BRANCH)) as view:
        scene.put("c", "1")
        scene.delete_prefix("")
        scene.compact()
        prefix = scene.home.keys.staging()
        with scene.home.key_value.snapshot() as snapshot:
            gone = [key for key, _ in snapshot.scan(prefix, prefix + b"\xff")]
        scene.home.key_value.write(deletes=gone)
        assert shown(view) == {"a": "1", "b": "1"}
        entry = view.get("b")
        assert entry is not None
        assert entry.metadata == {"is": "1"}
    assert scene.shown() == {}
    with pytest.raises(Closed):
        view.get("b")


def test_references_to_commits_show_what_is_committed() -> None:
    """With @, or at a commit, neither staging nor a compacted metarange is looked at."""
    scene = StagingScene({"a": "1"})
    scene.put("a", "2")
    scene.compact()
    scene.put("b", "1")
    for text, expected in (
        (BRANCH, {"a": "2", "b": "1"}),
        (BRANCH + "$", {"a": "2", "b": "1"}),
        (BRANCH + "@", {"a": "1"}),
        (scene.record.commit_id, {"a": "1"}),
    ):
        with open_view(scene.home, resolve(scene.home, text)) as view:
            assert shown(view) == expected
        with (
            scene.home.key_value.snapshot() as snapshot,
            open_view(scene.home, resolve(scene.home, text, snapshot=snapshot), snapshot=snapshot) as view,
        ):
            assert shown(view) == expected


def test_a_reference_that_was_resolved_earlier_shows_the_branch_as_it_is() -> None:
    """Tokens of an older record may be cleaned up: without its snapshot the record is read again."""
    scene = StagingScene({"a": "1"})
    scene.put("b", "1")
    resolved = resolve(scene.home, BRANCH)
    scene.commit()
    prefix = scene.home.keys.staging()
    with scene.home.key_value.snapshot() as snapshot:
        gone = [key for key, _ in snapshot.scan(prefix, prefix + b"\xff")]
    scene.home.key_value.write(deletes=gone)
    with open_view(scene.home, resolved) as view:
        assert shown(view) == {"a": "1", "b": "1"}
    scene.home.key_value.delete(scene.key)
    with pytest.raises(NotFound):
        open_view(scene.home, resolved)


def test_reads_through_a_hundred_sealed_tokens() -> None:
    """Every layer is found; after a compaction a read looks into one token, however many there were."""
    scene = StagingScene({"head": "x"})
    for number in range(100):
        scene.put(f"p{number:02}", "x")
        scene.seal()
    expected = {"head": "x", **{f"p{number:02}": "x" for number in range(100)}}
    assert scene.shown() == expected
    before = layers_touched()
    with scene.view() as view:
        assert view.get("p00") is not None
        assert view.get("head") is not None
        assert view.get("nowhere") is None
    assert layers_touched() - before == 3 * 101
    scene.compact()
    before = layers_touched()
    with scene.view() as view:
        assert view.get("p00") is not None
    assert layers_touched() - before == 1
    assert scene.shown() == expected


def test_a_single_read_touches_layers_down_to_the_first_that_says_something() -> None:
    """A row of the staging token ends the search, and so does a clear above."""
    scene = StagingScene({"a/1": "x"})
    for number in range(5):
        scene.put(f"p{number}", "x")
        scene.seal()
    scene.delete_prefix("a/")
    scene.put("p0", "y")
    for path, there, touched in (("p0", True, 1), ("a/1", False, 1), ("p4", True, 3)):
        before = layers_touched()
        with scene.view() as view:
            assert (view.get(path) is not None) == there
        assert layers_touched() - before == touched


def test_a_single_read_opens_at_most_one_range() -> None:
    """Committed data is asked once, and only when no token says anything."""
    scene = StagingScene({f"{number:03}": "x" for number in range(100)})
    scene.put("050", "y")
    for path, ranges in (("050", 0), ("051", 1), ("nowhere", 0)):
        with scene.home.committed.count() as counts, scene.view() as view:
            view.get(path)
        assert counts.ranges_read <= ranges
