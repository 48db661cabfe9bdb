package org.lakebed.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Columns as replies describe them, in Spark's JSON: read once, for every statement asks for those of its tables. */
final class Columns {
  private static final int KEPT_MAX = 256;
  private static final Map<String, StructType> KEPT =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, StructType> eldest) {
          return size() > KEPT_MAX;
        }
      };

  private Columns() {}

  static StructType of(String json) {
    synchronized (KEPT) {
      return KEPT.computeIfAbsent(json, text -> (StructType) DataType.fromJson(text));
    }
  }
}
