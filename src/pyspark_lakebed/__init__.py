"""``spark.read.format("lakebed")``: Spark looks for data sources in packages of such names, so none is registered."""

from lakebed.spark.datasource.source import LakebedSource as DefaultSource

__all__ = ["DefaultSource"]
