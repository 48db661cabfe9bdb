"""Messages to JetStream that arrive late: of writers that stood still, of connections that were lost."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.fleet.log.jetstream import WrongSequence
from lakebed.fleet.log.jetstream_log import JetStreamLog
from lakebed.fleet.log.jetstream_publish import ConnectionLost
from lakebed.fleet.log.port import rows_of
from worlds.fleet_log import TIMELINE, all_values, append, write_id
from worlds.jetstream import opened, own
from worlds.nats_cluster import DROPPED_SOCKETS, NatsCluster
from worlds.waiting import HANG_S, wait_until

pytestmark = DROPPED_SOCKETS


@pytest.fixture(autouse=True)
def _sockets_are_collected() -> Iterator[None]:
    """Dropped sockets are found in this module, and not in a test of another one."""
    yield
    gc.collect()


class Held:
    """A connection whose messages are held while `is_cut`, as those of a process or network that stands still."""

    def __init__(self, log: JetStreamLog, *, has_ids: bool) -> None:
        self.is_cut = False
        self._publish = log.jetstream.publish
        self._has_ids = has_ids
        self._held: list[Callable[[], object]] = []
        log.jetstream.publish = self.publish  # type: ignore[method-assign]

    def publish(self, *arguments: Any, **settings: Any) -> Any:
        """Publish, or hold the message and give no answer."""
        if not self._has_ids:
            settings["id"] = None
        if self.is_cut:
            self._held.append(lambda: self._publish(*arguments, **settings))
            raise OutcomeUnknown("no answer")
        return self._publish(*arguments, **settings)

    def arrive(self) -> None:
        """Let the messages that were held arrive."""
        assert self._held
        for message in self._held:
            with suppress(WrongSequence):
                message()


@pytest.mark.parametrize("has_ids", [True, False], ids=["with message ids", "without message ids"])
@pytest.mark.parametrize("expected", [None, 1], ids=["any end", "an expected end"])
@pytest.mark.parametrize("order", ["arrive other again", "arrive again other", "other arrive again", "again arrive"])
def test_a_message_that_arrives_after_its_call(
    nats_cluster: NatsCluster, order: str, expected: int | None, has_ids: bool
) -> None:
    """A call gave up, its messages arrive later, before or after others append and the call is repeated: one record.

    A writer that was alone when it was stopped, and is not when it wakes, is refused.
    """
    url, same, rows = own(nats_cluster), write_id(), rows_of([b"k"], [b"own"])
    with closing(opened(url, streams=1, retry_s=0.2)) as log, closing(opened(url, streams=1)) as other:
        other.create(TIMELINE)
        append(other, b"first")
        pin = Held(log, has_ids=has_ids)

        def call() -> int:
            return log.append(TIMELINE, rows, write_id=same, expected=expected)

        def again() -> int:
            """The call, repeated: on a busy machine the cluster may give no answer within the log's short limit."""
            answers: list[int] = []

            def is_answered() -> list[int]:
                with suppress(Unavailable, OutcomeUnknown):
                    answers.append(call())
                return answers

            wait_until(is_answered)
            return answers[0]

        pin.is_cut = True
        with pytest.raises(OutcomeUnknown):
            call()
        pin.is_cut = False
        lsn: int | None = None
        for step in order.split():
            if step == "arrive":
                pin.arrive()
            elif step == "other":
                append(other, b"other")
            elif expected is not None and order.startswith("other"):
                with pytest.raises(Conflict):
                    again()
            else:
                lsn = again()
        result = all_values(other)
        values = [value for _, value in result]
        assert values.count(b"other") == order.count("other")
        assert values.count(b"own") == (lsn is not None)
        assert lsn is None or dict(result)[lsn] == b"own"
        assert append(other, b"last") == len(result) + 1


def test_a_replica_that_stands_still_holds_up_no_reader(nats_cluster: NatsCluster) -> None:
    """A batch that a silent replica was to give is not waited for again and again: the leader has the records too."""
    with closing(opened(own(nats_cluster), streams=1)) as log:
        log.create(TIMELINE)
        for number in range(150):
            append(log, b"%d" % number)
        asked: list[object] = []

        def silent(*arguments: Any, **settings: Any) -> Any:
            asked.append(arguments)
            raise Unavailable("no answer", kind="log_unavailable")

        log.jetstream.batch = silent  # type: ignore[method-assign]
        assert [value for _, value in all_values(log)] == [b"%d" % number for number in range(150)]
        assert len(asked) == 1


def test_a_message_ends_with_its_connection(tmp_path: Path) -> None:
    """A server that stands still gives no answer; when it is killed, the message is unclear at once."""
    with (
        NatsCluster(tmp_path, count=1) as cluster,
        closing(opened(f"{cluster.url}/lost", streams=1, replicas=1)) as log,
        ThreadPoolExecutor(1) as pool,
    ):
        log.create(TIMELINE)
        jetstream, sent = log.jetstream, log.jetstream._client.stats
        before = sent["out_msgs"]
        cluster.stop(0)
        waiting = pool.submit(
            jetstream.publish, "lost.log.0.x.y", b"", expected=0, id=None, headers={}, timeout_s=HANG_S
        )
        wait_until(lambda: sent["out_msgs"] > before)
        cluster.kill(0)
        error = waiting.exception(timeout=2 * HANG_S)
        assert isinstance(error, OutcomeUnknown)
        assert isinstance(error.__cause__, ConnectionLost)
