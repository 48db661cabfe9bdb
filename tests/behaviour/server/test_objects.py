"""Objects over HTTP: bytes, headers, ranges, conditions, large bodies."""

from __future__ import annotations

import base64
import hashlib
import http.client
import random
import socket
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from lakebed.repo import open_all
from worlds.waiting import pause

LARGE = 5 * 1024 * 1024 + 17


def body_of(size: int) -> bytes:
    """Bytes that do not repeat."""
    return random.Random(size).randbytes(size)


def test_what_was_uploaded_is_downloaded(client: Any) -> None:
    """An upload answers with the object, and every way of reading it gives the same bytes, type, size and checksum."""
    body = b"some text"
    made = client.put("a/b.txt", body, **{"Content-Type": "text/plain", "X-Lakefs-Meta-Colour": "red"}).json
    assert made["path"] == "a/b.txt"
    assert made["path_type"] == "object"
    assert made["checksum"] == hashlib.md5(body).hexdigest()
    assert made["size_bytes"] == len(body)
    assert made["metadata"] == {"colour": "red"}
    assert made["content_type"] == "text/plain"
    assert client.ask("GET", ":/refs/main/objects/stat", path="a/b.txt").json == made
    read = client.get("a/b.txt")
    assert (read.status, read.body) == (200, body)
    assert read.headers["ETag"] == f'"{made["checksum"]}"'
    assert read.headers["Content-Type"] == "text/plain"
    assert read.headers["Last-Modified"].endswith("GMT")
    head = client.ask("HEAD", ":/refs/main/objects", path="a/b.txt")
    assert (head.status, head.body) == (200, b"")
    same = ("ETag", "Content-Type", "Content-Length", "Last-Modified")
    assert [head.headers[name] for name in same] == [read.headers[name] for name in same]


@pytest.mark.parametrize(
    "path",
    [
        "with space", "ünïcode/日本", "100%", "a+b", "/leading", "double//slash", "trailing/", "q?x=1&y=2", "#hash",
        "%2F", ".", "a/./b", "a..b", "~/x", "semi;colon", "quo\"te'",
    ],
)  # fmt: skip
def test_odd_paths_are_names_like_others(client: Any, path: str) -> None:
    """A path is what was sent, byte for byte, in every verb: put, stat, get, list, copy, delete."""
    client.put(path, path.encode())
    assert client.get(path).body == path.encode()
    assert client.ask("GET", ":/refs/main/objects/stat", path=path).json["path"] == path
    assert client.listed() == [path]
    assert client.ask("POST", ":/branches/main/objects/copy", {"src_path": path}, dest_path="copy").status == 201
    assert client.get("copy").body == path.encode()
    assert client.ask("DELETE", ":/branches/main/objects", path=path).status == 204
    assert client.listed() == ["copy"]


@pytest.mark.parametrize(
    ("header", "span"),
    [("bytes=0-0", (0, 1)), ("bytes=3-6", (3, 7)), ("bytes=3-", (3, 10)), ("bytes=-4", (6, 10)),
     ("bytes=5-99", (5, 10)), ("bytes=-99", (0, 10))],
)  # fmt: skip
def test_a_range_gives_its_bytes(client: Any, header: str, span: tuple[int, int]) -> None:
    """A range is answered with 206, exactly its bytes, and where they stand."""
    client.put("digits", b"0123456789")
    part = client.get("digits", Range=header)
    assert part.status == 206
    assert part.body == b"0123456789"[slice(*span)]
    assert part.headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/10"


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-11", "bytes=99-100", "bytes=-0"])
def test_a_range_past_the_end_names_the_size(client: Any, header: str) -> None:
    """A range outside the object is 416 with the object's size, which clients read as the end."""
    client.put("digits", b"0123456789")
    part = client.get("digits", Range=header)
    assert part.status == 416
    assert part.headers["Content-Range"] == "bytes */10"
    assert "10 bytes" in part.message


