"""Stored bytes never change: a late upload to an address that has bytes is refused, by every way of upload."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakebed.repo.transport.transport import context_of
from worlds.waiting import wait_until

FIRST, SECOND = b"f" * 3000, b"s" * 3000


class Slow:
    """A request whose head and half of the body have been sent."""

    def __init__(
        self, url: str, body: bytes, *, chunked: bool, method: str = "PUT", headers: Mapping[str, str] = {}
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self._chunked = chunked
        half = len(body) // 2
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        lines = [f"{method} {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", length, "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "".join(line + "\r\n" for line in (*lines, ""))
        self._rest = body[half:]
        self._socket.sendall(head.encode() + self._framed(body[:half]))

    def _framed(self, body: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(body), body) if self._chunked else body

    def finish(self) -> int:
        """Send the rest; the status of the reply."""
        self._socket.sendall(self._framed(self._rest) + (b"0\r\n\r\n" if self._chunked else b""))
        reply = b""
        while more := self._socket.recv(65_536):
            reply += more
        self._socket.close()
        return int(reply.split()[1])


@pytest.mark.parametrize("size", [3_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_late_put_to_a_signed_address_is_refused(client: Any, server: Any, chunked: bool, size: int) -> None:
    """A PUT that began first and ends last changes nothing: what was linked and committed is what the other one put."""
    first, second = b"f" * size, b"s" * size
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
    running = server.site.serving.running
    slow = Slow(place["presigned_url"], first, chunked=chunked)
    while server.site.serving.running == running:
        client.ask_root("GET", "/healthcheck")  # until the server has its head
    quick = client.pool.request("PUT", place["presigned_url"], body=second)
    assert quick.status == 200
    body = {"staging": {"physical_address": place["physical_address"]}, "checksum": "x", "size_bytes": len(second)}
    assert client.ask("PUT", ":/branches/main/staging/backing", body, path="a").status == 200
    client.commit()
    assert slow.finish() == 409
    assert client.get("a").body == second
    assert client.pool.request("PUT", place["presigned_url"], body=first).status == 409
    assert client.get("a").body == second
    [stored] = context_of(server.site.repositories.repository("analytics")).store.list("data")
    assert stored.size_bytes == size  # nothing is left of the late one


@pytest.mark.parametrize("size", [0, 3_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_put_to_a_signed_address_is_repeated(client: Any, server: Any, chunked: bool, size: int) -> None:
    """A client whose reply was lost puts the same bytes again, and is told what the first reply said."""
    body = b"f" * size
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json

    def put(body: bytes) -> Any:
        sent: Any = iter([body[:1_000], body[1_000:]]) if chunked else body
        return client.pool.request("PUT", place["presigned_url"], body=sent, chunked=chunked)

    first, again = put(body), put(body)
    assert (first.status, again.status) == (200, 200)
    assert first.headers["etag"] == again.headers["etag"] == f'"{hashlib.md5(body).hexdigest()}"'
    assert put(b"g" * size if size else b"g").status == 409
    assert put(body + b"f").status == 409
    linked = {"staging": {"physical_address": place["physical_address"]}, "checksum": "x", "size_bytes": size}
    assert client.ask("PUT", ":/branches/main/staging/backing", linked, path="a").status == 200
    assert client.get("a").body == body
    [stored] = context_of(server.site.repositories.repository("analytics")).store.list("data")
    assert stored.size_bytes == size


def test_a_signed_address_is_of_one_repository_and_of_no_later_one_of_its_name(client: Any, server: Any) -> None:
    """When the repository was deleted and another one has its name, the URL permits nothing, and nothing is written."""
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
    assert client.ask("DELETE", ":").status == 204
    refused = client.pool.request("PUT", place["presigned_url"], body=b"late")
    assert (refused.status, b"signature is not valid" in refused.data) == (403, True)
    made = client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://another"})
    assert made.status == 201
    assert client.pool.request("PUT", place["presigned_url"], body=b"late").status == 403
    assert list(context_of(server.site.repositories.repository("analytics")).store.list("data")) == []


def test_no_upload_replaces_an_object(
    serve: Callable[..., Any], connect: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads of every route, small and in parts, are put create-only, should two ever have one name."""
    running = serve(small_object_bytes=1000, chunk_bytes=1000)
    client = connect(running)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    address = "data/01HF7YAT0020KW71NVRK6P2FHG"
    monkeypatch.setattr("lakebed.repo.objects.data.new_address", lambda environment, after=None: address)
    client.put("a", FIRST)
    form = b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' + SECOND + b"\r\n--b--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b"}
    line = b'{"path": "b"}\n'
    for answer in (
        client.ask("POST", ":/branches/main/objects", SECOND, path="b"),
        client.ask("POST", ":/branches/main/objects", SECOND[:10], path="b"),
        client.ask("POST", ":/branches/main/objects", form, headers, path="b"),
        client.ask("POST", ":/verbs/put", line + SECOND, branch="main"),
        client.ask("POST", ":/verbs/put", line + SECOND[:10], branch="main"),
        client.ask("POST", ":/branches/main/objects/copy", {"src_path": "a"}, dest_path="b"),
        client.ask("POST", ":/verbs/copy", {"branch": "main", "source": "a", "path": "b"}),
    ):
        assert answer.status == 409, answer.body
    assert client.get("a").body == FIRST
    assert client.listed() == ["a"]


