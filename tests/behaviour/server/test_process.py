"""The serving process: where it listens, who owns the records, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.errors import Conflict, InvalidRequest, Unavailable
from lakebed.repo import open_all
from lakebed.repo.heads.write import stage
from lakebed.repo.model.model import Entry
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.transport.transport import context_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import run_server, start_server
from worlds.errors import raises

SERVE = """
import json, sys
from lakebed.server.serve import run_server
def started(told):
    print(json.dumps([told.endpoint, told.access_key, told.secret]), flush=True)
sys.exit(run_server(sys.argv[1], port=0, started=started, access_log=sys.argv[2]))
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, dict[str, str]]]:
    """A server in a process of its own: the process, its endpoint, and headers of the first access key."""
    command = [sys.executable, "-c", SERVE, str(tmp_path / "lake"), str(tmp_path / "access.log")]
    item = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert item.stdout is not None
    endpoint, access_key, secret = json.loads(item.stdout.readline())
    try:
        yield item, endpoint, urllib3.make_headers(basic_auth=f"{access_key}:{secret}")
    finally:
        item.kill()
        item.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_end(
    process: tuple[subprocess.Popen[bytes], str, dict[str, str]], tmp_path: Path, number: signal.Signals
) -> None:
    """On a signal it accepts no new connection, answers running requests, releases the lease and exits with 0."""
    item, endpoint, headers = process
    pool = urllib3.PoolManager(retries=False)
    creation = json.dumps({"name": "analytics", "storage_namespace": "local://analytics"})
    assert pool.request("POST", f"{endpoint}/api/v1/repositories", body=creation, headers=headers).status == 201
    where = urllib.parse.urlsplit(endpoint)
    with socket.create_connection((where.hostname, where.port), timeout=60) as line:
        target = "/api/v1/repositories/analytics/branches/main/objects?path=last"
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: {headers['authorization']}\r\n"
        line.sendall(f"{head}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100" in line.recv(1_000)  # the handler reads the body by now
        item.send_signal(number)
        while True:  # the listener goes first
            try:
                socket.create_connection((where.hostname, where.port), timeout=60).close()
            except OSError:
                break
        line.sendall(b"0123456789")
        assert line.recv(1_000).startswith(b"HTTP/1.1 201")
    assert item.wait(60) == 0
    assert item.stderr is not None
    assert item.stderr.read() == b""
    assert [json.loads(row)["status"] for row in (tmp_path / "access.log").read_text().splitlines()] == [201, 201]
    with open_all(tmp_path / "lake") as home:  # it has no owner any more
        assert bytes(home.repository("analytics").branch("main").get("last")) == b"0123456789"


def test_who_comes_second_is_sent_to_the_owner(server: Any, tmp_path: Path) -> None:
    """While a server owns the records, another process gets an error with its endpoint."""
    for second in (lambda: open_all(tmp_path / "lake"), lambda: start_server(tmp_path / "lake")):
        with raises(Conflict, "owned") as caught:
            second()
        assert caught.value.facts["endpoint"] == server.started.endpoint
        assert server.started.endpoint in caught.value.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_it_listens_on_this_machine_unless_asked(tmp_path: Path, host: str) -> None:
    """An address that other machines reach is refused, with the reason; nothing is made on disk."""
    with raises(InvalidRequest, "remote_host") as caught:
        run_server(tmp_path / "lake", host=host)
    assert "encrypted" in caught.value.message
    assert not (tmp_path / "lake").exists()


def test_a_port_in_use_is_said(server: Any, tmp_path: Path) -> None:
    """A port in use is an error, and nothing is opened."""
    port = int(server.started.endpoint.rsplit(":", 1)[1])
    with raises(Unavailable, "port_in_use"):
        run_server(tmp_path / "other", port=port)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_cannot_be_is_said(tmp_path: Path, port: int) -> None:
    """An invalid port is refused."""
    with raises(InvalidRequest, "invalid_address"):
        run_server(tmp_path / "lake", port=port)


@pytest.mark.parametrize("metadata", [None, "/some/folder"])
def test_several_workers_need_shared_records(tmp_path: Path, metadata: str | None) -> None:
    """One process owns an embedded database: more workers are refused, with what they need."""
    with raises(InvalidRequest, "workers_need_postgresql"):
        run_server(tmp_path / "lake", options=ServerOptions(workers=2, metadata=metadata))
    with pytest.raises(InvalidRequest):
        run_server(tmp_path / "lake", options=ServerOptions(workers=0))


def test_health_metrics_and_description_need_no_key(client: Any) -> None:
    """Monitoring needs no access key, and shows no secret and no path."""
    client.put("a-path-of-a-user")
    client.get("a-path-of-a-user")
    secret = client.headers["authorization"]
    client.headers = {}
    assert client.ask("GET", "/healthcheck").status == 204
    assert client.ask_root("GET", "/healthcheck").json["status"] == "ok"
    assert client.ask_root("GET", "/openapi.json").json["openapi"].startswith("3.")
    page = client.ask_root("GET", "/metrics")
    assert page.headers["Content-Type"].startswith("text/plain")
    text = page.body.decode()
    route = "/api/v1/repositories/{repository}/refs/{ref:path}/objects"
    assert f'lakebed_http_requests_total{{method="GET",route="{route}",status="200"}} ' in text
    assert "lakebed_http_request_seconds_bucket" in text
    assert "a-path-of-a-user" not in text
    assert secret not in text


def test_head_is_answered_wherever_get_is(client: Any) -> None:
    """HEAD gives the status and headers of GET and no body, on every path."""
    for place in ("/user", "/config", ":", ":/branches", ":/commits/main"):
        head, got = client.ask("HEAD", place), client.ask("GET", place)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Length"] == got.headers["Content-Length"]


def test_an_import_that_was_broken_off_is_taken_up(
    serve: Callable[..., Any], connect: Callable[[Any], Any], tmp_path: Path
) -> None:
    """What was to be imported when a server ended is imported by the next one."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "one").write_bytes(b"1")
    first = serve(import_from=[str(source)])
    client = connect(first)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    first.site.imports.start = lambda home, import_id: None  # it ends before it begins
    location = {"type": "common_prefix", "path": f"local://{source}/", "destination": "in/"}
    body = {"paths": [location], "commit": {"message": "bring"}}
    started = client.ask("POST", ":/branches/main/import", body).json["id"]
    assert not client.ask("GET", ":/branches/main/import", id=started).json["completed"]
    first.stop()
    client.endpoint = serve(import_from=[str(source)]).started.endpoint
    for _ in range(10_000):
        if client.ask("GET", ":/branches/main/import", id=started).json["completed"]:
            break
    assert client.listed() == ["in/one"]


def test_it_serves_an_s3_bucket(s3_server: Any) -> None:
    """On a bucket the vendor signs URLs: uploads and downloads pass the server by."""
    with start_server(s3_server.url(), options=ServerOptions(storage_options=s3_server.options)) as running:
        messages = running.started
        pool = urllib3.PoolManager(retries=False)
        headers = urllib3.make_headers(basic_auth=f"{messages.access_key}:{messages.secret}")

        def ask(method: str, place: str, body: Any = None, **query: str) -> urllib3.BaseHTTPResponse:
            url = f"{messages.endpoint}/api/v1{place}?{urllib.parse.urlencode(query)}"
            return pool.request(method, url, body=body, headers=headers, redirect=False)

        config = ask("GET", "/config").json()["storage_config"]
        assert config["blockstore_type"] == "s3"
        assert config["pre_sign_support"] is True
        namespace = f"{config['default_namespace_prefix']}/analytics"
        made = ask("POST", "/repositories", json.dumps({"name": "analytics", "storage_namespace": namespace}))
        assert (made.status, made.json()["storage_namespace"]) == (201, namespace)
        backing = "/repositories/analytics/branches/main/staging/backing"
        place = ask("GET", backing, path="a", presign="true").json()
        put = pool.request("PUT", place["presigned_url"], body=b"12345")
        assert put.status == 200
        link = {"staging": place, "checksum": put.headers["ETag"], "size_bytes": 5}
        assert ask("PUT", backing, json.dumps(link), path="a").status == 200
        sent = ask("GET", "/repositories/analytics/refs/main/objects", path="a", presign="true")
        assert sent.status == 302
        assert pool.request("GET", sent.headers["Location"]).data == b"12345"
        assert ask("GET", "/repositories/analytics/refs/main/objects", path="a").data == b"12345"
        # The URL is good for a while yet: what is put there now changes nothing that was linked.
        assert pool.request("PUT", place["presigned_url"], body=b"other").status == 200
        assert ask("GET", "/repositories/analytics/refs/main/objects", path="a").data == b"12345"
        stat = ask("GET", "/repositories/analytics/refs/main/objects/stat", path="a", presign="true").json()
        assert pool.request("GET", stat["physical_address"]).data == b"12345"
        assert stat["physical_address_expiry"] > stat["mtime"]
        # An entry that names what may not be read, as an older version let in, is listed and not signed.
        home = context_of(running.site.repositories.repository("analytics"))
        elsewhere = Entry(f"{config['default_namespace_prefix']}/_repositories/x", 5, "", 0)
        stage(replace(home, foreign=ForeignStores()), branch="main", path="b", entry=elsewhere)
        rows = ask("GET", "/repositories/analytics/refs/main/objects/ls", presign="true").json()["results"]
        assert [row["path"] for row in rows] == ["a", "b"]
        assert rows[0]["physical_address"].startswith("http")
        assert rows[1]["physical_address"] == elsewhere.address
        assert ask("GET", "/repositories/analytics/refs/main/objects", path="b", presign="true").status == 400


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """A log whose reader went away costs its lines, not the requests."""
    reading, writing = os.pipe()
    os.close(reading)
    with start_server(
        tmp_path / "lake", access_log=f"/dev/fd/{writing}", options=ServerOptions(durable=False)
    ) as running:
        for _ in range(3):
            assert urllib3.request("GET", running.started.endpoint + "/healthcheck").status == 200
    os.close(writing)
