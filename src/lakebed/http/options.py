"""The certificate, limits and intervals of serving HTTP. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.http.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Limits and intervals that do not depend on what is served."""

    tls: Tls | None = None
    """The certificate to serve with; None: nothing is encrypted, which is for this machine, or behind a proxy."""

    json_bytes_max: int = 8 << 20
    """Largest JSON body, held in memory; a larger one is refused with 413."""

    head_bytes_max: int = 160 << 10
    """Largest head of a request: request line and headers together."""

    chunk_bytes: int = 1 << 20
    """Piece size of streamed bodies. Memory of a transfer: about four pieces."""

    quick_threads: int = 24
    """Calls at a time that wait for a store or a disk. More of them put more writes into one log write. A call that
    waits for a webhook does not count."""

    heavy_threads: int = 2
    """Calls at a time that compute. They share the interpreter with all others, so more of them do not make anything
    faster, and make short calls slower. A call that waits for a webhook does not count."""

    transfer_threads: int = 64
    """Threads for large bodies, so that slow transfers do not delay small calls."""

    uploads_max: int = 48
    """Large uploads at a time, fewer than `transfer_threads`: each holds a thread from its first piece to its last, and
    a few pieces in memory. Others wait."""

    upload_idle_s: float = 5.0
    """While others wait, a large upload that has not delivered another `chunk_bytes` for this long is ended."""

    head_s: float = 60.0
    """How long a head may take to arrive, a new connection may stay silent, and the rest of a body whose request is
    answered already may come slower than `body_bytes_per_s_min`."""

    stalled_s: float = 60.0
    """How long a body may take to begin, and how long it may pause, before its request is given up; and how long a
    client may read less than `body_bytes_per_s_min` of a reply, before its connection is ended."""

    body_bytes_per_s_min: int = 500
    """What a body must bring on average for each second that it takes longer than `stalled_s`; a slower one is given
    up. A lower rate lets a client hold a connection for longer."""

    shutdown_s: float = 20.0
    """How long running requests may take after the process was asked to stop."""

    idle_s: int = 75
    """How long a connection without requests is kept open."""

    backlog: int = 1_024
    """Connections that may wait to be accepted."""
