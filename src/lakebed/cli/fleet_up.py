"""The command that runs a whole fleet on this machine: up."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Final

from lakebed.cli import exits, output
from lakebed.cli.fleet_context import StorageCommand
from lakebed.cli.grammar import option
from lakebed.fleet.local import FleetSettings, LocalFleet

_WATCH_S: Final = 0.2


class Up(StorageCommand, name="up"):
    """Run a fleet on this machine until interrupted: log, control plane and nodes, each a process of its own.

    A process that dies is started again; the tenants of a node are served by another one before. What the processes
    print is in files NAME.log of the folder --local, and their process ids are in NAME.pid.
    """

    nodes: Annotated[int, option("--nodes", min=1, max=64, help="How many nodes.")] = 3
    ledger: Annotated[
        str | None, option("--ledger", metavar="URL", help="postgresql://...; default: a database in the storage.")
    ] = None
    log: Annotated[
        str | None,
        option("--log", metavar="URL", help="nats://a,b,c or postgresql://...; default: an embedded log, a process."),
    ] = None
    port: Annotated[int, option("--port", min=0, max=65535, help="Of the control plane. 0: any free port.")] = 0
    local: Annotated[Path, option("--local", metavar="FOLDER", help="Of the nodes' local state, and of log files.")] = (
        Path("lakebed-fleet")
    )

    def run(self) -> None:
        options = tuple(word for pair in self.storage_option or () for word in ("--storage-option", pair))
        settings = FleetSettings(
            storage=self.url,
            folder=self.local,
            node_count=self.nodes,
            ledger=self.ledger,
            log=self.log,
            port=self.port,
            options=options,
        )
        ended = False

        def end(number: int, frame: object) -> None:
            nonlocal ended
            if ended:
                raise KeyboardInterrupt
            ended = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with LocalFleet(settings) as fleet:
                self._show(fleet)
                while not ended:
                    for line in fleet.watch_once():
                        output.sentence(line)
                    output.flush()
                    fleet.environment.clock.sleep(_WATCH_S)
                if not self.json:
                    output.sentence("Ending: the nodes commit what they have.")
                    output.flush()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        raise exits.Exit(exits.OK)

    def _show(self, fleet: LocalFleet) -> None:
        if self.json:
            output.document(
                {
                    "url": fleet.control_url,
                    "storage": self.url,
                    "parts": [
                        {"name": one.name, "pid": one.pid, "url": one.url, "log_file": str(one.log_file)}
                        for one in fleet.parts
                    ],
                }
            )
        else:
            output.grid(
                ("part", "process", "url", "prints to"),
                [(one.name, str(one.pid), one.url, str(one.log_file)) for one in fleet.parts],
                right=("process",),
                empty="",
            )
            output.sentence(f"\nThe fleet of {self.url} is up. In another terminal: lakebed fleet status {self.url}")
        output.flush()
