"""Commits, their log, and how versions differ."""

import time

import lakefs_sdk
from flows.expect import refused
from lakefs.exceptions import BadRequestException, NotFoundException


def a_commit_says_who_what_and_when(lake):
    """Message, metadata, date, committer and parents are returned as they were given."""
    made = lake.repository()
    main = made.branch("main")
    root = main.head.id
    main.object("a").upload(b"one")
    reference = main.commit("first", metadata={"ticket": "42", "ünï": "çødé"}, date=1_600_000_000)
    commit = reference.get_commit()
    assert commit.message == "first"
    assert commit.metadata == {"ticket": "42", "ünï": "çødé"}
    assert commit.creation_date == 1_600_000_000
    assert commit.committer == lake.access_key
    assert commit.parents == [root]
    assert commit.meta_range_id
    main.object("a").upload(b"two")
    assert abs(main.commit("now").get_commit().creation_date - time.time()) < 60


def a_commit_without_changes_is_refused(lake):
    """Unless it may be empty; writing the same bytes again is not a change."""
    main = lake.repository().branch("main")
    with refused(400, "no changes", kind=BadRequestException):
        main.commit("nothing")
    main.object("a").upload(b"one")
    main.commit("first")
    main.object("a").upload(b"one")
    with refused(400, kind=BadRequestException):
        main.commit("the same")
    before = main.head.id
    empty = main.commit("empty", allow_empty=True)
    assert empty.get_commit().parents == [before]


def a_commit_needs_a_branch(lake):
    """Neither a branch nor a repository that is not there can be committed."""
    made = lake.repository()
    with refused(404, "nowhere", kind=NotFoundException):
        made.branch("nowhere").commit("x")


def the_log_is_told_in_pages(lake):
    """Newest first, all of it, by amount and behind a commit."""
    made = lake.repository()
    main = made.branch("main")
    ids = [main.head.id]
    for number in range(130):
        ids.append(main.commit(f"commit {number}", allow_empty=True).id)
    ids.reverse()
    assert [commit.id for commit in main.log()] == ids
    assert [commit.id for commit in main.log(max_amount=3)] == ids[:3]
    page = lake.client.sdk_client.refs_api.log_commits(made.id, "main", amount=10, after=ids[4])
    assert [commit.id for commit in page.results] == ids[5:15]
    assert page.pagination.has_more
    following = page.pagination.next_offset
    assert following.startswith(ids[14])
    page = lake.client.sdk_client.refs_api.log_commits(made.id, "main", amount=10, after=following)
    assert [commit.id for commit in page.results] == ids[15:25]
    limited = lake.client.sdk_client.refs_api.log_commits(made.id, "main", amount=10, limit=True)
    assert not limited.pagination.has_more
    assert [commit.id for commit in main.log(stop_at=ids[3])] == ids[:4]


def the_log_tells_who_changed_a_path(lake):
    """Only commits that changed a path, or something below a prefix."""
    made = lake.repository()
    main = made.branch("main")
    ids = {}
    for path in ("a/1", "b/1", "a/2", "a/1"):
        main.object(path).upload(f"{len(ids)}")
        ids[len(ids)] = main.commit(path).id
    assert [commit.id for commit in main.log(objects=["a/1"])] == [ids[3], ids[0]]
    assert [commit.id for commit in main.log(prefixes=["a/"])] == [ids[3], ids[2], ids[0]]
    assert [commit.id for commit in main.log(objects=["b/1"], prefixes=["none/"])] == [ids[1]]
    made.branch("dev").create("main~1").object("c").upload(b"c")
    made.branch("dev").commit("beside")
    made.branch("dev").merge_into("main")
    assert [commit.message for commit in main.log(objects=["c"])] == ["beside"]
    messages = [commit.message for commit in main.log(first_parent=True)]
    assert "beside" not in messages
    assert "beside" in [commit.message for commit in main.log()]


def versions_differ_by_two_and_three_dots(lake):
    """Three dots: what the right side changed since the merge base; two: what is different now."""
    made = lake.repository()
    main = made.branch("main")
    for path in ("same", "changed", "removed"):
        main.object(path).upload(b"1")
    main.commit("first")
    dev = made.branch("dev").create("main")
    dev.object("changed").upload(b"22")
    dev.object("removed").delete()
    dev.object("added").upload(b"333")
    dev.commit("on dev")
    main.object("on-main").upload(b"4")
    main.commit("on main")
    pairs = {(difference.type, difference.path, difference.size_bytes) for difference in main.diff(dev)}
    assert pairs == {("added", "added", 3), ("changed", "changed", 2), ("removed", "removed", 1)}
    two = [(difference.type, difference.path) for difference in main.diff(dev, type="two_dot")]
    assert two == [("added", "added"), ("changed", "changed"), ("removed", "on-main"), ("removed", "removed")]
    assert [difference.path for difference in main.diff("dev", after="added", max_amount=1)] == ["changed"]
    with refused(404, "nowhere", kind=NotFoundException):
        list(main.diff("nowhere"))


def differences_fold_into_prefixes(lake):
    """With a delimiter, what differs below a prefix is one row; uncommitted changes the same."""
    made = lake.repository()
    main = made.branch("main")
    dev = made.branch("dev").create("main")
    for path in ("a/1", "a/2", "b/x/1", "c"):
        dev.object(path).upload(b"1")
    assert [(change.type, change.path) for change in dev.uncommitted()] == [
        ("added", path) for path in ("a/1", "a/2", "b/x/1", "c")
    ]
    folded = list(dev.uncommitted(delimiter="/"))
    assert [(entry.path_type, entry.path) for entry in folded] == [
        ("common_prefix", "a/"), ("common_prefix", "b/"), ("object", "c")
    ]  # fmt: skip
    assert [change.path for change in dev.uncommitted(prefix="a/", max_amount=1)] == ["a/1"]
    dev.commit("all")
    assert list(dev.uncommitted()) == []
    assert [(difference.path_type, difference.path) for difference in main.diff(dev, delimiter="/")] == [
        ("common_prefix", "a/"), ("common_prefix", "b/"), ("object", "c")
    ]  # fmt: skip
    assert [difference.path for difference in main.diff(dev, prefix="b/", delimiter="/")] == ["b/x/"]


def a_commit_is_found_by_every_reference(lake):
    """``GET /commits/{ref}`` takes branches and tags too; what is not there is 404."""
    made, api = lake.repository(), lake.client.sdk_client.commits_api
    head = made.branch("main").head.id
    made.tag("v1").create("main")
    for reference in ("main", "v1", head):
        assert api.get_commit(made.id, reference).id == head
    for reference in ("nowhere", "0" * 64):
        with refused(404):
            api.get_commit(made.id, reference)


def paths_of_a_commit_can_be_chosen(lake):
    """Beyond what the clients know: a commit of some paths leaves the others uncommitted."""
    made = lake.repository()
    main = made.branch("main")
    for path in ("a/1", "a/2", "b"):
        main.object(path).upload(b"1")
    place = f"/api/v1/repositories/{made.id}/branches/main/commits"
    status, _, _ = lake.ask("POST", place, {"message": "some", "paths": ["a/"]})
    assert status == 201
    assert [change.path for change in main.uncommitted()] == ["b"]
    assert [entry.path for entry in made.ref("main@").objects()] == ["a/1", "a/2"]


def a_metarange_is_not_committed(lake):
    """What we do not have is refused with a sentence, never ignored."""
    made = lake.repository()
    creation = lakefs_sdk.CommitCreation(message="x")
    with refused(400):
        lake.client.sdk_client.commits_api.commit(made.id, "main", creation, source_metarange="abc")
