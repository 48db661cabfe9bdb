"""Messages of many threads, published over one connection.

Owns: the messages that wait for their acknowledgement, and the subject of their replies. Messages that arrive while
others are sent are sent together. Each waits only for its own acknowledgement, so a stream without a leader delays no
message of another stream. When the connection is lost, all messages in flight end at once without a clear answer,
because their replies went to the lost connection. Until it is restored, no message is sent, and none is kept for later.
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
    """The reply to a message."""

    status: str
    """``503`` if no server takes the subject, so that no stream replied; otherwise empty."""
    body: bytes


class NotSent(Exception):
    """There is no connection now."""


class ConnectionLost(Exception):
    """The connection was lost before the reply came."""


class Publisher:
    """Publishes messages of many threads. Thread-safe.

    Args:
        client: a connection of nats-py, in the loop.
    """

    def __init__(self, client: Any, loop: EventLoopThread) -> None:
        self._client = client
        self._loop = loop
        self._prefix = f"{client.new_inbox()}."
        self._numbers = count()
        self._unanswered: dict[str, Handed[Sending, Reply]] = {}
        """Messages without a reply, by the last part of their reply's subject. Only used in the loop."""
        loop.run(client.subscribe(f"{self._prefix}*", cb=self._on_reply, pending_bytes_limit=-1, pending_msgs_limit=-1))
        self._handover: Handover[Sending, Reply] = Handover(loop, self._send)

    def publish(self, message: Sending, *, timeout_s: float) -> Reply:
        """Publish a message, and wait for its reply.

        Raises:
            TimeoutError: no reply came in time.
            NotSent: there is no connection now.
            ConnectionLost: the connection was lost meanwhile.
            Exception: of nats-py: the message may have been sent.
        """
        return self._handover.ask(message, timeout_s=timeout_s)

    def lose(self) -> None:
        """End all messages in flight, because the connection is lost. Called in the loop."""
        lost_messages, self._unanswered = self._unanswered, {}
        for message in lost_messages.values():
            message.fail(ConnectionLost("the connection was lost"))

    def close(self) -> None:
        """Close the connection, end all messages, and accept no more."""
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
