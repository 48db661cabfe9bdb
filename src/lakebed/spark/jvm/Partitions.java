package org.lakebed.spark;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EvalMode;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Enumeration;
import scala.Option;

/**
 * The partitions of a table as statements name them: by the texts of their values. For Spark these columns have the type
 * STRING. Otherwise it would cast the values of a statement with errors of its own, and outside of ANSI mode to null,
 * which is another partition.
 *
 * <p>This is the only file that names Spark's internal classes Cast, EvalMode and Literal; tried with 4.1, 4.2 and 4.3.
 */
record Partitions(LakebedTable table) {
  /** The names of the numbers that follow the values in a reply. */
  private static final List<String> COUNTS = List.of("record_count", "file_count", "file_size_in_bytes");

  /** The partition columns, as texts. */
  StructType schema() {
    return new StructType(
        table.partitionKeys().stream()
            .map(key -> new StructField(key, DataTypes.StringType, true, table.schema().apply(key).metadata()))
            .toArray(StructField[]::new));
  }

  /** The partitions with some values. {@code texts}: values of the columns {@code names}. */
  InternalRow[] list(String[] names, InternalRow texts) {
    ArrowRows.Rows found = found(names, texts);
    int count = table.partitionKeys().size();
    return Arrays.stream(found.rows()).map(row -> texts(row, found.schema(), count)).toArray(InternalRow[]::new);
  }

  boolean exists(InternalRow texts) {
    return found(keys(), texts).rows().length > 0;
  }

  /** The numbers of rows, files and bytes of a partition. */
  Map<String, String> counts(InternalRow texts) {
    Map<String, String> counts = new LinkedHashMap<>();
    for (InternalRow row : found(keys(), texts).rows()) {
      for (int i = 0; i < COUNTS.size(); i++) {
        counts.put(COUNTS.get(i), String.valueOf(row.getLong(keys().length + i)));
      }
    }
    return counts;
  }

  /** Remove the rows of partitions, in one commit. */
  void drop(InternalRow[] partitions) {
    List<Object> values = new ArrayList<>();
    for (InternalRow texts : partitions) {
      values.add(values(keys(), texts));
    }
    table.lake.change("drop_partitions", "table", table.table, "branch", table.branch(), "partitions", values);
  }

  private String[] keys() {
    return table.partitionKeys().toArray(new String[0]);
  }

  private ArrowRows.Rows found(String[] names, InternalRow texts) {
    return ArrowRows.take(
        table.lake.ask(
            "list_partitions", "table", table.table, "branch", table.branch(), "snapshot", table.snapshot(), "partition",
            values(names, texts)).get("rows").asText());
  }

  /** The values of columns in the form of messages. */
  private Map<String, Object> values(String[] names, InternalRow texts) {
    Map<String, Object> values = new LinkedHashMap<>();
    for (int i = 0; i < names.length; i++) {
      DataType type = table.schema().apply(names[i]).dataType();
      values.put(names[i], Predicates.literal(texts.isNullAt(i) ? null : parsed(names[i], texts.getUTF8String(i), type), type));
    }
    return values;
  }

  private Object parsed(String name, UTF8String text, DataType type) {
    Object value = cast(text, DataTypes.StringType, type, EvalMode.TRY());
    boolean isRounded =
        value instanceof Decimal decimal
            && decimal.toJavaBigDecimal().compareTo(new BigDecimal(text.trimAll().toString())) != 0;
    if (value == null || isRounded) {
      throw Errors.mistake(
          "The value of PARTITION (" + name + " = '" + text + "') is not of the column's type, " + type.sql() + ": "
              + table.name() + " has partitions by " + String.join(", ", table.partitionKeys())
              + ", which SHOW PARTITIONS lists.");
    }
    return value;
  }

  private static InternalRow texts(InternalRow row, StructType schema, int count) {
    Object[] texts = new Object[count];
    for (int i = 0; i < count; i++) {
      DataType type = schema.apply(i).dataType();
      texts[i] = row.isNullAt(i) ? null : cast(row.get(i, type), type, DataTypes.StringType, EvalMode.ANSI());
    }
    return new GenericInternalRow(texts);
  }

  private static Object cast(Object value, DataType from, DataType to, Enumeration.Value mode) {
    String zone = SQLConf.get().sessionLocalTimeZone();
    return new Cast(new Literal(value, from), to, Option.apply(zone), mode).eval(null);
  }
}
