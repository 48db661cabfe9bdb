"""The process of the embedded log: it serves while it owns the log, and waits for that while another process does.

Owns: the ownership's life: open, serve, lose, open again. The port answers all the time; while another process owns the
log, every call is answered 503 (`log_standby`), so clients that know all endpoints find the owner. Several such
processes on one storage are one owner and standbys.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakebed.errors import Conflict, LakebedError
from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.service import LogCall, LogSite, application
from lakebed.http.authentication import TokenCaller
from lakebed.http.listening import bind, check_host, url_of
from lakebed.http.memory import lean_pool
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer, serve
from lakebed.http.serving import Serving
from lakebed.runtime import Environment

NAME: Final = "lakebed fleet log"
"""In front of messages on standard error."""

_LOOK_S: Final = 0.25
"""How often a standby looks whether the owner is gone."""
_MAINTAIN_S: Final = 600.0
"""How often unused space of the databases is reclaimed."""
_DEFAULT_HTTP: Final = HttpOptions(quick_threads=48)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What a process of the log serves.

    Attributes:
        storage_url: the fleet's storage.
        shards: of a log that is created; of one that is there None, or what it has.
        token: what callers send; None: they need none.
        take_over: end the ownership of another process, once.
    """

    storage_url: str
    shards: int | None = None
    token: str | None = None
    storage_options: Mapping[str, str] | None = None
    durable: bool = True
    take_over: bool = False
    access_log: str | None = None
    allow_remote: bool = False
    http: HttpOptions = _DEFAULT_HTTP


class Ownership:
    """Opens the log for a site as soon as it can, and again after it was lost: in a thread of its own.

    Args:
        endpoint: where the site answers.
        owned: called each time this process becomes the owner.

    Raises as `open_embedded`, but not for a log that another process owns. Cost: as `open_embedded`.
    """

    def __init__(
        self, site: LogSite, settings: LogSettings, *, endpoint: str, owned: Callable[[], None] | None = None
    ) -> None:
        self._site = site
        self._settings = settings
        self._endpoint = endpoint
        self._owned = owned or _nothing
        self._problem = ""
        self._environment = site.serving.environment
        self._changed = self._environment.runtime.condition()
        self._is_lost = False
        self._is_over = False
        try:
            self._found(self._opened(take_over=settings.take_over))
        except Conflict as error:
            if error.kind != "owned":
                raise
        site.on_fenced = self._lose
        site.on_close = self.close
        self._join = self._environment.runtime.spawn(self._run, name="lakebed-log-owner")

    def close(self) -> None:
        """Close the log, and open it no more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._join()

    def _lose(self) -> None:
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            log = self._site.log
            if log is not None:
                try:
                    self._keep(log)
                finally:
                    self._site.log = None
                    log.close()
            with self._changed:
                if not self._is_over:
                    self._changed.wait(_LOOK_S)
                if self._is_over:
                    return
            try:
                self._found(self._opened(take_over=False))
            except LakebedError as error:
                self._report(error)

    def _found(self, log: KeyValueLog) -> None:
        self._is_lost = False
        self._site.log = log
        self._owned()

    def _report(self, error: LakebedError) -> None:
        """Say once why the log cannot be opened; that another process owns it is no problem."""
        problem = "" if error.kind == "owned" else error.message
        if problem and problem != self._problem:
            self._site.serving.log_problem(f"the log cannot be opened: {problem}")
        self._problem = problem

    def _opened(self, *, take_over: bool) -> KeyValueLog:
        settings = self._settings
        return open_embedded(
            settings.storage_url,
            shards=settings.shards,
            storage_options=settings.storage_options,
            environment=self._environment,
            durable=settings.durable,
            take_over=take_over,
            endpoint=self._endpoint,
        )

    def _keep(self, log: KeyValueLog) -> None:
        """Return when the log is lost, or is to be closed."""
        while True:
            with self._changed:
                if not (self._is_lost or self._is_over):
                    self._changed.wait(_MAINTAIN_S)
                if self._is_lost or self._is_over:
                    break
            try:
                log.maintain()
            except LakebedError as error:
                self._site.serving.log_problem(f"unused space was not reclaimed: {error}")
        if not self._is_over:
            self._site.serving.log_problem("another process has taken over the log; this one is a standby now.")


def _nothing() -> None:
    """Do nothing."""


def run_log(
    settings: LogSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] | None = None,
    owned: Callable[[], None] | None = None,
) -> int:
    """Serve the embedded log over HTTP until SIGTERM or SIGINT.

    Args:
        host: where to listen; an address that other machines can reach needs `LogSettings.allow_remote`.
        port: 0: a free one.
        started: receives the URL once the process answers, as a standby or as the owner; None: it is printed.
        owned: called each time this process becomes the owner.

    Returns:
        The exit code: 0.

    Raises:
        InvalidRequest: kind ``remote_host``, ``invalid_address``, ``shard_count``; or the storage cannot be opened as
            it is named.
        Unavailable: kind ``port_in_use``.
    """
    check_host(host, allow_remote=settings.allow_remote)
    pa.set_memory_pool(lean_pool())
    with bind(host, port, backlog=settings.http.backlog) as listener:
        endpoint = url_of(host, listener)
        site = _site(settings, endpoint, environment=Environment())
        Ownership(site, settings, endpoint=endpoint, owned=owned)
        serve(application(site), site, listener, ready=lambda: (started or _print)(endpoint))
    return 0


class RunningLog(RunningServer[TokenCaller, LogCall]):
    """The log, served by a thread of this process.

    Attributes:
        endpoint: its URL.
    """

    def __init__(self, site: LogSite, listener: socket.socket, *, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(application(site), site, listener)


def start_log(settings: LogSettings, *, port: int = 0, environment: Environment | None = None) -> RunningLog:
    """Serve in a thread of this process, for tests and notebooks. Raises as `run_log`."""
    environment = environment or Environment()
    listener = bind("127.0.0.1", port, backlog=settings.http.backlog)
    try:
        endpoint = url_of("127.0.0.1", listener)
        site = _site(settings, endpoint, environment=environment)
        Ownership(site, settings, endpoint=endpoint)
        return RunningLog(site, listener, endpoint=endpoint)
    except BaseException:
        listener.close()
        raise


def _site(settings: LogSettings, endpoint: str, *, environment: Environment) -> LogSite:
    serving = Serving.open(
        NAME,
        options=settings.http,
        environment=environment,
        authority=endpoint.partition("://")[2],
        access_log=settings.access_log,
    )
    return LogSite(serving, token=settings.token)


def _print(endpoint: str) -> None:
    sys.stdout.write(f"The log answers at {endpoint}.{os.linesep}")
    sys.stdout.flush()
