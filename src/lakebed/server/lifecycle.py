"""One serving process: from settings to a site that answers, and back to nothing.

Owns: opening a site, the event loop with its signals, and the order of the end. On SIGTERM or SIGINT the process
takes no new connection, lets running requests end for `ServerOptions.shutdown_s`, writes its logs, gives the lease up,
and ends with 0; a second SIGINT does not wait for requests.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import uvicorn
from typing_extensions import override

from lakebed.repo.opening import open_repositories
from lakebed.repo.repositories import Repositories
from lakebed.runtime import Environment
from lakebed.server.access_log import open_access_log
from lakebed.server.app import build, description
from lakebed.server.audit import AuditLog
from lakebed.server.import_runner import ImportRunner
from lakebed.server.keys import AccessKeys, NewAccessKey
from lakebed.server.memory import lean_pool
from lakebed.server.pools import Pools
from lakebed.server.protocol import bounded_http
from lakebed.server.settings import ServerSettings, Started
from lakebed.server.signing import Signer
from lakebed.server.site import Site

__all__ = ["Running", "first_key", "open_records", "serve_one", "told_of"]

_CLOSE_S = 30.0


def open_records(settings: ServerSettings, *, environment: Environment) -> Repositories:
    """The repositories that are served. Raises as `lakebed.repo.open_all`."""
    return open_repositories(
        settings.storage_url,
        metadata=settings.metadata,
        options=settings.repository_options,
        storage_options=settings.storage_options,
        environment=environment,
        take_over=settings.take_over,
        durable=settings.durable,
        endpoint=settings.endpoint,
        import_from=settings.import_from,
    )


def first_key(repositories: Repositories, settings: ServerSettings) -> NewAccessKey | None:
    """The first access key, when there is none yet; else None."""
    keys = AccessKeys(repositories.key_value, environment=repositories.environment, options=settings.options)
    return keys.create_first()


def open_site(settings: ServerSettings, repositories: Repositories) -> Site:
    """A site over open repositories, which it closes with itself; imports that were broken off are taken up."""
    environment = repositories.environment
    access_log = open_access_log(settings.access_log)
    imports = ImportRunner(environment=environment, storage_options=settings.storage_options, complain=_complain)
    if settings.resume_imports:
        imports.resume(repository.context for repository in repositories.list())
    return Site(
        repositories=repositories,
        keys=AccessKeys(repositories.key_value, environment=environment, options=settings.options),
        audit=AuditLog(repositories.key_value, environment=environment, lines_max=settings.options.audit_lines_max),
        signer=Signer(settings.signing_key, clock=environment.clock),
        pools=Pools.open(settings.options),
        options=settings.options,
        environment=environment,
        instance=f"{environment.rng.getrandbits(32):08x}",
        imports=imports,
        description=description,
        authority=settings.endpoint.partition("://")[2],
        access_log=access_log,
    )


def _complain(message: str) -> None:
    sys.stderr.write(f"lakebed serve: {message}\n")


class _Server(uvicorn.Server):
    """The server of HTTP, whose signals end it with 0, and which says when it answers."""

    def __init__(self, config: uvicorn.Config, *, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _server(site: Site, settings: ServerSettings, *, ready: Callable[[], None]) -> _Server:
    config = uvicorn.Config(
        build(site),
        http=bounded_http(settings.options),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=settings.options.backlog,
        timeout_keep_alive=settings.options.idle_s,
        timeout_graceful_shutdown=int(settings.options.shutdown_s),
    )
    return _Server(config, ready=ready)


def serve_one(
    settings: ServerSettings, listener: socket.socket, *, started: Callable[[Started], None], first_setup: bool = True
) -> int:
    """Serve in this process until a signal ends it; the exit code.

    Args:
        listener: bound; closed at the end.
        started: is called once the server answers.
        first_setup: make the first access key when there is none.

    Raises:
        Conflict: kind ``owned``; and otherwise as `lakebed.repo.open_all`.
    """
    pa.set_memory_pool(lean_pool())
    environment = Environment()
    repositories = open_records(settings, environment=environment)
    try:
        made = first_key(repositories, settings) if first_setup else None
        site = open_site(settings, repositories)
    except BaseException:
        repositories.close()
        raise
    told = told_of(settings, made)
    del made
    server = _server(site, settings, ready=lambda: started(told))
    try:
        server.run(sockets=[listener])
    finally:
        site.close()
    return 0


def told_of(settings: ServerSettings, made: NewAccessKey | None) -> Started:
    """What to say once the server answers."""
    if made is None:
        return Started(settings.endpoint, settings.storage_url)
    return Started(settings.endpoint, settings.storage_url, made.key.id, made.secret)


class Running:
    """A server in a thread of this process, for tests and for notebooks. Stop it, or use it in a ``with``.

    Args:
        listener: bound; closed at the end.

    Attributes:
        started: where it answers, and the first access key of a first start.
        site: what it serves.
    """

    def __init__(
        self, settings: ServerSettings, listener: socket.socket, *, environment: Environment | None = None
    ) -> None:
        repositories = open_records(settings, environment=environment or Environment())
        self.started = told_of(settings, first_key(repositories, settings))
        self.site = open_site(settings, repositories)
        answers = threading.Event()
        self._server = _server(self.site, settings, ready=answers.set)
        self._thread = threading.Thread(target=self._run, args=(listener, answers), name="lakebed-server", daemon=True)
        self._failure: BaseException | None = None
        self._thread.start()
        answers.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, listener: socket.socket, answers: Any) -> None:
        try:
            self._server.run(sockets=[listener])
        except BaseException as error:
            self._failure = error
        finally:
            answers.set()

    def stop(self) -> None:
        """Let running requests end, and close everything."""
        if self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join()
            self.site.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
