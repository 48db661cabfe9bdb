"""Objects: written, read, looked at, copied, deleted, staged."""

import hashlib
import os
import time
import uuid

import lakefs
import lakefs_sdk
from flows.expect import raises, refused
from lakefs.exceptions import ObjectExistsException, ObjectNotFoundException


def an_object_is_written_and_read(lake):
    """Bytes and text come back as they were, with size, checksum, type and time."""
    main = lake.repository().branch("main")
    main.object("bytes").upload(b"\x00\xffdata")
    main.object("text").upload("Grüße\r\n", content_type="text/plain; charset=utf-8")
    main.object("empty").upload(b"")
    assert main.object("bytes").reader().read() == b"\x00\xffdata"
    assert main.object("text").reader(mode="r").read() == "Grüße\r\n"
    assert main.object("empty").reader().read() == b""
    entry = main.object("bytes").stat()
    assert (entry.path, entry.size_bytes) == ("bytes", 6)
    assert entry.checksum == hashlib.md5(b"\x00\xffdata").hexdigest()
    assert entry.content_type == "application/octet-stream"
    assert abs(entry.mtime - time.time()) < 60
    assert main.object("text").stat().content_type == "text/plain; charset=utf-8"
    assert main.object("empty").stat().size_bytes == 0
    main.object("bytes").upload(b"again")
    assert main.object("bytes").reader().read() == b"again"


def metadata_of_users_goes_with_an_object(lake):
    """By every way of upload it comes back, in listings too."""
    main = lake.repository().branch("main")
    for number, pre_sign in enumerate((False, True)):
        given = {"source": "radar", "number": str(number)}
        main.object(f"{number}").upload(b"1", pre_sign=pre_sign, metadata=given, content_type="text/csv")
        entry = main.object(f"{number}").stat()
        assert (entry.metadata, entry.content_type) == (given, "text/csv")
    assert [item.metadata["number"] for item in main.objects()] == ["0", "1"]
    assert [item.metadata for item in main.objects(user_metadata=False)] == [None, None]


def an_upload_may_go_past_the_server(lake):
    """``pre_sign`` puts the bytes to a signed URL, then notifies the server that they are there; reading the same."""
    main = lake.repository().branch("main")
    body = os.urandom(300_000)
    main.object("signed").upload(body, pre_sign=True, content_type="image/png")
    entry = main.object("signed").stat()
    assert (entry.size_bytes, entry.content_type) == (len(body), "image/png")
    assert entry.checksum == hashlib.md5(body).hexdigest()
    for pre_sign in (True, False, None):
        with main.object("signed").reader(pre_sign=pre_sign) as reader:
            assert reader.read(10) == body[:10]
            reader.seek(100_000)
            assert reader.read(7) == body[100_000:100_007]
            assert reader.read() == body[100_007:]
    url = main.object("signed").stat(pre_sign=True).physical_address
    assert url.startswith("http") is lake.signs
    if lake.signs:
        assert lake.http.request("GET", url).data == body


def a_signed_upload_asks_for_nothing_else(lake):
    """What the signed URL permits is one address for a while; a changed one is refused."""
    made = lake.repository()
    location = lake.client.sdk_client.staging_api.get_physical_address(made.id, "main", "a", True)
    assert location.presigned_url_expiry > time.time()
    reply = lake.http.request("PUT", location.presigned_url, body=b"bytes")
    assert reply.status == 200
    assert reply.headers["ETag"].strip('"') == hashlib.md5(b"bytes").hexdigest()
    if not lake.signs:
        assert lake.http.request("PUT", location.presigned_url + "0", body=b"other").status == 403
    linked = lake.client.sdk_client.staging_api.link_physical_address(
        made.id,
        "main",
        "a",
        lakefs_sdk.StagingMetadata(staging=location, checksum=reply.headers["ETag"], size_bytes=5),
    )
    assert (linked.path, linked.size_bytes) == ("a", 5)
    assert made.branch("main").object("a").reader().read() == b"bytes"
    with refused(400):
        lake.client.sdk_client.staging_api.link_physical_address(
            made.id, "main", "b", lakefs_sdk.StagingMetadata(staging=location, checksum="x", size_bytes=6)
        )


def a_link_needs_what_was_put(lake):
    """Bytes that were never put cannot be linked."""
    made, api = lake.repository(), lake.client.sdk_client.staging_api
    location = api.get_physical_address(made.id, "main", "a", True)
    with refused(404):
        api.link_physical_address(
            made.id, "main", "a", lakefs_sdk.StagingMetadata(staging=location, checksum="x", size_bytes=1)
        )
    with refused(404):
        api.get_physical_address(made.id, "nowhere", "a", True)


def an_object_on_the_store_is_staged(lake):
    """``stageObject`` names bytes that are there already, without moving them."""
    made = lake.repository()
    url = lake.outside(f"staged/{uuid.uuid4().hex}", b"on the store")
    staged = lake.client.sdk_client.internal_api.stage_object(
        made.id,
        "main",
        "a",
        lakefs_sdk.ObjectStageCreation(
            physical_address=url, checksum="abc", size_bytes=12, content_type="text/plain", metadata={"k": "v"}
        ),
    )
    assert (staged.size_bytes, staged.content_type, staged.metadata) == (12, "text/plain", {"k": "v"})
    main = made.branch("main")
    main.commit("staged")
    assert main.object("a").reader().read() == b"on the store"
    assert main.object("a").reader().read(2) == b"on"


def exclusive_creation_has_one_winner(lake):
    """Mode ``x`` writes only where nothing is, by every way of upload."""
    main = lake.repository().branch("main")
    for pre_sign in (False, True):
        path = f"once-{pre_sign}"
        main.object(path).upload(b"first", mode="xb", pre_sign=pre_sign)
        with raises(ObjectExistsException):
            main.object(path).upload(b"second", mode="xb", pre_sign=pre_sign)
        late = lakefs.object.ObjectWriter(main.object(f"late-{pre_sign}"), "xb", pre_sign=pre_sign, client=lake.client)
        main.object(f"late-{pre_sign}").upload(b"first")
        late.write(b"second")
        with raises(ObjectExistsException):
            late.close()
        assert main.object(path).reader().read() == b"first"
        assert main.object(f"late-{pre_sign}").reader().read() == b"first"


def a_writer_gathers_what_is_written(lake):
    """Pieces and text are one object when the writer closes; an error leaves none."""
    main = lake.repository().branch("main")
    with main.object("pieces").writer(mode="wb", content_type="text/plain") as writer:
        for number in range(100):
            writer.write(f"{number}\n".encode())
    expected = "".join(f"{number}\n" for number in range(100))
    assert main.object("pieces").reader(mode="r").read() == expected
    with raises(KeyError), main.object("never").writer() as writer:
        writer.write(b"1")
        raise KeyError
    assert not main.object("never").exists()


def a_body_in_chunks_is_an_object(lake):
    """An upload without a stated length is read to its end."""
    made = lake.repository()
    place = f"/api/v1/repositories/{made.id}/branches/main/objects?path=chunks"
    headers = {**lake.headers(), "Content-Type": "text/csv", "x-lakefs-meta-source": "radar"}
    pieces = (b"%d," % number * 1000 for number in range(600))
    reply = lake.http.request("POST", lake.endpoint + place, body=pieces, headers=headers, chunked=True)
    assert reply.status == 201, reply.data
    entry = made.branch("main").object("chunks").stat()
    expected = b"".join(b"%d," % number * 1000 for number in range(600))
    assert (entry.size_bytes, entry.content_type) == (len(expected), "text/csv")
    assert entry.metadata == {"source": "radar"}
    assert made.branch("main").object("chunks").reader().read() == expected


def a_form_is_an_upload_too(lake):
    """The generated SDK sends the bytes as a form's field."""
    made = lake.repository()
    path = os.path.join(lake.folder, f"form-{uuid.uuid4().hex}")
    with open(path, "wb") as file:
        file.write(b"in a form\r\n" * 1000)
    result = lake.client.sdk_client.objects_api.upload_object(made.id, "main", "form", content=path)
    assert result.size_bytes == 11_000
    assert made.branch("main").object("form").reader().read() == b"in a form\r\n" * 1000


def readers_seek_and_read_ranges(lake):
    """From every start, of every length, forwards and backwards, by lines."""
    main = lake.repository().branch("main")
    body = b"".join(b"line %d\n" % number for number in range(10_000))
    main.object("lines").upload(body)
    with main.object("lines").reader() as reader:
        assert reader.read(4) == b"line"
        assert reader.tell() == 4
        reader.seek(-8, os.SEEK_END)
        assert reader.read() == body[-8:]
        reader.seek(5)
        reader.seek(7, os.SEEK_CUR)
        assert reader.read(20) == body[12:32]
        reader.seek(len(body) - 3)
        assert reader.read(100) == body[-3:]
    with main.object("lines").reader(mode="r") as reader:
        assert [reader.readline() for _ in range(3)] == ["line 0\n", "line 1\n", "line 2\n"]
    with main.object("lines").reader() as reader:
        assert sum(1 for _ in reader) == 10_000


def reading_past_the_end_gives_nothing(lake):
    """The SDK learns from 416 and ``bytes */N`` where the end is."""
    made = lake.repository()
    main = made.branch("main")
    main.object("short").upload(b"12345")
    for pre_sign in (False, None):
        with main.object("short").reader(pre_sign=pre_sign) as reader:
            reader.seek(5)
            assert reader.read() == b""
            reader.seek(100)
            assert reader.read(10) == b""
    main.object("empty").upload(b"")
    with main.object("empty").reader(pre_sign=False) as reader:
        assert reader.read(10) == b""
    place = f"/api/v1/repositories/{made.id}/refs/main/objects?path=short"
    status, headers, _ = lake.ask("GET", place, Range="bytes=5-9")
    assert (status, headers["Content-Range"]) == (416, "bytes */5")
    status, headers, body = lake.ask("GET", place, Range="bytes=1-2")
    assert (status, headers["Content-Range"], body) == (206, "bytes 1-2/5", b"23")
    status, headers, body = lake.ask("GET", place, Range="bytes=-2")
    assert (status, headers["Content-Range"], body) == (206, "bytes 3-4/5", b"45")


