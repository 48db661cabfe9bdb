package org.lakebed.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * The function {@code spread(parts, bucket, count)}: a number whose hash puts a bucket into the part
 * {@code bucket % parts} of a shuffle.
 *
 * <p>A write asks Spark for rows clustered by an expression, and cannot name a partitioner. Spark hashes the expression.
 * Of 8 parts for 8 buckets, 3 parts get none on average, and others get two or three, which one task then writes. If
 * Spark hashes in another way than this class, the parts are as uneven as without it, but the table gets the same rows.
 */
public final class SpreadFunction implements UnboundFunction {
  static final String NAME = "spread";

  private static final int SEED = 42;
  /** Most hashes that a task computes, in 20 ms. With more buckets or parts, Spark hashes the buckets themselves. */
  private static final long HASHES_MAX = 1 << 22;

  /** The expression for a bucket. */
  static Expression of(int parts, Expression bucket, int count) {
    return Expressions.apply(NAME, Expressions.literal(parts), bucket, Expressions.literal(count));
  }

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "spread(parts, bucket, count): a number whose hash puts a bucket into the part of a shuffle that is its turn";
  }

  @Override
  public BoundFunction bind(StructType input) {
    DataType[] types = Arrays.stream(input.fields()).map(field -> field.dataType()).toArray(DataType[]::new);
    if (!Arrays.equals(types, Bound.TYPES)) {
      throw new UnsupportedOperationException("spread takes three numbers of type INT");
    }
    return new Bound();
  }

  /** The function. It is public, because Spark compiles calls of {@code invoke}. */
  public static final class Bound implements ScalarFunction<Integer> {
    private static final DataType[] TYPES = {DataTypes.IntegerType, DataTypes.IntegerType, DataTypes.IntegerType};

    private transient int[] numbers;

    Bound() {}

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String canonicalName() {
      return "lakebed.spread";
    }

    @Override
    public DataType[] inputTypes() {
      return TYPES;
    }

    @Override
    public DataType resultType() {
      return DataTypes.IntegerType;
    }

    @Override
    public boolean isResultNullable() {
      return false;
    }

    public int invoke(int parts, int bucket, int count) {
      if ((long) count * parts > HASHES_MAX) {
        return bucket;
      }
      if (numbers == null) {
        numbers = new int[count];
      }
      if (numbers[bucket] == 0) {
        numbers[bucket] = number(parts, bucket, count);
      }
      return numbers[bucket];
    }

    /** The first number that fits, found after {@code parts} hashes on average; never 0. */
    private static int number(int parts, int bucket, int count) {
      int number = bucket + count;
      while (Math.floorMod(Murmur3_x86_32.hashInt(number, SEED), parts) != bucket % parts) {
        number += count;
      }
      return number;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Bound;
    }

    @Override
    public int hashCode() {
      return NAME.hashCode();
    }
  }
}
