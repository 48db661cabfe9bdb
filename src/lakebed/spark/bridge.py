"""The process that answers Spark's SQL catalog: JSON lines on standard input and output.

The JVM starts it as ``python -m lakebed.spark.bridge``. The first line of output has the version of lakebed, the
process id, and the folder of Arrow files, which the JVM removes if this process is killed. Each further line is a
reply. Replies come in the order in which requests finish.

Invariants: standard output carries only the protocol. At most `CONCURRENT_MAX` requests run at the same time. The
process ends when its input closes, without waiting for running requests.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import BinaryIO, Final

import msgspec

from lakebed import __version__
from lakebed.runtime import Environment
from lakebed.spark.catalog import VERBS_LOADED, handle
from lakebed.spark.catalog.verb import Session

CONCURRENT_MAX: Final = 32
"""How many requests run at the same time. Further requests wait in the pipe."""


def serve(source: BinaryIO, sink: BinaryIO, session: Session, *, waits: bool = False) -> None:
    """Answer requests until the source ends.

    Args:
        waits: wait for the requests that still run when the source ends.
    """
    assert VERBS_LOADED
    runtime = Environment().runtime
    condition = runtime.condition()
    running = 0

    def put(line: bytes) -> None:
        with condition:
            sink.write(line + b"\n")
            sink.flush()

    def answer(line: bytes) -> None:
        nonlocal running
        reply = handle(line, session)
        try:
            put(reply)
        finally:
            with condition:
                running -= 1
                condition.notify_all()

    put(msgspec.json.encode({"lakebed": __version__, "pid": os.getpid(), "folder": str(session.folder)}))
    for line in source:
        with condition:
            while running >= CONCURRENT_MAX:
                condition.wait()
            running += 1
        runtime.spawn(lambda line=line: answer(line), name="lakebed-bridge")  # type: ignore[misc]
    with condition:
        while waits and running > 0:
            condition.wait()


def main() -> None:
    """Serve the process that started this one."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that Python code prints must not become part of the protocol
    session = Session.temporary()
    try:
        serve(source, sink, session)
    finally:
        shutil.rmtree(session.folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)  # the replies of running requests have no reader any more


if __name__ == "__main__":
    main()