def what_is_not_there_is_said(lake):
    """Missing objects, branches and repositories are 404 to read, look at and write."""
    made = lake.repository()
    main = made.branch("main")
    assert not main.object("nothing").exists()
    with refused(404, kind=ObjectNotFoundException):
        main.object("nothing").stat()
    with refused(404, kind=FileNotFoundError):
        main.object("nothing").reader(pre_sign=False).read()
    assert not made.branch("nowhere").object("a").exists()
    with refused(404, kind=ObjectNotFoundException):
        made.branch("nowhere").object("a").stat()
    with refused(404):
        made.branch("nowhere").object("a").upload(b"1", pre_sign=False)
    with refused(404):
        lakefs.Repository("no-such-repository", client=lake.client).branch("main").object("a").upload(b"1")
    main.object("a").upload(b"1")
    main.commit("a")
    with refused(404):
        made.ref(main.head.id).object("b").stat()


def only_branches_are_written(lake):
    """A tag or a commit cannot be written to."""
    made = lake.repository()
    main = made.branch("main")
    made.tag("v1").create("main")
    for reference in ("v1", main.head.id):
        with refused(404):
            made.branch(reference).object("a").upload(b"1", pre_sign=False)
    for reference in ("main~1", "main@"):
        with refused(400):
            made.branch(reference).object("a").upload(b"1", pre_sign=False)


def an_object_is_deleted(lake):
    """It is gone on its branch; deleting what is not there is fine; versions keep it."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"1")
    first = main.commit("first")
    main.object("a").delete()
    main.object("a").delete()
    main.object("never").delete()
    assert not main.object("a").exists()
    assert [(change.type, change.path) for change in main.uncommitted()] == [("removed", "a")]
    assert first.object("a").reader().read() == b"1"
    main.commit("gone")
    assert list(main.objects()) == []


def many_objects_are_deleted_at_once(lake):
    """By path or by object, a thousand at a time; more are refused."""
    main = lake.repository().branch("main")
    for path in ("a", "b", "c"):
        main.object(path).upload(b"1")
    main.delete_objects(["a", main.object("b"), *(f"missing/{number}" for number in range(998))])
    assert [entry.path for entry in main.objects()] == ["c"]
    with refused(400, "1000"):
        main.delete_objects([f"missing/{number}" for number in range(1001)])
    main.delete_objects("c")
    assert list(main.objects()) == []


def an_object_is_copied(lake):
    """Inside a repository, to another branch, with its metadata; the copy outlives the original."""
    made = lake.repository()
    main = made.branch("main")
    dev = made.branch("dev").create("main")
    main.object("a").upload(b"12345", content_type="text/plain", metadata={"k": "v"})
    copied = main.object("a").copy("dev", "copies/a")
    assert copied.reader().read() == b"12345"
    entry = dev.object("copies/a").stat()
    assert (entry.content_type, entry.metadata) == ("text/plain", {"k": "v"})
    assert entry.checksum == main.object("a").stat().checksum
    first = main.commit("first")
    main.object("a").delete()
    first.object("a").copy("main", "back")
    assert main.object("back").reader().read() == b"12345"
    with refused(404):
        main.object("nothing").copy("main", "x")
    with refused(404):
        main.object("back").copy("nowhere", "x")


def an_upload_expects_the_object_that_was_read(lake):
    """With the ETag of what is there it is written over; when that has changed, nothing is."""
    made, api = lake.repository(), lake.client.sdk_client.objects_api
    first = api.upload_object(made.id, "main", "a", content=b"1")
    api.upload_object(made.id, "main", "a", content=b"2", if_match=f'"{first.checksum}"')
    with refused(412):
        api.upload_object(made.id, "main", "a", content=b"3", if_match=f'"{first.checksum}"')
    assert made.branch("main").object("a").reader(mode="r", pre_sign=False).read() == "2"


def metadata_of_local_folders_is_kept(lake):
    """What `lakectl local` sends in headers is read by other clients."""
    made = lake.repository()
    place = f"/api/v1/repositories/{made.id}/branches/main/objects?path=a"
    sent = {"X-Lakefs-Internal-Client-Mtime": "1700000000", "X-Lakefs-Internal-Posix-Permissions": '{"mode":420}'}
    assert lake.ask("POST", place, **sent)[0] == 201
    kept = {"::lakefs::client-mtime": "1700000000", "::lakefs::posix-permissions": '{"mode":420}'}
    assert made.branch("main").object("a").stat().metadata == kept
