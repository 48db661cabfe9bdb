package org.lakebed.spark;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Columns in replies, which are Spark's JSON. Each is parsed once, because every statement loads its tables. */
final class Columns {
  private static final Pattern COLLATED = Pattern.compile("STRING COLLATE (?!UTF8_BINARY\\b)");
  private static final int KEPT_MAX = 256;
  private static final Map<String, StructType> KEPT =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, StructType> eldest) {
          return size() > KEPT_MAX;
        }
      };

  private Columns() {}

  /** Refuse a collation, because tables do not store it, and would compare the column's texts by bytes. */
  static void checkType(String column, DataType type) {
    if (COLLATED.matcher(type.sql()).find()) {
      throw Errors.mistake(
          "The column " + column + " cannot be of the type " + type.sql() + ": tables of a lake store no collation. Leave out"
              + " COLLATE, and write it in queries.");
    }
  }

  /** A column by its exact name. Spark parses the text of a reference as SQL, where a point or a space ends a name. */
  static NamedReference reference(String name) {
    return Expressions.column(quoted(name));
  }

  /** Columns by their exact names. */
  static NamedReference[] references(List<String> names) {
    return names.stream().map(Columns::reference).toArray(NamedReference[]::new);
  }

  /** A column's exact name as SQL. */
  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  static StructType of(String json) {
    synchronized (KEPT) {
      return KEPT.computeIfAbsent(json, text -> (StructType) DataType.fromJson(text));
    }
  }
}
