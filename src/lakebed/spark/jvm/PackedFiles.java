package org.lakebed.spark;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The files of one task, as arrays.
 *
 * <p>A plan may have a hundred thousand files. The driver packs them, and keeps neither an object nor a URL for each. The
 * task makes those of its own files.
 */
final class PackedFiles implements InputPartition {
  private static final InternalRow NO_CONSTANTS = new GenericInternalRow(new Object[0]);

  /**
   * One file of a plan. {@code folder} is a URL that the files in it share. {@code name} follows it after a slash, in
   * UTF-8. {@code constant}: the value of the column that no file has; null: there is no such column.
   */
  record File(String folder, byte[] name, long sizeBytes, long modifiedMs, byte[] constant) {}

  /** A range of bytes of a file. */
  private record Part(File file, long start, long length) {}

  private final String[] folders;
  private final byte[][] names;
  private final byte[][] constants;
  /** Start, length, size of the file and its time: four numbers for each part. */
  private final long[] numbers;

  private PackedFiles(List<Part> parts) {
    int count = parts.size();
    folders = new String[count];
    names = new byte[count][];
    constants = new byte[count][];
    numbers = new long[4 * count];
    for (int i = 0; i < count; i++) {
      Part part = parts.get(i);
      folders[i] = part.file().folder();
      names[i] = part.file().name();
      constants[i] = part.file().constant();
      numbers[4 * i] = part.start();
      numbers[4 * i + 1] = part.length();
      numbers[4 * i + 2] = part.file().sizeBytes();
      numbers[4 * i + 3] = part.file().modifiedMs();
    }
  }

  int count() {
    return names.length;
  }

  String url(int part) {
    return folders[part] + "/" + new String(names[part], StandardCharsets.UTF_8);
  }

  InternalRow constants(int part) {
    return constants[part] == null
        ? NO_CONSTANTS
        : new GenericInternalRow(new Object[] {UTF8String.fromBytes(constants[part])});
  }

  long start(int part) {
    return numbers[4 * part];
  }

  long length(int part) {
    return numbers[4 * part + 1];
  }

  long sizeBytes(int part) {
    return numbers[4 * part + 2];
  }

  long modifiedMs(int part) {
    return numbers[4 * part + 3];
  }

  @Override
  public String toString() {
    return "PackedFiles(" + names.length + ")";
  }

  /** Settings for the distribution of files over tasks, those of Spark's own tables. */
  record Sizes(long splitBytesMax, long openBytes, Integer taskCountMax) {}

  /**
   * Distribute files over tasks, as Spark does for its own tables: large ones are split, small ones packed, the largest
   * first.
   */
  static List<PackedFiles> deal(List<File> files, Sizes sizes) {
    List<Part> parts = new ArrayList<>(files.size());
    long total = 0;
    for (File file : files) {
      for (long start = 0; start < file.sizeBytes(); start += sizes.splitBytesMax()) {
        parts.add(new Part(file, start, Math.min(sizes.splitBytesMax(), file.sizeBytes() - start)));
        total += parts.get(parts.size() - 1).length() + sizes.openBytes();
      }
    }
    parts.sort((a, b) -> Long.compare(b.length(), a.length()));
    List<PackedFiles> packed = pack(parts, sizes.splitBytesMax(), sizes.openBytes());
    if (sizes.taskCountMax() == null || packed.size() <= sizes.taskCountMax()) {
      return packed;
    }
    long bytes = (total + sizes.taskCountMax() - 1) / sizes.taskCountMax();
    return pack(parts, bytes, sizes.openBytes());
  }

  private static List<PackedFiles> pack(List<Part> parts, long bytesMax, long openBytes) {
    List<PackedFiles> packed = new ArrayList<>();
    int first = 0;
    long bytes = 0;
    for (int i = 0; i < parts.size(); i++) {
      if (i > first && bytes + parts.get(i).length() > bytesMax) {
        packed.add(new PackedFiles(parts.subList(first, i)));
        first = i;
        bytes = 0;
      }
      bytes += parts.get(i).length() + openBytes;
    }
    if (first < parts.size()) {
      packed.add(new PackedFiles(parts.subList(first, parts.size())));
    }
    return packed;
  }
}
