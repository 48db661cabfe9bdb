package org.lakebed.spark;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;

/**
 * The rows of one task, written as data files by Spark's own Parquet writer. No row is sent to Python.
 *
 * <p>One file is open at a time: rows arrive sorted by partition and bucket. Every attempt of a task uses separate names,
 * and nothing references its files until the driver commits those of the attempt that Spark accepted.
 */
final class FileTaskWriter implements DataWriter<InternalRow> {
  private static final int SIZE_CHECK_ROWS = 1024;
  private static final long ROW_GROUP_BYTES_MIN = 4L << 20;

  private final FileTarget target;
  private final TaskFiles files;
  private final PartitionFolders folders;
  private final BucketHash hash;
  private final int[] required;
  private final long rowGroupBytes;
  private final String name;
  private final List<String> paths = new ArrayList<>();
  private final List<Written> written = new ArrayList<>();
  private final Object[] partition;
  private int bucket;
  private TaskFiles.Output out;
  private ParquetFile file;
  private long rowCount;
  private final Utf8.Columns texts;
  private Misfit misfit;

  private FileTaskWriter(Factory factory) throws IOException {
    target = FileTarget.of(factory.target);
    files = factory.files();
    folders = new PartitionFolders(target);
    List<FileTarget.Column> keys = target.bucketKeys;
    hash =
        keys.isEmpty()
            ? null
            : new BucketHash(
                keys.stream().mapToInt(FileTarget.Column::position).toArray(),
                keys.stream().map(FileTarget.Column::type).toArray(DataType[]::new));
    StructField[] fields = target.schema.fields();
    required = IntStream.range(0, fields.length).filter(i -> !fields[i].nullable()).toArray();
    texts = new Utf8.Columns(target.schema);
    rowGroupBytes = Math.max(ROW_GROUP_BYTES_MIN, Math.min(target.rowGroupBytes, shareOfHeap()));
    name = target.prefix + UUID.randomUUID();
    partition = new Object[target.partition.size()];
  }

  /** A third of the memory of each task if one task runs on each core. */
  private static long shareOfHeap() {
    int cores = Runtime.getRuntime().availableProcessors();
    SparkEnv env = SparkEnv.get();
    return Runtime.getRuntime().maxMemory() / (3L * (env == null ? cores : env.conf().getInt("spark.executor.cores", cores)));
  }

  /** A finished file. {@code footer}: its Parquet footer, the driver's only source for what the manifest states. */
  record Written(String path, int bucket, long sizeBytes, long closedMs, byte[] footer) implements java.io.Serializable {
    private static final StructType COLUMNS =
        new StructType()
            .add("path", DataTypes.StringType, false)
            .add("bucket", DataTypes.IntegerType, false)
            .add("size_bytes", DataTypes.LongType, false)
            .add("closed_ms", DataTypes.LongType, false)
            .add("footer", DataTypes.BinaryType, false);

    private InternalRow row() {
      return new GenericInternalRow(new Object[] {UTF8String.fromString(path), bucket, sizeBytes, closedMs, footer});
    }
  }

  /** Why a row does not fit: a null in a NOT NULL column, or otherwise a text that is not UTF-8. */
  record Misfit(String column, boolean isNull) implements java.io.Serializable {
    String sentence() {
      return isNull
          ? "Column '" + column + "' is NOT NULL, but null in some of the rows."
          : "Column '" + column + "' has a text that is not UTF-8 in some of the rows: store bytes in a column of type BINARY, or"
              + " make texts of them, in Spark with make_valid_utf8.";
    }
  }

  /** The result of a task: its files, or why its rows do not fit. */
  record Result(List<Written> files, Misfit misfit) implements WriterCommitMessage {
    @Override
    public String toString() {
      return "Result";
    }

