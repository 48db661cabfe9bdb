"""Benchmarks: alternating samples of lakebed and its peers, written as JSON and as a table.

Owns: the result record, the alternation and the two outputs. A ratio above 1 means that lakebed is better.
Knows no workload. Peers with old pins run in an environment of their own, behind `PeerProcess`.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from plots import write_page
from processor import choose_processor, chosen_turn, on_chosen_processor

RESULTS = Path(__file__).parent / "results"
SAMPLE_COUNT_MIN = 5
WARM_S = 5.0
"""A sample of this many seconds does not depend on whether the process was warm."""
SLOW_SAMPLE_COUNT = 3
"""Samples of a side whose first one took that long: it averages over more than short ones do."""

Measure = Callable[[], float]
"""Runs a workload once and returns its figure (seconds, milliseconds or bytes: smaller is better)."""


@dataclass
class Result:
    """One workload: lakebed's median, each peer's, and every raw sample behind them."""

    workload: str
    unit: str
    lakebed: float
    peers: dict[str, float]
    ratio: dict[str, float]
    samples: dict[str, list[float]]
    rows: int | None = None
    durable: bool = False
    cache_bytes: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    rss_mb: float | None = None
    target: str = ""


def alternate(
    workload: str,
    measures: Mapping[str, Measure],
    *,
    unit: str = "s",
    sample_count: int = SAMPLE_COUNT_MIN,
    warmup_count: int = 1,
    one_thread: bool = False,
    **facts: Any,
) -> Result:
    """Take `sample_count` samples of every side in turn, after `warmup_count` unmeasured rounds.

    What runs in one thread is measured on the same processor on all sides in a round, on the next one in the next.
    A peer that takes longer than `WARM_S` is warm by then: its first round counts, and `SLOW_SAMPLE_COUNT` are enough.
    Lakebed's first round counts where all sides took that long: where a peer did not, what took long was warming up.
    """
    samples: dict[str, list[float]] = {name: [] for name in measures}
    counts = dict.fromkeys(measures, sample_count)
    for round_number in range(warmup_count + sample_count):
        choose_processor(round_number if one_thread else None)
        slow: dict[str, float] = {}
        for name, measure in measures.items():
            if len(samples[name]) == counts[name]:
                continue
            start = time.perf_counter()
            figure = measure()
            is_slow = time.perf_counter() - start > WARM_S
            if is_slow and round_number == 0 and name != "lakebed":
                counts[name] = min(SLOW_SAMPLE_COUNT, sample_count)
            if round_number >= warmup_count:
                samples[name].append(figure)
            elif is_slow:
                slow[name] = figure
        if slow.keys() != measures.keys():
            slow.pop("lakebed", None)
        for name, figure in slow.items():
            samples[name].append(figure)
    choose_processor(None)
    return result_of(workload, samples, unit=unit, **facts)


def result_of(workload: str, samples: Mapping[str, list[float]], *, unit: str = "s", **facts: Any) -> Result:
    """The result of samples that were taken in turn, printed."""
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    ours = medians["lakebed"]
    peers = {name: value for name, value in medians.items() if name != "lakebed"}
    ratio = {name: ratio_of(samples["lakebed"], samples[name]) for name in peers}
    result = Result(workload, unit, ours, peers, ratio, dict(samples), rss_mb=rss_peak_mb(), **facts)
    print(row_of(result), flush=True)
    return result


def ratio_of(ours: Sequence[float], peer: Sequence[float]) -> float:
    """How many times longer a peer takes: the median over the rounds, for what slows the machine slows both sides.

    Of medians, where the peer has fewer samples.
    """
    if len(ours) != len(peer):
        return statistics.median(peer) / statistics.median(ours)
    return statistics.median(theirs / mine for mine, theirs in zip(ours, peer, strict=True))


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call; the collector ran before, and does not go through the millions of inputs meanwhile."""
    gc.collect()
    gc.freeze()
    with on_chosen_processor():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


def rss_peak_mb() -> float:
    """Peak resident memory of this process so far, in megabytes (2**20)."""
    status = Path("/proc/self/status")
    if status.exists():  # where `getrusage` of a new program begins with the peak of its parent
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return round(int(peak.split()[1]) / 1024, 1)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / (1024 if sys.platform != "darwin" else 1024 * 1024), 1)


