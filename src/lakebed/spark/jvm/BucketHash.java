package org.lakebed.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The bucket of a row, as lakebed.table.files.bucket computes it (DO NOT CHANGE: other clients place rows by it).
 *
 * <p>Murmur3 with seed 42 over the 4-byte words of the key's BinaryRow without its arity; lakebed.table.codec.binary_row
 * describes the row. Not thread-safe: the bytes of a row are reused for the next one.
 */
final class BucketHash {
  private static final int SEED = 42;
  /** The state after a header of 8 bytes without nulls. */
  private static final int ONE_HEADER = mixed(mixed(SEED, 0), 0);
  private static final int INLINE_BYTES_MAX = 7;
  private static final int DECIMAL_BYTES = 16;

  private final int[] positions;
  private final DataType[] types;
  private final String[] names;
  private final boolean isOneLong;
  private final int header;
  private ByteBuffer key;

  /** {@code positions}: positions of the key columns in a row. {@code types}: their types. */
  BucketHash(int[] positions, DataType[] types) {
    this.positions = positions;
    this.types = types;
    names = Arrays.stream(types).map(DataType::typeName).toArray(String[]::new);
    isOneLong = types.length == 1 && DataTypes.LongType.equals(types[0]);
    header = (positions.length + 8 + 63) / 64 * 8;
    key = ByteBuffer.allocate(header + 24 * positions.length).order(ByteOrder.LITTLE_ENDIAN);
  }

  int of(InternalRow row, int bucketCount) {
    if (isOneLong && !row.isNullAt(positions[0])) {
      return ofLong(row.getLong(positions[0]), bucketCount);
    }
    int end = clear();
    for (int i = 0; i < positions.length; i++) {
      if (row.isNullAt(positions[i])) {
        setNull(i);
      } else {
        end = put(row, i, header + 8 * i, end);
      }
    }
    return bucket(end, bucketCount);
  }

  /** The bucket of a key of one STRING, which may be null. */
  int ofString(UTF8String value, int bucketCount) {
    int end = clear();
    if (value == null) {
      setNull(0);
    } else {
      end = putBytes(value, header, end);
    }
    return bucket(end, bucketCount);
  }

  /** The bucket of a key of one BIGINT. */
  static int ofLong(long value, int bucketCount) {
    return bucketOfWords((int) value, (int) (value >>> 32), bucketCount);
  }

  /** The bucket of a key of one INT. */
  static int ofInteger(int value, int bucketCount) {
    return bucketOfWords(value, 0, bucketCount);
  }

  /** The bucket of a row with one slot that is not null. Only this slot differs between such rows. */
  private static int bucketOfWords(int low, int high, int bucketCount) {
    int hash = mixed(mixed(ONE_HEADER, low), high) ^ 16;
    hash = (hash ^ hash >>> 16) * 0x85ebca6b;
    hash = (hash ^ hash >>> 13) * 0xc2b2ae35;
    return Math.abs((hash ^ hash >>> 16) % bucketCount);
  }

  /** One step of Murmur3. */
  private static int mixed(int hash, int word) {
    int mixed = Integer.rotateLeft(word * 0xcc9e2d51, 15) * 0x1b873593;
    return Integer.rotateLeft(hash ^ mixed, 13) * 5 + 0xe6546b64;
  }

  /** Start a row without nulls; return the end of its slots. */
  private int clear() {
    int end = header + 8 * positions.length;
    Arrays.fill(key.array(), 0, end, (byte) 0);
    return end;
  }

  private void setNull(int column) {
    int bit = column + 8;
    key.put(bit / 8, (byte) (key.get(bit / 8) | 1 << bit % 8));
  }

  private int bucket(int end, int bucketCount) {
    int hash = Murmur3_x86_32.hashUnsafeWords(key.array(), Platform.BYTE_ARRAY_OFFSET, end, SEED);
    return Math.abs(hash % bucketCount);
  }

  /** Encode one value into its slot, and what does not fit behind the last value; return the new end. */
  private int put(InternalRow row, int column, int slot, int end) {
    int position = positions[column];
    switch (names[column]) {
      case "boolean":
        key.put(slot, (byte) (row.getBoolean(position) ? 1 : 0));
        return end;
      case "byte":
        key.put(slot, row.getByte(position));
        return end;
      case "short":
        key.putShort(slot, row.getShort(position));
        return end;
      case "integer":
      case "date":
        key.putInt(slot, row.getInt(position));
        return end;
      case "long":
        key.putLong(slot, row.getLong(position));
        return end;
      case "float":
        key.putInt(slot, Float.floatToRawIntBits(row.getFloat(position)));
        return end;
      case "double":
        key.putLong(slot, Double.doubleToRawLongBits(row.getDouble(position)));
        return end;
      case "timestamp":
      case "timestamp_ntz":
        long micros = row.getLong(position);
        key.putLong(slot, (long) end << 32 | Math.floorMod(micros, 1000L) * 1000);
        room(end + 8).putLong(end, Math.floorDiv(micros, 1000L));
        return end + 8;
      case "binary":
        return putBytes(row.getBinary(position), slot, end);
      default:
        return types[column] instanceof DecimalType decimal
            ? putDecimal(row.getDecimal(position, decimal.precision(), decimal.scale()), decimal, slot, end)
            : putBytes(row.getUTF8String(position), slot, end);
    }
  }

  private int putDecimal(Decimal value, DecimalType type, int slot, int end) {
    if (type.precision() <= Decimal.MAX_LONG_DIGITS()) {
      key.putLong(slot, value.toUnscaledLong());
      return end;
    }
    byte[] unscaled = value.toJavaBigDecimal().unscaledValue().toByteArray();
    key.putLong(slot, (long) end << 32 | unscaled.length);
    return append(unscaled, DECIMAL_BYTES, end);
  }

  private int putBytes(UTF8String text, int slot, int end) {
    return putBytes(text.getBytes(), slot, end);
  }

  private int putBytes(byte[] bytes, int slot, int end) {
    if (bytes.length <= INLINE_BYTES_MAX) {
      System.arraycopy(bytes, 0, key.array(), slot, bytes.length);
      key.put(slot + 7, (byte) (0x80 | bytes.length));
      return end;
    }
    key.putLong(slot, (long) end << 32 | bytes.length);
    return append(bytes, (bytes.length + 7) / 8 * 8, end);
  }

  private int append(byte[] bytes, int width, int end) {
    byte[] all = room(end + width).array();
    System.arraycopy(bytes, 0, all, end, bytes.length);
    Arrays.fill(all, end + bytes.length, end + width, (byte) 0);
    return end + width;
  }

  private ByteBuffer room(int size) {
    if (size > key.capacity()) {
      key = ByteBuffer.wrap(Arrays.copyOf(key.array(), 2 * size)).order(ByteOrder.LITTLE_ENDIAN);
    }
    return key;
  }
}
