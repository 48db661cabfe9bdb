package org.lakebed.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Path;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Files of a table, written by a job that the driver's Python program started and commits itself.
 *
 * <p>lakebed.spark.dataframe.native_jobs sets the options {@code target} (see {@link FileTarget}) and {@code job} (a name
 * that only this job has). It takes the job's result by this name.
 */
public final class FileSink implements TableProvider {
  private static final Map<String, String> RETURNED = new ConcurrentHashMap<>();

  /** Whether this jar belongs to that lakebed, and this process can access and name the files of a target. */
  public static boolean accepts(String version, String target) {
    FileTarget parsed = FileTarget.of(target);
    return Python.isVersion(version)
        && NativeFiles.schemes().contains(parsed.root.substring(0, parsed.root.indexOf(':')))
        && TaskFiles.canName(parsed.root, !parsed.partition.isEmpty());
  }

  /** The bucket of each row of a DataFrame with the columns of a target. */
  public static Column bucket(String target) {
    return BucketFunction.column(FileTarget.of(target));
  }

  /** Return, only once, the result of a job that has ended: where its files are listed, or the column of a misfit. */
  public static String take(String job) {
    return RETURNED.remove(job);
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return FileTarget.of(options.get("target")).schema;
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    return new Files(new CaseInsensitiveStringMap(options));
  }

  private record Files(CaseInsensitiveStringMap options) implements SupportsWrite {
    @Override
    public String name() {
      return "lakebed files below " + FileTarget.of(options.get("target")).root;
    }

    @Override
    public StructType schema() {
      return FileTarget.of(options.get("target")).schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.BATCH_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new WriteBuilder() {
        @Override
        public Write build() {
          return new Job(options.get("target"), options.get("job"));
        }
      };
    }
  }

  private static final class Job implements RequiresDistributionAndOrdering, BatchWrite {
    private final String target;
    private final String job;

    Job(String target, String job) {
      this.target = target;
      this.job = job;
    }

    @Override
    public Distribution requiredDistribution() {
      return Distributions.unspecified();
    }

    @Override
    public SortOrder[] requiredOrdering() {
      FileTarget parsed = FileTarget.of(target);
      return parsed.bucketKeys.isEmpty()
          ? FileTarget.ordering(parsed.partition.stream().map(FileTarget.Column::name).toList(), null)
          : new SortOrder[0]; // the program has distributed rows to tasks, and sorted them
    }

    @Override
    public BatchWrite toBatch() {
      return this;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return FileTaskWriter.Factory.of(target);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      ObjectNode returned = Bridge.JSON.createObjectNode();
      Path files = FileTaskWriter.Result.store(messages);
      returned.put("files", files == null ? null : files.toString());
      FileTaskWriter.Misfit misfit = FileTaskWriter.Result.misfit(messages);
      returned.put("null_in", misfit != null && misfit.isNull() ? misfit.column() : null);
      returned.put("not_utf8_in", misfit != null && !misfit.isNull() ? misfit.column() : null);
      RETURNED.put(job, returned.toString());
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      try {
        FileTaskWriter.Factory.of(target).files().delete(FileTaskWriter.Result.paths(messages));
      } catch (IOException e) {
        throw new java.io.UncheckedIOException(e);
      }
    }
  }
}
