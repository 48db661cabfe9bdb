"""A fleet of real processes, with defaults, in which each part has another that can take its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from lakebed.fleet.address import LEDGER_VARIABLE, LOG_VARIABLE
from lakebed.fleet.connect import Fleet, connect
from lakebed.fleet.local import FleetSettings, LocalFleet, Part
from lakebed.objects.open import open_store


class TwinFleet(LocalFleet):
    """Two control planes, two processes of the embedded log where there is one, and the nodes: all with defaults."""

    @property
    def control_url(self) -> str:
        """Of both."""
        return ",".join(part.url for part in self.parts if part.name.startswith("control"))

    def start(self) -> None:
        """Start every process, and wait until each answers."""
        asked = self.settings
        asked.folder.mkdir(parents=True)
        log = asked.log
        if log is None:
            log = ",".join(self._add(name, ("log", asked.storage)).url for name in ("log", "log-2"))
        self._variables = {LOG_VARIABLE: log, LEDGER_VARIABLE: asked.ledger or ""}
        for name in ("control", "control-2"):
            self._add(name, ("control", asked.storage))
        nodes = [self._launch_node(f"node-{number}") for number in range(1, asked.node_count + 1)]
        for node in nodes:
            self._await_node(node)

    def names(self) -> list[str]:
        """Of all parts."""
        return [part.name for part in self.parts]

    @contextmanager
    def stopped(self, name: str) -> Iterator[Part]:
        """A part stands still meanwhile."""
        part = self.part(name)
        os.kill(part.pid, signal.SIGSTOP)
        try:
            yield part
        finally:
            os.kill(part.pid, signal.SIGCONT)

    def connect(self) -> Fleet:
        """A new client, which knows both control planes."""
        return connect(open_store(self.settings.storage), control=self.control_url)


def health(url: str) -> str:
    """What a process says it is."""
    return str(urllib3.request("GET", url + "/healthcheck", timeout=30, retries=False).json()["status"])


@contextmanager
def twins(folder: Path, *, ledger: str | None = None, log: str | None = None, nodes: int = 3) -> Iterator[TwinFleet]:
    """A running fleet."""
    settings = FleetSettings(str(folder / "lake"), folder / "local", node_count=nodes, ledger=ledger, log=log)
    with TwinFleet(settings) as fleet:
        yield fleet
