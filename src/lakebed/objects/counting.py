"""Counters of requests, for `ObjectStore.count` and for Prometheus.

Owns: the mapping of a request to open counts. Invariants: a request is counted once in every open count through whose
folder it was made, and once in the process's metrics. Counting never waits for a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from lakebed.log import logger
from lakebed.metrics import counting_lock, default_registry
from lakebed.objects.port import RequestCounts

Kind = Literal["get", "head", "put", "list", "delete", "copy"]

_LABELS: Final = ("store", "kind")
_LOG: Final = logger("objects")


class RequestCounter:
    """Counts the requests of one opened store and of all views of it."""

    def __init__(self, label: str) -> None:
        self._lock = counting_lock()
        self._open: tuple[tuple[str, RequestCounts], ...] = ()
        self._label = label
        self._requests = default_registry.counter(
            "lakebed_store_requests_total", help_text="Requests to object stores.", label_names=_LABELS
        )
        self._errors = default_registry.counter(
            "lakebed_store_errors_total",
            help_text="Calls that the store did not answer, or refused.",
            label_names=_LABELS,
        )
        self._retries = default_registry.counter(
            "lakebed_store_retries_total", help_text="Requests that were tried again.", label_names=_LABELS
        )
        self._bytes = default_registry.counter(
            "lakebed_store_bytes_total", help_text="Bytes of bodies, by direction.", label_names=("store", "direction")
        )
        self._seconds = default_registry.histogram(
            "lakebed_store_seconds", help_text="Time of one call, its retries included.", label_names=_LABELS
        )

    @contextmanager
    def count(self, folder: str) -> Iterator[RequestCounts]:
        """Count the requests through `folder` (``""`` is the root) and the folders below it."""
        counts = RequestCounts()
        entry = (folder, counts)
        with self._lock:
            self._open = (*self._open, entry)
        try:
            yield counts
        finally:
            with self._lock:
                self._open = tuple(other for other in self._open if other is not entry)

    def add(
        self,
        kind: Kind,
        folder: str,
        *,
        seconds: float,
        requests: int = 1,
        moved: tuple[int, int] = (0, 0),
        retries: int = 0,
        failed: bool = False,
        path: str = "",
    ) -> None:
        """Count one call made through a view of `folder`.

        Args:
            requests: number of requests, including retries.
            moved: bytes (read, written).
            path: for the log.
        """
        label = self._label
        bytes_read, bytes_written = moved
        if _LOG.is_detailed:
            _LOG.debug(
                kind,
                path=path or f"{folder}/",
                store=label,
                ms=round(1000 * seconds, 1),
                requests=requests,
                bytes_read=bytes_read,
                bytes_written=bytes_written,
                retries=retries,
                failed=failed,
            )
        self._requests.add(requests, label, kind)
        self._seconds.observe(seconds, label, kind)
        if bytes_read:
            self._bytes.add(bytes_read, label, "read")
        if bytes_written:
            self._bytes.add(bytes_written, label, "written")
        if retries:
            self._retries.add(retries, label, kind)
        if failed:
            self._errors.add(1, label, kind)
        if not self._open:
            return
        with self._lock:
            for scope, counts in self._open:
                if scope and scope != folder and not folder.startswith(scope + "/"):
                    continue
                setattr(counts, kind, getattr(counts, kind) + requests)
                counts.bytes_read += bytes_read
                counts.bytes_written += bytes_written
                counts.retries += retries
                counts.errors += failed
                counts.seconds[kind] = counts.seconds.get(kind, 0.0) + seconds
