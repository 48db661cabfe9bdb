"""The start of the script `lakebed`. An interruption ends it with one line, even while Python still loads the rest."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from lakebed.cli.exits import INTERRUPTED
from lakebed.cli.loading import load


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code; see `lakebed.cli.main`."""
    try:
        load("lakebed.cli.main").main()
    except BaseException as error:
        # Python 3.11 wraps an interruption that occurs while a class is created.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        with suppress(OSError):  # standard error is closed
            os.write(2, b"\nlakebed: interrupted.\n")
        sys.exit(INTERRUPTED)
