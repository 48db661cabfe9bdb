"""Every setting of a server. Pure data; each says what it costs to change it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServerOptions"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits and intervals of a server."""

    json_bytes_max: int = 8 << 20
    """Largest JSON body. A thousand paths of a thousand characters fit; what is larger is refused with 413."""

    stage_bytes_max: int = 256 << 20
    """Largest body with objects to stage, or with paths of a verb: about a million of them. It is held in memory."""

    head_bytes_max: int = 160 << 10
    """Largest head of a request, path and headers together: more than an object's metadata can have."""

    object_bytes_max: int = 5 << 40
    """Largest object in one upload."""

    small_object_bytes: int = 1 << 20
    """Objects up to this size are held in memory whole: one step to store them, one to read them."""

    chunk_bytes: int = 1 << 20
    """Larger objects go through in pieces of this size. Memory of a transfer: about four of them."""

    quick_threads: int = 24
    """Threads for calls that wait for a store or a disk. More of them write more objects into one log write."""

    heavy_threads: int = 2
    """Threads for calls that compute: listings, differences, commits, merges. They share the interpreter with all
    others, so more of them do not make anything faster, and make single reads slower."""

    transfer_threads: int = 64
    """Threads for large objects, so that slow transfers do not stand in the way of small calls."""

    uploads_max: int = 48
    """Large uploads at a time, fewer than `transfer_threads`: each holds a thread from its first piece to its last, and
    a part or two of its object in memory. Others wait."""

    upload_idle_s: float = 5.0
    """While others wait, a large upload that has not brought another `chunk_bytes` for so long is ended."""

    key_recheck_s: float = 2.0
    """How long a verified access key is trusted without looking: what a revocation by another process may take."""

    token_lifetime_s: int = 3_600
    """How long a token from ``POST /auth/login`` is valid."""

    tokens_per_key_max: int = 100
    """Tokens of one access key at a time; a new one beyond it ends the oldest."""

    presigned_lifetime_s: int = 900
    """How long a presigned URL is valid."""

    audit_lines_max: int = 100_000
    """Lines of the audit log that are kept; the oldest go."""

    head_s: float = 60.0
    """How long a head may take to come in, and a new connection to say anything."""

    stalled_s: float = 60.0
    """How long a body that has begun may pause; then its upload is given up."""

    shutdown_s: float = 20.0
    """How long running requests may take once the server was told to stop."""

    idle_s: int = 75
    """How long a connection without requests is kept."""

    backlog: int = 1_024
    """Connections that wait to be accepted."""
