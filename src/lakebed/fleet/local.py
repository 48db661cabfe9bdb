"""A whole fleet as processes of this machine: log, control plane, nodes. `lakebed fleet up` runs it.

Owns: `LocalFleet`, which starts the processes, restarts one that died, and ends them all. Each process is a
``lakebed fleet`` command. Its output goes to a file, and its process id to another file.

Invariants:
- A process is ended by its id and never by its name.
- A restarted part keeps its port, so that the others find it.
- Nodes end first and the log last, because nodes commit when they end.
- If this process is killed, the parts end by themselves (`lakebed.fleet.together`).
- Possible secrets are in the environment of a part and not in its command, which every user of the machine can list:
  URLs of ledger and log, and `FleetSettings.variables`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Self

import msgspec

from lakebed.backoff import Backoff, Pauses
from lakebed.decoding import decode_json
from lakebed.errors import Conflict, InvalidRequest, LakebedError, Unavailable
from lakebed.fleet.address import LEDGER_VARIABLE, LOG_VARIABLE, check_ledger_url
from lakebed.fleet.log.open import check_log_url
from lakebed.fleet.together import FolderLocks
from lakebed.runtime import Environment

READY_S: Final = 60.0
"""How long a process may take until it answers."""

_END_S: Final = 20.0
_PAUSES: Final = Pauses(0.05, 0.05)
_TAIL_LINES: Final = 5
_DECOMMISSIONED: Final = "node_decommissioned"
_NODE_RESTART_S: Final = 10.0
"""Delay before a dead node is started again. Meanwhile other nodes take over its tenants."""
_RESTART_S: Final = 0.5
_RESTART_S_MAX: Final = 30.0
_STEADY_S: Final = 60.0
"""A process that lived this long was started well. After it dies, the delay is that after a first death."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The configuration of a local fleet."""

    storage: str
    """URL or folder."""
    folder: Path
    """Folder of the logs and of the nodes' local states."""
    node_count: int = 3
    ledger: str | None = None
    """``postgresql://...``; None: a database in the storage."""
    log: str | None = None
    """``nats://...`` or ``postgresql://...``; None: an embedded log, as a separate process."""
    port: int = 0
    """Port of the control plane; 0: a free one."""
    options: tuple[str, ...] = ()
    """Further arguments of every process, such as ``--verbose``. They must not be secret."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of every process in addition to this one's, such as ``LAKEBED_STORAGE_OPTIONS``."""


@dataclass(slots=True)
class Part:
    """One process of the fleet, including its restarts."""

    name: str
    words: tuple[str, ...]
    """Arguments of its command, after ``lakebed fleet``."""
    log_file: Path
    variables: Mapping[str, str]
    """Environment variables in addition to this process's."""
    restart_s: float = _RESTART_S
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    start_count: int = 0
    """Number of starts since a process of this part was steady."""
    started_s: float = 0.0
    due_s: float | None = None
    """When it is started again."""
    log_from: int = 0
    """Offset in the log file at which the output of its current process begins."""
    is_over: bool = False
    """Whether it is not started again."""

    @property
    def pid(self) -> int:
        """Id of its process; 0 before the first one."""
        return 0 if self.process is None else self.process.pid


_READY: Final = re.compile(r"^\{\n.*?^\}", re.MULTILINE | re.DOTALL)
"""Pattern of the output of a part that answers: an object over several lines. Its log has objects of one line."""


class _Ready(msgspec.Struct):
    """What a process prints once it answers."""

    url: str


class _Problem(msgspec.Struct):
    """An error, as a process prints it."""

    kind: str
    message: str


class _Failure(msgspec.Struct):
    """The line that a process prints when it ends with an error."""

    error: _Problem


def _say_nothing(text: str) -> None:
    """Ignore a sentence."""


def _check_nothing() -> None:
    """Allow every start."""


