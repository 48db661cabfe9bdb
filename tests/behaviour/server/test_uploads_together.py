"""Uploads that come at once are stored together, and each client gets the reply to its own."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from lakebed.repo.heads.uploads import SmallUpload
from lakebed.server.uploads import SmallUploads


def test_uploads_at_once_have_their_own_replies(client: Any) -> None:
    """Sixteen clients, half of them with a fault of their own: statuses, checksums and contents are those of each."""
    client.ask("POST", ":/branches", {"name": "other", "source": "main"})

    def send(number: int) -> tuple[int, int, str]:
        body = f"content {number}".encode() * 50
        branch = ("main", "other", "missing", "main")[number % 4]
        digest = hashlib.md5(b"something else" if number % 4 == 3 else body).digest()
        headers = {"Content-MD5": b64encode(digest).decode()}
        place = f":/branches/{branch}/objects"
        answer = client.ask("POST", place, body, headers, path=f"at/once/{number:03d}")
        return number, answer.status, answer.json.get("checksum", "")

    with ThreadPoolExecutor(16) as clients:
        replies = list(clients.map(send, range(96)))
    for number, status, checksum in replies:
        body = f"content {number}".encode() * 50
        assert status == (201, 201, 404, 400)[number % 4], number
        if number % 4 < 2:
            ref = ("main", "other")[number % 4]
            assert checksum == hashlib.md5(body).hexdigest()
            assert client.get(f"at/once/{number:03d}", ref=ref).body == body
    assert len(client.listed(prefix="at/once/", ref="main")) == 24
    assert len(client.listed(prefix="at/once/", ref="other")) == 24


def test_a_read_behind_a_reply_sees_the_upload(client: Any) -> None:
    """Reads that come together share a look at the records, but none from before their request."""

    def write_and_read(number: int) -> bool:
        for turn in range(8):
            client.put(f"seen/{number}", f"{number}.{turn}".encode())
            answer = client.ask("GET", ":/refs/main/objects/stat", path=f"seen/{number}")
            if answer.json["checksum"] != hashlib.md5(f"{number}.{turn}".encode()).hexdigest():
                return False
        return True

    with ThreadPoolExecutor(12) as clients:
        assert all(clients.map(write_and_read, range(12)))


def test_an_upload_whose_step_never_began_ends_with_the_server() -> None:
    """A pool that is shut down cancels the steps behind the running one: their requests end, and wait for nobody."""
    pool = ThreadPoolExecutor(1)
    release = threading.Event()
    pool.submit(release.wait)

    async def upload() -> None:
        uploads = SmallUploads(pool, waits_for_disk=True)
        storing = asyncio.create_task(
            uploads.store(cast(Any, None), "main", SmallUpload("a", lambda: b"x", "text/plain", {}), size_bytes=1)
        )
        await asyncio.sleep(0.05)
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(storing, 10)

    try:
        asyncio.run(upload())
    finally:
        release.set()
