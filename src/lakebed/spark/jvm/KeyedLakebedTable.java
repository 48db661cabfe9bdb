package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;

/** A table with a primary key, whose rows UPDATE, DELETE and MERGE change. */
final class KeyedLakebedTable extends LakebedTable implements SupportsRowLevelOperations {
  KeyedLakebedTable(Lake lake, String table, JsonNode loaded, Use use) {
    super(lake, table, loaded, use);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    pin();
    return () -> new KeyedChange(this, info.command());
  }
}
