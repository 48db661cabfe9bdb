"""`Serving`: what every process that serves HTTP has.

Owns: limits, threads, the access log and the background tasks that write it and return freed memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.types import Receive, Send

from lakebed.errors import LakebedError
from lakebed.http.access_log import AccessLog, open_access_log
from lakebed.http.memory import release_unused
from lakebed.http.options import HttpOptions
from lakebed.http.pools import Pools, run_in
from lakebed.http.replies import Arrivals
from lakebed.log import warn
from lakebed.runtime import Environment

_FLUSH_INTERVAL_S: Final = 0.25

_RELEASE_INTERVAL_S: Final = 15.0
"""Time between two returns of freed memory to the system: allocators keep it, in pieces, for each thread."""


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Serving:
    """What every serving process has.

    Attributes:
        name: prefix of messages on standard error.
        authority: host and port, for clients that send no ``Host``.
        reads_inline: whether short reads run in the event loop, because their data is on this machine.
        instance: a few random letters, the prefix of every request's id.
        running: number of requests that are running.
        arrivals: counts the requests.
        release: returns unused memory to the system; called every few seconds in a thread.
        lost: returns the error that ends the process, once another process owns what it serves; until then None.
    """

    name: str
    options: HttpOptions
    environment: Environment
    pools: Pools
    instance: str
    authority: str
    reads_inline: bool
    access_log: AccessLog | None
    running: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)
    release: Callable[[], None] = release_unused
    lost: Callable[[], LakebedError | None] = _nothing
    _tasks: tuple[asyncio.Task[None], ...] = field(default=(), repr=False)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        options: HttpOptions,
        environment: Environment,
        authority: str,
        reads_inline: bool = False,
        access_log: str | os.PathLike[str] | None = None,
    ) -> Serving:
        """Open the log and the pools; `access_log` as `open_access_log` takes it."""
        return cls(
            name,
            options,
            environment,
            Pools.open(options),
            f"{environment.rng.getrandbits(32):08x}",
            authority,
            reads_inline,
            open_access_log(access_log),
        )

    def log_problem(self, message: str, *, request_id: str = "") -> None:
        """Write a problem to standard error that no reply can report."""
        warn(f"{self.name}: {message}{f' (request {request_id})' if request_id else ''}")

    async def run_lifespan(self, receive: Receive, send: Send) -> None:
        """Follow ASGI's lifespan protocol: start the background tasks, wait for shutdown, stop them."""
        await receive()
        self._tasks = (asyncio.create_task(self._flush_forever()), asyncio.create_task(self._release_forever()))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._tasks:
            task.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    def close_log(self) -> None:
        """Write the buffered lines and close the log. The last step of `Site.close`."""
        if self.access_log is not None:
            self.access_log.close()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            if self.access_log is not None and self.access_log.waiting:
                await run_in(self.pools.heavy, self.access_log.flush)

    async def _release_forever(self) -> None:
        while True:
            await asyncio.sleep(_RELEASE_INTERVAL_S)
            await run_in(self.pools.heavy, self.release)
