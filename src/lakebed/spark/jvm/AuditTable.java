package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The rows of a version with their kinds, {@code t$audit_log}. The version was resolved when the table was loaded. */
record AuditTable(Lake lake, String table, JsonNode loaded) implements Table, SupportsRead {
  @Override
  public String name() {
    return table + "$audit_log";
  }

  @Override
  public StructType schema() {
    return Columns.of(loaded.get("audited").asText());
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    Options.check("a batch of " + name(), options, Options.READ);
    return new Builder(this, schema());
  }

  private static final class Builder implements SupportsPushDownRequiredColumns {
    private final AuditTable audited;
    private StructType columns;

    Builder(AuditTable audited, StructType columns) {
      this.audited = audited;
      this.columns = columns;
    }

    @Override
    public void pruneColumns(StructType required) {
      columns = LakebedScan.whole(required, audited.schema());
    }

    @Override
    public Scan build() {
      return new Rows(audited, columns);
    }
  }

  /** A read of the rows. */
  private record Rows(AuditTable audited, StructType columns) implements Scan, Batch {
    @Override
    public StructType readSchema() {
      return columns;
    }

    @Override
    public String description() {
      return "lakebed " + audited.name();
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
      JsonNode loaded = audited.loaded;
      JsonNode plan =
          audited.lake.ask(
              "plan_audit", "table", audited.table, "branch", loaded.path("branch").asText(null), "snapshot",
              loaded.path("snapshot").asText(null), "schema_id", loaded.get("schema_id").asInt(), "columns",
              List.of(columns.fieldNames()), "task_count_min", NativeFiles.parallelism());
      return LakebedStream.Part.of(plan, columns, audited.lake.python);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new LakebedStream.Readers();
    }
  }
}
