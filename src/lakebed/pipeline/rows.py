"""The rows of a view: an Arrow table if they are few and this process read them, otherwise a DataFrame.

Owns: `LocalRows` and the union `Rows`. The operations on both are in `engine`. Loads no PySpark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class LocalRows:
    """Few rows, in the memory of this process."""

    arrow: pa.Table
    frame: DataFrame | None = None
    """The same rows as a DataFrame, once Spark needed them."""


Rows: TypeAlias = Union[LocalRows, "DataFrame"]