@dataclass(slots=True)
class LocalFleet:
    """The processes of a fleet on this machine. Use it in a ``with``, or stop it. Not thread-safe.

    Args:
        say: receives a sentence if the start has to wait for something.
        check: called before a process is started, when no process of this folder runs. Raises if the fleet must not
            start.

    Attributes:
        parts: in the order of their start.
    """

    settings: FleetSettings
    environment: Environment = field(default_factory=Environment)
    say: Callable[[str], None] = _say_nothing
    check: Callable[[], None] = _check_nothing
    parts: list[Part] = field(default_factory=list)
    locks: FolderLocks | None = None
    _variables: dict[str, str] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    """Names of decommissioned nodes."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def control_url(self) -> str:
        """URL of the control plane."""
        return self.part("control").url

    def part(self, name: str) -> Part:
        """Return a part by its name: ``log``, ``control``, ``node-1``. Raises `InvalidRequest`."""
        for part in self.parts:
            if part.name == name:
                return part
        names = ", ".join(part.name for part in self.parts)
        raise InvalidRequest(f"The fleet has no part {name}: it has {names}.", kind="part_not_found", name=name)

    def start(self) -> None:
        """Start every process, and wait until each answers. The nodes start concurrently.

        Raises:
            InvalidRequest: ``unknown_log``, ``unknown_ledger``: nothing was started. Or as `Unavailable` below.
            Conflict: ``fleet_runs``: another process runs a fleet with this folder. Or as `Unavailable` below.
            Unavailable: ``parts_run``: parts of a killed fleet do not end. ``fleet_not_started``: a process ended or
                did not answer. The message has its output, and the class is that of its error.
        """
        asked = self.settings
        check_ledger_url(asked.ledger)
        if asked.log is not None:
            check_log_url(asked.log)
        asked.folder.mkdir(parents=True, exist_ok=True)
        self.locks = FolderLocks(asked.folder, environment=self.environment, say=self.say)
        self.check()
        self._variables = dict(asked.variables)
        log = asked.log
        if log is None:
            log = self._add("log", ("log", asked.storage)).url
        self._variables = {**asked.variables, LOG_VARIABLE: log, LEDGER_VARIABLE: asked.ledger or ""}
        self._add("control", ("control", asked.storage), port=asked.port)
        nodes = [self._launch_node(f"node-{number}") for number in range(1, asked.node_count + 1)]
        for node in nodes:
            self._await_node(node)

    def add_node(self, name: str) -> Part:
        """Start another node."""
        part = self._launch_node(name)
        self._await(part)
        return part

    def _await_node(self, node: Part) -> None:
        """Wait for a node. If it was decommissioned, start one with another name, and wait for that."""
        while True:
            try:
                return self._await(node)
            except Conflict as problem:
                if problem.facts.get("cause") != _DECOMMISSIONED:
                    raise
            _wait(node)
            self._given_up.add(node.name)
            self.parts.remove(node)
            taken_names = {part.name for part in self.parts} | self._given_up
            name = next(f"node-{number}" for number in count(1) if f"node-{number}" not in taken_names)
            self.say(f"{node.name} was decommissioned: {name} is started in its place.")
            node = self._launch_node(name)

    def _launch_node(self, name: str) -> Part:
        words = ("node", "--control", self.control_url, "--local", str(self.settings.folder / name), "--name", name)
        return self._begin(name, words, restart_s=_NODE_RESTART_S)

    def _add(self, name: str, words: Sequence[str], *, port: int = 0) -> Part:
        part = self._begin(name, words, port=port)
        self._await(part)
        return part

    def _begin(self, name: str, words: Sequence[str], *, port: int = 0, restart_s: float = _RESTART_S) -> Part:
        part = Part(name, tuple(words), self.settings.folder / f"{name}.log", self._variables, restart_s)
        self.parts.append(part)
        self._launch(part, port=port)
        return part

    def _launch(self, part: Part, *, port: int) -> None:
        if part.process is not None and part.process.stdin is not None:
            part.process.stdin.close()  # the former process has ended
        words = ("-m", "lakebed.cli", "fleet", *part.words, "--port", str(port), "--json", "--end-with-input")
        with part.log_file.open("ab") as output:
            part.log_from = output.tell()
            # A separate process group: CTRL-C at the terminal reaches only this process, which ends the others in
            # order.
            part.process = subprocess.Popen(
                [sys.executable, *words, *self.settings.options],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **part.variables},
                pass_fds=() if self.locks is None else (self.locks.parts,),
            )
        part.log_file.with_suffix(".pid").write_text(f"{part.pid}\n")
        part.start_count += 1
        part.started_s = self.environment.clock.monotonic_s()
        part.due_s = None

    def _await(self, part: Part) -> None:
        for _ in Backoff(self.environment, _PAUSES, retry_s=READY_S):
            if self._is_ready(part):
                return
            if part.process is not None and part.process.poll() is not None:
                raise self._not_started(part, f"ended with {part.process.returncode}")
        raise self._not_started(part, f"did not answer within {READY_S:g} s")

    def _is_ready(self, part: Part) -> bool:
        """Whether the part's process has printed its URL, which is then stored in the part."""
        match = _READY.search(self._read_output(part))
        if match is None:
            return False
        try:
            part.url = decode_json(match[0], _Ready).url
        except msgspec.DecodeError:
            return False
        return True

    def _read_output(self, part: Part) -> str:
        with part.log_file.open("rb") as output:
            output.seek(part.log_from)
            return output.read().decode(errors="replace")

    def _lines(self, part: Part) -> list[str]:
        return [line for line in self._read_output(part).splitlines() if line.strip()]

    def _problem_of(self, part: Part) -> _Problem | None:
        """Return the error with which a part's process ended; None if it printed none."""
        try:
            return decode_json("".join(self._lines(part)[-1:]), _Failure).error
        except msgspec.DecodeError:
            return None

    def _not_started(self, part: Part, what: str) -> LakebedError:
        """Return the error of a part that did not start: the error that it printed, or the end of its output."""
        problem = self._problem_of(part)
        if problem is None:
            printed = " ".join(self._lines(part)[-_TAIL_LINES:]) or "nothing"
            return Unavailable(
                f"Cannot start the fleet: {part.name} {what}. It printed: {printed} (all of it: {part.log_file})",
                kind="fleet_not_started",
                part=part.name,
            )
        code = None if part.process is None else part.process.poll()
        error_class: type[LakebedError] = {2: InvalidRequest, 4: Conflict}.get(code or 0, Unavailable)
        return error_class(
            f"Cannot start the fleet: {part.name} {what}. {problem.message} (All that it printed: {part.log_file})",
            kind="fleet_not_started",
            part=part.name,
            cause=problem.kind,
        )

    def watch_once(self) -> Iterator[str]:
        """Restart dead processes. Yield a sentence for each event. Call this repeatedly."""
        now_s = self.environment.clock.monotonic_s()
        for part in self.parts:
            if part.process is None or part.is_over:
                continue
            code = part.process.poll()
            if code is not None and part.due_s is None:
                problem = self._problem_of(part)
                if problem is not None and problem.kind == _DECOMMISSIONED:
                    part.is_over = True
                    yield f"{part.name} was decommissioned, and is not started again."
                    continue
                if now_s - part.started_s >= _STEADY_S:
                    part.start_count = 1
                wait_s = min(part.restart_s * max(1, part.start_count), _RESTART_S_MAX)
                part.due_s = now_s + wait_s
                yield f"{part.name} (process {part.pid}) {_exit_text(code)}; it is started again in {wait_s:g} s."
            elif code is not None and part.due_s is not None and now_s >= part.due_s:
                self._launch(part, port=_port_of(part.url))
                yield f"{part.name} is process {part.pid} now, on the same port."

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to the process of a part. Return its id."""
        part = self.part(name)
        os.kill(part.pid, number)
        return part.pid

    def stop(self) -> None:
        """End every process: nodes first, the log last. Stopping twice is a no-op."""
        nodes = [other for other in self.parts if other.name.startswith("node")]
        groups = (nodes, *([other] for other in reversed(self.parts) if other not in nodes))
        for group in groups:
            for part in group:
                if part.process is not None and part.process.poll() is None:
                    part.process.send_signal(signal.SIGCONT)  # a stopped process would not receive the next signal
                    part.process.terminate()
            for part in group:
                _wait(part)
        if self.locks is not None:
            self.locks.close()
            self.locks = None


def _wait(part: Part) -> None:
    if part.process is None:
        return
    try:
        part.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        part.process.kill()
        part.process.wait()
    if part.process.stdin is not None:
        part.process.stdin.close()


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _port_of(url: str) -> int:
    tail = url.rstrip("/").rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0
