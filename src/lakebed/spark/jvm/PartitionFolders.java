package org.lakebed.spark;

import java.math.BigDecimal;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.List;
import org.apache.spark.sql.types.Decimal;

/**
 * The folders of partitions, as lakebed.table.files.placement names them for new files.
 *
 * <p>The commit compares each name with Python's, so a difference fails a write and misplaces no file. Values of FLOAT,
 * DOUBLE and bytes are not supported here.
 */
final class PartitionFolders {
  private static final String SPECIAL = "\"#%'*/:=?\\{}[]^\u007f";

  private final FileTarget target;

  PartitionFolders(FileTarget target) {
    this.target = target;
  }

  /** Return the folder of a bucket, relative to the table's. {@code values}: of the partition columns, in order. */
  String of(Object[] values, int bucket) {
    StringBuilder path = new StringBuilder(target.directory);
    List<FileTarget.Column> columns = target.partition;
    for (int i = 0; i < values.length; i++) {
      String text = values[i] == null ? null : text(values[i], columns.get(i));
      String shown = text == null || isBlank(text) ? target.defaultName : text;
      slash(path).append(escaped(columns.get(i).name())).append('=').append(escaped(shown));
    }
    return slash(path).append("bucket-").append(bucket).toString();
  }

  private static StringBuilder slash(StringBuilder path) {
    return path.length() == 0 ? path : path.append('/');
  }

  private String text(Object value, FileTarget.Column column) {
    switch (column.root()) {
      case "DATE":
        int day = (Integer) value;
        return target.legacyNames ? Integer.toString(day) : LocalDate.ofEpochDay(day).toString();
      case "TIMESTAMP":
      case "TIMESTAMP_LTZ":
        long micros = (Long) value;
        long second = Math.floorDiv(micros, 1_000_000L);
        int micro = (int) Math.floorMod(micros, 1_000_000L);
        LocalDateTime time = LocalDateTime.ofEpochSecond(second, micro * 1000, ZoneOffset.UTC);
        return target.legacyNames ? time.toString() : padded(time, micro, column.precision());
      case "DECIMAL":
        BigDecimal number = ((Decimal) value).toJavaBigDecimal();
        return number.toPlainString();
      default:
        return value.toString();
    }
  }

  private static String padded(LocalDateTime time, int micro, int precision) {
    String fraction = String.format("%06d", micro);
    while (fraction.length() > precision && fraction.endsWith("0")) {
      fraction = fraction.substring(0, fraction.length() - 1);
    }
    String seconds =
        String.format(
            "%s %02d:%02d:%02d", time.toLocalDate(), time.getHour(), time.getMinute(), time.getSecond());
    return fraction.isEmpty() ? seconds : seconds + "." + fraction;
  }

  private static boolean isBlank(String text) {
    return text.chars().allMatch(Character::isWhitespace);
  }

  private static String escaped(String text) {
    StringBuilder escaped = new StringBuilder(text.length());
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c < ' ' || SPECIAL.indexOf(c) >= 0) {
        escaped.append('%').append(String.format("%02X", (int) c));
      } else {
        escaped.append(c);
      }
    }
    return escaped.toString();
  }
}
