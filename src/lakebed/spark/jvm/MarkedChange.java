package org.lakebed.spark;

import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, DELETE or MERGE of a table without a primary key, by deletion vectors: deleted rows are marked in their files,
 * and only new rows are written.
 */
final class MarkedChange implements SupportsDelta {
  private final LakebedTable table;
  private final Command command;

  MarkedChange(LakebedTable table, Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new LakebedScan.Builder(table, false, options);
  }

  @Override
  public NamedReference[] rowId() {
    return new NamedReference[] {
      Expressions.column(LakebedScan.FILE_COLUMN), Expressions.column(LakebedScan.POSITION_COLUMN)
    };
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        return new MarkedDelta(table, command);
      }
    };
  }
}
