package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.types.UTF8String;

/** Predicates in the form of messages, which Python translates. */
final class Predicates {
  private Predicates() {}

  static List<Object> encoded(Expression[] expressions) {
    List<Object> found = new ArrayList<>();
    for (Expression expression : expressions) {
      found.add(encoded(expression));
    }
    return found;
  }

  private static Object encoded(Expression expression) {
    if (expression instanceof NamedReference reference) {
      return Map.of("column", reference.fieldNames());
    }
    if (expression instanceof Literal<?> literal) {
      return literal(literal.value(), literal.dataType());
    }
    String name = expression instanceof GeneralScalarExpression general ? general.name() : expression.getClass().getSimpleName();
    return Map.of("name", name, "children", encoded(expression.children()));
  }

  /** A value and its type in the form of messages. A text that is not UTF-8 has none: JSON would change it. */
  static Map<String, Object> literal(Object value, DataType type) {
    if (!isText(value)) {
      return Map.of("name", "NOT_UTF8", "children", List.of());
    }
    Map<String, Object> members = new java.util.HashMap<>();
    members.put("literal", value(value));
    members.put("type", type.catalogString());
    return members;
  }

  /** Whether converting a value to a text of Java keeps it, if it is a text: bytes that are not UTF-8 would change. */
  static boolean isText(Object value) {
    return !(value instanceof UTF8String text) || Utf8.isValid(text);
  }

  /** The texts that {@code COLUMN = x} or {@code COLUMN IN (x, ...)} allows; null: the predicate is of another form. */
  static List<String> texts(Predicate predicate, String column) {
    Expression[] children = predicate.children();
    boolean known = predicate.name().equals("IN") || (predicate.name().equals("=") && children.length == 2);
    if (!known || !(children[0] instanceof NamedReference name) || !List.of(name.fieldNames()).equals(List.of(column))) {
      return null;
    }
    List<String> found = new ArrayList<>();
    for (int i = 1; i < children.length; i++) {
      if (!(children[i] instanceof Literal<?> literal)) {
        return null;
      }
      found.add(String.valueOf(literal.value()));
    }
    return found;
  }

  /** An aggregate function in the form of messages; null: manifests do not have its result. */
  static Map<String, String> aggregate(AggregateFunc function) {
    if (function instanceof CountStar) {
      return Map.of("function", "count_star");
    }
    if (function instanceof Count count && !count.isDistinct()) {
      return aggregate("count", count.column());
    }
    if (function instanceof Min min) {
      return aggregate("min", min.column());
    }
    return function instanceof Max max ? aggregate("max", max.column()) : null;
  }

  private static Map<String, String> aggregate(String function, Expression column) {
    return column instanceof NamedReference name && name.fieldNames().length == 1
        ? Map.of("function", function, "column", name.fieldNames()[0])
        : null;
  }

  /** A value of a message in Spark's form. */
  static Object internal(JsonNode value, DataType type) {
    if (value.isNull()) {
      return null;
    }
    if (type instanceof ByteType) {
      return (byte) value.asInt();
    }
    if (type instanceof ShortType) {
      return (short) value.asInt();
    }
    if (type instanceof IntegerType || type instanceof DateType) {
      return value.asInt();
    }
    if (type instanceof FloatType) {
      return (float) Double.parseDouble(value.asText());
    }
    if (type instanceof DoubleType) {
      return Double.parseDouble(value.asText());
    }
    if (type instanceof DecimalType decimal) {
      return Decimal.apply(new BigDecimal(value.asText()), decimal.precision(), decimal.scale());
    }
    return type instanceof StringType ? UTF8String.fromString(value.asText()) : (Object) value.asLong();
  }

  /** A value in Spark's form, as a text if JSON does not have such a number. */
  private static Object value(Object value) {
    if (value instanceof Double || value instanceof Float) {
      double number = ((Number) value).doubleValue();
      return Double.isNaN(number) || Double.isInfinite(number) ? Double.toString(number) : value;
    }
    if (value instanceof byte[] bytes) {
      return Base64.getEncoder().encodeToString(bytes);
    }
    boolean plain = value == null || value instanceof Boolean || value instanceof Long || value instanceof Integer
        || value instanceof Short || value instanceof Byte;
    return plain ? value : value.toString();
  }
}
