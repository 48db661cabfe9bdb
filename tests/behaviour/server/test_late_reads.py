"""Reads of objects that are replaced, and collected, between the look at their path and the read of their bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lakebed.objects import local
from lakebed.objects.local import LocalDriver
from lakebed.repo.model.options import CollectionOptions
from worlds.waiting import HANG_S, wait_until

OLD, NEW = b"o" * 3_000, b"n" * 4_000
PLACE = ":/refs/main/objects"
READS: dict[str, tuple[str, dict[str, str], dict[str, Any], bytes]] = {
    "small": (PLACE, {}, {}, NEW),
    "range": (PLACE, {"Range": "bytes=0-99"}, {}, NEW[:100]),
    "end": (PLACE, {"Range": "bytes=-10"}, {}, NEW[-10:]),
    "verb": (":/verbs/read", {}, {"ref": "main"}, NEW),
    "verb's range": (":/verbs/read", {}, {"ref": "main", "start": 1, "end": 9}, NEW[1:9]),
}


def replace_and_collect(repository: Any) -> None:
    """Give the path other bytes, and take those that it had."""
    repository.branch("main").put("a", NEW)
    # The time of files is coarse: the old object is garbage some milliseconds later.
    wait_until(lambda: repository.collect(CollectionOptions(grace=timedelta(0))).deleted_count)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells whether a read would wait")
@pytest.mark.parametrize("name", sorted(READS))
def test_a_read_without_a_thread_looks_again(
    serve: Callable[..., Any], connect: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also what is in memory may have been replaced and collected since its path was looked up."""
    running = serve()
    client = connect(running)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    client.put("a", OLD)
    repository = running.site.repositories.repository("analytics")
    place, headers, query, expected = READS[name]
    call, calls = LocalDriver.get_resident, []

    def read_late(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            replace_and_collect(repository)
        return call(*args)

    monkeypatch.setattr(LocalDriver, "get_resident", read_late)
    answer = client.ask("GET", place, None, headers, path="a", **query)
    assert (answer.status in (200, 206), answer.body) == (True, expected)
    assert len(calls) == 2


@pytest.mark.parametrize("small_bytes", [1 << 20, 10])
@pytest.mark.parametrize("name", sorted(READS))
def test_a_read_looks_again(
    serve: Callable[..., Any],
    connect: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    small_bytes: int,
) -> None:
    """The bytes, range and headers are those of the new object; bytes that a collection took are no error."""
    monkeypatch.setattr(local, "_RWF_NOWAIT", None)  # every read waits for a thread
    running = serve(quick_threads=1, transfer_threads=1, uploads_max=1, small_object_bytes=small_bytes)
    client = connect(running)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    client.put("a", OLD)
    repository = running.site.repositories.repository("analytics")
    place, headers, query, expected = READS[name]
    goes_on = threading.Event()
    pools = running.site.serving.pools
    busy = [pool.submit(goes_on.wait, HANG_S) for pool in (pools.quick, pools.transfer)]
    with ThreadPoolExecutor(1) as others:
        try:
            asked = others.submit(client.ask, "GET", place, None, headers, path="a", **query)
            wait_until(lambda: pools.quick.waiting_count or pools.transfer._work_queue.qsize())
            replace_and_collect(repository)
        finally:
            goes_on.set()
        answer = asked.result()
    assert all(done.result() for done in busy)
    assert answer.status in (200, 206), answer.body
    assert answer.body == expected
    if place == PLACE:
        assert answer.headers["etag"] == client.get("a").headers["etag"]
        assert answer.headers["content-length"] == str(len(expected))