@pytest.mark.parametrize("header", ["bytes=", "bytes=5-3", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=--1"])
def test_a_range_that_cannot_be_read_is_ignored(client: Any, header: str) -> None:
    """A header that is not a single range of bytes gets the whole object, as the standard allows."""
    client.put("digits", b"0123456789")
    assert client.get("digits", Range=header).body == b"0123456789"


def test_an_empty_object_is_an_object(client: Any) -> None:
    """No bytes are stored and read as well as many."""
    made = client.put("empty", b"").json
    assert made["size_bytes"] == 0
    assert client.get("empty").body == b""
    assert client.get("empty", Range="bytes=0-").headers["Content-Range"] == "bytes */0"


def test_if_none_match_keeps_what_is_there(client: Any) -> None:
    """``If-None-Match: *`` writes where nothing is, and else answers 412 and changes nothing."""
    client.put("once", b"first", **{"If-None-Match": "*"})
    again = client.ask("POST", ":/branches/main/objects", b"second", {"If-None-Match": "*"}, path="once")
    assert again.status == 412
    assert "once" in again.message
    large = client.ask("POST", ":/branches/main/objects", body_of(LARGE), {"If-None-Match": "*"}, path="once")
    assert large.status == 412
    assert client.get("once").body == b"first"
    client.ask("DELETE", ":/branches/main/objects", path="once")
    client.put("once", b"third", **{"If-None-Match": "*"})
    assert client.get("once").body == b"third"


def test_what_a_reader_has_already_is_not_sent(client: Any) -> None:
    """A reader that sends the object's ETag gets 304."""
    tag = f'"{client.put("a").json["checksum"]}"'
    assert client.get("a", **{"If-None-Match": tag}).status == 304
    assert client.get("a", **{"If-None-Match": '"other"'}).status == 200
    assert client.get("a", **{"Range": "bytes=0-1", "If-Range": tag}).status == 206
    assert client.get("a", **{"Range": "bytes=0-1", "If-Range": '"other"'}).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_under_a_condition(client: Any, method: str) -> None:
    """What does not hold is 412, what the reader has is 304, as over S3; they got the object before."""
    tag = f'"{client.put("a").json["checksum"]}"'
    modified = client.get("a").headers["Last-Modified"]
    old, new = "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
    answers = {
        200: [
            {"If-Match": tag},
            {"If-Match": f'"other", {tag}'},
            {"If-Match": "*"},
            {"If-Modified-Since": old},
            {"If-Unmodified-Since": modified},
            {"If-Match": tag, "If-Unmodified-Since": old},
            {"If-None-Match": '"other"', "If-Modified-Since": new},
            {"If-Modified-Since": "yesterday"},
        ],
        304: [
            {"If-None-Match": tag},
            {"If-None-Match": "*"},
            {"If-Modified-Since": modified},
            {"If-Match": tag, "If-None-Match": tag},
        ],
        412: [
            {"If-Match": '"other"'},
            {"If-Match": '"other"', "Range": "bytes=0-0"},
            {"If-Unmodified-Since": old},
            {"If-Match": '"other"', "If-None-Match": tag},
        ],
    }
    for status, conditions in answers.items():
        for headers in conditions:
            reply = client.ask(method, ":/refs/main/objects", None, headers, path="a")
            assert (reply.status, headers) == (status, headers)


def test_large_objects_go_through_as_streams(client: Any) -> None:
    """A body beyond one piece, with a length or in chunks, comes back whole and in any part."""
    body = body_of(LARGE)
    assert client.put("counted", body).json["checksum"] == hashlib.md5(body).hexdigest()
    chunks = (body[at : at + 70_000] for at in range(0, LARGE, 70_000))
    made = client.ask("POST", ":/branches/main/objects", chunks, path="chunked")
    assert made.json["checksum"] == hashlib.md5(body).hexdigest()
    for path in ("counted", "chunked"):
        assert client.get(path).body == body
        part = client.get(path, Range=f"bytes=100-{LARGE - 100}")
        assert (part.status, part.body) == (206, body[100 : LARGE - 99])


@pytest.mark.parametrize("size", [5, LARGE])
def test_a_form_carries_an_object(client: Any, size: int) -> None:
    """Clients that send a form: the field ``content`` is the object, with the type it names."""
    body = body_of(size)
    made = client.pool.request_encode_body(
        "POST",
        f"{client.endpoint}/api/v1/repositories/analytics/branches/main/objects?path=form",
        fields={"other": "passed over", "content": ("name.csv", body, "text/csv")},
        headers=client.headers,
    )
    assert made.status == 201
    assert made.json()["content_type"] == "text/csv"
    assert client.get("form").body == body


@pytest.mark.parametrize(
    "form",
    [b"", b"no form at all", b"--x\r\nContent-Disposition: form-data; name=other\r\n\r\n1\r\n--x--\r\n",
     b"--x\r\nContent-Disposition: form-data; name=content\r\n\r\nhalf"],
)  # fmt: skip
def test_a_form_without_its_content_is_refused(client: Any, form: bytes) -> None:
    """A form that is damaged, cut off or lacks the field stages nothing."""
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert "form" in client.ask("POST", ":/branches/main/objects", form, kind, path="form").message
    assert client.listed() == []


@pytest.mark.parametrize("sent", [100, 3 * 1024 * 1024])
def test_a_client_that_goes_away_leaves_nothing_staged(client: Any, server: Any, sent: int) -> None:
    """An upload that is cut off, before or after the stream to the store began, creates no object."""
    where = urllib.parse.urlsplit(client.endpoint)
    with socket.create_connection((where.hostname, where.port)) as line:
        head = (
            "POST /api/v1/repositories/analytics/branches/main/objects?path=cut HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: {client.headers['authorization']}\r\nContent-Length: {LARGE}\r\n\r\n"
        )
        line.sendall(head.encode() + body_of(sent))
    client.put("after")
    server.stop()  # the request has ended by now, one way or the other
    with open_all(server.started.storage_url.removeprefix("file://")) as home:
        assert [entry.path for entry in home.repository("analytics").branch("main").list()] == ["after"]


def test_an_upload_that_stands_still_is_given_up(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> None:
    """A client that begins a body and sends no more of it does not hold the server for ever, and stages nothing."""
    client = connect(serve(stalled_s=0.05))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    where = urllib.parse.urlsplit(client.endpoint)
    for sent in (1, 2 * 1024 * 1024):
        with socket.create_connection((where.hostname, where.port), timeout=60) as line:
            head = (
                "POST /api/v1/repositories/analytics/branches/main/objects?path=still HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: {client.headers['authorization']}\r\nContent-Length: {LARGE}\r\n\r\n"
            )
            line.sendall(head.encode() + body_of(sent))
            assert line.recv(1_000).startswith(b"HTTP/1.1 408")
    assert client.listed() == []


def test_a_body_beyond_the_limit_is_refused(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> None:
    """An object or a JSON body that is too large is 413, announced or found out, and nothing is staged."""
    client = connect(serve(object_bytes_max=1_000, json_bytes_max=500))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    assert client.ask("POST", ":/branches/main/objects", b"x" * 1_001, path="a").status == 413
    assert client.ask("POST", ":/branches/main/objects", iter([b"x" * 600] * 2), path="a").status == 413
    assert client.ask("POST", ":/tags", {"id": "x" * 600, "ref": "main"}).status == 413
    assert client.listed() == []
    client.put("a", b"x" * 1_000)


def test_objects_are_deleted_one_by_one_and_by_the_thousand(client: Any) -> None:
    """Deleting twice is fine; the reply to a list of paths names the invalid ones, and the others are deleted."""
    for number in range(5):
        client.put(f"p/{number}")
    for _ in range(2):
        assert client.ask("DELETE", ":/branches/main/objects", path="p/0").status == 204
    paths = ["p/1", "p/2", "p/2", "missing", "../up", ""]
    answer = client.ask("POST", ":/branches/main/objects/delete", {"paths": paths})
    assert answer.status == 200
    assert [(row["path"], row["status_code"]) for row in answer.json["errors"]] == [("../up", 400), ("", 400)]
    assert client.listed() == ["p/3", "p/4"]
    too_many = client.ask("POST", ":/branches/main/objects/delete", {"paths": ["x"] * 1_001})
    assert too_many.status == 400


def test_a_copy_has_bytes_of_its_own(client: Any) -> None:
    """A copy is an object with another address: later changes of the first one do not concern it."""
    first = client.put("a", b"bytes", **{"X-Lakefs-Meta-K": "v"}).json
    copy = client.ask("POST", ":/branches/main/objects/copy", {"src_path": "a", "src_ref": "main"}, dest_path="b").json
    assert copy["physical_address"] != first["physical_address"]
    assert {**copy, "path": "a", "physical_address": "", "mtime": 0} == {**first, "physical_address": "", "mtime": 0}
    missing = client.ask("POST", ":/branches/main/objects/copy", {"src_path": "none"}, dest_path="b")
    assert missing.status == 404


def test_presigned_uploads_work_where_no_vendor_signs(client: Any) -> None:
    """On a local folder the server signs a URL itself; what is put there can be linked, once and only as it is."""
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
    put = client.pool.request("PUT", place["presigned_url"], body=b"12345")  # no access key: the URL is the permission
    assert put.status == 200
    etag = put.headers["ETag"].strip('"')
    assert client.pool.request("PUT", place["presigned_url"], body=b"other").status == 409
    assert etag == hashlib.md5(b"12345").hexdigest()
    link = {"staging": place, "checksum": etag, "size_bytes": 5, "content_type": "text/x"}
    wrong = client.ask("PUT", ":/branches/main/staging/backing", {**link, "size_bytes": 6}, path="a")
    assert wrong.status == 400
    made = client.ask("PUT", ":/branches/main/staging/backing", link, path="a")
    assert (made.status, made.json["checksum"], made.json["content_type"]) == (200, etag, "text/x")
    assert client.get("a").body == b"12345"
    again = client.ask("PUT", ":/branches/main/staging/backing", link, {"If-None-Match": "*"}, path="other")
    assert again.status == 200
    client.put("taken")
    taken = client.ask("PUT", ":/branches/main/staging/backing", link, {"If-None-Match": "*"}, path="taken")
    assert taken.status == 412


@pytest.mark.parametrize("change", ["signature", "address", "repository", "expires", "key"])
def test_a_signed_url_permits_nothing_else(client: Any, change: str) -> None:
    """A URL with any part changed is refused."""
    url = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json["presigned_url"]
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))
    last = "0" if query[change].endswith("1") else "1"
    query[change] = query[change][:-1] + last
    changed = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
    assert client.pool.request("PUT", changed, body=b"12345").status == 403


def test_a_signed_url_ends_with_the_key_that_got_it(client: Any) -> None:
    """An address for an upload is of no use once its key was revoked, or has another secret."""
    keys = {change: client.new_key("write") for change in ("kept", "rotated", "revoked")}
    urls = {
        change: key.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json["presigned_url"]
        for change, key in keys.items()
    }
    ids = {change: dict(urllib.parse.parse_qsl(url.partition("?")[2]))["key"] for change, url in urls.items()}
    assert client.ask("POST", f"/auth/keys/{ids['rotated']}/rotate").status == 201
    assert client.ask("DELETE", f"/auth/keys/{ids['revoked']}").status == 204
    replies = {change: client.pool.request("PUT", url, body=b"12345").status for change, url in urls.items()}
    assert replies == {"kept": 200, "rotated": 403, "revoked": 403}


@pytest.mark.parametrize("size_bytes", [0, 5, 3_000_000])
@pytest.mark.parametrize("how", ["raw", "chunked", "form", "presigned"])
def test_a_body_that_is_not_what_was_announced_is_refused(client: Any, size_bytes: int, how: str) -> None:
    """A body with another MD5 than its `Content-MD5` states is no object; with the right one it is."""
    body, fields = b"x" * size_bytes, {}
    if how == "form":
        body = b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' + body + b"\r\n--b--\r\n"
        fields["Content-Type"] = "multipart/form-data; boundary=b"

    def send(announced: bytes) -> Any:
        headers = {**fields, "Content-MD5": announced.decode()}
        if how == "presigned":
            place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
            return client.pool.request("PUT", place["presigned_url"], body=body, headers=headers)
        sent = iter([body[:2], body[2:]]) if how == "chunked" else body
        return client.ask("POST", ":/branches/main/objects", sent, headers, path="a")

    wrong, right = (base64.b64encode(hashlib.md5(text).digest()) for text in (body + b"y", body))
    for announced in (wrong, b"nonsense", b"", right[:-4]):
        refused = send(announced)
        assert refused.status == 400, refused
    assert client.listed() == []
    assert send(right).status in (200, 201)


@pytest.mark.parametrize("size_bytes", [5, 3 << 20])
def test_a_body_whose_end_comes_alone_is_compared(client: Any, size_bytes: int) -> None:
    """The MD5 counts also when the chunk that ends a body arrives after all of its bytes were read."""
    where = urllib.parse.urlsplit(client.endpoint)
    announced = base64.b64encode(hashlib.md5(b"another").digest()).decode()
    with socket.create_connection((where.hostname, where.port), timeout=60) as line:
        head = (
            "POST /api/v1/repositories/analytics/branches/main/objects?path=a HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: {client.headers['authorization']}\r\nContent-MD5: {announced}\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n{size_bytes:x}\r\n"
        )
        line.sendall(head.encode() + body_of(size_bytes) + b"\r\n")
        pause(0.2)
        line.sendall(b"0\r\n\r\n")
        assert line.recv(1_000).startswith(b"HTTP/1.1 400 ")
    assert client.listed() == []


def test_staging_refuses_addresses_that_are_not_its_own(client: Any) -> None:
    """A client can link only what was uploaded here: not ranges, not other folders, not what is not there."""
    place = client.ask("GET", ":/branches/main/staging/backing", path="a").json["physical_address"]
    assert "presigned_url" not in client.ask("GET", ":/branches/main/staging/backing", path="a").json
    folder = place.rsplit("/", 2)[0]
    for address in (place, f"{folder}/_repository.json", f"{folder}/../x", "file:///etc/passwd", "nonsense", ""):
        link = {"physical_address": address, "checksum": "x", "size_bytes": 1}
        answer = client.ask("PUT", ":/branches/main/objects", link, path="a")
        assert answer.status in {400, 404}, (address, answer.body)
        assert answer.message
    assert client.listed() == []


def test_stored_bytes_are_no_page_of_the_server(client: Any) -> None:
    """What users store is sent so that no browser runs it, and what they choose ends no header."""
    client.put("a.html", b"<script>", **{"Content-Type": "text/html"})
    page = client.get("a.html")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in page.headers["Content-Security-Policy"]
    place = client.ask("GET", ":/branches/main/staging/backing", path="b", presign="true").json
    client.pool.request("PUT", place["presigned_url"], body=b"1")
    link = {"staging": place, "checksum": 'x"\r\nA: b', "size_bytes": 1, "content_type": "text/x\r\nSet-Cookie: a=b"}
    assert client.ask("PUT", ":/branches/main/staging/backing", link, path="b").status == 200
    value = client.get("b")
    assert "Set-Cookie" not in value.headers
    assert "A" not in value.headers


def test_a_connection_serves_one_request_after_another(client: Any) -> None:
    """Refused and empty bodies leave the connection as it was: the next request on it is answered."""
    where = urllib.parse.urlsplit(client.endpoint)
    line = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    target = "/api/v1/repositories/analytics/branches/main/objects?path=../up"
    for _ in range(2):
        line.request("POST", target, body=b"x" * 200_000, headers=client.headers)
        reply = line.getresponse()
        assert reply.status == 400
        reply.read()
        line.request("GET", "/api/v1/user", headers=client.headers)
        reply = line.getresponse()
        assert reply.status == 200
        reply.read()
    line.close()


def test_a_repository_that_was_made_again_shows_nothing_of_the_old_one(client: Any) -> None:
    """Reads of a repository that was used a moment ago end with it, and a new one of its name is empty."""
    repository = {"name": "again", "storage_namespace": "local://again-1"}
    assert client.ask("POST", "/repositories", repository).status == 201
    client.repository = "again"
    made = client.put("a", b"old").json
    assert client.ask("GET", ":/refs/main/objects/stat", path="a").json == made
    assert client.ask("DELETE", "/repositories/again").status == 204
    reads = [
        ("GET", ":/refs/main/objects/stat"),
        ("GET", ":/refs/main/objects"),
        ("GET", ":/refs/main/objects/ls"),
        ("HEAD", ":/refs/main/objects"),
        ("POST", ":/branches/main/objects"),
        ("DELETE", ":/branches/main/objects"),
    ]
    assert {client.ask(method, place, path="a").status for method, place in reads} == {404}
    assert client.ask("POST", "/repositories", {**repository, "storage_namespace": "local://again-2"}).status == 201
    assert client.ask("GET", ":/refs/main/objects/stat", path="a").status == 404
    assert client.ask("GET", ":/refs/main/objects/ls").json["results"] == []


def test_a_page_of_a_list_has_what_stat_says_of_each(client: Any) -> None:
    """Objects with and without metadata, staged and committed, and prefixes between them: each line is that of stat."""
    for number in range(5):
        client.put(f"a{number}", body_of(number), **{"x-lakefs-meta-number": str(number)})
    client.commit()
    client.put("a1", b"changed", **{"Content-Type": "text/csv"})
    client.put("a3/b", b"below")
    client.ask("DELETE", ":/branches/main/objects", path="a2")
    for flag in ("true", "false"):
        page = client.ask("GET", ":/refs/main/objects/ls", delimiter="/", user_metadata=flag).json
        lines = {line["path"]: line for line in page["results"]}
        assert list(lines) == ["a0", "a1", "a3", "a3/", "a4"]
        assert lines.pop("a3/")["path_type"] == "common_prefix"
        for path, line in lines.items():
            assert line == client.ask("GET", ":/refs/main/objects/stat", path=path, user_metadata=flag).json
