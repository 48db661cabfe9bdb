package org.lakebed.spark;

import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;

/** The job of an UPDATE, DELETE or MERGE of a primary-key table. */
final class LakebedDelta extends LakebedWrite implements DeltaWrite, DeltaBatchWrite {
  private LakebedDelta(LakebedTable table) {
    super(table, null, true);
  }

  @Override
  public DeltaBatchWrite toBatch() {
    return this;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return tasks();
  }

  /** Makes it. */
  record Builder(LakebedTable table) implements DeltaWriteBuilder {
    @Override
    public DeltaWrite build() {
      return new LakebedDelta(table);
    }
  }
}
