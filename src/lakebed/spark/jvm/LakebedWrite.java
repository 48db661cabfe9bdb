package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/** A job that writes rows: tasks return what they wrote, and the driver commits it once. */
class LakebedWrite implements RequiresDistributionAndOrdering, BatchWrite {

  private static final long SHUFFLED_BYTES = 16 << 20;

  final LakebedTable table;
  final boolean changes;
  private final Map<String, Object> replaced;
  private FileTarget target;
  private boolean committing;

  /** {@code replaced}: what an overwrite replaces; null: nothing. {@code changes}: rows of UPDATE, DELETE or MERGE. */
  LakebedWrite(LakebedTable table, Map<String, Object> replaced, boolean changes) {
    this.table = table;
    this.replaced = replaced;
    this.changes = changes;
  }

  /** Replace all rows by none. */
  static void truncate(LakebedTable table) {
    new LakebedWrite(table, Map.of(), false).commit(new WriterCommitMessage[0]);
  }

  // ---- which task gets which row: one task gets all rows of a bucket

  @Override
  public Distribution requiredDistribution() {
    if (isNative() && bucket() != null) {
      return Distributions.clustered(FileTarget.by(table.partitionKeys(), spread(bucket())).toArray(Expression[]::new));
    }
    if (!table.loaded.get("gathers").asBoolean()) {
      return Distributions.unspecified();
    }
    List<String> keys = table.partitionKeys();
    if (keys.isEmpty()) { // any column of the rows: those of a DELETE have only the primary key
      keys = table.primaryKeys().isEmpty() ? List.of(table.schema().fieldNames()[0]) : table.primaryKeys();
    }
    return Distributions.clustered(Columns.references(keys));
  }

  /** Distribute buckets evenly over the parts of a shuffle. With partitions there are enough for even hashes. */
  private Expression spread(Transform bucket) {
    return table.partitionKeys().isEmpty()
        ? SpreadFunction.of(NativeFiles.shufflePartitions(), bucket, table.loaded.get("native_write").get("bucket_count").asInt())
        : bucket;
  }

  /** A bucket has one file, however many a task writes. So tasks are small, and no core waits for another. */
  @Override
  public long advisoryPartitionSizeInBytes() {
    return isNative() && bucket() != null ? SHUFFLED_BYTES : 0;
  }

  @Override
  public int requiredNumPartitions() {
    return table.loaded.get("gathers").asBoolean() && table.partitionKeys().isEmpty() && !isNative() ? 1 : 0;
  }

  /** A task that writes files itself has only one of them open at a time. */
  @Override
  public SortOrder[] requiredOrdering() {
    if (!isNative()) {
      return new SortOrder[0];
    }
    return FileTarget.ordering(table.partitionKeys(), bucket());
  }

  /** Whether tasks can write the files themselves: the table allows it, and Hadoop has a file system for its store. */
  private boolean isNative() {
    JsonNode files = table.loaded.get("native_write");
    return !changes && files.isObject() && NativeFiles.schemes().contains(files.get("scheme").asText())
        && TaskFiles.canName(table.loaded.get("url").asText(), !table.partitionKeys().isEmpty());
  }

  /** The bucket of a row, for a table whose files tasks can write; null: it has no fixed buckets. */
  private Transform bucket() {
    JsonNode files = table.loaded.get("native_write");
    List<String> keys = new ArrayList<>();
    files.get("bucket_keys").forEach(key -> keys.add(Columns.quoted(key.asText())));
    int count = files.get("bucket_count").asInt();
    return keys.isEmpty() ? null : Expressions.bucket(count, keys.toArray(String[]::new));
  }

  // ---- the job

  @Override
  public BatchWrite toBatch() {
    return this;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    JsonNode begun = begin(isNative());
    if (!begun.has("target")) {
      return tasks(begun);
    }
    target = FileTarget.of(begun.get("target").asText());
    return FileTaskWriter.Factory.of(begun.get("target").asText());
  }

  private JsonNode begin(boolean isNative) {
    return table.lake.ask(
        "begin_write", "table", table.table, "branch", table.branch(), "resolved", resolved(), "schema",
        rows().json(), "replaced",
        replaced, "changes", changes, "removes", removes(), "native", isNative, "staged", table.staged());
  }

  /** Whether the changes are those of a DELETE. */
  boolean removes() {
    return false;
  }

  TaskWriter.Factory tasks() {
    return tasks(begin(false));
  }

  private TaskWriter.Factory tasks(JsonNode begun) {
    byte[] writer = Base64.getDecoder().decode(begun.get("writer").asText());
    return new TaskWriter.Factory(table.lake.python, writer, sent(), ids(), changes, marks());
  }

