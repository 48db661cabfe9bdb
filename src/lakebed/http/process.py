"""One serving process: the event loop with its signals, and the order of shutdown.

On SIGTERM or SIGINT the process accepts no new connection, waits for running requests up to `HttpOptions.shutdown_s`,
closes the site, and ends with 0. After a second SIGINT it does not wait for requests. When another process has taken
over what it serves (`Serving.lost`), it ends in the same way, with that error: clients and supervisors then look for
the owner.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Self, TypeVar

import uvicorn
from typing_extensions import override

from lakebed.errors import LakebedError
from lakebed.http.call import Call
from lakebed.http.gate import Gate
from lakebed.http.protocol import BoundedHttp
from lakebed.http.serving import Serving
from lakebed.http.site import Principal, Site
from lakebed.http.tls import ServerCertificate

P = TypeVar("P", bound=Principal)
C = TypeVar("C", bound=Call)

_TICKS_A_LOOK: Final = 20
"""Ticks of 0.1 s between two checks of the certificate's files, and of whether this process still owns its site."""


class _Server(uvicorn.Server):
    """Uvicorn's server, but signals end it with exit code 0, and it reports when it is ready."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        ready: Callable[[], None],
        certificate: ServerCertificate | None,
        lost: Callable[[], LakebedError | None],
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._certificate = certificate
        self._lost = lost

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @override
    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_LOOK == 0:
            if self._certificate is not None:
                self._certificate.refresh()
            if self._lost() is not None:
                return True
        return await super().on_tick(counter)

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


def _server(application: Gate[P, C], serving: Serving, *, ready: Callable[[], None]) -> _Server:
    options = serving.options
    certificate = None if options.tls is None else ServerCertificate(options.tls)
    config = uvicorn.Config(
        application,
        http=type("BoundedHttp", (BoundedHttp,), {"options": options, "arrivals": serving.arrivals}),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=options.backlog,
        timeout_keep_alive=options.idle_s,
        timeout_graceful_shutdown=int(options.shutdown_s),
        ssl_context_factory=None if certificate is None else lambda config, default: certificate.context,
    )
    return _Server(config, ready=ready, certificate=certificate, lost=serving.lost)


def serve(application: Gate[P, C], site: Site[P, C], listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve in this thread until a signal, then close the site.

    Args:
        listener: bound; closed at the end.

    Raises the error that `Serving.lost` returns.
    """
    try:
        _server(application, site.serving, ready=ready).run(sockets=[listener])
        reason = site.serving.lost()
    finally:
        site.close()
    if reason is not None:
        raise reason


class RunningServer(Generic[P, C]):
    """A server in a thread of this process, for tests and notebooks. Stop it, or use it in a ``with``.

    Args:
        listener: bound; closed at the end.
    """

    def __init__(self, application: Gate[P, C], site: Site[P, C], listener: socket.socket) -> None:
        self.site = site
        answers = threading.Event()
        self._server = _server(application, site.serving, ready=answers.set)
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, args=(listener, answers), name="lakebed-server", daemon=True)
        self._thread.start()
        answers.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, listener: socket.socket, answers: threading.Event) -> None:
        try:
            self._server.run(sockets=[listener])
        except BaseException as error:
            self._failure = error
        finally:
            answers.set()

    def stop(self) -> None:
        """Wait for running requests, and close the site."""
        if not self._is_stopped:
            self._is_stopped = True
            self._server.should_exit = True
            self._thread.join()
            self.site.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
