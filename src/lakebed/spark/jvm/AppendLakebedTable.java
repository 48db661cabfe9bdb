package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** A table without a primary key: UPDATE, DELETE and MERGE replace the files that have such rows. */
final class AppendLakebedTable extends LakebedTable implements SupportsRowLevelOperations, SupportsMetadataColumns {
  AppendLakebedTable(Lake lake, String table, JsonNode loaded) {
    super(lake, table, loaded, false);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new FileRewrite(this, info.command());
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return new MetadataColumn[] {new FileColumn()};
  }

  /** The name of the data file that a row is in. */
  private static final class FileColumn implements MetadataColumn {
    @Override
    public String name() {
      return LakebedScan.FILE_COLUMN;
    }

    @Override
    public DataType dataType() {
      return DataTypes.StringType;
    }

    @Override
    public boolean isNullable() {
      return false;
    }

    @Override
    public String comment() {
      return "the name of the data file";
    }
  }
}
