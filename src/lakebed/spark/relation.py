"""Spark's own vectorised Parquet reader over exactly the files a manifest names.

Owns: how a list of (URL, size) becomes a DataFrame without one request to the store: the file statuses, which Spark
would ask the store for, are known from the manifest and put into Spark's cache of statuses. So planning costs no
listing and no HEAD a file; and since nothing is listed, folders named ``dt=2013-01-01`` add no columns, and columns
keep their nullability. Uses Spark's internal classes through the gateway of a classic session, which a Spark Connect
session does not have; see `is_available`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

_HADOOP_SCHEMES = {"file": "file", "s3": "s3a", "gs": "gs"}
"""The schemes of URLs that Hadoop reads, with its own names."""

_BLOCK_BYTES = 128 << 20
"""The block size in a file status; Spark uses it only to place tasks on HDFS nodes, which are not looked up."""


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One file to read."""

    url: str
    """As Hadoop spells paths: nothing percent-encoded but what the object's own name holds."""
    size_bytes: int
    modified_ms: int
    """Unix time in milliseconds, UTC; shown by Spark's ``_metadata`` column."""


def is_available(spark: SparkSession) -> bool:
    """Whether the session has a JVM in this process's reach: it is a classic session, not Spark Connect."""
    return getattr(spark, "_jvm", None) is not None


def spark_root(spark: SparkSession, root_url: str) -> str | None:
    """The URL of a store's folder for Spark's own reader; None when Spark cannot reach it.

    Spark reaches every local folder, and ``s3://`` and ``gs://`` when Hadoop's connector is on the class path; it uses
    the credentials of Hadoop's configuration.
    """
    if not is_available(spark):
        return None
    scheme, _, rest = root_url.partition("://")
    hadoop_scheme = _HADOOP_SCHEMES.get(scheme)
    if hadoop_scheme is None:
        return None
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(hadoop_scheme, session.sessionState().newHadoopConf())
    except (Py4JJavaError, CapturedException):
        return None  # no such connector
    return f"{hadoop_scheme}://{rest}"


def exact_files(spark: SparkSession, files: Sequence[ParquetFile], *, schema: StructType) -> DataFrame:
    """A DataFrame over these files and no others.

    Args:
        spark: a session for which `is_available`.
        files: written once and never changed; at least one.
        schema: the columns to read, by their names in the files; columns that a file lacks are null.

    Cost: no request; about 0.3 ms a file, on the driver.
    """
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    gateway: Any = spark.sparkContext._gateway
    sources = jvm.org.apache.spark.sql.execution.datasources
    path_of, status_of = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.hadoop.fs.FileStatus
    cache = sources.FileStatusCache.getOrCreate(session)
    remember = cache.putLeafFiles
    paths = jvm.java.util.ArrayList(len(files))
    for file in files:
        path = path_of(file.url)
        statuses = gateway.new_array(status_of, 1)
        statuses[0] = status_of(file.size_bytes, False, 1, _BLOCK_BYTES, file.modified_ms, path)
        remember(path, statuses)
        paths.append(path)
    nothing = jvm.scala.Option.empty()
    columns = session.parseDataType(schema.json())
    options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({"recursiveFileLookup": "true"})
    index = sources.InMemoryFileIndex(
        session,
        jvm.scala.jdk.javaapi.CollectionConverters.asScala(paths).toSeq(),
        options,
        jvm.scala.Option.apply(columns),
        cache,
        nothing,
        nothing,
    )
    relation = sources.HadoopFsRelation(
        index,
        session.parseDataType(StructType([]).json()),
        columns,
        nothing,
        sources.parquet.ParquetFileFormat(),
        options,
        session,
    )
    return DataFrame(session.baseRelationToDataFrame(relation), spark)
