package org.lakebed.spark;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * A write into a table with a primary key, in which appended rows replace those of the same key. So a stream may have
 * the output mode update.
 *
 * <p>This is the only file that names Spark's internal class for it; tried with 4.1, 4.2 and 4.3.
 */
final class KeyedWriteBuilder extends LakebedWrite.Builder implements SupportsStreamingUpdateAsAppend {
  KeyedWriteBuilder(LakebedTable table, boolean replaces, LogicalWriteInfo info) {
    super(table, replaces, info);
  }
}
