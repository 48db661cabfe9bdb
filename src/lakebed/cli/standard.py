r"""Standard input, output and error of a command, even if closed, full, gone, or of an encoding without a character.

Invariants after `guard` was called:
- No write to standard output or error raises, so the effect of a command never depends on whether it can print. Only a
  command whose work is its output (`stops_with_output`) ends early.
- Output that could not be written is dropped, and `failure` gives the reason.
- A character that the encoding lacks is written as ``\xe9``.
- A stream that was closed when the process began stays closed. Its number never becomes that of a file of a lake, into
  which another library's message would be written.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, BinaryIO, Final

from lakebed.errors import InvalidRequest

_INPUT: Final = 0
_OUTPUT: Final = 1
_ERROR: Final = 2


class _Guarded(io.RawIOBase):
    """A standard stream whose writes always succeed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.failure: OSError | None = None
        self.stops = False

    def fileno(self) -> int:
        """Return the stream's number."""
        return self._number

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, block: Any, /) -> int:
        """Write some bytes, or drop them all after a failure.

        Raises `OSError` only if the command ends because of it.
        """
        while self.failure is None:
            try:
                return os.write(self._number, block)
            except BlockingIOError:  # a pipe that another process made non-blocking
                select.select([], [self._number], [])
            except OSError as problem:
                self.failure = problem
        if self.stops:
            raise self.failure
        return len(block)


_output: _Guarded | None = None


def guard() -> None:
    """Guard the standard streams of this process. Call this before any file is opened or anything is printed."""
    global _output
    for number in (_INPUT, _OUTPUT, _ERROR):
        try:
            os.fstat(number)
        except OSError:
            # Open in the wrong direction: the number is taken, and reads and writes fail as on a closed stream.
            descriptor = os.open(os.devnull, os.O_WRONLY if number == _INPUT else os.O_RDONLY)
            assert descriptor == number, "the lowest free number"
    if sys.stdin is None:
        sys.stdin = open(_INPUT, closefd=False)  # noqa: SIM115
    _output = _Guarded(_OUTPUT)
    sys.stdout = _text(_output, sys.stdout)
    sys.stderr = _text(_Guarded(_ERROR), sys.stderr, is_unbuffered=True)


def _text(stream: _Guarded, like: Any, *, is_unbuffered: bool = False) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=getattr(like, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=is_unbuffered or stream.isatty() or getattr(like, "write_through", False),
    )


def stops_with_output(answers: bool) -> None:
    """Set whether the command ends if its output cannot be written, because its output is its only work."""
    if _output is not None:
        _output.stops = answers


def finish() -> None:
    """Write what is buffered. Nothing raises after this, including the interpreter's end."""
    stops_with_output(False)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def has_stopped() -> bool:
    """Whether the command ended because its output, its only work, could not be written."""
    return _output is not None and _output.failure is not None and _output.stops


def failure() -> str | None:
    """Return why standard output could not be written; None: it was, or its reader has read enough (`| head`)."""
    problem = None if _output is None else _output.failure
    if problem is None or isinstance(problem, BrokenPipeError):
        return None
    return "it is closed" if problem.errno == errno.EBADF else str(problem.strerror)


def binary_output() -> BinaryIO:
    """Return standard output for bytes, after the text that was printed before them."""
    sys.stdout.flush()
    return sys.stdout.buffer


def read_input() -> bytes:
    """Read all of standard input. Raises `InvalidRequest` if it is closed."""
    return binary_input().read()


def binary_input() -> BinaryIO:
    """Return standard input for bytes. Raises `InvalidRequest` (``no_input``) if it is closed."""
    try:
        os.read(_INPUT, 0)
    except OSError as problem:
        if problem.errno == errno.EBADF:
            raise InvalidRequest(
                "Standard input is closed, and - reads from it: redirect a file or a pipe into it, or name a file.",
                kind="no_input",
            ) from problem
        raise
    return sys.stdin.buffer
