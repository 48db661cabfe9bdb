"""Arrow's compute functions, loaded by the first use of one: ``import lakebed.compute as pc``.

Loading `pyarrow.compute` takes 20 ms, a tenth of the time of a short command, and many commands call none of its
functions. Every other module imports this one instead. Methods of arrays and tables that compute (`cast`, `take`,
`filter`, `unique`, ...) load it too.

Cost: after the first use, that of `pyarrow.compute` itself.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module("pyarrow.compute")
    globals().update({attribute: value for attribute, value in vars(module).items() if not attribute.startswith("_")})
    return getattr(module, name)
