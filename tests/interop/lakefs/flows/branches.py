"""Branches and tags: made, listed, moved, deleted."""

import lakefs
import lakefs_sdk
from flows.expect import refused
from lakefs.exceptions import BadRequestException, ConflictException, ForbiddenException, NotFoundException


def a_branch_is_made_used_and_deleted(lake):
    """A branch begins where its source is, and goes its own way."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"one")
    first = main.commit("first")
    dev = made.branch("dev").create("main")
    assert dev.head.id == first.id == main.head.id
    dev.object("a").upload(b"two")
    assert main.object("a").reader().read() == b"one"
    assert dev.object("a").reader().read() == b"two"
    dev.delete()
    with refused(404, "dev", kind=NotFoundException):
        _ = dev.head


def the_reply_to_a_creation_is_the_commit(lake):
    """The body is the id of the commit at the new head, as text."""
    made = lake.repository()
    creation = lakefs_sdk.BranchCreation(name="dev", source="main")
    reply = lake.client.sdk_client.branches_api.create_branch(made.id, creation)
    assert reply.strip('"\n') == made.branch("main").head.id


def a_branch_that_exists_is_not_made_again(lake):
    """A conflict, which ``exist_ok`` takes as what was wanted."""
    made = lake.repository()
    made.branch("dev").create("main")
    with refused(409, "dev", kind=ConflictException):
        made.branch("dev").create("main")
    made.branch("dev").create("main", exist_ok=True)


def a_branch_needs_a_source(lake):
    """What is named as its source must be there; names must be possible."""
    made = lake.repository()
    with refused(404, "nowhere", kind=NotFoundException):
        made.branch("dev").create("nowhere")
    for name in ("with space", "a~b", "with/slash", "-dash"):
        with refused(400, kind=BadRequestException):
            made.branch(name).create("main")


def the_default_branch_stays(lake):
    """It cannot be deleted."""
    made = lake.repository()
    with refused(403, "main", kind=ForbiddenException):
        made.branch("main").delete()
    assert made.branch("main").head.id


def branches_are_listed(lake):
    """By prefix, behind a name, in pages; hidden ones only when asked for."""
    made = lake.repository()
    for name in ("dev-2", "dev-1", "other"):
        made.branch(name).create("main")
    made.branch("unseen").create("main", hidden=True)
    assert [branch.id for branch in made.branches()] == ["dev-1", "dev-2", "main", "other"]
    assert [branch.id for branch in made.branches(prefix="dev-")] == ["dev-1", "dev-2"]
    assert [branch.id for branch in made.branches(after="dev-1", max_amount=2)] == ["dev-2", "main"]
    assert [branch.id for branch in made.branches(show_hidden=True)][-1] == "unseen"
    page = lake.client.sdk_client.branches_api.list_branches(made.id, amount=1, after="dev-2")
    assert (page.pagination.has_more, page.pagination.next_offset) == (True, "main")
    assert made.branch("unseen").head.id == made.branch("main").head.id


def branches_can_be_many(lake):
    """More than one page of them is listed whole, in order."""
    made = lake.repository()
    names = [f"b{number:03}" for number in range(120)]
    for name in names:
        made.branch(name).create("main")
    assert [branch.id for branch in made.branches()] == [*names, "main"]


def a_tag_stays_where_it_is(lake):
    """It names a commit, is listed and read, is not made twice, and is deleted."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"one")
    first = main.commit("first")
    tag = made.tag("v1").create(first)
    main.object("a").upload(b"two")
    main.commit("second")
    assert tag.get_commit().id == first.id
    assert tag.object("a").reader().read() == b"one"
    with refused(409, "v1", kind=ConflictException):
        made.tag("v1").create("main")
    made.tag("v1").create("main", exist_ok=True)
    assert made.tag("v1").get_commit().id == first.id
    made.tag("v0").create("main~1")
    assert [item.id for item in made.tags()] == ["v0", "v1"]
    assert [item.id for item in made.tags(prefix="v", after="v0")] == ["v1"]
    with refused(404, kind=NotFoundException):
        made.tag("v2").create("nowhere")
    tag.delete()
    with refused(404, kind=NotFoundException):
        tag.get_commit()
    with refused(404, kind=NotFoundException):
        tag.delete()


def what_is_uncommitted_can_be_given_up(lake):
    """At a path, below a prefix, or all of it."""
    made = lake.repository()
    main = made.branch("main")
    main.object("kept").upload(b"1")
    main.commit("first")
    for path in ("a/1", "a/2", "b/1", "c", "kept"):
        main.object(path).upload(b"changed")
    main.reset_changes("object", "c")
    assert [change.path for change in main.uncommitted()] == ["a/1", "a/2", "b/1", "kept"]
    main.reset_changes("common_prefix", "a/")
    assert [change.path for change in main.uncommitted()] == ["b/1", "kept"]
    main.reset_changes()
    assert list(main.uncommitted()) == []
    assert [entry.path for entry in main.objects()] == ["kept"]
    assert main.object("kept").reader().read() == b"1"


def a_branch_is_set_elsewhere(lake):
    """A hard reset moves it to another commit; uncommitted changes block it."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"one")
    first = main.commit("first")
    main.object("a").upload(b"two")
    main.commit("second")
    api = lake.client.sdk_client.experimental_api
    api.hard_reset_branch(made.id, "main", ref=first.id)
    assert main.head.id == first.id
    assert main.object("a").reader().read() == b"one"
    with refused(404):
        api.hard_reset_branch(made.id, "main", ref="nowhere")


def references_have_steps(lake):
    """``~n``, ``^n``, ``@``, ``$`` and the beginning of a commit's id are references."""
    made = lake.repository()
    main = made.branch("main")
    ids = [main.head.id]
    for number in range(3):
        main.object("a").upload(f"{number}")
        ids.append(main.commit(f"commit {number}").id)
    main.object("a").upload("uncommitted")
    assert made.ref("main~1").get_commit().id == ids[-2]
    assert made.ref("main^").get_commit().id == ids[-2]
    assert made.ref("main~3").get_commit().id == ids[0]
    assert made.ref(ids[-1][:12]).get_commit().id == ids[-1]
    assert made.ref("main@").object("a").reader().read() == b"2"
    assert made.ref("main$").object("a").reader().read() == b"uncommitted"
    assert made.ref(f"{ids[-1]}~1").object("a").reader().read() == b"1"
    with refused(404, kind=NotFoundException):
        made.ref("main~9").get_commit()
    assert lakefs.Reference(made.id, "main", client=lake.client).get_commit().id == ids[-1]
