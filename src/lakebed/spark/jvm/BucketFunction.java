package org.lakebed.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The function {@code bucket(count, key...)}, by which rows are brought to the task that writes their bucket.
 *
 * <p>The one file that names Spark's internal classes ApplyFunctionExpression and ExpressionUtils; tried with 4.1,
 * 4.2 and 4.3.
 */
final class BucketFunction implements UnboundFunction {
  static final String NAME = "bucket";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "bucket(count, key...): the bucket of a row, among so many, by the columns of its bucket key";
  }

  @Override
  public BoundFunction bind(StructType input) {
    StructField[] fields = input.fields();
    if (fields.length < 2 || !DataTypes.IntegerType.sameType(fields[0].dataType())) {
      throw new UnsupportedOperationException("bucket takes a number of buckets and at least one column");
    }
    return new Bound(Arrays.stream(fields).map(StructField::dataType).toArray(DataType[]::new));
  }

  /** The function over the bucket key of a target, as a column of a DataFrame that has the target's columns. */
  static Column column(FileTarget target) {
    List<DataType> types = new ArrayList<>(List.of(DataTypes.IntegerType));
    List<Expression> arguments = new ArrayList<>(List.of(ExpressionUtils.expression(functions.lit(target.bucketCount))));
    for (FileTarget.Column key : target.bucketKeys) {
      types.add(key.type());
      arguments.add(ExpressionUtils.expression(functions.col(FileTarget.quoted(key.name()))));
    }
    Bound bound = new Bound(types.toArray(DataType[]::new));
    return ExpressionUtils.column(
        new ApplyFunctionExpression(bound, CollectionConverters.asScala(arguments).toSeq()));
  }

  /** The function for keys of some types. */
  private static final class Bound implements ScalarFunction<Integer> {
    private final DataType[] types;
    private transient BucketHash hash;

    Bound(DataType[] types) {
      this.types = types;
    }

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String canonicalName() {
      return "lakebed.bucket" + Arrays.toString(types);
    }

    @Override
    public DataType[] inputTypes() {
      return types;
    }

    @Override
    public DataType resultType() {
      return DataTypes.IntegerType;
    }

    @Override
    public boolean isResultNullable() {
      return false;
    }

    @Override
    public Integer produceResult(InternalRow input) {
      if (hash == null) {
        hash =
            new BucketHash(
                IntStream.range(1, types.length).toArray(), Arrays.copyOfRange(types, 1, types.length));
      }
      return hash.of(input, input.getInt(0));
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Bound bound && Arrays.equals(types, bound.types);
    }

    @Override
    public int hashCode() {
      return Arrays.hashCode(types);
    }
  }
}
