"""The certificate, limits and intervals of serving HTTP. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.http.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Limits and intervals of every service."""

    tls: Tls | None = None
    """The server's certificate; None: nothing is encrypted, which is for clients on this machine, or behind a proxy."""

    json_bytes_max: int = 8 << 20
    """Largest JSON body, held in memory; a larger one is refused with 413."""

    head_bytes_max: int = 160 << 10
    """Largest head of a request: request line and headers together."""

    chunk_bytes: int = 1 << 20
    """Piece size of streamed bodies. Memory of a transfer: about four pieces."""

    quick_threads: int = 24
    """Most calls at a time that wait for a store or a disk. With more of them, one log write takes more writes. A call
    that waits for a webhook does not count."""

    heavy_threads: int = 2
    """Most calls at a time that compute. They share the interpreter with all other calls, so more of them make nothing
    faster, and make short calls slower. A call that waits for a webhook does not count."""

    transfer_threads: int = 64
    """Threads for large bodies, so that slow transfers do not delay small calls."""

    uploads_max: int = 48
    """Most large uploads at a time, fewer than `transfer_threads`. Each holds a thread from its first piece to its
    last, and a few pieces in memory. Further uploads wait."""

    upload_idle_s: float = 5.0
    """While others wait, a large upload that has not delivered another `chunk_bytes` for this long is ended."""

    head_s: float = 60.0
    """Limit of three times: the arrival of a head; the silence of a new connection; and how long the rest of a body
    whose request is answered already may come slower than `body_bytes_per_s_min`."""

    stalled_s: float = 60.0
    """How long a body may take to begin, and how long it may pause, before its request fails; and how long a client may
    read less than `body_bytes_per_s_min` of a reply, before its connection is ended."""

    body_bytes_per_s_min: int = 500
    """Least average rate of a body, for each second beyond `stalled_s`; the request of a slower body fails. A lower
    rate lets a client hold a connection longer."""

    shutdown_s: float = 20.0
    """How long running requests may take after the process was asked to stop."""

    idle_s: int = 75
    """How long a connection without requests is kept open."""

    backlog: int = 1_024
    """Connections that may wait to be accepted."""
