"""A fleet that serves HTTP from threads of this process, on a lake in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lakebed
from lakebed.fleet.address import write_address
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, start_control
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.serve import LogSettings, start_log
from lakebed.fleet.node.serve import NodeSettings, start_node
from lakebed.fleet.ports import FleetAddress


@contextmanager
def served_fleet(lake: Path, local: Path, *, nodes: int = 2, grace_ms: int = 200) -> Iterator[str]:
    """Serve the tenants of a lake; the URL of the control plane, which is written down in the lake."""
    root = lakebed.open(str(lake)).url
    with ExitStack() as running:
        log = running.enter_context(start_log(LogSettings(storage_url=root))).site.serving.authority
        address = FleetAddress(storage=root, log=f"http://{log}", ledger="kv")
        settings = ControlSettings(
            storage_url=root,
            nodes=lambda record: HttpNode(record.url),
            open_log=lambda: open_log(address.log),
            address=address,
            options=ControlOptions(grace_ms=grace_ms),
        )
        control = f"http://{running.enter_context(start_control(settings)).site.serving.authority}"
        write_address(lakebed.open(str(lake)).store, url=control, log=address.log, ledger="kv", now_ms=0)
        for number in range(1, nodes + 1):
            settings_of_node = NodeSettings(control=control, local=str(local / f"node-{number}"))
            running.enter_context(start_node(settings_of_node))
        yield control
