"""The command that runs a whole fleet on this machine: up."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

import lakebed
from lakebed.cli import exits, output
from lakebed.cli.fleet_context import StorageCommand
from lakebed.cli.grammar import OPTIONS_VARIABLE, option
from lakebed.errors import Conflict, LakebedError, Unavailable
from lakebed.fleet.address import LEDGER_VARIABLE, LOG_VARIABLE, check_ledger_url, read_address
from lakebed.fleet.connect import TOKEN_VARIABLE
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.local import FleetSettings, LocalFleet
from lakebed.fleet.log.open import check_log_url
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_WATCH_S: Final = 0.2
_KILLED_S: Final = 2.0
"""How long the control plane of a killed fleet may still answer."""
_ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the fleet. SIGHUP is sent when the terminal is closed."""


class Up(StorageCommand, name="up"):
    """Run a fleet on this machine until interrupted: log, control plane and nodes, each a process of its own.

    A process that dies is started again; the tenants of a node are served by another one before. What the processes
    print is in files NAME.log of the folder --local, and their process ids are in NAME.pid. When this process is
    killed, the others end too.
    """

    nodes: Annotated[int, option("--nodes", min=1, max=64, help="How many nodes.")] = 3
    ledger: Annotated[
        str | None,
        option(
            "--ledger",
            metavar="URL",
            help="postgresql://... Default: LAKEBED_FLEET_LEDGER, or a database in the storage.",
        ),
    ] = None
    log: Annotated[
        str | None,
        option(
            "--log",
            metavar="URL",
            help="nats://a,b,c or postgresql://... Default: LAKEBED_FLEET_LOG, or an embedded log, a process.",
        ),
    ] = None
    port: Annotated[int, option("--port", min=0, max=65535, help="Of the control plane. 0: any free port.")] = 0
    local: Annotated[
        Path, option("--local", metavar="FOLDER", help="Folder of the nodes' local state and of log files.")
    ] = Path("lakebed-fleet")

    def run(self) -> None:
        settings = FleetSettings(
            storage=self.url,
            folder=self.local,
            node_count=self.nodes,
            ledger=check_ledger_url(self.ledger or os.environ.get(LEDGER_VARIABLE) or None),
            log=self.log or os.environ.get(LOG_VARIABLE) or None,
            port=self.port,
            variables={OPTIONS_VARIABLE: msgspec.json.encode(self.storage_options or {}).decode()},
        )
        if settings.log is not None:
            check_log_url(settings.log)
        lake = lakebed.open(self.url, storage_options=self.storage_options)
        with _interrupt_on_signals():
            try:
                self._say(f"Starting a log, a control plane and {output.count(self.nodes, 'node')} ...")
                with LocalFleet(settings, say=self._say, check=partial(self._check_alone, lake.store)) as fleet:
                    self._watch(fleet)
            except Unavailable as problem:
                if problem.facts.get("cause") != "control_standby":
                    raise
                raise self._other_runs() from problem
            except KeyboardInterrupt:
                self._say("The fleet has ended.")
        raise exits.Exit(exits.OK)

    def _check_alone(self, store: ObjectStore) -> None:
        """Raise `Conflict` if another control plane answers that has the ledger in the storage.

        The control plane of a fleet that was just killed may answer for a moment.
        """
        address = read_address(store)
        if address is None or address.ledger != "kv":
            return
        environment = Environment()
        ends_s = environment.clock.monotonic_s() + _KILLED_S
        token = os.environ.get(TOKEN_VARIABLE) or None
        with closing(HttpControl(address.url, token=token, environment=environment, retry_s=0)) as other_control:
            while environment.clock.monotonic_s() < ends_s:
                try:
                    answer = other_control.address()
                except LakebedError:
                    return
                if answer.storage != str(parse_url(self.url)):
                    return
                environment.clock.sleep(_WATCH_S)
        raise self._other_runs()

    def _other_runs(self) -> Conflict:
        return Conflict(
            f"Cannot start a fleet over {self.url}: another one serves it, lakebed fleet status {self.url} shows it. "
            "End that one first, or use it.",
            kind="fleet_runs",
        )

    def _watch(self, fleet: LocalFleet) -> None:
        """Watch the parts until a signal comes."""
        self._show(fleet)
        try:
            while True:
                for line in fleet.watch_once():
                    self._say(line)
                fleet.environment.clock.sleep(_WATCH_S)
        except KeyboardInterrupt:
            self._say("Ending: the nodes commit what they have.")
            raise

    def _say(self, text: str) -> None:
        """Print what happens, on standard error if standard output is one document."""
        if self.json:
            output.say(text)
        else:
            output.sentence(text)
            output.flush()

    def _show(self, fleet: LocalFleet) -> None:
        if self.json:
            output.document(
                {
                    "url": fleet.control_url,
                    "storage": self.url,
                    "parts": [
                        {"name": part.name, "pid": part.pid, "url": part.url, "log_file": str(part.log_file)}
                        for part in fleet.parts
                    ],
                }
            )
        else:
            output.grid(
                ("part", "process", "url", "prints to"),
                [(part.name, str(part.pid), part.url, str(part.log_file)) for part in fleet.parts],
                right=("process",),
                empty="",
            )
            output.sentence(f"\nThe fleet of {self.url} is up. In another terminal:")
            output.lines([f"lakebed fleet status {shlex.quote(self.url)}"])
        output.flush()


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Turn each signal into an interruption. A second signal does not wait for the parts, which then end by themselves.

    SIGHUP stays ignored if this process was started so, as `nohup` does. A shell that starts a process in the
    background makes it ignore SIGINT too, but SIGINT still ends the fleet then.
    """

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal sends it several times
        raise KeyboardInterrupt

    before = {signal_number: signal.getsignal(signal_number) for signal_number in _ENDS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for signal_number in before:
        signal.signal(signal_number, end)
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
