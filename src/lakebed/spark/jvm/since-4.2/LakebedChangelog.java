package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What each snapshot of a range changed. The range was resolved when the statement was analysed. */
record LakebedChangelog(Lake lake, String table, JsonNode loaded) implements Changelog {
  static LakebedChangelog of(MinorCatalog catalog, Identifier table, CaseInsensitiveStringMap options, ChangelogRange range)
      throws NoSuchTableException {
    try {
      return load(catalog.lake(), catalog.named(table), options.get(LakebedCatalog.BRANCH_OPTION), range);
    } catch (Errors.Refused e) {
      throw new NoSuchTableException(table);
    }
  }

  private static LakebedChangelog load(Lake lake, String table, String branch, ChangelogRange range)
      throws Errors.Refused {
    String first = null;
    String last = null;
    Long firstMicros = null;
    Long lastMicros = null;
    if (range instanceof ChangelogRange.VersionRange versions) {
      first = versions.startingVersion();
      last = versions.endingVersion().orElse(null);
    } else if (range instanceof ChangelogRange.TimestampRange times) {
      firstMicros = times.startingTimestamp();
      lastMicros = times.endingTimestamp().orElse(null);
    }
    return new LakebedChangelog(
        lake, table,
        lake.find(
            "load_changes", "table", table, "branch", branch, "first", first, "last", last, "first_us", firstMicros,
            "last_us", lastMicros, "has_first", range.startingBoundInclusive(), "has_last",
            range.endingBoundInclusive()));
  }

  private StructType schema() {
    return (StructType) DataType.fromJson(loaded.get("schema").asText());
  }

  @Override
  public String name() {
    return loaded.get("name").asText() + " changes";
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(schema().fields())
        .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
        .toArray(Column[]::new);
  }

  /** A row that was written again without a change is not reported as a change. */
  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  /** A key may change in several snapshots of the range. */
  @Override
  public boolean containsIntermediateChanges() {
    return rowId().length > 0;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public NamedReference[] rowId() {
    return StreamSupport.stream(loaded.get("primary_keys").spliterator(), false)
        .map(key -> Columns.reference(key.asText()))
        .toArray(NamedReference[]::new);
  }

  @Override
  public NamedReference rowVersion() {
    return Expressions.column("_commit_version");
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new Builder(this, options, schema());
  }

  private static final class Builder implements SupportsPushDownRequiredColumns {
    private final LakebedChangelog changelog;
    private final CaseInsensitiveStringMap options;
    private StructType columns;

    Builder(LakebedChangelog changelog, CaseInsensitiveStringMap options, StructType columns) {
      this.changelog = changelog;
      this.options = options;
      this.columns = columns;
    }

    @Override
    public void pruneColumns(StructType required) {
      columns = LakebedScan.whole(required, changelog.schema());
    }

    @Override
    public Scan build() {
      return new Changes(changelog, options, columns);
    }
  }

  /** A read of the changes. */
  private record Changes(LakebedChangelog changelog, CaseInsensitiveStringMap options, StructType columns)
      implements Scan, Batch {
    @Override
    public StructType readSchema() {
      return columns;
    }

    @Override
    public String description() {
      return "lakebed " + changelog.name() + " after snapshot " + changelog.loaded.get("after") + " until "
          + changelog.loaded.get("until");
    }

    @Override
    public Batch toBatch() {
      Options.check("a batch of " + changelog.name(), options, Options.CHANGES);
      return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      Options.check("a stream of " + changelog.name(), options, Options.STREAM_CHANGES);
      JsonNode loaded = changelog.loaded;
      return new LakebedStream(
          new LakebedStream.Followed(
              changelog.lake, changelog.table, loaded.path("branch").asText(null), loaded.get("schema_id").asInt(),
              Map.of("changes_after", loaded.get("after").asLong())),
          columns, options);
    }

    @Override
    public InputPartition[] planInputPartitions() {
      JsonNode loaded = changelog.loaded;
      JsonNode plan =
          changelog.lake.ask(
              "plan_changes", "table", changelog.table, "branch", loaded.path("branch").asText(null), "schema_id",
              loaded.get("schema_id").asInt(), "after", loaded.get("after").asLong(), "until",
              loaded.get("until").asLong(), "columns", List.of(columns.fieldNames()), "task_count_min",
              NativeFiles.parallelism());
      return LakebedStream.Part.of(plan, columns, changelog.lake.python);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new LakebedStream.Readers();
    }
  }
}
