"""Process-wide counters and their Prometheus text.

Owns: the registry of counters, gauges and histograms. Invariants: only gauges go down. Label values never contain a
path or a secret. A label value that contains a name that a user chose belongs to a label in `NAMING_LABELS`, or is a
URL. No other code is called while the lock is held, so a real lock is right even under a simulated runtime.

The caller exports the metrics: `render()` returns the text for a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from lakebed.runtime import new_lock

M = TypeVar("M", "Counter", "Gauge", "Histogram")

LATENCY_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of latency buckets, in seconds: from a local read to a request that times out."""


NAMING_LABELS: Final = frozenset({"repository", "branch", "table", "database"})
"""Labels whose values are names that users chose. Not everyone who can reach a server may see these values."""


def counting_lock() -> AbstractContextManager[Any]:
    """Return a real lock for counters of any kind: its holder calls no other code, so a simulation need not see it."""
    return new_lock()


class _Numbers:
    """A family of numbers, one for each combination of label values."""

    kind = ""

    def __init__(self, name: str, *, help_text: str, label_names: Sequence[str] = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(label_names)
        self._values: dict[tuple[str, ...], float] = {}
        self._lock = new_lock()

    def value(self, *labels: str) -> float:
        """Return the number with these label values; 0 if there is none."""
        with self._lock:
            return self._values.get(labels, 0)

    def lines(self, *, with_names: bool = True) -> list[str]:
        """Return the family as Prometheus text. Without names, omit the series that contain names that users chose."""
        with self._lock:
            values = sorted(self._values.items())
        values = [entry for entry in values if with_names or not _names_something(self.label_names, entry[0])]
        head = [f"# HELP {self.name} {self.help_text}", f"# TYPE {self.name} {self.kind}"]
        return head + [f"{self.name}{_labels(self.label_names, labels)} {_number(value)}" for labels, value in values]


class Counter(_Numbers):
    """A family of numbers that only grow, one for each combination of label values."""

    kind = "counter"

    def add(self, amount: float, *labels: str) -> None:
        """Add `amount` to the number with these label values, in the order of `label_names`."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount


class Gauge(_Numbers):
    """A family of numbers that go up and down, one for each combination of label values."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the number with these label values to `value`."""
        with self._lock:
            self._values[labels] = value

    def remove(self, *labels: str) -> None:
        """Stop exporting the number with these label values, because the thing that it describes is gone."""
        with self._lock:
            self._values.pop(labels, None)


class Histogram:
    """A family of latency distributions, in seconds, one for each combination of label values."""

    def __init__(
        self,
        name: str,
        *,
        help_text: str,
        label_names: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BOUNDS_S,
    ) -> None:
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(label_names)
        self.bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[float]] = {}
        self._lock = new_lock()

    def observe(self, value: float, *labels: str) -> None:
        """Count one value in its bucket."""
        bucket = bisect_left(self.bounds, value)
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0.0] * (len(self.bounds) + 2)
            counts[bucket] += 1
            counts[-1] += value

    def lines(self, *, with_names: bool = True) -> list[str]:
        """Return the family as Prometheus text: cumulative buckets, sum and count; `with_names` as `Counter.lines`."""
        with self._lock:
            families = sorted((labels, list(counts)) for labels, counts in self._counts.items())
        families = [entry for entry in families if with_names or not _names_something(self.label_names, entry[0])]
        text = [f"# HELP {self.name} {self.help_text}", f"# TYPE {self.name} histogram"]
        names = (*self.label_names, "le")
        for labels, counts in families:
            total = 0.0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts[:-1], strict=True):
                total += count
                text.append(f"{self.name}_bucket{_labels(names, (*labels, bound))} {_number(total)}")
            text.append(f"{self.name}_sum{_labels(self.label_names, labels)} {counts[-1]:.6f}")
            text.append(f"{self.name}_count{_labels(self.label_names, labels)} {_number(total)}")
        return text


class Registry:
    """Metrics that are exported together."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        self._lock = new_lock()

    def counter(self, name: str, *, help_text: str, label_names: Sequence[str] = ()) -> Counter:
        """Return the counter of this name; create it on first use."""
        return self._register(Counter, name, help_text, label_names)

    def gauge(self, name: str, *, help_text: str, label_names: Sequence[str] = ()) -> Gauge:
        """Return the gauge of this name; create it on first use."""
        return self._register(Gauge, name, help_text, label_names)

    def histogram(
        self,
        name: str,
        *,
        help_text: str,
        label_names: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BOUNDS_S,
    ) -> Histogram:
        """Return the histogram of this name; create it on first use. `bounds` are the upper bounds of its buckets."""
        return self._register(Histogram, name, help_text, label_names, bounds=bounds)

    def _register(self, kind: type[M], name: str, help_text: str, label_names: Sequence[str], **settings: Any) -> M:
        with self._lock:
            metric = self._metrics.get(name)
            if metric is None:
                metric = self._metrics[name] = kind(name, help_text=help_text, label_names=label_names, **settings)
        if not isinstance(metric, kind):
            raise TypeError(f"{name} is already a {type(metric).__name__.lower()}")
        return metric

    def render(self, *, with_names: bool = True) -> str:
        """Return all metrics as Prometheus text, format 0.0.4, families in the order of their names.

        Args:
            with_names: False omits the series that contain names that users chose (`NAMING_LABELS`, buckets).
        """
        with self._lock:
            metrics = [self._metrics[name] for name in sorted(self._metrics)]
        return "".join(line + "\n" for metric in metrics for line in metric.lines(with_names=with_names))


def _names_something(names: Sequence[str], values: Sequence[str]) -> bool:
    return not NAMING_LABELS.isdisjoint(names) or any("://" in value for value in values)


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


default_registry: Final = Registry()
"""The registry of the process, which every store uses."""


def render(*, with_names: bool = True) -> str:
    """Return the process's metrics as Prometheus text; `with_names` as `Registry.render`."""
    return default_registry.render(with_names=with_names)
