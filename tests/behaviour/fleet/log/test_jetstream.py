"""JetStream under the log: its leader killed, stopped and wiped; several processes; servers that cannot be used."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import APIError

from lakebed.clock import SystemClock
from lakebed.errors import Conflict, Corruption, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.layout import log_key
from lakebed.fleet.log import jetstream_log
from lakebed.fleet.log.jetstream import JetStream, parse_nats_url
from lakebed.fleet.log.jetstream_log import JetStreamLog
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import LogBounds, rows_of
from lakebed.fleet.model import MAIN
from lakebed.fleet.routing import ClientOptions
from lakebed.runtime import Environment
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess
from worlds.fleet_log import TIMELINE, all_values, append, values_of, write_id
from worlds.fleet_log_process import CheckedAppends
from worlds.forks import answer_in_fork
from worlds.jetstream import opened, own
from worlds.nats_cluster import DROPPED_SOCKETS, NatsCluster
from worlds.waiting import HANG_S, pause, wait_until

CLOCK = SystemClock()

pytestmark = DROPPED_SOCKETS


@pytest.fixture(autouse=True)
def _sockets_are_collected() -> Iterator[None]:
    """Dropped sockets are found in this module, and not in a test of another one."""
    yield
    gc.collect()


@contextmanager
def under_load(cluster: NatsCluster) -> Iterator[CheckedAppends]:
    """Threads that append, each through a connection of its own; at the end everything is checked."""
    url = own(cluster)
    work = CheckedAppends(lambda: opened(url), count=6, now_s=CLOCK.monotonic_s)
    try:
        yield work
        work.stop()
        with closing(opened(url)) as log:
            assert work.check(log) >= work.count
        assert not any(work.unclear.values())
    finally:
        work.close()


def leader_of(work: CheckedAppends, cluster: NatsCluster) -> int:
    """The server that leads the first stream."""
    jetstream = work.log.jetstream  # type: ignore[attr-defined]
    wait_until(lambda: answer(lambda: jetstream.leader(0)))
    return cluster.number_of(jetstream.leader(0))


def in_sync(work: CheckedAppends) -> None:
    """Return when every stream has all its replicas."""
    jetstream = work.log.jetstream  # type: ignore[attr-defined]
    wait_until(lambda: answer(lambda: all(jetstream.lagging(number) == 0 for number in range(2))), timeout_s=120)


def answer(ask: Callable[[], object]) -> object:
    """What the cluster answers; None while it gives no answer."""
    try:
        return ask()
    except Unavailable:
        return None


def kill(cluster: NatsCluster, work: CheckedAppends) -> None:
    """Kill the leader, append without it, start it again."""
    leader = leader_of(work, cluster)
    cluster.kill(leader)
    work.wait_for(200)
    cluster.start(leader)


def stand_still(cluster: NatsCluster, work: CheckedAppends) -> None:
    """Let the leader stand still for a while."""
    leader = leader_of(work, cluster)
    cluster.stop(leader)
    work.wait_for(200)
    cluster.go_on(leader)


def wipe(cluster: NatsCluster, work: CheckedAppends) -> None:
    """Kill the leader, delete its disk, start it again."""
    leader = leader_of(work, cluster)
    cluster.kill(leader)
    cluster.wipe(leader)
    work.wait_for(200)
    cluster.start(leader)


HARM = {"killed": kill, "stopped": stand_still, "wiped": wipe}


def harmed(folder: Path, harm: str, *, rounds: int) -> CheckedAppends:
    """Harm the leader under load, and look at what is left."""
    with NatsCluster(folder) as cluster:
        cluster.wait_for_jetstream()
        with under_load(cluster) as work:
            work.wait_for(200)
            for _ in range(rounds):
                HARM[harm](cluster, work)
                work.wait_for(200)
                in_sync(work)
        return work


def test_the_leader_is_killed(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """The leader is killed under load: no acknowledged row is lost, repeated or reordered, and the pause is bounded."""
    work = harmed(tmp_path, "killed", rounds=1)
    tell(f"JetStream, leader killed: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s")
    assert work.longest_pause_s < 20  # on a busy machine; alone it is below 10 s


@pytest.mark.long
@pytest.mark.parametrize("harm", HARM)
def test_leaders_are_harmed(tmp_path: Path, harm: str, tell: Callable[[str], None]) -> None:
    """Leaders are killed, stand still, lose their disks, again and again: the same holds."""
    work = harmed(tmp_path, harm, rounds=3)
    tell(
        f"JetStream, leader {harm} 3 times: {work.count} acknowledged, longest pause {work.longest_pause_s:.2f} s, "
        f"of a timeline with 6 writers {work.longest_shared_s:.2f} s"
    )
    assert work.longest_pause_s < 30


def test_processes_race_for_one_position(nats_cluster: NatsCluster) -> None:
    """Of connections that expect the same LSN one wins, each time."""
    url = own(nats_cluster)
    logs = [opened(url) for _ in range(6)]
    try:
        logs[0].create(TIMELINE)
        with ThreadPoolExecutor(len(logs)) as pool:
            for expected in range(15):

                def attempt(log: JetStreamLog, expected: int = expected) -> bool:
                    try:
                        return append(log, b"x", expected=expected) == expected + 1
                    except Conflict:
                        return False

                assert sum(pool.map(attempt, logs)) == 1
        assert [log.bounds(TIMELINE).last for log in logs] == [15] * len(logs)
    finally:
        for log in logs:
            log.close()


def test_a_wait_hears_of_other_processes(nats_cluster: NatsCluster) -> None:
    """A wait wakes at another connection's append long before it looks by itself."""
    url = own(nats_cluster)
    with closing(opened(url)) as log, closing(opened(url)) as other, ThreadPoolExecutor(1) as pool:
        log.create(TIMELINE)
        log.wait(TIMELINE, 0, timeout_s=0.1)
        waiting = pool.submit(log.wait, TIMELINE, 0, timeout_s=HANG_S)
        pause(0.2)
        started_s = CLOCK.monotonic_s()
        append(other, b"a")
        assert waiting.result() == 1
        assert CLOCK.monotonic_s() - started_s < 1.9


def test_a_notice_that_is_lost_before_another_one_is_noticed(nats_cluster: NatsCluster) -> None:
    """A wait hears of a timeline whose notice was lost when the next one of the stream arrives."""
    url, second = own(nats_cluster), "tenant/second"
    with (
        closing(opened(url, streams=1)) as log,
        closing(opened(url, streams=1)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        log.create(TIMELINE)
        log.create(second)
        log.wait(TIMELINE, 0, timeout_s=0.1)
        item, lost = log.jetstream.on_tail, []

        def lossy(subject: str, sequence: int, headers: dict[str, str]) -> None:
            if subject.endswith("main"):
                lost.append(sequence)
            else:
                item(subject, sequence, headers)

        log.jetstream.on_tail = lossy
        waiting = pool.submit(log.wait_many, {TIMELINE: 0}, timeout_s=12)
        pause(0.2)
        append(other, b"lost")
        append(other, b"arrives", timeline=second)
        assert waiting.result() == {TIMELINE: 1}
        assert lost


def test_an_append_waits_for_others_until_its_deadline(nats_cluster: NatsCluster) -> None:
    """Threads that append to one timeline wait at the same time, not one after another, while there is no answer."""
    with closing(opened(own(nats_cluster), retry_s=0.5)) as log, ThreadPoolExecutor(1) as pool:
        log.create(TIMELINE)
        publish, begun, release = log.jetstream.publish, threading.Event(), threading.Event()

        def slow(*arguments: Any, **settings: Any) -> Any:
            begun.set()
            release.wait(60)
            return publish(*arguments, **settings)

        log.jetstream.publish = slow  # type: ignore[method-assign]
        first = pool.submit(append, log, b"first")
        assert begun.wait(30)
        with ThreadPoolExecutor(3) as others:
            waiting = [others.submit(append, log, b"other") for _ in range(3)]
            try:
                errors = [item.exception(timeout=10) for item in waiting]
            finally:
                release.set()
        assert [type(error) for error in errors] == [Unavailable] * 3
        assert first.result() == 1
        assert append(log, b"next") == 2


@pytest.mark.parametrize(
    "error", [Unavailable("there is none now", kind="not_published"), OutcomeUnknown("no answer")], ids=str
)
def test_a_stream_without_a_leader_is_not_asked_for_its_end(nats_cluster: NatsCluster, error: LakebedError) -> None:
    """Such a question waits for its time to end; the message itself is refused at once, and is sent again."""
    with closing(opened(own(nats_cluster))) as log:
        log.create(TIMELINE)
        append(log, b"before")
        publish, last, sent, asked = log.jetstream.publish, log.jetstream.last, [], []

        def without_leader(*arguments: Any, **settings: Any) -> Any:
            sent.append(arguments)
            if len(sent) < 5:
                raise error
            return publish(*arguments, **settings)

        def noted(*arguments: Any) -> Any:
            asked.append(arguments)
            return last(*arguments)

        log.jetstream.publish = without_leader  # type: ignore[method-assign]
        log.jetstream.last = noted  # type: ignore[method-assign]
        assert append(log, b"after") == 2
        assert asked == []
        with closing(opened(log.jetstream.shown)) as other:
            append(other, b"another")
        assert append(log, b"last") == 4
        assert len(asked) == 1


def test_a_lost_append_is_searched_once(nats_cluster: NatsCluster) -> None:
    """Then other messages are where it could be: while others append too, it does not read all of theirs each time."""
    url = own(nats_cluster)
    with closing(opened(url)) as log, closing(opened(url)) as other:
        log.create(TIMELINE)
        publish, next_of, tries, read = log.jetstream.publish, log.jetstream.next, [], []

        def late(*arguments: Any, **settings: Any) -> Any:
            tries.append(arguments)
            if len(tries) < 12:
                append(other, b"other")
            if len(tries) == 1:
                raise OutcomeUnknown("no answer")
            return publish(*arguments, **settings)

        def noted(*arguments: Any, **settings: Any) -> Any:
            read.append(arguments)
            return next_of(*arguments, **settings)

        log.jetstream.publish = late  # type: ignore[method-assign]
        log.jetstream.next = noted  # type: ignore[method-assign]
        assert append(log, b"own") == 12
        assert len(read) == 1


@pytest.mark.parametrize("has_ids", [True, False], ids=["with message ids", "without message ids"])
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_reply_is_settled(nats_cluster: NatsCluster, arrives: bool, has_ids: bool) -> None:
    """An append without an answer is made once, also where the server has forgotten its id and others append."""
    url = own(nats_cluster)
    with closing(opened(url)) as log, closing(opened(url)) as other:
        log.create(TIMELINE)
        publish = log.jetstream.publish
        lost: list[str] = []

        def lossy(subject: str, body: bytes, **settings: Any) -> Any:
            if not has_ids:
                settings["id"] = None
            if len(lost) % 3 == 0:  # what follows is refused, for another message is there, and then stored
                lost.append(subject)
                if arrives:
                    publish(subject, body, **settings)
                append(other, b"other")
                raise OutcomeUnknown("no answer")
            lost.append(subject)
            return publish(subject, body, **settings)

        log.jetstream.publish = lossy  # type: ignore[method-assign]
        lsns = [append(log, b"%d" % number) for number in range(5)]
        values = all_values(log)
        assert [dict(values)[lsn] for lsn in lsns] == [b"%d" % number for number in range(5)]
        assert len(values) == 5 + sum(value == b"other" for _, value in values)


def test_the_last_record_stays(nats_cluster: NatsCluster) -> None:
    """Pruned to its end, a timeline keeps its last record, which is its tail; branches keep their beginning."""
    with closing(opened(own(nats_cluster))) as log:
        log.create(TIMELINE)
        for _ in range(5):
            append(log, b"a", b"b")
        log.prune(TIMELINE, 10)
        assert log.bounds(TIMELINE) == LogBounds(9, 10)
        log.create("tenant/branch", after=7)
        log.prune("tenant/branch", 7)
        assert log.bounds("tenant/branch") == LogBounds(8, 7)
        assert append(log, b"x", timeline="tenant/branch") == 8


def test_positions_are_found(nats_cluster: NatsCluster) -> None:
    """A read from any LSN finds its record among those of other timelines, without having read before."""
    url = own(nats_cluster)
    with closing(opened(url, streams=1)) as log:
        for name in ("tenant/a", "tenant/b"):
            log.create(name)
        for number in range(40):
            append(log, b"%d" % number, b"+", timeline=("tenant/a", "tenant/b")[number % 3 == 0])
        last = log.bounds("tenant/a").last
        for after in range(last):
            with closing(opened(url, streams=1)) if after % 10 == 0 else _same(log) as fresh:
                assert values_of(fresh, "tenant/a", after)[-1][0] == last
                assert fresh.read("tenant/a", after)[0].first_lsn in (after, after + 1)


@contextmanager
def _same(log: JetStreamLog) -> Iterator[JetStreamLog]:
    yield log


def test_a_stream_that_was_replaced_is_noticed(nats_cluster: NatsCluster) -> None:
    """A log that was deleted and filled anew does not continue what was read: a shorter one and a longer one."""
    url = own(nats_cluster)
    with closing(opened(url, stale_s=0.2)) as log:
        log.create(TIMELINE)
        for number in range(4):
            append(log, b"%d" % number)
        log.read(TIMELINE, 0)
        log.jetstream.purge(*log._subjects.place(TIMELINE))
        log.create(TIMELINE)
        append(log, b"x")
        with raises(Corruption, "log_forked"):
            log.read(TIMELINE, 4)
        assert [value for _, value in all_values(log)] == [b"x"]


def test_an_oversized_append_is_refused(tmp_path: Path) -> None:
    """What no message of the servers can hold is refused before it is sent."""
    with (
        NatsCluster(tmp_path, count=1, max_payload=64 << 10) as cluster,
        closing(opened(f"{cluster.url}/small", replicas=1)) as log,
    ):
        log.create(TIMELINE)
        assert append(log, bytes(log.append_bytes_max - 1000)) == 1
        with raises(InvalidRequest, "oversized_append"):
            append(log, bytes(70 << 10))
        assert log.bounds(TIMELINE).last == 1


def test_too_few_servers_are_refused(tmp_path: Path) -> None:
    """A server without a cluster cannot keep three replicas."""
    with NatsCluster(tmp_path, count=1) as cluster, raises(InvalidRequest, "too_few_replicas"):
        open_log(f"{cluster.url}/three")


def test_servers_that_are_away_while_a_log_is_made(nats_cluster: NatsCluster) -> None:
    """A cluster that has just started finds its servers one by one: that is no lack of replicas."""
    parts = parse_nats_url(own(nats_cluster))
    jetstream = JetStream(parts.servers, name=parts.name)
    add_stream, asked = jetstream._context.add_stream, []

    async def starting(config: object) -> object:
        asked.append(config)
        if len(asked) <= 2:
            offline = ", peer offline" if len(asked) == 1 else ""
            raise APIError(err_code=10_005, description=f"no suitable peers for placement{offline}")
        return await add_stream(config)

    jetstream._context.add_stream = starting
    with closing(JetStreamLog(jetstream, environment=Environment(), streams=1)) as log:
        log.create(TIMELINE)
    assert len(asked) == 3


def test_another_log_than_was_made_is_refused(nats_cluster: NatsCluster) -> None:
    """A log that was made with fewer replicas, or with another number of streams, is refused."""
    url = own(nats_cluster)
    opened(url, replicas=1).close()
    with raises(InvalidRequest, "too_few_replicas"):
        open_log(url, shards=2)
    with raises(InvalidRequest, "stream_count", streams=2):
        opened(url, replicas=1, streams=5)


class OldServer:
    """Speaks as much of the protocol as a client asks for before it looks at the version."""

    def __init__(self, version: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._version = version
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                info = f'INFO {{"server_id":"x","version":"{self._version}","max_payload":1048576,"headers":true}}\r\n'
                connection.sendall(info.encode())
                while data := connection.recv(4096):
                    if b"PING" in data:
                        connection.sendall(b"PONG\r\n")

    def close(self) -> None:
        """Serve no longer."""
        self._listener.close()


def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server before 2.12 is refused in one sentence."""
    monkeypatch.setattr(jetstream_log, "RETRY_S", 2.0)  # of a client that asked it for streams
    with closing(OldServer("2.9.10")) as server:
        with raises(InvalidRequest, "jetstream_too_old") as error:
            open_log(f"nats://127.0.0.1:{server.port}")
        assert "2.9.10" in str(error.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("nats://", "invalid_url"),
        ("nats://a,,b", "invalid_url"),
        ("nats://a:1/b/c", "invalid_url"),
        ("kafka://a:1", "unknown_log"),
        ("http://", "invalid_url"),
        ("http://a:1,ftp://b:2", "invalid_url"),
    ],
)
def test_urls_of_no_log(url: str, kind: str) -> None:
    """A URL of another kind, or one that cannot be read, is refused in one sentence."""
    with raises(InvalidRequest, kind):
        open_log(url)


def test_nothing_answers() -> None:
    """Where no server answers, opening fails as `Unavailable`; credentials are in no message."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(Unavailable) as error:
        open_log(f"nats://me:secret@127.0.0.1:{port}")
    assert "secret" not in str(error.value)


def test_a_log_that_is_away(tmp_path: Path) -> None:
    """With all servers gone, calls fail after bounded retries: `Unavailable`, or unclear for what was sent."""
    fleet = FleetInProcess(nodes=1)
    fleet.tenant().create()
    with NatsCluster(tmp_path, count=1) as cluster:
        log = open_log(f"{cluster.url}/away", shards=2, replicas=1, retry_s=1.0)
        log.create(TIMELINE)
        log.create(log_key("orders", MAIN))
        client = Tenant(
            "orders",
            control=fleet.control,
            nodes=fleet.port,
            log=log,
            environment=Environment(),
            options=ClientOptions(retry_s=1.0),
        )
        client.main.put(b"k", b"1")
        append(log, b"before")
        cluster.kill(0)
        started_s = CLOCK.monotonic_s()
        with raises(LakebedError, "tenant_unavailable", match="Cannot write to the timeline main of the tenant orders"):
            client.main.put(b"k", b"2")
        assert CLOCK.monotonic_s() - started_s < 12  # one deadline: the client's, and not the log's after it
        for call in (lambda: append(log, b"a"), lambda: log.read(TIMELINE, 0), lambda: log.bounds(TIMELINE)):
            started_s = CLOCK.monotonic_s()
            with raises(LakebedError, "log_unavailable"):
                call()
            assert CLOCK.monotonic_s() - started_s < 10
        same = write_id()
        with pytest.raises(Unavailable):  # the connection is known to be lost, so nothing is sent
            log.append(TIMELINE, rows_of([b"k"], [b"v"]), write_id=same)
        cluster.start(0)
        cluster.wait()
        wait_until(lambda: _succeeds(lambda: log.append(TIMELINE, rows_of([b"k"], [b"v"]), write_id=same)))
        assert values_of(log)[-1][1] == b"v"
        assert sum(record.write_id == same for record in log.read(TIMELINE, 0)) == 1
        log.close()


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except LakebedError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_in_a_forked_process_a_log_is_closed(nats_cluster: NatsCluster) -> None:
    """The connection, and the thread that reads it, are the parent's, which goes on."""
    with closing(opened(own(nats_cluster))) as log:
        log.create(TIMELINE)
        append(log, b"1")
        with log._lock:  # as another thread of the parent may, at the moment of the fork
            for act in (lambda: log.bounds(TIMELINE), lambda: log.read(TIMELINE, 0), lambda: append(log, b"2")):
                assert answer_in_fork(act).startswith("Closed: The log belongs to the process")
            assert answer_in_fork(log.close) == "None"
        append(log, b"3")
        assert len(all_values(log)) == 2
