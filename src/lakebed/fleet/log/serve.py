"""The process of the embedded log: it serves while it owns the log, and waits for that while another process does.

Owns: what is opened and served while this process owns it (`lakebed.fleet.tenure`). The port answers all the time;
while another process owns the log, every call is answered 503 (`log_standby`), so clients that know all endpoints find
the owner. Several such processes on one storage are one owner and standbys.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.service import LogCall, LogSite, application
from lakebed.fleet.tenure import Tenure
from lakebed.http.authentication import TokenCaller
from lakebed.http.listening import bind, check_host, url_of
from lakebed.http.memory import save_memory
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer, serve
from lakebed.http.serving import Serving
from lakebed.runtime import Environment

NAME: Final = "lakebed fleet log"
"""In front of messages on standard error."""

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


def _serve_owned(site: LogSite, settings: LogSettings, *, endpoint: str) -> None:
    """Serve the log as soon as this process owns it, and again after it was lost. Raises as `open_embedded`."""
    environment = site.serving.environment

    def open_site(take_over: bool) -> KeyValueLog:
        site.log = open_embedded(
            settings.storage_url,
            shards=settings.shards,
            storage_options=settings.storage_options,
            environment=environment,
            durable=settings.durable,
            take_over=take_over,
            endpoint=endpoint,
        )
        return site.log

    def work(log: KeyValueLog, tenure: Tenure[KeyValueLog]) -> None:
        try:
            tenure.repeat(log.maintain, every_s=_MAINTAIN_S, problem="unused space was not reclaimed")
        finally:
            site.log = None

    report = site.serving.log_problem
    tenure = Tenure("log", open_site, work, report=report, environment=environment, take_over=settings.take_over)
    site.on_fenced = tenure.lose
    site.on_close = tenure.close


def run_log(
    settings: LogSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] | None = None,
) -> int:
    """Serve the embedded log over HTTP until SIGTERM or SIGINT.

    Args:
        host: where to listen; an address that other machines can reach needs `LogSettings.allow_remote`.
        port: 0: a free one.
        started: receives the URL once the process answers, as a standby or as the owner; None: it is printed.

    Returns:
        The exit code: 0.

    Raises:
        InvalidRequest: kind ``remote_host``, ``invalid_address``, ``shard_count``; or the storage cannot be opened as
            it is named.
        Unavailable: kind ``port_in_use``.
    """
    check_host(host, allow_remote=settings.allow_remote, tls=settings.http.tls)
    save_memory()
    with bind(host, port, backlog=settings.http.backlog) as listener:
        endpoint = url_of(host, listener, tls=settings.http.tls)
        site = _site(settings, endpoint, environment=Environment())
        _serve_owned(site, settings, endpoint=endpoint)
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
        endpoint = url_of("127.0.0.1", listener, tls=settings.http.tls)
        site = _site(settings, endpoint, environment=environment)
        _serve_owned(site, settings, endpoint=endpoint)
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
