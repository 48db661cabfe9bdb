"""What one process serves: the repositories, the access keys, the logs, and the pools that wait and compute.

Owns: their life, from the first request to the last: the log of accesses is written a few times a second, and at the
end running calls are waited for, then everything is closed in the order in which it depends on each other. Does not
know: routes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lakebed.objects.path import parse_url
from lakebed.repo.context import RepositoryContext
from lakebed.repo.repositories import Repositories
from lakebed.runtime import Environment
from lakebed.server.access_log import AccessLog
from lakebed.server.audit import AuditLog
from lakebed.server.auth import parse_credential
from lakebed.server.import_runner import ImportRunner
from lakebed.server.keys import AccessKeys, Principal
from lakebed.server.memory import release_unused
from lakebed.server.options import ServerOptions
from lakebed.server.pools import Pools, run_in
from lakebed.server.replies import Receive, Send
from lakebed.server.signing import Signer

__all__ = ["Site"]

_FLUSH_INTERVAL_S: Final = 0.25

_RELEASE_INTERVAL_S: Final = 15.0
"""How often memory that was freed is given back to the system: allocators keep it, in pieces, for each thread."""


@dataclass(slots=True)
class Site:
    """Everything that handlers use.

    Attributes:
        repositories: of the storage that is served.
        instance: a few random letters, in front of every request's id.
        description: makes the OpenAPI description.
        running: requests at this moment.
    """

    repositories: Repositories
    keys: AccessKeys
    audit: AuditLog
    signer: Signer
    pools: Pools
    options: ServerOptions
    environment: Environment
    instance: str
    imports: ImportRunner
    description: Callable[[], dict[str, Any]]
    authority: str
    """Host and port, for clients that do not say how they have found us."""
    access_log: AccessLog | None = None
    running: int = 0
    is_local: bool = field(init=False)
    """Whether records and objects are on this machine: short reads are then made at once, without a thread."""
    signs: bool = field(init=False)
    """Whether the storage's vendor signs URLs."""
    _tasks: tuple[asyncio.Task[None], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        on_disk = parse_url(self.repositories.url).scheme in ("file", "memory")
        self.is_local = on_disk and self.repositories.key_value.is_local
        self.signs = not on_disk

    async def home(self, name: str) -> RepositoryContext:
        """A repository by name. Raises `NotFound`."""
        if self.repositories.key_value.is_local:
            return self.repositories.repository(name).context
        return (await run_in(self.pools.quick, self.repositories.repository, name)).context

    async def principal_of(self, header: bytes | None) -> Principal:
        """Who sends an ``Authorization`` header. Raises `InvalidRequest` (``unauthorized``).

        Cost: of a header that was verified a short while ago 1 us; else as `AccessKeys.verify`, inline where the
        key-value store answers from memory.
        """
        known = None if header is None else self.keys.recall(header)
        if known is not None:
            return known
        access_key, secret = parse_credential(header)
        assert header is not None
        if self.repositories.key_value.is_local:
            return self.keys.verify(header, access_key=access_key, secret=secret)
        return await run_in(self.pools.quick, self.keys.verify, header, access_key=access_key, secret=secret)

    def complain(self, message: str, *, request_id: str = "") -> None:
        """Say on standard error what no reply can say."""
        sys.stderr.write(f"lakebed serve: {message}{f' (request {request_id})' if request_id else ''}\n")

    async def live(self, receive: Receive, send: Send) -> None:
        """The life of the process, as ASGI tells it: begin, wait for its end, end."""
        await receive()
        self._tasks = (asyncio.create_task(self._flush_forever()), asyncio.create_task(self._release_forever()))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in self._tasks:
            task.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    def close(self) -> None:
        """Wait for running calls; write what is buffered; give the repositories up."""
        self.pools.close()
        try:
            self.repositories.close()
        finally:
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
            await run_in(self.pools.heavy, release_unused)
