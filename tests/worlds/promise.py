"""`PromiseBroken`: the one error by which every simulator, workload and model reports a broken promise."""

from __future__ import annotations


class PromiseBroken(AssertionError):
    """A store did not do what it promises."""
