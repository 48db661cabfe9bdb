"""The rows of a view: in this process when they are few and were read here, else a DataFrame.

Owns: `LocalRows` and the choice `Rows`. What can be done with either is in `engine`. Loads no PySpark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LocalRows", "Rows"]


@dataclass(slots=True)
class LocalRows:
    """Few rows, in the memory of this process."""

    arrow: pa.Table
    frame: DataFrame | None = None
    """The same rows for Spark, once it was asked about them."""


Rows: TypeAlias = Union[LocalRows, "DataFrame"]
