"""Imports: objects of other places on a branch, without their bytes being copied."""

import uuid
from datetime import timedelta

from flows.expect import raises, refused
from lakefs.exceptions import BadRequestException, ConflictException, ImportManagerException, NotFoundException

SOON = timedelta(milliseconds=20)


def _outside(lake, count=3):
    name = uuid.uuid4().hex
    urls = [lake.outside(f"{name}/{number:04}", b"object %d" % number) for number in range(count)]
    return urls, urls[0].rpartition("/")[0] + "/"


def a_prefix_and_an_object_are_imported(lake):
    """In one commit, with its message and metadata; what was there stays."""
    main = lake.repository().branch("main")
    main.object("before").upload(b"1")
    main.commit("before")
    urls, prefix = _outside(lake)
    manager = main.import_data("imported", metadata={"from": "outside"})
    status = manager.prefix(prefix, "all/").object(urls[1], "single").run(SOON)
    assert status.completed
    assert status.ingested_objects == 4
    assert status.commit.id == main.head.id
    commit = main.get_commit()
    assert (commit.message, commit.metadata["from"]) == ("imported", "outside")
    assert commit.meta_range_id == status.metarange_id
    assert [entry.path for entry in main.objects()] == ["all/0000", "all/0001", "all/0002", "before", "single"]
    assert main.object("all/0002").reader().read() == b"object 2"
    assert main.object("single").stat().size_bytes == 8
    assert manager.status().completed


def an_import_that_ended_is_not_cancelled(lake):
    """A conflict; an unknown import is not found."""
    made = lake.repository()
    main = made.branch("main")
    manager = main.import_data().prefix(_outside(lake)[1], "a/")
    manager.run(SOON)
    assert main.get_commit().message
    with refused(409, kind=ConflictException):
        manager.cancel()
    with refused(404):
        lake.client.sdk_client.import_api.import_status(made.id, "main", "no-such-import")
    with refused(404):
        lake.client.sdk_client.import_api.import_cancel(made.id, "main", "no-such-import")


def an_import_is_cancelled(lake):
    """The branch stays as it is, and a waiting client gets the error."""
    prefix = _outside(lake, 150)[1]
    for _ in range(20):  # one may be over before it is cancelled
        made = lake.repository()
        others = [made.branch(f"b{number}").create("main").import_data().prefix(prefix, "") for number in range(3)]
        manager = made.branch("main").import_data().prefix(prefix, "a/")
        for other in others:
            other.start()
        manager.start()
        try:
            manager.cancel()
        except ConflictException:
            continue
        with raises(ImportManagerException):
            manager.wait(SOON)
        assert list(made.branch("main").objects()) == []
        assert not manager.status().completed
        return
    raise AssertionError("no import could be cancelled")


def what_cannot_be_imported_is_said(lake):
    """A dirty branch, a place that is not there or not allowed, a branch that is not there."""
    made = lake.repository()
    main = made.branch("main")
    prefix = _outside(lake)[1]
    with refused(400, kind=BadRequestException):
        main.import_data().prefix("local:///etc/" if not lake.signs else "s3://elsewhere/", "a/").start()
    with refused(404, kind=NotFoundException):
        made.branch("nowhere").import_data().prefix(prefix, "a/").start()
    with refused(400, kind=BadRequestException):
        main.import_data().prefix(prefix, "a/../b/").start()
    with raises(ImportManagerException):
        main.import_data().object(prefix + "no-such-object", "a").run(SOON)
    main.object("uncommitted").upload(b"1")
    with raises(ImportManagerException):
        main.import_data().prefix(prefix, "a/").run(SOON)
    assert [entry.path for entry in main.objects()] == ["uncommitted"]
