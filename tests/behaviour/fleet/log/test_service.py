"""The service of the embedded log: processes that are killed and stand still, standbys, tokens, and bad requests."""

from __future__ import annotations

import gzip
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from lakebed.clock import SystemClock
from lakebed.errors import Conflict, InvalidRequest, Unavailable
from lakebed.fleet.log.bodies import AppendItem, WaitBody, encode_rows
from lakebed.fleet.log.client import HttpLog
from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.log.serve import LogSettings, run_log, start_log
from worlds.errors import raises
from worlds.fleet_log import TIMELINE, append, values_of, write_id
from worlds.fleet_log_process import TOKEN, CheckedAppends, LogProcess, refused
from worlds.odd_numbers import numbers_in, numbers_of, odd_bodies
from worlds.waiting import wait_until

CLOCK = SystemClock()


def kill_and_take_over(tmp_path: Path, *, rounds: int, more: int) -> CheckedAppends:
    """Kill the owner under load, again and again; a standby takes over, and the killed one is started as a standby."""
    storage = tmp_path / "fleet"
    with LogProcess(storage) as first, LogProcess(storage) as second:
        wait_until(lambda: first.status() == "ok")
        assert second.status() == "standby"
        endpoints = [first.endpoint, second.endpoint]
        work = CheckedAppends(lambda: HttpLog(endpoints, token=TOKEN), count=8, now_s=CLOCK.monotonic_s)
        try:
            owner, other = first, second
            for _ in range(rounds):
                work.wait_for(more)
                owner.kill()
                work.wait_for(more)
                owner.start()
                owner, other = other, owner
                assert owner.status() == "ok"
            work.stop()
            with closing(HttpLog(endpoints, token=TOKEN)) as log:
                assert work.check(log) >= work.count
            assert not any(work.unclear.values())
        finally:
            work.close()
    return work


