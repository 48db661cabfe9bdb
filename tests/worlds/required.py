"""What tests do without a server or client that is not installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def miss(reason: str) -> NoReturn:
    """Skip the test, or fail it where LAKEBED_REQUIRE_SERVERS is 1, as continuous integration sets it.

    Args:
        reason: what is not installed, and what installs it.
    """
    if os.environ.get("LAKEBED_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{reason}, and LAKEBED_REQUIRE_SERVERS is 1")
    pytest.skip(reason)
