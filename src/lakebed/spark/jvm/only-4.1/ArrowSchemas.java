package org.lakebed.spark;

import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;

/** Spark's columns as Arrow's, by the internal class ArrowUtils of Spark 4.1. */
final class ArrowSchemas {
  private ArrowSchemas() {}

  static Schema of(StructType columns) {
    return ArrowUtils$.MODULE$.toArrowSchema(columns, "UTC", true, false);
  }
}
