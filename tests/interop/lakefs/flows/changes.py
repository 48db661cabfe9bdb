"""Merge, revert, cherry-pick."""

from flows.expect import refused
from lakefs.exceptions import BadRequestException, ConflictException, NotFoundException


def _with_two_branches(lake, **files):
    made = lake.repository()
    main = made.branch("main")
    for path, body in (files or {"a": "1"}).items():
        main.object(path).upload(body)
    main.commit("first")
    return made, main, made.branch("dev").create("main")


def _put(branch, message, **files):
    for path, body in files.items():
        branch.object(path).upload(body)
    return branch.commit(message)


def _text(reference, path):
    return reference.object(path).reader(mode="r").read()


def a_merge_takes_what_one_side_changed(lake):
    """The merge has both as parents, its own message and metadata; the source stays."""
    _, main, dev = _with_two_branches(lake)
    present = _put(dev, "on dev", b="2")
    here = _put(main, "on main", c="3")
    merged = dev.merge_into(main, message="together", metadata={"by": "test"})
    commit = main.get_commit()
    assert commit.id == merged
    assert (commit.message, commit.metadata["by"]) == ("together", "test")
    assert commit.parents == [here.id, present.id]
    assert [entry.path for entry in main.objects()] == ["a", "b", "c"]
    assert dev.head.id == present.id
    assert dev.merge_into(main, allow_empty=True)


def a_merge_of_nothing_is_refused(lake):
    """Changes that the destination has already make no merge."""
    _, main, dev = _with_two_branches(lake)
    with refused(400, kind=BadRequestException):
        dev.merge_into(main)


def a_dirty_destination_is_refused(lake):
    """Uncommitted changes of the destination block a merge, and stay."""
    _, main, dev = _with_two_branches(lake)
    _put(dev, "on dev", b="2")
    main.object("c").upload("3")
    with refused(400, kind=BadRequestException):
        dev.merge_into(main)
    assert [change.path for change in main.uncommitted()] == ["c"]


def a_conflict_moves_nothing(lake):
    """Its paths are reported; the destination stays as it is."""
    _, main, dev = _with_two_branches(lake)
    _put(dev, "on dev", a="dev")
    before = _put(main, "on main", a="main").id
    with refused(409, "a", kind=ConflictException):
        dev.merge_into(main)
    assert main.head.id == before
    assert _text(main, "a") == "main"


def a_strategy_decides_conflicts(lake):
    """``source-wins`` and ``dest-wins`` take one side where both changed."""
    for strategy, expected in (("source-wins", "dev"), ("dest-wins", "main")):
        _, main, dev = _with_two_branches(lake)
        _put(dev, "on dev", a="dev", b="only dev")
        _put(main, "on main", a="main")
        dev.merge_into(main, strategy=strategy)
        assert _text(main, "a") == expected
        assert _text(main, "b") == "only dev"
        assert main.get_commit().metadata[".lakefs.merge.strategy"] == strategy


def a_squash_leaves_the_source_out_of_the_history(lake):
    """One parent, and all of the source's changes."""
    _, main, dev = _with_two_branches(lake)
    _put(dev, "on dev", b="2")
    _put(dev, "on dev again", c="3")
    before = main.head.id
    dev.merge_into(main, squash_merge=True, message="squashed")
    assert main.get_commit().parents == [before]
    assert [entry.path for entry in main.objects()] == ["a", "b", "c"]
    assert "on dev" not in [commit.message for commit in main.log()]


def the_merge_base_is_told(lake):
    """Where two references parted."""
    made, main, dev = _with_two_branches(lake)
    base = main.head.id
    present, here = _put(dev, "on dev", b="2"), _put(main, "on main", c="3")
    merge_base = lake.client.sdk_client.refs_api.find_merge_base(made.id, "dev", "main")
    assert (merge_base.source_commit_id, merge_base.destination_commit_id) == (present.id, here.id)
    assert merge_base.base_commit_id == base