def test_a_standby_takes_over_from_a_killed_owner(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """The owner is killed under load: a standby goes on, no acknowledged row is lost or repeated, none fails."""
    work = kill_and_take_over(tmp_path, rounds=1, more=300)
    tell(f"embedded log, owner killed: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s")
    assert work.longest_pause_s < 15


@pytest.mark.long
def test_owners_are_killed_again_and_again(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """The same ten times, each time with a new standby."""
    work = kill_and_take_over(tmp_path, rounds=10, more=500)
    tell(f"embedded log, ten owners killed: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s")


@pytest.mark.long
def test_an_owner_that_stood_still_loses_nothing(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """An owner that stands still is replaced when its lease ends; awake again, it acknowledges nothing more."""
    storage = tmp_path / "fleet"
    with LogProcess(storage) as first, LogProcess(storage) as second:
        wait_until(lambda: first.status() == "ok")
        endpoints = [first.endpoint, second.endpoint]
        work = CheckedAppends(lambda: HttpLog(endpoints, token=TOKEN), count=8, now_s=CLOCK.monotonic_s)
        try:
            work.wait_for(300)
            first.process.send_signal(signal.SIGSTOP)
            work.wait_for(300)
            first.process.send_signal(signal.SIGCONT)
            with closing(HttpLog([first.endpoint], token=TOKEN, retry_s=0.5)) as stale:
                wait_until(lambda: refused(stale, TIMELINE) is not None and first.status() == "standby")
            work.wait_for(300)
            work.stop()
            with closing(HttpLog(endpoints, token=TOKEN)) as log:
                assert work.check(log) >= work.count
        finally:
            work.close()
    tell(f"embedded log, owner stood still: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s")


def test_a_process_ends_cleanly(tmp_path: Path) -> None:
    """Asked to end, the process closes the log, so the next one owns it at once."""
    storage = tmp_path / "fleet"
    with LogProcess(storage) as first:
        with closing(HttpLog([first.endpoint], token=TOKEN)) as log:
            log.create(TIMELINE)
            append(log, b"a")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(30) == 0
    with closing(open_embedded(str(storage))) as log:
        assert values_of(log) == [(1, b"a")]


def test_the_number_of_shards_is_fixed(tmp_path: Path) -> None:
    """Another number than the log was created with is refused; without a number it is found; each shard is used."""
    storage = str(tmp_path / "fleet")
    with closing(open_embedded(storage, shards=3)) as log:
        for number in range(20):
            log.create(f"tenant/t{number}")
    assert sorted(path.name for path in (tmp_path / "fleet" / "_fleet" / "log").iterdir()) == ["0", "1", "2"]
    for wrong in (1, 2, 4):
        with raises(InvalidRequest, "shard_count", shards=3):
            open_embedded(storage, shards=wrong)
    with pytest.raises(InvalidRequest):
        open_embedded(storage, shards=0)
    with closing(open_embedded(storage)) as log:
        assert [log.bounds(f"tenant/t{number}").last for number in range(20)] == [0] * 20


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    """While a process owns the log, another one that opens it is told who does."""
    with closing(open_embedded(str(tmp_path))), raises(Conflict, "owned"):
        open_embedded(str(tmp_path))


def served(log: HttpLog) -> Log:
    """The same, with a timeline."""
    log.create(TIMELINE)
    return log


def test_the_token(tmp_path: Path) -> None:
    """Without the token, or with another one, every call is refused and nothing happens; it is in no repr."""
    with start_log(LogSettings(storage_url=str(tmp_path), token=TOKEN)) as server:
        with closing(HttpLog([server.endpoint], token=TOKEN)) as right:
            served(right)
            assert TOKEN not in repr(right)
            for token in (None, "another", TOKEN[:-1]):
                with closing(HttpLog([server.endpoint], token=token)) as wrong:
                    for call in (
                        lambda log=wrong: append(log, b"x"),
                        lambda log=wrong: log.bounds(TIMELINE),
                        lambda log=wrong: log.drop(TIMELINE),
                        lambda log=wrong: log.wait_many({TIMELINE: 0}, timeout_s=0),
                    ):
                        with raises(InvalidRequest, "unauthorized"):
                            call()
            assert right.bounds(TIMELINE).last == 0
        for path in ("/healthcheck", "/metrics", "/openapi.json"):
            assert urllib3.request("GET", server.endpoint + path).status == 200


def test_a_compressed_append_is_refused_as_such(tmp_path: Path) -> None:
    """It is not taken for damaged rows, and appends nothing."""
    rows = encode_rows(rows_of([b"k"], [b"v"]), write_id=write_id())
    body = gzip.compress(msgspec.msgpack.encode([AppendItem(TIMELINE, rows)]))
    with start_log(LogSettings(storage_url=str(tmp_path))) as server, closing(HttpLog([server.endpoint])) as log:
        served(log)
        before, url = log.bounds(TIMELINE), f"{server.endpoint}/log/v1/append"
        reply = urllib3.request("POST", url, body=body, headers={"Content-Encoding": "gzip"}, retries=False, timeout=30)
        assert (reply.status, reply.headers["x-lakebed-error"]) == (415, "encoded_body")
        assert log.bounds(TIMELINE) == before


def test_what_is_not_a_request_is_refused(tmp_path: Path) -> None:
    """Malformed, truncated and oversized requests get a 4xx with a sentence, and change nothing."""
    rows = encode_rows(rows_of([b"k"], [b"v"]), write_id=write_id())
    good = msgspec.msgpack.encode([AppendItem(TIMELINE, rows)])
    timeline = "/timelines/tenant/main"
    with start_log(LogSettings(storage_url=str(tmp_path))) as server, closing(HttpLog([server.endpoint])) as log:
        served(log)

        def ask(method: str, path: str, body: bytes | None = None) -> Any:
            url = f"{server.endpoint}/log/v1{path}"
            return urllib3.request(method, url, body=body, retries=False, timeout=30)

        requests: list[tuple[str, str, bytes | None, int]] = [
            ("POST", "/append", None, 400),
            ("POST", "/append", b"[]", 400),
            ("POST", "/append", msgspec.msgpack.encode([]), 400),
            ("POST", "/append", good[:-1], 400),
            ("POST", "/append", bytes(32 * 1024 * 1024 + 1), 413),
            ("POST", "/append", msgspec.msgpack.encode([AppendItem(TIMELINE, b"")] * 1025), 400),
            ("POST", "/wait", b"{", 400),
            ("POST", "/wait", b'{"after": {"tenant": 1}}', 400),
            ("POST", "/wait", b'{"after": {"tenant/main": -1}}', 400),
            ("GET", timeline + "/records", None, 400),
            ("GET", timeline + "/records?after=x", None, 400),
            ("GET", timeline + "/records?after=-1", None, 400),
            ("GET", timeline + "/records?after=5", None, 409),
            ("GET", timeline + "/records?after=0&bytes_max=0", None, 400),
            ("GET", "/timelines/tenant/other/bounds", None, 404),
            ("GET", "/timelines/ten%20ant/main/bounds", None, 400),
            ("PUT", timeline + "?after=7", None, 409),
            ("PUT", timeline, None, 400),
            ("POST", timeline + "/prune?through=9", None, 409),
            ("PATCH", timeline, None, 405),
            ("GET", "/elsewhere", None, 404),
        ]
        for method, path, body, status in requests:
            reply = ask(method, path, body)
            assert (reply.status, method, path) == (status, method, path)
            assert reply.json()["message"]
        damaged = msgspec.msgpack.encode([AppendItem(TIMELINE, rows[:-1] + b"x"), AppendItem("no", rows)])
        document = ask("POST", "/append", damaged).json()
        assert [item["kind"] for item in document] == ["invalid_body", "invalid_timeline_name"]
        assert log.bounds(TIMELINE).last == 0
        assert ask("POST", "/append", good).json() == [{"lsn": 1}]


def test_a_log_that_is_away(tmp_path: Path) -> None:
    """Without a process, appends and reads fail as `Unavailable` after bounded retries."""
    with start_log(LogSettings(storage_url=str(tmp_path))) as server:
        log = HttpLog([server.endpoint], retry_s=0.5)
        served(log)
    for call in (lambda: append(log, b"a"), lambda: log.read(TIMELINE, 0), lambda: log.bounds(TIMELINE)):
        started_s = CLOCK.monotonic_s()
        with raises(Unavailable, "log_unavailable"):
            call()
        assert CLOCK.monotonic_s() - started_s < 10
    log.close()


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    """An address for other machines and another number of shards are refused before anything is served."""
    with closing(open_embedded(str(tmp_path), shards=2)):
        pass
    with raises(InvalidRequest, "remote_host"):
        run_log(LogSettings(storage_url=str(tmp_path)), host="0.0.0.0")
    with raises(InvalidRequest, "shard_count"):
        run_log(LogSettings(storage_url=str(tmp_path), shards=3))


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """In the bodies of waits and appends: a 4xx, or an append that is refused by itself."""
    record = encode_rows(rows_of([b"k"], [b"v"]), write_id=write_id())
    with start_log(LogSettings(storage_url=str(tmp_path))) as server:
        url = server.endpoint + "/log/v1"
        wait = {"after": {"t/main": 1}, "timeout_s": 1.0}
        assert {name.replace("t/main", "*") for name in numbers_in(wait)} == numbers_of(WaitBody)
        for name, odd in odd_bodies(wait):
            reply = urllib3.request("POST", url + "/wait", body=msgspec.json.encode(odd), retries=False)
            assert (reply.status, reply.headers["x-lakebed-error"]) == (400, "invalid_body"), (name, reply.data)
        assert numbers_in([["t/main", record, 1]]) == numbers_of(list[AppendItem])
        for name, odd in odd_bodies([["t/main", record, 1]]):
            reply = urllib3.request("POST", url + "/append", body=msgspec.msgpack.encode(odd), retries=False)
            assert (reply.status, reply.headers["x-lakebed-error"]) == (400, "invalid_body"), (name, reply.data)