    /**
     * Put the files of all messages into a new file, an Arrow stream that only this user may read; null: there are none.
     *
     * <p>A job may have a hundred thousand files. As one text, their footers would fill the driver's memory.
     */
    static Path store(WriterCommitMessage[] messages) {
      if (all(messages).findAny().isEmpty()) {
        return null;
      }
      try {
        Path path = Files.createTempFile("lakebed-written-", ".arrow");
        path.toFile().deleteOnExit();
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(path));
            ArrowRows.Writer rows = new ArrowRows.Writer(Written.COLUMNS, out)) {
          for (Iterator<Written> found = all(messages).iterator(); found.hasNext(); ) {
            rows.write(found.next().row());
          }
          rows.finish();
        }
        return path;
      } catch (IOException e) {
        throw new java.io.UncheckedIOException(e);
      }
    }

    static List<String> paths(WriterCommitMessage[] messages) {
      return all(messages).map(Written::path).toList();
    }

    /** The first reason why rows do not fit; null: all fit. */
    static Misfit misfit(WriterCommitMessage[] messages) {
      return Arrays.stream(messages)
          .filter(Result.class::isInstance)
          .map(message -> ((Result) message).misfit)
          .filter(Objects::nonNull)
          .findFirst()
          .orElse(null);
    }

    private static Stream<Written> all(WriterCommitMessage[] messages) {
      return Arrays.stream(messages)
          .filter(Result.class::isInstance)
          .flatMap(message -> ((Result) message).files.stream());
    }
  }

  /** Makes the writer of each task. {@code conf}: Hadoop's, for stores that are not local folders; otherwise null. */
  static final class Factory implements DataWriterFactory {
    private final String target;
    private final SerializableConfiguration conf;

    private Factory(String target, SerializableConfiguration conf) {
      this.target = target;
      this.conf = conf;
    }

    static Factory of(String target) {
      boolean isLocal = FileTarget.of(target).root.startsWith("file:");
      return new Factory(target, isLocal ? null : new SerializableConfiguration(NativeFiles.configuration()));
    }

    TaskFiles files() throws IOException {
      return TaskFiles.below(FileTarget.of(target).root, conf == null ? null : conf.value());
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      try {
        return new FileTaskWriter(this);
      } catch (IOException e) {
        throw new java.io.UncheckedIOException(e);
      }
    }
  }

  @Override
  public void write(InternalRow row) throws IOException {
    if (misfit == null) {
      misfit = misfit(row);
    }
    if (misfit != null) {
      return;
    }
    int itsBucket = hash == null ? 0 : hash.of(row, target.bucketCount);
    if (file == null || itsBucket != bucket || !isInPartition(row)) {
      finishFile();
      open(row, itsBucket);
    }
    file.write(row);
    rowCount++;
    if (rowCount % SIZE_CHECK_ROWS == 0 && file.bytes() >= target.fileBytes) {
      finishFile();
    }
  }

  /** Why a row does not fit; null: it fits. */
  private Misfit misfit(InternalRow row) {
    for (int position : required) {
      if (row.isNullAt(position)) {
        return new Misfit(target.schema.fields()[position].name(), true);
      }
    }
    String invalid = texts.invalid(row);
    return invalid == null ? null : new Misfit(invalid, false);
  }

  private boolean isInPartition(InternalRow row) {
    for (int i = 0; i < partition.length; i++) {
      if (!Objects.equals(partition[i], value(row, target.partition.get(i)))) {
        return false;
      }
    }
    return true;
  }

  private static Object value(InternalRow row, FileTarget.Column column) {
    return row.isNullAt(column.position()) ? null : row.get(column.position(), column.type());
  }

  private void open(InternalRow row, int itsBucket) throws IOException {
    for (int i = 0; i < partition.length; i++) {
      Object value = value(row, target.partition.get(i));
      partition[i] = value instanceof UTF8String text ? text.clone() : value;
    }
    bucket = itsBucket;
    String path = folders.of(partition, bucket) + "/" + name + "-" + paths.size() + ".parquet";
    paths.add(path);
    out = files.create(path);
    file = new ParquetFile(out, target, rowGroupBytes);
  }

  private void finishFile() throws IOException {
    if (file == null) {
      return;
    }
    byte[] footer = file.close();
    file = null;
    written.add(new Written(paths.get(paths.size() - 1), bucket, out.getPos(), System.currentTimeMillis(), footer));
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (misfit != null) {
      abort();
      return new Result(List.of(), misfit);
    }
    finishFile();
    files.makeDurable();
    return new Result(List.copyOf(written), null);
  }

  @Override
  public void abort() throws IOException {
    boolean isInterrupted = Thread.interrupted(); // clients of stores do nothing in an interrupted thread
    try {
      close();
      files.delete(paths);
    } finally {
      if (isInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  @Override
  public void close() {
    if (file != null) {
      file.drop();
      file = null;
    } else if (out != null) {
      out.drop();
      try {
        out.close(); // a no-op unless its encoder could not be opened
      } catch (IOException e) {
        // The file will be deleted.
      }
    }
  }
}
