"""Loopback ports for servers of other projects, which cannot be given a bound socket.

Owns: the choice. A port is drawn from below those that systems give to outgoing connections (from 32,768 on Linux, from
49,152 on macOS): one of these may be taken between its choice and the start of the server, and while a server that was
killed is away.
"""

from __future__ import annotations

import random
import socket
from typing import Final

_FIRST: Final = 12_000
_END: Final = 32_000
_DRAW: Final = random.SystemRandom()  # tests that seed `random` in several processes must not draw the same ports


def free_port() -> int:
    """A loopback port that no server uses now."""
    while True:
        port = _DRAW.randrange(_FIRST, _END)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