  @Override
  public boolean useCommitCoordinator() {
    return true;
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    for (WriterCommitMessage message : messages) {
      if (message instanceof TaskWriter.Result result && result.mistake() != null) {
        throw Errors.mistake(result.mistake());
      }
    }
    FileTaskWriter.Misfit misfit = FileTaskWriter.Result.misfit(messages);
    if (misfit != null) {
      throw Errors.mistake(misfit.sentence());
    }
    Path files = FileTaskWriter.Result.store(messages);
    committing = true;
    try {
      table.lake.change(
          "commit", "table", table.table, "branch", table.branch(), "resolved", resolved(), "results",
          results(messages), "files",
          files == null ? null : files.toString(), "schema_id", target == null ? 0 : target.schemaId, "replaced",
          replaced, "staged", table.staged(), "rewritten", rewritten(), "batch", batch(), "basis",
          restsOnVersion() || marks() ? table.snapshot() : null, "has_basis", restsOnVersion(), "marks", marks());
    } finally {
      if (files != null) {
        files.toFile().delete();
      }
    }
  }

  /** The schema to which the columns belong; null: it is a stream, whose columns belong to the table's newest schema. */
  JsonNode resolved() {
    return table.resolved();
  }

  /** The columns of the tasks' rows. */
  StructType rows() {
    return table.schema();
  }

  /** The columns that tasks send to their workers. */
  StructType sent() {
    return rows();
  }

  /** The columns that identify the row of a change. */
  List<String> ids() {
    return changes ? table.primaryKeys() : List.of();
  }

  /** Whether tasks name deleted rows by their places, and the commit marks these rows. */
  boolean marks() {
    return false;
  }

  /** The query and the number of the batch that is committed; null: this is not a stream. */
  Map<String, Object> batch() {
    return null;
  }

  /** The files that the commit replaces; null: none. */
  Object rewritten() {
    return null;
  }

  /** Whether the commit is refused if another writer changed rows of the same buckets since the version that was read. */
  boolean restsOnVersion() {
    return changes || table.insertsMissing();
  }

  /** Delete the files of tasks, unless a commit was requested, which may have succeeded without an answer. */
  @Override
  public void abort(WriterCommitMessage[] messages) {
    List<String> results = results(messages);
    List<String> paths = FileTaskWriter.Result.paths(messages);
    if (!committing && !(results.isEmpty() && paths.isEmpty())) {
      table.lake.change("abort", "table", table.table, "branch", table.branch(), "results", results, "paths", paths);
    }
  }

  private static List<String> results(WriterCommitMessage[] messages) {
    return Arrays.stream(messages)
        .filter(TaskWriter.Result.class::isInstance)
        .map(message -> ((TaskWriter.Result) message).encoded())
        .filter(Objects::nonNull)
        .toList();
  }

  /** The kind of write that Spark asks for. */
  static class Builder implements WriteBuilder, SupportsOverwriteV2, SupportsDynamicOverwrite {
    private final LakebedTable table;
    private final LogicalWriteInfo info;
    private Map<String, Object> replaced;

    Builder(LakebedTable table, boolean replaces, LogicalWriteInfo info) {
      this.table = table;
      this.info = info;
      this.replaced = replaces ? Map.of() : null;
    }

    @Override
    public WriteBuilder truncate() {
      replaced = Map.of();
      return this;
    }

    @Override
    public WriteBuilder overwriteDynamicPartitions() {
      replaced = Map.of("dynamic", true);
      return this;
    }

    @Override
    public WriteBuilder overwrite(Predicate[] predicates) {
      Map<String, Object> partition = new LinkedHashMap<>();
      boolean isPartition = true;
      for (Predicate predicate : predicates) {
        isPartition &= predicate.name().equals("ALWAYS_TRUE") || add(predicate, partition);
      }
      replaced = isPartition ? Map.of("partition", partition) : Map.of("where", Predicates.encoded(predicates));
      return this;
    }

    private boolean add(Predicate predicate, Map<String, Object> partition) {
      Expression[] sides = predicate.children();
      boolean equals = predicate.name().equals("=") || predicate.name().equals("<=>");
      if (equals && sides.length == 2 && sides[0] instanceof NamedReference name && sides[1] instanceof Literal<?> literal
          && name.fieldNames().length == 1 && table.partitionKeys().contains(name.fieldNames()[0])) {
        if (!Predicates.isText(literal.value())) {
          throw Errors.mistake(
              "The partition to overwrite has a value of " + name.fieldNames()[0] + " that is not UTF-8: no partition of "
                  + table.name() + " has such a text.");
        }
        return partition.putIfAbsent(name.fieldNames()[0], Predicates.literal(literal.value(), literal.dataType())) == null;
      }
      return false;
    }

    @Override
    public Write build() {
      return new LakebedWrite(table, replaced, false) {
        @Override
        public BatchWrite toBatch() {
          Options.check("a write into " + table.name(), info.options(), Options.WRITE);
          InsertingMerge.checkSeesAll(table);
          return this;
        }

        @Override
        public StreamingWrite toStreaming() {
          Options.check("a stream into " + table.name(), info.options(), Options.STREAM_WRITE);
          return new LakebedStreamWrite(table, replaced, info);
        }
      };
    }
  }
}
