package org.lakebed.spark;

import java.util.List;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation.Command;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** The job of a {@link MarkedChange}: its tasks write new rows, and name the file and position of deleted ones. */
final class MarkedDelta extends LakebedWrite implements DeltaWrite, DeltaBatchWrite {
  private final Command command;

  MarkedDelta(LakebedTable table, Command command) {
    super(table, null, true);
    this.command = command;
  }

  @Override
  public DeltaBatchWrite toBatch() {
    return this;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return tasks();
  }

  /** New rows are distributed as in {@link LakebedRewrite}. The rows of a DELETE have only the columns of their places. */
  @Override
  public Distribution requiredDistribution() {
    if (command == Command.DELETE) {
      return Distributions.unspecified();
    }
    Distribution required = super.requiredDistribution();
    return required.equals(Distributions.unspecified()) && !table.partitionKeys().isEmpty()
        ? Distributions.clustered(Columns.references(table.partitionKeys()))
        : required;
  }

  @Override
  public int requiredNumPartitions() {
    return command == Command.DELETE ? 0 : super.requiredNumPartitions();
  }

  @Override
  public boolean distributionStrictlyRequired() {
    return table.loaded.get("gathers").asBoolean();
  }

  @Override
  StructType sent() {
    return table.schema()
        .add(LakebedScan.FILE_COLUMN, DataTypes.StringType, true)
        .add(LakebedScan.POSITION_COLUMN, DataTypes.LongType, true);
  }

  @Override
  List<String> ids() {
    return List.of(LakebedScan.FILE_COLUMN, LakebedScan.POSITION_COLUMN);
  }

  @Override
  boolean marks() {
    return true;
  }

  /** MERGE inserts what it did not find. Its commit is refused if another writer may have inserted the same since. */
  @Override
  boolean restsOnVersion() {
    return command == Command.MERGE;
  }
}
