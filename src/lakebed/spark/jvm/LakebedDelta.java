package org.lakebed.spark;

import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation.Command;

/** The job of an UPDATE, DELETE or MERGE of a primary-key table. */
final class LakebedDelta extends LakebedWrite implements DeltaWrite, DeltaBatchWrite {
  private final Command command;

  private LakebedDelta(LakebedTable table, Command command) {
    super(table, null, true);
    this.command = command;
  }

  @Override
  boolean removes() {
    return command == Command.DELETE;
  }

  @Override
  public DeltaBatchWrite toBatch() {
    return this;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return tasks();
  }

  /** Makes the job. */
  record Builder(LakebedTable table, Command command) implements DeltaWriteBuilder {
    @Override
    public DeltaWrite build() {
      return new LakebedDelta(table, command);
    }
  }
}
