package org.lakebed.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Whether texts are UTF-8. Spark accepts any bytes as text, as in {@code CAST(X'FF' AS STRING)}; tables do not. */
final class Utf8 {
  private static final long HIGH_BITS = 0x8080808080808080L;

  private Utf8() {}

  /** Whether the bytes of a text are UTF-8 as Unicode defines it: no surrogates, and no overlong encodings. */
  static boolean isValid(UTF8String text) {
    Object base = text.getBaseObject();
    long at = text.getBaseOffset();
    long end = at + text.numBytes();
    while (at < end) {
      if (end - at >= Long.BYTES && (Platform.getLong(base, at) & HIGH_BITS) == 0) {
        at += Long.BYTES;
        continue;
      }
      int size = size(base, at, end);
      if (size == 0) {
        return false;
      }
      at += size;
    }
    return true;
  }

  /** The number of bytes of the character that begins at an address; 0: none begins there. */
  private static int size(Object base, long at, long end) {
    int first = Platform.getByte(base, at) & 0xFF;
    if (first < 0x80) {
      return 1;
    }
    int size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (size == 0 || at + size > end) {
      return 0;
    }
    for (int i = 1; i < size; i++) {
      if ((Platform.getByte(base, at + i) & 0xC0) != 0x80) {
        return 0;
      }
    }
    int second = Platform.getByte(base, at + 1) & 0xFF;
    boolean isOutside =
        first == 0xE0 && second < 0xA0 || first == 0xED && second > 0x9F || first == 0xF0 && second < 0x90
            || first == 0xF4 && second > 0x8F;
    return isOutside ? 0 : size;
  }

  /** The columns of rows that contain texts, also inside of other values. */
  static final class Columns {
    private final StructField[] fields;
    private final int[] positions;

    Columns(StructType schema) {
      fields = schema.fields();
      List<Integer> found = new ArrayList<>();
      for (int i = 0; i < fields.length; i++) {
        if (hasTexts(fields[i].dataType())) {
          found.add(i);
        }
      }
      positions = found.stream().mapToInt(Integer::intValue).toArray();
    }

    /** The name of a column in which a row has a text that is not UTF-8; null: there is none. */
    String invalid(InternalRow row) {
      for (int position : positions) {
        if (!row.isNullAt(position) && !areValid(row, position, fields[position].dataType())) {
          return fields[position].name();
        }
      }
      return null;
    }
  }

  private static boolean hasTexts(DataType type) {
    if (type instanceof StructType struct) {
      for (StructField field : struct.fields()) {
        if (hasTexts(field.dataType())) {
          return true;
        }
      }
      return false;
    }
    if (type instanceof MapType map) {
      return hasTexts(map.keyType()) || hasTexts(map.valueType());
    }
    return type instanceof ArrayType array ? hasTexts(array.elementType()) : type instanceof StringType;
  }

  /** Whether the texts of a value that is not null are UTF-8. */
  private static boolean areValid(SpecializedGetters values, int position, DataType type) {
    if (type instanceof StringType) {
      return isValid(values.getUTF8String(position));
    }
    if (type instanceof ArrayType array) {
      return areValid(values.getArray(position), array.elementType());
    }
    if (type instanceof MapType map) {
      MapData pairs = values.getMap(position);
      return areValid(pairs.keyArray(), map.keyType()) && areValid(pairs.valueArray(), map.valueType());
    }
    if (type instanceof StructType struct) {
      StructField[] fields = struct.fields();
      InternalRow row = values.getStruct(position, fields.length);
      for (int i = 0; i < fields.length; i++) {
        if (!row.isNullAt(i) && !areValid(row, i, fields[i].dataType())) {
          return false;
        }
      }
    }
    return true;
  }

  private static boolean areValid(ArrayData values, DataType type) {
    if (!hasTexts(type)) {
      return true;
    }
    for (int i = 0; i < values.numElements(); i++) {
      if (!values.isNullAt(i) && !areValid(values, i, type)) {
        return false;
      }
    }
    return true;
  }
}
