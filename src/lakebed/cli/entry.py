"""Where the script `lakebed` starts: an interruption ends it with one line also while Python still loads the rest."""

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
    except KeyboardInterrupt:
        with suppress(OSError):  # standard error is closed
            os.write(2, b"\nlakebed: interrupted.\n")
        sys.exit(INTERRUPTED)