def row_of(result: Result) -> str:
    """One line for the terminal."""
    peers = "  ".join(f"{name} {value:.4g} ({result.ratio[name]:.2f}x)" for name, value in result.peers.items())
    return f"{result.workload:<22} lakebed {result.lakebed:.4g} {result.unit}   {peers}"


class PeerProcess:
    """The peers' worker: JSON lines over its standard streams; one process for the whole run, so it stays warm."""

    def __init__(
        self, python: Path, folder: Path, scale: float, *, worker: str = "worker.py", arguments: Sequence[str] = ()
    ) -> None:
        script = Path(__file__).parent / "peers" / worker
        self._process = subprocess.Popen(
            [str(python), str(script), str(folder), str(scale), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions: dict[str, str] = self._answer()["versions"]

    def call(self, peer: str, workload: str) -> float:
        """Run one workload of one peer; its figure in the workload's unit."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"peer": peer, "workload": workload, "turn": chosen_turn()}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["figure"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the peers' process ended; its message stands above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"peer failed: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cores": cores,
    }


def versions_of(*packages: str) -> dict[str, str]:
    """Installed versions of packages in this environment."""
    return {package: metadata.version(package) for package in packages}


def commit_id() -> str:
    """The commit that was measured, with ``+`` when the tree had changes."""
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "src"], cwd=here.parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def write_results(suite: str, results: list[Result], *, scale: float, versions: Mapping[str, str]) -> Path:
    """Write ``bench/results/<suite>.json``, and rewrite ``bench/RESULTS.md`` and ``docs/performance.md``.

    Workloads of an earlier run at the same scale stay, in their place and with its commit and date, unless `results`
    has them anew: ``--only`` measures a part again.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{suite}.json"
    run = {"commit": commit_id(), "date": datetime.date.today().isoformat()}
    taken = {result.workload: asdict(result) | run for result in results}
    if path.exists():
        earlier = json.loads(path.read_text())
        if earlier["scale"] == scale:
            run_of_all = {"commit": earlier["commit"], "date": earlier["date"]}
            kept = {row["workload"]: run_of_all | row for row in earlier["results"]}
            taken = {name: taken.get(name, row) for name, row in kept.items()} | taken
    document: dict[str, Any] = {
        "scale": scale,
        **run,
        "machine": machine(),
        "versions": dict(versions),
        "results": list(taken.values()),
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    write_tables()
    write_page()
    return path


def write_tables() -> None:
    """Rewrite ``bench/RESULTS.md`` from every suite's JSON."""
    lines = [
        "# Results",
        "",
        "Written by the benchmarks; medians of alternating runs, and of their ratios: above 1 lakebed is better.",
        "",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
        about = document["machine"]
        lines += [
            f"## {path.stem}",
            "",
            f"{document['date']}, commit {document['commit']}, scale {document['scale']}, {about['cores']} cores"
            f" {about['architecture']}, Python {about['python']}; {versions}.{_of_earlier_runs(document)}",
            "",
            "| workload | unit | durable | lakebed | peers | ratio | target |",
            "| --- | --- | --- | ---: | --- | --- | --- |",
        ]
        for row in document["results"]:
            peers = "<br>".join(f"{name} {value:.4g}" for name, value in row["peers"].items())
            ratio = "<br>".join(f"{name} {value:.2f}x" for name, value in row["ratio"].items())
            durable = "yes" if row["durable"] else "no"
            cells = [row["workload"], row["unit"], durable, f"{row['lakebed']:.4g}", peers, ratio, row["target"]]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    (RESULTS.parent / "RESULTS.md").write_text("\n".join(lines))


def _of_earlier_runs(document: dict[str, Any]) -> str:
    """Which rows of a suite another run has measured than the last one."""
    last = document["date"], document["commit"]
    names: dict[tuple[str, str], list[str]] = {}
    for row in document["results"]:
        run = row.get("date", last[0]), row.get("commit", last[1])
        if run != last:
            names.setdefault(run, []).append(row["workload"])
    return "".join(f" Of {date}, commit {commit}: {', '.join(rows)}." for (date, commit), rows in names.items())
