package org.lakebed.spark;

import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, DELETE or MERGE of a table without a primary key, by copying. Every row of the files that may have affected
 * rows is read, and written again unless it is deleted. The commit replaces exactly the files that were read.
 */
final class FileRewrite implements RowLevelOperation {
  private final LakebedTable table;
  private final Command command;
  private LakebedScan scan;

  FileRewrite(LakebedTable table, Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public Command command() {
    return command;
  }

  /** The file of each row. Spark first finds the files with affected rows by a query, and then reads them completely. */
  @Override
  public NamedReference[] requiredMetadataAttributes() {
    return table.namesFiles()
        ? new NamedReference[] {Expressions.column(LakebedScan.FILE_COLUMN)}
        : new NamedReference[0];
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new LakebedScan.Builder(table, true, options) {
      @Override
      public Scan build() {
        scan = (LakebedScan) super.build();
        return scan;
      }
    };
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new WriteBuilder() {
      @Override
      public Write build() {
        return new LakebedRewrite(table, FileRewrite.this);
      }
    };
  }

  /** The files that were read, in the form of messages. */
  Object rewritten() {
    return scan == null ? null : scan.rewritten();
  }
}
