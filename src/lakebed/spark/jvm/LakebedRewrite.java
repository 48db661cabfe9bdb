package org.lakebed.spark;

import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.write.RowLevelOperation.Command;

/** The new files of a {@link FileRewrite}, which replace the files that it read. */
final class LakebedRewrite extends LakebedWrite {
  private final FileRewrite rewrite;

  LakebedRewrite(LakebedTable table, FileRewrite rewrite) {
    super(table, null, false);
    this.rewrite = rewrite;
  }

  /** Cluster by partition if the table has partitions, so that few tasks write each. Spark may split large ones. */
  @Override
  public Distribution requiredDistribution() {
    Distribution required = super.requiredDistribution();
    return required.equals(Distributions.unspecified()) && !table.partitionKeys().isEmpty()
        ? Distributions.clustered(Columns.references(table.partitionKeys()))
        : required;
  }

  @Override
  public boolean distributionStrictlyRequired() {
    return table.loaded.get("gathers").asBoolean();
  }

  @Override
  Object rewritten() {
    return rewrite.rewritten();
  }

  /** MERGE inserts what it did not find. Its commit is refused if another writer may have inserted the same since. */
  @Override
  boolean restsOnVersion() {
    return rewrite.command() == Command.MERGE;
  }
}
