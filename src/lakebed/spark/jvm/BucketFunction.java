package org.lakebed.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.V2ExpressionUtils;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The function {@code bucket(count, key...)}, by which Spark brings rows to the task that writes their bucket.
 *
 * <p>Spark compiles a call of {@code invoke} into the code of a stage. It finds the method by its name and the types of
 * the key, so these classes are public. Without such a method Spark calls {@code produceResult} for each row with boxed
 * values, which takes ten times as long.
 *
 * <p>This is the only file that names Spark's internal classes V2ExpressionUtils and ExpressionUtils; tried with 4.1, 4.2
 * and 4.3.
 */
public final class BucketFunction implements UnboundFunction {
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
    return of(Arrays.copyOfRange(fields, 1, fields.length));
  }

  /** The function of the bucket key of a target, as a column of a DataFrame with the target's columns. */
  static Column column(FileTarget target) {
    List<Expression> arguments = new ArrayList<>(List.of(ExpressionUtils.expression(functions.lit(target.bucketCount))));
    for (FileTarget.Column key : target.bucketKeys) {
      arguments.add(ExpressionUtils.expression(functions.col(Columns.quoted(key.name()))));
    }
    StructField[] keys =
        target.bucketKeys.stream().map(key -> target.schema.fields()[key.position()]).toArray(StructField[]::new);
    return ExpressionUtils.column(
        V2ExpressionUtils.resolveScalarFunction(of(keys), CollectionConverters.asScala(arguments).toSeq()));
  }

  /** Spark does not call {@code invoke} for a number that is null, although it has a bucket. */
  private static Bound of(StructField[] keys) {
    DataType[] types = Arrays.stream(keys).map(StructField::dataType).toArray(DataType[]::new);
    if (types.length == 1 && DataTypes.LongType.equals(types[0]) && !keys[0].nullable()) {
      return new OfLong(types);
    }
    if (types.length == 1 && DataTypes.IntegerType.equals(types[0]) && !keys[0].nullable()) {
      return new OfInteger(types);
    }
    return types.length == 1 && DataTypes.StringType.equals(types[0]) ? new OfString(types) : new OfRow(types);
  }

  /** The function for keys of some types. */
  private abstract static class Bound implements ScalarFunction<Integer> {
    private final DataType[] types;
    private transient BucketHash hash;

    Bound(DataType[] types) {
      this.types = types;
    }

    /** The hash of the keys, which follow the number of buckets. */
    final BucketHash hash() {
      if (hash == null) {
        hash = new BucketHash(IntStream.rangeClosed(1, types.length).toArray(), types);
      }
      return hash;
    }

    @Override
    public final String name() {
      return NAME;
    }

    @Override
    public final String canonicalName() {
      return "lakebed.bucket" + Arrays.toString(types);
    }

    @Override
    public final DataType[] inputTypes() {
      List<DataType> all = new ArrayList<>(List.of(DataTypes.IntegerType));
      all.addAll(Arrays.asList(types));
      return all.toArray(DataType[]::new);
    }

    @Override
    public final DataType resultType() {
      return DataTypes.IntegerType;
    }

    @Override
    public final boolean isResultNullable() {
      return false;
    }

    @Override
    public final boolean equals(Object other) {
      return other instanceof Bound bound && getClass() == bound.getClass() && Arrays.equals(types, bound.types);
    }

    @Override
    public final int hashCode() {
      return Arrays.hashCode(types);
    }
  }

  /** A key of one BIGINT that is NOT NULL. */
  public static final class OfLong extends Bound {
    OfLong(DataType[] types) {
      super(types);
    }

    public int invoke(int count, long key) {
      return BucketHash.ofLong(key, count);
    }
  }

  /** A key of one INT that is NOT NULL. */
  public static final class OfInteger extends Bound {
    OfInteger(DataType[] types) {
      super(types);
    }

    public int invoke(int count, int key) {
      return BucketHash.ofInteger(key, count);
    }
  }

  /** A key of one STRING; null is a key as well. */
  public static final class OfString extends Bound {
    OfString(DataType[] types) {
      super(types);
    }

    public int invoke(int count, UTF8String key) {
      return hash().ofString(key, count);
    }
  }

  /** Any other key. */
  private static final class OfRow extends Bound {
    OfRow(DataType[] types) {
      super(types);
    }

    @Override
    public Integer produceResult(InternalRow input) {
      return hash().of(input, input.getInt(0));
    }
  }
}
