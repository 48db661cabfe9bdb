"""Real `nats-server` processes on loopback ports, clustered, with JetStream on disk.

Owns: their configuration (``sync_interval: always``: what is acknowledged is on disk), and what tests do to them: kill,
stop, continue, wipe, start again. Does not know: streams.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from worlds.ports import free_port
from worlds.waiting import wait_until

DROPPED_SOCKETS: Final = [
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <function StreamWriter:pytest.PytestUnraisableExceptionWarning"
    ),
]
"""Marks of a module in which servers end or hang: nats-py drops their sockets without closing them."""


def nats_program() -> str | None:
    """The program `nats-server`: next to this Python, or on the PATH."""
    mine = Path(sys.executable).parent / "nats-server"
    return str(mine) if mine.exists() else shutil.which("nats-server")


class NatsCluster:
    """A cluster of servers. Use it in a ``with``.

    Args:
        folder: for their data, configuration and logs.
        count: servers; 1 is a server without a cluster.
        max_payload: bytes of the largest message.
    """

    def __init__(self, folder: Path, *, count: int = 3, max_payload: int = 16 << 20) -> None:
        self._folder = folder
        self._count = count
        self._ports = [free_port() for _ in range(2 * count)]
        self._max_payload = max_payload
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            self._configure(number)

    @property
    def url(self) -> str:
        """Of all servers."""
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in self._ports[: self._count])

    def _configure(self, number: int) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._ports[self._count :])
        cluster = (
            f"cluster {{ name: tests, listen: 127.0.0.1:{self._ports[self._count + number]}, routes: [{routes}] }}"
        )
        (self._folder / f"n{number}.conf").write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{self._ports[number]}\nmax_payload: {self._max_payload}\n"
            f'jetstream {{ store_dir: "{self._folder / f"n{number}"}", sync_interval: always, max_mem: 64MB, '
            f"max_file: 4GB }}\n" + (cluster if self._count > 1 else "") + "\n"
        )

    def start(self, number: int) -> None:
        """Start a server, or start it again."""
        program = nats_program()
        assert program is not None
        with (self._folder / f"n{number}.log").open("ab") as output:
            self.processes[number] = subprocess.Popen(
                [program, "-c", str(self._folder / f"n{number}.conf")], stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self, numbers: Sequence[int] | None = None) -> None:
        """Return when servers let clients in."""
        for number in range(self._count) if numbers is None else numbers:
            wait_until(lambda port=self._ports[number]: _answers(port))  # type: ignore[misc]

    def wait_for_jetstream(self) -> None:
        """Return when the cluster can make streams."""
        log = self._folder / "n0.log"
        if self._count > 1:  # the leader of the metadata is known to all
            wait_until(lambda: any("new metadata leader" in path.read_text() for path in self._folder.glob("n*.log")))
        assert log.exists()

    def number_of(self, name: str) -> int:
        """Of the server with a name."""
        return int(name.removeprefix("n"))

    def kill(self, number: int) -> None:
        """End a server at once."""
        self._send(number, signal.SIGKILL)
        process = self.processes[number]
        assert process is not None
        process.wait()
        self.processes[number] = None

    def stop(self, number: int) -> None:
        """Let a server stand still. On a busy machine its threads go on for a while after the signal."""
        self._send(number, signal.SIGSTOP)
        process = self.processes[number]
        assert process is not None
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self, number: int) -> None:
        """Let a server that stands still go on."""
        self._send(number, signal.SIGCONT)

    def wipe(self, number: int) -> None:
        """Delete the data of a server that was killed."""
        shutil.rmtree(self._folder / f"n{number}")

    def _send(self, number: int, what: signal.Signals) -> None:
        process = self.processes[number]
        assert process is not None
        process.send_signal(what)

    def __enter__(self) -> NatsCluster:
        for number in range(self._count):
            self.start(number)
        self.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, process in enumerate(self.processes):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                self.kill(number)
        gc.collect()  # so that dropped sockets are found here, and not in a test of another module


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"INFO"
    except OSError:
        return False