def a_tag_or_commit_is_merged_too(lake):
    """The source is any reference; neither side may be missing."""
    made, main, dev = _with_two_branches(lake)
    tag = made.tag("v1").create(_put(dev, "on dev", b="2"))
    tag.merge_into("main")
    assert _text(main, "b") == "2"
    with refused(404, kind=NotFoundException):
        made.ref("nowhere").merge_into("main")
    with refused(404, kind=NotFoundException):
        dev.merge_into("nowhere")


def a_commit_is_taken_back(lake):
    """Its changes are undone by another commit; what came after stays."""
    _, main, _ = _with_two_branches(lake)
    bad = _put(main, "bad", a="wrong", b="2")
    _put(main, "good", c="3")
    undone = main.revert(bad)
    assert undone.id == main.head.id
    assert "Revert" in undone.message
    assert [entry.path for entry in main.objects()] == ["a", "c"]
    assert _text(main, "a") == "1"
    with refused(404, kind=NotFoundException):
        main.revert("nowhere")


def taking_back_what_was_changed_since_is_a_conflict(lake):
    """Nothing moves; a dirty branch is refused too."""
    _, main, _ = _with_two_branches(lake)
    bad = _put(main, "bad", a="2")
    later = _put(main, "later", a="3")
    with refused(409, kind=ConflictException):
        main.revert(bad)
    assert main.head.id == later.id
    main.object("z").upload("z")
    with refused(400, kind=BadRequestException):
        main.revert(later)


def what_is_staged_is_no_commit(lake):
    """``branch$`` can be read, and neither merged, tagged nor logged."""
    made, main, dev = _with_two_branches(lake)
    dev.object("staged").upload(b"1")
    refs = lake.client.sdk_client.refs_api
    with refused(400, "$"):
        refs.merge_into_branch(made.id, f"{dev.id}$", "main")
    with refused(400, "$"):
        refs.log_commits(made.id, "main$")
    with refused(400, "$"):
        made.tag("t").create(f"{dev.id}$")
    assert main.head.id == main.get_commit().id


def a_merge_is_taken_back_to_a_parent(lake):
    """Which parent must be said."""
    _, main, dev = _with_two_branches(lake)
    _put(dev, "on dev", b="2")
    _put(main, "on main", c="3")
    merged = dev.merge_into(main)
    with refused(409, "parent"):
        main.revert(merged)
    main.revert(merged, parent_number=1)
    assert [entry.path for entry in main.objects()] == ["a", "c"]
    with refused(400):
        main.revert(merged, parent_number=3)


def a_commit_is_picked(lake):
    """Its changes, and only its, are made again, with its message."""
    _, main, dev = _with_two_branches(lake)
    _put(dev, "not this", b="2")
    wanted = _put(dev, "this", c="3")
    picked = main.cherry_pick(wanted)
    assert picked.message == "this"
    assert picked.id == main.head.id
    assert [entry.path for entry in main.objects()] == ["a", "c"]
    _put(main, "differently", d="main")
    other = _put(dev, "conflicting", d="dev")
    with refused(409, kind=ConflictException):
        main.cherry_pick(other)
    with refused(404, kind=NotFoundException):
        main.cherry_pick("nowhere")
    main.object("z").upload("z")
    with refused(400, kind=BadRequestException):
        main.cherry_pick(other)


def a_merge_is_picked_against_a_parent(lake):
    """Of a merge it must be said against which parent."""
    made, main, dev = _with_two_branches(lake)
    start = made.branch("clean").create("main")
    _put(dev, "on dev", b="2")
    _put(main, "on main", c="3")
    merged = dev.merge_into(main)
    with refused(400, "parent"):
        start.cherry_pick(merged)
    start.cherry_pick(merged, parent_number=1)
    assert [entry.path for entry in start.objects()] == ["a", "b"]
