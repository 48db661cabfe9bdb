"""What the workloads of fleets share: their results, processes, sizes, and the requests that each process counts.

Owns: `say`, which writes one result as a line of JSON for `bench/fleet.py`; `process`, a part of a fleet as a child of
this process. Does not know: workloads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import urllib3

from harness import Result

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

CONTEXT = multiprocessing.get_context("spawn")
_COUNTED = re.compile(r'^lakebed_store_requests_total\{[^}]*kind="(\w+)"[^}]*\} (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    folder: Path
    """Empty, and on the disk that is measured."""
    scale: float
    """1: what the design names."""
    samples: int

    @property
    def seconds(self) -> float:
        """Of one sample of a closed loop."""
        return max(0.3, 2.0 * min(1.0, self.scale))

    def count(self, at_scale_one: int, *, least: int = 1) -> int:
        """So many at this scale."""
        return max(least, int(at_scale_one * self.scale))


def say(
    workload: str,
    unit: str,
    samples: Sequence[float],
    *,
    target: str = "",
    peers: Mapping[str, Sequence[float]] | None = None,
    is_rate: bool = False,
    **facts: Any,
) -> None:
    """Write one result.

    Args:
        samples: lakebed's.
        peers: samples of others, measured in turn with lakebed's.
        is_rate: larger is better.
        facts: further fields of `Result`.
    """
    ours = statistics.median(samples)
    medians = {name: statistics.median(taken) for name, taken in (peers or {}).items()}
    ratio = {name: _ratio(ours, value, is_rate=is_rate) for name, value in medians.items()}
    taken = {"lakebed": list(samples), **{name: list(values) for name, values in (peers or {}).items()}}
    print(json.dumps(asdict(Result(workload, unit, ours, medians, ratio, taken, target=target, **facts))), flush=True)


def _ratio(ours: float, theirs: float, *, is_rate: bool) -> float:
    """Above 1 when lakebed is better."""
    if not ours or not theirs:
        return 1.0 if ours == theirs else 0.0
    return ours / theirs if is_rate else theirs / ours


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them stays; 0 of none."""
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


@contextmanager
def process(function: Callable[..., None], *arguments: Any) -> Iterator[tuple[str, int]]:
    """A part of a fleet as a process: its URL and process id.

    Args:
        function: serves; its last argument is a pipe to which it sends its URL.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    started: BaseProcess = CONTEXT.Process(target=function, args=(*arguments, sender), daemon=True)
    started.start()
    sender.close()
    try:
        yield receiver.recv(), cast(int, started.pid)
    finally:
        started.terminate()
        started.join(30)


def store_requests(url: str) -> dict[str, int]:
    """What the process at a URL has asked of its stores until now, by kind."""
    text = urllib3.request("GET", f"{url}/metrics", timeout=10, retries=False).data.decode()
    found: dict[str, int] = {}
    for kind, count in _COUNTED.findall(text):
        found[kind] = found.get(kind, 0) + int(count)
    return found


def processor_s(pid: int) -> float:
    """Processor time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process."""
    field = "VmHWM" if peak else "VmRSS"
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024
