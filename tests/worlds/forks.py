"""What a forked process can do with the objects of its parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from lakebed.errors import LakebedError

_HANGS_S = 10


def answer_in_fork(act: Callable[[], object]) -> str:
    """What an action gives in a child process, or its error's name and sentence; empty when it hangs or dies."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_HANGS_S)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        answer = ""
        try:
            answer = str(act())
        except LakebedError as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writes, answer.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer
