"""Arrow's compute functions, loaded on first use: ``import lakebed.compute as pc``.

Loading `pyarrow.compute` takes 20 ms, a tenth of the time of a short command, and many commands call none of its
functions. Every other module imports this one instead. Methods of arrays and tables that compute (`cast`, `take`,
`filter`, `unique`, ...) load it too.

Cost: after the first use, that of `pyarrow.compute` itself.
"""

from __future__ import annotations

from lakebed.first_use import all_of

__getattr__ = all_of("pyarrow.compute", into=globals())
