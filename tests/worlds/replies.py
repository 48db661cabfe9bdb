"""Replies of the process that answers Spark's SQL catalog."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

Ask = Callable[..., dict[str, Any]]
"""Sends a verb with the members of its body, and returns the reply."""


def rows_of(reply: str) -> pa.Table:
    """Read the rows that a reply holds, or the file that it names."""
    stream = base64.b64decode(reply[7:]) if reply.startswith("base64:") else Path(reply).read_bytes()
    return pa.ipc.open_stream(stream).read_all()
