package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** A table that CREATE or REPLACE TABLE AS SELECT fills. A replaced table keeps its history. */
final class StagedLakebedTable extends LakebedTable implements StagedTable {
  private final boolean replaces;
  private boolean written;

  StagedLakebedTable(Lake lake, String table, JsonNode loaded, boolean replaces) {
    super(lake, table, loaded, replaces ? Use.REPLACE : Use.ANY);
    this.replaces = replaces;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    written = true;
    return super.newWriteBuilder(info);
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  @Override
  public void commitStagedChanges() {
    if (replaces && !written) {
      LakebedWrite.truncate(this);
    }
  }

  @Override
  public void abortStagedChanges() {
    if (!replaces) {
      lake.change("drop_table", "table", table);
    }
  }
}
