package org.lakebed.spark;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A few rows on the driver: a system table, the result of a procedure, or a number of rows. */
final class RowsTable implements Table, SupportsRead, ScanBuilder, LocalScan {
  private final String name;
  private final ArrowRows.Rows rows;

  RowsTable(String name, ArrowRows.Rows rows) {
    this.name = name;
    this.rows = rows;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public StructType schema() {
    return rows.schema();
  }

  @Override
  public StructType readSchema() {
    return rows.schema();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    LakebedTable.checkBranch(options);
    Options.check("a batch of " + name, options, Options.READ);
    return this;
  }

  @Override
  public Scan build() {
    return this;
  }

  @Override
  public InternalRow[] rows() {
    return rows.rows();
  }
}
