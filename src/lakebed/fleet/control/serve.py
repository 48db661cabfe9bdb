"""The process of a control plane: it works while it owns the ledger, and otherwise waits for it.

Owns: what a process does while it has the ledger, which is to serve and to tick. `lakebed.fleet.tenure` decides when it
has it. If the ledger is a database, one process owns it and the others are standbys. They take over when its lease has
expired: after 5 s, or at once if it ran on the same machine. On PostgreSQL all processes are active. Every process
always listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from lakebed.fleet.address import folder_number
from lakebed.fleet.control.claim import claim_storage
from lakebed.fleet.control.context import ManagedLog
from lakebed.fleet.control.options import DEFAULT, ControlOptions
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.control.service import ROUTES, ControlCall, ControlSite
from lakebed.fleet.layout import LEDGER_FOLDER
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.ports import FleetAddress, NodePort
from lakebed.fleet.service import RunningService, ServiceSettings, open_serving, run_service, start_service
from lakebed.fleet.tenure import Tenure
from lakebed.http.options import HttpOptions
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.kv import DatabaseOptions
from lakebed.objects.open import open_store
from lakebed.objects.path import parse_url
from lakebed.runtime import Environment

NAME: Final = "lakebed fleet control"
"""Prefix of messages on standard error."""
LEASE_MS: Final = 5_000
"""How long a standby waits for an owner that crashed on another machine."""
LEDGER_OPTIONS: Final = DatabaseOptions(
    # Records have about a kilobyte and are rewritten constantly, so little memory is enough for ten thousand tenants.
    l0_sst_bytes=8 << 20,
    unflushed_bytes_max=32 << 20,
    transaction_history_bytes_max=8 << 20,
    lease_lifetime_ms=LEASE_MS,
)
"""Settings of the embedded ledger's database."""

_MAINTAIN_S: Final = 600.0
"""How often unused space of the ledger is reclaimed."""
_DEFAULT_HTTP: Final = HttpOptions(quick_threads=32, transfer_threads=32, uploads_max=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings(ServiceSettings):
    """Settings of a process of the control plane.

    Attributes:
        storage_url: the fleet's storage.
        ledger: ``postgresql://...``; None: the database in the storage.
        open_log: opens the log, for pruning; None: there is none.
        address: the address for clients and nodes; None: the storage, without a log.
        nodes: returns the port of a node, given its record.
        take_over: end the ownership of another process, once.
    """

    storage_url: str
    nodes: Callable[[NodeRecord], NodePort]
    ledger: str | None = None
    open_log: Callable[[], ManagedLog] | None = None
    address: FleetAddress | None = None
    take_over: bool = False
    options: ControlOptions = DEFAULT
    http: HttpOptions = _DEFAULT_HTTP


class _Work:
    """What a process does with the ledger, in four threads.

    Args:
        endpoint: URL of the site.
        owned: called each time this process gets the ledger.
    """

    def __init__(
        self, site: ControlSite, settings: ControlSettings, *, endpoint: str, owned: Callable[[], None] | None
    ) -> None:
        self._site = site
        self._settings = settings
        self._endpoint = endpoint
        self._owned = owned or _nothing
        self._environment = site.serving.environment
        self._storage = open_store(
            settings.storage_url,
            storage_options=settings.storage_options,
            environment=self._environment,
            durable=settings.durable,
        )
        self._log = None if settings.open_log is None else settings.open_log()

    def open(self, take_over: bool) -> KeyValue:
        """Open the ledger. Raises as `open_key_value`, and `Conflict` (``storage_of_another_ledger``)."""
        key_value = self._open_ledger(take_over)
        try:
            claim_storage(self._storage, Ledger(key_value), environment=self._environment)
        except BaseException:
            key_value.close()
            raise
        return key_value

    def _open_ledger(self, take_over: bool) -> KeyValue:
        settings = self._settings
        if settings.ledger is not None:
            return open_key_value(settings.ledger, environment=self._environment)
        return open_key_value(
            f"{settings.storage_url.rstrip('/')}/{LEDGER_FOLDER}",
            storage_options=settings.storage_options,
            environment=self._environment,
            durable=settings.durable,
            take_over=take_over,
            endpoint=self._endpoint,
            options=LEDGER_OPTIONS,
        )

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def run(self, key_value: KeyValue, tenure: Tenure[KeyValue]) -> None:
        """Serve and tick until the ledger is lost, or the process must end."""
        settings = self._settings
        control = ControlPlane(
            Ledger(key_value),
            storage=self._storage,
            log=self._log,
            nodes=settings.nodes,
            options=replace(settings.options, address=_address(settings)),
            environment=self._environment,
            on_defect=tenure.report_defect,
        )
        tick_s = settings.options.tick_ms / 1000
        rounds: tuple[tuple[str, Callable[[], None], float], ...] = (
            ("detect", control.detect_once, tick_s),
            ("attend", control.attend_once, tick_s),
            ("maintain", key_value.maintain, _MAINTAIN_S),
        )
        joins = []
        try:
            control.scan_once()
            self._site.control = control
            self._owned()
            for name, step, every_s in rounds:
                repeat = partial(tenure.repeat, step, every_s=every_s)
                joins.append(self._environment.runtime.spawn(repeat, name=f"lakebed-control-{name}"))
            tenure.repeat(control.work_once, every_s=tick_s)
        finally:
            self._site.control = None
            for join in joins:
                join()
            control.close()


def _address(settings: ControlSettings) -> FleetAddress:
    """Return where storage and log are, with the values that distinguish the storage from a copy."""
    address = settings.address or FleetAddress(
        str(parse_url(settings.storage_url)), "", "kv" if settings.ledger is None else "postgresql"
    )
    return msgspec.structs.replace(address, folder=folder_number(address.storage))


def _open(
    settings: ControlSettings, owned: Callable[[], None] | None, endpoint: str, environment: Environment
) -> ControlSite:
    """Make a site that serves the control plane as soon as this process has the ledger, and again after it was lost.

    Raises as `open_key_value`, except that it waits for a ledger that another process owns.
    """
    serving = open_serving(NAME, settings, endpoint, environment=environment)
    site = ControlSite(serving, token=settings.token, known=_address(settings) if settings.address else None)
    work = _Work(site, settings, endpoint=endpoint, owned=owned)
    try:
        tenure = Tenure(
            "ledger",
            work.open,
            work.run,
            report=serving.log_problem,
            environment=environment,
            take_over=settings.take_over,
        )
    except BaseException:
        work.close()
        raise

    def close() -> None:
        tenure.close()
        work.close()

    site.on_fenced = tenure.lose
    site.on_close = close
    return site


def _nothing() -> None:
    """Do nothing."""


def run_control(
    settings: ControlSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] | None = None,
    owned: Callable[[], None] | None = None,
) -> int:
    """Serve a control plane over HTTP until SIGTERM or SIGINT, as a standby or with the ledger.

    Arguments and result as `run_service`, and:

    Args:
        owned: called each time this process gets the ledger.

    Raises:
        InvalidRequest, Unavailable: as `run_service`; or storage or ledger cannot be opened as named, or the ledger
            does not answer.
        Conflict: kind ``storage_of_another_ledger``.
    """
    return run_service(partial(_open, settings, owned), ROUTES, settings, host=host, port=port, started=started)


def start_control(settings: ControlSettings, *, port: int = 0) -> RunningService[ControlCall]:
    """Serve in a thread of this process, for tests and notebooks. Raises as `run_control`."""
    return start_service(partial(_open, settings, None), ROUTES, settings, port=port)
