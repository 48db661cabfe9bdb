"""The process of the embedded log: it serves while it owns the log, and otherwise waits for the ownership.

Owns: what is opened and served while this process owns the log (`lakebed.fleet.tenure`). The process always listens.
While another process owns the log, every call gets the status 503 (`log_standby`), so clients that know all endpoints
find the owner. Several such processes on one storage are one owner and standbys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from lakebed.fleet.log.embedded import open_embedded
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.service import ROUTES, LogCall, LogSite
from lakebed.fleet.service import RunningService, ServiceSettings, open_serving, run_service, start_service
from lakebed.fleet.tenure import Tenure
from lakebed.http.options import HttpOptions
from lakebed.runtime import Environment

NAME: Final = "lakebed fleet log"
"""Prefix of messages on standard error."""

_MAINTAIN_S: Final = 600.0
"""How often unused space of the databases is reclaimed."""
_DEFAULT_HTTP: Final = HttpOptions(quick_threads=48)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(ServiceSettings):
    """Settings of a process of the log.

    Attributes:
        storage_url: the fleet's storage.
        shards: number of shards of a log that is created. For an existing log None, or its number.
        take_over: end the ownership of another process, once.
    """

    storage_url: str
    shards: int | None = None
    take_over: bool = False
    http: HttpOptions = _DEFAULT_HTTP


def _open(settings: LogSettings, endpoint: str, environment: Environment) -> LogSite:
    """Make a site that serves the log as soon as this process owns it, and again after it lost the log.

    Raises as `open_embedded`, except that it waits for a log that another process owns.
    """
    site = LogSite(open_serving(NAME, settings, endpoint, environment=environment), token=settings.token)

    def open_log(take_over: bool) -> KeyValueLog:
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
    tenure = Tenure("log", open_log, work, report=report, environment=environment, take_over=settings.take_over)
    site.on_fenced = tenure.lose
    site.on_close = tenure.close
    return site


def run_log(
    settings: LogSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] | None = None,
) -> int:
    """Serve the embedded log over HTTP until SIGTERM or SIGINT, as the owner or as a standby.

    Arguments, result and errors as `run_service`. Also raises an error of kind ``shard_count``, and an error if the
    storage cannot be opened as named.
    """
    return run_service(partial(_open, settings), ROUTES, settings, host=host, port=port, started=started)


def start_log(settings: LogSettings) -> RunningService[LogCall]:
    """Serve in a thread of this process, for tests and notebooks. Raises as `run_log`."""
    return start_service(partial(_open, settings), ROUTES, settings)
