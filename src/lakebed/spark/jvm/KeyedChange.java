package org.lakebed.spark;

import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** UPDATE, DELETE or MERGE of a primary-key table: only the changed keys are written. */
final class KeyedChange implements SupportsDelta {
  private final LakebedTable table;
  private final Command command;

  KeyedChange(LakebedTable table, Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new LakebedScan.Builder(table, true, options);
  }

  @Override
  public NamedReference[] rowId() {
    return Columns.references(table.primaryKeys());
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new LakebedDelta.Builder(table, command);
  }
}
