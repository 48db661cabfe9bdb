"""Uploads in parts to signed URLs: whole or not at all, each URL for one part, none after the key that got it."""

from __future__ import annotations

import hashlib
import urllib.parse
from typing import Any

import pytest

MIB = 1 << 20
LARGE = bytes(range(256)) * (5 * MIB // 256)
PLACE = ":/branches/main/staging/pmpu"


def begin(client: Any, path: str = "big", parts: int = 0) -> Any:
    """A new upload."""
    answer = client.ask("POST", PLACE, path=path, parts=parts)
    assert answer.status == 201, answer.body
    return answer.json


def put(client: Any, url: str, body: bytes) -> Any:
    """Bytes put to a signed URL, without credentials."""
    return client.pool.request("PUT", url, body=body, redirect=False, timeout=60)


def complete(client: Any, upload: Any, etags: list[tuple[int, str]], path: str = "big", **body: Any) -> Any:
    """The answer to a completion."""
    parts = [{"part_number": number, "etag": etag} for number, etag in etags]
    request = {"physical_address": upload["physical_address"], "parts": parts, **body}
    return client.ask("PUT", f"{PLACE}/{upload['upload_id']}", request, path=path)


def test_parts_become_an_object(client: Any) -> None:
    """Parts that are signed at once, later, and copied: one object with their bytes, type and metadata, staged."""
    client.put("source", b"0123456789")
    upload = begin(client, parts=1)
    place = f"{PLACE}/{upload['upload_id']}/parts"
    etags = []
    [first] = upload["presigned_urls"]
    assert client.endpoint in first
    etags.append((1, put(client, first, LARGE).headers["etag"]))
    address = {"physical_address": upload["physical_address"]}
    signed = client.ask("PUT", f"{place}/2", address, path="big").json["presigned_url"]
    etags.append((2, put(client, signed, LARGE).headers["etag"]))
    source = {"repository": client.repository, "ref": "main", "path": "source", "range": "bytes=2-5"}
    copied = client.ask("PUT", f"{place}/3/copy", {**address, "copy_source": source}, path="big")
    assert copied.status == 204
    etags.append((3, copied.headers["etag"]))
    assert etags[0][1].strip('"') == hashlib.md5(LARGE, usedforsecurity=False).hexdigest()
    assert client.get("big").status == 404
    done = complete(client, upload, etags, content_type="text/x", user_metadata={"k": "v"})
    assert done.status == 200, done.body
    shown = client.ask("GET", ":/refs/main/objects/stat", path="big").json
    assert (shown["content_type"], shown["metadata"], shown["size_bytes"]) == ("text/x", {"k": "v"}, 2 * 5 * MIB + 4)
    assert done.json["checksum"] == shown["checksum"]
    assert client.get("big").body == LARGE + LARGE + b"2345"
    again = complete(client, upload, etags)
    assert (again.status, again.json["physical_address"]) == (200, done.json["physical_address"])


def test_an_aborted_upload_takes_nothing(client: Any) -> None:
    """Its parts, its completion and another abort find no upload, and no object is there."""
    upload = begin(client, parts=1)
    address = {"physical_address": upload["physical_address"]}
    etag = put(client, upload["presigned_urls"][0], b"part").headers["etag"]
    assert client.ask("DELETE", f"{PLACE}/{upload['upload_id']}", address, path="big").status == 204
    assert put(client, upload["presigned_urls"][0], b"part").status == 404
    assert complete(client, upload, [(1, etag)]).status == 404
    assert client.ask("DELETE", f"{PLACE}/{upload['upload_id']}", address, path="big").status == 404
    assert client.get("big").status == 404


@pytest.mark.parametrize(
    "etags", [[], [(1, "0" * 32)], [(2, "first")], [(1, "first"), (1, "first")], [(1, "first"), (2, "second")]]
)
def test_a_wrong_completion_changes_nothing(client: Any, etags: list[tuple[int, str]]) -> None:
    """None, an unknown, a missing, a repeated part, and a small one that is not the last: 400, and it can go on."""
    upload = begin(client, parts=2)
    bodies = {"first": b"1", "second": b"2"}
    real = {
        name: put(client, url, body).headers["etag"]
        for url, (name, body) in zip(upload["presigned_urls"], bodies.items(), strict=True)
    }
    assert complete(client, upload, [(number, real.get(etag, etag)) for number, etag in etags]).status == 400
    assert client.get("big").status == 404
    assert complete(client, upload, [(2, real["second"])]).status == 200
    assert client.get("big").body == b"2"


def test_a_url_is_for_one_part_of_one_key(client: Any) -> None:
    """Another number, path, upload or repository in it is refused, and so is the URL of a revoked key."""
    upload, other = begin(client, parts=1), begin(client, "other")
    [url] = upload["presigned_urls"]
    for name, value in (("part", "2"), ("path", "other"), ("upload", other["upload_id"]), ("branch", "dev")):
        parsed = urllib.parse.urlsplit(url)
        query = dict(urllib.parse.parse_qsl(parsed.query)) | {name: value}
        assert put(client, parsed._replace(query=urllib.parse.urlencode(query)).geturl(), b"x").status == 403
    wrong = {"physical_address": other["physical_address"]}
    assert client.ask("PUT", f"{PLACE}/{upload['upload_id']}/parts/1", wrong, path="big").status == 400
    writer = client.new_key("write")
    theirs = begin(writer, "theirs", parts=1)["presigned_urls"][0]
    key = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(theirs).query))["key"]
    assert put(client, theirs, b"x").status == 200
    assert client.ask("DELETE", f"/auth/keys/{key}").status == 204
    assert put(client, theirs, b"x").status == 403


@pytest.mark.parametrize(
    ("place", "query", "status"),
    [
        (PLACE, {"path": "_lakefs/x"}, 400),
        (PLACE, {"path": "x", "parts": 10_001}, 400),
        (":/branches/missing/staging/pmpu", {"path": "x"}, 404),
    ],
)
def test_a_wrong_beginning_is_refused(client: Any, place: str, query: dict[str, Any], status: int) -> None:
    """A reserved path, too many parts, a branch that is not there."""
    assert client.ask("POST", place, **query).status == status
