"""Interrupts (Ctrl-C) at every moment of a call at which the interpreter looks for one.

A handler of a signal runs in the main thread, where the interpreter looks whether one came: behind a call that has
ended, at the beginning of a function, and at the end of a loop's round; what stands between is done as a whole. So an
interrupt behind the n-th call is one that can come, and one in the middle of some assignments cannot.

Owns: `Interrupt` and `interrupt_at`. A test counts moments up until a call has fewer, and goes on after each interrupt
as a notebook does, in which a cell was stopped: with the same objects, and later by opening them again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Final

import lakebed

_PACKAGE: Final = lakebed.__file__.removesuffix("__init__.py")
_DEFECTS: Final = "/mutations/"


class Interrupt(KeyboardInterrupt):
    """What a test raises, which is no Ctrl-C of a person."""


def interrupt_at(moment: int, call: Callable[[], object], *, within: Collection[str]) -> str | None:
    """Interrupt a call at its n-th moment, in this thread.

    Args:
        moment: from 1.
        within: folders and modules of lakebed, such as ``kv/writer.py``, or paths of others, whose moments count; a
            defect's do too.

    Returns:
        Where it was interrupted: file, line, and what had been called; None: it has fewer moments, and has ended.

    Raises whatever the call makes of the interrupt but the interrupt itself.
    """
    counted = (*(os.path.join(_PACKAGE, part) for part in within), _DEFECTS)
    count, where = 0, None

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal count, where
        file = frame.f_code.co_filename
        if event not in ("call", "c_return") or not any(part in file for part in counted):
            return
        count += 1
        if count == moment:
            where = f"{file}:{frame.f_lineno} {getattr(called, '__name__', frame.f_code.co_name)}"
            sys.setprofile(None)
            raise Interrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.setprofile(before)
    return where
