"""Messages of many threads, published over one connection.

Owns: the messages that wait for their acknowledgement, and the subject of their replies. Messages that come while
others are sent go out together, and each waits for its own acknowledgement only, so that a stream without a leader
holds up no other. When the connection is lost, all messages under way end at once, without a clear answer: their
replies went to the connection that is gone. Until there is another one, no message is sent, and none is kept to be
sent later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from lakebed.event_loop import EventLoopThread, Handed, Handover


class Sending(NamedTuple):
    """A message to publish."""

    subject: str
    body: bytes
    headers: dict[str, str]


class Reply(NamedTuple):
    """What came back."""

    status: str
    """Of a reply that no stream gave: ``503`` when no server takes the subject; else empty."""
    body: bytes


class NotSent(Exception):
    """There is no connection now."""


class ConnectionLost(Exception):
    """The connection was lost before the reply came."""


class Publisher:
    """Publishes for many threads. Thread-safe.

    Args:
        client: a connection of nats-py, in the loop.
    """

    def __init__(self, client: Any, loop: EventLoopThread) -> None:
        self._client = client
        self._loop = loop
        self._prefix = f"{client.new_inbox()}."
        self._numbers = count()
        self._unanswered: dict[str, Handed[Sending, Reply]] = {}
        """By the last part of the subject of the reply. In the loop only."""
        loop.run(client.subscribe(f"{self._prefix}*", cb=self._on_reply, pending_bytes_limit=-1, pending_msgs_limit=-1))
        self._handover: Handover[Sending, Reply] = Handover(loop, self._send)

    def publish(self, message: Sending, *, timeout_s: float) -> Reply:
        """Publish a message, and wait for its reply.

        Raises:
            TimeoutError: there was none in time.
            NotSent: there is no connection now.
            ConnectionLost: the connection was lost meanwhile.
            Exception: of nats-py: the message may have been sent.
        """
        return self._handover.ask(message, timeout_s=timeout_s)

    def lose(self) -> None:
        """End all messages under way: the connection is lost. In the loop."""
        lost, self._unanswered = self._unanswered, {}
        for message in lost.values():
            message.fail(ConnectionLost("the connection was lost"))

    def close(self) -> None:
        """Close the connection, end all messages, and take no more."""
        self._handover.close()
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.call(self.lose)

    async def _send(self, messages: Sequence[Handed[Sending, Reply]]) -> None:
        if len(self._unanswered) > 2 * len(messages) + 1_000:
            self._unanswered = {number: message for number, message in self._unanswered.items() if not message.is_over}
        for message in messages:
            if not self._client.is_connected:
                message.fail(NotSent("the connection is lost, and is made again"))
                continue
            number = str(next(self._numbers))
            self._unanswered[number] = message
            try:
                await self._client.publish(
                    message.item.subject, message.item.body, reply=self._prefix + number, headers=message.item.headers
                )
            except Exception as error:
                self._unanswered.pop(number, None)
                message.fail(error)

    async def _on_reply(self, message: Any) -> None:
        sending = self._unanswered.pop(message.subject[len(self._prefix) :], None)
        if sending is not None:
            sending.answer(Reply((message.headers or {}).get("Status", ""), message.data))
