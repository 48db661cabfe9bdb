"""Several serving processes over shared records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3

SERVE = """
import json, sys
from lakebed.server.options import ServerOptions
from lakebed.server.serve import run_server
def started(told):
    print(json.dumps([told.endpoint, told.access_key, told.secret]), flush=True)
if __name__ == "__main__":
    options = ServerOptions(metadata=sys.argv[2], workers=2)
    sys.exit(run_server(sys.argv[1], port=0, access_log=sys.argv[3], options=options, started=started))
"""

Ask = Callable[..., urllib3.BaseHTTPResponse]


@pytest.fixture
def workers(tmp_path: Path, postgresql: Any) -> Iterator[tuple[subprocess.Popen[bytes], Ask]]:
    """Two workers: their parent, and a way to ask, each time over a new connection, so that any of them answers."""
    program = tmp_path / "program.py"
    program.write_text(SERVE)
    command = [sys.executable, str(program), str(tmp_path / "lake"), postgresql.make_database(), str(tmp_path / "log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    endpoint, access_key, secret = json.loads(parent.stdout.readline())
    headers = urllib3.make_headers(basic_auth=f"{access_key}:{secret}")

    def ask(
        method: str, place: str, body: Any = None, headers: dict[str, str] = headers, **query: str
    ) -> urllib3.BaseHTTPResponse:
        url = f"{endpoint}/api/v1{place}?{urllib.parse.urlencode(query)}"
        with urllib3.PoolManager(retries=urllib3.Retry(connect=3, read=0)) as pool:
            body = json.dumps(body) if isinstance(body, dict) else body
            return pool.request(method, url, body=body, headers={**headers, "Connection": "close"}, redirect=False)

    try:
        yield parent, ask
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def children_of(parent: subprocess.Popen[bytes]) -> set[int]:
    """The workers that run."""
    result = set()
    for word in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
        with suppress(OSError):  # it ends at this moment
            if b"spawn_main" in Path(f"/proc/{word}/cmdline").read_bytes():
                result.add(int(word))
    return result


def test_workers_share_everything(workers: tuple[subprocess.Popen[bytes], Ask], tmp_path: Path) -> None:
    """What one worker has done the other shows; keys made or revoked at one count at the other; the end is clean."""
    parent, ask = workers
    creation = {"name": "analytics", "storage_namespace": "local://analytics"}
    assert ask("POST", "/repositories", creation).status == 201
    seen = set()
    for number in range(40):
        branch = f"b{number}"
        made = ask("POST", "/repositories/analytics/branches", {"name": branch, "source": "main"})
        assert made.status == 201
        put = ask("POST", f"/repositories/analytics/branches/{branch}/objects", b"x", path="a")
        assert put.status == 201
        got = ask("GET", f"/repositories/analytics/refs/{branch}/objects", path="a")
        assert (got.status, got.data) == (200, b"x")
        seen |= {reply.headers["X-Request-Id"].split("-")[0] for reply in (made, put, got)}
    assert len(seen) == 2, "one worker answered everything"
    key = ask("POST", "/auth/keys", {"role": "read"}).json()
    reader = urllib3.make_headers(basic_auth=f"{key['access_key_id']}:{key['secret_access_key']}")
    assert {ask("GET", "/user", headers=reader).status for _ in range(8)} == {200}
    assert ask("DELETE", f"/auth/keys/{key['access_key_id']}").status == 204
    for _ in range(100_000):  # each worker looks again within seconds
        if {ask("GET", "/user", headers=reader).status for _ in range(8)} == {401}:
            break
    else:
        pytest.fail("a revoked key is still good")
    signed = "/repositories/analytics/branches/main/staging/backing"
    for _ in range(6):  # a URL that one worker signed is good at every one
        place = ask("GET", signed, path="p", presign="true").json()
        with urllib3.PoolManager() as pool:
            assert pool.request("PUT", place["presigned_url"], body=b"1", headers={"Connection": "close"}).status == 200
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    assert parent.stderr is not None
    assert parent.stderr.read() == b""


def test_a_worker_that_dies_is_replaced(workers: tuple[subprocess.Popen[bytes], Ask]) -> None:
    """One worker is killed: the other answers meanwhile, and a new one takes its place."""
    parent, ask = workers
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not list children")
    serving = children_of(parent)
    assert len(serving) == 2
    killed = min(serving)
    os.kill(killed, signal.SIGKILL)
    for _ in range(100_000):
        assert ask("GET", "/user").status == 200
        now = children_of(parent)
        if len(now) == 2 and killed not in now:
            break
    else:
        pytest.fail("nobody took its place")
