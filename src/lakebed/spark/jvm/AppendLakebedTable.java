package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/**
 * A table without a primary key. UPDATE, DELETE and MERGE replace the files that have affected rows, or with deletion
 * vectors mark these rows.
 */
final class AppendLakebedTable extends LakebedTable implements SupportsRowLevelOperations, SupportsMetadataColumns {
  AppendLakebedTable(Lake lake, String table, JsonNode loaded, Use use) {
    super(lake, table, loaded, use);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    pin();
    return () -> marksRows() ? new MarkedChange(this, info.command()) : new FileRewrite(this, info.command());
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    Place file = new Place(LakebedScan.FILE_COLUMN, DataTypes.StringType, "the name of the data file");
    Place position = new Place(LakebedScan.POSITION_COLUMN, DataTypes.LongType, "the number of the row in its file");
    return marksRows() ? new MetadataColumn[] {file, position} : new MetadataColumn[] {file};
  }

  /** A part of a row's place. */
  private record Place(String name, DataType dataType, String comment) implements MetadataColumn {
    @Override
    public boolean isNullable() {
      return false;
    }
  }
}