BODIES: dict[str, tuple[str, str, bytes]] = {
    "an object": ("POST", "/branches/main/objects?path=late", FIRST),
    "a large object": ("POST", "/branches/main/objects?path=late", b"f" * 3_000_000),
    "an object of a verb": ("POST", "/verbs/put?branch=main", b'{"path": "late"}\n' + FIRST),
    "a commit": ("POST", "/branches/main/commits", b'{"message": "late"}'),
    "a deletion": ("POST", "/branches/main/objects/delete", b'{"paths": ["kept"]}'),
    "a branch": ("POST", "/branches", b'{"name": "late", "source": "main"}'),
    "a reset": ("PUT", "/branches/main", b'{"type": "reset"}'),
}


def begin_slowly(client: Any, running: Any, names: Iterable[str]) -> dict[str, Slow]:
    """Requests of a client whose heads the server has, by their names in `BODIES`; no other request is running."""
    begun = {}
    for name in names:
        method, place, body = BODIES[name]
        url = f"{client.endpoint}/api/v1/repositories/analytics{place}"
        begun[name] = Slow(url, body, chunked=False, method=method, headers=client.headers)
    wait_until(lambda: running.site.serving.running == len(begun))
    return begun


@pytest.mark.parametrize("ends", ["a revoked key", "a rotated key", "a policy that goes"])
def test_a_caller_who_may_no_longer_is_refused_at_the_end_of_a_body(client: Any, server: Any, ends: str) -> None:
    """A body that was begun before its key ended, or its user's policy, changes nothing, however it is sent."""
    client.put("kept")
    admin = client
    if ends == "a policy that goes":
        statement = {"effect": "allow", "action": ["fs:*"], "resource": "*"}
        admin.ask("POST", "/auth/users", {"id": "ann"})
        admin.ask("POST", "/auth/policies", {"id": "all", "statement": [statement]})
        admin.ask("PUT", "/auth/users/ann/policies/all")
        made = admin.ask("POST", "/auth/users/ann/credentials").json
        caller = admin.with_key(made["access_key_id"], made["secret_access_key"])
    else:
        made = admin.ask("POST", "/auth/keys", {"role": "write"}).json
        caller = admin.with_key(made["access_key_id"], made["secret_access_key"])
    begun = begin_slowly(caller, server, BODIES)
    if ends == "a policy that goes":
        assert admin.ask("DELETE", "/auth/users/ann/policies/all").status == 204
    elif ends == "a revoked key":
        assert admin.ask("DELETE", f"/auth/keys/{made['access_key_id']}").status == 204
    else:
        assert admin.ask("POST", f"/auth/keys/{made['access_key_id']}/rotate").status == 201
    assert {name: slow.finish() for name, slow in begun.items()} == dict.fromkeys(BODIES, 401)
    assert [row["path"] for row in admin.ask("GET", ":/refs/main/objects/ls").json["results"]] == ["kept"]
    assert len(admin.ask("GET", ":/branches/main/diff").json["results"]) == 1
    assert [row["id"] for row in admin.ask("GET", ":/branches").json["results"]] == ["main"]


def test_a_slow_body_of_a_key_that_lives_is_taken(client: Any, server: Any) -> None:
    """Looked at again, the caller may."""
    client.put("kept")
    begun = begin_slowly(client, server, ("an object", "a large object", "a commit"))
    client.ask("POST", "/auth/keys", {"role": "write"})
    assert [slow.finish() for slow in begun.values()] == [201, 201, 201]
